r"""Continuous flows as bijections, and the pairing of noise with rows for flow matching.

`inverse` follows $\dot x = v(x, t, c)$ from data at t = 0 to noise at t = 1, `forward` goes back;
the log-determinant of either is the integral of the trace of $\partial v / \partial x$ along the
way, in the direction of travel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Annotated

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ...core.config import MAX_STEPS, Range
from ...core.config import Config as BaseConfig
from ...nn.mlp import MLP
from ...nn.unet import UNet
from ...prob.bijections.base import Bijection, Mapped
from ...solve.adjoint import integrate_adjoint
from ...solve.jacobian_trace import hutchinson_trace, sample_probes
from ...solve.ode import Field, Method, Solver, State, Tally, integrate, walk
from ...solve.transport.ground_cost import squared
from ...solve.transport.sinkhorn import sinkhorn
from ._velocity import Velocity

RELATIVE_ENTROPY = 0.02
"""Entropy of the entropic coupling, in units of the mean cost."""


@torch.no_grad()
def optimal_pairing(x: Tensor, z: Tensor) -> Tensor:
    """Rows of z, (B,), that minimise the sum of squared distances, each used once."""
    _, columns = linear_sum_assignment(squared(x, z).double().cpu().numpy())
    return torch.from_numpy(columns).to(x.device)


@torch.no_grad()
def entropic_pairing(x: Tensor, z: Tensor) -> Tensor:
    """Rows of z, (B,), sampled from an entropic optimal-transport plan."""
    plan = sinkhorn(x, z, RELATIVE_ENTROPY, relative=True, tolerance=1e-2).matrix
    return torch.multinomial(plan, 1)[:, 0]


PAIRINGS = {"optimal": optimal_pairing, "entropic": entropic_pairing}


MAX_ANALYTIC_TRACE_DIMS, MAX_LOOPED_TRACE_DIMS = 32, 16
"""Entries up to which trace=auto is exact: with an analytic trace, and with a loop."""


class SolverOptions(BaseConfig):
    """Options of the ODE solver; the model's own by default."""

    solver: Method | None = None
    """Runge-Kutta method; by default that of the model."""
    steps: Annotated[int, Range(1, MAX_STEPS)] | None = None
    """Steps of fixed-step methods."""
    tolerance: Annotated[float, Range(0, open=True)] | None = None
    """dopri5: error tolerance of a step, relative and absolute."""


class ContinuousBijection(Bijection):
    """x(0) to x(1) or back, with the exact trace; for many entries with an estimate along one
    random direction, the same both ways."""

    def __init__(
        self,
        config: MLP.Config | UNet.Config,
        shape: Sequence[int],
        context: int,
        solver: Solver,
        waves: int = 0,
    ) -> None:
        super().__init__()
        self.velocity, self.solver = Velocity(config, shape, context, waves), solver

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        x, total = self.solve(z, context, (1.0, 0.0), self.solver, self.fixed_probes(z))
        return x, total[:, 0]

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        z, total = self.solve(x, context, (0.0, 1.0), self.solver, self.fixed_probes(x))
        return z, total[:, 0]

    def with_solver(self, solver: Solver) -> ContinuousBijection:
        """The same velocity, by another solver."""
        other = copy(self)
        other.solver = solver
        return other

    @property
    def has_exact_trace(self) -> bool:
        """Whether the trace is exact by default."""
        few = (
            MAX_ANALYTIC_TRACE_DIMS if self.velocity.has_analytic_trace else MAX_LOOPED_TRACE_DIMS
        )
        return math.prod(self.velocity.shape) <= few

    def fixed_probes(self, x: Tensor) -> Tensor | None:
        """The probe of each row, (B, 1, D); None if the trace is exact."""
        if self.has_exact_trace:
            return None
        return sample_probes(torch.arange(len(x), device=x.device), 1, x.shape[1:], 0).to(x)

    def solve(
        self,
        x: Tensor,
        context: Tensor | None,
        times: tuple[float, float],
        solver: Solver,
        probes: Tensor | None = None,
        adjoint: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Where x (B, D) goes, and the integral of the trace, (B, 1), or of its estimate with
        each of the probes (B, K, D), (B, K)."""
        count = 1 if probes is None else probes.shape[1]
        field = self.field(context, probes)
        start = (x, x.new_zeros(len(x), count))
        if adjoint:
            params = list(self.velocity.parameters())
            end = integrate_adjoint(field, start, params, *times, solver)
        else:
            end = integrate(field, start, times, solver).end
        return end[0], end[1]

    def field(self, context: Tensor | None, probes: Tensor | None) -> Field:
        def exact(t: Tensor, state: State) -> State:
            v, trace = self.velocity.traced(state[0], t, context)
            return v, trace[:, None]

        def estimated(t: Tensor, state: State) -> State:
            assert probes is not None
            return hutchinson_trace(lambda x: self.velocity(x, t, context), state[0], probes)

        return exact if probes is None else estimated

    def path(
        self, x: Tensor, context: Tensor | None, times: tuple[float, float], solver: Solver
    ) -> Iterator[Tensor]:
        """x after every step from the first of the times to the second, without the trace."""

        def field(t: Tensor, state: State) -> State:
            return (self.velocity(state[0], t, context),)

        steps = walk(field, (x,), times, solver, Tally())
        previous: Tensor | None = None
        for _, (y,) in steps:
            if previous is not y:
                yield y
            previous = y


def even_times(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """0, 1/n, ..., (n - 1)/n, (n, 1)."""
    return torch.arange(count, dtype=dtype, device=device)[:, None] / count
