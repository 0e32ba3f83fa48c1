r"""Score-based model (SDE): the gradient of log p at every noise level, with Langevin sampling

$s(z, t) \approx \nabla_z \log p_t(z)$ for $z = \alpha_t x + \sigma_t \epsilon$, learned by one of

- `denoising`: $E\, \tfrac12 |s + \epsilon / \sigma|^2$ (Vincent 2011);
- `implicit`: $E[\mathrm{tr}\, \nabla s + \tfrac12 |s|^2]$ (Hyvarinen 2005), which needs no pairs;
- `sliced`: $E[e^T (\nabla s) e + \tfrac12 |s|^2]$, $E\, e e^T = I$ (Song et al. 2019),

each times $\sigma^2$ and with t spread evenly. They differ by constants: all have their minimum at
the score of $p_t$. Samples follow annealed Langevin dynamics (Song & Ermon 2019), or any sampler;
those of tables and of few levels the probability flow by DPM-Solver++, as the rates of names,
empty cells and levels that Langevin steps reach depend on their number and size.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...prob.noise_schedule import NoiseSchedule
from ...prob.row_embedding import TABLE_KINDS
from ...solve.jacobian_trace import exact_trace, hutchinson_trace
from ._base import (
    Diffusion,
    NetworkTarget,
    default_network,
    default_recipe,
    has_few_levels,
    is_points,
)
from ._conditioning import Conditioning
from ._denoisers import MLPDenoiser
from ._likelihood import alpha_sigma_columns
from ._ode_samplers import DPM
from ._parameterisation import stable_target
from ._samplers import Langevin, Sampler
from ._units import max_log_snr

EXPLODING = NoiseSchedule.Config(shape="logsnr", family="exploding")


class ScoreSDE(Diffusion):
    """p_t by its score; the log-likelihood of p at t = 0 is bounded or computed by the flow."""

    class Config(Diffusion.Config):
        tag = "model/diffusion.score_sde"
        target: NetworkTarget = "score"
        """What the network predicts; each determines the others. For tables and few levels
        residual: what the own noisy value of an entry does not determine of it."""
        objective: Literal["denoising", "implicit", "sliced"] = "denoising"
        """Score matching: error of the noise (denoising), trace of the score's Jacobian plus its
        squared norm (implicit), or the same with an estimated trace (sliced)."""
        probes: Annotated[int, Range(1)] = 1
        """sliced: random directions per row."""
        stable_target: bool = False
        """denoising: learn the mean of the noise over the rows of a batch that a noisy row may
        come from: the same minimum, at less variance. For models without conditions."""
        schedule: NoiseSchedule.Config = EXPLODING
        """Noise schedule."""

    class SamplingConfig(Diffusion.SamplingConfig):
        sampler: Sampler.Config = Langevin.Config()
        """Sampling algorithm, for a residual dpm by default: langevin or pc (corrections, ratio),
        ancestral (variance), ddim (eta), dpm (order, correct), heun (churn), ode (method,
        tolerance)."""

    config: Config

    def sampling_defaults(self) -> SamplingConfig:
        """DPM-Solver++ where the network predicts a residual: 10000 rows of SLID after 30 s take
        5 s and leave each column empty within 0.5 points of the rows, by Langevin steps 96 s and 1
        point; the energy distance of digits is 0.06, by Langevin steps 0.60."""
        if self.config.target == "residual":
            return self.SamplingConfig(sampler=DPM.Config())
        return self.SamplingConfig()

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.schedule = config.schedule.build()
        if config.stable_target:
            self.check_unconditional("stable_target")

    def loss(self, batch: Batch) -> Losses:
        """Noise each row to z = alpha y + sigma eps, then match the score there."""
        y, conditions = self.to_units(batch), self.drop_conditions(batch)
        noise, log_snr = torch.randn_like(y), self.schedule.log_snr(self.stratified_times(len(y)))
        objective = self.config.objective
        if objective == "denoising":
            predicted = self.predict_noised(y, noise, log_snr, conditions)
            if self.config.stable_target:
                alpha, sigma = predicted.alpha, predicted.sigma
                _, noise = stable_target(predicted.z, y, noise, alpha, sigma)
            return {objective: 0.5 * (noise - predicted.noise).square().mean(1)}
        alpha, sigma = alpha_sigma_columns(self.schedule, log_snr)
        z = alpha * y + sigma * noise
        return {objective: self.trace_loss(z, log_snr, conditions)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Sample z_1 ~ p(z_1), follow the scores to z_0, and sample x ~ p(x | z_0)."""
        settings = self.sampling_options(options)
        predict = self.sampling_predictor(n, given, settings, generator)
        z, sampler = self.sample_prior(n, generator), settings.sampler.build()
        for z_s, _ in sampler.sample(predict, self.schedule, z, generator, grid=self.steps):
            z = z_s
        return self.sample_data(z, predict, generator)

    def trace_loss(self, z: Tensor, log_snr: Tensor, conditions: Conditioning) -> Tensor:
        """sigma^2 (tr ds/dz + |s|^2 / 2) per entry, with the exact or an estimated trace, (B,)."""

        def score(point: Tensor) -> Tensor:
            return self.predict_at(point, log_snr, conditions).score

        if self.config.objective == "implicit":
            s, trace = exact_trace(score, z)
        else:
            signs = torch.randint(2, (len(z), self.config.probes, *z.shape[1:]), device=z.device)
            s, each = hutchinson_trace(score, z, 2.0 * signs.to(z) - 1)
            trace = each.mean(1)
        sigma = alpha_sigma_columns(self.schedule, log_snr)[1][:, 0]
        return sigma.square() * (trace + 0.5 * s.square().sum(1)) / z.shape[1]

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        schedule = NoiseSchedule.Config(
            shape="logsnr", family="exploding", high=max_log_snr(space)
        )
        config = cls.Config(
            net=default_network(space),
            target="residual" if has_few_levels(space) else score_target(space),
            schedule=schedule,
            optional_first=space.kind in TABLE_KINDS,
            stable_target=is_points(space),
        )
        return Defaults(config, default_recipe(space))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        schedule = NoiseSchedule.Config(
            shape="logsnr", family="exploding", high=max_log_snr(space)
        )
        return cls.Config(
            net=MLPDenoiser.Config(width=32, depth=2),
            target=score_target(space),
            schedule=schedule,
            optional_first=True,
        )


def score_target(space: Space) -> NetworkTarget:
    """The score, and for tables the residual, from which the score follows."""
    return "residual" if space.kind in TABLE_KINDS else "score"
