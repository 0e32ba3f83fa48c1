"""Networks of couplings: they read what stays and what is given, and begin by saying nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...nn.mlp import MLP


class Reader(nn.Module):
    """A perceptron of [x; c] whose outputs are 0 at first; c is the part of the context that
    begins at `skip`."""

    def __init__(self, config: MLP.Config, inputs: int, context: int, outputs: int,
                 skip: int = 0) -> None:
        super().__init__()
        self.reads, self.own = bool(context), slice(skip, skip + context)
        self.net: MLP = config.build(inputs + context, outputs)
        nn.init.zeros_(self.net.out.weight)
        nn.init.zeros_(self.net.out.bias)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        told = context if self.reads else None
        return self.net(x if told is None else torch.cat([x, told[:, self.own]], 1))
