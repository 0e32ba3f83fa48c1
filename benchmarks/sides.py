"""Parts that benchmarks share: optional peer libraries, training steps, rows in memory."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from monge.core.batch import Batch
from monge.nn.layers.linear import Linear

Net = TypeVar("Net", bound=nn.Module)


def installed(name: str, module: str = "") -> bool:
    """Whether a peer library is installed; prints a note if it is not."""
    if importlib.util.find_spec(module or name):
        return True
    print(f"{name} is not installed, so it is left out; see scripts/bench-env")
    return False


def weights(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def by_torch(net: Net) -> Net:
    """A copy whose linear maps are layers of torch, as in the networks of those who use a peer."""
    made = copy.deepcopy(net)
    for module in made.modules():
        if type(module) is Linear:
            module.__class__ = nn.Linear
    return made


def stepper(
    net: nn.Module, loss: Callable[[], Tensor], decayed: bool = False
) -> Callable[[], None]:
    """A training step with torch's fused Adam, or AdamW if `decayed`."""
    kind = torch.optim.AdamW if decayed else torch.optim.Adam
    optimiser = kind(net.parameters(), 1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        loss().mean().backward()
        optimiser.step()

    return step


class InMemoryRows:
    """Rows (N, *event) in memory, converted to floats per batch."""

    lengths = None

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    @property
    def row_bytes(self) -> int:
        return self.x[0].numel() * self.x.element_size()

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        return Batch(self.x.index_select(0, index).float(), row=index)

    def whole(self) -> Batch:
        return self.batch(torch.arange(len(self)))
