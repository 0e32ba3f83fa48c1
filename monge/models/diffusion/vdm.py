r"""Variational diffusion: the bound itself is learned, and with it the schedule

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
from torch import Tensor

from ...core.batch import Batch
from ...core.config import Range
from ...core.model import Losses, Suit, Turn
from ...core.space import Space
from ._accounting import Asked, prior, reconstruction, step_of
from ._base import Aim, Diffusion
from ._gamma import Gamma
from ._nets import MLP
from ._prediction import target
from ._suits import aim, network, recipe
from ._units import finest

EVERY = 5
"""Steps between two moves of the bend, each of which costs as much as one of the network."""


class VDM(Diffusion):
    """log p(x) >= -(prior + reconstruction + diffusion), all of which training lowers.

    Times are spread evenly over a batch; networks read waves of the datum that tell neighbouring
    levels apart, or what each entry tells of itself.
    """

    leads = 1
    presets = {"vdm": "Kingma et al. 2021: noise predicted by the bound itself in continuous "
                      "time, z read with its waves, the schedule learned"}

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

    def turns(self) -> Sequence[Turn]:
        bend = {id(p) for p in self.schedule.bend}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in bend]
        if self.steps:
            return [Turn("bound", self.loss, [*rest, *self.schedule.bend])]
        return [Turn("bound", self.loss, rest),
                Turn("variance", self.variance_of_bound, self.schedule.bend, every=EVERY)]

    def loss(self, batch: Batch) -> Losses:
        y = self.enter(batch)
        ask = Asked(self.predict_at, self.schedule, self.units, y, batch.rows, 0)
        return {"prior": prior(self.schedule, y),
                "reconstruction": self.first_loss(ask), "diffusion": self.matching(batch, y)}

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
        return cls.Config(net=network(space, waves=2), target="noise",
                          gamma=Gamma.Config(high=finest(space)))

    @classmethod
    def suit(cls, space: Space) -> Suit:
        target = aim(space)
        fine = target == "velocity" and space.kind == "levels"
        config = cls.Config(net=network(space, waves=2 if fine else 0), target=target,
                            gamma=Gamma.Config(high=finest(space)))
        return Suit(config, recipe(space))

    @classmethod
    def tiny(cls, space: Space) -> Config:
        return cls.Config(net=MLP.Config(width=32, depth=2),
                          gamma=Gamma.Config(high=finest(space), width=4))
