r"""Denoising diffusion: a network learns to take noise away, step by step

$q(z_t | x) = N(\alpha_t x, \sigma_t^2 I)$ and
$p(x) = \int p(z_1) \prod_t p(z_s | z_t)\, p(x | z_0)$ with
$p(z_s | z_t) = q(z_s | z_t, \hat x(z_t))$ (Sohl-Dickstein et al. 2015; Ho et al. 2020). The loss
is $E\, w(\lambda_t) |\epsilon - \hat\epsilon(z_t, \lambda_t)|^2$ with the weight

elbo     $\frac{T}{2} (e^{\lambda_s - \lambda_t} - 1)$, or $-\frac12 \lambda'$ in continuous time:
         the bound;
simple   that which makes it the error of what the network predicts, unweighted;
snr      1: $SNR \cdot |x - \hat x|^2$;
min_snr  $\min(SNR, \gamma) / SNR$ (Hang et al. 2023).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...prob.noise_schedule import Schedule
from ._base import Diffusion, aim, network, recipe
from ._denoisers import MLP
from ._likelihood import gaussian_step, step_of
from ._parameterisation import Prediction, target
from ._units import finest

HYBRID = 1e-3
"""Weight of the bound that teaches a learned variance, beside the loss that teaches the mean."""


class DDPM(Diffusion):
    """p(z_s | z_t) = N(mean of q(z_s | z_t, x), v) at x = x_hat(z_t, t), over T steps or in
    continuous time.

    v is the variance of that posterior, of the forward step, or learned between both (Nichol &
    Dhariwal 2021), entry by entry, by the bound, whose gradient does not reach the mean.
    """

    presets = {
        "sohl_dickstein": "Sohl-Dickstein et al. 2015: x predicted by the bound over 40 steps, "
        "variances learned",
        "ddpm": "Ho et al. 2020: noise predicted by the simple loss over 1000 steps of variance "
        "1e-4 to 0.02",
    }

    class Config(Diffusion.Config):
        tag = "model/diffusion.ddpm"
        schedule: Schedule.Config = Schedule.Config()
        """How noise rises from data to noise."""
        steps: Annotated[int, Range(1)] | None = None
        """Steps T of the law; none is continuous time."""
        weight: Literal["elbo", "simple", "snr", "min_snr"] = "simple"
        """How errors at different noise are weighed; elbo is the bound itself."""
        gamma: Annotated[float, Range(0, open=True)] = 5.0
        """min_snr: the SNR above which errors weigh no more."""
        variance: Literal["posterior", "forward", "learned"] = "posterior"
        """Variance of a step back; in continuous time they are one."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.variance != "posterior" and not self.steps:
                raise UsageError(
                    f"variance={self.variance} differs from posterior only over a "
                    "number of steps; give steps=1000 too"
                )

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.schedule = config.schedule.build()
        self.steps, self.variance = config.steps or 0, config.variance

    @property
    def learns_variance(self) -> bool:
        return self.config.variance == "learned"

    def loss(self, batch: Batch) -> Losses:
        y, share = self.enter(batch), self.shares(len(batch))
        s, t = step_of(share, self.steps) if self.steps else (share, share)
        noise, log_snr = torch.randn_like(y), self.schedule.log_snr(t)
        said = self.look(y, noise, log_snr, self.hint(batch))
        aim = target(said.of, y, noise, said.alpha, said.sigma)
        error = (said.value - aim).square().mean(1)
        losses = {"denoising": self.weigh(said, s, t) * error}
        if said.share is not None:
            still = Prediction(said.z, said.alpha, said.sigma, "x0", said.x0.detach(), said.share)
            kl = gaussian_step(self.schedule, s, t, y, still, "learned").mean(1)
            losses["variance"] = HYBRID * self.steps * kl
        return losses

    def weigh(self, said: Prediction, s: Tensor, t: Tensor) -> Tensor:
        """The weight (B,) of the squared error of what the network predicts."""
        if self.config.weight == "simple":
            return self.simple(said)[:, 0]
        return said.noise_per[:, 0].square() * self.weight_of_noise(s, t)

    def simple(self, said: Prediction) -> Tensor:
        """The weight (B, 1) that makes the error one of what the network puts out: the score times
        sigma; and the rest of x weighs as the velocity would."""
        square = said.sigma.square()
        if self.config.target == "rest":
            return (said.alpha.square() + square).square() / square
        return square if said.of == "score" else torch.ones_like(square)

    def weight_of_noise(self, s: Tensor, t: Tensor) -> Tensor:
        """The weight (B,) of |eps - eps_hat|^2."""
        log_snr, kind = self.schedule.log_snr(t), self.config.weight
        if kind == "snr":
            return torch.ones_like(t)
        if kind == "min_snr":
            return (self.config.gamma * torch.exp(-log_snr)).clamp(max=1)
        if self.steps:
            return 0.5 * self.steps * torch.expm1(self.schedule.log_snr(s) - log_snr)
        return -0.5 * self.schedule.slope(t)

    @classmethod
    def preset(cls, name: str, space: Space) -> Config:
        """The choices of a paper, with the network and the ends that suit these data."""
        net, high = network(space), finest(space)
        if name == "ddpm":
            return cls.Config(
                net=net,
                target="noise",
                steps=1000,
                weight="simple",
                schedule=Schedule.Config(shape="linear", high=high, low=-10.0),
            )
        return cls.Config(
            net=net,
            target="x0",
            steps=40,
            weight="elbo",
            variance="learned",
            schedule=Schedule.Config(shape="logsnr", high=high),
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        schedule = Schedule.Config(high=finest(space))
        config = cls.Config(net=network(space), target=aim(space), schedule=schedule)
        return Defaults(config, recipe(space))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            net=MLP.Config(width=32, depth=2), schedule=Schedule.Config(high=finest(space))
        )
