"""A dilated stack that is read at every depth: short reaches below, long ones above."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .dilated import Block, GatedBlock, Stack


class Ladder(Stack):
    """Gated blocks (van den Oord et al. 2016), what each hands over side by side, the shortest
    reach first: (B, T, width) -> (B, T, blocks width)."""

    def __init__(self, config: Stack.Config, context: int = 0) -> None:
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
