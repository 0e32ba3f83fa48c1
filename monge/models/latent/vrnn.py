r"""Variational recurrent network (VRNN): a VAE at every step, its prior conditioned on the past

$h_t = f(h_{t-1}, x_t, z_t)$ by a recurrent network, and at each step a prior
$p(z_t | h_{t-1})$, a posterior $q(z_t | x_t, h_{t-1})$ and a decoder $p(x_t | z_t, h_{t-1})$,
so that
$\log p(x) \ge E_q \sum_t \log p(x_t | z_{\le t}, x_{<t}) - KL(q(z_t | \cdot) \| p(z_t | \cdot))$
(Chung et al. 2015). Conditions (a style, a content: Aksan, Pece & Hilliges 2018) enter the
recurrence at every step, and so all three distributions.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.rng import derive_seed, keyed_uniform
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from ...nn.recurrent import GRU, RecurrentNet
from ...nn.stepwise import ContextAdded
from ._frames import Frames, StepCodes
from ._particle_filter import (
    MIN_EFFECTIVE_SHARE,
    filter_log_likelihood,
    sample_step_noise,
    start_sampling,
)
from ._sequential import SequentialLatentModel


class VRNN(SequentialLatentModel):
    r"""$p(x | c) = \int \prod_t p(z_t | h_{t-1})\, p(x_t | z_t, h_{t-1})\, dz$ with
    $h_t = f(h_{t-1}, x_t, z_t, c)$: later steps depend on the codes of earlier ones."""

    carries_codes = True
    completion = (
        "sampled step by step after the observed ones, whose codes a particle filter "
        "infers; more particles are more exact"
    )

    class Config(SequentialLatentModel.Config):
        tag = "model/latent.vrnn"
        net: RecurrentNet.Config = GRU.Config(width=128)
        """Recurrent network: gru, lstm or rnn."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        features, width = self.features.width, config.step_net.width
        self.reader: MLP = config.step_net.build(features + config.latent, width)
        self.net = ContextAdded(config.net.build(width), self.context_width)
        self.build_step_nets([self.net.outputs], [self.net.outputs + features], self.net.outputs)

    def loss(self, batch: Batch) -> Losses:
        """Negative ELBO in nats per step, so that a long row counts by its steps."""
        rows = self.to_frames(batch)
        noise = self.sample_noise(rows)
        codes, past = self.infer_steps(rows, noise)  # z_t ~ q(z_t | x_t, h_t-1)
        # sum_t log p(x_t | z_t, h_t-1)
        log_p = self.log_given_codes(rows, codes.z, past)[0].sum(1)
        kl = (codes.kl.sum(-1) * rows.exist)[0].sum(1)
        beta, share = self.kl_weight(batch.step), self.loss_share(rows)
        return {"reconstruction": share * -log_p, "kl": beta * share * kl}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z_t ~ p(z_t | h_t-1) and x_t ~ p(x_t | z_t, h_t-1), step by step, (n, steps, ...)."""
        state = start_sampling(self, n, given, options)
        x = state.rows.x  # (n, T, D), filled frame by frame
        for step in range(x.shape[1]):
            # z_t ~ p(z_t | h_t-1), x_t ~ p(x_t | z_t, h_t-1), h_t = f(h_t-1, x_t, z_t)
            state.advance(step, *sample_step_noise(self, 1, n, x, generator))
        return self.from_frames(state.rows)

    def prior_inputs(self, summary: Tensor) -> list[Tensor]:
        return [summary]

    def decoder_context(self, summary: Tensor) -> Tensor:
        return summary

    def net_input(self, features: Tensor, z: Tensor) -> Tensor:
        return self.reader(torch.cat([features, z], -1))

    def infer_steps(
        self, rows: Frames, noise: Tensor | None, z: Tensor | None = None
    ) -> tuple[StepCodes, Tensor]:
        made = noise if z is None else z
        assert made is not None, "expected codes or noise"
        samples, size, steps = len(made), *rows.exist.shape
        context = None if rows.context is None else rows.context.repeat(samples, 1, 1)
        state = self.net.start(samples * size, steps + 1, context)
        summary = self.net.step(state, self.first.expand(samples * size, -1))
        features = self.embed(rows.x).repeat(samples, 1, 1)  # (S B, T, F)
        flat = made.flatten(0, 1).unbind(1)  # (S B, Z) each
        codes, past = [], []
        for own, here in zip(flat, features.unbind(1), strict=True):
            after = self.posterior_inputs(summary, here)
            inputs = (own, None) if z is None else (None, own)
            codes.append(self.step_codes([summary], after, *inputs))
            past.append(summary)
            if len(past) < steps:
                summary = self.net.step(state, self.net_input(here, codes[-1].z))
        shape = (samples, size)
        joined = StepCodes.concat([step.unflatten(shape) for step in codes], 2)
        return joined, torch.stack(past, 1).unflatten(0, shape)

    def importance_weighted(
        self, rows: Frames, options: SequentialLatentModel.LikelihoodConfig, seed: int
    ) -> tuple[Tensor, Tensor]:
        codes = derive_seed(seed, "codes", 0)
        uniform = keyed_uniform(rows.row, (rows.x.shape[1],), derive_seed(seed, "particles"))
        return filter_log_likelihood(
            self,
            rows,
            options.samples,
            MIN_EFFECTIVE_SHARE if options.filter else 0.0,
            partial(self.step_noise, rows, options.samples, codes),
            uniform.to(rows.x.dtype),
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        train_config = TrainConfig(lr=4e-3, batch_size=64, grad_clip=1.0, ema_decay=0.995)
        step_net = MLP.Config(width=96, depth=1)
        return Defaults(
            cls.Config(**cls.frame_defaults(space), step_net=step_net, net=GRU.Config(width=96)),
            train_config,
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        step_net, frame = MLP.Config(width=8, depth=1), min(2, cls.count(space))
        return cls.Config(
            frame=frame, latent=1, step_net=step_net, net=GRU.Config(width=8), components=2
        )
