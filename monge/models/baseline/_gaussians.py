r"""K Gaussians of D entries fitted to weighted rows with missing entries.

With o the observed entries of a row, u the missing ones, and L the Cholesky factor of the
covariance with rows and columns in the order (o, u),

    log N(x_o) = - |z|^2 / 2 - \sum_o \log L_oo - |o| \log(2 \pi) / 2,  z = L_oo^{-1} (x_o - mu_o),
    x_u | x_o  ~ N(mu_u + L_uo z, L_uu L_uu^T),

so one factor per missing pattern serves the likelihood, the E-step and sampling, all in double
precision and in standardised units. Patterns are computed many at a time (`PatternGroup`): if
every row has its own, one by one would be slow. The prior adds `rows` pseudo-rows of uncorrelated
entries with variance v: a covariance is (S + rows v I) / (n + rows).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Generator, Tensor, nn

from ...core.model import is_exporting
from ...core.space import Space
from ...prob.bins import CellStates
from ...prob.mixed_number import BoundedCoordinate
from ._base import DistributionSet, FlatRows, Statistics, kinds_of
from ._categorical import CategoricalTables

MAX_COVARIANCE_ELEMENTS = 2**26
"""Elements of all covariances of a model."""
MAX_GROUP_ELEMENTS = 2**21
"""Elements of the factors of the patterns that are computed at once."""


class GaussianSet(DistributionSet):
    """Base of sets of Gaussians: standardised units, means and the prior of the covariance."""

    centre: Tensor  # (D,)
    scale: Tensor  # (D,)
    mean: Tensor  # (K, D)

    def __init__(self, space: Space, count: int, rows: float, variance: float) -> None:
        super().__init__()
        centre = space.spread("mean").flatten() + cell_widths(space) / 2
        self.register_buffer("centre", centre, persistent=False)
        self.register_buffer("scale", space.spread("scale").flatten(), persistent=False)
        self.register_buffer("mean", torch.zeros(count, space.dims))
        self.prior_rows, self.variance = rows, variance
        self.width = count * space.dims // 4

    def standard(self, x: Tensor) -> Tensor:
        return (x.double() - self.centre.double()) / self.scale.double()

    def volume(self, seen: Tensor) -> Tensor:
        """Log-determinant of the change to standardised units, (B, 1)."""
        return seen.double() @ self.scale.double().log()[:, None]

    def features(self, x: Tensor, seen: Tensor) -> Tensor:
        return torch.where(seen, self.standard(x), 0)

    def centres(self, weight: Tensor, first: Tensor) -> Tensor:
        """The new means; a Gaussian without rows keeps its mean."""
        return torch.where(weight > 1e-9, first / weight, self.mean.double())


class FullGaussians(GaussianSet):
    """Full covariances root root^T.

    A whole value x stands for the cell [x, x + 1): `log_prob` takes a point of the cell,
    `expected` its middle, and gives the mean of log p over the cell.
    """

    root: Tensor  # (K, D, D), lower triangular
    blur: Tensor  # (D,): variance of a uniform point in a cell

    def __init__(self, space: Space, count: int, rows: float, variance: float = 1.0) -> None:
        super().__init__(space, count, rows, variance)
        blur = cell_widths(space) / (12 * self.scale.square())
        self.register_buffer("blur", blur, persistent=False)
        # Before the fit: twice the spread of the data.
        self.register_buffer("root", 2 * torch.eye(space.dims).repeat(count, 1, 1))

    def log_prob(self, x: Tensor, seen: Tensor, present: bool = False) -> Tensor:
        return self.value(x, seen, torch.zeros_like(self.blur))

    def expected(self, x: Tensor, seen: Tensor) -> Tensor:
        """The mean of `log_prob` over the cells whose middles are x, (B, K)."""
        return self.value(x, seen, self.blur)

    def value(self, x: Tensor, seen: Tensor, blur: Tensor) -> Tensor:
        root, y, mean = self.root.double(), self.standard(x), self.mean.double()
        value = y.new_zeros(len(y), len(root))
        for group in pattern_groups(seen, root.numel()):
            factor, here = group.factor(root), group.here[:, None]
            inverse = invert(factor)  # (P, K, D, D)
            centre = torch.where(here, group.reorder(mean), 0)  # (P, K, D)
            z = group.observed(y)[:, None] @ inverse.mT - (inverse @ centre[..., None]).mT
            square = torch.where(here[..., None, :], z, 0).square().sum(3)  # (P, K, n)
            width = torch.where(group.here, blur.double()[group.order], 0)[:, None, :, None]
            more = torch.where(here, (inverse.square() @ width)[..., 0], 0).sum(2)
            size = torch.where(here, factor.diagonal(dim1=2, dim2=3).log(), 0).sum(2)
            size = size + here.sum(2).double() * math.log(2 * math.pi) / 2  # (P, K)
            found = -((square + more[..., None]) / 2 + size[..., None])
            if is_exporting():  # one pattern, with all rows in order
                value = found.mT[0]
            else:
                value[group.rows[group.used]] = found.mT[group.used]
        return value - self.volume(seen)

    def statistics(self, x: Tensor, seen: Tensor, weight: Tensor) -> Statistics:
        y, weight = self.standard(x), weight.double()
        count, dims = self.mean.shape
        first, second = y.new_zeros(count, dims), y.new_zeros(count, dims, dims)
        for group in pattern_groups(seen, self.root.numel()):
            part = self.group_statistics(group, y, weight)
            first, second = first + part[0], second + part[1]
        return weight.sum(0), first, second

    def group_statistics(self, group: PatternGroup, y: Tensor, weight: Tensor) -> Statistics:
        """Expected statistics of the rows of some patterns."""
        if bool(group.here.all()):
            return complete_statistics(y[group.rows[0]], weight[group.rows[0]], self.blur.double())
        factor, here = group.factor(self.root.double()), group.here[:, None, :, None]
        mean = group.reorder(self.mean.double())[:, :, None]  # (P, K, 1, D)
        # Each entry as a linear map of the observed ones: the identity, or the regression.
        eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        reach = torch.where(here.mT, factor, 0) @ torch.where(here, invert(factor), 0)
        reach = torch.where(here, eye, reach)  # (P, K, D, D)
        apart = torch.where(here.mT, group.observed(y)[:, None] - mean, 0)  # (P, K, n, D)
        full = mean + apart @ reach.mT
        own = torch.where(group.used[..., None], weight[group.rows], 0).mT  # (P, K, n)
        weighed = full * own[..., None]
        blur = torch.where(group.here, self.blur.double()[group.order], 0)[:, None, None]
        free = torch.where(here | here.mT, 0, factor)
        left_out = (reach * blur) @ reach.mT + free @ free.mT
        second = weighed.mT @ full + own.sum(2)[..., None, None] * left_out
        place = group.order.argsort(1)[:, None]  # back to the order of the entries
        second = second.take_along_dim(place[..., None], 2).take_along_dim(place[:, :, None], 3)
        return weighed.sum(2).take_along_dim(place, 2).sum(0), second.sum(0)

    def update(self, statistics: Statistics) -> None:
        n, first, second = statistics
        mean, n = self.centres(n[:, None], first), n[:, None, None]
        scatter = second - n * mean[:, :, None] * mean[:, None]
        prior = self.variance * torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
        self.mean.copy_(mean)
        self.root.copy_(
            torch.linalg.cholesky((scatter + self.prior_rows * prior) / (n + self.prior_rows))
        )

    def sample(self, rows: FlatRows, which: Tensor, generator: Generator | None) -> Tensor:
        x, seen = rows.x, rows.seen
        y, mean, root = self.standard(x), self.mean.double(), self.root.double()
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device).double()
        for group in pattern_groups(seen, root[0].numel(), which):
            own, here = which[group.rows[:, 0]], group.here[:, None]
            factor = group.factor(root, own)[:, 0]  # (P, D, D)
            centre = mean[own].take_along_dim(group.order, 1)[:, None]
            z = (group.observed(y) - torch.where(here, centre, 0)) @ invert(factor).mT
            order = group.order[:, None].expand_as(z)
            noisy = torch.where(here, z, noise[group.rows].take_along_dim(order, 2))
            new = torch.where(here, group.observed(y), centre + noisy @ factor.mT)
            y[group.rows[group.used]] = torch.empty_like(new).scatter_(2, order, new)[group.used]
        y = torch.where(seen, self.standard(x), y)
        return self.centre.double() + self.scale.double() * y

    def penalty(self) -> Tensor:
        root = self.root.double()
        size = root.diagonal(dim1=1, dim2=2).log().sum()
        return self.prior_rows * (size + self.variance * invert(root).square().sum() / 2)


def complete_statistics(y: Tensor, weight: Tensor, blur: Tensor) -> Statistics:
    """Statistics of rows (B, D) without missing entries, by weights (B, K) and with the variance
    inside cells."""
    weighed = y * weight.T[..., None]  # (K, B, D)
    inside = weight.sum(0)[:, None, None] * blur.diag()
    return weighed.sum(1), weighed.mT @ y + inside


class DiagonalGaussians(GaussianSet):
    """Diagonal covariances."""

    root: Tensor  # (K, D)

    def __init__(self, space: Space, count: int, rows: float, variance: float = 1.0) -> None:
        super().__init__(space, count, rows, variance)
        self.register_buffer("root", torch.full((count, space.dims), 2.0))

    def log_prob(self, x: Tensor, seen: Tensor, present: bool = False) -> Tensor:
        y, here = self.features(x, seen), seen.double()
        mean, precision = self.mean.double(), self.root.double() ** -2  # (K, D)
        square = y.square() @ precision.T - 2 * y @ (mean * precision).T
        constant = mean.square() * precision - precision.log() + math.log(2 * math.pi)
        return -(square + here @ constant.T) / 2 - self.volume(seen)

    def statistics(self, x: Tensor, seen: Tensor, weight: Tensor) -> Statistics:
        y, weight = self.features(x, seen), weight.double()
        mean, root = self.mean.double(), self.root.double()
        hidden = weight.T @ (~seen).double()  # (K, D)
        first = weight.T @ y + hidden * mean
        second = weight.T @ y.square() + hidden * (mean.square() + root.square())
        return weight.sum(0), first, second

    def update(self, statistics: Statistics) -> None:
        n, first, second = statistics
        n = n[:, None]
        mean = self.centres(n, first)
        scatter = (second - n * mean.square()).clamp_min(0)
        self.mean.copy_(mean)
        self.root.copy_(
            ((scatter + self.prior_rows * self.variance) / (n + self.prior_rows)).sqrt()
        )

    def sample(self, rows: FlatRows, which: Tensor, generator: Generator | None) -> Tensor:
        x, seen = rows.x, rows.seen
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        y = self.mean[which] + self.root[which] * noise
        return torch.where(seen, x, self.centre + self.scale * y)

    def penalty(self) -> Tensor:
        root = self.root.double()
        return self.prior_rows * (root.log() + self.variance / (2 * root.square())).sum()


class NumberColumns(nn.Module):
    """Columns of numbers: the state of each cell, and an unbounded coordinate t of plain values.

    `plain` is the space of t, without atoms, bounds and empty cells.
    """

    def __init__(self, space: Space) -> None:
        super().__init__()
        parts = space.columns
        self.states = CellStates(parts)
        is_plain = all(part.is_plain for part in parts)
        self.coordinates = nn.ModuleList(
            BoundedCoordinate([part]) for part in (() if is_plain else parts)
        )
        means, scales = ([getattr(p, name)[0] for p in parts] for name in ("mean", "scale"))
        if not is_plain:
            t, slope = self.unbound(space.spread("mean")[None])
            means = t[0].tolist()
            scales = (space.spread("scale").log() + slope[0]).exp().tolist()
        columns = tuple(
            Space(kind=part.kind, size=part.size, mean=(m,), scale=(s,))
            for part, m, s in zip(parts, means, scales, strict=True)
        )
        self.plain = Space(kind="columns", shape=space.shape, columns=columns)

    def unbound(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """t(x) and log |dt/dx| of numbers, (B, D)."""
        if not len(self.coordinates):
            return x, torch.zeros_like(x)
        pairs = [one(x[:, i : i + 1]) for i, one in enumerate(self.coordinates)]
        return torch.cat([t for t, _ in pairs], 1), torch.cat([s for _, s in pairs], 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The state, t and log |dt/dx| of each cell, (B, D); t and slope 0 of other states."""
        state = self.states(x)
        t, slope = self.unbound(x)
        number = state == 0
        return state, torch.where(number, t, 0), torch.where(number, slope, 0)

    def inverse(self, t: Tensor, state: Tensor) -> Tensor:
        """Cells in these states with these coordinates, (B, D)."""
        parts = [
            cast(BoundedCoordinate, one).inverse(t[:, i : i + 1])
            for i, one in enumerate(self.coordinates)
        ]
        return self.states.write(torch.cat(parts, 1) if parts else t, state)


class MixedGaussians(DistributionSet):
    r"""K distributions of real columns with atoms, bounds and empty cells,
    $p_k(x) = \prod_i P_{ki}(s_i)\, N_k(t_{i: s_i = 0}) \prod_{i: s_i = 0} |dt_i/dx_i|$: the states
    s of the cells, and the Gaussian of the numbers among them in unbounded coordinates t."""

    def __init__(
        self, space: Space, build: Callable[[Space], GaussianSet], count: int, pseudo: float
    ) -> None:
        super().__init__()
        self.columns = NumberColumns(space)
        self.gaussians = build(self.columns.plain)
        self.tables = CategoricalTables(state_space(space.columns), count, 4, pseudo)
        self.width = self.gaussians.width + self.tables.width

    def fit(self, rows: FlatRows) -> None:
        self.tables.fit(replace(rows, x=self.columns.states(rows.x).to(rows.x)))

    def log_prob(self, x: Tensor, seen: Tensor, present: bool = False) -> Tensor:
        state, t, slope = self.columns(x)
        slopes = torch.where(seen, slope, 0).sum(1, keepdim=True)
        numbers = self.gaussians.log_prob(t, seen & (state == 0))
        return self.tables.log_prob(state.to(x), seen, present) + numbers + slopes

    def statistics(self, x: Tensor, seen: Tensor, weight: Tensor) -> Statistics:
        state, t, _ = self.columns(x)
        numbers = self.gaussians.statistics(t, seen & (state == 0), weight)
        return (*self.tables.statistics(state.to(x), seen, weight), *numbers)

    def update(self, statistics: Statistics) -> None:
        self.tables.update(statistics[:1])
        self.gaussians.update(statistics[1:])

    def penalty(self) -> Tensor:
        return self.tables.penalty() + self.gaussians.penalty()

    def sample(self, rows: FlatRows, which: Tensor, generator: Generator | None) -> Tensor:
        state, t, _ = self.columns(rows.x)
        states = replace(rows, x=state.to(rows.x))
        state = self.tables.sample(states, which, generator).long()
        numbers = replace(rows, x=t, seen=rows.seen & (state == 0))
        t = self.gaussians.sample(numbers, which, generator).to(rows.x)
        return torch.where(rows.seen, rows.x, self.columns.inverse(t, state))

    def features(self, x: Tensor, seen: Tensor) -> Tensor:
        state, t, _ = self.columns(x)
        numbers = self.gaussians.features(t, seen & (state == 0))
        return torch.cat([numbers, self.tables.features(state.to(x), seen).to(numbers)], 1)


def state_space(parts: Sequence[Space]) -> Space:
    """The states of cells as labels; the last of an optional one is the empty cell."""
    columns = tuple(
        Space(kind="label", size=1 + len(p.atoms) + p.optional, optional=p.optional) for p in parts
    )
    return Space(kind="columns", shape=(len(columns),), columns=columns)


def cell_widths(space: Space) -> Tensor:
    """Width of the cell that a value of each entry stands for, (D,)."""
    return torch.tensor([0.0 if kind == "real" else 1.0 for kind in kinds_of(space)])


def reorder(root: Tensor, order: Tensor) -> Tensor:
    """Cholesky factors (K, D, D) of the covariances with their entries in another order."""
    if torch.equal(order, torch.arange(len(order), device=order.device)):
        return root
    rows = root[:, order]
    return torch.linalg.cholesky(rows @ rows.mT)


def invert(root: Tensor) -> Tensor:
    """The inverse of lower triangular matrices (..., D, D)."""
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    return torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)


def missing_patterns(seen: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows with the same observed entries, with their observed and missing entries."""
    if bool((seen == seen[:1]).all()):
        distinct, groups = seen[:1], [torch.arange(len(seen), device=seen.device)]
    else:
        distinct, which, sizes = seen.unique(dim=0, return_inverse=True, return_counts=True)
        groups = list(which.argsort(stable=True).split(sizes.tolist()))
    for pattern, rows in zip(distinct, groups, strict=False):
        yield rows, pattern.nonzero()[:, 0], (~pattern).nonzero()[:, 0]


@dataclass(frozen=True)
class PatternGroup:
    """P missing patterns of D entries, and up to n rows of each; entries in `order` have the
    observed ones first."""

    rows: Tensor  # (P, n)
    used: Tensor  # (P, n): false where a pattern has fewer rows
    order: Tensor  # (P, D)
    here: Tensor  # (P, D): whether the entry in that place of the order is observed

    def reorder(self, table: Tensor) -> Tensor:
        """(K, D) -> (P, K, D)."""
        return table[:, self.order].transpose(0, 1)

    def observed(self, y: Tensor) -> Tensor:
        """The observed entries of the rows, 0 for others, (P, n, D)."""
        order = self.order[:, None].expand(*self.rows.shape, -1)
        return torch.where(self.here[:, None], y[self.rows].take_along_dim(order, 2), 0)

    def factor(self, root: Tensor, which: Tensor | None = None) -> Tensor:
        """The Cholesky factors of all covariances root root^T with their entries in this order,
        (P, K, D, D), or of one for each pattern, (P, 1, D, D)."""
        if which is not None:
            rows = root[which].take_along_dim(self.order[..., None], 1)[:, None]
        else:
            rows = root[:, self.order].transpose(0, 1)
        if bool((self.order == torch.arange(root.shape[1], device=root.device)).all()):
            return rows
        return torch.linalg.cholesky(rows @ rows.mT)


def pattern_groups(
    seen: Tensor, elements: int, which: Tensor | None = None
) -> Iterator[PatternGroup]:
    """The rows (B, D) by the pattern of their observed entries, and by `which` (B,); as many
    patterns at once as `elements` each allow. Patterns of about as many rows go together."""
    if is_exporting() and bool((seen == seen[:1]).all()):
        rows = torch.arange(len(seen), device=seen.device)[None]
        order = (~seen[:1]).long().argsort(dim=1, stable=True)
        yield PatternGroup(rows, torch.ones_like(rows).bool(), order, seen[:1].gather(1, order))
        return
    keys = seen if which is None else torch.cat([which[:, None], seen.long()], 1)
    if bool((keys == keys[:1]).all()):
        distinct, member = keys[:1], torch.zeros(len(keys), dtype=torch.long, device=keys.device)
    else:
        distinct, member = keys.unique(dim=0, return_inverse=True)
    patterns = distinct[:, -seen.shape[1] :].bool()
    sizes, by_pattern = member.bincount(minlength=len(distinct)), member.argsort(stable=True)
    begins, order = sizes.cumsum(0) - sizes, (~patterns).long().argsort(dim=1, stable=True)
    exponent = sizes.double().log2().ceil().long()
    for power in exponent.unique().tolist():
        mine = (exponent == power).nonzero()[:, 0]
        for some in mine.split(max(MAX_GROUP_ELEMENTS // max(elements, 1), 1)):
            slots = torch.arange(int(sizes[some].max()), device=seen.device)
            used = slots < sizes[some, None]
            rows = by_pattern[begins[some, None] + torch.where(used, slots, 0)]
            here = patterns[some].take_along_dim(order[some], 1)
            yield PatternGroup(rows, used, order[some], here)
