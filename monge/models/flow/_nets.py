"""Networks of couplings: they read what stays and what is given, and begin by saying nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...nn.mlp import MLP


class Reader(nn.Module):
    """A perceptron of [x; c] whose outputs are 0 at first."""

    def __init__(self, config: MLP.Config, inputs: int, context: int, outputs: int) -> None:
        super().__init__()
        self.net: MLP = config.build(inputs + context, outputs)
        nn.init.zeros_(self.net.out.weight)
        nn.init.zeros_(self.net.out.bias)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.net(x if context is None else torch.cat([x, context], 1))
