r"""Scalings of a Gibbs kernel to given row and column sums: the inner loop of entropic transport.

Scalings u, v multiply the kernel of the potentials: $\pi_{ij} = a_i u_i K_{ij} v_j b_j$. A pass
scales every row, $u = 1 / K(bv)$, then every column, $v = 1 / K^T(au)$: two products with K, which
is read from memory once for both. When scalings grow, or a product leaves the range of floating
point, they are absorbed, $f \gets f + \varepsilon \log u$, and one pass works on logarithms. This
is as fast as scaling and as stable as logarithms.

A plain pass reduces the error by a factor $\theta$, which is near one for small epsilon. Once the
error is moderate, Newton steps on the dual take over: with exact rows and column sums $\sigma$,
the change y of $\log v$ solves

$(\mathrm{diag}\,\sigma - \pi^T \mathrm{diag}(1/a)\, \pi)\, y = b - \sigma$

by conjugate gradients, where each step costs a pass and reduces the error by $(1-s)/(1+s)$, $s =
\sqrt{1-\theta}$, like the best over-relaxation but without its parameter. A step that does not
lower the error is undone, and plain passes, which never raise it, continue.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .gibbs_kernel import Kernel

MAX_LOG_SCALING = 30.0
"""|log u| at which scalings are absorbed; the range of float32 ends at 88."""
NEAR = 0.1
"""Marginal error from which Newton steps are tried: of 0.3 to 0.03 the value with the fewest
passes over problems of 300 to 2048 points in 2 to 64 dimensions, epsilon 0.2 to 0.001."""
NEWTON_RESIDUAL = 0.2
"""Relative residual of a Newton system; a smaller one is wasted on a nonlinear problem, and so is
one below the tolerance."""
MAX_CG_STEPS = 400
"""Most steps of conjugate gradients for one Newton step."""
MAX_LOG_STEP = 5.0
"""Largest change of a logarithm in one Newton step."""
STEP_REDUCTION = 0.3
"""Factor by which a Newton step that does not lower the error is shortened."""
MIN_STEP_LENGTH = 0.02
"""Length below which it is abandoned."""
MAX_STALLED_PASSES = 100
"""Passes and Newton steps without a lower error after which rounding is the limit."""


class Scaling:
    """Potentials f, g and scalings u, v during the iteration."""

    def __init__(
        self, kernel: Kernel, a: Tensor, b: Tensor, start: tuple[Tensor, Tensor] | None
    ) -> None:
        self.kernel, self.a, self.b = kernel, a, b
        self.f, self.g = (potential.to(a.dtype).clone() for potential in start or kernel.guess())
        self.error = math.inf
        self.trace: list[tuple[float, int, float]] = []  # epsilon, passes so far, column error
        self.u, self.v = torch.ones_like(a), torch.ones_like(b)

    def run(self, epsilon: float, tolerance: float, passes: int) -> int:
        """Iterate at one epsilon until the marginal error is small; returns the passes."""
        self.epsilon = epsilon
        self.load()
        done, lowest, stale = 0, math.inf, 0
        leap: Leap | None = None
        while True:
            c, error = self.balance()
            done += 1
            self.trace.append((epsilon, done, error))
            if (not math.isfinite(error) or self.grown(c)) and done < passes + MAX_STALLED_PASSES:
                leap = None
                self.rest(c, math.isfinite(error))
                continue
            if leap and error > leap.error and done < passes:
                self.v = leap.shorten()
                continue
            stale = 0 if error < 0.99 * lowest else stale + 1
            lowest = min(lowest, error)
            if error <= tolerance or stale > MAX_STALLED_PASSES or done >= passes:
                break
            leap = None if error > NEAR else self.leap(c, error, tolerance, passes - done)
            self.v = leap.end() if leap else c.reciprocal()
            done += leap.steps if leap else 0
        self.close(c)
        return done + 1

    def trace_from(self, passes: int) -> list[tuple[float, int, float]]:
        """The errors of the last run after each pass, counted from those before it."""
        found, self.trace = self.trace, []
        return [(epsilon, passes + done, error) for epsilon, done, error in found]

    def balance(self) -> tuple[Tensor, float]:
        """Make the rows exact; returns K^T(au), the inverse of the exact column scaling (*S, m),
        and the current L1 error of the columns."""
        given, c = self.b * self.v, torch.zeros_like(self.b)
        for rows, block in self.kernel.blocks():
            u = across(block, given).reciprocal_()  # (*S, k)
            self.u[..., rows] = u
            c += across(block.mT, self.a[..., rows] * u)
        return c, float((given * c - self.b).abs().sum(-1).max())

    def leap(self, c: Tensor, error: float, tolerance: float, passes: int) -> Leap:
        right, sums = self.b * self.v, self.b * self.v * c
        weight = self.a * self.u.square()

        def curve(y: Tensor) -> Tensor:
            return sums * y - right * self.around(right * y, weight)

        y, steps = conjugate(curve, self.b - sums, sums, tolerance, min(MAX_CG_STEPS, passes))
        return Leap(self.v, c.reciprocal(), y.clamp_(-MAX_LOG_STEP, MAX_LOG_STEP), error, steps)

    def around(self, vector: Tensor, scale: Tensor) -> Tensor:
        """K^T diag(scale) K vector, (*S, m), reading K once."""
        total = torch.zeros_like(vector)
        for rows, block in self.kernel.blocks():
            total += across(block.mT, scale[..., rows] * across(block, vector))
        return total

    def close(self, c: Tensor) -> None:
        """Make the columns exact, and set the remaining error of the rows and the potentials."""
        self.v = c.reciprocal()
        given = self.b * self.v
        r = torch.cat([across(block, given) for _, block in self.kernel.blocks()], -1)
        self.error = float((self.a * (self.u * r - 1).abs()).sum(-1).max())
        self.absorb()

    def load(self) -> None:
        self.kernel.set(self.f, self.g, self.epsilon)
        self.u, self.v = torch.ones_like(self.a), torch.ones_like(self.b)

    def grown(self, c: Tensor) -> bool:
        return any(float(s.log().abs().max()) > MAX_LOG_SCALING for s in (self.u, c))

    def absorb(self) -> None:
        self.f = self.f + self.epsilon * self.u.log()
        self.g = self.g + self.epsilon * self.v.log()

    def rest(self, c: Tensor, sound: bool) -> None:
        """Absorb the scalings if they are finite (`sound`), else discard them; then one pass on
        logarithms, f_i = -epsilon log sum_j b_j e^((g_j - c_ij)/epsilon) and likewise for g, which
        cannot overflow."""
        if sound:
            self.v = c.reciprocal()
            self.absorb()
        self.kernel.take(self.f, self.g, self.epsilon)
        log_b, total = self.b.log(), torch.full_like(self.b, -torch.inf)
        for rows in self.kernel.rows:
            block = self.kernel.exponents(rows)
            shift = torch.logsumexp(block + log_b[..., None, :], -1)  # (*S, k)
            self.f[..., rows] -= self.epsilon * shift
            block += (self.a[..., rows].log() - shift)[..., None]
            total = torch.logaddexp(total, torch.logsumexp(block, -2))
        self.g = self.g - self.epsilon * total
        self.load()


class Leap:
    """A Newton step for log v: tried in full, shortened while it does not lower the error, then
    abandoned for a plain pass."""

    def __init__(self, v: Tensor, plain: Tensor, y: Tensor, error: float, steps: int) -> None:
        self.v, self.plain, self.y, self.error, self.steps = v, plain, y, error, steps
        self.length = 1.0

    def end(self) -> Tensor:
        return self.v * torch.exp(self.length * self.y)

    def shorten(self) -> Tensor:
        self.length *= STEP_REDUCTION
        if self.length >= MIN_STEP_LENGTH:
            return self.end()
        self.error = math.inf
        return self.plain


def conjugate(
    curve: Callable[[Tensor], Tensor], right: Tensor, scale: Tensor, enough: float, most: int
) -> tuple[Tensor, int]:
    """Solve curve(y) = right approximately by conjugate gradients with the diagonal preconditioner
    `scale`; returns y and the number of steps."""
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    y, residual = torch.zeros_like(right), right.clone()
    goal = (NEWTON_RESIDUAL * right.abs().sum(-1, keepdim=True)).clamp_min(enough)
    way = inverse * residual
    power, steps = (residual * way).sum(-1, keepdim=True), 0
    active = power > 0  # some problems of a batch converge before others
    while steps < most and bool(active.any()):
        bent = curve(way)
        height = (way * bent).sum(-1, keepdim=True)
        active = active & (height > 0)
        length = torch.where(active, power / height, 0.0)
        y, residual = y + length * way, residual - length * bent
        ahead = inverse * residual
        last, power = power, (residual * ahead).sum(-1, keepdim=True)
        active = active & (residual.abs().sum(-1, keepdim=True) > goal)
        way = torch.where(active, ahead + power / last * way, 0.0)
        steps += 1
    return y, steps


def across(block: Tensor, vector: Tensor) -> Tensor:
    """The product (*S, k) of matrices (*S, k, m) and vectors (*S, m)."""
    if block.ndim == 2:
        return block.mv(vector)
    return (vector[..., None, :] @ block.mT)[..., 0, :]  # a column would take several times longer
