r"""Logistic regression: linear classifier fitted to its optimum by L-BFGS

Two classes: $P(y = 1 \mid x) = \sigma(w^T x + b)$, and minus the log-likelihood is
$-\sum_n [y_n \log \pi_n + (1 - y_n) \log(1 - \pi_n)]$, whose gradient in w is $X^T (\pi - y)$.
More: $P(y \mid x) = softmax(W x + b)_y$ (Cox 1958; Bridle 1990). Both are convex in the weights,
and with the penalty strictly, up to a shift of all classes' biases: L-BFGS finds the minimum.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._base import Predictor
from ._trunk import FlatTrunk, Trunk

ITERATIONS = 200
"""Steps of L-BFGS; most fits have converged by then."""


class Logistic(Predictor):
    """P(y | x) = softmax(W x + b)_y of standardised inputs, W ~ N(0, 1 / penalty) a priori."""

    events = {"label", "binary"}

    class Config(Predictor.Config):
        tag = "model/predict.logistic"
        penalty: Annotated[float, Range(0)] = 1.0
        """Strength of the penalty |W|^2 / 2 beside the sum over all training rows; with 0 the
        weights of separable classes grow without bound."""

    config: Config

    def build_trunk(self, inputs: Space) -> Trunk:
        return FlatTrunk(inputs)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """y ~ p(y | x), or its Monte Carlo dropout average with `passes`."""
        noise = self.head.noise(n, generator)  # (n, D, 2)
        params = self.sample_params(n, given, options, generator)
        return self.to_event(self.head.sample(params, noise))  # y ~ p(y | x)

    def loss(self, batch: Batch) -> Losses:
        """-log p(y | x) + penalty |W|^2 / (2 n) for n training rows: MAP with a Gaussian prior."""
        rows = self.space.rows or len(batch)
        penalty = self.config.penalty / (2 * rows) * self.out.weight.square().sum()
        nll = self.weighted_nll(batch, self.params(batch.given, len(batch)))
        return nll | {"penalty": penalty}

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """L-BFGS to the minimum; held-out rows are evaluated once, at the end."""
        train_config = TrainConfig(
            optimiser="lbfgs", max_steps=ITERATIONS, eval_every=ITERATIONS, patience=0
        )
        return Defaults(cls.Config(), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Any:
        return cls.Config()
