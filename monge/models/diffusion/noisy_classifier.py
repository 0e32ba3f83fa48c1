r"""Noisy-data classifier: a label given data at any noise level, for classifier guidance

$p(y | z_t, \lambda_t)$ with $z_t = \alpha_t x + \sigma_t \epsilon$, $\alpha^2 + \sigma^2 = 1$,
learned by $-\log p(y | z_t, \lambda_t)$ at log-SNR $\lambda_t$ spread evenly over its range
(Dhariwal & Nichol 2021). Since it reads $\lambda$ and not t, it guides every diffusion model whose
schedule stays within that range. The log-SNR enters as Fourier features, for images as channels.
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
from ...core.batch import Batch, as_batch, broadcast_conditions, repeated_row
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.marginals import Marginals
from ...core.model import Defaults, Losses, Model, is_exporting
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.layers.activation import Activation
from ...nn.layers.init import Init, initialise
from ...nn.layers.norm import Norm
from ...nn.layers.specs import (
    ActivationSpec,
    ConvSpec,
    DenseSpec,
    DropoutSpec,
    FlattenSpec,
    LayerSpec,
    NormSpec,
    StackSpec,
)
from ...nn.mlp import MLP
from ...prob.heads import Head, HeadMarginals
from ...prob.noise_schedule import alpha_sigma
from .._ordering import check_no_missing
from ._denoisers import LOG_SNR_FEATURES, LOG_SNR_FREQUENCIES
from ._guidance import NoiseConditionalClassifier
from ._units import Units

MIN_IMAGE_SIDE = 6
"""Side in pixels below which an image is read as a vector."""


class NoisyInputNet(nn.Module):
    """z (B, D) and log-SNR (B,) to outputs (B, outputs): convolutions for images, each level
    halving the sides, an MLP for other data."""

    frequencies: Tensor

    def __init__(
        self,
        space: Space,
        widths: Sequence[int],
        width: int,
        dropout: float,
        outputs: int,
        init: Init = "auto",
    ) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.tensor(LOG_SNR_FREQUENCIES), persistent=False)
        self.shape = space.shape if is_image(space) else None
        self.net: nn.Module
        if self.shape is None:
            config = MLP.Config(
                width=width, depth=len(widths) + 1, residual=True, dropout=dropout, init=init
            )
            self.net = MLP(config, space.dims + LOG_SNR_FEATURES, outputs)
            return
        plan = convolutions(widths, width, dropout, outputs)
        shape = (self.shape[0] + LOG_SNR_FEATURES, *self.shape[1:])
        self.net = plan.build(shape)
        initialise(self.net, "he" if init == "auto" else init, "silu")

    def forward(self, z: Tensor, log_snr: Tensor) -> Tensor:
        angles = log_snr[:, None] * self.frequencies
        features = torch.cat([angles.sin(), angles.cos()], 1)  # (B, T)
        if self.shape is None:
            return self.net(torch.cat([z, features], 1))
        x = z.reshape(-1, *self.shape)
        planes = features[..., None, None].expand(-1, -1, *self.shape[1:])
        return self.net(torch.cat([x, planes], 1))


def is_image(space: Space) -> bool:
    return space.is_image and min(space.shape[1:]) >= MIN_IMAGE_SIDE


def convolutions(widths: Sequence[int], width: int, dropout: float, outputs: int) -> StackSpec:
    """The layers: two convolutions per level and two dense layers."""
    act: Activation = "silu"
    norm: Norm = "group"
    layers: list[LayerSpec] = []
    for channels in widths:
        for stride in (1, 2):
            layers += [ConvSpec(channels, 3, stride), NormSpec(norm), ActivationSpec(act)]
    return StackSpec(
        (
            *layers,
            FlattenSpec(),
            DropoutSpec(dropout),
            DenseSpec(width),
            ActivationSpec(act),
            DropoutSpec(dropout),
            DenseSpec(outputs),
        )
    )


def default_widths(space: Space) -> tuple[int, ...]:
    """Default channels of each level for images of this size."""
    if not is_image(space):
        return (1, 1)
    side = min(space.shape[1:])
    return (32, 64, 96, 128)[: max(1, min(4, math.ceil(math.log2(side / 3))))]


NOISY_KINDS = ("real", "binary", "levels")


class NoisyClassifier(
    Model, NoiseConditionalClassifier, HasLikelihood, HasMarginals, HasMean, HasMode, CanSample
):
    """p(y | z, log-SNR); p(y | x) is the limit of no noise."""

    events = {"label"}
    givens = {"real", "binary", "levels", "label"}
    is_predictor = True

    class Config(Model.Config):
        tag = "model/diffusion.noisy_classifier"
        widths: tuple[Annotated[int, Range(1)], ...] = (32, 64)
        """Images: channels of each level, halving the sides; other data: one layer for each."""
        width: Annotated[int, Range(1)] = 128
        """Units of the dense layer."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.1
        """Dropout rate around the dense layer."""
        init: Init = "auto"
        """Initial weights: by the activation (he, xavier, orthogonal), small, torch's own, or
        auto: he for images."""
        high: Annotated[float, Range(-2, 30)] = 14.0
        """Highest log-SNR, near the data."""
        low: Annotated[float, Range(-30)] = -10.0
        """Lowest log-SNR, near noise."""
        clean: bool = False
        """Train on inputs without noise only, as an ordinary classifier is: guidance by it shows
        why noise matters, since its gradients at noisy inputs are arbitrary."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.low >= self.high:
                raise UsageError(
                    f"expected low below high, found low={self.low:g} and high={self.high:g}; "
                    "give a range of log-SNR"
                )

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        (self.noisy,) = space.given
        self.units, self.head = Units(self.input_space), Head(space)
        self.net = NoisyInputNet(
            self.input_space,
            config.widths,
            config.width,
            config.dropout,
            self.head.width,
            config.init,
        )

    @property
    def input_space(self) -> Space:
        return self.space.given[self.noisy]

    def log_snr_range(self) -> tuple[float, float]:
        return self.config.low, self.config.high

    def loss(self, batch: Batch) -> Losses:
        """-log p(y | z) at noisy inputs z, with log-SNR spread evenly over the batch."""
        y = self.to_units(batch.given)
        n = len(y)
        time = (torch.arange(n, dtype=y.dtype, device=y.device) + torch.rand_like(y[:1, 0])) / n
        log_snr = torch.lerp(y.new_tensor(self.config.low), y.new_tensor(self.config.high), time)
        log_snr = self.seen(log_snr)
        alpha, sigma = (part[:, None] for part in alpha_sigma("preserving", log_snr))
        z = alpha * y + sigma * torch.randn_like(y)
        return {"nll": -self.log_prob_noisy(z, log_snr, batch.x)}

    def to_units(self, given: Given) -> Tensor:
        """The inputs in standardised units, (B, D); a missing entry is replaced by its mean."""
        rows = max((len(part) for part in given.values()), default=1)
        part = broadcast_conditions(given, self.space, rows)[self.noisy]
        typical = self.units.to_data(torch.zeros_like(self.units.scale)[None])
        return self.units.to_units(torch.where(part.observed_mask, part.x, typical.to(part.x)))

    def log_prob_noisy(self, z: Tensor, log_snr: Tensor, y: Tensor) -> Tensor:
        params = self.net(z, self.seen(log_snr))
        return self.head.log_prob(params, y.reshape(-1, 1).to(params)).sum(1)

    def seen(self, log_snr: Tensor) -> Tensor:
        """The log-SNR that the network is told: that of the data if it was trained on them."""
        return torch.full_like(log_snr, self.config.high) if self.config.clean else log_snr

    def params(self, given: Given) -> Tensor:
        """The parameters of the label's distribution given noiseless inputs, (B, P); a row that is
        repeated is read once."""
        n = max((len(part) for part in given.values()), default=1)
        row = repeated_row(given, n) if n > 1 and not is_exporting() else None
        if row is not None:
            return self.params(row).expand(n, -1)
        y = self.to_units(given)
        log_snr = y.new_full((len(y),), self.config.high)
        alpha, _ = alpha_sigma("preserving", log_snr)
        return self.net(alpha[:, None] * y, log_snr)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch = as_batch(batch)
        check_no_missing("classifier", batch)
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
        """Sample the label given noiseless inputs."""
        noise = self.head.noise(n, generator)
        params = self.params(broadcast_conditions(given or {}, self.space, n))
        return self.head.sample(params, noise)[:, 0].long()

    @torch.no_grad()
    def marginals(self, given: Given, options: BaseConfig | None = None) -> Marginals:
        return HeadMarginals(self.space, self.head, self.params(given))

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
            or any(part.kind not in NOISY_KINDS for part in space.given.values())
        ):
            found = ", ".join(map(str, space.given.values())) or "nothing"
            return (
                f"expected one label given one field of {', '.join(NOISY_KINDS)} numbers, found "
                f"the conditions: {found}; choose them with --target and --given"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        field = next(iter(space.given.values()))
        train_config = TrainConfig(
            optimiser="adamw",
            lr=1e-3,
            weight_decay=0.01,
            batch_size=128,
            ema_decay=0.999,
            eval_every=200,
        )
        large = is_image(field) and min(field.shape[1:]) >= 16
        augment = (f"augment=shift{min(field.shape[1:]) // 14}",) if large else ()
        return Defaults(cls.Config(widths=default_widths(field)), train_config, augment)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(widths=(8,), width=16)
