"""Events as sequences of entries: layout of the steps, and checks of what models accept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import DataError
from ..core.space import Space

STATISTICS = ("mean", "scale", "low", "high")
TABLE_KINDS = ("label", "counts", "columns")
"""Kinds of event whose entries are columns with a distribution each."""
MAX_SEPARATE_PLACES = 4096
"""Entries of a row of fixed length up to which each has its own statistics and output offset."""


def placeholder_values(space: Space) -> Tensor:
    """A valid value of each entry for positions not sampled yet, (D,)."""
    low, mean = space.spread("low").flatten(), space.spread("mean").flatten()
    kinds = [part.kind for part in space.columns] or [space.kind] * space.dims
    return torch.where(torch.tensor([kind == "real" for kind in kinds]), mean, low)


def check_no_missing(name: str, batch: Batch) -> None:
    if batch.observed is not None and not bool(batch.observed.all()):
        raise DataError(
            f"{name} needs every value of a row, but some are missing; fill them with "
            "`monge complete`, or choose a model that marginalises them"
        )


def check_codes(name: str, space: Space, x: Tensor) -> None:
    """Levels, bits, names and tokens (B, D) must be in the range of the training data."""
    if torch.compiler.is_compiling() or space.kind in ("real", "counts", "columns"):
        return  # values are not known while a network is traced
    if not x.numel():
        return
    top = 1 if space.kind == "binary" else space.size - 1
    low, high = (int(end) for end in x.aminmax())
    if low < 0 or high > top:
        raise DataError(
            f"{name} was fitted with values 0 to {top}, but a row holds "
            f"{low if low < 0 else high}; score data of the same alphabet"
        )


def late_rows(orders: Iterable[Tensor], seen: Tensor) -> Tensor:
    """The rows (B,) of which an entry is observed (B, D) after a hidden one in some order."""
    found = torch.zeros(len(seen), dtype=torch.bool, device=seen.device)
    for order in orders:
        shown = seen[:, order.argsort()]
        found |= (shown[:, 1:] & ~shown[:, :-1]).any(1)
    return found


def check_prefix(name: str, orders: Iterable[Tensor], seen: Tensor) -> None:
    """Observed entries (B, D) must come first in every order, or samples would not be exact."""
    for order in orders:
        entries = order.argsort()
        late = seen[:, entries][:, 1:] & ~seen[:, entries][:, :-1]  # observed after a hidden one
        if bool(late.any()):
            row, place = late.nonzero()[0].tolist()
            first, second = entries[place].item(), entries[place + 1].item()
            raise DataError(
                f"{name} completes rows whose observed entries come first in its order, but "
                f"row {row} shows entry {second} and hides entry {first}, which comes before "
                f"it; hide what follows, or choose a model that completes any pattern"
            )


@dataclass(frozen=True)
class StepRows:
    """Rows laid out as steps."""

    x: Tensor  # (B, D)
    exist: Tensor  # (B, D): which steps are part of the row
    context: Tensor | None  # (B, 1 or D, K): conditions of all steps, or of each

    def take(self, rows: Tensor, steps: int | None = None) -> StepRows:
        """Some of the rows, and only their first steps."""
        context = None if self.context is None else self.context[rows]
        return StepRows(self.x[rows], self.exist[rows], context).cut(steps)

    def cut(self, steps: int | None) -> StepRows:
        """Only the first steps; all of them for None."""
        context = None if self.context is None else self.context[:, :steps]
        return StepRows(self.x[:, :steps], self.exist[:, :steps], context)

    def at(self, steps: Tensor) -> Tensor | None:
        """The context of the steps (B, S), (B, 1 or S, K)."""
        if self.context is None or self.context.shape[1] == 1:
            return self.context
        return self.context.gather(1, steps[..., None].expand(-1, -1, self.context.shape[2]))


class StepLayout:
    """An event as a sequence of single entries: the channels of each step of a series, or the
    colours of each pixel of an image in raster order, or the columns of a table.

    Places repeat after `cycle` steps: the whole row if rows are short and of one length, otherwise
    one frame, which is a step of a series with its channels.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.raster = space.is_image and not space.varies
        self.is_table = space.kind in TABLE_KINDS or not space.is_plain
        self.channels = 1 if self.is_table else frame(space).dims
        own = not space.varies and space.dims <= MAX_SEPARATE_PLACES
        self.cycle = space.dims if own or self.is_table else self.channels

    @property
    def is_vector(self) -> bool:
        """Whether each entry of a row is a place of its own, as in a table, and not a pixel."""
        return self.cycle == self.space.dims and not self.raster and not self.space.varies

    def steps(self, x: Tensor) -> Tensor:
        """(B, *event) -> (B, D)."""
        return frames(self.space, x).flatten(1)

    def event(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, *event), with as many steps as x has."""
        shape = self.space.shape
        if self.raster:
            return x.reshape(-1, *shape[1:], self.channels).movedim(-1, 1)
        return x.reshape(len(x), *((-1, *shape[1:]) if shape else ()))

    def places(self) -> Tensor:
        """The place of each entry, (D,)."""
        return self.event(torch.arange(self.space.dims)[None]).flatten()

    def within(self, batch: Batch) -> Tensor:
        """Which steps lie within the length of their row, (B, D)."""
        x = self.steps(batch.x)
        if batch.length is None:
            return torch.ones_like(x, dtype=torch.bool)
        places = torch.arange(x.shape[1], device=x.device)
        return places < self.channels * batch.length[:, None]

    def exist(self, batch: Batch) -> Tensor:
        """Which steps are part of the row, (B, D): those up to the end symbol."""
        within = self.within(batch)
        if self.space.end is None:
            return within
        ended = (self.steps(batch.x) == self.space.end).long()
        return within & (ended.cumsum(1) == ended)

    def statistics(self) -> Space:
        """The places of the cycle as a vector space, (cycle,)."""
        if self.is_table:
            return self.space
        if self.cycle < self.space.dims:
            return frame(self.space)
        tables = [self.steps(self.space.spread(name)[None])[0] for name in STATISTICS]
        return vector(self.space, *tables)


def frame(space: Space) -> Space:
    """The space of one step of a sequence, or of one pixel of an image, as a vector of channels,
    with statistics over all of them."""
    mean, scale, low, high = (frames(space, space.spread(name)[None])[0] for name in STATISTICS)
    scale = (scale.square().mean(0) + mean.var(0, correction=0)).sqrt()
    return vector(space, mean.mean(0), scale, low.amin(0), high.amax(0))


def vector(space: Space, mean: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Space:
    """A vector space of the same kind with these statistics."""
    return replace(
        space,
        shape=(len(mean),),
        varies=False,
        given={},
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
    )


def frames(space: Space, x: Tensor) -> Tensor:
    """(B, *event) -> (B, steps or pixels, channels); a single number is one step."""
    if space.is_image and not space.varies:
        return x.flatten(2).mT
    return x.flatten(2) if x.ndim > 2 else x.reshape(len(x), -1, 1)
