r"""Encoding of conditions for denoisers, and condition dropout.

A text condition is encoded twice: as the mean of its token encodings, and token by token for
networks with cross-attention.

Training with the conditions dropped in a fraction of rows also fits the unconditional
distribution (classifier-free guidance: Ho & Salimans 2022). Where conditions are dropped, all
encodings are 0 and a flag marks the row as unconditional. The cluster of a row (`_clusters`) is
encoded, and dropped, as a condition is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.batch import Batch, broadcast_conditions
from ...core.space import Space
from ...nn.attention.transformer import TransformerEncoder
from ...nn.inputs.features import Conditions, Features
from ...nn.unet import TokenSequence

TEXT_ENCODER = TransformerEncoder.Config(width=64, depth=2, heads=4, positions="sinusoidal")
"""The network that encodes a text."""
CLUSTER_WIDTH = 64
"""Entries of the encoding of a cluster."""
NO_CLUSTER = -1
"""The cluster of rows without one."""


@dataclass(frozen=True)
class Conditioning:
    """Encoded conditions: a vector per row, maps stacked on the event as channels, and the
    encoded tokens of texts; of tables also the components that the cells may have, and of models
    with clusters that of each row, NO_CLUSTER where it is unconditional."""

    vector: Tensor  # (B, width)
    maps: Tensor  # (B, channels, *sides), or (B, 0) without maps
    tokens: TokenSequence | None = None
    allowed: Tensor | None = None  # (B, components)
    cluster: Tensor | None = None  # (B,)

    def keep_rows(self, keep: Tensor) -> Conditioning:
        """The same with all rows but those in `keep` (B,) unconditional: encodings are 0, and one
        token of 0 is left of a text."""

        def masked(value: Tensor) -> Tensor:
            return value * keep.to(value.dtype).reshape(-1, *(1,) * (value.ndim - 1))

        tokens = self.tokens
        if tokens is not None:
            length = torch.where(keep, token_counts(tokens), 1)
            tokens = TokenSequence(masked(tokens.steps), length)
        cluster = self.cluster
        if cluster is not None:
            cluster = torch.where(keep, cluster, NO_CLUSTER)
        return Conditioning(masked(self.vector), masked(self.maps), tokens, self.allowed, cluster)

    def take(self, rows: Tensor) -> Conditioning:
        """Some of the rows."""
        tokens = self.tokens
        if tokens is not None:
            length = None if tokens.length is None else tokens.length[rows]
            tokens = TokenSequence(tokens.steps[rows], length)
        allowed = None if self.allowed is None else self.allowed[rows]
        cluster = None if self.cluster is None else self.cluster[rows]
        return Conditioning(self.vector[rows], self.maps[rows], tokens, allowed, cluster)

    def concat(self, other: Conditioning) -> Conditioning:
        """The rows of both, one after the other."""
        tokens = None
        if self.tokens is not None and other.tokens is not None:
            tokens = TokenSequence(
                torch.cat([self.tokens.steps, other.tokens.steps]),
                torch.cat([token_counts(self.tokens), token_counts(other.tokens)]),
            )
        allowed = None
        if self.allowed is not None and other.allowed is not None:
            allowed = torch.cat([self.allowed, other.allowed])
        cluster = None
        if self.cluster is not None and other.cluster is not None:
            cluster = torch.cat([self.cluster, other.cluster])
        return Conditioning(
            torch.cat([self.vector, other.vector]),
            torch.cat([self.maps, other.maps]),
            tokens,
            allowed,
            cluster,
        )


def token_counts(tokens: TokenSequence) -> Tensor:
    """Number of tokens in each row, (B,)."""
    rows, steps = tokens.steps.shape[:2]
    if tokens.length is not None:
        return tokens.length
    return torch.full((rows,), steps, device=tokens.steps.device)


class ConditionEncoder(nn.Module):
    """Conditions to `Conditioning`. Image conditions of images, and sequence conditions of
    sequences, become maps resized to the sides of the event; all others become a vector.

    width: entries of the vector; token_width: entries of a token; max_tokens: number of tokens;
    clusters: number of clusters, of which a row without conditions has one.
    """

    width: int
    channels: int
    token_width: int
    max_tokens: int

    def __init__(self, space: Space, clusters: int = 0) -> None:
        super().__init__()
        self.space, self.sides = space, map_sides(space)
        given = space.given.items()
        self.map_names = tuple(name for name, part in given if is_map(part, space))
        self.text_names = tuple(name for name, part in given if part.kind == "tokens")
        encoded = (*self.map_names, *self.text_names)
        rest = {name: part for name, part in given if name not in encoded}
        self.rest = Conditions(replace(space, given=rest))
        self.features = nn.ModuleList(Features(space.given[name]) for name in self.map_names)
        self.readers = nn.ModuleList(TextEncoder(space.given[name]) for name in self.text_names)
        self.token_width = TEXT_ENCODER.width if self.text_names else 0
        self.max_tokens = sum(space.given[name].shape[0] for name in self.text_names)
        width = self.rest.width + TEXT_ENCODER.width * len(self.text_names)
        self.cluster = nn.Embedding(clusters, CLUSTER_WIDTH) if clusters else None
        width += CLUSTER_WIDTH if clusters else 0
        self.width = width + 1 if given or clusters else 0  # with the flag
        self.channels = sum(map_channels(space.given[name]) for name in self.map_names)

    def forward(
        self, given: Mapping[str, Batch], n: int, cluster: Tensor | None = None
    ) -> Conditioning:
        given = broadcast_conditions(given, self.space, n)
        if not given and cluster is None:
            return self.empty(n)
        texts: list[TokenSequence] = [
            reader(given[name]) for name, reader in zip(self.text_names, self.readers, strict=True)
        ]
        one, rest = self.rest.nothing.new_ones(n, 1), self.rest(given, n)
        maps = [
            self.as_map(name, features(given[name]))
            for name, features in zip(self.map_names, self.features, strict=True)
        ]
        clusters = []
        if self.cluster is not None and cluster is not None:
            clusters = [self.cluster(cluster)]
        return Conditioning(
            torch.cat([one, rest, *map(mean_token, texts), *clusters], 1),
            torch.cat(maps, 1) if maps else self.rest.nothing.expand(n, 0),
            concat_texts(texts) if texts else None,
            cluster=cluster,
        )

    def empty(self, n: int) -> Conditioning:
        """The encoding of n unconditional rows."""
        like = self.rest.nothing
        shape = (self.channels, *self.sides) if self.map_names else (0,)
        tokens = (
            TokenSequence(like.new_zeros(n, 1, self.token_width)) if self.token_width else None
        )
        return Conditioning(like.new_zeros(n, self.width), like.new_zeros(n, *shape), tokens)

    def as_map(self, name: str, features: Tensor) -> Tensor:
        """Features (B, F) of an image or sequence as maps with the sides of the event."""
        part = self.space.given[name]
        if len(part.shape) == 3:
            maps = features.reshape(len(features), *part.shape)
        else:  # (T, C) or (T,)
            maps = features.reshape(len(features), part.shape[0], -1).mT
        if maps.shape[2:] == self.sides:
            return maps
        return F.interpolate(maps, self.sides, mode="nearest")


class TextEncoder(nn.Module):
    """Token codes (B, T) to their transformer encodings, 0 beyond the end of a row."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.embed = nn.Embedding(space.size, TEXT_ENCODER.width)
        self.encoder: TransformerEncoder = TEXT_ENCODER.build(TEXT_ENCODER.width, space.shape[0])

    def forward(self, batch: Batch) -> TokenSequence:
        if batch.length is None:
            return TokenSequence(self.encoder(self.embed(batch.x.long())))
        exist = torch.arange(batch.x.shape[1], device=batch.x.device) < batch.length[:, None]
        codes = torch.where(exist, batch.x, 0).long()  # padding may hold invalid codes
        encoded = self.encoder(self.embed(codes), batch.length)  # (B, T, width)
        return TokenSequence(encoded * exist[..., None], batch.length)


def mean_token(tokens: TokenSequence) -> Tensor:
    """The mean over the tokens of each row, (B, width)."""
    if tokens.length is None:
        return tokens.steps.mean(1)
    return tokens.steps.sum(1) / tokens.length[:, None].clamp_min(1)


def concat_texts(texts: Sequence[TokenSequence]) -> TokenSequence:
    """The tokens of several texts one after the other, padding last."""
    if len(texts) == 1:
        return texts[0]
    steps = torch.cat([tokens.steps for tokens in texts], 1)  # (B, S, width)
    exist = torch.cat(
        [
            torch.arange(tokens.steps.shape[1], device=steps.device)
            < token_counts(tokens)[:, None]
            for tokens in texts
        ],
        1,
    )
    order = exist.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return TokenSequence(steps.gather(1, order[..., None].expand_as(steps)), exist.sum(1))


def map_sides(space: Space) -> tuple[int, ...]:
    """The sides of an event as a map: of an image, a sequence or a vector."""
    return space.shape[1:] if space.is_image else (space.shape[0] if space.shape else 1,)


def map_channels(space: Space) -> int:
    """The channels of an event as a map."""
    return space.shape[0] if space.is_image else space.dims // map_sides(space)[0]


def is_map(part: Space, space: Space) -> bool:
    """Whether a condition becomes maps stacked on the event."""
    if space.is_image:
        return part.is_image
    numbers = part.kind in ("real", "binary", "levels", "counts")
    return numbers and len(space.shape) == 2 and len(part.shape) == 2
