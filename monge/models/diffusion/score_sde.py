r"""Score model: the gradient of log p at every level of noise, followed by Langevin dynamics

$s(z, t) \approx \nabla_z \log p_t(z)$ for $z = \alpha_t x + \sigma_t \epsilon$, learned by one of

denoising  $E\, \tfrac12 |s + \epsilon / \sigma|^2$ (Vincent 2011);
implicit   $E[\mathrm{tr}\, \nabla s + \tfrac12 |s|^2]$ (Hyvarinen 2005), which needs no pairs;
sliced     $E[e^T (\nabla s) e + \tfrac12 |s|^2]$, $E\, e e^T = I$ (Song et al. 2019),

each times $\sigma^2$ and with t spread evenly. They differ by constants: all have their minimum at
the score of $p_t$. Draws follow annealed Langevin dynamics (Song & Ermon 2019), or any sampler.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...prob.noise_schedule import Schedule
from ...solve.jacobian_trace import exact_trace, hutchinson_trace
from ._base import Diffusion, network, recipe
from ._conditioning import Told
from ._denoisers import MLP
from ._likelihood import columns
from ._parameterisation import Target
from ._samplers import Langevin, Sampler
from ._units import finest

EXPLODING = Schedule.Config(shape="logsnr", family="exploding")


class Score(Diffusion):
    """p_t by its score; p itself, t = 0, is scored by the bound and by the flow that have it."""

    class Config(Diffusion.Config):
        tag = "model/diffusion.score_sde"
        target: Target = "score"
        """What the network predicts; each says what the others do."""
        match: Literal["denoising", "implicit", "sliced"] = "denoising"
        """What is minimised: the error of the noise, the trace of the score's derivative and its
        size, or the same with the trace along random directions."""
        probes: Annotated[int, Range(1)] = 1
        """sliced: directions a row."""
        schedule: Schedule.Config = EXPLODING
        """Levels of noise."""

    class SamplingConfig(Diffusion.SamplingConfig):
        sampler: Sampler.Config = Langevin.Config()
        """How noise becomes data: langevin or pc (corrections, ratio), ancestral (variance), ddim
        (eta), dpm (order, correct), heun (churn), ode (method, tolerance)."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.schedule = config.schedule.build()

    def loss(self, batch: Batch) -> Losses:
        y, told = self.enter(batch), self.hint(batch)
        noise, log_snr = torch.randn_like(y), self.schedule.log_snr(self.shares(len(y)))
        if self.config.match == "denoising":
            said = self.look(y, noise, log_snr, told)
            return {"denoising": 0.5 * (noise - said.noise).square().mean(1)}
        alpha, sigma = columns(self.schedule, log_snr)
        return {self.config.match: self.matched(alpha * y + sigma * noise, log_snr, told)}

    def matched(self, z: Tensor, log_snr: Tensor, told: Told) -> Tensor:
        """sigma^2 (tr ds/dz + |s|^2 / 2) an entry, exactly or along random directions, (B,)."""

        def score(point: Tensor) -> Tensor:
            return self.predict_at(point, log_snr, told).score

        if self.config.match == "implicit":
            s, trace = exact_trace(score, z)
        else:
            signs = torch.randint(2, (len(z), self.config.probes, *z.shape[1:]), device=z.device)
            s, each = hutchinson_trace(score, z, 2.0 * signs.to(z) - 1)
            trace = each.mean(1)
        sigma = columns(self.schedule, log_snr)[1][:, 0]
        return sigma.square() * (trace + 0.5 * s.square().sum(1)) / z.shape[1]

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        schedule = Schedule.Config(shape="logsnr", family="exploding", high=finest(space))
        return Defaults(cls.Config(net=network(space), schedule=schedule), recipe(space))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        schedule = Schedule.Config(shape="logsnr", family="exploding", high=finest(space))
        return cls.Config(net=MLP.Config(width=32, depth=2), schedule=schedule)
