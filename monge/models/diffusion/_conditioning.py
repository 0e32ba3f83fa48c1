r"""What a network is told besides the noisy datum: conditions, which training sometimes hides.

A text is told twice: as the mean of what is made of its symbols, and symbol by symbol, for
networks that attend.

A law trained with its conditions hidden in a share of rows is also a law without them (Ho &
Salimans 2022): where they are hidden, all that is told is 0, and a flag says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.batch import Batch, broadcast_conditions
from ...core.space import Space
from ...nn.attention.transformer import Encoder
from ...nn.inputs.features import Conditions, Features
from ...nn.unet import Words

TEXT = Encoder.Config(width=64, depth=2, heads=4, positions="sinusoidal")
"""The network that reads a text."""


@dataclass(frozen=True)
class Told:
    """A vector of numbers for each row, maps laid over the event, channel beside channel, and
    the symbols of texts."""

    vector: Tensor  # (B, width)
    maps: Tensor  # (B, channels, *sides), or (B, 0) where there are none
    words: Words | None = None

    def hidden(self, keep: Tensor) -> Told:
        """What is told with only the rows kept (B,) being told anything: of others one symbol is
        left, which is 0."""

        def masked(value: Tensor) -> Tensor:
            return value * keep.to(value.dtype).reshape(-1, *(1,) * (value.ndim - 1))

        words = self.words
        if words is not None:
            length = torch.where(keep, lengths(words), 1)
            words = Words(masked(words.steps), length)
        return Told(masked(self.vector), masked(self.maps), words)

    def beside(self, other: Told) -> Told:
        """The rows of both, one after the other."""
        words = None
        if self.words is not None and other.words is not None:
            words = Words(
                torch.cat([self.words.steps, other.words.steps]),
                torch.cat([lengths(self.words), lengths(other.words)]),
            )
        return Told(
            torch.cat([self.vector, other.vector]), torch.cat([self.maps, other.maps]), words
        )


def lengths(words: Words) -> Tensor:
    """How many steps exist, (B,)."""
    rows, steps = words.steps.shape[:2]
    if words.length is not None:
        return words.length
    return torch.full((rows,), steps, device=words.steps.device)


class Teller(nn.Module):
    """Conditions as `Told`: pictures given of pictures, and sequences given of sequences, are laid
    over the event and stretched to its sides; everything else is a vector.

    width is that of the vector, words that of a symbol, most the number of symbols.
    """

    width: int
    channels: int
    words: int
    most: int

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space, self.sides = space, sides(space)
        given = space.given.items()
        self.laid = tuple(name for name, part in given if is_map(part, space))
        self.texts = tuple(name for name, part in given if part.kind == "tokens")
        rest = {name: part for name, part in given if name not in (*self.laid, *self.texts)}
        self.rest = Conditions(replace(space, given=rest))
        self.features = nn.ModuleList(Features(space.given[name]) for name in self.laid)
        self.readers = nn.ModuleList(Reader(space.given[name]) for name in self.texts)
        self.words = TEXT.width if self.texts else 0
        self.most = sum(space.given[name].shape[0] for name in self.texts)
        reads = self.rest.width + TEXT.width * len(self.texts)
        self.width = reads + 1 if given else 0  # with the flag
        self.channels = sum(channels(space.given[name]) for name in self.laid)

    def forward(self, given: Mapping[str, Batch], n: int) -> Told:
        given = broadcast_conditions(given, self.space, n)
        if not self.width:
            return self.nothing(n)
        texts: list[Words] = [
            reader(given[name]) for name, reader in zip(self.texts, self.readers, strict=True)
        ]
        one, rest = self.rest.nothing.new_ones(n, 1), self.rest(given, n)
        maps = [
            self.lay(name, features(given[name]))
            for name, features in zip(self.laid, self.features, strict=True)
        ]
        return Told(
            torch.cat([one, rest, *map(mean, texts)], 1),
            torch.cat(maps, 1) if maps else self.rest.nothing.expand(n, 0),
            joined(texts) if texts else None,
        )

    def nothing(self, n: int) -> Told:
        """What is told where nothing is given."""
        like = self.rest.nothing
        shape = (self.channels, *self.sides) if self.laid else (0,)
        words = Words(like.new_zeros(n, 1, self.words)) if self.words else None
        return Told(like.new_zeros(n, self.width), like.new_zeros(n, *shape), words)

    def lay(self, name: str, features: Tensor) -> Tensor:
        """Features (B, F) of a picture or sequence as maps of the event's sides."""
        part = self.space.given[name]
        if len(part.shape) == 3:
            maps = features.reshape(len(features), *part.shape)
        else:  # (T, C) or (T,)
            maps = features.reshape(len(features), part.shape[0], -1).mT
        if maps.shape[2:] == self.sides:
            return maps
        return F.interpolate(maps, self.sides, mode="nearest")


class Reader(nn.Module):
    """A text (B, T) as what a transformer makes of its symbols, 0 beyond its end."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.embed = nn.Embedding(space.size, TEXT.width)
        self.encoder: Encoder = TEXT.build(TEXT.width, space.shape[0])

    def forward(self, batch: Batch) -> Words:
        if batch.length is None:
            return Words(self.encoder(self.embed(batch.x.long())))
        exist = torch.arange(batch.x.shape[1], device=batch.x.device) < batch.length[:, None]
        codes = torch.where(exist, batch.x, 0).long()  # what lies beyond may be no symbol
        seen = self.encoder(self.embed(codes), batch.length)  # (B, T, width)
        return Words(seen * exist[..., None], batch.length)


def mean(words: Words) -> Tensor:
    """The mean over the steps that exist, (B, width)."""
    if words.length is None:
        return words.steps.mean(1)
    return words.steps.sum(1) / words.length[:, None].clamp_min(1)


def joined(texts: Sequence[Words]) -> Words:
    """Texts one after the other, what exists of them first."""
    if len(texts) == 1:
        return texts[0]
    steps = torch.cat([words.steps for words in texts], 1)  # (B, S, width)
    exist = torch.cat(
        [
            torch.arange(words.steps.shape[1], device=steps.device) < lengths(words)[:, None]
            for words in texts
        ],
        1,
    )
    order = exist.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return Words(steps.gather(1, order[..., None].expand_as(steps)), exist.sum(1))


def sides(space: Space) -> tuple[int, ...]:
    """The sides of an event as a map: of a picture, a sequence, a vector."""
    return space.shape[1:] if space.is_picture else (space.shape[0] if space.shape else 1,)


def channels(space: Space) -> int:
    """The channels of an event as a map."""
    return space.shape[0] if space.is_picture else space.dims // sides(space)[0]


def is_map(part: Space, space: Space) -> bool:
    """Whether a condition is laid over the event."""
    if space.is_picture:
        return part.is_picture
    numbers = part.kind in ("real", "binary", "levels", "counts")
    return numbers and len(space.shape) == 2 and len(part.shape) == 2
