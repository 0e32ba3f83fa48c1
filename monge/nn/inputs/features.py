"""Events and conditions as standardised inputs of networks.

Numbers are standardised by the training split, binary values become -1 and 1, names one-hot; a
value that was not seen is 0 in every feature. A number that may be empty or sit on an atom has an
indicator of each of these beside it, and an empty cell is the mean. A number of a table may have
smooth steps beside it, so that a network need not bend a line many times to follow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.errors import DataError
from ...core.space import Space

STEP_REACH = 2.5
"""Steps lie in the training range of a number, at most as many deviations from its mean."""

FeatureTable = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Features(nn.Module):
    """The features of an event: of an entry x_i either (x_i - shift_i) factor_i, or for a label
    the indicators 1[x_i = 0], ..., 1[x_i = size - 1]; of a number with atoms a_k the first and
    1[x_i = a_k], and where it may be empty 1[x_i is empty]. With `steps`, a number of a table has
    so many features tanh((x_i - t_k) s) more, their t_k evenly over its range.

    `owner[f]` is the entry of the flattened event that feature f belongs to. With `held`, numbers
    are clamped to the training range, so that networks need not extrapolate.
    """

    owner: Tensor
    shift: Tensor
    factor: Tensor
    code: Tensor  # (F,): the value that an indicator stands for, NaN for an empty cell
    indicates: Tensor  # (F,): which features are indicators
    bends: Tensor  # (F,): which are steps
    ends: Tensor

    def __init__(self, space: Space, held: bool = False, steps: int = 0) -> None:
        super().__init__()
        if space.kind == "columns":
            tables = [feature_table(column, steps) for column in space.columns]
        else:
            tables = [feature_table(space)]
        owners = torch.cat([names for names, *_ in tables])  # entries counted from 0 in each table
        starts = torch.tensor([0] + [int(names[-1]) + 1 for names, *_ in tables]).cumsum(0)
        lengths = torch.tensor([len(names) for names, *_ in tables])
        owner = owners + starts[:-1].repeat_interleave(lengths)
        self.register_buffer("owner", owner, persistent=False)
        for place, name in enumerate(("shift", "factor", "code", "indicates", "bends"), 1):
            values = torch.cat([entry[place] for entry in tables])
            self.register_buffer(name, values, persistent=False)
        self.register_buffer("ends", training_range(space)[:, owner], persistent=False)  # (2, F)
        self.width, self.held = len(owner), held and bool(self.ends.isfinite().any())
        ends = torch.bincount(owner).cumsum(0).numpy().tolist()
        self.slices = list(map(slice, [0, *ends], ends))  # the features of each entry
        self.has_steps = bool(self.bends.any())
        # one feature an entry, all of them affine
        self.plain = not (self.has_steps or bool(self.indicates.any()))
        self.has_empty = any(part.optional for part in space.columns or (space,))

    def forward(self, batch: Batch) -> Tensor:  # (B, width)
        x = batch.x.reshape(len(batch), -1).to(self.factor.dtype)  # (B, D)
        features = self.read(x if self.plain else x[:, self.owner])  # (B, F)
        if batch.observed is None:
            return features
        seen = batch.observed_mask.reshape(len(batch), -1)[:, self.owner]
        return torch.where(seen, features, 0.0)

    def entry(self, i: int, value: Tensor) -> Tensor:
        """The features (B, F_i) of entry i from its values (B,)."""
        return self.read(value[:, None], self.slices[i])

    def reader(self) -> Callable[[int, Tensor], Tensor]:
        """A faster `entry` for many entries: the buffers are split once."""
        if self.held or not self.plain:
            return self.entry
        shift, factor = self.shift.unbind(), self.factor.unbind()
        return lambda i, value: value[:, None].sub(shift[i]).mul_(factor[i])

    def read(self, value: Tensor, which: slice = slice(None)) -> Tensor:
        if self.held:
            value = value.clamp(*self.ends[:, which])
        features = (value - self.shift[which]) * self.factor[which]
        if self.plain:
            return features
        if self.has_steps:
            features = torch.where(self.bends[which], features.tanh(), features)
        hit = value == self.code[which]
        if self.has_empty:
            hit = hit | (value.isnan() & self.code[which].isnan())
            features = features.nan_to_num(0.0)
        return torch.where(self.indicates[which], hit.to(features.dtype), features)


class Conditions(nn.Module):
    """The features of all conditions, concatenated."""

    nothing: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.names = tuple(space.given)
        self.parts = nn.ModuleList(Features(part) for part in space.given.values())
        self.width = sum(part.width for part in self.parts)  # type: ignore[misc]
        self.register_buffer("nothing", torch.zeros(1, 0), persistent=False)

    def forward(self, given: Mapping[str, Batch], n: int) -> Tensor:  # (n, width)
        features = [part(given[name]) for name, part in zip(self.names, self.parts, strict=True)]
        none = self.nothing.expand(n, 0)
        return torch.cat([none, *features], 1) if features else none


def training_range(space: Space) -> Tensor:
    """The training range of each number, (2, D); unbounded for other kinds of entry."""
    ends = torch.stack([space.spread("low").flatten(), space.spread("high").flatten()])
    kinds = [part.kind for part in space.columns] or [space.kind] * space.dims
    number = torch.tensor([kind in ("real", "counts") for kind in kinds])
    return torch.where(number, ends, torch.tensor([[-torch.inf], [torch.inf]]))


def feature_table(space: Space, steps: int = 0) -> FeatureTable:
    """Of each feature of a plain space the owner, shift and factor, the value that it indicates,
    whether it is such an indicator and whether it is a step."""
    entries = torch.arange(space.dims)
    one = torch.ones(space.dims)
    none, affine = torch.full((space.dims,), -1.0), torch.zeros(space.dims, dtype=torch.bool)
    if space.kind in ("real", "counts", "levels"):
        mean, scale = space.spread("mean").flatten(), space.spread("scale").flatten()
        # The scale is at least one level, so that nearly constant entries are not blown up.
        scale = scale if space.kind == "real" else scale.clamp_min(1.0)
        states = [*space.atoms, *((torch.nan,) if space.optional else ())]
        zeros, ones = torch.zeros(len(states)), torch.ones(len(states))
        knots, slope = step_knots(space, float(mean[0]), float(scale[0]), steps)
        flat = torch.zeros(len(knots))
        return (
            torch.cat([entries, zeros.long(), flat.long()]),
            torch.cat([mean, zeros, knots]),
            torch.cat([1 / scale, ones, flat + slope]),
            torch.cat([none, torch.tensor(states), flat]),
            torch.cat([affine, ones.bool(), flat.bool()]),
            torch.cat([affine, zeros.bool(), flat == 0]),
        )
    if space.kind == "binary":
        return entries, one / 2, 2 * one, none, affine, affine
    if space.kind == "label":
        owner = entries.repeat_interleave(space.size)
        code = torch.arange(space.size, dtype=torch.get_default_dtype()).repeat(space.dims)
        return owner, torch.zeros_like(code), torch.ones_like(code), code, code >= 0, code < 0
    raise DataError(f"{space.name or 'the event'} holds {space}, which has no features; embed it")


def step_knots(space: Space, mean: float, scale: float, steps: int) -> tuple[Tensor, float]:
    """The middles of the steps of a number in its units, and their slope there."""
    if not steps:
        return torch.zeros(0), 0.0
    low, high = (float(space.spread(end).flatten()[0]) for end in ("low", "high"))
    low, high = max(low, mean - STEP_REACH * scale), min(high, mean + STEP_REACH * scale)
    if not math.isfinite(high - low) or high <= low:
        return torch.zeros(0), 0.0
    width = (high - low) / steps
    return low + width * (torch.arange(steps) + 0.5), 2 / width
