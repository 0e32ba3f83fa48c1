"""Base of GANs: alternating updates, logged curves, resampling, diagnostics."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import CanDiagnose, Finding, Given, HasDiscriminator
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Update
from ...core.space import Space
from .._generator import GeneratorModel
from ._lipschitz import gradient_norms
from ._losses import Game, accuracy, bound_of, estimates, generator_terms, log_ratio

MONITOR_EVERY = 50
"""Steps between two logs of the monitored quantities."""
MAX_CANDIDATES = 4096
"""Candidates that are weighted at once when resampling."""
WINNING_ACCURACY = 0.98
"""Accuracy from which a discriminator overpowers the generator."""
OPTIMAL_VALUES = {
    "watch/value": -math.log(4),
    "watch/js_bound": 0.0,
    "watch/triangular_bound": 0.0,
    "watch/tv_bound": 0.0,
    "watch/wasserstein": 0.0,
}
"""Values of the logged curves when the generator matches the data."""


class AdversarialModel(GeneratorModel, HasDiscriminator, CanDiagnose):
    """x = G(z, given) with z ~ N(0, I), trained until D cannot distinguish x from data."""

    optimal_values = OPTIMAL_VALUES

    class Config(GeneratorModel.Config):
        game: Game = "nonsaturating"
        """Losses of the players: nonsaturating, -log D(G(z)); minimax, log(1 - D(G(z))); squares
        (least squares); or hinge, whose label_smoothing is 0."""
        critic_steps: Annotated[int, Range(1)] = 1
        """Discriminator updates per generator update."""
        label_smoothing: Annotated[float, Range(0, 0.5)] = 0.0
        """One-sided label smoothing: real rows have the label 1 - label_smoothing."""
        penalty: Annotated[float, Range(0)] = 0.0
        """Weight of the R1 gradient penalty at real rows, which makes training converge instead of
        oscillate."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.game == "hinge" and self.label_smoothing:
                raise UsageError(
                    f"game=hinge has no labels, found label_smoothing={self.label_smoothing:g}; "
                    "set label_smoothing=0"
                )

    class SamplingConfig(GeneratorModel.SamplingConfig):
        resample: Annotated[int, Range(1)] = 1
        """Candidates per sample, of which one is chosen with weights D / (1 - D); 1 is off."""

    config: Config
    generator: nn.Module
    discriminator: nn.Module

    @abc.abstractmethod
    def discriminate(self, y: Tensor, context: Tensor) -> Tensor:
        """Logits (B,) of points (B, D)."""

    @abc.abstractmethod
    def discriminator_loss(self, batch: Batch) -> Losses:
        """What the discriminator minimises."""

    @abc.abstractmethod
    def generator_loss(self, batch: Batch) -> Losses:
        """What the generator minimises."""

    def updates(self) -> Sequence[Update]:
        rival, own = list(self.discriminator.parameters()), list(self.generator.parameters())
        return [
            Update(
                "discriminator", self.discriminator_loss, rival, repeat=self.config.critic_steps
            ),
            Update("generator", self.generator_loss, own),
            Update("watch", self.monitor, every=MONITOR_EVERY),
        ]

    def r1_penalty(self, batch: Batch) -> Tensor:
        """gamma / 2 |grad a|^2 at real rows, (B,) (Mescheder, Geiger & Nowozin 2018)."""
        context = self.context(batch.given, len(batch))
        norm = gradient_norms(
            lambda y: self.discriminate(y, context), self.real(batch), create_graph=True
        )
        return self.config.penalty / 2 * norm.square()

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        context = self.context(batch.given, len(batch))
        with torch.no_grad():
            fake = self.generate(self.noise(len(batch)), context)
        return self.discriminate_both(self.real(batch), fake, context)

    def discriminate_both(
        self, real: Tensor, fake: Tensor, context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits of real and fake points, in two passes: batch norm must not mix them."""
        return self.discriminate(real, context), self.discriminate(fake, context)

    def monitor(self, batch: Batch) -> Losses:
        """V, the bound of the divergence that the game measures, the accuracy of D, and the norm
        of the gradient that reaches the generator."""
        real, fake = self.logits(batch)
        return {
            **estimates(self.config.game, real, fake),
            "accuracy": accuracy(self.config.game, real, fake),
            "gradient_norm": self.gradient_norms(batch),
        }

    def estimate_distance(self, batch: Batch) -> Tensor:
        return bound_of(estimates(self.config.game, *self.logits(batch)))

    def gradient_norms(self, batch: Batch) -> Tensor:
        """Norm of the gradient of the generator's loss at each fake point, (B,)."""
        context = self.context(batch.given, len(batch))
        with torch.no_grad():
            fake = self.generate(self.noise(len(batch)), context)
        return gradient_norms(
            lambda y: generator_terms(self.config.game, self.discriminate(y, context)), fake
        )

    def log_ratio(self, batch: Batch) -> Tensor:
        x = batch.x.to(self.coordinates.shift.dtype)
        y = self.coordinates.to_network(x, dequantise=False)
        return self.ratio_at(y, self.context(batch.given, len(batch)))

    def ratio_at(self, y: Tensor, context: Tensor) -> Tensor:
        return log_ratio(
            self.config.game, self.discriminate(y, context), self.config.label_smoothing
        )

    def candidates_per_sample(self, options: BaseConfig | None) -> int:
        return options.resample if isinstance(options, AdversarialModel.SamplingConfig) else 1

    def sample_points(
        self, n: int, given: Given | None, options: BaseConfig | None, generator: Generator | None
    ) -> Tensor:
        """n points (n, D): G(z) with z ~ N(0, I), or with `resample` each chosen from k candidates
        with weights D / (1 - D): sampling, importance resampling. In the limit of many candidates
        and the optimal D these follow the data (Azadi et al. 2019; Turner et al. 2019)."""
        k, truncation = self.candidates_per_sample(options), self.truncation(options)
        z = self.noise(n * k, generator)  # (n k, latent)
        if k == 1:
            return self.generate(z, self.context(given or {}, n), truncation)
        uniform = torch.rand(n, k, generator=generator, dtype=z.dtype, device=z.device)
        context = self.context(given or {}, n).repeat_interleave(k, 0)
        size = max(1, MAX_CANDIDATES // k) * k
        chunks = zip(z.split(size), context.split(size), uniform.split(size // k), strict=True)
        return torch.cat([self.choose(*chunk, truncation) for chunk in chunks])

    def choose(self, z: Tensor, context: Tensor, uniform: Tensor, truncation: float) -> Tensor:
        """One of each k candidates by the Gumbel-max trick; uniform: (n, k)."""
        y = self.generate(z, context, truncation)
        log_weight = self.ratio_at(y, context).reshape(uniform.shape)
        chosen = (log_weight - (-uniform.log()).log()).argmax(1)
        return y.reshape(*uniform.shape, -1)[torch.arange(len(uniform), device=y.device), chosen]

    def diagnose(self, batch: Batch) -> list[Finding]:
        real, fake = self.logits(batch)
        share = float(accuracy(self.config.game, real, fake))
        if share < WINNING_ACCURACY:
            return []
        norm = float(self.gradient_norms(batch).mean())
        remedy = (
            "set game=nonsaturating"
            if self.config.game == "minimax"
            else "set label_smoothing=0.1, lower train.updates.discriminator.lr, or use "
            "adversarial.wgan"
        )
        return [
            Finding(
                "discriminator has won",
                f"it classifies {share:.0%} of held-out rows and samples correctly, and the "
                f"gradient that reaches the generator is {norm:.1e} per point",
                remedy,
            )
        ]

    @classmethod
    def defaults_with(cls, space: Space, chosen: Mapping[str, str]) -> Defaults:
        found = cls.defaults(space)
        if chosen.get("game") != "hinge":
            return found
        return replace(found, config=replace(found.config, label_smoothing=0.0))

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        return single_class(cls.__name__.lower(), space)


def check_rows(model: nn.Module, batch: Batch) -> None:
    if model.training and len(batch) < 2:
        raise UsageError(
            "adversarial training needs at least 2 rows per batch, found 1; raise "
            "train.batch_size, or use more rows"
        )


def single_class(name: str, space: Space) -> str | None:
    """Why a label condition with fewer than two classes is unsupported."""
    alone = next(
        (part for part in space.given.values() if part.kind == "label" and part.size < 2), None
    )
    return (
        None
        if alone is None
        else (
            f"{name} expected at least 2 classes of {alone.name}, found {alone.size}; "
            "remove it from --given"
        )
    )
