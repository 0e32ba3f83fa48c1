r"""Tables in flows: a cell of (0, 1) for each value of a column, and a masked first layer.

Each column is one coordinate y that is nearly N(0, 1). A column with names, counts, atoms or empty
cells divides (0, 1) into cells of the training frequencies $f_k$: a name, an atom, the empty cell,
a bin of integers or of real numbers. A value owns an interval of a cell, from $t_0$ to $t_0 + w$;

$y = \Phi^{-1}(F_k + f_k t)$, $t = t_0 + w u$, $u \sim q(u | x)$, so that $\log p(x) \ge E_q [\log
p(y) - \log q(u | x) + \log w + \log f_k - \log \phi(y)]$.

With p = N(0, I) this is $\log w f_k$: flows start at independent columns, and the bound is tight.
The layer nearest to the data changes the frequencies to $p_k$, a softmax that a masked network
reads off the cells of the columns before, by $\Phi^{-1}(F_k + f_k t) \mapsto \Phi^{-1}(P_k + p_k
t)$, which depends on no noise and keeps the bound tight. The layers above model what it leaves.

Measured on adult (`data.space=plain`, nats per row): independent columns -32.9; where couplings of
uniform noise on codes reached -38.1 at length, couplings of these coordinates reach -30.0 in three
epochs, with the first layer -28.7 (-28.4 in seven, `cnf` -28.2 in four; `made` -28.2 in ten). A
mixture of Gaussians as a start pays for reals alone, not beside names and empty cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.errors import DataError
from ...core.model import is_exporting
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import MaskedMLP
from ...prob.bijections.base import Bijection, Mapped, sum_log_det
from ...prob.bins import Bins
from ...prob.heads import COUNT_BINS, MAX_CATEGORICAL_LEVELS
from ...prob.marginal_map import MarginalMap

MAX_NUMBER_CELLS, MIN_NUMBER_CELLS, ROWS_PER_CELL = 32, 4, 100
"""Cells of the real numbers of a column: as many as rows allow."""
MAX_SCORE = 30.0
"""Coordinates beyond this are only shifted: the normal distribution has no mass there."""
MAX_NET_SCORE = 10.0
"""The network reads coordinates beyond this as this."""
MIN_TAIL = 1e-280
"""Smallest probability whose normal quantile is taken."""
MIN_NOISE = 1e-9
"""Noise keeps this distance from 0 and 1, whose normal quantiles are infinite."""
ALL_FEATURES = slice(None)
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class TableConfig(BaseConfig):
    """Fields of a flow that takes tables."""

    table_net: MaskedMLP.Config = MaskedMLP.Config(width=256, dropout=0.2)
    """Tables: masked network of the layer nearest to the data, from the columns before a column
    to the probabilities of its values."""
    optional_first: bool = False
    """Tables: that layer goes over the columns that may be empty before the others, so that how
    often they are does not depend on how well the others are modelled."""


SMALLEST_TABLE_NET = MaskedMLP.Config(width=16, depth=1)


def default_table_net(space: Space) -> MaskedMLP.Config:
    """Few rows: a narrow network and strong dropout."""
    fewer = space.rows < 1000
    return MaskedMLP.Config(
        width=128 if fewer else 512,
        dropout=0.5 if fewer else 0.3 if space.rows < 50_000 else 0.1,
    )


class TableCells(nn.Module):
    """The cells of D columns, K at most, and where values lie in them.

    The cells of a number are the empty cell, its atoms and then bins, each where there are any;
    those of a name are its codes. Real numbers that have no other cells keep the units of the
    data; `TableUnits` makes them nearly normal.
    """

    mass: Tensor  # (D, K): training frequencies, 0 where a cell is not used
    atoms: Tensor  # (R, A): of mixed reals, NaN where there are fewer
    optional: Tensor  # (R,): of mixed reals, 1 for those that may be empty
    first: Tensor  # (D,): cells before the bins of a number
    coded: Tensor
    binned: Tensor
    mixed: Tensor
    size: Tensor
    plain: Tensor  # (D,): real numbers without other cells
    plain_places: Tensor  # their columns
    is_real: Tensor  # (D,)
    numeric: Tensor  # (D,): columns whose cells have an order

    def __init__(self, columns: Sequence[Space]) -> None:
        super().__init__()
        self.columns, number = columns, max((part.rows for part in columns), default=0)
        self.bins_of_reals = min(max(number // ROWS_PER_CELL, MIN_NUMBER_CELLS), MAX_NUMBER_CELLS)
        kinds = [cell_kind(part) for part in columns]
        self.counts = [self.cell_count(part) for part in columns]
        self.first_cells = [
            0 if kind == "coded" else part.optional + len(part.atoms)
            for kind, part in zip(kinds, columns, strict=True)
        ]
        self.has_states = any(kind != "plain" for kind in kinds)
        for kind in ("coded", "binned", "mixed", "plain"):
            places = [i for i, other in enumerate(kinds) if other == kind]
            name = "plain_places" if kind == "plain" else kind
            self.register_buffer(name, torch.tensor(places, dtype=torch.long), persistent=False)
        for name, values in (
            ("plain", [kind == "plain" for kind in kinds]),
            ("is_real", [kind in ("plain", "mixed") for kind in kinds]),
            ("numeric", [kind != "coded" for kind in kinds]),
            ("first", self.first_cells),
            ("size", self.counts),
        ):
            self.register_buffer(name, torch.tensor(values), persistent=False)
        self.bins = Bins([columns[i] for i in self.binned], COUNT_BINS)
        reals = [columns[i] for i in self.mixed]
        self.map = MarginalMap(reals) if reals else None
        width = max((len(part.atoms) for part in reals), default=0)
        atoms = torch.full((len(reals), width), torch.nan)
        for row, part in zip(atoms, reals, strict=True):
            row[: len(part.atoms)] = torch.tensor(part.atoms)
        self.register_buffer("atoms", atoms, persistent=False)
        optional = torch.tensor([int(part.optional) for part in reals], dtype=torch.long)
        self.register_buffer("optional", optional, persistent=False)
        live = torch.arange(max(self.counts)) < self.size[:, None]
        live[self.binned] &= self.live_bins()
        self.register_buffer("mass", live.to(torch.get_default_dtype()))
        self.mass /= self.mass.sum(1, keepdim=True)

    def cell_count(self, part: Space) -> int:
        match cell_kind(part):
            case "coded":
                return 2 if part.kind == "binary" else part.size
            case "binned":
                return part.optional + COUNT_BINS
        return part.optional + len(part.atoms) + self.bins_of_reals

    def live_bins(self) -> Tensor:
        """Which cells of binned columns hold a value, (R, K)."""
        cell = torch.arange(max(self.counts), device=self.bins.low.device)
        within = cell - self.first[self.binned, None]  # (R, K)
        live = self.bins.live.gather(1, within.clamp(0, COUNT_BINS - 1))
        return torch.where(within < 0, True, live & (within < COUNT_BINS))

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Lay the cells over training rows (B, D) and count them."""
        for j, i in enumerate(self.binned.tolist()):
            seen = x[:, i][~x[:, i].isnan()].double()
            if len(seen):
                self.bins.fit(j, seen.sort().values)
        if self.map is not None:
            self.map.fit(x[:, self.mixed], ~x[:, self.mixed].isnan())
        cell, *_ = self.locate(x)
        for i, count in enumerate(self.counts):
            found = torch.bincount(cell[:, i], minlength=self.mass.shape[1]).double()
            first, last = self.first_cells[i], count
            if self.plain[i]:
                found[first:last] = 1.0
            elif i in self.mixed:  # bins of equal mass, so that the map is all of the density
                found[first:last] = found[first:last].mean()
            found[:last] += 0.5
            self.mass[i] = found.to(self.mass)
        self.mass[self.binned] *= self.live_bins()
        self.mass /= self.mass.sum(1, keepdim=True)

    def log_mass(self) -> Tensor:
        return self.mass.double().log()

    def edges(self, dtype: torch.dtype) -> Tensor:
        """Where cells begin and end, (D, K + 1), in coordinates y."""
        mass = self.mass.double()
        below, above = cumulative(mass)
        ends = torch.cat([below, torch.ones_like(below[:, :1])], 1)
        rest = torch.cat([mass[:, :1] + above[:, :1], above], 1)
        return normal_quantile(ends, rest, 0.0).to(dtype)

    def cell_of(self, y: Tensor) -> Tensor:
        """The cell in which each coordinate lies, (B, D)."""
        return self.cell_within(y, self.edges(y.dtype))

    def cell_within(self, y: Tensor, edges: Tensor) -> Tensor:
        inner = edges[:, 1:-1].contiguous()
        return torch.searchsorted(inner, y.detach().T.contiguous(), right=True).T

    def locate(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Of rows (B, D) the cell, the place t0 and t0 + w of what each value owns of it, 1 - t0,
        log w (of reals log dt/dx), and how far beyond `MAX_SCORE` reals lie, each (B, D)."""
        cell = torch.zeros_like(x, dtype=torch.long)
        start = torch.zeros_like(x, dtype=torch.float64)
        end, log_width, beyond = start + 1, start.clone(), start.clone()
        if len(self.coded):
            codes = x[:, self.coded]
            self.check_codes(codes)
            cell[:, self.coded] = codes.long()
        if len(self.binned):
            run, first, last, width = self.locate_counts(x[:, self.binned])
            cell[:, self.binned], log_width[:, self.binned] = run, width
            start[:, self.binned], end[:, self.binned] = first, last
        rest = 1 - start
        if self.map is not None:
            tables = (cell, start, end, rest, log_width, beyond)
            for table, values in zip(tables, self.locate_reals(x[:, self.mixed]), strict=True):
                table[:, self.mixed] = values
        return cell, start, end, rest, log_width, beyond

    def check_codes(self, codes: Tensor) -> None:
        if is_exporting():  # values are not known while a network is traced
            return
        wrong = ~((codes >= 0) & (codes < self.size[self.coded]))  # NaN is wrong too
        if bool(wrong.any()):
            row, j = wrong.nonzero()[0].tolist()
            column = self.columns[int(self.coded[j])]
            raise DataError(
                f"expected codes 0 to {int(self.size[self.coded[j]]) - 1} in column "
                f"{column.name or int(self.coded[j])}, found {float(codes[row, j]):g} in row "
                f"{row}; score rows that hold the values of the training data"
            )

    def locate_counts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first = self.first[self.binned]
        empty = x.isnan() & (first > 0)
        known = torch.where(empty, self.bins.origin.to(x), x)
        run, inside = self.bins.encode(known.double())
        _, last = self.bins.below(known.double())
        start = (last - inside.exp()).clamp_min(0.0)
        cell = torch.where(empty, 0, run + first)
        none = torch.zeros_like(last)
        return (
            cell,
            torch.where(empty, none, start),
            torch.where(empty, none + 1, last),
            torch.where(empty, none, inside),
        )

    def locate_reals(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        assert self.map is not None
        first = self.first[self.mixed]
        state = torch.full_like(x, -1, dtype=torch.long)
        state = torch.where(x.isnan() & (self.optional > 0), 0, state)
        for k in range(self.atoms.shape[1]):
            state = torch.where(x == self.atoms[:, k], k + self.optional, state)
        middle = self.map.inverse(torch.zeros_like(x))
        g, slope = self.map(torch.where(state >= 0, middle, x))
        inner = g.double().clamp(-MAX_SCORE, MAX_SCORE)
        low = normal_cdf(inner)
        bins = self.bins_of_reals
        cell = (low * bins).long().clamp(max=bins - 1)
        t, s = within_cell(
            inner, cell / bins, (bins - 1 - cell) / bins, torch.full_like(low, 1 / bins)
        )
        density = math.log(bins) + log_normal(inner) + slope.double()
        number = state < 0
        none = torch.zeros_like(t)
        return (
            torch.where(number, cell + first, state),
            torch.where(number, t, none),
            torch.where(number, t, none + 1),
            torch.where(number, s, none + 1),
            torch.where(number, density, none),
            torch.where(number, g.double() - inner, none),
        )

    def place(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """y at noise u in (0, 1), and log w f - log phi(y) of each column, each (B, D); plain
        reals stay as they are."""
        cell, start, end, rest, log_width, beyond = self.locate(x)
        u, mass = u.double().clamp(MIN_NOISE, 1 - MIN_NOISE), self.mass.double()
        t, s = torch.lerp(start, end, u), rest - u * (end - start)
        own, (below, above) = gather(mass, cell), (gather(part, cell) for part in cumulative(mass))
        y = (normal_quantile(below + own * t, above + own * s) + beyond).to(x.dtype)
        y = torch.where(self.plain, x, self.inside(y, cell, self.edges(x.dtype)))
        inner = y.double().clamp(-MAX_SCORE, MAX_SCORE)
        log_slopes = own.log() + log_width - log_normal(inner)
        return y, torch.where(self.plain, 0.0, log_slopes).to(x.dtype)

    def inside(self, y: Tensor, cell: Tensor, edges: Tensor) -> Tensor:
        """y within its cell in spite of rounding."""
        low, high = gather(edges[:, :-1], cell), gather(edges[:, 1:], cell)
        last = torch.nextafter(high, torch.full_like(high, -torch.inf))
        return torch.minimum(torch.maximum(y, low), torch.where(high.isinf(), high, last))

    @torch.no_grad()
    def decode(self, y: Tensor) -> Tensor:
        """Rows (B, D) at coordinates y; plain reals stay as they are."""
        cell = self.cell_of(y)
        score = y.double().clamp(-MAX_SCORE, MAX_SCORE)
        mass = self.mass.double()
        below, above = (gather(part, cell) for part in cumulative(mass))
        own = gather(mass, cell)
        t, s = within_cell(score, below, above, own)
        x = y.clone()
        x[:, self.coded] = cell[:, self.coded].to(x.dtype)
        if len(self.binned):
            x[:, self.binned] = self.decode_counts(cell[:, self.binned], t[:, self.binned]).to(x)
        if self.map is not None:
            parts = (part[:, self.mixed] for part in (cell, t, s, y.double() - score))
            x[:, self.mixed] = self.decode_reals(*parts).to(x)
        return x

    def decode_counts(self, cell: Tensor, t: Tensor) -> Tensor:
        first = self.first[self.binned]
        run = (cell - first).clamp_min(0)
        downwards, *_ = self.bins.ends(run)
        u = torch.where(downwards, 1 - t, t).clamp(0.0, 1 - 1e-15)
        value = self.bins.decode(run, u, u)
        return torch.where(cell < first, torch.nan, value)

    def decode_reals(self, cell: Tensor, t: Tensor, s: Tensor, beyond: Tensor) -> Tensor:
        assert self.map is not None
        first, bins = self.first[self.mixed], self.bins_of_reals
        number = (cell - first).clamp_min(0)
        low, high = (number + t) / bins, (bins - 1 - number + s) / bins
        value = self.map.inverse((normal_quantile(low, high) + beyond).to(self.mass)).double()
        for k in range(self.atoms.shape[1]):
            atom = self.atoms[:, k].double()
            value = torch.where((cell == k + self.optional) & ~atom.isnan(), atom, value)
        return torch.where(cell < self.optional, torch.nan, value)

    def any_value(self) -> Tensor:
        """A valid value of each column, (D,)."""
        return torch.tensor(
            [
                part.mean[0] if part.kind == "real" else 0.0 if coded else round(part.mean[0])
                for part, coded in zip(self.columns, ~self.numeric, strict=True)
            ]
        )

    def empty_cells(self) -> Tensor:
        """The cells that are empty, (D, K)."""
        found = torch.zeros_like(self.mass, dtype=torch.bool)
        for i, part in enumerate(self.columns):
            if part.optional:
                found[i, part.size - 1 if part.kind == "label" else 0] = True
        return found


def cell_kind(part: Space) -> str:
    """How a column is divided: by codes, by bins of integers, into mixed numbers; plain reals
    are one number."""
    if part.kind == "real":
        return "mixed" if part.atoms or part.optional else "plain"
    if part.kind == "counts" or (part.kind == "levels" and part.size > MAX_CATEGORICAL_LEVELS):
        return "binned"
    return "coded"


def gather(table: Tensor, cell: Tensor) -> Tensor:
    """table[d, cell[b, d]], (B, D)."""
    return table.gather(1, cell.T).T


def cumulative(mass: Tensor) -> tuple[Tensor, Tensor]:
    """The probability below and above each cell, (*S, K)."""
    return mass.cumsum(-1) - mass, mass.flip(-1).cumsum(-1).flip(-1) - mass


def normal_cdf(y: Tensor) -> Tensor:
    """P(N(0, 1) < y), accurate far below 0, where `torch.special.ndtr` is 0 from -9 on."""
    return torch.erfc(-y * math.sqrt(0.5)) / 2


def log_normal(y: Tensor) -> Tensor:
    return -0.5 * y.square() - HALF_LOG_2PI


def normal_quantile(low: Tensor, high: Tensor, least: float = MIN_TAIL) -> Tensor:
    """The quantile of a standard normal with probabilities `low` below and `high` above it, by
    the smaller of them."""
    lower = low < high
    value = torch.special.ndtri(torch.where(lower, low, high).clamp_min(least))
    return torch.where(lower, value, -value)


def within_cell(y: Tensor, below: Tensor, above: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """The place t of y in its cell and 1 - t, each from the nearer end."""
    low = (normal_cdf(y) - below) / own
    high = (normal_cdf(-y) - above) / own
    t, s = torch.where(y < 0, low, 1 - high), torch.where(y < 0, 1 - low, high)
    return t.clamp(0.0, 1.0), s.clamp(0.0, 1.0)


class TableUnits(Bijection):
    """Coordinates w (B, D) to coordinates y of the cells, plain reals in the units of the data.

    With a network it is the layer that changes frequencies to probabilities given the columns
    before; without one only plain reals are changed.
    """

    owner: Tensor  # (F,): the column of each feature
    indicated: Tensor  # (F,): the cell that it indicates, -1 for the coordinate itself
    places: Tensor  # (D, K): outputs of the network for each cell, the last one for none

    def __init__(
        self,
        columns: Sequence[Space],
        net: MaskedMLP.Config | None = None,
        context: int = 0,
        optional_first: bool = False,
    ) -> None:
        super().__init__()
        self.cells = TableCells(columns)
        reals = [
            part for part, is_plain in zip(columns, self.cells.plain, strict=True) if is_plain
        ]
        self.reals = MarginalMap(reals) if reals else None
        self.dims, counts = len(columns), self.cells.counts
        entries = torch.arange(self.dims)
        scores = self.cells.numeric.long()
        owner = entries.repeat_interleave(torch.tensor(counts) + scores)
        indicated = [
            torch.tensor([*range(count), *([-1] if score else [])])
            for count, score in zip(counts, scores, strict=True)
        ]
        self.register_buffer("owner", owner, persistent=False)
        self.register_buffer("indicated", torch.cat(indicated), persistent=False)
        ends = torch.bincount(owner, minlength=self.dims).cumsum(0).tolist()
        self.slices = list(map(slice, [0, *ends], ends))
        outputs, places = sum(counts), torch.full((self.dims, max(counts)), sum(counts))
        start = 0
        for i, count in enumerate(counts):
            places[i, :count] = torch.arange(start, start + count)
            start += count
        self.register_buffer("places", places, persistent=False)
        self.order = sorted(
            range(self.dims), key=lambda i: optional_first and not columns[i].optional
        )
        self.net: MaskedMLP | None = None
        if net is not None:
            parameters = entries.repeat_interleave(torch.tensor(counts))
            assert len(parameters) == outputs
            places_in_order = torch.tensor(self.order).argsort()
            self.net = net.build(owner, parameters, places_in_order[None], context)
            for last in filter(None, (self.net.out, self.net.direct)):
                nn.init.zeros_(last.weight)
            nn.init.zeros_(self.net.out.bias)

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Lay cells and maps over training rows (B, D)."""
        self.cells.fit(x)
        if self.reals is not None:
            own = x[:, self.cells.plain]
            self.reals.fit(own, ~own.isnan())

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        y, log_det = self.standardise(x)
        if self.net is None:
            return y, sum_log_det(log_det)
        w, log_slopes, _ = self.reweight(y, context)
        return w, sum_log_det(log_det + log_slopes)

    def reweight(self, y: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The layer at coordinates of cells: w and log dw/dy, each (B, D), and the
        log-probabilities of cells given the columns before, (B, D, K)."""
        cell = self.cells.cell_of(y)
        log_p = self.log_probabilities(y, cell, context)
        w, log_slopes, _ = remap(y, self.cells.mass.double()[None], log_p.exp(), cell)
        return w, log_slopes, log_p

    def place(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates of cells of all columns at noise u in (0, 1), and log dy/dx, (B, D)."""
        y, log_slopes = self.cells.place(x, u)
        y, more = self.standardise(y)
        return y, log_slopes + more

    @torch.no_grad()
    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        """Column by column, without gradients."""
        y, log_det = z, z.new_zeros(len(z))
        if self.net is not None:
            log_slopes: list[Tensor] = []

            def choose(i: int, log_p: Tensor) -> Tensor:
                y_i, log_slope = self.step(i, log_p, z[:, i])
                log_slopes.append(log_slope)
                return y_i

            y = self.walk(len(z), context, choose)
            log_det = torch.stack(log_slopes, 1).sum(1)
        x, volume = self.units(y)
        return x, log_det + volume

    def walk(
        self, n: int, context: Tensor | None, choose: Callable[[int, Tensor], Tensor]
    ) -> Tensor:
        """y (n, D), each column chosen (n,) by its number and the log-probabilities of its cells
        (n, K_i) given those before."""
        assert self.net is not None, "expected a layer with a network"
        nothing = self.cells.mass.new_zeros(n, 0)
        steps = self.net.stepper()(nothing if context is None else context)
        found, edges = [nothing] * self.dims, self.cells.edges(nothing.dtype)
        for place, i in enumerate(self.order):
            log_mass = self.cells.log_mass()[i, : self.cells.counts[i]]
            y = choose(i, (steps.parameters(place).double() + log_mass).log_softmax(-1))
            cell = self.cells.cell_within(y[:, None], edges[i : i + 1])
            own = self.slices[i]
            steps.feed(place, self.features(y[:, None], cell, own, self.owner[own] - i, i))
            found[i] = y
        return torch.stack(found, 1)

    def step(self, i: int, log_p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """y and log dy/dw of column i, (n,), for coordinates w of the layer above."""
        count, cells = self.cells.counts[i], self.cells
        source, target = log_p.exp()[:, None], cells.mass[i, :count].double()[None, None]
        y, log_slope, cell = remap(w[:, None], source, target)
        return self.keep_inside(i, y, cell)[:, 0], log_slope[:, 0]

    def keep_inside(self, i: int, y: Tensor, cell: Tensor) -> Tensor:
        """y (n, 1) of column i within its cell in spite of rounding."""
        return self.cells.inside(y, cell, self.cells.edges(y.dtype)[i : i + 1])

    def standardise(self, x: Tensor) -> Mapped:
        """Plain reals made nearly normal, and log dy/dx of each column, (B, D)."""
        if self.reals is None:
            return x, torch.zeros_like(x)
        plain = self.cells.plain_places
        y, log_slopes = self.reals(x[:, plain])
        zero = torch.zeros_like(x)
        return x.index_copy(1, plain, y.to(x.dtype)), zero.index_copy(1, plain, log_slopes.to(x))

    def units(self, y: Tensor) -> Mapped:
        """Plain reals in the units of the data."""
        if self.reals is None:
            return y, y.new_zeros(len(y))
        plain = self.cells.plain_places
        x = y.index_copy(1, plain, self.reals.inverse(y[:, plain]).to(y.dtype))
        return x, -self.reals(x[:, plain])[1].sum(1).to(y.dtype)

    def log_probabilities(self, y: Tensor, cell: Tensor, context: Tensor | None) -> Tensor:
        """log p_k of the cells of each column given those before, (B, D, K), float64; minus
        infinity where a cell is not used."""
        assert self.net is not None, "expected a layer with a network"
        out = self.net(self.features(y, cell), context)
        out = torch.cat([out, out.new_zeros(len(out), 1)], 1)[:, self.places]
        return (out.double() + self.cells.log_mass()).log_softmax(-1)

    def features(
        self,
        y: Tensor,
        cell: Tensor,
        which: slice = ALL_FEATURES,
        owner: Tensor | None = None,
        first: int = 0,
    ) -> Tensor:
        """Indicators of cells, and of numbers a coordinate: of reals their own, of counts the
        middle of their cell, so that noise is not read."""
        owner = self.owner if owner is None else owner
        columns = slice(first, first + y.shape[1])
        mass = self.cells.mass.double()[columns]
        below, above = cumulative(mass)
        middle = gather(normal_quantile(below + mass / 2, above + mass / 2).to(y.dtype), cell)
        real = self.cells.is_real[columns] & (cell >= self.cells.first[columns])
        score = torch.where(real, y.clamp(-MAX_NET_SCORE, MAX_NET_SCORE), middle)
        score = torch.where(cell >= self.cells.first[columns], score, 0.0)
        indicated = self.indicated[which]
        hit = (cell[:, owner] == indicated).to(y.dtype)
        return torch.where(indicated < 0, score[:, owner], hit)


def remap(
    y: Tensor, source: Tensor, target: Tensor, cell: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The increasing map of N(0, 1) that takes cells of probabilities `source` to those of
    `target`, each (B or 1, D, K), linear in the normal distribution function within a cell; its
    log-slope and the cells, each (B, D)."""
    inner = y.double().clamp(-MAX_SCORE, MAX_SCORE)
    if cell is None:
        upto = source.cumsum(-1)[..., :-1]
        last = (source.expand(len(y), -1, -1) > 0).cumsum(-1).argmax(-1)  # the last that is used
        cell = torch.minimum((normal_cdf(inner)[..., None] >= upto).sum(-1), last)

    def own(table: Tensor) -> Tensor:
        return table.expand(len(y), -1, -1).gather(-1, cell[..., None])[..., 0]

    here, there = own(source), own(target)
    under, over = (own(part) for part in cumulative(source))
    t, s = within_cell(inner, under, over, here)
    below, above = (own(part) for part in cumulative(target))
    w = normal_quantile(below + there * t, above + there * s)
    log_slope = there.log() - here.log() + (w.square() - inner.square()) / 2
    return (w + (y.double() - inner)).to(y.dtype), log_slope.to(y.dtype), cell
