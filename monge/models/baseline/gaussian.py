"""Gaussian with full covariance

Captures means, variances and correlations. Missing entries are integrated out; with missing
values in training the fit is by EM (Dempster, Laird and Rubin, 1977), otherwise in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Annotated, cast

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.limits import label_combinations
from ...core.model import Defaults, Losses, is_exporting
from ...core.rng import keyed_uniform, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._base import (
    ClosedFormModel,
    FlatRows,
    TreeOfCodes,
    add_statistics,
    kinds_of,
)
from ._categorical import CategoricalTables
from ._gaussians import (
    MAX_COVARIANCE_ELEMENTS,
    FullGaussians,
    NumberColumns,
    cell_widths,
    invert,
    missing_patterns,
    reorder,
    state_space,
)

MAX_NAMES = 4096
"""Names of all columns together; pairs of them are counted."""


class Gaussian(ClosedFormModel):
    r"""$p(x \mid y) = N(x; \mu_y, \Sigma_y)$, $\Sigma = (S + r V) / (n + r)$: the scatter S of n
    rows with label y, and r pseudo-rows of uncorrelated entries with the training variances V.

    A whole value is the cell that contains a normal variable: $P(x) = \int_{[x, x+1)} N(v) dv$;
    the end cells of levels reach to infinity. Then the likelihood is the bound
    $E_u \log N(x + u) \le \log P(x)$ with u uniform, in closed form. Columns that are
    labels are modelled independently of the Gaussian, each by its frequencies.

    In a table with empty cells, atoms or bounds, $p(x) = P(s, l)\, N(t_{i: s_i = 0}) \prod_i
    |dt_i/dx_i|$: a Chow-Liu tree of the states s of the cells and of the labels l, times the
    Gaussian of the numbers that are present, in unbounded coordinates t.
    """

    events = {"real", "binary", "levels", "counts", "columns"}
    givens = {"label"}

    class Config(BaseConfig):
        tag = "model/baseline.gaussian"
        shrink: Annotated[float, Range(0, open=True)] = 1.0
        """Weight of uncorrelated entries with the variances of the training split, in rows."""
        pseudo: Annotated[float, Range(0, open=True)] = 0.5
        """Pseudo-count of every value of a column of labels."""

    class SamplingConfig(BaseConfig):
        sweeps: Annotated[int, Range(1)] = 8
        """Completion: Gibbs sweeps over the positions of whole values inside their cells."""

    class LikelihoodConfig(BaseConfig):
        samples: Annotated[int, Range(0)] = 0
        """Whole values: points per cell that tighten the bound by importance weighting; 0 takes
        the expectation in closed form."""

    config: Config
    numbers: Tensor  # (D,): the entries that are numbers
    names: Tensor  # (E,): those that are labels
    whole: Tensor  # (D,): 1 where values are cells
    low: Tensor  # (D,): the value whose cell has no lower end
    high: Tensor  # (D,): the value whose cell has no upper end

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        groups, parts, labels = label_combinations(space), *split_columns(space)
        self.columns = NumberColumns(parts)
        self.distributions = nn.ModuleList(
            FullGaussians(self.columns.plain, 1, config.shrink) for _ in range(groups)
        )
        self.tables: CategoricalTables | GroupTrees
        named = labels if space.is_plain else add_states(labels, parts)
        if space.is_plain or sum(part.size for part in named.columns) > MAX_NAMES:
            self.tables = CategoricalTables(named, groups, 4, config.pseudo)
        else:
            self.tables = GroupTrees(named, groups)
        self.width = space.dims // 4
        is_label = torch.tensor([kind == "label" for kind in kinds_of(space)])
        ends = torch.tensor([value_range(part) for part in parts.columns]).reshape(-1, 2)
        fixed = {
            "numbers": (~is_label).nonzero()[:, 0],
            "names": is_label.nonzero()[:, 0],
            "whole": cell_widths(parts),
            "low": ends[:, 0].clone(),
            "high": ends[:, 1].clone(),
        }
        for name, value in fixed.items():
            self.register_buffer(name, value, persistent=False)

    @property
    def completion(self) -> str:  # type: ignore[override]
        if not bool(self.whole.any()):
            return ClosedFormModel.completion
        return (
            "sampled given the observed values, with whole values at points of their cells that "
            "Gibbs sweeps find (sample.sweeps)"
        )

    def grouped(self, rows: FlatRows) -> Iterator[tuple[FullGaussians, Tensor]]:
        """The Gaussian of each combination of labels, with its rows."""
        for k in rows.group.unique().tolist():
            yield cast(FullGaussians, self.distributions[k]), (rows.group == k).nonzero()[:, 0]

    def loss(self, batch: Batch) -> Losses:
        """-log N(x; mu_y, Sigma_y) of the observed entries, or its bound for whole values;
        `fit_rows` minimises it in closed form or by EM, up to the prior."""
        return {"nll": -self.log_densities(self.to_rows(batch))}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x ~ N(mu_y, Sigma_y), rounded down to cells if values are whole; labels from tables."""
        rows = self.unobserved_rows(n, given)
        return self.to_events(self.sample_missing(rows, options, generator))

    def fit_rows(self, batch: Batch) -> Losses:
        rows = self.to_rows(batch)
        states, numbers, _ = self.split(rows)
        self.tables.fit(states)
        prior = torch.zeros((), dtype=torch.float64, device=rows.x.device)
        for gaussian, mine in self.grouped(numbers):
            gaussian.update(
                reduce(
                    add_statistics,
                    (
                        gaussian.statistics(
                            part.x + self.whole / 2, part.seen, torch.ones_like(part.x[:, :1])
                        )
                        for part in numbers[mine].split(self.width)
                    ),
                )
            )
            prior += gaussian.penalty()
        return {"nll": -self.log_densities(rows), "prior": (prior / len(rows)).to(rows.x)}

    def split(self, rows: FlatRows) -> tuple[FlatRows, FlatRows, Tensor]:
        """Labels, and the states of the numbers if they have several; the numbers in the
        coordinates of the Gaussian, `seen` where they are; and their log-slopes, (B,)."""
        names, numbers = rows.only(self.names), rows.only(self.numbers)
        if self.space.is_plain:
            return names, numbers, torch.zeros_like(rows.x[:, 0])
        state, t, slope = self.columns(numbers.x)
        states = FlatRows(
            torch.cat([names.x, state.to(names.x)], 1),
            torch.cat([names.seen, numbers.seen], 1),
            rows.group,
            rows.present,
        )
        numbers = replace(numbers, x=t, seen=numbers.seen & (state == 0))
        return states, numbers, torch.where(numbers.seen, slope, 0).sum(1)

    def log_density(self, rows: FlatRows) -> Tensor:
        return self.value(rows, self.whole / 2, FullGaussians.expected)

    def value(self, rows: FlatRows, place: Tensor, score: Callable[..., Tensor]) -> Tensor:
        """log p of the observed labels and states plus `score` of the numbers at a `place` of
        their cells, (D,) or (B, D)."""
        states, numbers, slopes = self.split(rows)
        value, points = self.tables.log_prob_of_group(states) + slopes, numbers.x + place
        if is_exporting():
            each = [score(g, points, numbers.seen)[:, 0] for g in self.distributions]
            return value + torch.stack(each, 1).gather(1, rows.group[:, None])[:, 0].to(value)
        for gaussian, mine in self.grouped(rows):
            value[mine] += score(gaussian, points[mine], numbers.seen[mine])[:, 0].to(value)
        return value

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch = as_batch(batch)
        rows, samples = (
            self.to_rows(batch),
            cast(Gaussian.LikelihoodConfig, options or self.LikelihoodConfig()).samples,
        )
        if not bool(self.whole.any()):
            return Likelihood(self.log_densities(rows), "exact")
        if not samples:
            return Likelihood(self.log_densities(rows), "bound")
        u = keyed_uniform(batch.rows, (samples, len(self.numbers)), seed_of(generator)).to(rows.x)
        values = [
            self.value(rows, place * self.whole, FullGaussians.log_prob) for place in u.unbind(1)
        ]
        return Likelihood(torch.stack(values).logsumexp(0) - math.log(samples), "bound")

    def sample_missing(
        self, rows: FlatRows, options: BaseConfig | None, generator: Generator | None
    ) -> Tensor:
        sweeps = cast(Gaussian.SamplingConfig, options or self.SamplingConfig()).sweeps
        states, numbers, _ = self.split(rows)
        values = torch.empty_like(numbers.x, dtype=torch.float64)
        for gaussian, mine in self.grouped(numbers):
            part = numbers[mine]
            points = self.sample_cells(gaussian, part, sweeps, generator)
            which = torch.zeros_like(part.group)
            values[mine] = gaussian.sample(replace(part, x=points), which, generator)
        cells = values.floor().maximum(self.low).minimum(self.high)
        values = torch.where(self.whole > 0, cells, values)
        x, named = torch.empty_like(rows.x), len(self.names)
        sampled = self.tables.sample(states, states.group, generator)
        x[:, self.names] = sampled[:, :named]
        if not self.space.is_plain:
            values = self.columns.inverse(values.to(x), sampled[:, named:].long())
        x[:, self.numbers] = values.to(x)
        return x

    def sample_cells(
        self, gaussian: FullGaussians, rows: FlatRows, sweeps: int, generator: Generator | None
    ) -> Tensor:
        """Points of the cells of the observed values given each other, by Gibbs sweeps, (B, D)."""
        middle = rows.x.double() + self.whole / 2
        lower = gaussian.standard(rows.x).masked_fill(rows.x == self.low, -math.inf)
        upper = gaussian.standard(rows.x + 1.0).masked_fill(rows.x == self.high, math.inf)
        y = gaussian.standard(middle)
        for some, o, u in missing_patterns(rows.seen):
            cells = (self.whole[o] > 0).nonzero()[:, 0]
            if not len(cells):
                continue
            inverse = invert(
                reorder(gaussian.root.double(), torch.cat([o, u]))[0, : len(o), : len(o)]
            )
            box, mean = (some[:, None], o), gaussian.mean[0, o].double()
            y[box] = (
                gibbs(
                    y[box] - mean,
                    inverse.mT @ inverse,
                    lower[box] - mean,
                    upper[box] - mean,
                    cells,
                    sweeps,
                    generator,
                )
                + mean
            )
        return gaussian.centre.double() + gaussian.scale.double() * y

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if set(kinds_of(space)) == {"label"}:
            return f"a Gaussian needs numbers, found {space}; use baseline.chow_liu"
        if label_combinations(space) * space.dims**2 > MAX_COVARIANCE_ELEMENTS:
            return (
                f"{label_combinations(space)} covariances of {space.dims} entries hold more than "
                f"{MAX_COVARIANCE_ELEMENTS} numbers; use baseline.mixture"
            )
        return super().unsupported_reason(space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few = space.rows < 4 * space.dims * label_combinations(space)
        absent = space.missing or any(part.optional or part.atoms for part in space.columns)
        train_config = TrainConfig(max_steps=50 if absent else 1, eval_every=1, patience=3)
        return Defaults(cls.Config(shrink=max(space.dims / 8, 1.0) if few else 1.0), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config()


class StateTree(TreeOfCodes):
    """A Chow-Liu tree of columns of labels."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.build_tree(space, bins=4, pseudo=0.1)


class GroupTrees(nn.Module):
    """A tree of the same columns for each group of rows."""

    def __init__(self, space: Space, groups: int) -> None:
        super().__init__()
        self.trees = nn.ModuleList(StateTree(space) for _ in range(groups))

    def grouped(self, rows: FlatRows) -> Iterator[tuple[StateTree, Tensor]]:
        for k in rows.group.unique().tolist():
            yield cast(StateTree, self.trees[k]), (rows.group == k).nonzero()[:, 0]

    def fit(self, rows: FlatRows) -> None:
        for tree, mine in self.grouped(rows):
            tree.fit_tree(rows[mine])

    def log_prob_of_group(self, rows: FlatRows) -> Tensor:
        value = torch.zeros_like(rows.x[:, 0])
        for tree, mine in self.grouped(rows):
            pieces = rows[mine].split(tree.width)
            value[mine] = torch.cat([tree.log_density(piece) for piece in pieces])
        return value

    def sample(self, rows: FlatRows, which: Tensor, generator: Generator | None) -> Tensor:
        """x (B, D) with missing entries sampled from the tree of its group given the rest."""
        x = rows.x.clone()
        for tree, mine in self.grouped(rows):
            part = rows[mine]
            x[mine] = torch.where(part.seen, part.x, tree.sample_missing(part, None, generator))
        return x


def split_columns(space: Space) -> tuple[Space, Space]:
    """The entries that are numbers and those that are labels, each as columns."""
    parts = space.parts
    labels = tuple(part for part in parts if part.kind == "label")
    numbers = tuple(part for part in parts if part.kind != "label")
    return (
        Space(kind="columns", shape=(len(numbers),), columns=numbers),
        Space(kind="columns", shape=(len(labels),), columns=labels),
    )


def add_states(labels: Space, numbers: Space) -> Space:
    """Columns of labels, and the states of columns of numbers."""
    columns = labels.columns + state_space(numbers.columns).columns
    return Space(kind="columns", shape=(len(columns),), columns=columns)


def value_range(part: Space) -> tuple[float, float]:
    """The first and the last value, whose cells are unbounded."""
    if part.kind in ("binary", "levels"):
        return 0.0, (2 if part.kind == "binary" else part.size) - 1.0
    if part.kind != "counts":
        return -math.inf, math.inf
    low = -math.inf if part.lower is None else part.lower
    return low, math.inf if part.upper is None else part.upper


def gibbs(
    y: Tensor,
    precision: Tensor,
    lower: Tensor,
    upper: Tensor,
    cells: Tensor,
    sweeps: int,
    generator: Generator | None,
) -> Tensor:
    """Resample the columns `cells` of y ~ N(0, precision^-1) one by one between their limits."""
    shape = (sweeps, len(cells), len(y))
    noise = torch.rand(shape, generator=generator, dtype=y.dtype, device=y.device)
    scale = precision.diagonal().rsqrt()
    for sweep in noise:
        for j, u in zip(cells.tolist(), sweep, strict=True):
            mean = y[:, j] - y @ precision[j] * scale[j] ** 2
            low, high = (lower[:, j] - mean) / scale[j], (upper[:, j] - mean) / scale[j]
            y[:, j] = mean + scale[j] * truncated_normal(low, high, u)
    return y


def truncated_normal(low: Tensor, high: Tensor, u: Tensor) -> Tensor:
    """A standard normal between two limits from a uniform u, on the side of zero where the
    distribution function does not round to one."""
    flip = torch.where(low > 0, -1.0, 1.0).to(u)
    low, high = torch.minimum(flip * low, flip * high), torch.maximum(flip * low, flip * high)
    a, b = torch.special.ndtr(low), torch.special.ndtr(high)
    return flip * torch.special.ndtri(a + u * (b - a)).maximum(low).minimum(high)
