r"""Denoising diffusion (DDPM): a network removes noise step by step

$q(z_t | x) = N(\alpha_t x, \sigma_t^2 I)$ and
$p(x) = \int p(z_1) \prod_t p(z_s | z_t)\, p(x | z_0)$ with
$p(z_s | z_t) = q(z_s | z_t, \hat x(z_t))$ (Sohl-Dickstein et al. 2015; Ho et al. 2020). The loss
is $E\, w(\lambda_t) |\epsilon - \hat\epsilon(z_t, \lambda_t)|^2$ with the weight

- `elbo`: $\frac{T}{2} (e^{\lambda_s - \lambda_t} - 1)$, or $-\frac12 \lambda'$ in continuous time:
  the bound;
- `simple`: that which makes it the unweighted error of what the network predicts;
- `snr`: 1, that is $SNR \cdot |x - \hat x|^2$;
- `min_snr`: $\min(SNR, \gamma) / SNR$ (Hang et al. 2023).

A stable target (`_parameterisation`) has the same minimum, and gradients that vary less.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import MAX_STEPS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...prob.noise_schedule import NoiseSchedule
from ...prob.row_embedding import TABLE_KINDS
from ._base import (
    Diffusion,
    default_clusters,
    default_network,
    default_recipe,
    default_target,
    is_points,
)
from ._denoisers import MLPDenoiser
from ._likelihood import enclosing_step, entrywise_step_kl
from ._parameterisation import DenoiserPrediction, regression_target, stable_target
from ._units import max_log_snr

VARIANCE_LOSS_WEIGHT = 1e-3
"""Weight of the bound that trains a learned variance, beside the loss that trains the mean."""


class DDPM(Diffusion):
    """p(z_s | z_t) = N(mean of q(z_s | z_t, x), v) at x = x_hat(z_t, t), over T steps or in
    continuous time.

    v is the variance of that posterior, of the forward step, or learned between both for each
    entry (Nichol & Dhariwal 2021) by the bound, whose gradient does not reach the mean.
    """

    presets = {
        "sohl_dickstein": "Sohl-Dickstein et al. 2015: x predicted by the bound over 40 steps, "
        "variances learned",
        "ddpm": "Ho et al. 2020: noise predicted by the simple loss over 1000 steps of variance "
        "1e-4 to 0.02",
    }

    class Config(Diffusion.Config):
        tag = "model/diffusion.ddpm"
        schedule: NoiseSchedule.Config = NoiseSchedule.Config()
        """Noise schedule."""
        steps: Annotated[int, Range(1, MAX_STEPS)] | None = None
        """Time steps T of the model; none is continuous time."""
        weight: Literal["elbo", "simple", "snr", "min_snr"] = "simple"
        """Weight of errors by noise level; elbo is the bound itself."""
        gamma: Annotated[float, Range(0, open=True)] = 5.0
        """min_snr: SNR at which the weight is capped."""
        variance: Literal["posterior", "forward", "learned"] = "posterior"
        """Variance of a reverse step; in continuous time all agree."""
        stable_target: bool = False
        """Learn the mean of the rows of a batch that a noisy row may come from, instead of the row
        that it does: the same minimum, at less variance. For models without conditions."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.variance != "posterior" and not self.steps:
                raise UsageError(
                    f"variance={self.variance} expects a number of steps, found continuous time; "
                    "give steps=1000 too"
                )

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.schedule = config.schedule.build()
        self.steps, self.variance = config.steps or 0, config.variance
        if config.stable_target:
            self.check_unconditional("stable_target")

    @property
    def learns_variance(self) -> bool:
        return self.config.variance == "learned"

    def loss(self, batch: Batch) -> Losses:
        """Noise each row to z_t = alpha y + sigma eps and weigh the squared error of the
        prediction; a learned variance adds the KL term of the step."""
        y, time = self.to_units(batch), self.stratified_times(len(batch))
        s, t = enclosing_step(time, self.steps) if self.steps else (time, time)
        noise, log_snr = torch.randn_like(y), self.schedule.log_snr(t)
        predicted = self.predict_noised(y, noise, log_snr, self.drop_conditions(batch))
        alpha, sigma, clean = predicted.alpha, predicted.sigma, y
        if self.config.stable_target:
            clean, noise = stable_target(predicted.z, y, noise, alpha, sigma)
        wanted = regression_target(predicted.of, clean, noise, alpha, sigma)
        error = (predicted.value - wanted).square().mean(1)
        losses = {"denoising": self.loss_weight(predicted, s, t) * error}
        if predicted.share is not None:
            fixed_mean = replace(predicted, of="x0", value=predicted.x0.detach())
            kl = entrywise_step_kl(self.schedule, s, t, y, fixed_mean, "learned").mean(1)
            losses["variance"] = VARIANCE_LOSS_WEIGHT * self.steps * kl
        return losses

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Sample z_1 ~ p(z_1), z_s ~ p(z_s | z_t) along the sampler, and x ~ p(x | z_0)."""
        settings = self.sampling_options(options)
        predict = self.sampling_predictor(n, given, settings, generator)
        z, sampler = self.sample_prior(n, generator), settings.sampler.build()
        for z_s, _ in sampler.sample(predict, self.schedule, z, generator, grid=self.steps):
            z = z_s
        return self.sample_data(z, predict, generator)

    def loss_weight(self, predicted: DenoiserPrediction, s: Tensor, t: Tensor) -> Tensor:
        """The weight (B,) of the squared error of what the network predicts."""
        if self.config.weight == "simple":
            return self.simple_weight(predicted)[:, 0]
        return predicted.noise_error_scale[:, 0].square() * self.noise_weight(s, t)

    def simple_weight(self, predicted: DenoiserPrediction) -> Tensor:
        """The weight (B, 1) that makes the error that of the network's output, which for a score
        is sigma times the score; the residual of x has the weight of the velocity."""
        square = predicted.sigma.square()
        if self.config.target == "residual":
            return (predicted.alpha.square() + square).square() / square
        return square if predicted.of == "score" else torch.ones_like(square)

    def noise_weight(self, s: Tensor, t: Tensor) -> Tensor:
        """The weight (B,) of |eps - eps_hat|^2."""
        log_snr, kind = self.schedule.log_snr(t), self.config.weight
        if kind == "snr":
            return torch.ones_like(t)
        if kind == "min_snr":
            return (self.config.gamma * torch.exp(-log_snr)).clamp(max=1)
        if self.steps:
            return 0.5 * self.steps * torch.expm1(self.schedule.log_snr(s) - log_snr)
        return -0.5 * self.schedule.derivative(t)

    @classmethod
    def preset(cls, name: str, space: Space) -> Config:
        """The choices of a paper, with the default network and schedule ends for these data."""
        net, high = default_network(space), max_log_snr(space)
        if name == "ddpm":
            return cls.Config(
                net=net,
                target="noise",
                steps=1000,
                weight="simple",
                schedule=NoiseSchedule.Config(shape="linear", high=high, low=-10.0),
            )
        return cls.Config(
            net=net,
            target="x0",
            steps=40,
            weight="elbo",
            variance="learned",
            schedule=NoiseSchedule.Config(shape="logsnr", high=high),
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        net, target, high = default_network(space), default_target(space), max_log_snr(space)
        if space.kind in TABLE_KINDS:  # names and fine numbers are resolved at different times
            schedule = NoiseSchedule.Config(shape="logsnr", high=high)
            config = cls.Config(
                net=net, target=target, schedule=schedule, weight="elbo", optional_first=True
            )
        else:
            config = cls.Config(
                net=net,
                target=target,
                schedule=NoiseSchedule.Config(high=high),
                clusters=default_clusters(space),
                stable_target=is_points(space),
            )
        return Defaults(config, default_recipe(space, config.clusters))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            net=MLPDenoiser.Config(width=32, depth=2),
            target="residual" if space.kind in TABLE_KINDS else "velocity",
            schedule=NoiseSchedule.Config(high=max_log_snr(space)),
            optional_first=True,
        )
