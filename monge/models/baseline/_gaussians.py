r"""K Gaussians of D entries fitted to weighted rows with missing entries.

With o the observed entries of a row, u the missing ones, P the inverse of the covariance S, d the
row less the mean with 0 at u, and C the Cholesky factor of P_uu,

    log N(x_o) = - (d^T P d - |C^{-1} (P d)_u|^2 + \log|S| + \log|P_uu| + |o| \log(2 \pi)) / 2,
    x_u | x_o  ~ N(mu_u - P_uu^{-1} (P d)_u, P_uu^{-1}),

so the likelihood and the E-step factorise one matrix of the size of the missing entries for each
missing pattern, in double precision and in standardised units. Sampling takes the Cholesky factor
of S with rows and columns in the order (o, u). Patterns are computed many at a time
(`PatternGroup`): if every row has its own, one by one would be slow. The prior adds `rows`
pseudo-rows of uncorrelated entries with variance v: a covariance is (S + rows v I) / (n + rows).
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
MAX_GROUP_ELEMENTS = 2**18
"""Elements of the covariances of patterns that are computed at once: 2 MB stay in the cache."""
PACKED_BITS = 52
"""Bits that a double holds exactly."""


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
        self.is_blurred = bool((blur > 0).any())
        # Before the fit: twice the spread of the data.
        self.register_buffer("root", 2 * torch.eye(space.dims).repeat(count, 1, 1))

    def log_prob(self, x: Tensor, seen: Tensor, present: bool = False) -> Tensor:
        return self.value(x, seen, None)

    def expected(self, x: Tensor, seen: Tensor) -> Tensor:
        """The mean of `log_prob` over the cells whose middles are x, (B, K)."""
        return self.value(x, seen, self.blur if self.is_blurred else None)

    def value(self, x: Tensor, seen: Tensor, blur: Tensor | None) -> Tensor:
        """Mean of log N of the observed entries over cells of variance `blur`, (B, K)."""
        apart, whiten = self.apart(self.standard(x), seen), invert(self.root.double())
        z = apart @ whiten.mT  # (K, B, D)
        slope, precision = z @ whiten, whiten.mT @ whiten
        square = z.square().sum(2)  # (K, B)
        if blur is not None:
            each = precision.diagonal(dim1=1, dim2=2) * blur.double()
            square = square + each @ seen.double().T
        size = -2 * whiten.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
        size = size + seen.sum(1).double() * math.log(2 * math.pi)  # (K, B)
        for group in pattern_groups(seen, self.root.numel()):
            hidden = group.hidden()
            if not hidden.count:
                continue
            inverse = invert(hidden.factor(precision))  # (K, P, U, U)
            known = hidden.entries(slope[:, group.rows]) @ inverse.mT  # (K, P, n, U)
            less = known.square().sum(3)
            if blur is not None:
                reach = inverse @ hidden.rows_of(precision)  # (K, P, U, D)
                width = torch.where(seen[group.rows[:, 0]], blur.double(), 0)  # (P, D)
                less = less + (reach.square().sum(2) * width).sum(2, keepdim=True)
            more = 2 * inverse.diagonal(dim1=2, dim2=3).log().sum(2, keepdim=True)
            square[:, group.rows[group.used]] -= (less + more)[:, group.used]
        return -(square + size).T / 2 - self.volume(seen)

    def apart(self, y: Tensor, seen: Tensor) -> Tensor:
        """Rows less each mean, 0 at missing entries, (K, B, D)."""
        return torch.where(seen, y - self.mean.double()[:, None], 0)

    def statistics(self, x: Tensor, seen: Tensor, weight: Tensor) -> Statistics:
        y, weight = self.standard(x), weight.double()
        if bool(seen.all()):
            return (weight.sum(0), *complete_statistics(y, weight, self.blur.double()))
        whiten, blur = invert(self.root.double()), self.blur.double()
        precision = whiten.mT @ whiten
        slope = self.apart(y, seen) @ precision  # (K, B, D)
        full = torch.where(seen, y, self.mean.double()[:, None])  # with expected entries
        left = torch.diag_embed(blur * (weight.T @ seen.double()))  # covariances, (K, D, D)
        for group in pattern_groups(seen, self.root.numel()):
            hidden = group.hidden()
            if not hidden.count:
                continue
            inverse = invert(hidden.factor(precision))
            spread = torch.where(hidden.pairs, inverse.mT @ inverse, 0)  # (K, P, U, U)
            known = hidden.entries(slope[:, group.rows]) @ spread  # (K, P, n, U)
            chosen = group.rows[group.used]
            index = hidden.index[:, None].expand(*group.rows.shape, -1)[group.used]
            full[:, chosen] = full[:, chosen].scatter_add(
                2, index.expand(len(full), -1, -1), -known[:, group.used]
            )
            own = torch.where(group.used, weight.T[:, group.rows], 0).sum(2)[..., None, None]
            if self.is_blurred:  # (P_uu^-1 P_uo) blur (P_uu^-1 P_uo)^T and its other blocks
                width = torch.where(seen[group.rows[:, 0]], blur, 0)[:, None]  # (P, 1, D)
                reach = -spread @ hidden.rows_of(precision)  # (K, P, U, D)
                beside = (own * reach * width).flatten(1, 2)
                across = torch.zeros_like(left).index_add_(1, hidden.index.flatten(), beside)
                left += across + across.mT
                spread = spread + (reach * width) @ reach.mT
            cells = hidden.index[..., None] * y.shape[1] + hidden.index[:, None]  # (P, U, U)
            left.flatten(1).index_add_(1, cells.flatten(), (own * spread).flatten(1))
        weighed = full * weight.T[..., None]
        return weight.sum(0), weighed.sum(1), weighed.mT @ full + left

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
            factor = group.factor(root, own)  # (P, D, D)
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
    member = pattern_of(seen)
    groups = member.argsort(stable=True).split(member.bincount().tolist())
    for rows in groups:
        pattern = seen[rows[0]]
        yield rows, pattern.nonzero()[:, 0], (~pattern).nonzero()[:, 0]


def pattern_of(seen: Tensor, which: Tensor | None = None) -> Tensor:
    """The number of each row's pattern among the distinct ones of `which` (B,) and seen (B, D) in
    lexicographic order, (B,). Bits are packed, since sorting whole rows is slow."""
    member = torch.zeros(len(seen), dtype=torch.long, device=seen.device)
    member = member if which is None else which
    for some in seen.double().split(PACKED_BITS, 1):
        power = torch.arange(some.shape[1], device=seen.device).flip(0).double()
        code = (some @ power.exp2()).unique(return_inverse=True)[1]
        member = (member * len(seen) + code).unique(return_inverse=True)[1]
    return member


@dataclass(frozen=True)
class PatternGroup:
    """P missing patterns of D entries, and up to n rows of each; entries in `order` have the
    observed ones first."""

    rows: Tensor  # (P, n)
    used: Tensor  # (P, n): false where a pattern has fewer rows
    order: Tensor  # (P, D)
    here: Tensor  # (P, D): whether the entry in that place of the order is observed

    def hidden(self) -> HiddenEntries:
        """The missing entries of each pattern."""
        count = int((~self.here).sum(1).max())
        first = self.here.shape[1] - count
        return HiddenEntries(count, self.order[:, first:], ~self.here[:, first:])

    def observed(self, y: Tensor) -> Tensor:
        """The observed entries of the rows, 0 for others, (P, n, D)."""
        order = self.order[:, None].expand(*self.rows.shape, -1)
        return torch.where(self.here[:, None], y[self.rows].take_along_dim(order, 2), 0)

    def factor(self, root: Tensor, which: Tensor) -> Tensor:
        """The Cholesky factor of a covariance root root^T for each pattern with its entries in
        this order, (P, D, D)."""
        rows = root[which].take_along_dim(self.order[..., None], 1)
        if bool((self.order == torch.arange(root.shape[1], device=root.device)).all()):
            return rows
        return torch.linalg.cholesky(rows @ rows.mT)


@dataclass(frozen=True)
class HiddenEntries:
    """The missing entries of P patterns, padded to `count` by observed ones."""

    count: int
    index: Tensor  # (P, U)
    used: Tensor  # (P, U): false where it is padded

    @property
    def pairs(self) -> Tensor:  # (P, U, U)
        return self.used[..., None] & self.used[:, None]

    def entries(self, table: Tensor) -> Tensor:
        """(K, P, n, D) -> (K, P, n, U), 0 where it is padded."""
        index = self.index[:, None].expand(*table.shape[:3], -1)
        return torch.where(self.used[:, None], table.gather(3, index), 0)

    def rows_of(self, matrix: Tensor) -> Tensor:
        """(K, D, D) -> (K, P, U, D), 0 where it is padded."""
        return torch.where(self.used[..., None], matrix[:, self.index], 0)

    def factor(self, matrix: Tensor) -> Tensor:
        """Cholesky factors of the blocks (K, P, U, U) of matrices (K, D, D); 1 where padded."""
        block = matrix[:, self.index[..., None], self.index[:, None]]
        eye = torch.eye(self.count, dtype=matrix.dtype, device=matrix.device)
        return torch.linalg.cholesky(torch.where(self.pairs, block, eye))


def pattern_groups(
    seen: Tensor, elements: int, which: Tensor | None = None
) -> Iterator[PatternGroup]:
    """The rows (B, D) by the pattern of their observed entries, and by `which` (B,); as many
    patterns at once as `elements` each allow. Patterns of about as many rows go together, those
    with the fewest observed entries first."""
    if is_exporting() and bool((seen == seen[:1]).all()):
        rows = torch.arange(len(seen), device=seen.device)[None]
        order = (~seen[:1]).long().argsort(dim=1, stable=True)
        yield PatternGroup(rows, torch.ones_like(rows).bool(), order, seen[:1].gather(1, order))
        return
    member = pattern_of(seen, which)
    sizes, by_pattern = member.bincount(), member.argsort(stable=True)
    begins = sizes.cumsum(0) - sizes
    patterns = seen[by_pattern[begins]]
    order = (~patterns).long().argsort(dim=1, stable=True)
    exponent = sizes.double().log2().ceil().long()
    for power in exponent.unique().tolist():
        mine = (exponent == power).nonzero()[:, 0]
        mine = mine[patterns[mine].sum(1).argsort(stable=True)]
        for some in mine.split(max(MAX_GROUP_ELEMENTS // max(elements, 1), 1)):
            slots = torch.arange(int(sizes[some].max()), device=seen.device)
            used = slots < sizes[some, None]
            rows = by_pattern[begins[some, None] + torch.where(used, slots, 0)]
            here = patterns[some].take_along_dim(order[some], 1)
            yield PatternGroup(rows, used, order[some], here)
