"""Mixture of Gaussians or of independent entries, fitted by EM

Each step is one pass of EM over all training rows (Dempster, Laird and Rubin, 1977): the posterior
of the components given the observed entries of a row, then a weighted fit of the components. The
sum of the two logged terms, negative log-likelihood and negative log-prior per row, never rises.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...solve.k_means import k_means, nearest_centre
from ._base import (
    MAX_BATCH_ELEMENTS,
    ClosedFormModel,
    DistributionSet,
    FlatRows,
    Statistics,
    add_statistics,
    kinds_of,
)
from ._categorical import CategoricalTables
from ._gaussians import (
    MAX_COVARIANCE_ELEMENTS,
    DiagonalGaussians,
    FullGaussians,
    GaussianSet,
    MixedGaussians,
)


class MixtureModel(ClosedFormModel):
    r"""$p(x) = \sum_k w_k\, p_k(x)$.

    If every entry is real, $p_k$ is a Gaussian with a full or a diagonal covariance, times tables
    of which cells are empty or on an atom; otherwise a product of tables,
    $p_k(x) = \prod_i P_{ki}(c_i)\, p(x_i \mid c_i)$, where $c_i$ is the value of entry i or the
    histogram bin of a number.
    """

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = set()

    class Config(BaseConfig):
        tag = "model/baseline.mixture"
        components: Annotated[int, Range(1)] = 20
        """Number of components."""
        covariance: Literal["full", "diagonal"] = "full"
        """Covariance of a component if every entry is real."""
        shrink: Annotated[float, Range(0, open=True)] = 1.0
        """Shrinkage: pseudo-rows of uncorrelated entries added to every covariance; their variance
        is that of the training split, less with more components."""
        bins: Annotated[int, Range(4)] = 32
        """Bins of a number's histogram if some entry is not real."""
        pseudo: Annotated[float, Range(0, open=True)] = 0.5
        """Pseudo-count of every component, and mean pseudo-count of a value or bin in its tables,
        in proportion to the frequencies of all rows."""

    config: Config
    log_weight: Tensor  # (K,)
    initialised: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.distributions = build_components(config, space)
        self.width = self.distributions.width
        self.register_buffer("log_weight", torch.zeros(config.components).log_softmax(0))
        self.register_buffer("initialised", torch.tensor(False))

    def loss(self, batch: Batch) -> Losses:
        """-log p(x) = -log sum_k w_k p_k(x) of the observed entries; `fit_rows` minimises it by
        EM, up to the prior."""
        return {"nll": -self.log_densities(self.to_rows(batch))}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """k ~ w, then x ~ p_k(x)."""
        rows = self.unobserved_rows(n, given)
        return self.to_events(self.sample_missing(rows, options, generator))

    def fit_rows(self, batch: Batch) -> Losses:
        """One pass of EM."""
        rows = self.to_rows(batch)
        if not self.initialised:
            self.initialise(rows)
        prior = self.distributions.penalty() - self.config.pseudo * self.log_weight.double().sum()
        values: list[Tensor] = []
        statistics: Statistics = ()
        for part in rows.split(self.width):
            joint = self.joint(part)
            values.append(joint.logsumexp(1))
            # Clamped, since subnormal numbers are slow.
            more = self.statistics(part, (joint - values[-1][:, None]).clamp_min(-80).exp())
            statistics = add_statistics(statistics, more) if statistics else more
        self.update(statistics)
        return {"nll": -torch.cat(values).to(rows.x), "prior": (prior / len(rows)).to(rows.x)}

    def joint(self, rows: FlatRows) -> Tensor:
        """log w_k p_k of the observed entries of each row, (B, K)."""
        log_p = self.distributions.log_prob(rows.x, rows.seen, rows.present)
        return log_p + self.log_weight

    def statistics(self, rows: FlatRows, weight: Tensor) -> Statistics:
        """Statistics of rows with responsibilities (B, K)."""
        return (weight.double().sum(0), *self.distributions.statistics(rows.x, rows.seen, weight))

    def update(self, statistics: Statistics) -> None:
        weight = statistics[0] + self.config.pseudo
        self.log_weight.copy_((weight / weight.sum()).log())
        self.distributions.update(statistics[1:])

    def initialise(self, rows: FlatRows) -> None:
        """Initialise the components by clusters of some of the rows."""
        self.initialised.fill_(True)
        self.distributions.fit(rows)
        some = torch.randperm(len(rows))[: max(2 * MAX_BATCH_ELEMENTS // max(self.width, 1), 1000)]
        few = rows[some.to(rows.x.device)]
        points = self.distributions.features(few.x, few.seen)
        nearest = nearest_centre(points, k_means(points, self.config.components))
        self.update(self.statistics(few, one_hot(nearest, self.config.components)))

    def log_density(self, rows: FlatRows) -> Tensor:
        return self.joint(rows).logsumexp(1).to(rows.x)

    def sample_missing(
        self, rows: FlatRows, options: BaseConfig | None, generator: Generator | None
    ) -> Tensor:
        joint = self.joint(rows)
        u = torch.rand(joint.shape, generator=generator, dtype=rows.x.dtype, device=rows.x.device)
        which = (joint - (-u.log()).log()).argmax(1)  # Gumbel noise: the argmax is a sample
        return self.distributions.sample(rows, which, generator).to(rows.x)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        return Defaults(
            default_config(space), TrainConfig(max_steps=200, eval_every=1, patience=10)
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(components=2, bins=4)


def default_config(space: Space) -> MixtureModel.Config:
    """As many components as there are rows to fit their parameters."""
    if set(kinds_of(space)) == {"real"}:
        full = space.dims <= 64
        share = 5 * space.dims if full else 50
        return MixtureModel.Config(
            components=min(max(space.rows // share, 2), 32),
            covariance="full" if full else "diagonal",
        )
    bins = min(max(round(1.2 * space.rows ** (1 / 3)), 4), 64)
    return MixtureModel.Config(components=min(max(space.rows // 100, 2), 100), bins=bins)


def build_components(config: MixtureModel.Config, space: Space) -> DistributionSet:
    size = config.components
    if set(kinds_of(space)) != {"real"}:
        return CategoricalTables(space, size, config.bins, config.pseudo)
    if config.covariance == "full" and size * space.dims**2 > MAX_COVARIANCE_ELEMENTS:
        raise UsageError(
            f"components={size} with full covariances of {space.dims} entries hold "
            f"over {MAX_COVARIANCE_ELEMENTS} numbers; use covariance=diagonal or fewer components"
        )
    kind = FullGaussians if config.covariance == "full" else DiagonalGaussians

    def build(numbers: Space) -> GaussianSet:
        # K components that share the space evenly are narrower by a factor K^(1/D).
        return kind(numbers, size, config.shrink, size ** (-2 / space.dims))

    if space.is_plain:
        return build(space)
    return MixedGaussians(space, build, size, config.pseudo)
