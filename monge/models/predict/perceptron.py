r"""Perceptron: linear classifier updated on its mistakes

$\hat y = 1\{w^T x > 0\}$, where the last entry of x is 1; a misclassified row updates
$w \leftarrow w + \eta (y - \hat y) x$. From w = 0 every $\eta > 0$ gives the same predictions. If
a plane separates the classes with margin $\gamma$ and no row is longer than R, there are at most
$(R / \gamma)^2$ mistakes (Rosenblatt 1958; Novikoff 1962). Each of K classes has its own w; the
highest score is predicted, and a mistake updates the predicted and the true class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Model, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._base import Predictor
from ._trunk import FlatTrunk, Trunk

SCAN_ROWS = 256
"""Rows classified at once in search of the next mistake."""
SHARPNESS_GRID = tuple(2.0 ** (step / 4) for step in range(-32, 41))
"""Candidates for s, relative to scores of mean size 1."""


class Perceptron(Predictor):
    """P(y | x) = softmax(s W x)_y of standardised inputs, or sigmoid(s w^T x) for binary targets.

    A step reads every training row once, in a random order, and the model stores the weights with
    the fewest errors at the end of a pass (pocket algorithm; Gallant 1990). The scale s turns
    scores into probabilities without changing predictions. It maximises the likelihood of the
    training rows with targets smoothed by 1 / (rows + 2), without which s would grow without bound
    if all predictions are right (Platt 1999).
    """

    events = {"label", "binary"}

    class Config(Predictor.Config):
        """The options of a predictor; those that weight a loss are not supported."""

        tag = "model/predict.perceptron"

    current: Tensor
    mistakes: Tensor
    fewest_errors: Tensor
    sharpness: Tensor

    def __init__(
        self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        for name in ("label_smoothing", "classes", "tasks"):
            if getattr(config, name):
                raise UsageError(
                    f"{name} weights a loss, but the perceptron has none: it learns from "
                    "mistakes; remove it or use predict.logistic"
                )
        super().__init__(config, space, parts)
        self.out.requires_grad_(False)
        shape = (self.out.out_features, self.out.in_features + 1)
        self.register_buffer("current", torch.zeros(shape))  # the updated weights, bias last
        self.register_buffer("mistakes", torch.zeros((), dtype=torch.long))  # updates so far
        self.register_buffer("fewest_errors", torch.tensor(torch.inf))  # errors of the pocket
        self.register_buffer("sharpness", torch.ones(space.dims))  # s, one per binary target

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

    @torch.no_grad()
    def init_output_bias(self) -> None:
        self.out.weight.zero_()
        self.out.bias.zero_()

    def updates(self) -> Sequence[Update]:
        return [Update("mistakes", self.loss, whole=True)]

    @torch.no_grad()
    def loss(self, batch: Batch) -> Losses:
        """One pass over the rows with an update at each mistake; logs the share of errors after
        the pass and of mistakes during it."""
        rows = batch.observed_mask.reshape(len(batch), -1).all(1).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows)).to(rows.device)]
        x = F.pad(self.trunk(self.trunk_inputs(batch.given, len(batch))), (0, 1), value=1.0)[rows]
        right, before = self.indicators(self.flat(batch.x)[rows]), self.mistakes.clone()
        for some, truth in zip(x.split(SCAN_ROWS), right.split(SCAN_ROWS), strict=True):
            self.correct(some, truth)
        score, count = x @ self.current.T, max(len(rows), 1)
        errors = self.predicted(score).ne(right).any(1).sum()
        if errors < self.fewest_errors:
            self.update_pocket(score, right, errors)
        return {"errors": errors / count, "mistakes": (self.mistakes - before) / count}

    def correct(self, x: Tensor, right: Tensor) -> None:
        """Update the weights at each mistake among rows x (n, F + 1), in their order."""
        while len(x):
            gap = right - self.predicted(x @ self.current.T)  # (n, P)
            wrong = gap.ne(0).any(1)
            if not bool(wrong.any()):
                return
            first = int(wrong.to(torch.uint8).argmax())
            self.current.addr_(gap[first], x[first])
            self.mistakes.add_(1)
            x, right = x[first + 1 :], right[first + 1 :]

    def update_pocket(self, score: Tensor, right: Tensor, errors: Tensor) -> None:
        """Store the current weights, and choose s."""
        self.out.weight.copy_(self.current[:, :-1])
        self.out.bias.copy_(self.current[:, -1])
        self.fewest_errors.copy_(errors)
        scales = score.new_tensor(SHARPNESS_GRID) / score.abs().mean().clamp_min(1e-12)
        smoothing = 1 / (len(score) + 2)
        costs = torch.stack(
            [self.cross_entropy(scale * score, right, smoothing) for scale in scales]
        )
        self.sharpness.copy_(scales[costs.argmin(0)])

    def cross_entropy(self, logits: Tensor, right: Tensor, smoothing: float) -> Tensor:
        """Cross entropy of each entry against indicators (n, P) with label smoothing, (D,)."""
        truth = (1 - smoothing) * right
        if self.space.kind == "binary":
            truth = truth + smoothing / 2
            return F.binary_cross_entropy_with_logits(logits, truth, reduction="none").mean(0)
        truth = truth + smoothing / self.space.size
        return -(truth * logits.log_softmax(1)).sum(1).mean()[None]

    def predicted(self, score: Tensor) -> Tensor:
        """Indicators of the classes with the highest scores (n, P), (n, P)."""
        if self.space.kind == "binary":
            return (score > 0).to(score)
        return F.one_hot(score.argmax(1), self.space.size).to(score)

    def indicators(self, y: Tensor) -> Tensor:  # (n, D) -> (n, P)
        if self.space.kind == "binary":
            return y
        return F.one_hot(y[:, 0].long(), self.space.size).to(y)

    def params(self, given: Given, n: int) -> Tensor:
        return self.sharpness * super().params(given, n)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        return Defaults(
            cls.Config(), TrainConfig(max_steps=200, eval_every=1, patience=20, warmup=0)
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Any:
        return cls.Config()
