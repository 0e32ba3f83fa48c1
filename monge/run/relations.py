r"""Complete unknown cells given known columns that follow from them: an end whose start is empty,
where the model has the start and the distance, or a total of which no addend is known.

The known columns v = c(x) are conditions on several unknown cells at once. As many of these cells
as there are conditions, x_P, follow from the other ones, x_F, since c is linear in them, so that
$p(x_F | x_O, v) \propto p(x) / |\det \partial c / \partial x_P|$ at the x_P that c(x) = v gives.

Where the model has its exact log-likelihood, one cell of x_F is sampled by the inverse of its
distribution function: every value of a whole number, or a grid that is refined where the mass is,
with the atoms of columns as values of their own. Unknown cells that no condition concerns are left
out of the likelihood, where the model can do so, and completed last. Otherwise, and where x_F has
several cells, these steps and completions of the other cells alternate (Gibbs sampling).

Where the log-likelihood is a bound or an estimate, or there is none, many completions that know
nothing of the conditions are weighed by how nearly they meet these; cells of those that are kept
move by their regression on c (Beaumont, Zhang & Balding 2002), and x_P follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..core.abilities import HasLikelihood
from ..core.batch import Batch
from ..core.errors import DataError, UsageError
from ..core.space import Space
from ..data.codecs.scalar import listed
from ..data.dataset import View
from ..data.derived import Lookup
from ..evaluate.rejection import CompleteRows

GRID, REFINED = 96, 96
"""Values of a cell at which its density is computed at first, and once more where the mass is."""
ROUND_GRID, ROUND_REFINED = 24, 24
"""The same in a round of Gibbs sampling, which has a grid of its own for each draw."""
EVERY_VALUE = 512
"""Most whole numbers of which each is tried; of more, a grid."""
SHARE_EVERYWHERE = 0.1
"""Share of the refined grid that does not follow the mass."""
SWEEPS = 8
"""Rounds of Gibbs sampling."""
TRIES, TRIES_PER_DRAW, KEPT = 512, 8, 1 / 16
"""Completions of a row that are weighed where there is no exact likelihood, for each of many draws
if that is more, and the share of them that is kept at least."""
AT_ONCE, CELLS_AT_ONCE = 2**15, 2**22
"""Rows whose likelihood is computed at a time, and cells of the rows that are tried at a time."""
EXACT = 1e-6
"""Largest error of a condition, relative to its size."""

LogDensity = Callable[[Batch], Tensor]
"""log p of rows, of which some cells may be left out, (B,)."""


@dataclass
class RelatedCells:
    """Completions of rows in which columns are known that follow from unknown cells."""

    view: View
    model: object
    complete: CompleteRows
    device: torch.device
    generator: torch.Generator
    implied: Mapping[str, Tensor]  # known codes (N,) of computed columns, NaN elsewhere
    notes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.names = [each.name for each in self.view.event.fields]
        self.spaces = [each.space for each in self.view.event.fields]
        self.codecs = {each.name: each.codec for each in self.view.selection.schema.fields}

    @property
    def known(self) -> dict[str, Tensor]:
        """The known codes (N,) of numbers that follow from empty cells; NaN elsewhere."""
        related = {
            each.name for each in self.view.restored.relations if not isinstance(each, Lookup)
        }
        return {name: codes for name, codes in self.implied.items() if name in related}

    @torch.no_grad()
    def __call__(self, batch: Batch, count: int, index: Tensor, first: int = 0) -> Tensor:
        """`count` completions of each row, (B, count, D); `index` (B,) numbers the rows among all,
        of which `first` come before."""
        found, order = [], []
        tried = max(TRIES, TRIES_PER_DRAW * count, GRID + REFINED) * len(self.names)
        for part in torch.arange(len(batch)).split(max(CELLS_AT_ONCE // tried, 1)):
            for rows, conditions in self.patterns(batch[part], index[part], first):
                if conditions is None:
                    found.append(self.complete(batch[part[rows]], count))
                else:
                    found.append(self.sample(conditions, count))
                order.append(part[rows])
        return torch.cat(found)[torch.cat(order).argsort()]

    def patterns(
        self, batch: Batch, index: Tensor, first: int
    ) -> Iterator[tuple[Tensor, Conditions | None]]:
        """The rows with the same known and unknown cells, and what is known about these."""
        known = self.known
        wanted = torch.stack([codes[index].double() for codes in known.values()], 1)  # (B, R)
        patterns = torch.cat([~wanted.isnan(), batch.observed_mask], 1)
        _, group = patterns.unique(dim=0, return_inverse=True)
        for number in range(int(group.max()) + 1 if len(group) else 0):
            rows = (group == number).nonzero()[:, 0]
            here = (~wanted[rows[0]].isnan()).nonzero()[:, 0].tolist()
            names = [name for place, name in enumerate(known) if place in here]
            values = wanted[rows][:, here].numpy()
            some = names and self.conditions(batch[rows], names, values, index[rows] + first)
            yield rows, some or None

    def agree(self, batch: Batch, x: Tensor, first: int = 0) -> Tensor:
        """Rows x (B, D) of means or medians that meet the conditions: the free cells have the
        decimals of their columns, and the pivots follow; where that leaves the support of a
        column, the row stays as it is."""
        found = x.clone()
        for rows, conditions in self.patterns(batch, torch.arange(len(batch)), first):
            if conditions is None:
                continue
            cells = found[rows].double().numpy()
            for j in conditions.free:
                low, high = (np.full(len(rows), end) for end in bounds(self.spaces[j]))
                cells[:, j] = conditions.rounded(cells[:, j], j, low, high)
            cells = conditions.solve(cells)
            good = torch.from_numpy(conditions.possible(cells))
            found[rows[good]] = torch.from_numpy(conditions.clipped(cells)).to(found)[good]
        return found

    def conditions(
        self, batch: Batch, names: Sequence[str], wanted: np.ndarray, places: Tensor
    ) -> Conditions:
        """What the known columns of rows of one pattern say about their unknown cells."""
        blank = self.view.space.spread("mean").double().numpy()
        whole = [space.kind != "real" for space in self.spaces]
        blank = np.where(whole, np.rint(blank), blank)
        seen = batch.observed_mask[0].numpy()
        x = np.where(seen, batch.x.double().numpy(), blank)
        unknown = np.flatnonzero(~seen)
        bare = Conditions(self, batch, tuple(names), wanted, places, (), (), ())
        origin = bare.values(x)
        slopes = np.stack(
            [
                bare.values(with_column(x, int(j), x[:, j] + 1)) - origin
                if is_number(s)
                else 0 * origin
                for j, s in ((j, self.spaces[j]) for j in unknown)
            ],
            -1,
        )  # (B, R, U)
        concerned = [j for n, j in enumerate(unknown) if np.any(slopes[..., n] != 0)]
        differences = {each.name for each in self.view.restored.differences}
        order = sorted(  # numbers follow before whole ones, distances before what they are above
            range(len(unknown)),
            key=lambda n: (
                ("real", "counts").index(self.spaces[unknown[n]].kind)
                if self.spaces[unknown[n]].kind in ("real", "counts")
                else 2,
                self.names[unknown[n]] not in differences,
            ),
        )
        usable = [n for n in order if unknown[n] in concerned]
        for some in itertools.combinations(usable, len(names)):
            if bool((np.abs(np.linalg.det(slopes[..., list(some)])) > 1e-12).all()):
                pivots = tuple(int(unknown[n]) for n in some)
                break
        else:
            raise DataError(
                f"row {int(places[0]) + 1}: expected empty cells that {listed(names)} can be "
                "solved for, found none; fill in a cell that it follows from, or leave it empty"
            )
        free = tuple(int(j) for j in concerned if j not in pivots)
        rest = tuple(int(j) for j in unknown if j not in (*pivots, *free))
        return Conditions(self, batch, tuple(names), wanted, places, pivots, free, rest)

    def sample(self, conditions: Conditions, count: int) -> Tensor:
        """Completions (B, count, D)."""
        log_p = self.exact_density(conditions.batch, ())
        if log_p is None and (conditions.free or conditions.rest):
            return conditions.nearest(count)
        if not conditions.free:
            x = conditions.solve(conditions.filled(conditions.batch.x.double().numpy()))
            conditions.refuse_impossible(conditions.possible(x))
            return self.complete_rest(conditions, x, count)
        marginal = self.exact_density(conditions.batch, conditions.rest)
        if marginal is not None and len(conditions.free) == 1:
            x = conditions.filled(conditions.batch.x.double().numpy())
            made = conditions.step(x, conditions.free[0], marginal, count)
            return self.complete_rest(conditions.repeated(count), made, 1).unflatten(
                0, (-1, count)
            )[:, :, 0]
        assert log_p is not None, "expected a density"
        several = replace(conditions.repeated(count), alone=False)
        x = conditions.nearest(count, noted=False).flatten(0, 1).double().numpy()
        for _ in range(SWEEPS):
            for j in conditions.free:
                x = several.step(x, j, marginal or log_p, 1)
            if marginal is None:
                x = self.complete_rest(several, x, 1)[:, 0].double().numpy()
        self.notes.add(f"cells that {listed(conditions.names)} concern are from Gibbs sampling")
        return self.complete_rest(several, x, 1).unflatten(0, (-1, count))[:, :, 0]

    def exact_density(self, batch: Batch, hidden: Sequence[int]) -> LogDensity | None:
        """The log-likelihood of rows without the hidden cells; None unless it is exact."""
        model, device = self.model, self.device
        if not isinstance(model, HasLikelihood):
            return None
        seen = torch.ones(len(self.names), dtype=torch.bool)
        seen[list(hidden)] = False

        def log_p(rows: Batch) -> Tensor:
            observed = None if not hidden else seen.expand(rows.x.shape)
            rows = replace(rows, observed=observed, row=None)
            parts = torch.arange(len(rows)).split(AT_ONCE)
            every = [model.likelihood(rows[part].to(device)).value.cpu() for part in parts]
            return torch.cat(every).double()

        try:
            whole = replace(batch[:1], x=self.present(batch.x[:1]), row=None, observed=seen[None])
            whole = replace(whole, observed=whole.observed if hidden else None)
            return log_p if model.likelihood(whole.to(device)).kind == "exact" else None
        except (DataError, UsageError):
            return None

    def present(self, x: Tensor) -> Tensor:
        """Rows with a value of the support in every cell that has none."""
        mean = self.view.space.spread("mean").to(x)
        whole = torch.tensor([space.kind == "counts" for space in self.spaces])
        codes = torch.tensor([space.kind in ("label", "binary") for space in self.spaces])
        blank = torch.where(whole, mean.round(), mean).masked_fill(codes, 0)
        return torch.where(x.isnan() | (codes & (x < 0)), blank, x)

    def complete_rest(self, conditions: Conditions, x: np.ndarray, count: int) -> Tensor:
        """Rows (N, D) with the cells that no condition concerns completed, (N, count, D)."""
        rows = torch.from_numpy(x).to(conditions.batch.x.dtype)
        if not conditions.rest:
            return rows[:, None].repeat_interleave(count, 1)
        seen = torch.ones_like(rows, dtype=torch.bool)
        seen[:, list(conditions.rest)] = False
        rows = torch.where(seen, rows, conditions.batch.x)
        return self.complete(replace(conditions.batch, x=rows, observed=seen), count)


@dataclass(frozen=True)
class Conditions:
    """Known columns of rows of one pattern, and the unknown cells that they concern."""

    of: RelatedCells
    batch: Batch
    names: tuple[str, ...]  # of the known columns
    wanted: np.ndarray  # (B, R): their codes
    places: Tensor  # (B,): numbers of the rows
    pivots: tuple[int, ...]  # cells that follow from the others by the conditions
    free: tuple[int, ...]  # the other cells that the conditions concern
    rest: tuple[int, ...]  # unknown cells that they do not concern
    alone: bool = True  # whether a cell is sampled once, and not in rounds

    def repeated(self, count: int) -> Conditions:
        rows = torch.arange(len(self.batch)).repeat_interleave(count)
        batch = replace(self.batch[rows], row=torch.arange(len(rows)))
        wanted = self.wanted.repeat(count, 0)
        return replace(self, batch=batch, wanted=wanted, places=self.places[rows])

    def filled(self, x: np.ndarray) -> np.ndarray:
        """Rows (B, D) with any number in the unknown cells."""
        x = x.copy()
        x[:, [*self.pivots, *self.free, *self.rest]] = 0.0
        return x

    def values(self, x: np.ndarray) -> np.ndarray:
        """The columns as they are computed, (N, R)."""
        return self.of.view.restored.exact(self.names, self.of.names, x, self.of.codecs)

    def slopes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """c(x) where the pivots are 0, (N, R), and its slopes in these, (N, R, R)."""
        x = x.copy()
        x[:, list(self.pivots)] = 0.0
        origin = self.values(x)
        each = [self.values(with_column(x, j, np.ones(len(x)))) - origin for j in self.pivots]
        return origin, np.stack(each, -1)

    def solve(self, x: np.ndarray, wanted: np.ndarray | None = None) -> np.ndarray:
        """Rows (N, D) with the pivots that meet the conditions."""
        wanted = self.wanted if wanted is None else wanted
        origin, slopes = self.slopes(x)
        x = x.copy()
        with np.errstate(all="ignore"):
            regular = np.abs(np.linalg.det(slopes)) > 1e-12
            safe = np.where(regular[:, None, None], slopes, np.eye(len(self.pivots)))
            found = np.linalg.solve(safe, (wanted - origin)[..., None])[..., 0]
        for place, j in enumerate(self.pivots):
            whole = np.rint(found[:, place])
            if self.of.spaces[j].kind != "real":
                off = np.abs(found[:, place] - whole) > 1e-3
                found[:, place] = np.where(off, np.nan, whole)
        x[:, list(self.pivots)] = np.where(regular[:, None], found, np.nan)
        return x

    def possible(self, x: np.ndarray, wanted: np.ndarray | None = None) -> np.ndarray:
        """Which rows (N, D) meet the conditions, with values in the support of their columns."""
        wanted = self.wanted if wanted is None else wanted
        good = np.isfinite(x[:, list(self.pivots)]).all(1)
        for j in (*self.pivots, *self.free):
            low, high = bounds(self.of.spaces[j])
            slack = EXACT * np.maximum(np.abs(x[:, j]), 1.0) if j in self.pivots else 0.0
            with np.errstate(invalid="ignore"):
                good &= (x[:, j] >= low - slack) & (x[:, j] <= high + slack)
        with np.errstate(invalid="ignore"):
            error = np.abs(self.values(np.nan_to_num(x)) - wanted)
        return good & (error <= 100 * EXACT * np.maximum(np.abs(wanted), 1.0)).all(1)

    def clipped(self, x: np.ndarray) -> np.ndarray:
        """Rows whose pivots lie in their bounds, from which they are off by rounding alone."""
        x = x.copy()
        for j in self.pivots:
            x[:, j] = np.clip(x[:, j], *bounds(self.of.spaces[j]))
        return x

    def refuse_impossible(self, possible: np.ndarray) -> None:
        if not possible.all():
            row = int(self.places[int(np.argmin(possible))]) + 1
            raise DataError(
                f"row {row}: expected values of its empty cells that agree with "
                f"{listed(self.names)}, found none; check its known cells"
            )

    def density(self, x: np.ndarray, rows: np.ndarray, log_p: LogDensity) -> np.ndarray:
        """log p of rows (N, D) of the data numbered `rows`, with the volume of the pivots, minus
        infinity where they are not possible, (N,)."""
        wanted = self.wanted[rows]
        x = self.solve(x, wanted)
        good = self.possible(x, wanted)
        found = np.full(len(x), -np.inf)
        if good.any():
            kept = torch.from_numpy(rows[good])
            cells = torch.from_numpy(self.clipped(x[good])).to(self.batch.x.dtype)
            hidden = torch.zeros(cells.shape[1], dtype=torch.bool)
            hidden[list(self.rest)] = True  # a known cell that is empty stays so
            cells = torch.where(hidden, self.of.present(cells), cells)
            log_volume = -np.log(np.abs(np.linalg.det(self.slopes(x[good])[1])))
            found[good] = log_p(replace(self.batch[kept], x=cells)).numpy() + log_volume
        return np.where(np.isnan(found), -np.inf, found)

    def step(self, x: np.ndarray, j: int, log_p: LogDensity, count: int) -> np.ndarray:
        """Rows (B, D) with the cell j and the pivots sampled given the others, each row `count`
        times, (B * count, D)."""
        low, high = self.interval(x, j)
        space = self.of.spaces[j]
        n, every = len(x), space.kind != "real" and (high - low).max() < EVERY_VALUE

        def density(t: np.ndarray) -> np.ndarray:  # (B, M) -> (B, M)
            rows, t = np.arange(n).repeat(t.shape[1]), np.rint(t) if space.kind != "real" else t
            return self.density(with_column(x[rows], j, t.flatten()), rows, log_p).reshape(t.shape)

        if space.kind != "real":
            low, high = np.ceil(low), np.floor(high)
        if every:
            t = low[:, None] + np.arange(int((high - low).max()) + 1)
            log_f = np.where(t <= high[:, None], density(np.minimum(t, high[:, None])), -np.inf)
            self.refuse_impossible(np.asarray(np.isfinite(log_f).any(1)))
            chosen = t[np.arange(n)[:, None], self.choose(log_f, count)]
        else:
            chosen = self.sample_line(x, j, low, high, density, count)
        chosen = self.rounded(chosen.flatten(), j, low.repeat(count), high.repeat(count))
        rows = np.arange(n).repeat(count)
        return self.clipped(self.solve(with_column(x[rows], j, chosen), self.wanted[rows]))

    def sample_line(
        self,
        x: np.ndarray,
        j: int,
        low: np.ndarray,
        high: np.ndarray,
        density: Callable[[np.ndarray], np.ndarray],
        count: int,
    ) -> np.ndarray:
        """Values (B, count) between low and high of a density, and of atoms."""
        coarse, fine = (GRID, REFINED) if count > 1 or self.alone else (ROUND_GRID, ROUND_REFINED)
        width, middles = (high - low)[:, None], (np.arange(coarse) + 0.5) / coarse
        t = low[:, None] + width * (middles + (self.uniform(len(x), coarse) - 0.5) / (2 * coarse))
        log_f = density(t)
        fresh = quantiles(t, log_f, low, high, self.uniform(len(x), fine))
        t = np.concatenate([t, fresh], 1)
        log_f = np.concatenate([log_f, density(fresh)], 1)
        order = t.argsort(1)
        t, log_f = np.take_along_axis(t, order, 1), np.take_along_axis(log_f, order, 1)
        atoms, hits, log_slope = self.atoms(x, j, low, high)  # (B, A) each
        log_atoms = np.full(atoms.shape, -np.inf)
        if atoms.shape[1]:
            there = np.isfinite(atoms)
            log_atoms = density(np.where(there, atoms, low[:, None])) - log_slope
            log_atoms = np.where(there, log_atoms, -np.inf)
        top = np.max(np.where(np.isfinite(log_atoms), hits, 0), 1, initial=0)
        log_atoms = np.where((hits < top[:, None]) & (top[:, None] > 1), -np.inf, log_atoms)
        edges, log_mass = segments(t, log_f, low, high)
        log_mass = np.where(top[:, None] > 1, -np.inf, log_mass)
        every = np.concatenate([log_mass, log_atoms], 1)
        self.refuse_impossible(np.asarray(np.isfinite(every).any(1)))
        place, rows = self.choose(every, count), np.arange(len(x))[:, None]
        segment = np.minimum(place, log_mass.shape[1] - 1)
        found = edges[rows, segment] + self.uniform(len(x), count) * (
            edges[rows, segment + 1] - edges[rows, segment]
        )
        if not atoms.shape[1]:
            return found
        atom = np.maximum(place - log_mass.shape[1], 0)
        return np.where(place >= log_mass.shape[1], atoms[rows, atom], found)

    def atoms(
        self, x: np.ndarray, j: int, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values (B, A) of the cell j at which it or a pivot is an atom, NaN outside its interval,
        at how many cells, and the log of how fast that pivot moves with the cell."""
        at = [self.solve(with_column(x, j, np.full(len(x), value))) for value in (0.0, 1.0)]
        found: list[tuple[np.ndarray, np.ndarray]] = [
            (np.full(len(x), value), np.zeros(len(x))) for value in self.of.spaces[j].atoms
        ]
        for pivot in self.pivots:
            slope = at[1][:, pivot] - at[0][:, pivot]
            for value in self.of.spaces[pivot].atoms:
                with np.errstate(all="ignore"):
                    found.append(((value - at[0][:, pivot]) / slope, np.log(np.abs(slope))))
        if not found:
            return (np.empty((len(x), 0)),) * 3
        t, log_slope = (np.stack(each, 1) for each in zip(*found, strict=True))
        t = np.where((t >= low[:, None]) & (t <= high[:, None]), t, np.nan)
        hits = np.zeros(t.shape)
        for place in range(t.shape[1]):
            row = self.solve(with_column(x, j, np.nan_to_num(t[:, place])))
            for each in (j, *self.pivots):
                for value in self.of.spaces[each].atoms:
                    hits[:, place] += np.abs(row[:, each] - value) <= EXACT * max(abs(value), 1)
        return t, hits, np.where(np.isfinite(log_slope), log_slope, 0.0)

    def interval(self, x: np.ndarray, j: int) -> tuple[np.ndarray, np.ndarray]:
        """Where values of the cell j are sought, (B,) each: in its bounds and the pivots', or up
        to a width of the training rows beyond them where there are none."""
        ends = []
        for loose in (1.0, 1000.0):
            low, high = (np.full(len(x), end) for end in self.reach(j, loose))
            at = [self.solve(with_column(x, j, each)) for each in (low, high)]
            half = (low + high) / 2
            half = half if self.of.spaces[j].kind == "real" else np.floor(half)
            middle = self.solve(with_column(x, j, half))
            for pivot in self.pivots:
                if self.of.spaces[pivot].kind != "real" and self.of.spaces[j].kind != "counts":
                    continue
                first, last = at[0][:, pivot], at[1][:, pivot]
                with np.errstate(all="ignore"):
                    share = (half - low) / (high - low)
                    straight = np.abs(
                        first + share * (last - first) - middle[:, pivot]
                    ) <= 1e-6 * np.abs(last - first)
                    crossings = np.stack(
                        [
                            low + (high - low) * (end - first) / (last - first)
                            for end in self.reach(pivot, loose)
                        ]
                    )
                ok = straight & np.isfinite(crossings).all(0)
                low = np.where(ok, np.maximum(low, crossings.min(0)), low)
                high = np.where(ok, np.minimum(high, crossings.max(0)), high)
            ends.append((low, high))
        (low, high), wide = ends
        bad = ~(low <= high)
        low, high = np.where(bad, wide[0], low), np.where(bad, wide[1], high)
        self.refuse_impossible(np.asarray(low <= high))
        return low, high

    def reach(self, j: int, loose: float) -> tuple[float, float]:
        """The bounds of a cell, where it has none so many widths of the training rows beyond."""
        space = self.of.spaces[j]
        low, high = bounds(space)
        width = loose * max(space.high[0] - space.low[0], space.scale[0])
        low = space.low[0] - width if low == -np.inf else low
        high = space.high[0] + width if high == np.inf else high
        return (np.floor(low), np.ceil(high)) if space.kind != "real" else (low, high)

    def rounded(self, t: np.ndarray, j: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Values of the cell j with the decimals of its column, in their interval."""
        if self.of.spaces[j].kind != "real":
            return np.rint(t)
        decimals = getattr(self.of.codecs[self.of.names[j]], "decimals", None)
        if decimals is None or self.of.names[j] in {
            each.name for each in self.of.view.restored.differences
        }:
            return t
        unit = 10.0**decimals
        first, last = np.ceil(low * unit - 1e-6), np.floor(high * unit + 1e-6)
        return np.where(first <= last, np.clip(np.rint(t * unit), first, last) / unit, t)

    def nearest(self, count: int, noted: bool = True) -> Tensor:
        """Completions (B, count, D) chosen among many that know nothing of the conditions."""
        tries = max(TRIES, TRIES_PER_DRAW * count)
        every = self.of.complete(self.batch, tries).double()  # (B, K, D)
        n, d = len(every), every.shape[-1]
        rows = np.arange(n).repeat(tries)
        x = every.reshape(-1, d).numpy()
        gap = (self.wanted[rows] - self.values(x)).reshape(n, tries, -1)  # (B, K, R)
        scale = gap.std(1, keepdims=True) + 1e-12
        away = np.abs(gap / scale).max(-1)  # (B, K)
        limit = np.maximum(np.sort(away, 1)[:, [int(KEPT * tries) - 1]], 1e-9)
        weight = np.where(away <= limit * (1 + 1e-9), 1 - 0.9 * (away / limit) ** 2, 0.0)
        moved = self.by_regression(x.reshape(n, tries, d), gap, weight).reshape(-1, d)
        choices = [
            np.where(self.keeps_atom(each)[:, None], self.swapped(each, rows), solved)
            for each in (moved, x)
            for solved in [self.solve(each, self.wanted[rows])]
        ]
        good = [self.possible(each, self.wanted[rows]) for each in choices]
        x = np.where(good[0][:, None], choices[0], choices[1]).reshape(n, tries, d)
        weight = np.where((good[0] | good[1]).reshape(n, tries), weight, 0.0)
        self.refuse_impossible(np.asarray(weight.any(1)))
        if noted:
            share = float(np.median((weight > 0).mean(1)))
            self.of.notes.add(
                f"cells that {listed(self.names)} concern are from the completions that nearly "
                f"agree with it, {100 * share:.3g} % of {tries} in the median row, an "
                "approximation"
            )
        with np.errstate(divide="ignore"):
            place = self.choose(np.log(weight), count)
        found = self.clipped(x[np.arange(n)[:, None], place].reshape(-1, d))
        return torch.from_numpy(found.reshape(n, count, d)).to(self.batch.x.dtype)

    def keeps_atom(self, x: np.ndarray) -> np.ndarray:
        """Completions (N, D) in which the pivot is an atom and another number can follow."""
        if not self.movable:
            return np.zeros(len(x), bool)
        return np.isin(x[:, self.pivots[0]], self.of.spaces[self.pivots[0]].atoms)

    @property
    def movable(self) -> list[int]:
        """The free cells that can follow instead of a single pivot."""
        alone = len(self.pivots) == 1
        return [j for j in self.free if alone and self.of.spaces[j].kind == "real"]

    def swapped(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Completions (N, D) in which a free cell meets the condition and the pivot stays."""
        if not self.movable:
            return x
        other = replace(self, pivots=(self.movable[0],), free=self.pivots)
        return other.solve(x, self.wanted[rows])

    def by_regression(self, x: np.ndarray, gap: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Completions (B, K, D) with the free cells, but those at atoms, moved by the gap
        (B, K, R) of the conditions times their regression on it."""
        x = x.copy()
        near = weight[..., None]
        total = near.sum(1, keepdims=True)
        centred = gap - (near * gap).sum(1, keepdims=True) / total
        spread = np.einsum("bkr,bks->brs", near * centred, centred)
        spread += 1e-9 * np.eye(gap.shape[-1]) * (1 + np.trace(spread, 0, 1, 2))[:, None, None]
        for j in self.free:
            cell = x[..., j] - (near[..., 0] * x[..., j]).sum(1, keepdims=True) / total[..., 0]
            slope = np.linalg.solve(
                spread, np.einsum("bkr,bk->br", near * centred, cell)[..., None]
            )[..., 0]
            move = -np.einsum("bkr,br->bk", gap, slope)
            move = np.where(np.isin(x[..., j], self.of.spaces[j].atoms), 0.0, move)
            low, high = bounds(self.of.spaces[j])
            x[..., j] = np.clip(x[..., j] + move, low, high)
            if self.of.spaces[j].kind != "real":
                x[..., j] = np.rint(x[..., j])
            else:
                ends = np.full(x[..., j].size, -np.inf), np.full(x[..., j].size, np.inf)
                x[..., j] = self.rounded(x[..., j].flatten(), j, *ends).reshape(x[..., j].shape)
        return x

    def uniform(self, *shape: int) -> np.ndarray:
        generator = self.of.generator
        return (
            torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
            .cpu()
            .numpy()
        )

    def choose(self, log_weights: np.ndarray, count: int) -> np.ndarray:
        """Places (B, count) of values by their log-weights (B, M)."""
        with np.errstate(over="ignore"):
            chances = np.exp(log_weights - log_weights.max(1, keepdims=True))
        total = chances.cumsum(1)
        u = self.uniform(len(total), count) * total[:, -1:]
        return np.stack([np.searchsorted(t, v, "right") for t, v in zip(total, u, strict=True)])


def bounds(space: Space) -> tuple[float, float]:
    """The smallest and largest value of a column."""
    if space.kind in ("binary", "label", "levels"):
        return 0.0, float(max(space.size, 2) - 1)
    low = -np.inf if space.lower is None else space.lower
    return low, np.inf if space.upper is None else space.upper


def is_number(space: Space) -> bool:
    return space.kind in ("real", "counts", "binary")


def with_column(x: np.ndarray, j: int, values: np.ndarray) -> np.ndarray:
    """Rows (N, D) with other values in one column."""
    found = x.copy()
    found[:, j] = values
    return found


def segments(
    t: np.ndarray, log_f: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The edges (B, M + 1) halfway between sorted values (B, M), and the log-mass (B, M) of the
    density between them."""
    middle = (t[:, 1:] + t[:, :-1]) / 2
    edges = np.concatenate([low[:, None], middle, high[:, None]], 1)
    with np.errstate(divide="ignore"):
        return edges, log_f + np.log(np.diff(edges))


def quantiles(
    t: np.ndarray, log_f: np.ndarray, low: np.ndarray, high: np.ndarray, u: np.ndarray
) -> np.ndarray:
    """Values (B, K) at nearly even quantiles of a density that is known at sorted values (B, M),
    some of them everywhere."""
    edges, log_mass = segments(t, log_f, low, high)
    with np.errstate(invalid="ignore"):
        mass = np.exp(log_mass - log_mass.max(1, keepdims=True))
    mass = np.nan_to_num(mass) + 1e-300
    mass = mass / mass.sum(1, keepdims=True)
    widths = np.diff(edges) / np.maximum((high - low)[:, None], 1e-300)
    near = (np.roll(mass, 1, 1) + 2 * mass + np.roll(mass, -1, 1)) / 4
    share = (1 - SHARE_EVERYWHERE) * near + SHARE_EVERYWHERE * widths
    total = np.concatenate([np.zeros((len(t), 1)), share.cumsum(1)], 1)
    total /= total[:, -1:]
    levels = (np.arange(u.shape[1]) + u) / u.shape[1]
    return np.stack(
        [np.interp(row, cdf, edge) for row, cdf, edge in zip(levels, total, edges, strict=True)]
    )
