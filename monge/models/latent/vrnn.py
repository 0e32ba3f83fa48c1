r"""Variational recurrent network: a VAE at every step, its prior moved by the past

$h_t = f(h_{t-1}, x_t, z_t)$ by a recurrent network, and at each step a prior
$p(z_t | h_{t-1})$, a posterior $q(z_t | x_t, h_{t-1})$ and a law $p(x_t | z_t, h_{t-1})$, so that
$\log p(x) \ge E_q \sum_t \log p(x_t | z_{\le t}, x_{<t}) - KL(q(z_t | \cdot) \| p(z_t | \cdot))$
(Chung et al. 2015). What is given (a style, a content: Aksan, Pece & Hilliges 2018) is read at
every step by the recurrence, and so by all three laws.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.model import Defaults
from ...core.rng import derive_seed, keyed_normal, keyed_uniform
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from ...nn.recurrent import GRU, Recurrent
from ...nn.stepwise import Added
from ._frames import Codes, Frames
from ._particle_filter import FEW, filtered
from ._sequential import Stepped


class VRNN(Stepped):
    r"""$p(x | c) = \int \prod_t p(z_t | h_{t-1})\, p(x_t | z_t, h_{t-1})\, dz$ with
    $h_t = f(h_{t-1}, x_t, z_t, c)$: what is random in a step stays known to later ones."""

    carries = True
    completion = (
        "drawn step by step after those that were seen, whose codes a particle filter "
        "has weighed; more particles come nearer the law"
    )

    class Config(Stepped.Config):
        tag = "model/latent.vrnn"
        net: Recurrent.Config = GRU.Config(width=128)
        """Recurrent network: gru, lstm or rnn."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        features, width = self.features.width, config.part.width
        self.reader: MLP = config.part.build(features + config.latent, width)
        self.net = Added(config.net.build(width), self.context.width)
        self.equip([self.net.outputs], [self.net.outputs + features], self.net.outputs)

    def before(self, summary: Tensor) -> list[Tensor]:
        return [summary]

    def past(self, summary: Tensor) -> Tensor:
        return summary

    def enter(self, features: Tensor, z: Tensor) -> Tensor:
        return self.reader(torch.cat([features, z], -1))

    def course(
        self, rows: Frames, noise: Tensor | None, z: Tensor | None = None
    ) -> tuple[Codes, Tensor]:
        made = noise if z is None else z
        assert made is not None, "codes are given or made from noise"
        samples, size, steps = len(made), *rows.exist.shape
        context = None if rows.context is None else rows.context.repeat(samples, 1, 1)
        state = self.net.start(samples * size, steps + 1, context)
        summary = self.net.step(state, self.first.expand(samples * size, -1))
        features = self.embed(rows.x).repeat(samples, 1, 1)  # (S B, T, F)
        flat = made.flatten(0, 1).unbind(1)  # (S B, Z) each
        codes, past = [], []
        for own, here in zip(flat, features.unbind(1), strict=True):
            after = self.after(summary, here)
            told = (own, None) if z is None else (None, own)
            codes.append(self.codes([summary], after, *told))
            past.append(summary)
            if len(past) < steps:
                summary = self.net.step(state, self.enter(here, codes[-1].z))
        shape = (samples, size)
        joined = Codes.join([step.shaped(shape) for step in codes], 2)
        return joined, torch.stack(past, 1).unflatten(0, shape)

    def weighed(
        self, rows: Frames, options: Stepped.LikelihoodConfig, seed: int
    ) -> tuple[Tensor, Tensor]:
        shape, dtype = (options.samples, self.latent.shape[1]), rows.x.dtype

        def noise(step: int) -> Tensor:
            drawn = keyed_normal(rows.row, shape, derive_seed(seed, "codes", step, 0))
            return drawn.transpose(0, 1).to(dtype)  # (S, B, Z)

        uniform = keyed_uniform(rows.row, (rows.x.shape[1],), derive_seed(seed, "particles")).to(
            dtype
        )
        return filtered(
            self, rows, options.samples, FEW if options.filter else 0.0, noise, uniform
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        latent = min(16, max(2, 2 * space.dims // cls.count(space)), max(space.dims, 1))
        recipe = TrainConfig(lr=4e-3, batch_size=64, grad_clip=1.0, ema_decay=0.995)
        part = MLP.Config(width=96, depth=1)
        return Defaults(cls.Config(latent=latent, part=part, net=GRU.Config(width=96)), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        part = MLP.Config(width=8, depth=1)
        return cls.Config(latent=1, part=part, net=GRU.Config(width=8), components=2)
