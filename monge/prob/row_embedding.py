r"""Rows of a table as vectors: every column is a few numbers near one.

A cell is one of the components of its column, each of which is a point $e_k$:

names    one component each; two are the points -1 and 1, up to `MAX_AXES` are the corners of a
         regular simplex, and more are fixed random points in `MAX_AXES` dimensions;
counts   one component for each run of whole numbers (`Bins`), on a line in their order, within
         which a count has the probability that its run gives it;
reals    one component for "a number", one for each atom, with the points of as many names, and
         beside them the number itself, y = g(x) (`MarginalMap`), which is 0 where there is none.

An empty cell is one more component of its column, whose point may be farther from the others. So a
row has a vector of `width` numbers, and
what the vector does not hold of the row has the log-density `detail`:
$\log p(x) = \log p(\text{components}, y) + \text{detail}(x)$ with
$\text{detail}(x) = \sum_{counts} \log p(x_i \mid \text{run}) + \sum_{numbers} \log g'(x_i)$.
Runs, maps, points and the shares of the components are laid over training rows by `fit`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.errors import DataError
from ..core.model import is_exporting
from ..core.space import Space
from .bins import Bins
from .marginal_map import MarginalMap

RUNS = 64
"""Largest number of runs of a count."""
MAX_AXES = 64
"""Largest number of dimensions of the points of names."""
NAME_DISTANCE = 2.0
"""Distance of the points of two names."""
LADDER_LENGTH = 4.0
"""Distance of the first and the last run of a count, if there are many."""
PSEUDO_CELLS = 1.0
"""What is added to the training cells of a column, in equal parts to its components; as much to
each would make empty cells rarer, the more runs a count has."""
TABLE_KINDS = ("label", "counts", "columns")
"""Kinds of event whose rows are embedded."""


def name_points(size: int) -> Tensor:
    """Points of `size` names, (size, dims)."""
    if size == 1:
        return torch.zeros(1, 1)
    if size == 2:
        return NAME_DISTANCE * torch.tensor([[-0.5], [0.5]])
    if size <= MAX_AXES:
        return NAME_DISTANCE * 0.5**0.5 * torch.eye(size)
    generator = torch.Generator().manual_seed(size)
    points = torch.randn(size, MAX_AXES, generator=generator)
    return NAME_DISTANCE * 0.5**0.5 * points / points.norm(dim=1, keepdim=True)


def state_points(size: int, empty_distance: float) -> Tensor:
    """Points of `size` names, the last of which, the empty cell, has this distance from others."""
    points, ratio = name_points(size), empty_distance / NAME_DISTANCE
    if size == 2:
        return ratio * points
    points[-1] *= (2 * ratio**2 - 1) ** 0.5  # the others are at right angles
    return points


def column_points(part: Space, empty_distance: float = NAME_DISTANCE) -> Tensor:
    """The points of the components of a column, (K, dims); the place of a run on its line and
    the number of a real, its first dimensions, are left 0."""
    away = empty_distance if part.optional else NAME_DISTANCE
    if part.kind in ("binary", "label"):
        return state_points(2 if part.kind == "binary" else part.size, away)
    if part.kind == "real":
        states = 1 + len(part.atoms) + part.optional
        axes = state_points(states, away) if states > 1 else torch.zeros(1, 0)
        return torch.cat([torch.zeros(states, 1), axes], 1)
    if part.kind not in ("counts", "levels"):
        raise DataError(
            f"expected columns of numbers or names, found {part} in {part.name or 'the event'}; "
            "choose a sequence model"
        )
    if not part.optional:
        return torch.zeros(RUNS, 1)
    flag = state_points(2, away)[[0] * RUNS + [1]]
    return torch.cat([torch.zeros(RUNS + 1, 1), flag], 1)


class RowEmbedding(nn.Module):
    """Rows (B, D) to vectors (B, width), by the components (B, D) of their cells.

    The components of all columns are counted through: `start[i]` is the first of column i, and
    `column[k]` the column of component k.
    """

    points: Tensor  # (components, width)
    log_share: Tensor  # (components,): of training cells; -inf where a run is not used
    start: Tensor  # (D,)
    column: Tensor  # (components,)
    axis_column: Tensor  # (width,): the column that a dimension belongs to
    first_axis: Tensor  # (D,)
    members: Tensor  # (components, D): 1 where a component belongs to a column
    number_axes: Tensor  # (R,): the dimensions of the numbers
    number_components: Tensor  # (R,): the components "a number"
    first_component: Tensor  # (width,): the first component of the column of each dimension
    empty: Tensor  # (components,): which of them are empty cells
    in_optional: Tensor  # (components,): which of them are of columns that may be empty
    atoms: Tensor  # (R, most atoms), NaN where there are fewer

    def __init__(self, space: Space, empty_distance: float = NAME_DISTANCE) -> None:
        super().__init__()
        self.parts, self.empty_distance = space.parts, empty_distance
        tables = [column_points(part, empty_distance) for part in self.parts]
        sizes = torch.tensor([len(table) for table in tables])
        axes = torch.tensor([table.shape[1] for table in tables])
        self.components, self.width = int(sizes.sum()), int(axes.sum())
        start, first_axis = sizes.cumsum(0) - sizes, axes.cumsum(0) - axes
        columns = torch.arange(len(self.parts))
        self.names, self.counts, self.reals = (
            [i for i, part in enumerate(self.parts) if part.kind in kinds]
            for kinds in (("binary", "label"), ("counts", "levels"), ("real",))
        )
        number_axes, number_components = first_axis[self.reals], start[self.reals]
        empty = torch.zeros(self.components, dtype=torch.bool)
        optional = [part.optional for part in self.parts]
        empty[(start + sizes - 1)[optional]] = True
        indices = {
            "start": start,
            "column": columns.repeat_interleave(sizes),
            "axis_column": columns.repeat_interleave(axes),
            "first_axis": first_axis,
            "number_axes": number_axes,
            "number_components": number_components,
            "first_component": start.repeat_interleave(axes),
            "empty": empty,
            "in_optional": torch.tensor(optional).repeat_interleave(sizes),
            "members": nn.functional.one_hot(columns.repeat_interleave(sizes)).float(),
            "atoms": padded_atoms([self.parts[i] for i in self.reals]),
        }
        for name, index in indices.items():
            self.register_buffer(name, index, persistent=False)
        self.register_buffer("points", torch.block_diag(*tables))
        self.register_buffer("log_share", torch.zeros(self.components))
        self.sizes = sizes.tolist()
        self.runs = Bins([self.parts[i] for i in self.counts], RUNS) if self.counts else None
        self.map = MarginalMap([self.parts[i] for i in self.reals]) if self.reals else None
        self.place(torch.zeros(self.components))

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Lay runs, maps and points over training rows (B, D), and count the components."""
        x = x.to(self.points)
        for j, i in enumerate(self.counts):
            values = x[:, i][~x[:, i].isnan()].double().sort().values
            if self.runs is not None and len(values):
                self.runs.fit(j, values)
        if self.map is not None:
            self.map.fit(x[:, self.reals], ~x[:, self.reals].isnan())
        cells = self.components_of(x)
        self.place(torch.bincount(cells.flatten(), minlength=self.components))

    def place(self, cells: Tensor) -> None:
        """Set points and shares for these numbers of training cells, (components,)."""
        tables = [column_points(part, self.empty_distance) for part in self.parts]
        points = torch.block_diag(*tables).to(self.points)
        live = torch.ones_like(self.log_share, dtype=torch.bool)
        for j, i in enumerate(self.counts):
            assert self.runs is not None, "counts have runs"
            used, own = self.runs.live[j], slice(int(self.start[i]), int(self.start[i]) + RUNS)
            last = int(used.sum()) - 1
            step = min(NAME_DISTANCE, LADDER_LENGTH / max(last, 1))
            ladder = step * used.cumsum(0)  # its mean is subtracted below
            live[own], points[own, int(self.first_axis[i])] = used, ladder.to(points)
        used_components = (live.to(points) @ self.members)[self.column]
        share = torch.where(live, cells.to(points) + PSEUDO_CELLS / used_components, 0.0)
        share = share / (share @ self.members)[self.column]
        own_axis = self.column[:, None] == self.axis_column
        self.points.copy_(torch.where(own_axis, points - share @ points, 0.0))
        self.log_share.copy_(share.log())

    def components_of(self, x: Tensor) -> Tensor:
        """The component of each cell, (B, D)."""
        local = torch.zeros_like(x, dtype=torch.long)
        missing = x.isnan()
        if not is_exporting():
            self.check_values(x, missing)
        for i in self.names:
            local[:, i] = x[:, i].long()
        if self.runs is not None:
            run, _ = self.runs.encode(x[:, self.counts].nan_to_num(0.0))
            local[:, self.counts] = torch.where(missing[:, self.counts], RUNS, run)
        for j, i in enumerate(self.reals):
            for k in range(len(self.parts[i].atoms)):
                local[:, i] = torch.where(x[:, i] == self.atoms[j, k], k + 1, local[:, i])
            local[:, i] = torch.where(missing[:, i], self.sizes[i] - 1, local[:, i])
        return local + self.start

    def check_values(self, x: Tensor, missing: Tensor) -> None:
        """Raise an error if a cell is empty that never was, or a code is none of the names."""
        for i in missing.any(0).nonzero()[:, 0].tolist() if bool(missing.any()) else ():
            if not self.parts[i].optional or self.parts[i].kind in ("binary", "label"):
                raise DataError(
                    f"expected a value in {self.parts[i].name or f'entry {i}'}, which is never "
                    "empty in the training data, found an empty cell; fill it with "
                    "`monge complete`"
                )
        for i in self.names:
            codes = x[:, i].long()
            if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < self.sizes[i]:
                raise DataError(
                    f"expected codes 0 to {self.sizes[i] - 1} in "
                    f"{self.parts[i].name or f'entry {i}'}, found {int(codes.min())} to "
                    f"{int(codes.max())}; score data of the same names"
                )

    def numbers(self, x: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """y and log dy/dx of the reals, 0 where there is no number, (B, R)."""
        if self.map is None:
            return x[:, :0], x[:, :0]
        here = cells[:, self.reals] == self.number_components
        middle = self.map.inverse(torch.zeros_like(x[:1, : len(self.reals)]))
        y, slope = self.map(torch.where(here, x[:, self.reals], middle))
        return torch.where(here, y, 0.0), torch.where(here, slope, 0.0)

    def forward(self, x: Tensor) -> Tensor:  # (B, D) -> (B, width)
        x = x.to(self.points)
        cells = self.components_of(x)
        axes = torch.arange(self.width, device=x.device)
        y = self.points[cells[:, self.axis_column], axes]
        y[:, self.number_axes] = self.numbers(x, cells)[0]
        return y

    def detail(self, x: Tensor) -> Tensor:
        """The log-density of rows given their vectors, (B,)."""
        x = x.to(self.points)
        total = self.numbers(x, self.components_of(x))[1].sum(1)
        if self.runs is not None:
            counts = x[:, self.counts]
            inside = self.runs.encode(counts.nan_to_num(0.0))[1]
            total = total + torch.where(counts.isnan(), 0.0, inside).sum(1)
        return total

    def evidence(self, z: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """log share_k N(z; alpha e_k, sigma^2), up to what all components of a column share,
        (B, components), for z (B, width) and alpha and sigma (B, 1) or ()."""
        half = 0.5 * self.points.square().sum(1)
        return self.log_share + (alpha * (z @ self.points.T) - alpha.square() * half) / (
            sigma.square()
        )

    def nearest(self, y: Tensor) -> Tensor:
        """The component of each column nearest to y (B, width), (B, D)."""
        far = y @ self.points.T - 0.5 * self.points.square().sum(1)
        far = far.masked_fill(self.log_share == -torch.inf, -torch.inf)
        hit = far >= self.largest(far)[:, self.column]
        place = torch.where(hit, torch.arange(self.components, device=y.device), self.components)
        none = place.new_full((len(y), len(self.parts)), self.components)
        return none.scatter_reduce(1, self.column.expand_as(place), place, "amin")

    def largest(self, logits: Tensor) -> Tensor:
        """The largest of each column, (B, D), without gradient."""
        none = logits.new_full((len(logits), len(self.parts)), -torch.inf)
        index = self.column.expand(len(logits), -1)
        return none.scatter_reduce(1, index, logits.detach(), "amax")

    def log_softmax(self, logits: Tensor) -> Tensor:
        """Over the components of each column, (B, components)."""
        shifted = logits - self.largest(logits)[:, self.column]
        total = shifted.exp() @ self.members
        return shifted - total.log()[:, self.column]

    def softmax(self, logits: Tensor) -> Tensor:
        """Over the components of each column, (B, components)."""
        weight = (logits - self.largest(logits)[:, self.column]).exp()
        return weight / (weight @ self.members)[:, self.column]

    def choose(self, probability: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Components (B, D) with these probabilities (B, components), from a uniform for each
        column (B, D), and what is left of the uniforms, uniform again."""
        total = probability.double().cumsum(1)
        last = self.start + torch.tensor(self.sizes, device=u.device) - 1
        ends = total[:, last]
        begins = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], 1)
        goal = begins + u.double().clamp(0, 1 - 1e-9) * (ends - begins)
        chosen = torch.searchsorted(total, goal, right=True)
        chosen = torch.minimum(torch.maximum(chosen, self.start), last)
        own = probability.double().gather(1, chosen)
        left = (goal - (total.gather(1, chosen) - own)) / own
        return chosen, left.nan_to_num(0.5).clamp(0, 1 - 1e-9)

    def decode(self, cells: Tensor, y: Tensor, u: Tensor) -> Tensor:
        """Rows (B, D) of these components (B, D), with their numbers from y (B, width) and the
        place of a count in its run from uniforms (B, D)."""
        local = cells - self.start
        x = local.to(self.points.dtype)
        if self.runs is not None:
            run, at = local[:, self.counts], u[:, self.counts]
            value = self.runs.decode(run.clamp(max=RUNS - 1), at, at).to(x)
            x[:, self.counts] = torch.where(run == RUNS, torch.nan, value)
        if self.map is not None:
            values = self.map.inverse(y[:, self.number_axes])
            for j, i in enumerate(self.reals):
                state, value = local[:, i], values[:, j]
                for k in range(len(self.parts[i].atoms)):
                    value = torch.where(state == k + 1, self.atoms[j, k], value)
                if self.parts[i].optional:
                    value = torch.where(state == self.sizes[i] - 1, torch.nan, value)
                x[:, i] = value
        return x

    @property
    def typical(self) -> Tensor:
        """A valid row, (1, D): no cell of it is empty."""
        cells = self.log_share.masked_fill(self.empty, -torch.inf)[None]
        hit = cells >= self.largest(cells)[:, self.column]
        places = [
            int(hit[0, begin : begin + size].nonzero()[0, 0]) + begin
            for begin, size in zip(self.start.tolist(), self.sizes, strict=True)
        ]
        row = torch.tensor([places], device=self.start.device)
        zero = self.points.new_zeros(1, self.width)
        return self.decode(row, zero, torch.full_like(row, 0.5, dtype=torch.float64))


def padded_atoms(parts: Sequence[Space]) -> Tensor:
    """The atoms of each real, (R, most)."""
    most = max((len(part.atoms) for part in parts), default=0)
    rows = [[*part.atoms, *[torch.nan] * (most - len(part.atoms))] for part in parts]
    return torch.tensor(rows).reshape(len(parts), most)
