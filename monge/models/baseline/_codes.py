"""Every entry of an event as one of finitely many codes: p(x) = P(code) p(x | code).

Bits, labels and short ladders of levels are their own codes. Numbers fall into runs of cells; a
cell is one integer of a count or of a long ladder, and an interval of width `unit` of a real. Runs
hold nearly equal shares of the training values; a value so common that it outweighs a run has one
to itself, which for a real reaches to the next value, so that rounding is not taken for density.
Inside a run every cell is equally likely; the outermost runs reach to infinity with geometric
weights (on a ladder they end with it), so that each law sums or integrates to one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from ...core.space import Space

FAR = 2**60
"""A cell no value reaches: the end of an open run, and where runs that are not used lie."""
RESOLUTION = 256
"""Cells to a standard deviation of a real; it bounds the density of a value that repeats."""


class Runs(nn.Module):
    """At most `bins` runs of each of R numeric entries; a run is the cells low <= c < high."""

    real: Tensor  # (R,)
    top: Tensor  # (R,): where a ladder of levels ends, 0 where numbers have no end
    low: Tensor  # (R, bins)
    high: Tensor  # (R, bins)
    tail: Tensor  # (R, 2): mean excess in the lower and the upper open run
    origin: Tensor  # (R,)
    unit: Tensor  # (R,)

    def __init__(self, parts: Sequence[Space], bins: int) -> None:
        super().__init__()
        real = torch.tensor([part.kind == "real" for part in parts], dtype=torch.bool)
        top = [part.size if part.kind == "levels" else 0 for part in parts]
        self.register_buffer("real", real, persistent=False)
        self.register_buffer("top", torch.tensor(top, dtype=torch.long), persistent=False)
        self.register_buffer("low", torch.zeros(len(parts), bins, dtype=torch.long))
        self.register_buffer("high", torch.zeros(len(parts), bins, dtype=torch.long))
        self.register_buffer("tail", torch.ones(len(parts), 2))
        self.register_buffer("origin", torch.zeros(len(parts)))
        self.register_buffer("unit", torch.ones(len(parts)))
        for j, part in enumerate(parts):
            self.spread(j, part)

    @property
    def live(self) -> Tensor:
        """Which runs hold a cell, (R, bins)."""
        return self.high > self.low

    def spread(self, j: int, part: Space) -> None:
        """Even runs over three deviations either side of the mean, before anything is counted."""
        mean, scale, bins = part.mean[0], part.scale[0], self.low.shape[1]
        if part.kind == "real":
            self.origin[j], self.unit[j] = mean, scale / RESOLUTION
            mean, scale = 0.0, float(RESOLUTION)
        if self.top[j]:
            starts = torch.arange(1, bins) * self.top[j] // bins
        else:
            step = max(round(6 * scale / bins), 1)
            starts = round(mean) + step * (torch.arange(1, bins) - bins // 2)
            self.tail[j] = step
        self.lay(j, starts)

    def lay(self, j: int, starts: Tensor) -> None:
        """Let run k + 1 of entry j begin at starts[k]."""
        top, last = int(self.top[j]), len(starts)
        self.low[j], self.high[j] = FAR, FAR
        self.low[j, 0] = 0 if top else -FAR
        self.low[j, 1 : last + 1] = self.high[j, :last] = starts.to(self.low)
        self.high[j, last] = top or FAR

    def fit(self, j: int, values: Tensor) -> None:
        """Lay the runs of entry j over its training values, sorted."""
        if self.real[j]:
            middle, spread = values[len(values) // 2], spread_of(values)
            self.origin[j], self.unit[j] = middle, spread / RESOLUTION
        cells = ((values - self.origin[j].double()) / self.unit[j].double()).floor()
        starts = cut(cells, self.low.shape[1], bool(self.real[j]))
        if self.top[j]:
            starts = starts.clamp(1, int(self.top[j]) - 1).unique()
        self.lay(j, starts)
        # One row more, as far out as a run is long, keeps an empty or narrow tail open.
        typical = max(float(starts[-1] - starts[0]) / len(starts), 1.0)
        below, above = cells[cells < starts[0]], cells[cells >= starts[-1]]
        for side, excess in enumerate((starts[0] - 1 - below, above - starts[-1])):
            self.tail[j, side] = (float(excess.sum()) + typical) / (len(excess) + 1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The run of each number and log p(x | run), both (B, R); -inf where x has no cell."""
        unit = self.unit.double()
        cell = ((x.double() - self.origin.double()) / unit).floor()
        near = cell.clamp(-FAR / 2, FAR / 2).T.contiguous()  # (R, B)
        run = torch.searchsorted(self.low.double(), near, right=True).sub(1).clamp(min=0).T
        below, above, first, last = self.ends(run)
        excess = torch.where(below, first - cell, cell - last)
        mean = torch.where(below, self.tail[:, 0], self.tail[:, 1]).double()
        outer = excess * (mean.log() - mean.log1p()) - mean.log1p()
        inner = -pick(self.high - self.low, run).double().log()
        inside = torch.where(below | above, outer, inner) - unit.log()
        wrong = ~self.real & (x.double() != cell)
        wrong |= (self.top > 0) & ((cell < 0) | (cell >= self.top))
        return run, inside.masked_fill(wrong, -torch.inf).to(x)

    def decode(self, run: Tensor, generator: Generator | None) -> Tensor:
        """A number drawn from each run, (B, R)."""
        u, v = torch.rand(2, *run.shape, generator=generator, dtype=self.unit.dtype,
                          device=run.device).double()
        low = pick(self.low, run)
        cell = low + (u * (pick(self.high, run) - low)).floor()
        below, above, first, last = self.ends(run)
        mean = torch.where(below, self.tail[:, 0], self.tail[:, 1]).double()
        excess = (torch.log1p(-u) / (mean.log() - mean.log1p())).floor()
        cell = torch.where(below, first - excess, torch.where(above, last + excess, cell))
        within = torch.where(self.real, v, 0)
        return (self.origin.double() + self.unit.double() * (cell + within)).to(self.unit)

    def ends(self, run: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Is a run the open one below, above (B, R), and the cells (R,) these two start from."""
        final = (self.low < FAR).sum(1, keepdim=True) - 1  # (R, 1)
        last = self.low.gather(1, final)[:, 0]
        endless = self.top == 0
        return endless & (run == 0), endless & (run == final[:, 0]), self.high[:, 0] - 1, last


class Codes(nn.Module):
    """The codes of the D entries of an event, C in all, laid out one entry after the other."""

    sizes: Tensor  # (D,)
    offset: Tensor  # (D,)
    owner: Tensor  # (C,)
    grouped: Tensor  # (R,): the entries that fall into runs

    def __init__(self, space: Space, bins: int) -> None:
        super().__init__()
        parts = space.parts
        grouped = [i for i, part in enumerate(parts) if is_grouped(part, bins)]
        sizes = torch.tensor([codes_of(part, bins) for part in parts], dtype=torch.long)
        owner = torch.arange(len(sizes)).repeat_interleave(sizes)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("offset", sizes.cumsum(0) - sizes, persistent=False)
        self.register_buffer("owner", owner, persistent=False)
        self.register_buffer("grouped", torch.tensor(grouped, dtype=torch.long), persistent=False)
        self.runs = Runs([parts[i] for i in grouped], bins)

    @property
    def total(self) -> int:
        return len(self.owner)

    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Lay the runs over the values that were seen, (B, D)."""
        for j, i in enumerate(self.grouped.tolist()):
            if bool(seen[:, i].any()):
                self.runs.fit(j, x[seen[:, i], i].double().sort().values)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The code of each entry and log p(x | code), both (B, D); -inf where x has no code."""
        code = x.long().clamp(min=torch.zeros_like(self.sizes), max=self.sizes - 1)
        inside = torch.zeros_like(x).masked_fill(x != code, -torch.inf)
        if len(self.grouped):
            code[:, self.grouped], inside[:, self.grouped] = self.runs.encode(x[:, self.grouped])
        return code, inside

    def decode(self, code: Tensor, generator: Generator | None) -> Tensor:
        """A value of each code, (B, D)."""
        x = code.to(self.runs.unit.dtype)
        if len(self.grouped):
            x[:, self.grouped] = self.runs.decode(code[:, self.grouped], generator)
        return x

    def one_hot(self, code: Tensor, seen: Tensor) -> Tensor:
        """Codes as indicators, (B, C); an entry that was not seen has none."""
        hot = self.runs.unit.new_zeros(len(code), self.total)
        return hot.scatter_(1, code + self.offset, seen.to(hot.dtype))

    def sums(self, values: Tensor) -> Tensor:
        """The sum over the codes of each entry, (..., C) to (..., D)."""
        zeros = values.new_zeros(*values.shape[:-1], len(self.sizes))
        return zeros.index_add(-1, self.owner, values)

    def even(self) -> Tensor:
        """The same probability for every code of an entry that stands for some value, (C,)."""
        live = torch.ones(self.total, dtype=torch.float64, device=self.owner.device)
        steps = torch.arange(self.runs.low.shape[1], device=live.device)
        live[self.offset[self.grouped, None] + steps] = self.runs.live.double()
        return live / self.sums(live)[self.owner]

    def shrink(self, counts: Tensor, prior: Tensor, rows: Tensor | float) -> Tensor:
        """Frequencies (..., C) after `rows` more rows of each entry that follow `prior`."""
        more = rows[self.owner] if isinstance(rows, Tensor) else rows
        return (counts + more * prior) / (self.sums(counts)[..., self.owner] + more)

    def choose(self, log_p: Tensor, which: Tensor, generator: Generator | None) -> Tensor:
        """A code of each entry from row `which` of the tables log_p (G, C), (B, D).

        The cumulative laws stand end to end on one line, that of entry d in table g between
        g D + d and g D + d + 1, so that a single search serves every entry of every row.
        """
        cumulative, entries = log_p.double().exp().cumsum(1), len(self.sizes)
        ends = cumulative[:, self.offset + self.sizes - 1]  # (G, D)
        begins = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], 1)
        line = (cumulative - begins[:, self.owner]) / (ends - begins)[:, self.owner] + self.owner
        line = line + entries * torch.arange(len(line), device=line.device)[:, None]  # (G, C)
        u = torch.rand(len(which), entries, generator=generator, dtype=log_p.dtype,
                       device=log_p.device).double().clamp(max=1 - 1e-9)
        place = u + torch.arange(entries, device=u.device) + entries * which[:, None]
        found = torch.searchsorted(line.flatten(), place, right=True)
        return found - which[:, None] * self.total - self.offset


def is_grouped(part: Space, bins: int) -> bool:
    return part.kind in ("real", "counts") or (part.kind == "levels" and part.size > bins)


def codes_of(part: Space, bins: int) -> int:
    """How many codes an entry has."""
    if is_grouped(part, bins):
        return bins
    return 2 if part.kind == "binary" else part.size


def log(p: Tensor) -> Tensor:
    """Logarithms that stay finite, so that nothing times a code that is never used is nothing."""
    return p.clamp_min(torch.finfo(torch.float32).tiny).log()


def pick(table: Tensor, run: Tensor) -> Tensor:
    """table[r, run[b, r]], (B, R)."""
    return table.gather(1, run.T).T


def spread_of(values: Tensor) -> float:
    """A width of sorted values that outliers do not stretch, 1 if they are all the same."""
    quartiles = values[3 * len(values) // 4] - values[len(values) // 4]
    return float(quartiles) / 1.349 or float(values.std(correction=0)) or 1.0


def cut(cells: Tensor, bins: int, real: bool) -> Tensor:
    """Where to begin a new run so that at most `bins` hold sorted cells in nearly equal shares."""
    value, count = cells.unique_consecutive(return_counts=True)
    after = torch.cat([value[1:], value[-1:]]) if real else value + 1
    every = torch.cat([value, after]).unique()
    if len(every) < bins:
        return every
    commonest, order = count.sort(descending=True, stable=True)
    # A value stands alone, at the price of two runs, if it outweighs what each of the runs that
    # are left would hold of the rest.
    left = bins - 2 - 2 * torch.arange(1, len(value) + 1, device=cells.device)
    rest = count.sum() - commonest.cumsum(0)
    alone = (left >= 0) & (commonest * left >= rest)
    heavy = order[: int(alone.long().cumprod(0).sum())]
    light = torch.ones_like(value, dtype=torch.bool).index_fill(0, heavy, False)
    shares, total = bins - 1 - 2 * len(heavy), count[light].cumsum(0)
    quantile = torch.arange(1, shares, device=cells.device) * total[-1] / shares
    picks = value[light][torch.searchsorted(total.double(), quantile.double(), right=True)]
    return torch.cat([value[heavy], after[heavy], picks]).unique()
