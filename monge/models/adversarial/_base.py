"""What generators that play against a discriminator share: the turns, the curves, the doctor."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import CanDiagnose, CanSample, Finding, Given, HasDiscriminator
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Losses, Update
from ...core.space import Space
from .._generator import Pushforward
from ._lipschitz import slopes
from ._losses import (
    Logarithmic,
    discriminator_terms,
    divergence_bound,
    generator_terms,
    log_ratio,
    value,
)

WATCH = 50
"""Steps between two looks at the game."""
CANDIDATES = 4096
"""Draws that are weighed at once."""
SURE = 0.98
"""Share of verdicts that are right, from which on a discriminator has won."""
REFERENCES = {"watch/value": -math.log(4), "watch/js_bound": 0.0, "watch/wasserstein": 0.0}
"""Where the curves of a game end that the generator has won."""


class Duel(Pushforward, HasDiscriminator, CanDiagnose):
    """x = G(z, given) with z ~ N(0, I), trained until D cannot tell x from data."""

    optimal_values = REFERENCES

    class Config(Pushforward.Config):
        game: Logarithmic = "nonsaturating"
        """What the generator lowers: -log D(G(z)), or minimax, log(1 - D(G(z)))."""
        rounds: Annotated[int, Range(1)] = 1
        """Moves of the discriminator for each move of the generator."""
        smooth: Annotated[float, Range(0, 0.5)] = 0.0
        """What is taken off the label of real rows, and of these alone: smoothing both sides
        would reward fakes where there are no data."""
        penalty: Annotated[float, Range(0)] = 0.0
        """Price of half the squared slope of the logit at real rows (R1), with which the game
        settles instead of circling."""

    class SamplingConfig(CanSample.SamplingConfig):
        resample: Annotated[int, Range(1)] = 1
        """Candidates of which each draw is chosen with weights D / (1 - D); 1 takes what comes."""

    config: Config
    generator: nn.Module
    discriminator: nn.Module

    @abc.abstractmethod
    def judge(self, y: Tensor, context: Tensor) -> Tensor:
        """Logits (B,) of points (B, D)."""

    def loss(self, batch: Batch) -> Losses:
        """The terms of both players, each of whom lowers its own."""
        return self.discriminator_loss(batch) | self.generator_loss(batch)

    def updates(self) -> Sequence[Update]:
        rival, own = list(self.discriminator.parameters()), list(self.generator.parameters())
        return [
            Update("discriminator", self.discriminator_loss, rival, repeat=self.config.rounds),
            Update("generator", self.generator_loss, own),
            Update("watch", self.watch, every=WATCH),
        ]

    def discriminator_loss(self, batch: Batch) -> Losses:
        check_rows(self, batch)
        terms = discriminator_terms(self.config.game, *self.verdicts(batch), self.config.smooth)
        return {**terms, "penalty": self.settling(batch)} if self.config.penalty else terms

    def settling(self, batch: Batch) -> Tensor:
        """gamma / 2 |grad a|^2 at real rows, (B,) (Mescheder, Geiger & Nowozin 2018)."""
        context = self.context(batch.given, len(batch))
        steep = slopes(lambda y: self.judge(y, context), self.real(batch), create_graph=True)
        return self.config.penalty / 2 * steep.square()

    def generator_loss(self, batch: Batch) -> Losses:
        context = self.context(batch.given, len(batch))
        fake = self.generate(self.noise(len(batch)), context)
        return {"fooled": generator_terms(self.config.game, self.judge(fake, context))}

    def verdicts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        context = self.context(batch.given, len(batch))
        with torch.no_grad():
            fake = self.generate(self.noise(len(batch)), context)
        return self.judge_both(self.real(batch), fake, context)

    def judge_both(self, real: Tensor, fake: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of as many real as fake points: in two passes, since batch norm must not see
        them together."""
        return self.judge(real, context), self.judge(fake, context)

    def watch(self, batch: Batch) -> Losses:
        """V and what it says of the Jensen-Shannon divergence, how often D is right, and what
        reaches the generator."""
        real, fake = self.verdicts(batch)
        right = torch.cat([real > 0, fake <= 0]).to(real.dtype).mean()
        return {
            "value": value(real, fake),
            "js_bound": divergence_bound(real, fake),
            "right": right,
            "slope": self.slopes(batch),
        }

    def slopes(self, batch: Batch) -> Tensor:
        """Norm of the gradient of the generator's loss at each fake point, (B,)."""
        context = self.context(batch.given, len(batch))
        with torch.no_grad():
            fake = self.generate(self.noise(len(batch)), context)
        return slopes(lambda y: generator_terms(self.config.game, self.judge(y, context)), fake)

    def log_ratio(self, batch: Batch) -> Tensor:
        x = batch.x.to(self.coordinates.shift.dtype)
        y = self.coordinates.enter(x, dequantise=False)
        return self.ratio_at(y, self.context(batch.given, len(batch)))

    def ratio_at(self, y: Tensor, context: Tensor) -> Tensor:
        return log_ratio(self.config.game, self.judge(y, context), self.config.smooth)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        of = options.resample if isinstance(options, Duel.SamplingConfig) else 1
        z = self.noise(n * of, generator)
        if of == 1:
            return self.decode(z, given)
        luck = torch.rand(n, of, generator=generator, dtype=z.dtype, device=z.device)
        context = self.context(given or {}, n).repeat_interleave(of, 0)
        size = max(1, CANDIDATES // of) * of
        pieces = zip(z.split(size), context.split(size), luck.split(size // of), strict=True)
        return self.events_of(torch.cat([self.choose(*piece) for piece in pieces]))

    def choose(self, z: Tensor, context: Tensor, luck: Tensor) -> Tensor:
        """One of each k candidates with weights D / (1 - D): sampling, importance resampling. In
        the limit of many and of the best D, data (Azadi et al. 2019; Turner et al. 2019)."""
        y = self.generate(z, context)
        weight = self.ratio_at(y, context).reshape(luck.shape)  # (n, k)
        pick = (weight - (-luck.log()).log()).argmax(1)
        return y.reshape(*luck.shape, -1)[torch.arange(len(luck), device=y.device), pick]

    def diagnose(self, batch: Batch) -> list[Finding]:
        real, fake = self.verdicts(batch)
        right = float(torch.cat([real > 0, fake <= 0]).double().mean())
        if right < SURE:
            return []
        slope = float(self.slopes(batch).mean())
        mend = (
            "say game=nonsaturating"
            if self.config.game == "minimax"
            else "say smooth=0.1, lower train.updates.discriminator.lr, or use adversarial.wgan"
        )
        return [
            Finding(
                "discriminator has won",
                f"it is right about {right:.0%} of held-out rows "
                f"and samples, and the gradient that reaches the generator is {slope:.1e} "
                "a point",
                mend,
            )
        ]

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        return one_sided(cls.__name__.lower(), space)


def check_rows(model: nn.Module, batch: Batch) -> None:
    if model.training and len(batch) < 2:
        raise UsageError(
            "the players compare rows with rows, but a batch of training has 1; give "
            "a larger train.batch_size, or more rows"
        )


def one_sided(name: str, space: Space) -> str | None:
    """A sentence about labels that are all alike."""
    alone = next(
        (part for part in space.given.values() if part.kind == "label" and part.size < 2), None
    )
    return (
        None
        if alone is None
        else (
            f"{name} is given {alone.name}, of which there is one name only, so that it says nothing; "
            "leave it out of --given"
        )
    )
