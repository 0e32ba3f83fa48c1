"""Tools of identities: random numbers, and the distance between two sides.

Jacobians by automatic differentiation, and the couplings of a model with what enters them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ..core.abilities import HasBijection
from ..core.batch import Batch
from ..prob.bijections.coupling import CouplingBijection


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def gap(left: Tensor, right: Tensor) -> float:
    """The largest difference of two entries."""
    return float((left - right).detach().abs().amax())


def relative(left: Tensor, right: Tensor) -> float:
    """The largest difference of two entries in units of their size."""
    return float(((left - right) / right).detach().abs().amax())


def standard_errors(samples: Tensor, mean: Tensor) -> float:
    """By how many standard errors the mean of samples (N, ...) is off."""
    error = samples.std(0) / len(samples) ** 0.5
    return float(((samples.mean(0) - mean).abs() / error).amax())


def most(*values: float | Iterable[float]) -> float:
    """The largest of several numbers; unlike `max`, it keeps a NaN."""
    each = [v for value in values for v in ([value] if isinstance(value, float | int) else value)]
    return float(torch.tensor(each, dtype=torch.float64).amax())


TOGETHER = 64
"""Copies of a row whose outputs are differentiated at once."""


def jacobian(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """df/dx of each row, (B, D, D), if no row of f reads another."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        columns = f(x).sum(0)
        each = [torch.autograd.grad(column, x, retain_graph=True)[0] for column in columns]
    return torch.stack(each, 1)


def jacobian_of_row(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """df/dx of the one row x (1, D), (1, D, D): of each output at a copy of its own."""
    parts = []
    with torch.enable_grad():
        for own in torch.arange(x.shape[1]).split(TOGETHER):
            copies = x.detach().expand(len(own), -1).clone().requires_grad_()
            chosen = f(copies)[torch.arange(len(own)), own]
            parts.append(torch.autograd.grad(chosen.sum(), copies)[0])
    return torch.cat(parts)[None]


def couplings(
    model: HasBijection, batch: Batch, z: Tensor
) -> list[tuple[CouplingBijection, Tensor, Tensor | None]]:
    """The couplings of a model, each with its input when latent codes z are decoded, and its
    context."""
    assert isinstance(model, nn.Module)
    found: list[tuple[CouplingBijection, Tensor, Tensor | None]] = []

    def note(layer: nn.Module, entered: tuple[Tensor, ...], _: object) -> None:
        assert isinstance(layer, CouplingBijection)
        found.append((layer, entered[0], entered[1] if len(entered) > 1 else None))

    hooks = [
        layer.register_forward_hook(note)
        for layer in model.modules()
        if isinstance(layer, CouplingBijection)
    ]
    try:
        model.push(z, batch.given)
    finally:
        for hook in hooks:
            hook.remove()
    return found
