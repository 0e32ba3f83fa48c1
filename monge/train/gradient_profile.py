r"""How signals and gradients fare from layer to layer.

Going back through layers a gradient is multiplied by a Jacobian each, so that
$\|\prod_l J_l\| \le \prod_l \|J_l\|$: it vanishes or explodes geometrically with depth (Hochreiter
1991; Bengio, Simard & Frasconi 1994). The profile shows where, the alarms say what mends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.abilities import Finding
from ..core.batch import Batch
from ..core.model import Model

APART = 1e5
"""Gradients at two layers that differ by more than this factor alarm."""


@dataclass(frozen=True)
class Layer:
    """Root mean squares at the output of a layer: of the signal, and of the loss's gradient."""

    name: str
    signal: float
    gradient: float


def profile(model: Model, batch: Batch) -> list[Layer]:
    """Every layer with weights that may move and that a loss reaches, in the order of its first
    call. Nothing of the model is changed."""
    seen: dict[str, list[Tensor]] = {}
    with ExitStack() as hooks, torch.random.fork_rng(devices=[]), torch.enable_grad():
        for name, layer in model.named_modules():
            if any(p.requires_grad and p.ndim > 1 for p in layer.parameters(recurse=False)):
                handle = layer.register_forward_hook(watch(name, seen))
                hooks.callback(handle.remove)
        played = [turn for turn in model.updates() if turn.params]
        terms = [term.mean() for turn in played for term in turn.loss(batch).values()]
        moving = [term for term in terms if term.requires_grad]
        if not moving or not seen:
            return []
        outputs = [y for each in seen.values() for y in each]
        found = iter(torch.autograd.grad(torch.stack(moving).sum(), outputs, allow_unused=True))
    layers = []
    for name, each in seen.items():
        reached = [g for g in (next(found) for _ in each) if g is not None]
        if reached:
            layers.append(Layer(name, size(each), size(reached)))
    return layers


def watch(name: str, seen: dict[str, list[Tensor]]) -> Any:
    """A hook that remembers the outputs a gradient can reach."""

    def hook(layer: nn.Module, inputs: Any, output: Any) -> None:
        y = output[0] if isinstance(output, tuple) else output
        if isinstance(y, Tensor) and y.requires_grad:
            seen.setdefault(name, []).append(y)

    return hook


def size(tensors: Sequence[Tensor]) -> float:
    """The root mean square of all entries."""
    total = sum(t.detach().double().square().sum().item() for t in tensors)
    return (total / max(sum(t.numel() for t in tensors), 1)) ** 0.5


def alarms(layers: Sequence[Layer]) -> list[Finding]:
    """What the profile says is wrong."""
    alive = [layer for layer in layers if layer.gradient > 0]
    if len(alive) < 2:
        return []
    first, last = alive[0], alive[-1]
    found = []
    if first.gradient * APART < last.gradient:
        found.append(
            Finding(
                "vanishing gradients",
                f"the gradient at {first.name} is "
                f"{first.gradient / last.gradient:.0e} of that at {last.name}",
                "add residual connections or normalisation, or use fewer layers",
            )
        )
    if first.gradient > APART * last.gradient:
        found.append(
            Finding(
                "exploding gradients",
                f"the gradient at {first.name} is "
                f"{first.gradient / last.gradient:.0e} times that at {last.name}",
                "try train.grad_clip=1, a smaller train.lr or normalisation",
            )
        )
    return found
