"""Normal law with full covariance

What means, spreads and correlations tell, and nothing more. Hidden entries are integrated out;
with some hidden in training the fit is by EM (Dempster, Laird and Rubin, 1977), without it is
closed in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Annotated, cast

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.rng import keyed_uniform, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._base import Reference, Rows, add, groups_of, kinds_of
from ._categorical import Tables
from ._gaussians import NUMBERS, Full, cells_of, invert, patterns, reorder


class Gaussian(Reference):
    r"""$p(x \mid y) = N(x; \mu_y, \Sigma_y)$, $\Sigma = (S + r V) / (n + r)$: the scatter S of n
    rows with label y, and r rows more with the variances V of the training split, uncorrelated.

    An entry with whole values is the cell that a normal variable falls into:
    $P(x) = \int_{[x, x+1)} N(v) dv$, the end cells of levels reaching to infinity. Then the score
    is the bound $E_u \log N(x + u) \le \log P(x)$ with u uniform, in closed form. Columns that are
    labels have no place in a normal law and stand beside it, each with its frequencies.
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
        """Completion: Gibbs sweeps over the places of whole values inside their cells."""

    class LikelihoodConfig(BaseConfig):
        samples: Annotated[int, Range(0)] = 0
        """Whole values: points a cell that tighten the bound by importance weights; 0 takes the
        expectation in closed form."""

    config: Config
    numbers: Tensor  # (D,): the entries that are numbers
    names: Tensor  # (E,): those that are labels
    whole: Tensor  # (D,): 1 where values are cells
    low: Tensor  # (D,): the value whose cell has no lower end
    high: Tensor  # (D,): the value whose cell has no upper end

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        groups, parts, labels = groups_of(space), *divide(space)
        self.laws = nn.ModuleList(Full(parts, 1, config.shrink) for _ in range(groups))
        self.tables = Tables(labels, groups, 4, config.pseudo)
        self.width = space.dims // 4
        is_label = torch.tensor([kind == "label" for kind in kinds_of(space)])
        ends = torch.tensor([ends_of(part) for part in parts.columns]).reshape(-1, 2)
        fixed = {
            "numbers": (~is_label).nonzero()[:, 0],
            "names": is_label.nonzero()[:, 0],
            "whole": cells_of(parts),
            "low": ends[:, 0].clone(),
            "high": ends[:, 1].clone(),
        }
        for name, value in fixed.items():
            self.register_buffer(name, value, persistent=False)

    def grouped(self, rows: Rows) -> Iterator[tuple[Full, Tensor]]:
        """The law of each label given, with the rows it is asked about."""
        for k in rows.group.unique().tolist():
            yield cast(Full, self.laws[k]), (rows.group == k).nonzero()[:, 0]

    def count(self, batch: Batch) -> Losses:
        rows = self.rows(batch)
        self.tables.fit(rows.only(self.names))
        prior = torch.zeros((), dtype=torch.float64, device=rows.x.device)
        numbers = rows.only(self.numbers)
        for law, mine in self.grouped(numbers):
            law.update(
                reduce(
                    add,
                    (
                        law.sums(
                            part.x + self.whole / 2, part.seen, torch.ones_like(part.x[:, :1])
                        )
                        for part in numbers[mine].split(self.width)
                    ),
                )
            )
            prior += law.penalty()
        return {"nll": -self.densities(rows), "prior": (prior / len(rows)).to(rows.x)}

    def density(self, rows: Rows) -> Tensor:
        numbers = rows.only(self.numbers)
        return self.value(rows, numbers.x + self.whole / 2, Full.expected)

    def value(self, rows: Rows, points: Tensor, score: Callable[..., Tensor]) -> Tensor:
        """log p of the labels seen, and a score of the numbers at points (B, D) of their cells."""
        value, seen = self.tables.chosen(rows.only(self.names)), rows.seen[:, self.numbers]
        for law, mine in self.grouped(rows):
            value[mine] += score(law, points[mine], seen[mine])[:, 0].to(value)
        return value

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch = as_batch(batch)
        rows, samples = (
            self.rows(batch),
            cast(Gaussian.LikelihoodConfig, options or self.LikelihoodConfig()).samples,
        )
        if not bool(self.whole.any()):
            return Likelihood(self.densities(rows), "exact")
        if not samples:
            return Likelihood(self.densities(rows), "bound")
        u = keyed_uniform(batch.rows, (samples, len(self.numbers)), seed_of(generator)).to(rows.x)
        x = rows.x[:, self.numbers]
        values = [self.value(rows, x + place * self.whole, Full.log_prob) for place in u.unbind(1)]
        return Likelihood(torch.stack(values).logsumexp(0) - math.log(samples), "bound")

    def draw(self, rows: Rows, options: BaseConfig | None, generator: Generator | None) -> Tensor:
        sweeps = cast(Gaussian.SamplingConfig, options or self.SamplingConfig()).sweeps
        numbers, names = rows.only(self.numbers), rows.only(self.names)
        drawn = torch.empty_like(numbers.x, dtype=torch.float64)
        for law, mine in self.grouped(numbers):
            part = numbers[mine]
            points = self.settle(law, part, sweeps, generator)
            which = torch.zeros_like(part.group)
            drawn[mine] = law.draw(points, part.seen, which, generator)
        cells = drawn.floor().maximum(self.low).minimum(self.high)
        x = torch.empty_like(rows.x)
        x[:, self.numbers] = torch.where(self.whole > 0, cells, drawn).to(x)
        x[:, self.names] = self.tables.draw(names.x, names.seen, names.group, generator)
        return x

    def settle(self, law: Full, rows: Rows, sweeps: int, generator: Generator | None) -> Tensor:
        """Points of the cells of the seen values, given each other, by Gibbs sweeps, (B, D)."""
        middle = rows.x.double() + self.whole / 2
        lower = law.standard(rows.x).masked_fill(rows.x == self.low, -math.inf)
        upper = law.standard(rows.x + 1.0).masked_fill(rows.x == self.high, math.inf)
        y = law.standard(middle)
        for some, o, u in patterns(rows.seen):
            cells = (self.whole[o] > 0).nonzero()[:, 0]
            if not len(cells):
                continue
            inverse = invert(reorder(law.root.double(), torch.cat([o, u]))[0, : len(o), : len(o)])
            box, mean = (some[:, None], o), law.mean[0, o].double()
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
        return law.centre.double() + law.scale.double() * y

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if set(kinds_of(space)) == {"label"}:
            return f"a normal law needs numbers, got {space}; use baseline.chow_liu"
        if groups_of(space) * space.dims**2 > NUMBERS:
            return (
                f"{space.dims} entries and {groups_of(space)} laws make covariances of more "
                f"than {NUMBERS} numbers; use baseline.mixture"
            )
        return super().unsupported_reason(space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few = space.rows < 4 * space.dims * groups_of(space)
        recipe = TrainConfig(max_steps=50 if space.missing else 1, eval_every=1, patience=3)
        return Defaults(cls.Config(shrink=max(space.dims / 8, 1.0) if few else 1.0), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config()


def divide(space: Space) -> tuple[Space, Space]:
    """The entries that are numbers and those that are labels, each as columns."""
    parts = space.parts
    labels = tuple(part for part in parts if part.kind == "label")
    numbers = tuple(part for part in parts if part.kind != "label")
    return (
        Space(kind="columns", shape=(len(numbers),), columns=numbers),
        Space(kind="columns", shape=(len(labels),), columns=labels),
    )


def ends_of(part: Space) -> tuple[float, float]:
    """The first and the last value; their cells are endless."""
    size = 2 if part.kind == "binary" else part.size
    return (0.0, size - 1.0) if part.kind in ("binary", "levels") else (-math.inf, math.inf)


def gibbs(
    y: Tensor,
    precision: Tensor,
    lower: Tensor,
    upper: Tensor,
    cells: Tensor,
    sweeps: int,
    generator: Generator | None,
) -> Tensor:
    """Redraw the columns `cells` of y ~ N(0, precision^-1) in turn between their limits."""
    shape = (sweeps, len(cells), len(y))
    noise = torch.rand(shape, generator=generator, dtype=y.dtype, device=y.device)
    scale = precision.diagonal().rsqrt()
    for sweep in noise:
        for j, u in zip(cells.tolist(), sweep, strict=True):
            mean = y[:, j] - y @ precision[j] * scale[j] ** 2
            low, high = (lower[:, j] - mean) / scale[j], (upper[:, j] - mean) / scale[j]
            y[:, j] = mean + scale[j] * truncated(low, high, u)
    return y


def truncated(low: Tensor, high: Tensor, u: Tensor) -> Tensor:
    """A standard normal between two limits, by a uniform u; tails are taken on the side where the
    distribution function does not round to one."""
    flip = torch.where(low > 0, -1.0, 1.0).to(u)
    low, high = torch.minimum(flip * low, flip * high), torch.maximum(flip * low, flip * high)
    a, b = torch.special.ndtr(low), torch.special.ndtr(high)
    return flip * torch.special.ndtri(a + u * (b - a)).maximum(low).minimum(high)
