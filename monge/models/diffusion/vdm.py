r"""Variational diffusion (VDM): the likelihood bound itself is trained, with the noise schedule

$-\log p(x) \le KL(q(z_1 | x) \| p(z_1)) + E[-\log p(x | z_0)] + \frac12 E[-\lambda'(t) |\epsilon -
\hat\epsilon(z_t, \lambda_t)|^2]$,

three named terms: prior, reconstruction and diffusion (Kingma et al. 2021). In continuous time
the bound depends only on the ends of $\lambda$, so the shape between them minimises the variance
of the estimate instead, in an update of its own; over T steps it minimises the bound.

The learned schedule is $\lambda(t) = \lambda_0 - (\lambda_0 - \lambda_1)\, m(t)$, where
$m(t) = \frac{r(t) - r(0)}{r(1) - r(0)}$ with
$r(t) = t + \sum_j v_j\, \varsigma(a_j (t - c_j))$ and $v_j, a_j > 0$ rises from 0 to 1 for every
value of its parameters (Kingma et al. 2021, app. H). So $\bar\alpha = \varsigma(\lambda)$ and
$1 - \bar\alpha = \varsigma(-\lambda)$ with the logistic $\varsigma$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import MAX_STEPS, Configured, Range
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses, Update
from ...core.space import Space
from ...prob.noise_schedule import Family, NoiseProcess, check_final_log_snr
from ...prob.row_embedding import TABLE_KINDS
from ._base import (
    Diffusion,
    NetworkTarget,
    default_clusters,
    default_network,
    default_recipe,
    default_target,
)
from ._denoisers import MLPDenoiser
from ._likelihood import LikelihoodInputs, enclosing_step, prior_kl, reconstruction
from ._parameterisation import regression_target
from ._units import max_log_snr

BISECTION_STEPS = 50
"""Bisection steps of the inverse of the schedule: about the bits of a double."""
INITIAL_STEEPNESS = 10.0
"""Steepness of each sigmoid at initialisation."""


class LearnedSchedule(Configured, nn.Module, NoiseProcess):
    """A learned noise schedule: its shape is learned, and its ends may be."""

    family: Family = "preserving"

    class Config(BaseConfig):
        tag = "noise/gamma"
        high: Annotated[float, Range(-2, 30)] = 10.0
        """Log-SNR at the data (t = 0) at initialisation."""
        low: Annotated[float, Range(-30)] = -6.0
        """Log-SNR at the noise (t = 1) at initialisation."""
        learn_ends: bool = True
        """Learn both ends with the bound; for reals they are fixed, as their bound has no
        optimum."""
        width: Annotated[int, Range(1)] = 16
        """Number of sigmoids in the schedule."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_final_log_snr(self.low)

    def __init__(self, config: Config, fixed: bool = False) -> None:
        super().__init__()
        ends = torch.tensor([config.high, config.low])
        self.ends = nn.Parameter(ends, requires_grad=config.learn_ends and not fixed)
        self.size = nn.Parameter(torch.full((config.width,), -3.0))
        self.steep = nn.Parameter(torch.full((config.width,), INITIAL_STEEPNESS).expm1().log())
        self.centre = nn.Parameter((torch.arange(config.width) + 0.5) / config.width)

    @property
    def shape_params(self) -> list[nn.Parameter]:
        """The parameters of the shape between the ends."""
        return [self.size, self.steep, self.centre]

    def rise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """r(t) and its derivative, of the shape of t."""
        v, a = F.softplus(self.size), F.softplus(self.steep)
        s = torch.sigmoid(a * (t[..., None] - self.centre))
        return t + (v * s).sum(-1), 1 + (v * a * s * (1 - s)).sum(-1)

    def log_snr_and_derivative(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """lambda and its derivative."""
        ends, _ = self.rise(torch.stack([t.new_zeros(()), t.new_ones(())]))
        here, derivative = self.rise(t)
        high, per = self.ends[0], (self.ends[1] - self.ends[0]) / (ends[1] - ends[0])
        return high + per * (here - ends[0]), per * derivative

    def log_snr(self, t: Tensor) -> Tensor:
        return self.log_snr_and_derivative(t)[0]

    def derivative(self, t: Tensor) -> Tensor:
        return self.log_snr_and_derivative(t)[1]

    @torch.no_grad()
    def time(self, log_snr: Tensor) -> Tensor:
        low, high = torch.zeros_like(log_snr), torch.ones_like(log_snr)
        for _ in range(BISECTION_STEPS):
            middle = (low + high) / 2
            early = self.log_snr(middle) > log_snr
            low, high = torch.where(early, middle, low), torch.where(early, high, middle)
        return (low + high) / 2


SCHEDULE_UPDATE_EVERY = 5
"""Training steps between two updates of the schedule's shape, each as costly as a step."""


class VDM(Diffusion):
    """log p(x) >= -(prior + reconstruction + diffusion), all of which training minimises.

    Times are spread evenly over a batch. The network reads Fourier features of the data, which
    separate neighbouring levels, or predicts the residual of an entrywise estimate.
    """

    family_priority = 1
    presets = {
        "vdm": "Kingma et al. 2021: noise predicted by the bound itself in continuous "
        "time, Fourier features of z, the schedule learned"
    }

    class Config(Diffusion.Config):
        tag = "model/diffusion.vdm"
        target: NetworkTarget = "residual"
        """What the network predicts: x0, noise, score, velocity, or residual, the part of x that
        an entry's own noisy value does not determine."""
        schedule: LearnedSchedule.Config = LearnedSchedule.Config()
        """The learned noise schedule."""
        steps: Annotated[int, Range(1, MAX_STEPS)] | None = None
        """Time steps T of the model; none is continuous time."""

    config: Config
    schedule: LearnedSchedule

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.schedule = config.schedule.build(not self.units.discrete)
        self.steps = config.steps or 0

    def updates(self) -> Sequence[Update]:
        shape = {id(p) for p in self.schedule.shape_params}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in shape]
        if self.steps:
            return [Update("bound", self.loss, [*rest, *self.schedule.shape_params])]
        return [
            Update("bound", self.loss, rest),
            Update(
                "variance",
                self.variance_of_bound,
                self.schedule.shape_params,
                every=SCHEDULE_UPDATE_EVERY,
            ),
        ]

    def loss(self, batch: Batch) -> Losses:
        """The three terms of the bound, each by one sample of time and noise per row."""
        y = self.to_units(batch)
        detail = self.units.detail(batch.x)
        inputs = LikelihoodInputs(
            self.predict_at, self.schedule, self.units, y, batch.rows, 0, detail=detail
        )
        return {
            "prior": prior_kl(self.schedule, y),
            "reconstruction": self.reconstruction_loss(inputs),
            "diffusion": self.diffusion_loss(batch, y),
        }

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

    def reconstruction_loss(self, inputs: LikelihoodInputs) -> Tensor:
        """-log p(x | z_0); for reals its mean with a perfect network at t = 0, which the diffusion
        term trains."""
        y = inputs.y
        if self.units.discrete:
            return reconstruction(inputs, torch.randn_like(y))
        s = torch.exp(-0.5 * self.schedule.ends[0])
        known = self.units.log_prob(y, y, s) + inputs.detail
        return 0.5 * int(self.units.continuous.sum()) - known

    def diffusion_loss(self, batch: Batch, y: Tensor) -> Tensor:
        """One sample of the diffusion term, (B,)."""
        time, noise = self.stratified_times(len(y)), torch.randn_like(y)
        s, t = enclosing_step(time, self.steps) if self.steps else (time, time)
        log_snr, derivative = self.schedule.log_snr_and_derivative(t)
        predicted = self.predict_noised(y, noise, log_snr, self.drop_conditions(batch))
        wanted = regression_target(predicted.of, y, noise, predicted.alpha, predicted.sigma)
        error = (predicted.noise_error_scale * (predicted.value - wanted)).square().sum(1)
        if self.steps:
            return 0.5 * self.steps * torch.expm1(self.schedule.log_snr(s) - log_snr) * error
        return -0.5 * derivative * error

    def variance_of_bound(self, batch: Batch) -> Losses:
        """The mean square of the diffusion term per entry; its mean is independent of the shape of
        the schedule, so this minimises its variance."""
        y = self.to_units(batch)
        return {"square": (self.diffusion_loss(batch, y) / y.shape[1]).square()}

    @classmethod
    def preset(cls, name: str, space: Space) -> Config:
        """The choices of the paper, with the default network and schedule ends for these data."""
        return cls.Config(
            net=default_network(space, waves=2),
            target="noise",
            schedule=LearnedSchedule.Config(high=max_log_snr(space)),
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        target = default_target(space)
        fine = target == "velocity" and space.kind == "levels"
        config = cls.Config(
            net=default_network(space, waves=2 if fine else 0),
            target=target,
            clusters=default_clusters(space),
            schedule=LearnedSchedule.Config(high=max_log_snr(space)),
            optional_first=space.kind in TABLE_KINDS,
        )
        return Defaults(config, default_recipe(space, config.clusters))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            net=MLPDenoiser.Config(width=32, depth=2),
            schedule=LearnedSchedule.Config(high=max_log_snr(space), width=4),
            optional_first=True,
        )
