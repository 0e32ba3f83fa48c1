"""Mixture of products or of normal laws, fitted by EM

Each step is one pass of EM over all training rows (Dempster, Laird and Rubin, 1977): the posterior
of the components given what was seen of a row, then the components anew from rows weighed by it.
The sum of the two logged terms, - log likelihood and - log prior a row, never rises.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._base import CHUNK, Laws, Reference, Rows, Sums, add, kinds_of
from ._categorical import Tables
from ._gaussians import NUMBERS, Diagonal, Full


class Mixture(Reference):
    r"""$p(x) = \sum_k w_k\, p_k(x)$.

    Where every entry is real, $p_k$ is a normal law with a full or a diagonal covariance;
    otherwise a product of tables, $p_k(x) = \prod_i P_{ki}(c_i)\, p(x_i \mid c_i)$, where $c_i$ is
    the value of entry i or the run of the histogram that a number falls into.
    """

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = set()

    class Config(BaseConfig):
        tag = "model/baseline.mixture"
        components: Annotated[int, Range(1)] = 20
        """How many components."""
        covariance: Literal["full", "diagonal"] = "full"
        """Covariance of a component, where every entry is real."""
        shrink: Annotated[float, Range(0, open=True)] = 1.0
        """Rows of uncorrelated entries that every covariance is shrunk by; their variance is the
        training split's, less as more components share the space."""
        bins: Annotated[int, Range(4)] = 32
        """Runs of a number's histogram, where some entry is not real."""
        pseudo: Annotated[float, Range(0, open=True)] = 0.5
        """Pseudo-count of every component, and of a value or run in its tables, on average: the
        rows that are added to a table follow the frequencies of all rows."""

    config: Config
    log_weight: Tensor  # (K,)
    begun: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.laws = laws_for(config, space)
        self.width = self.laws.width
        self.register_buffer("log_weight", torch.zeros(config.components).log_softmax(0))
        self.register_buffer("begun", torch.tensor(False))

    def count(self, batch: Batch) -> Losses:
        rows = self.rows(batch)
        if not self.begun:
            self.start(rows)
        prior = self.laws.penalty() - self.config.pseudo * self.log_weight.double().sum()
        values: list[Tensor] = []
        sums: Sums = ()
        for part in rows.split(self.width):
            joint = self.joint(part)
            values.append(joint.logsumexp(1))
            # The limit keeps subnormal numbers, which are slow, out of the sums.
            more = self.sums(part, (joint - values[-1][:, None]).clamp_min(-80).exp())
            sums = add(sums, more) if sums else more
        self.renew(sums)
        return {"nll": -torch.cat(values).to(rows.x), "prior": (prior / len(rows)).to(rows.x)}

    def joint(self, rows: Rows) -> Tensor:
        """log w_k p_k of what was seen of each row, (B, K)."""
        return self.laws.log_prob(rows.x, rows.seen) + self.log_weight

    def sums(self, rows: Rows, weight: Tensor) -> Sums:
        """What a pass adds up over rows that belong to the components by weights (B, K)."""
        return (weight.double().sum(0), *self.laws.sums(rows.x, rows.seen, weight))

    def renew(self, sums: Sums) -> None:
        weight = sums[0] + self.config.pseudo
        self.log_weight.copy_((weight / weight.sum()).log())
        self.laws.update(sums[1:])

    def start(self, rows: Rows) -> None:
        """First components: the clusters of some of the rows."""
        self.begun.fill_(True)
        if isinstance(self.laws, Tables):
            self.laws.fit(rows)
        some = torch.randperm(len(rows))[: max(2 * CHUNK // max(self.width, 1), 1000)]
        few = rows[some.to(rows.x.device)]
        nearest = cluster(self.laws.features(few.x, few.seen), self.config.components)
        self.renew(self.sums(few, one_hot(nearest, self.config.components)))

    def density(self, rows: Rows) -> Tensor:
        return self.joint(rows).logsumexp(1).to(rows.x)

    def draw(self, rows: Rows, options: BaseConfig | None, generator: Generator | None) -> Tensor:
        joint = self.joint(rows)
        u = torch.rand(joint.shape, generator=generator, dtype=rows.x.dtype, device=rows.x.device)
        which = (joint - (-u.log()).log()).argmax(1)  # Gumbel noise: the largest is a draw
        return self.laws.draw(rows.x, rows.seen, which, generator).to(rows.x)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        return Defaults(config_for(space), TrainConfig(max_steps=200, eval_every=1, patience=10))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(components=2, bins=4)


def config_for(space: Space) -> Mixture.Config:
    """As many components as have rows enough for their parameters."""
    if set(kinds_of(space)) == {"real"}:
        full = space.dims <= 64
        share = 5 * space.dims if full else 50
        return Mixture.Config(
            components=min(max(space.rows // share, 2), 32),
            covariance="full" if full else "diagonal",
        )
    bins = min(max(round(1.2 * space.rows ** (1 / 3)), 4), 64)
    return Mixture.Config(components=min(max(space.rows // 100, 2), 100), bins=bins)


def laws_for(config: Mixture.Config, space: Space) -> Laws:
    size = config.components
    if set(kinds_of(space)) != {"real"}:
        return Tables(space, size, config.bins, config.pseudo)
    if config.covariance == "full" and size * space.dims**2 > NUMBERS:
        raise UsageError(
            f"components={size} with full covariances of {space.dims} entries hold "
            f"over {NUMBERS} numbers; take covariance=diagonal or fewer components"
        )
    kind = Full if config.covariance == "full" else Diagonal
    # Components that share the space evenly are narrower by the D-th root of their number.
    return kind(space, size, config.shrink, size ** (-2 / space.dims))


def cluster(points: Tensor, size: int, sweeps: int = 10) -> Tensor:
    """The cluster of each of the points (N, F): k-means from spread-out seeds (Arthur and
    Vassilvitskii, 2007)."""
    square = points.square().sum(1, keepdim=True)

    def distance(centres: Tensor) -> Tensor:
        return (square - 2 * points @ centres.T + centres.square().sum(1)).clamp_min(0)  # (N, K)

    centres = points[torch.randint(len(points), (1,))]
    nearest = distance(centres)[:, 0]
    for _ in range(size - 1):
        seed = points[torch.multinomial(nearest + 1e-9, 1)]
        centres = torch.cat([centres, seed])
        nearest = nearest.minimum(distance(seed)[:, 0])
    for _ in range(sweeps):
        member = one_hot(distance(centres).argmin(1), size).to(points)  # (N, K)
        count = member.sum(0)[:, None]
        centres = torch.where(count > 0, member.T @ points / count.clamp_min(1), centres)
    return distance(centres).argmin(1)
