r"""A dilated stack that is read at every depth: short reaches below, long ones above.

Stochastic temporal convolution: codes in levels over a dilated causal stack

A stack of dilated causal convolutions reads the steps; level l has of it the vectors $d_t^l$ of
its own layers, short reaches below and long ones above. At each step codes are drawn from the top
level down, $p(z_t^l | z_t^{l+1}, d_{t-1}^l)$, with $q(z_t^l | z_t^{l+1}, d_t^l)$ beside it, and
$p(x_t | z_t^1, ..., z_t^L)$ reads them all (Aksan & Hilliges 2019). Codes enter no later step:
all steps are trained in one pass, and given the past the future is drawn exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.dilated import Block, DilatedStack, GatedBlock
from ...nn.mlp import MLP
from ...prob.distributions import log_mean_exp
from ._frames import Codes, Frames
from ._sequential import BLOCK, Stepped


class Ladder(DilatedStack):
    """Gated blocks (van den Oord et al. 2016), what each hands over side by side, the shortest
    reach first: (B, T, width) -> (B, T, blocks width)."""

    def __init__(self, config: DilatedStack.Config, context: int = 0) -> None:
        super().__init__(config, config.width * config.layers * config.cycles, context)

    def block(self, dilation: int) -> Block:
        c = self.config
        return GatedBlock(c.width, c.kernel, dilation, self.context, c.dropout)

    def end(self, read: list[Tensor]) -> Tensor:
        return torch.cat(read, -1)

    def split(self, out: Tensor, levels: int) -> Sequence[Tensor]:
        """What so many levels have of it, each its own run of blocks, the longest reach first."""
        return out.split(self.sizes(levels)[::-1], -1)[::-1] if levels > 1 else [out]

    def sizes(self, levels: int) -> list[int]:
        """Numbers that each level has, the longest reach first."""
        runs = torch.arange(len(self.blocks)).tensor_split(levels)
        return [len(run) * self.config.width for run in reversed(runs)]


class STCN(Stepped):
    r"""$p(x | c) = \prod_t \int p(x_t | z_t) \prod_l p(z_t^l | z_t^{l+1}, d_{t-1}^l)\, dz_t$ with
    $d_{t-1}$ a function of $x_{<t}$ and c. Since codes are not carried on, importance samples
    tighten each step on its own."""

    carries = False
    completion = "drawn step by step from the law given those that were seen, which is exact"

    class Config(Stepped.Config):
        tag = "model/latent.stcn"
        width: Annotated[int, Range(1)] = 32
        """Channels of each layer of the stack."""
        layers: Annotated[int, Range(1)] = 6
        """Layers of the stack: their dilations are 1, 2, 4, ..."""
        ladder: Annotated[int, Range(1)] = 2
        """Levels of codes; each reads its own layers of the stack."""
        dropout: Annotated[float, Range(0, 0.9)] = 0.0
        """Share of each layer's output that is dropped in training."""
        skip: bool = False
        """Let p(x | z) read what the stack says of the past besides codes."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.ladder > self.layers:
                raise UsageError(
                    f"ladder={self.ladder} levels need a layer each, and there are "
                    f"layers={self.layers}; lower the one or raise the other"
                )

    config: Config
    net: Ladder

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        stack = DilatedStack.Config(
            width=config.width, layers=config.layers, dropout=config.dropout
        )
        self.net = Ladder(stack, self.context.width)
        self.reader = nn.Linear(self.features.width, config.width)
        sizes = self.net.sizes(config.ladder)
        self.equip(sizes, sizes, sum(sizes) if config.skip else 0)

    def before(self, summary: Tensor) -> Sequence[Tensor]:
        return self.net.split(summary, self.config.ladder)

    def past(self, summary: Tensor) -> Tensor:
        return summary if self.config.skip else summary[..., :0]

    def enter(self, features: Tensor, z: Tensor) -> Tensor:
        return self.reader(features)

    def course(
        self, rows: Frames, noise: Tensor | None, z: Tensor | None = None
    ) -> tuple[Codes, Tensor]:
        made = noise if z is None else z
        assert made is not None, "codes are given or made from noise"
        read = self.reader(self.embed(rows.x))  # (B, T, width)
        read = torch.cat([self.first.expand(len(read), 1, -1), read], 1)
        summary = self.net(read, rows.context).expand(len(made), -1, -1, -1)  # (S, B, T + 1, ..)
        then, now = summary[:, :, :-1], summary[:, :, 1:]
        return self.codes(self.before(then), self.before(now), noise, z), self.past(then)

    def weighed(
        self, rows: Frames, options: Stepped.LikelihoodConfig, seed: int
    ) -> tuple[Tensor, Tensor]:
        parts = []
        for start in range(0, options.samples, BLOCK):
            noise = self.noise(rows, min(BLOCK, options.samples - start), seed, start)
            codes, past = self.course(rows, noise)
            ratio = (codes.log_prior - codes.log_posterior) * rows.exist
            parts.append(self.log_given(rows, codes.z, past) + ratio)
        weights = torch.cat(parts)  # (S, B, T)
        value, error = log_mean_exp(weights if options.filter else weights.sum(2))
        return (value.sum(1), error.square().sum(1).sqrt()) if options.filter else (value, error)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        steps = cls.count(space)
        layers = min(max((steps - 1).bit_length(), 2), 8)  # a reach of the row, or 256 steps
        latent = min(16, max(2, 2 * space.dims // steps), max(space.dims, 1))
        recipe = TrainConfig(lr=4e-3, batch_size=64, grad_clip=1.0, ema_decay=0.995)
        part = MLP.Config(width=96, depth=1)
        return Defaults(cls.Config(latent=latent, part=part, layers=layers, skip=True), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        part = MLP.Config(width=8, depth=1)
        return cls.Config(latent=1, part=part, width=4, layers=2, components=2)
