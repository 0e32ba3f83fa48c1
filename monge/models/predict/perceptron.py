r"""Perceptron: linear classifier updated on its mistakes

$\hat y = 1\{w^T x > 0\}$, where the last entry of x is 1; a row that is mistaken moves
$w \leftarrow w + \eta (y - \hat y) x$, from w = 0, where every $\eta > 0$ gives the same
answers. If a plane separates the classes with margin $\gamma$ and no row is longer than R, at
most $(R / \gamma)^2$ mistakes are ever made (Rosenblatt 1958; Novikoff 1962). Of K names each has
a w of its own; the highest score is the answer, and a mistake moves that one and the right one.
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
"""Rows that are answered at once in search of the next mistake."""
SHARPNESS_GRID = 2 ** torch.arange(-8, 10.1, 0.25)
"""What s is chosen from, where scores have mean size 1."""


class Perceptron(Predictor):
    """P(y | x) = softmax(s W x)_y of standardised inputs, or sigmoid(s w^T x) for a flag.

    A step reads every training row once, in a random order, and the model keeps the weights that
    ended a pass with the fewest errors (the pocket; Gallant 1990). The algorithm gives answers and
    no degrees: the one number s, which leaves every answer as it is, makes probabilities of the
    scores. It is the likeliest on the training rows, each with a share 1 / (rows + 2) of doubt,
    without which s would grow for ever where all answers are right (Platt 1999).
    """

    events = {"label", "binary"}

    class Config(Predictor.Config):
        """Mistakes have no weight: nothing is to be set but what reads the inputs."""

        tag = "model/predict.perceptron"

    current: Tensor
    mistakes: Tensor
    fewest_errors: Tensor
    sharpness: Tensor

    def __init__(
        self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        for name in ("smoothing", "classes", "tasks"):
            if getattr(config, name):
                raise UsageError(
                    f"{name} weighs a loss, and the perceptron has none: it learns "
                    "from mistakes alone; leave it out or use predict.logistic"
                )
        super().__init__(config, space, parts)
        self.out.requires_grad_(False)
        shape = (self.out.out_features, self.out.in_features + 1)
        self.register_buffer("current", torch.zeros(shape))  # the weights that move, bias last
        self.register_buffer("mistakes", torch.zeros((), dtype=torch.long))  # that moved them
        self.register_buffer("fewest_errors", torch.tensor(torch.inf))  # errors of the pocket
        self.register_buffer("sharpness", torch.ones(space.dims))  # s, of each flag its own

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
        """One pass, and what it came to: errors at its end, and mistakes on the way."""
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
        """Take rows x (n, F + 1) in their order and move the weights at each mistake."""
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
        """Store the current weights in the pocket."""
        self.out.weight.copy_(self.current[:, :-1])
        self.out.bias.copy_(self.current[:, -1])
        self.fewest_errors.copy_(errors)
        options = SHARPNESS_GRID.to(score) / score.abs().mean().clamp_min(1e-12)
        doubt = 1 / (len(score) + 2)
        costs = torch.stack(
            [self.cross_entropy(option * score, right, doubt) for option in options]
        )
        self.sharpness.copy_(options[costs.argmin(0)])

    def cross_entropy(self, logits: Tensor, right: Tensor, doubt: float) -> Tensor:
        """Cross entropy against indicators (n, P) with a share of doubt, of each entry, (D,)."""
        truth = (1 - doubt) * right
        if self.space.kind == "binary":
            truth = truth + doubt / 2
            return F.binary_cross_entropy_with_logits(logits, truth, reduction="none").mean(0)
        truth = truth + doubt / self.space.size
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
