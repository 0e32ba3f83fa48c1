r"""A schedule that is learned: $\lambda(t) = \lambda_0 - (\lambda_0 - \lambda_1)\, m(t)$.

$m(t) = \frac{r(t) - r(0)}{r(1) - r(0)}$ with
$r(t) = t + \sum_j v_j\, \varsigma(a_j (t - c_j))$ and $v_j, a_j > 0$ rises from 0 to 1 for every
value of its parameters (Kingma et al. 2021, app. H). So $\bar\alpha = \varsigma(\lambda)$ and
$1 - \bar\alpha = \varsigma(-\lambda)$ with the logistic $\varsigma$.

Variational diffusion: the bound itself is learned, and with it the schedule

$-\log p(x) \le KL(q(z_1 | x) \| p(z_1)) + E[-\log p(x | z_0)] + \frac12 E[-\lambda'(t) |\epsilon -
\hat\epsilon(z_t, \lambda_t)|^2]$,

three named terms: prior, reconstruction and diffusion (Kingma et al. 2021). In continuous time
the bound does not see how $\lambda$ falls between its ends, so its bend is free to lower the
variance of the estimate instead, which is a turn of its own; over T steps it lowers the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...core.model import Defaults, Losses, Update
from ...core.space import Space
from ...prob.noise_schedule import Family, Noising, check_end
from ._base import Aim, Diffusion, aim, network, recipe
from ._denoisers import MLP
from ._likelihood import Asked, prior, reconstruction, step_of
from ._parameterisation import target
from ._units import finest

HALVINGS = 50
"""Steps of the search for a time: as many as there are bits in a number, nearly."""
STEEP = 10.0
"""The slope at which each bend begins."""


class Gamma(Configured, nn.Module, Noising):
    """The ends of lambda are parameters where they are learned; its bend always is."""

    family: Family = "preserving"

    class Config(BaseConfig):
        tag = "noise/gamma"
        high: Annotated[float, Range(-2, 30)] = 10.0
        """Log-SNR at the data, at first."""
        low: Annotated[float, Range(-30)] = -6.0
        """Log-SNR at the noise, at first."""
        ends: bool = True
        """Learn both ends with the bound; those of reals stay, since their bound has no best."""
        width: Annotated[int, Range(1)] = 16
        """Bends."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_end(self.low)

    def __init__(self, config: Config, fixed: bool = False) -> None:
        super().__init__()
        ends = torch.tensor([config.high, config.low])
        self.ends = nn.Parameter(ends, requires_grad=config.ends and not fixed)
        self.size = nn.Parameter(torch.full((config.width,), -3.0))
        self.steep = nn.Parameter(torch.full((config.width,), STEEP).expm1().log())
        self.centre = nn.Parameter((torch.arange(config.width) + 0.5) / config.width)

    @property
    def bend(self) -> list[nn.Parameter]:
        """What shapes the way between the ends."""
        return [self.size, self.steep, self.centre]

    def rise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """r(t) and its derivative, of the shape of t."""
        v, a = F.softplus(self.size), F.softplus(self.steep)
        s = torch.sigmoid(a * (t[..., None] - self.centre))
        return t + (v * s).sum(-1), 1 + (v * a * s * (1 - s)).sum(-1)

    def curve(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """lambda and its derivative."""
        ends, _ = self.rise(torch.stack([t.new_zeros(()), t.new_ones(())]))
        here, slope = self.rise(t)
        high, per = self.ends[0], (self.ends[1] - self.ends[0]) / (ends[1] - ends[0])
        return high + per * (here - ends[0]), per * slope

    def log_snr(self, t: Tensor) -> Tensor:
        return self.curve(t)[0]

    def slope(self, t: Tensor) -> Tensor:
        return self.curve(t)[1]

    @torch.no_grad()
    def time(self, log_snr: Tensor) -> Tensor:
        low, high = torch.zeros_like(log_snr), torch.ones_like(log_snr)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            early = self.log_snr(middle) > log_snr
            low, high = torch.where(early, middle, low), torch.where(early, high, middle)
        return (low + high) / 2


EVERY = 5
"""Steps between two moves of the bend, each of which costs as much as one of the network."""


class VDM(Diffusion):
    """log p(x) >= -(prior + reconstruction + diffusion), all of which training lowers.

    Times are spread evenly over a batch; networks read waves of the datum that tell neighbouring
    levels apart, or what each entry tells of itself.
    """

    family_priority = 1
    presets = {
        "vdm": "Kingma et al. 2021: noise predicted by the bound itself in continuous "
        "time, z read with its waves, the schedule learned"
    }

    class Config(Diffusion.Config):
        tag = "model/diffusion.vdm"
        target: Aim = "rest"
        """What it predicts: x, the noise, the score, the velocity, or the rest of x, which no
        entry tells of itself; each says what the others do, but they begin elsewhere."""
        gamma: Gamma.Config = Gamma.Config()
        """The learned schedule."""
        steps: Annotated[int, Range(1)] | None = None
        """Steps T of the law; none is continuous time."""

    config: Config
    schedule: Gamma

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.schedule = config.gamma.build(not self.units.whole)
        self.steps = config.steps or 0

    def updates(self) -> Sequence[Update]:
        bend = {id(p) for p in self.schedule.bend}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in bend]
        if self.steps:
            return [Update("bound", self.loss, [*rest, *self.schedule.bend])]
        return [
            Update("bound", self.loss, rest),
            Update("variance", self.variance_of_bound, self.schedule.bend, every=EVERY),
        ]

    def loss(self, batch: Batch) -> Losses:
        y = self.enter(batch)
        ask = Asked(self.predict_at, self.schedule, self.units, y, batch.rows, 0)
        return {
            "prior": prior(self.schedule, y),
            "reconstruction": self.first_loss(ask),
            "diffusion": self.matching(batch, y),
        }

    def first_loss(self, ask: Asked) -> Tensor:
        """-log p(x | z_0); of reals its mean is known but for what the network does there, where
        it is trained anyway."""
        if self.units.whole:
            return reconstruction(ask, torch.randn_like(ask.y))
        s = torch.exp(-0.5 * self.schedule.ends[0])
        return 0.5 * ask.y.shape[1] - self.units.log_prob(ask.y, ask.y, s)

    def matching(self, batch: Batch, y: Tensor) -> Tensor:
        """One draw of the diffusion term, (B,)."""
        share, noise = self.shares(len(y)), torch.randn_like(y)
        s, t = step_of(share, self.steps) if self.steps else (share, share)
        log_snr, slope = self.schedule.curve(t)
        said = self.look(y, noise, log_snr, self.hint(batch))
        aim = target(said.of, y, noise, said.alpha, said.sigma)
        error = (said.noise_per * (said.value - aim)).square().sum(1)
        if self.steps:
            return 0.5 * self.steps * torch.expm1(self.schedule.log_snr(s) - log_snr) * error
        return -0.5 * slope * error

    def variance_of_bound(self, batch: Batch) -> Losses:
        """The mean square of the diffusion term, whose mean the bend does not change; in units of
        the entries."""
        y = self.enter(batch)
        return {"square": (self.matching(batch, y) / y.shape[1]).square()}

    @classmethod
    def preset(cls, name: str, space: Space) -> Config:
        """The choices of the paper, with the network and the ends that suit these data."""
        return cls.Config(
            net=network(space, waves=2), target="noise", gamma=Gamma.Config(high=finest(space))
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        target = aim(space)
        fine = target == "velocity" and space.kind == "levels"
        config = cls.Config(
            net=network(space, waves=2 if fine else 0),
            target=target,
            gamma=Gamma.Config(high=finest(space)),
        )
        return Defaults(config, recipe(space))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            net=MLP.Config(width=32, depth=2), gamma=Gamma.Config(high=finest(space), width=4)
        )
