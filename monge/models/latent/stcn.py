r"""Stochastic temporal convolutional network (STCN): latent levels over dilated convolutions

A stack of dilated causal convolutions reads the steps; level l reads the outputs $d_t^l$ of its
own layers, with short receptive fields below and long ones above. At each step codes are sampled
from the top level down, $p(z_t^l | z_t^{l+1}, d_{t-1}^l)$, with
the posterior $q(z_t^l | z_t^{l+1}, d_t^l)$, and
$p(x_t | z_t^1, ..., z_t^L)$ reads them all (Aksan & Hilliges 2019). Later steps do not depend on
codes: all steps are trained in one pass, and completion from a prefix of whole frames is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.rng import derive_seed
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.dilated import DilatedBlock, DilatedStack, GatedBlock
from ...nn.layers.linear import Linear
from ...nn.mlp import MLP
from ...prob.distributions import log_mean_exp
from .._annealing import SAMPLES_PER_BLOCK
from ._frames import Frames, StepCodes
from ._particle_filter import sample_step_noise, start_sampling
from ._sequential import SequentialLatentModel


class LadderStack(DilatedStack):
    """Gated blocks (van den Oord et al. 2016) with the outputs of all blocks concatenated, the
    shortest receptive field first: (B, T, width) -> (B, T, blocks width)."""

    def __init__(self, config: DilatedStack.Config, context: int = 0) -> None:
        super().__init__(config, config.width * config.layers * config.cycles, context)

    def block(self, dilation: int) -> DilatedBlock:
        c = self.config
        return GatedBlock(c.width, c.kernel, dilation, self.context, c.dropout)

    def end(self, read: list[Tensor]) -> Tensor:
        return torch.cat(read, -1)

    def split(self, out: Tensor, levels: int) -> Sequence[Tensor]:
        """Outputs per level, each of consecutive blocks, the longest receptive field first."""
        return out.split(self.sizes(levels)[::-1], -1)[::-1] if levels > 1 else [out]

    def sizes(self, levels: int) -> list[int]:
        """Output size of each level, the longest receptive field first."""
        runs = torch.arange(len(self.blocks)).tensor_split(levels)
        return [len(run) * self.config.width for run in reversed(runs)]


class STCN(SequentialLatentModel):
    r"""$p(x | c) = \prod_t \int p(x_t | z_t) \prod_l p(z_t^l | z_t^{l+1}, d_{t-1}^l)\, dz_t$ with
    $d_{t-1}$ a function of $x_{<t}$ and c. Since later steps do not depend on codes, importance
    samples tighten the bound of each step separately."""

    carries_codes = False
    completion = (
        "sampled step by step given the observed steps, which is exact; a frame that is observed "
        "in part is chosen among particles, more of which are more exact"
    )

    class Config(SequentialLatentModel.Config):
        tag = "model/latent.stcn"
        width: Annotated[int, Range(1)] = 32
        """Channels of each layer."""
        layers: Annotated[int, Range(1, MAX_LAYERS)] = 6
        """Layers of the stack, with dilations 1, 2, 4, ..."""
        latent_levels: Annotated[int, Range(1, MAX_LAYERS)] = 2
        """Latent levels; each reads its own layers of the stack."""
        dropout: Annotated[float, Range(0, 0.9)] = 0.0
        """Dropout probability of each layer."""
        skip: bool = False
        """Let p(x | z) also read the outputs of the stack for the past."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.latent_levels > self.layers:
                raise UsageError(
                    f"latent_levels={self.latent_levels} needs at least as many layers, found "
                    f"layers={self.layers}; lower latent_levels or raise layers"
                )

    config: Config
    net: LadderStack

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        stack = DilatedStack.Config(
            width=config.width, layers=config.layers, dropout=config.dropout
        )
        self.net = LadderStack(stack, self.context_width)
        self.reader = Linear(self.features.width, config.width)
        sizes = self.net.sizes(config.latent_levels)
        self.build_step_nets(sizes, sizes, sum(sizes) if config.skip else 0)

    def loss(self, batch: Batch) -> Losses:
        """Negative ELBO in nats per step, so that a long row counts by its steps."""
        rows = self.to_frames(batch)
        noise = self.sample_noise(rows)
        codes, past = self.infer_steps(rows, noise)  # z_t^l ~ q(z_t^l | z_t^l+1, d_t^l)
        log_p = self.log_given_codes(rows, codes.z, past)[0].sum(1)  # sum_t log p(x_t | z_t)
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
        """z_t ~ p(z_t | x_<t) and x_t ~ p(x_t | z_t), step by step, (n, steps, ...)."""
        state = start_sampling(self, n, given, options)
        x = state.rows.x  # (n, T, D), filled frame by frame
        for step in range(x.shape[1]):
            # z_t^l ~ p(z_t^l | z_t^l+1, d_t-1^l) from the top down, x_t ~ p(x_t | z_t)
            state.advance(step, *sample_step_noise(self, 1, n, x, generator))
        return self.from_frames(state.rows)

    def prior_inputs(self, summary: Tensor) -> Sequence[Tensor]:
        return self.net.split(summary, self.config.latent_levels)

    def decoder_context(self, summary: Tensor) -> Tensor:
        return summary if self.config.skip else summary[..., :0]

    def net_input(self, features: Tensor, z: Tensor) -> Tensor:
        return self.reader(features)

    def infer_steps(
        self, rows: Frames, noise: Tensor | None, z: Tensor | None = None
    ) -> tuple[StepCodes, Tensor]:
        made = noise if z is None else z
        assert made is not None, "expected codes or noise"
        read = self.reader(self.embed(rows.x))  # (B, T, width)
        read = torch.cat([self.first.expand(len(read), 1, -1), read], 1)
        summary = self.net(read, rows.context).expand(len(made), -1, -1, -1)  # (S, B, T + 1, ..)
        then, now = summary[:, :, :-1], summary[:, :, 1:]
        return self.step_codes(
            self.prior_inputs(then), self.prior_inputs(now), noise, z
        ), self.decoder_context(then)

    def importance_weighted(
        self, rows: Frames, options: SequentialLatentModel.LikelihoodConfig, seed: int
    ) -> tuple[Tensor, Tensor]:
        parts = []
        for start in range(0, options.samples, SAMPLES_PER_BLOCK):
            count = min(SAMPLES_PER_BLOCK, options.samples - start)
            noise = self.keyed_noise(rows, count, derive_seed(seed, "codes", start))
            parts.append(self.log_weights(rows, noise))
        weights = torch.cat(parts)  # (S, B, T)
        value, error = log_mean_exp(weights if options.filter else weights.sum(2))
        return (value.sum(1), error.square().sum(1).sqrt()) if options.filter else (value, error)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        framed = cls.frame_defaults(space)
        frames = -(-cls.count(space) // framed["frame"])
        layers = max((frames - 1).bit_length(), 2)  # a receptive field of the row
        train_config = TrainConfig(lr=4e-3, batch_size=64, grad_clip=1.0, ema_decay=0.995)
        step_net = MLP.Config(width=96, depth=1)
        return Defaults(
            cls.Config(**framed, step_net=step_net, layers=layers, skip=True), train_config
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        step_net, frame = MLP.Config(width=8, depth=1), min(2, cls.count(space))
        return cls.Config(
            frame=frame, latent=1, step_net=step_net, width=4, layers=2, components=2
        )
