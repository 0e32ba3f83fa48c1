r"""Networks that read noisy data as a whole: features of a datum at a log-SNR.

The log-SNR is told by sines and cosines of it; to a picture they are laid beside as channels.

Classifier of noisy data: a label given data at any level of noise, to guide diffusion

$p(y | z_t, \lambda_t)$ with $z_t = \alpha_t x + \sigma_t \epsilon$, $\alpha^2 + \sigma^2 = 1$,
learned by $-\log p(y | z_t, \lambda_t)$ at log-SNR $\lambda_t$ drawn evenly between both ends of
its range (Dhariwal & Nichol 2021). Since it is told $\lambda$ and not t, it guides every law whose
schedule stays within that range, whatever its shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import (
    CanSample,
    Given,
    HasLikelihood,
    HasMarginals,
    HasMean,
    HasMode,
    Likelihood,
)
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.marginals import Marginals
from ...core.model import Defaults, Losses, Model
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.layers.activation import Activation
from ...nn.layers.init import initialise
from ...nn.layers.norm import Norm
from ...nn.layers.specs import Act, Conv, Dense, Drop, Flatten, Layer, Normalise, Stack
from ...nn.mlp import MLP
from ...prob.heads import Entries, Head
from ...prob.noise_schedule import coefficients
from .._ordering import check_whole
from ._denoisers import TONES
from ._guidance import Judge
from ._units import Units

SMALL = 6
"""Pixels on a side below which a picture is read as a vector."""


class Reading(nn.Module):
    """z (B, D) and log-SNR (B,) to features (B, outputs): convolutions for pictures, each level
    halving the sides, a perceptron for the rest."""

    tones: Tensor

    def __init__(
        self, space: Space, widths: Sequence[int], width: int, dropout: float, outputs: int
    ) -> None:
        super().__init__()
        self.register_buffer("tones", TONES.clone(), persistent=False)
        told = 2 * len(TONES)
        self.shape = space.shape if is_seen(space) else None
        self.net: nn.Module
        if self.shape is None:
            config = MLP.Config(width=width, depth=len(widths) + 1, residual=True, dropout=dropout)
            self.net = MLP(config, space.dims + told, outputs)
            return
        plan = convolutions(widths, width, dropout, outputs)
        shape = (self.shape[0] + told, *self.shape[1:])
        self.net = plan.build(shape)
        initialise(self.net, "he", "silu")

    def forward(self, z: Tensor, log_snr: Tensor) -> Tensor:
        angles = log_snr[:, None] * self.tones
        told = torch.cat([angles.sin(), angles.cos()], 1)  # (B, T)
        if self.shape is None:
            return self.net(torch.cat([z, told], 1))
        x = z.reshape(-1, *self.shape)
        planes = told[..., None, None].expand(-1, -1, *self.shape[1:])
        return self.net(torch.cat([x, planes], 1))


def is_seen(space: Space) -> bool:
    return space.is_picture and min(space.shape[1:]) >= SMALL


def convolutions(widths: Sequence[int], width: int, dropout: float, outputs: int) -> Stack:
    """Two convolutions a level and a dense layer, before the network is built."""
    act: Activation = "silu"
    norm: Norm = "group"
    layers: list[Layer] = []
    for channels in widths:
        for stride in (1, 2):
            layers += [Conv(channels, 3, stride), Normalise(norm), Act(act)]
    return Stack(
        (*layers, Flatten(), Drop(dropout), Dense(width), Act(act), Drop(dropout), Dense(outputs))
    )


def levels(space: Space) -> tuple[int, ...]:
    """Channels of each level for pictures of this size."""
    if not is_seen(space):
        return (1, 1)
    side = min(space.shape[1:])
    return (32, 64, 96, 128)[: max(1, min(4, math.ceil(math.log2(side / 3))))]


NOISY = ("real", "binary", "levels")


class Classifier(Model, Judge, HasLikelihood, HasMarginals, HasMean, HasMode, CanSample):
    """p(y | z, log-SNR), of which p(y | x) is the case of no noise."""

    events = {"label"}
    givens = {"real", "binary", "levels", "label"}
    is_predictor = True

    class Config(Model.Config):
        tag = "model/diffusion.noisy_classifier"
        widths: tuple[Annotated[int, Range(1)], ...] = (32, 64)
        """Pictures: channels of each level, which halves the sides; else one layer for each."""
        width: Annotated[int, Range(1)] = 128
        """Units of a dense layer."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.1
        """Share of the numbers around a dense layer that training hides at random."""
        high: Annotated[float, Range(-2, 30)] = 14.0
        """Highest log-SNR, near the data."""
        low: Annotated[float, Range(-30)] = -10.0
        """Lowest log-SNR, near noise."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.low >= self.high:
                raise UsageError(
                    f"low={self.low:g} is not below high={self.high:g}; give a range of log-SNR"
                )

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        (self.noisy,) = space.given
        self.units, self.head = Units(self.field), Head(space)
        self.net = Reading(
            self.field, config.widths, config.width, config.dropout, self.head.width
        )

    @property
    def field(self) -> Space:
        return self.space.given[self.noisy]

    def reach(self) -> tuple[float, float]:
        return self.config.low, self.config.high

    def loss(self, batch: Batch) -> Losses:
        y = self.enter(batch.given)
        n = len(y)
        share = (torch.arange(n, dtype=y.dtype, device=y.device) + torch.rand_like(y[:1, 0])) / n
        log_snr = torch.lerp(y.new_tensor(self.config.low), y.new_tensor(self.config.high), share)
        alpha, sigma = (part[:, None] for part in coefficients("preserving", log_snr))
        z = alpha * y + sigma * torch.randn_like(y)
        return {"nll": -self.log_prob_noisy(z, log_snr, batch.x)}

    def enter(self, given: Given) -> Tensor:
        """What is judged, standardised, (B, D); a number that was not seen is read as its mean."""
        rows = max((len(part) for part in given.values()), default=1)
        part = broadcast_conditions(given, self.space, rows)[self.noisy]
        usual = self.units.leave(torch.zeros_like(self.units.scale)[None])
        return self.units.enter(torch.where(part.observed_mask, part.x, usual.to(part.x)))

    def log_prob_noisy(self, z: Tensor, log_snr: Tensor, y: Tensor) -> Tensor:
        params = self.net(z, log_snr)
        return self.head.log_prob(params, y.reshape(-1, 1).to(params)).sum(1)

    def params(self, given: Given) -> Tensor:
        """What the law of the label without noise is made of, (B, P)."""
        y = self.enter(given)
        log_snr = y.new_full((len(y),), self.config.high)
        alpha, _ = coefficients("preserving", log_snr)
        return self.net(alpha[:, None] * y, log_snr)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch = as_batch(batch)
        check_whole("classifier", batch)
        params = self.params(batch.given)
        log_p = self.head.log_prob(params, batch.x.reshape(-1, 1).to(params))
        return Likelihood(log_p.sum(1), "exact")

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        noise = self.head.noise(n, generator)
        params = self.params(broadcast_conditions(given or {}, self.space, n))
        return self.head.draw(params, noise)[:, 0].long()

    @torch.no_grad()
    def marginals(self, given: Given, options: BaseConfig | None = None) -> Marginals:
        return Entries(self.space, self.head, self.params(given))

    @torch.no_grad()
    def mean(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        probabilities: Sequence[Tensor] = self.marginals(given).probabilities
        return probabilities[0]

    @torch.no_grad()
    def mode(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        return self.head.mode(self.params(given))[:, 0].long()

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if (
            space.shape
            or len(space.given) != 1
            or any(part.kind not in NOISY for part in space.given.values())
        ):
            found = ", ".join(map(str, space.given.values())) or "nothing"
            return (
                f"classifier judges one label by one field of {', '.join(NOISY)} numbers, "
                f"which can be noisy, got {found}; name them with --target and --given"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        field = next(iter(space.given.values()))
        recipe = TrainConfig(
            optimiser="adamw",
            lr=1e-3,
            weight_decay=0.01,
            batch_size=128,
            ema_decay=0.999,
            eval_every=200,
        )
        moved = is_seen(field) and min(field.shape[1:]) >= 16
        moves = (f"augment=shift{min(field.shape[1:]) // 14}",) if moved else ()
        return Defaults(cls.Config(widths=levels(field)), recipe, moves)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(widths=(8,), width=16)
