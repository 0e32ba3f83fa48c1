r"""Identities of continuous flows: $\dot x = v(x, t)$ and what it does to volume.

$\log|\det \partial x(1) / \partial x(0)| = \int_0^1 \mathrm{tr}\, \partial v / \partial x\, dt$,
the trace by its own formula, by products with the Jacobian, or in the mean over random directions;
and the solvers and gradients that this needs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..models.flow._continuous import ContinuousBijection
from ..nn.layers.activation import Activation
from ..nn.mlp import MLP
from ..solve.adjoint import integrate_adjoint
from ..solve.jacobian_trace import exact_trace, hutchinson_trace, mean_and_error, sample_probes
from ..solve.ode import TABLEAUX, Solver, integrate_one
from ._helpers import gap, jacobian, most, normal
from .framework import Residual

FINE = Solver("rk4", steps=160)
FAIR = Solver("rk4", steps=75)
DIMS, GIVEN = 3, 2
PROBES = 1000
WAVES = 2


def flow(
    solver: Solver = FINE, activation: Activation = "tanh", depth: int = 2
) -> ContinuousBijection:
    """A continuous flow of DIMS entries with a random network."""
    config = MLP.Config(width=16, depth=depth, activation=activation, residual=True)
    made = ContinuousBijection(config, (DIMS,), GIVEN, solver, WAVES).double()
    for parameter in made.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def x79_trace_is_the_log_determinant() -> Residual:
    """int_0^1 tr dv/dx dt = log |det dx(1)/dx(0)| of the solved flow.

    Examines: models.flow._continuous.

    Source: Chen et al. 2018, Neural Ordinary Differential Equations, theorem 1."""
    made, x, context = flow(), normal(4, DIMS), normal(4, GIVEN)
    matrix = jacobian(lambda y: made.inverse(y, context)[0], x)
    return Residual(gap(torch.linalg.slogdet(matrix)[1], made.inverse(x, context)[1]), 1e-8)


def x79_flow_is_undone_by_going_back() -> Residual:
    """x(0) -> x(1) -> x(0) is the identity, and the integrals cancel.

    Examines: models.flow._continuous.

    Source: Chen et al. 2018, Neural Ordinary Differential Equations, sec. 4."""
    made, x, context = flow(), normal(4, DIMS), normal(4, GIVEN)
    z, there = made.inverse(x, context)
    again, back = made(z, context)
    return Residual(most(gap(again, x), gap(there, -back)), 1e-8)


def x79_written_trace_is_the_jacobians() -> Residual:
    """tr dv/dx computed through the layers = the sum of D derivatives.

    Examines: models.flow._continuous, models.flow._velocity, solve.jacobian_trace.

    Source: Grathwohl et al. 2019, FFJORD, sec. 3."""
    missed: list[float] = []
    smooth: tuple[Activation, ...] = ("silu", "tanh", "softplus")
    for activation in smooth:
        for depth in (0, 1, 3):
            velocity = flow(activation=activation, depth=depth).velocity
            x, t, context = normal(4, DIMS), torch.rand(4).double(), normal(4, GIVEN)
            written = velocity.traced(x, t, context)
            plain = exact_trace(lambda y: velocity(y, t, context), x)  # noqa: B023
            missed += map(gap, written, plain)
    return Residual(most(missed), 1e-12)


def x79_hutchinson_is_unbiased() -> Residual:
    """E e^T (dv/dx) e = tr dv/dx, in standard errors, for normal and sign e.

    Examines: models.flow._continuous, models.flow._velocity, solve.jacobian_trace.

    Source: Hutchinson 1990, A Stochastic Estimator of the Trace of the Influence Matrix; Grathwohl
    et al. 2019, FFJORD, sec. 3."""
    velocity, x = flow().velocity, normal(1, DIMS)
    t, context = torch.tensor(0.3).double(), normal(1, GIVEN)
    _, exact = exact_trace(lambda y: velocity(y, t, context), x)
    away = []
    for kind in ("rademacher", "gaussian"):
        probes = sample_probes(torch.arange(1), PROBES, (DIMS,), 1, kind)
        _, found = hutchinson_trace(lambda y: velocity(y, t, context), x, probes)
        mean, error = mean_and_error(found)
        assert error is not None
        away.append(float((mean - exact).abs() / error))
    return Residual(most(away), 5.0)


def x79_adjoint_is_back_propagation() -> Residual:
    """Gradients by the adjoint equation = through the steps of the solver.

    Examines: models.flow._continuous, solve.adjoint.

    Source: Chen et al. 2018, Neural Ordinary Differential Equations, sec. 2."""
    made, x, context = flow(), normal(4, DIMS), normal(4, GIVEN)
    field, wanted = made.field(context, None), list(made.parameters())
    with torch.enable_grad():
        start = (x.requires_grad_(), normal(4, 1) * 0)
        z, total = made.solve(x, context, (0.0, 1.0), FAIR)
        other, paid = integrate_adjoint(field, start, wanted, 0.0, 1.0, FAIR)
        ways = [
            torch.autograd.grad((y.sin().sum(1) * p[:, 0]).sum(), [x, *wanted])
            for y, p in ((z, total), (other, paid))
        ]
    return Residual(most(map(gap, *ways)), 1e-6)


def x79_methods_have_their_order() -> Residual:
    """Half the step divides the error by 2^p, p the order of the method.

    Examines: solve.ode.

    Source: Hairer, Nørsett & Wanner 1993, Solving Ordinary Differential Equations I, ch. II."""

    def field(t: Tensor, y: Tensor) -> Tensor:
        return y * torch.cos(t)

    start, truth = torch.ones(1, 1).double(), math.exp(math.sin(2.0))
    missed = []
    for name in ("euler", "midpoint", "heun", "rk4"):
        errors = [
            abs(float(integrate_one(field, start, (0.0, 2.0), Solver(name, steps=n))) - truth)
            for n in (64, 128)
        ]
        missed.append(abs(math.log2(errors[0] / errors[1]) - TABLEAUX[name].order))
    return Residual(most(missed), 0.15)
