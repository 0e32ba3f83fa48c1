r"""Root-mean-square activations and gradients of each layer, and its dead units.

Backpropagation multiplies a gradient by one Jacobian per layer, so that
$\|\prod_l J_l\| \le \prod_l \|J_l\|$: it vanishes or explodes geometrically with depth (Hochreiter
1991; Bengio, Simard & Frasconi 1994). A unit whose relu is 0 at every row has no gradient and does
not learn: it is dead. The profile shows where; `alarms` suggests a remedy.
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
MIN_DEAD, MIN_DEAD_UNITS = 0.8, 16
"""Share of the units of a layer that are dead from which it is reported, and its least units.
Where all are, the loss does not depend on the layer."""
CONVOLUTIONS = (nn.modules.conv._ConvNd,)
"""Layers whose units are channels, the second axis of their output; of others it is the last."""


@dataclass(frozen=True)
class LayerProfile:
    """Root mean squares at the output of a layer: of the activations, and of the loss gradient;
    its units, and the share of them that have no gradient at any row."""

    name: str
    signal: float
    gradient: float
    units: int = 0
    dead: float = 0.0


def profile(model: Model, batch: Batch) -> list[LayerProfile]:
    """Every layer with trainable weights that a loss depends on, in the order of first calls. The
    model is not changed."""
    seen: dict[str, list[Tensor]] = {}
    with ExitStack() as hooks, torch.random.fork_rng(devices=[]), torch.enable_grad():
        named = dict(model.named_modules())
        for name, layer in named.items():
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
            axis = 1 if isinstance(named[name], CONVOLUTIONS) else -1
            sizes = root_mean_square(each), root_mean_square(reached)
            layers.append(LayerProfile(name, *sizes, *dead_units(reached, axis)))
    return layers


def dead_units(gradients: Sequence[Tensor], axis: int) -> tuple[int, float]:
    """The units of a layer, and the share of them whose gradients are all 0."""
    units = gradients[0].shape[axis]
    alive = [g.movedim(axis, -1).reshape(-1, units).any(0) for g in gradients]
    return units, 1 - float(torch.stack(alive).any(0).double().mean())


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
    dead = max(layers, key=lambda layer: layer.dead * (layer.dead < 1), default=None)
    found = []
    if dead is not None and MIN_DEAD <= dead.dead < 1 and dead.units >= MIN_DEAD_UNITS:
        found.append(
            Finding(
                "dead units",
                f"{dead.dead:.0%} of the {dead.units} units of {dead.name} have no gradient at "
                "any of the rows",
                "use activation=leaky, or a smaller train.lr",
            )
        )
    alive = [layer for layer in layers if layer.gradient > 0]
    if len(alive) < 2:
        return found
    first, last = alive[0], alive[-1]
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
