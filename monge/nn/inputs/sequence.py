"""Inputs of sequence networks: embedded entries, and conditions (global or per step).

A number is standardised by position and mapped linearly; one of a few codes (a bit, a level, a
token) also has a learned embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.errors import DataError
from ...core.space import Space
from .features import Conditions, Features


class SequenceContext(nn.Module):
    """The features of all conditions, (B, 1, width), or (B, T, width) if some are sequences.

    A condition is read step by step if it varies in length as the event does, or is a sequence of
    vectors (T, C) of the event's length; any other is read as a whole at every step. If the event
    has C channels per step, each channel reads the condition of its step. Those named `apart` are
    left out.
    """

    def __init__(self, space: Space, channels: int, apart: Collection[str] = ()) -> None:
        super().__init__()
        given = {name: part for name, part in space.given.items() if name not in apart}.items()
        self.channels = channels
        self.local = tuple(name for name, part in given if is_local(part, space))
        fixed = {name: part for name, part in given if name not in self.local}
        self.fixed = Conditions(replace(space, given=fixed))
        self.each = nn.ModuleList(Features(one_step(space.given[name])) for name in self.local)
        self.width = self.fixed.width + sum(part.width for part in self.each)  # type: ignore[misc]

    def forward(self, given: Mapping[str, Batch], n: int, steps: int) -> Tensor | None:
        """None without conditions; `steps` of the event count channels separately."""
        if not self.width:
            return None
        whole = self.fixed(given, n)[:, None]  # (n, 1, fixed)
        if not self.local:
            return whole
        parts = [
            self.along(name, part, given[name].x, steps)  # type: ignore[arg-type]
            for name, part in zip(self.local, self.each, strict=True)
        ]
        return torch.cat([whole.expand(-1, steps, -1), *parts], 2)

    def along(self, name: str, part: Features, x: Tensor, steps: int) -> Tensor:
        """The features of a condition at every step, (n, steps, F); longer ones are cut."""
        if x.shape[1] * self.channels < steps:
            raise DataError(
                f"given {name!r} has {x.shape[1]} steps, but the event has "
                f"{steps // self.channels}; give a value for each step, or use rnn, which reads "
                "sequences of another length"
            )
        features = part(Batch(x.flatten(0, 1))).unflatten(0, x.shape[:2])  # (n, T, F)
        return features.repeat_interleave(self.channels, 1)[:, :steps]


def is_local(part: Space, space: Space) -> bool:
    """Whether a condition has a value for each step of the event."""
    as_long = len(part.shape) == 2 and part.shape[:1] == space.shape[:1]
    return (part.varies and space.varies) or as_long


def has_other_length(part: Space, space: Space) -> bool:
    """Whether a condition is a sequence whose steps are not those of the event: it varies in
    length, and the event does not, or its longest row has another length."""
    return part.varies and not (space.varies and part.shape[0] == space.shape[0])


def one_step(part: Space) -> Space:
    """The space of a sequence's values at one step, with statistics over all steps."""
    rest = part.shape[1:]

    def over(name: str) -> Tensor:
        return part.spread(name).reshape(part.shape[0], -1)  # (T, channels)

    mean, scale = over("mean"), over("scale")
    scale = (scale.square().mean(0) + mean.var(0, correction=0)).sqrt()
    return replace(
        part,
        shape=rest or (1,),
        varies=False,
        mean=tuple(mean.mean(0).tolist()),
        scale=tuple(scale.tolist()),
        low=tuple(over("low").amin(0).tolist()) if part.low else (),
        high=tuple(over("high").amax(0).tolist()) if part.high else (),
    )


MAX_TABLE_LEVELS = 1024
"""Most levels with an embedding each; more levels are read as numbers."""


class EntryEmbedding(nn.Module):
    """e(x_t) = table[x_t] + w (x_t - mean_p) / scale_p, where p is the position of t.

    The positions of `space` (cycle,) repeat along a sequence. Reals have no table, tokens no
    number.
    """

    shift: Tensor
    factor: Tensor

    def __init__(self, space: Space, width: int) -> None:
        super().__init__()
        self.cycle, self.width = space.dims, width
        listed = (
            space.kind != "real" and space.size <= MAX_TABLE_LEVELS
        ) or space.kind == "tokens"
        size = 2 if space.kind == "binary" else space.size
        self.table = nn.Parameter(0.5 * torch.randn(size, width)) if listed else None
        numbers = space.kind != "tokens"
        self.weight = nn.Parameter(torch.randn(width)) if numbers else None
        scale = space.spread("scale")
        scale = scale if space.kind == "real" else scale.clamp_min(0.5)
        self.register_buffer("shift", space.spread("mean").clone(), persistent=False)  # (cycle,)
        self.register_buffer("factor", 1 / scale, persistent=False)  # (cycle,)

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        """Embed values x (..., T) at `place` (..., T) of the cycle, (..., T, width)."""
        parts = []
        if self.weight is not None:
            number = (x - self.shift[place]) * self.factor[place]
            parts.append(number[..., None] * self.weight)
        if self.table is not None:
            parts.append(F.embedding(x.detach().long(), self.table))
        return parts[0] + parts[1] if len(parts) > 1 else parts[0]

    def reader(self) -> Callable[[Tensor, int], Tensor]:
        """A faster `forward` for values (m,) at one position: the parameters are split once."""
        table, weight = self.table, self.weight
        spread = torch.stack([self.shift, self.factor])  # (2, cycle)
        if table is not None and (weight is None or bool((spread == spread[:, :1]).all())):
            codes = torch.arange(len(table), device=table.device)
            listed = self(codes.to(table), torch.zeros_like(codes))  # (size, width)
            return lambda x, place: listed.index_select(0, x.long())
        shift = self.shift.unbind()
        slope = (self.factor[:, None] * cast(Tensor, weight)).unbind()  # (width,) each
        if table is None:
            return lambda x, place: (x[:, None] - shift[place]) * slope[place]
        return lambda x, place: F.embedding(x.long(), table).addcmul(
            x[:, None] - shift[place], slope[place]
        )


class ColumnEmbedding(nn.Module):
    """e(x_t) = W_t f(x_t): the features of a column's value, mapped by weights of its own. Numbers
    are clamped to the training range."""

    def __init__(self, space: Space, width: int) -> None:
        super().__init__()
        self.width, self.features = width, Features(space, held=True)
        self.weight = nn.Parameter(0.5 * torch.randn(self.features.width, width))

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        """Embed values x (B, T) of the columns `place` (T,), (B, T, width)."""
        read = self.reader()
        parts = [read(x[:, t], own) for t, own in enumerate(place.tolist())]
        return torch.stack(parts, 1) if parts else x.new_zeros(len(x), 0, self.width)

    def reader(self) -> Callable[[Tensor, int], Tensor]:
        """A function of values (m,) of one column."""
        weights = [self.weight[own] for own in self.features.slices]
        return lambda x, place: self.features.entry(place, x) @ weights[place]
