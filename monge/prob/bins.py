"""Numbers in finitely many bins: p(x) = P(bin) p(x | bin).

A bin is a range of cells; a cell is one integer for counts and many levels, and an interval of
width `unit` for real numbers. Bins hold nearly equal shares of the training values. A value more
frequent than a bin has its own bin, which for real numbers extends to the next value, so that
rounding is not mistaken for density. Within a bin every cell is equally likely; the outermost bins
extend to infinity with geometric weights (for levels they end with the last one), so each
distribution sums or integrates to one.

Counts that occurred before occur again, such as amounts or weights that many rows share. Of the N
training values of a bin, a count that c >= 2 of them have is given the share (c - d) / N, and the
cells of the bin have the rest: absolute discounting, with d = n_1 / (n_1 + 2 n_2) where n_k values
were seen k times (Ney, Essen & Kneser 1994). Values of single rows are not kept.

`BinnedCounts` models unbounded integers with a free probability per bin:

P(x) = softmax(l)_bin(x) P(x | bin). A softmax represents any shape including spikes and gaps,
which a mixture of smooth components learns only slowly. The bins are fitted to the training
values.

`EntryCodes` turns every entry of an event into one of finitely many codes: p(x) = P(code)
p(x | code). Bits, labels and few levels are their own codes; other numbers are binned. A number
has one more code for each of its atoms, and one for the empty cell if it may be empty; its bins
are fitted to the other numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ..core.limits import base_count, code_count, is_binned
from ..core.space import Space
from .distributions import (
    ALL_ENTRIES,
    Distribution,
    EntryIndex,
    sample_categorical,
    smoothed_counts,
)

UNREACHABLE_CELL = 2**60
"""A cell that no value reaches: the end of open bins, and the position of unused bins."""
LAST_CELL = UNREACHABLE_CELL // 2
"""Values further out are in the same bins as this cell."""
CELLS_PER_STD = 256
"""Cells per standard deviation of a real number; bounds the density of repeated values."""
MAX_REPEATED, MAX_REPEATED_IN_ALL = 8192, 1 << 18
"""Repeated counts that are kept of an entry, and of all entries."""


class Bins(nn.Module):
    """At most `bins` bins of each of R numeric entries; a bin is the cells low <= c < high."""

    real: Tensor  # (R,)
    top: Tensor  # (R,): where a ladder of levels ends, 0 where numbers have no end
    floored: Tensor  # (R,): whether cells begin at 0: levels, and numbers with a lower bound
    low: Tensor  # (R, bins)
    high: Tensor  # (R, bins)
    tail: Tensor  # (R, 2): mean excess in the lower and the upper open bin
    origin: Tensor  # (R,)
    unit: Tensor  # (R,)
    repeated: Tensor  # (R, M): cells of repeated counts, ascending, then UNREACHABLE_CELL
    repeated_share: Tensor  # (R, M): P(cell | bin) beyond that of every cell of the bin

    def __init__(self, parts: Sequence[Space], bins: int) -> None:
        super().__init__()
        real = torch.tensor([part.kind == "real" for part in parts], dtype=torch.bool)
        top = [part.size if part.kind == "levels" else cells_to_upper(part) for part in parts]
        floor = [bool(end) or part.lower is not None for end, part in zip(top, parts, strict=True)]
        self.register_buffer("real", real, persistent=False)
        self.register_buffer("top", torch.tensor(top, dtype=torch.long), persistent=False)
        self.register_buffer("floored", torch.tensor(floor, dtype=torch.bool), persistent=False)
        self.register_buffer("low", torch.zeros(len(parts), bins, dtype=torch.long))
        self.register_buffer("high", torch.zeros(len(parts), bins, dtype=torch.long))
        self.register_buffer("tail", torch.ones(len(parts), 2))
        self.register_buffer("origin", torch.zeros(len(parts)))
        self.register_buffer("unit", torch.ones(len(parts)))
        most = (
            min(repeated_room(part, bins), MAX_REPEATED_IN_ALL // len(parts)) for part in parts
        )
        room = min(max(most, default=0), MAX_REPEATED)
        self.register_buffer("repeated", torch.full((len(parts), room), UNREACHABLE_CELL))
        self.register_buffer("repeated_share", torch.zeros(len(parts), room))
        self.counted = [part.kind == "counts" for part in parts]
        for j, part in enumerate(parts):
            self.spread(j, part)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *more: Any) -> None:
        """Runs from before repeated counts were kept have none."""
        for name in ("repeated", "repeated_share"):
            state.setdefault(prefix + name, getattr(self, name))
        super()._load_from_state_dict(state, prefix, *more)

    @property
    def live(self) -> Tensor:
        """Which bins are used, (R, bins)."""
        return self.high > self.low

    def spread(self, j: int, part: Space) -> None:
        """Equal bins over three deviations on either side of the mean, before fitting."""
        mean, scale, bins = part.mean[0], part.scale[0], self.low.shape[1]
        if part.kind == "real":
            self.origin[j], self.unit[j] = mean, scale / CELLS_PER_STD
            if part.lower is not None:
                self.origin[j] = part.lower
            if part.lower is not None and part.upper is not None:
                self.unit[j] = (part.upper - part.lower) / self.top[j]
            mean = float((mean - self.origin[j]) / self.unit[j])
            scale = float(scale / self.unit[j])
        elif part.lower is not None:
            self.origin[j], mean = part.lower, mean - part.lower
        if self.top[j]:
            starts = torch.arange(1, bins) * self.top[j] // bins
        else:
            step = max(round(6 * scale / bins), 1)
            starts = round(mean) + step * (torch.arange(1, bins) - bins // 2)
            starts = starts.clamp_min(1).unique() if self.floored[j] else starts
            self.tail[j] = step
        self.set_starts(j, starts)

    def set_starts(self, j: int, starts: Tensor) -> None:
        """Let bin k + 1 of entry j start at starts[k]."""
        top, last = int(self.top[j]), len(starts)
        self.low[j], self.high[j] = UNREACHABLE_CELL, UNREACHABLE_CELL
        self.low[j, 0] = 0 if self.floored[j] else -UNREACHABLE_CELL
        self.low[j, 1 : last + 1] = self.high[j, :last] = starts.to(self.low)
        self.high[j, last] = top or UNREACHABLE_CELL

    def fit(self, j: int, values: Tensor) -> None:
        """Fit the bins of entry j to its sorted training values."""
        if self.real[j]:
            middle, spread = values[len(values) // 2], robust_scale(values)
            if not self.floored[j]:
                self.origin[j] = middle
            if not self.top[j]:
                self.unit[j] = spread / CELLS_PER_STD
        cells = ((values - self.origin[j].double()) / self.unit[j].double()).floor()
        starts = bin_starts(cells, self.low.shape[1], bool(self.real[j]))
        if self.top[j]:
            starts = starts.clamp(1, int(self.top[j]) - 1).unique()
        elif self.floored[j]:
            starts = starts.clamp_min(1).unique()
        self.set_starts(j, starts)
        # One extra row at the width of a bin keeps an empty or narrow tail open.
        typical = max(float(starts[-1] - starts[0]) / len(starts), 1.0)
        below, above = cells[cells < starts[0]], cells[cells >= starts[-1]]
        for side, excess in enumerate((starts[0] - 1 - below, above - starts[-1])):
            self.tail[j, side] = (float(excess.sum()) + typical) / (len(excess) + 1)
        if self.repeated.shape[1] and self.counted[j]:
            self.fit_repeated(j, cells)

    def fit_repeated(self, j: int, cells: Tensor) -> None:
        """Keep the sorted cells of entry j that several training values share."""
        value, count = cells.unique_consecutive(return_counts=True)
        bin_of = torch.searchsorted(self.low[j].double(), value, right=True) - 1
        total = torch.bincount(bin_of, count.double(), self.low.shape[1])
        wide = (self.high[j] - self.low[j])[bin_of] > 1
        if not self.floored[j]:
            wide &= bin_of > 0  # not in the bin that is open below, which is read downwards
        once, twice = (int((wide & (count == times)).sum()) for times in (1, 2))
        discount = (once + 0.5) / (once + 2 * twice + 1)
        score = torch.where(wide & (count > 1), count, 0)
        kept = score.argsort(descending=True, stable=True)[: self.repeated.shape[1]]
        kept = kept[score[kept] > 0].sort().values
        self.repeated[j], self.repeated_share[j] = UNREACHABLE_CELL, 0.0
        self.repeated[j, : len(kept)] = value[kept].to(self.repeated)
        share = (count[kept] - discount) / total[bin_of[kept]]
        self.repeated_share[j, : len(kept)] = share.to(self.repeated_share)

    def repeated_below(self, cell: Tensor) -> Tensor:
        """The sum of the shares of repeated cells before each cell (R, N), all bins together."""
        ends = torch.nn.functional.pad(self.repeated_share.double().cumsum(1), (1, 0))
        return ends.gather(1, torch.searchsorted(self.repeated.double(), cell.double()))

    @property
    def rest(self) -> Tensor:
        """The share of the values of each bin that are not repeated ones, (R, bins)."""
        edges = torch.cat([self.low, self.high[:, -1:]], 1)
        before = self.repeated_below(edges)
        after = torch.cat([before[:, 1:-1], self.repeated_below(self.high[:, -1:])], 1)
        return 1 - torch.where(self.live, after - before[:, :-1], 0.0)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The bin of each number and log p(x | bin), both (B, R); -inf if x has no cell."""
        unit = self.unit.double()
        cell = ((x.double() - self.origin.double()) / unit).floor()
        near = cell.clamp(-LAST_CELL, LAST_CELL).T.contiguous()  # (R, B)
        run = torch.searchsorted(self.low.double(), near, right=True).sub(1).clamp(min=0).T
        below, above, first, last = self.ends(run)
        excess = torch.where(below, first - cell, cell - last)
        mean = torch.where(below, self.tail[:, 0], self.tail[:, 1]).double()
        outer = excess * (mean.log() - mean.log1p()) - mean.log1p()
        inner = -gather_bins(self.high - self.low, run).double().log()
        inside = torch.where(below | above, outer, inner) - unit.log()
        if self.repeated.shape[1]:
            inside = inside.exp() * gather_bins(self.rest, run) + self.share_of(near)
            inside = inside.log()
        wrong = ~self.real & (x.double() != x.double().floor())
        wrong |= (self.floored & (cell < 0)) | ((self.top > 0) & (cell >= self.top))
        return run, inside.masked_fill(wrong, -torch.inf).to(x)

    def share_of(self, cell: Tensor) -> Tensor:
        """The shares of cells (R, N) as repeated ones, (N, R)."""
        place = torch.searchsorted(self.repeated.double(), cell)
        place = place.clamp(max=self.repeated.shape[1] - 1)
        found = self.repeated.gather(1, place) == cell
        return torch.where(found, self.repeated_share.double().gather(1, place), 0.0).T

    def below(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The run of each whole number and P(value <= x | run), both (B, R)."""
        run = self.encode(x.double().floor())[0]
        cell = x.double().floor() - self.origin.double()
        inside = self.evenly_below(cell, run)
        if self.repeated.shape[1]:
            before = self.repeated_below(gather_bins(self.low, run).T.contiguous())
            upto = self.repeated_below((cell + 1).T.contiguous())
            inside = inside * gather_bins(self.rest, run) + (upto - before).T
        return run, inside.to(x)

    def evenly_below(self, cell: Tensor, run: Tensor) -> Tensor:
        """P(cell' <= cell | bin) without repeated cells, (B, R)."""
        below, above, first, last = self.ends(run)
        low, high = gather_bins(self.low, run).double(), gather_bins(self.high, run).double()
        down, up = (tail / (1 + tail) for tail in self.tail.double().T)
        inside = (cell - low + 1) / (high - low)
        inside = torch.where(above, 1 - up ** (cell - last + 1).clamp_min(0), inside)
        return torch.where(below, down ** (first - cell).clamp_min(0), inside)

    def decode(self, run: Tensor, u: Tensor, v: Tensor, at: slice = slice(None)) -> Tensor:
        """A sample of each bin of the entries `at` from two uniforms, all (B, R). It grows with
        the first, but falls in the bin that is open below."""
        u, v, tail = u.double(), v.double(), self.tail[at].double()
        again: tuple[Tensor, Tensor] | None = None
        if self.repeated.shape[1]:
            hit, known, u = self.decode_repeated(run, u, at)
            again = hit, known
        low = gather_bins(self.low[at], run)
        cell = low + (u * (gather_bins(self.high[at], run) - low)).floor()
        below, above, first, last = self.ends(run, at)
        mean = torch.where(below, tail[:, 0], tail[:, 1])
        excess = (torch.log1p(-u) / (mean.log() - mean.log1p())).floor()
        cell = torch.where(below, first - excess, torch.where(above, last + excess, cell))
        cell = cell if again is None else torch.where(*again, cell)
        within = torch.where(self.real[at], v, 0)
        return (self.origin[at].double() + self.unit[at].double() * (cell + within)).to(self.unit)

    def decode_repeated(self, run: Tensor, u: Tensor, at: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Whether a repeated cell is at u of each bin, which it is, and the uniform that chooses
        among all cells of the bin where it is not, each (B, R)."""
        own, cells = self.bins_of_repeated(), self.repeated
        rest, ends = (
            self.rest,
            torch.nn.functional.pad(self.repeated_share.double().cumsum(1), (1, 0)),
        )
        start = self.repeated_below(self.low)  # (R, bins)
        even = self.evenly_below(cells.T - 1.0, own.T).T * rest.gather(1, own)
        before = ends[:, :-1] - start.gather(1, own) + even  # P(cell' < cell | bin), (R, M)
        key = torch.where(cells < UNREACHABLE_CELL, own + before, torch.inf)[at].contiguous()
        at_key = run + u.clamp(max=1 - 2**-40)  # not rounded up to the next bin
        place = torch.searchsorted(key, at_key.T.contiguous(), right=True)  # (R, B)
        last = (place - 1).clamp_min(0)
        shares = (ends[at].gather(1, place) - start[at].gather(1, run.T)).clamp_min(0.0)
        hit = (place > 0) & (own[at].gather(1, last) == run.T)
        hit &= (before + self.repeated_share.double())[at].gather(1, last) > u.T
        left = ((u - shares.T) / gather_bins(rest[at], run)).clamp(0, 1 - 2**-53)
        return hit.T, cells[at].gather(1, last).T, left

    def ends(self, run: Tensor, at: slice = slice(None)) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Whether a bin is the lower or the upper open one (B, R), and their first cells (R,)."""
        final = (self.low[at] < UNREACHABLE_CELL).sum(1, keepdim=True) - 1  # (R, 1)
        last = self.low[at].gather(1, final)[:, 0]
        endless = self.top[at] == 0
        first = self.high[at, 0] - 1
        below = endless & ~self.floored[at] & (run == 0)
        return below, endless & (run == final[:, 0]), first, last

    @property
    def middle(self) -> Tensor:
        """The mean of each bin, (R, bins); 0 for unused bins."""
        mean = self.centre(*self.tail.double().T)
        if not self.repeated.shape[1]:
            return mean
        value = self.origin.double()[:, None] + self.repeated
        parts = torch.zeros_like(self.low, dtype=torch.float64).scatter_add_(
            1, self.bins_of_repeated(), self.repeated_share * value
        )
        return (self.rest * mean + parts).to(mean)

    def bins_of_repeated(self) -> Tensor:
        """The bin of each repeated cell, (R, M)."""
        return (torch.searchsorted(self.low, self.repeated, right=True) - 1).clamp_min(0)

    @property
    def peak(self) -> Tensor:
        """A most probable whole number of each bin, (R, bins); 0 for unused bins."""
        peak = self.centre(torch.zeros(()), torch.zeros(())).floor()
        if not self.repeated.shape[1]:
            return peak
        own = self.bins_of_repeated()
        top = torch.zeros_like(self.low, dtype=self.repeated_share.dtype).scatter_reduce_(
            1, own, self.repeated_share, "amax"
        )
        best = (self.repeated_share == top.gather(1, own)) & (self.repeated_share > 0)
        value = torch.where(best, self.origin[:, None].double() + self.repeated, -torch.inf)
        most = torch.full_like(top, -torch.inf, dtype=torch.float64)
        most.scatter_reduce_(1, own, value, "amax")
        return torch.where(most.isfinite(), most.to(peak), peak)

    def centre(self, down: Tensor, up: Tensor) -> Tensor:
        """The middle of each bin; for open bins the cell at this distance from their start."""
        run = torch.arange(self.low.shape[1], device=self.low.device)[:, None]
        below, above, first, last = self.ends(run.expand(-1, len(self.low)))  # (bins, R)
        inner = (self.low.double() + self.high.double() - 1).T / 2
        cell = torch.where(below, first - down, torch.where(above, last + up, inner))
        value = self.origin.double() + self.unit.double() * (cell + 0.5 * self.real)
        return torch.where(self.live, value.T, 0.0).to(self.unit)


def repeated_room(part: Space, bins: int) -> int:
    """How many repeated values an entry may have: none of numbers that have a bin each."""
    wide = part.kind == "counts" and part.scale[0] > bins
    return part.rows // 2 if wide else 0


def cells_to_upper(part: Space) -> int:
    """How many cells lie between the bounds of a number; 0 if it has no upper bound."""
    if part.upper is None or part.lower is None:
        return 0
    width = part.upper - part.lower
    if part.kind == "counts":
        return int(width) + 1
    return max(round(width / part.scale[0] * CELLS_PER_STD), 1)


def gather_bins(table: Tensor, run: Tensor) -> Tensor:
    """table[r, run[b, r]], (B, R)."""
    return table.gather(1, run.T).T


def robust_scale(values: Tensor) -> float:
    """A robust scale of sorted values; 1 if they are all equal."""
    quartiles = values[3 * len(values) // 4] - values[len(values) // 4]
    return float(quartiles) / 1.349 or float(values.std(correction=0)) or 1.0


def bin_starts(cells: Tensor, bins: int, real: bool) -> Tensor:
    """The starts of at most `bins` bins with nearly equal shares of the sorted cells."""
    value, count = cells.unique_consecutive(return_counts=True)
    after = torch.cat([value[1:], value[-1:]]) if real else value + 1
    every = torch.cat([value, after]).unique()
    if len(every) < bins:
        return every
    commonest, order = count.sort(descending=True, stable=True)
    # A value gets its own bin, at the cost of two bins, if it is more frequent than each of the
    # remaining bins would be.
    left = bins - 2 - 2 * torch.arange(1, len(value) + 1, device=cells.device)
    rest = count.sum() - commonest.cumsum(0)
    alone = (left >= 0) & (commonest * left >= rest)
    heavy = order[: int(alone.long().cumprod(0).sum())]
    light = torch.ones_like(value, dtype=torch.bool).index_fill(0, heavy, False)
    shares, total = bins - 1 - 2 * len(heavy), count[light].cumsum(0)
    quantile = torch.arange(1, shares, device=cells.device) * total[-1] / shares
    picks = value[light][torch.searchsorted(total.double(), quantile.double(), right=True)]
    return torch.cat([value[heavy], after[heavy], picks]).unique()


class BinnedCounts(Distribution):
    """Distributions of d counts: logits over at most `bins` bins each."""

    share: Tensor

    def __init__(self, parts: Sequence[Space], bins: int) -> None:
        super().__init__()
        self.count, self.runs = bins, Bins(parts, bins)
        self.register_buffer("share", self.runs.live.float(), persistent=False)  # (d, bins)

    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Fit the bins to training values (B, d) and count the values in each."""
        x = x.masked_fill(~seen, 0.0)
        for j, column in enumerate(x.double().T):
            if bool(seen[:, j].any()):
                self.runs.fit(j, column[seen[:, j]].sort().values)
        self.share.copy_(smoothed_counts(self.runs.encode(x)[0], seen, self.count))

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        run, inside = self.runs.encode(x.reshape(-1, x.shape[-1]))  # (N, d)
        chosen = run.reshape(*x.shape, 1)
        return self.live(params, ALL_ENTRIES).log_softmax(-1).gather(-1, chosen)[
            ..., 0
        ] + inside.reshape(x.shape)

    def sample(self, params: Tensor, noise: Tensor, at: EntryIndex = ALL_ENTRIES) -> Tensor:
        if isinstance(at, int):
            one = slice(at, at + 1)
            return self.sample(params[..., None, :], noise[..., None, :], one)[..., 0]
        run = sample_categorical(self.live(params, at), noise[..., 0])  # (*S, d)
        u = torch.special.ndtr(noise[..., 1]).flatten(0, -2)
        return self.runs.decode(run.flatten(0, -2), u, u, at).reshape(run.shape)

    def live(self, params: Tensor, at: EntryIndex) -> Tensor:
        """Logits, minus infinity for unused bins."""
        return params.masked_fill(~self.runs.live[at], -torch.inf)

    def mean(self, params: Tensor) -> Tensor:
        return (self.live(params, ALL_ENTRIES).softmax(-1) * self.runs.middle).sum(-1)

    def cumulative(self, params: Tensor, t: Tensor) -> Tensor:
        run, inside = self.runs.below(t.reshape(-1, t.shape[-1]))  # (N, d)
        each = self.live(params, ALL_ENTRIES).softmax(-1)
        chosen = run.reshape(*t.shape, 1)
        upto = torch.cat([each, each.cumsum(-1) - each], -1)  # P(bin), P(a lower bin)
        own, lower = (upto.gather(-1, chosen + k)[..., 0] for k in (0, self.count))
        return lower + own * inside.reshape(t.shape)

    def mode(self, params: Tensor) -> Tensor:
        peak = self.runs.peak  # (d, bins)
        height = self.live(params, ALL_ENTRIES) + self.runs.encode(peak.T)[1].T
        return peak.expand(height.shape).gather(-1, height.argmax(-1, keepdim=True))[..., 0]

    def initial_params(self) -> Tensor:
        return self.share.clamp_min(0.5).log()


class CellStates(nn.Module):
    """The states of the D entries of a row: 0 for a plain value, then the atoms of the entry, then
    the empty cell. The empty cell of a label is a plain value, its last code."""

    sizes: Tensor  # (D,)
    atoms: Tensor  # (D, A): NaN where an entry has fewer
    optional: Tensor  # (D,)

    def __init__(self, parts: Sequence[Space]) -> None:
        super().__init__()
        optional = [part.optional and part.kind != "label" for part in parts]
        most = max((len(part.atoms) for part in parts), default=0)
        rows = [(*part.atoms, *[torch.nan] * (most - len(part.atoms))) for part in parts]
        atoms = torch.tensor(rows).reshape(len(parts), most)
        sizes = [1 + len(p.atoms) + empty for p, empty in zip(parts, optional, strict=True)]
        self.register_buffer("sizes", torch.tensor(sizes, dtype=torch.long), persistent=False)
        self.register_buffer("atoms", atoms, persistent=False)
        self.register_buffer(
            "optional", torch.tensor(optional, dtype=torch.bool), persistent=False
        )
        self.single = all(size == 1 for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        """The state of each cell, (B, D)."""
        state = torch.zeros_like(x, dtype=torch.long)
        for k, atom in enumerate(self.atoms.T):
            state = torch.where(x == atom, k + 1, state)
        return torch.where(x.isnan() & self.optional, self.sizes - 1, state)

    def write(self, x: Tensor, state: Tensor) -> Tensor:
        """x (B, D) with the atom, or NaN for the empty cell, where a state is not 0."""
        x = torch.where((state == self.sizes - 1) & self.optional, torch.nan, x)
        for k, atom in enumerate(self.atoms.T):
            x = torch.where((state == k + 1) & ~atom.isnan(), atom.to(x), x)
        return x


class EntryCodes(nn.Module):
    """The codes of the D entries of an event, C in total, concatenated by entry."""

    sizes: Tensor  # (D,)
    offset: Tensor  # (D,)
    owner: Tensor  # (C,)
    grouped: Tensor  # (R,): the binned entries
    base: Tensor  # (D,): codes of each entry before those of its atoms and of the empty cell
    is_empty: Tensor  # (C,): the codes that stand for an empty cell

    def __init__(self, space: Space, bins: int) -> None:
        super().__init__()
        parts = space.parts
        grouped = [i for i, part in enumerate(parts) if is_binned(part, bins)]
        sizes = torch.tensor([code_count(part, bins) for part in parts], dtype=torch.long)
        owner = torch.arange(len(sizes)).repeat_interleave(sizes)
        is_empty = torch.zeros(len(owner), dtype=torch.bool)
        optional = torch.tensor([part.optional for part in parts], dtype=torch.bool)
        is_empty[(sizes.cumsum(0) - 1)[optional]] = True
        base = torch.tensor([base_count(part, bins) for part in parts], dtype=torch.long)
        self.register_buffer("base", base, persistent=False)
        self.register_buffer("is_empty", is_empty, persistent=False)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("offset", sizes.cumsum(0) - sizes, persistent=False)
        self.register_buffer("owner", owner, persistent=False)
        self.register_buffer("grouped", torch.tensor(grouped, dtype=torch.long), persistent=False)
        self.runs = Bins([parts[i] for i in grouped], bins)
        self.states = CellStates(parts)

    @property
    def total(self) -> int:
        return len(self.owner)

    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Fit the bins to the observed values (B, D) except atoms and empty cells."""
        if not self.states.single:
            seen = seen & (self.states(x) == 0)
        for j, i in enumerate(self.grouped.tolist()):
            if bool(seen[:, i].any()):
                self.runs.fit(j, x[seen[:, i], i].double().sort().values)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The code of each entry and log p(x | code), both (B, D); -inf where x has no code."""
        single = self.states.single
        number = x if single else x.nan_to_num(0.0)
        code = number.long().clamp(min=torch.zeros_like(self.base), max=self.base - 1)
        inside = torch.zeros_like(x).masked_fill(x != code, -torch.inf)
        if len(own := self.grouped):
            code[:, own], inside[:, own] = self.runs.encode(number[:, own])
        if single:
            return code, inside
        state = self.states(x)
        code = torch.where(state > 0, self.base + state - 1, code)
        return code, torch.where(state > 0, 0.0, inside.masked_fill(x.isnan(), -torch.inf))

    def decode(self, code: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """A value of each code, computed from two uniforms, all (B, D)."""
        x, own = code.to(self.runs.unit.dtype), self.grouped
        if len(own):
            run = code[:, own].clamp(max=self.runs.low.shape[1] - 1)
            x[:, own] = self.runs.decode(run, u[:, own], v[:, own])
        if self.states.single:
            return x
        return self.states.write(x, (code - self.base + 1).clamp_min(0))

    def sample(self, code: Tensor, generator: Generator | None) -> Tensor:
        """A value sampled from each code, (B, D)."""
        u, v = torch.rand(
            2, *code.shape, generator=generator, dtype=self.runs.unit.dtype, device=code.device
        )
        return self.decode(code, u, v)

    def one_hot(self, code: Tensor, seen: Tensor) -> Tensor:
        """One-hot codes, (B, C); all zero for missing entries."""
        hot = self.runs.unit.new_zeros(len(code), self.total)
        return hot.scatter_(1, code + self.offset, seen.to(hot.dtype))

    def sums(self, values: Tensor) -> Tensor:
        """The sum over the codes of each entry, (..., C) to (..., D)."""
        zeros = values.new_zeros(*values.shape[:-1], len(self.sizes))
        return zeros.index_add(-1, self.owner, values)

    def even(self) -> Tensor:
        """The uniform distribution over the used codes of each entry, (C,)."""
        live = torch.ones(self.total, dtype=torch.float64, device=self.owner.device)
        steps = torch.arange(self.runs.low.shape[1], device=live.device)
        live[self.offset[self.grouped, None] + steps] = self.runs.live.double()
        return live / self.sums(live)[self.owner]

    def present(self, log_p: Tensor) -> Tensor:
        """Tables (..., C) without the codes of empty cells, not normalised."""
        return log_p.masked_fill(self.is_empty, -torch.inf)

    def log_present(self, log_p: Tensor) -> Tensor:
        """The log-probability that each entry is not empty under tables (..., C), (..., D)."""
        return self.sums(self.present(log_p).exp()).log()

    def shrink(self, counts: Tensor, prior: Tensor, rows: Tensor | float) -> Tensor:
        """Frequencies (..., C) smoothed by `rows` pseudo-rows of each entry from `prior`."""
        more = rows[self.owner] if isinstance(rows, Tensor) else rows
        return (counts + more * prior) / (self.sums(counts)[..., self.owner] + more)

    def choose(self, log_p: Tensor, which: Tensor, generator: Generator | None) -> Tensor:
        """A code of each entry from row `which` of the tables log_p (G, C), (B, D).

        The cumulative distributions are concatenated on one line, that of entry d in table g
        between g D + d and g D + d + 1, so one search serves every entry of every row.
        """
        cumulative, entries = log_p.double().exp().cumsum(1), len(self.sizes)
        ends = cumulative[:, self.offset + self.sizes - 1]  # (G, D)
        begins = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], 1)
        line = (cumulative - begins[:, self.owner]) / (ends - begins)[:, self.owner] + self.owner
        line = line + entries * torch.arange(len(line), device=line.device)[:, None]  # (G, C)
        u = (
            torch.rand(
                len(which), entries, generator=generator, dtype=log_p.dtype, device=log_p.device
            )
            .double()
            .clamp(max=1 - 1e-9)
        )
        place = u + torch.arange(entries, device=u.device) + entries * which[:, None]
        found = torch.searchsorted(line.flatten(), place, right=True)
        return found - which[:, None] * self.total - self.offset


def finite_log(p: Tensor) -> Tensor:
    """Finite logarithms, so that 0 times the log-probability of an unused code is 0."""
    return p.clamp_min(torch.finfo(torch.float32).tiny).log()
