r"""Residual flow: invertible residual networks of free form, with an unbiased log-determinant

$z = x + g(x)$ in each block, g a network whose spectral norms keep its slope below one, so that
the block is invertible by fixed-point iteration (i-ResNet: Behrmann et al. 2019). All entries
change at once, no coupling or order restricts the Jacobian. Its log-determinant is exact for few
entries, else the power series cut at a random term, which is unbiased (Chen et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import Given, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.rng import derive_seed, keyed_uniform, make_generator, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.elementwise import ActNorm
from ...prob.bijections.residual import ContractiveNet, ResidualBijection, series_length
from ...prob.distributions import normal_log_prob_rows
from ...solve.jacobian_trace import mean_and_error, sample_probes
from ._base import Flow, importance_bound
from ._coupling import small_data_train_config
from ._tables import SMALLEST_TABLE_NET, TableConfig, default_table_net

MAX_EXACT_DIMS = 64
"""Entries up to which a log-likelihood is exact by default."""
MAX_EXACT_TRAINING_DIMS = 4
"""Entries up to which training uses exact log-determinants."""


class ResidualFlow(Flow):
    """p(x | given) = N(z; 0, I) prod |det(I + dg/dx)|, z by blocks x + g(x, given).

    The likelihood of reals is exact with logdet=exact (all entries of the Jacobian), and an
    unbiased estimate with a standard error over the probes with logdet=roulette. Discrete data are
    dequantised, and their likelihood is a bound. Samples are exact: each block is inverted to
    rounding.
    """

    events = {"real", "binary", "levels", "columns"}

    class Config(Flow.Config, TableConfig):
        tag = "model/flow.residual"
        blocks: Annotated[int, Range(1, MAX_LAYERS)] = 8
        """Number of residual blocks."""
        width: Annotated[int, Range(1)] = 64
        """Units of a hidden layer of a block."""
        depth: Annotated[int, Range(1, MAX_LAYERS)] = 2
        """Hidden layers of a block."""

    class LikelihoodConfig(Flow.LikelihoodConfig):
        logdet: Literal["auto", "exact", "roulette"] = "auto"
        """Log-determinant: exact, an unbiased estimate by a random number of terms of its power
        series, or exact for few entries."""
        probes: Annotated[int, Range(1)] = 8
        """roulette: random directions per row; more reduce the error."""

    config: Config

    def build_layers(self, context: int) -> Bijection:
        config, dims = self.config, self.space.dims
        parts: list[Bijection] = []
        for _ in range(config.blocks):
            net = ContractiveNet(dims, context, config.width, config.depth)
            parts += [ResidualBijection(net), ActNorm(dims)]
        return Compose(parts)

    def loss(self, batch: Batch) -> Losses:
        """-log p(y) = -(log N(z; 0, I) + sum log|det(I + dg/dx)|), y dequantised, with an unbiased
        estimate of the log-determinants unless there are few entries."""
        y, log_q = self.dequantise(batch, self.dequantisation_noise(batch))
        context = self.context(batch.given, len(y))
        probes: Tensor | None = None
        counts: Sequence[int] = ()
        if self.space.dims > MAX_EXACT_TRAINING_DIMS:
            probes = torch.randint(2, (len(y), 1, self.space.dims), device=y.device).to(y) * 2 - 1
            counts = (series_length(float(torch.rand(()))),)
        return {"nll": log_q - self.log_density(y, context, probes, counts)[:, 0]}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z ~ N(0, temperature^2 I), then x = f(z, c), each block by fixed-point iteration."""
        z = self.sample_latent(n, options, generator)
        return self.decode(z, given)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, ResidualFlow.LikelihoodConfig), "expected likelihood options"
        seed, context = seed_of(generator), self.context(batch.given, len(batch))
        probes, counts = self.probes(batch, options, derive_seed(seed, "probes"))
        if not self.discrete:
            y, _ = self.dequantise(batch, None)
            value, error = mean_and_error(self.log_density(y, context, probes, counts))
            return Likelihood(value, "exact" if probes is None else "estimate", error)
        weights = []
        for k in range(options.samples):
            u = keyed_uniform(batch.rows, self.latent.shape, derive_seed(seed, "spread", k))
            y, log_q = self.dequantise(batch, u)
            weights.append(self.log_density(y, context, probes, counts).mean(1) - log_q)
        found = torch.stack(weights)  # (samples, B)
        # the mean of exponentials of estimates would be biased: estimates are averaged instead
        return importance_bound(found if probes is None else found.mean(0, keepdim=True))

    def probes(
        self, batch: Batch, options: LikelihoodConfig, seed: int
    ) -> tuple[Tensor | None, Sequence[int]]:
        """Signs (B, K, D) keyed by row and the number of terms for each of the K, the same for all
        rows; nothing for exact log-determinants."""
        dims = self.space.dims
        few = options.logdet == "auto" and dims <= MAX_EXACT_DIMS
        if options.logdet == "exact" or few:
            return None, ()
        uniform = torch.rand(options.probes, generator=make_generator(seed), dtype=torch.float64)
        probes = sample_probes(batch.rows, options.probes, (dims,), seed).to(self.low.dtype)
        return probes, [series_length(each) for each in uniform.tolist()]

    def log_density(
        self, y: Tensor, context: Tensor | None, probes: Tensor | None, counts: Sequence[int]
    ) -> Tensor:
        """log p of dequantised rows y (B, D): (B, 1), or (B, K) with K probes."""
        x, total = self.outer.inverse(y, context)
        total = total[:, None]
        for part in inner_parts(self.inner):
            if isinstance(part, ResidualBijection) and probes is not None:
                x, log_det = part.estimated_inverse(x, context, probes, counts)
                total = total + log_det
            else:
                x, log_det = part.inverse(x, context)
                total = total + log_det[:, None]
        return total + normal_log_prob_rows(x)[:, None]

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few, wide = space.rows < 2000, space.dims > 32
        config = cls.Config(
            blocks=4 if few else 8,
            width=32 if few else 128 if wide else 64,
            table_net=default_table_net(space),
            optional_first=True,
        )
        found: TrainConfig = small_data_train_config(space)
        return Defaults(config, found)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            blocks=2, width=32, depth=1, table_net=SMALLEST_TABLE_NET, optional_first=True
        )


def inner_parts(map_: Bijection) -> Iterator[Bijection]:
    """The parts of a composition, those inside it too, from x to z."""
    if not isinstance(map_, Compose):
        yield map_
        return
    for part in reversed(map_.each()):
        yield from inner_parts(part)
