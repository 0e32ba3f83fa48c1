r"""Root-mean-square activations and gradients of each layer.

Backpropagation multiplies a gradient by one Jacobian per layer, so that
$\|\prod_l J_l\| \le \prod_l \|J_l\|$: it vanishes or explodes geometrically with depth (Hochreiter
1991; Bengio, Simard & Frasconi 1994). The profile shows where; `alarms` suggests a remedy.
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

MAX_GRADIENT_RATIO = 1e5
"""Ratio of the gradients at two layers above which a problem is reported."""


@dataclass(frozen=True)
class LayerProfile:
    """Root mean squares at the output of a layer: of the activations, and of the loss gradient."""

    name: str
    signal: float
    gradient: float


def profile(model: Model, batch: Batch) -> list[LayerProfile]:
    """Every layer with trainable weights that a loss depends on, in the order of first calls. The
    model is not changed."""
    seen: dict[str, list[Tensor]] = {}
    with ExitStack() as hooks, torch.random.fork_rng(devices=[]), torch.enable_grad():
        for name, layer in model.named_modules():
            if any(p.requires_grad and p.ndim > 1 for p in layer.parameters(recurse=False)):
                handle = layer.register_forward_hook(record_output(name, seen))
                hooks.callback(handle.remove)
        terms = []
        for update in model.updates():
            rows = len(batch) // update.batches * update.batches  # as many for each member
            if update.params and rows:
                terms += [term.mean() for term in update.loss(batch[:rows]).values()]
        trainable = [term for term in terms if term.requires_grad]
        if not trainable or not seen:
            return []
        outputs = [y for each in seen.values() for y in each]
        found = iter(torch.autograd.grad(torch.stack(trainable).sum(), outputs, allow_unused=True))
    layers = []
    for name, each in seen.items():
        reached = [g for g in (next(found) for _ in each) if g is not None]
        if reached:
            layers.append(LayerProfile(name, root_mean_square(each), root_mean_square(reached)))
    return layers


def record_output(name: str, seen: dict[str, list[Tensor]]) -> Any:
    """A forward hook that records the outputs through which gradients flow."""

    def hook(layer: nn.Module, inputs: Any, output: Any) -> None:
        y = output[0] if isinstance(output, tuple) else output
        if isinstance(y, Tensor) and y.requires_grad:
            seen.setdefault(name, []).append(y)

    return hook


def root_mean_square(tensors: Sequence[Tensor]) -> float:
    """The root mean square over the entries of all tensors."""
    total = sum(t.detach().double().square().sum().item() for t in tensors)
    return (total / max(sum(t.numel() for t in tensors), 1)) ** 0.5


def alarms(layers: Sequence[LayerProfile]) -> list[Finding]:
    """Problems that the profile shows."""
    alive = [layer for layer in layers if layer.gradient > 0]
    if len(alive) < 2:
        return []
    first, last = alive[0], alive[-1]
    found = []
    if first.gradient * MAX_GRADIENT_RATIO < last.gradient:
        found.append(
            Finding(
                "vanishing gradients",
                f"the gradient at {first.name} is "
                f"{first.gradient / last.gradient:.0e} of that at {last.name}",
                "add residual connections or normalisation, or use fewer layers",
            )
        )
    if first.gradient > MAX_GRADIENT_RATIO * last.gradient:
        found.append(
            Finding(
                "exploding gradients",
                f"the gradient at {first.name} is "
                f"{first.gradient / last.gradient:.0e} times that at {last.name}",
                "try train.grad_clip=1, a smaller train.lr or normalisation",
            )
        )
    return found
