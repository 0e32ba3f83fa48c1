r"""Sinkhorn generator: trained on the entropic transport cost to the data, without a critic

Between minibatches $x, x'$ of data and $y, y'$ of samples, with W the entropic cost,

$\mathcal D = \tfrac14 (W(x, y) + W(x, y') + W(x', y) + W(x', y')) - \tfrac12 W(x, x') - \tfrac12
W(y, y')$

is in the mean the generalised energy distance of the two distributions, zero if they agree; the
plain cost W(x, y) is not, since W(x, x) > 0, and yields samples of too little spread. The Sinkhorn
divergence W(x, y) - W(x, x) / 2 - W(y, y) / 2 corrects for this with one minibatch a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from ...solve.transport.ground_cost import Power, cosine
from ...solve.transport.sinkhorn import sinkhorn
from .._generator import CHOSEN_KINDS, MLPGeneratorModel, default_share_weight

TOLERANCE = 1e-3
"""Marginal error of the plans in training."""
MAX_PASSES = 200
"""Sinkhorn iterations of a plan in training, at most."""


class SinkhornGenerator(MLPGeneratorModel):
    """x = G(z, given) with z ~ N(0, I): a distribution without a density, trained on the transport
    cost between minibatches (Genevay, Peyre & Cuturi 2018; unbiased form: Salimans et al. 2018).

    The cost is the squared distance of standardised events, another power of it, or with
    `features` one minus the cosine of learned features, which are trained to raise the cost that
    the generator lowers. Conditions are appended to the event, so that joint distributions are
    compared.
    """

    events = {"real", "levels", "binary", "label", "counts", "columns"}
    family_priority = 1

    class Config(MLPGeneratorModel.Config):
        tag = "model/transport.sinkhorn_generator"
        epsilon: Annotated[float, Range(0, open=True)] = 0.05
        """Entropy of the plans, in units of their mean cost."""
        debias: Literal["pairs", "divergence", "none"] = "pairs"
        """pairs: unbiased divergence of two minibatches per side; divergence: the Sinkhorn
        divergence W(x, y) - W(x, x) / 2 - W(y, y) / 2; none: transport cost."""
        power: Annotated[float, Range(1, 2)] = 2.0
        """Power of the distance that is the cost of points: 1 is that of W_1, 2 of W_2^2."""
        cost: Literal["points", "features"] = "points"
        """Ground cost between points (the events) or between learned features of them."""
        features: MLP.Config = MLP.Config(width=256, depth=2, activation="leaky")
        """Network from an event to its features, with cost=features."""
        code: Annotated[int, Range(1)] = 64
        """Number of features."""
        generator_steps: Annotated[int, Range(1)] = 3
        """Generator updates per update of the features."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.features: MLP | None = None
        if config.cost == "features":
            inputs = self.coordinates.width + self.conditions.width
            self.features = config.features.build(inputs, config.code)

    def loss(self, batch: Batch) -> Losses:
        """D = mean cost(data, samples) - (cost(data, data') + cost(samples, samples')) / 2."""
        terms = {"transport": self.divergence(batch)}
        context = self.context(batch.given, len(batch))
        return terms | self.share_losses(self.noise(len(batch)), context)

    def updates(self) -> Sequence[Update]:
        generator = Update("generator", self.loss, list(self.generator.parameters()))
        if self.features is None:
            return [generator]
        return [
            generator,
            Update(
                "features",
                self.feature_loss,
                list(self.features.parameters()),
                every=self.config.generator_steps,
            ),
        ]

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x = G(z, given) with z ~ N(0, I)."""
        z = self.noise(n, generator)  # (n, latent)
        y = self.generate(z, self.context(given or {}, n), self.truncation(options))  # (n, D)
        return self.sample_event(y, generator)

    def feature_loss(self, batch: Batch) -> Losses:
        return {"contrast": -self.divergence(batch)}

    def divergence(self, batch: Batch) -> Tensor:
        """D between the rows and as many samples given the same conditions, ()."""
        n, pairs = len(batch), self.config.debias == "pairs" and len(batch) > 1
        context = self.context(batch.given, n)
        fake = self.generate(self.noise(n), context)
        x, y = self.point(self.real(batch), context), self.point(fake, context)
        if self.config.debias == "divergence":
            left, right = torch.stack([x, x, y]), torch.stack([y, x, y])
            return self.costs(left, right) @ left.new_tensor([1.0, -0.5, -0.5])
        if not pairs:
            return self.costs(x[None], y[None])[0]
        x, x2, y, y2 = (half for side in (x, y) for half in side[: n // 2 * 2].chunk(2))
        left = torch.stack([x, x, x2, x2, x, y])
        right = torch.stack([y, y2, y, y2, x2, y2])
        return self.costs(left, right) @ left.new_tensor([0.25] * 4 + [-0.5] * 2)

    def costs(self, x: Tensor, y: Tensor) -> Tensor:
        """The entropic cost of each of S problems (S, n, k) with one regularisation, (S,)."""
        cost = Power(self.config.power) if self.features is None else cosine
        spread = self.spread(cost(x.detach()[:1], y.detach()[:1]))
        return sinkhorn(
            x,
            y,
            self.config.epsilon * spread,
            cost_of=cost,
            tolerance=TOLERANCE,
            passes=MAX_PASSES,
        ).value

    def spread(self, costs: Tensor) -> float:
        """The mean cost of one problem, without gradient."""
        return max(float(costs.mean()), 1e-12)

    def point(self, y: Tensor, context: Tensor) -> Tensor:
        """The vectors that are compared: an event with its conditions, or its features, (B, k)."""
        if self.features is None:
            return torch.cat([y, context * y.shape[1] ** 0.5], 1)
        return self.features(torch.cat([y, context], 1))

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        # Plans cost the square of the batch size, and more steps help more than larger batches.
        train_config = TrainConfig(
            lr=1e-3, batch_size=256, ema_decay=0.999, eval_every=500, patience=0
        )
        if space.kind in CHOSEN_KINDS:
            net = MLP.Config(width=256, depth=3, residual=True)
            config = cls.Config(
                generator=net, epsilon=0.02, share_weight=default_share_weight(space)
            )
            return Defaults(config, train_config)
        if space.dims <= 32:
            net = MLP.Config(width=128, depth=3, activation="relu")
            return Defaults(
                cls.Config(latent=max(space.dims, 2), generator=net, epsilon=0.02), train_config
            )
        return Defaults(
            cls.Config(generator=MLP.Config(width=256, depth=3, residual=True)), train_config
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(latent=2, epsilon=0.2, generator=MLP.Config(width=16, depth=1))
