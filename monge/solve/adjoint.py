r"""Gradients of the solution of an ODE by the adjoint method.

For $\dot y = f_\theta(t, y)$ and a loss of y(1), the adjoint $a = \partial L / \partial y(t)$ has
$\dot a = -a^T \partial f / \partial y$ and $\partial L / \partial \theta = \int_0^1 a^T \partial f
/ \partial \theta\, dt$ (Pontryagin 1962; Chen et al. 2018). State, adjoint and gradient are solved
together backwards from the end, so no forward step is stored. The gradient with respect to
the parameters is only an integral, so it does not affect the step size (Kidger, Chen & Lyons
2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .ode import DEFAULT_SOLVER, Field, Solver, State, Tally, integrate, walk


def integrate_adjoint(
    f: Field,
    start: State,
    params: Sequence[Tensor],
    begin: float = 0.0,
    end: float = 1.0,
    options: Solver = DEFAULT_SOLVER,
) -> State:
    """y(end), with gradients with respect to `start` and `params` by the adjoint method; f must
    not depend on anything else that requires a gradient."""
    with torch.no_grad():
        reached = integrate(f, start, (begin, end), options).end
    return _Adjoint.apply((f, begin, end, options, len(start)), *reached, *start, *params)


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, problem: tuple, *tensors: Tensor) -> State:
        size = problem[-1]
        reached, ctx.params, ctx.problem = tensors[:size], tensors[2 * size :], problem
        ctx.save_for_backward(*reached)
        return tuple(part.clone() for part in reached)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        f, begin, end, options, size = ctx.problem
        reached, params = ctx.saved_tensors, ctx.params
        state = (*reached, *slopes, *map(torch.zeros_like, params))
        options = replace(options, control="batch")
        steps = walk(backwards(f, params, size), state, (end, begin), options, Tally(), 2 * size)
        *_, (_, found) = steps
        return (None, *[None] * size, *found[size:])


def backwards(f: Field, params: Sequence[Tensor], size: int) -> Field:
    """The equation of (y, a, gradient of the parameters)."""

    def together(t: Tensor, state: State) -> State:
        with torch.enable_grad():
            y = tuple(part.detach().requires_grad_() for part in state[:size])
            v = f(t, y)
            pairs = [
                (part, -a) for part, a in zip(v, state[size:], strict=False) if part.requires_grad
            ]
            slopes = torch.autograd.grad(
                [part for part, _ in pairs],
                [*y, *params],
                [a for _, a in pairs],
                allow_unused=True,
                materialize_grads=True,
            )
        return (*(part.detach() for part in v), *slopes)

    return together
