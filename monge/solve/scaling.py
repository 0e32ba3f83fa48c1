r"""Scalings of a Gibbs kernel to given row and column sums: the inner loop of entropic transport.

Scalings u, v stand on top of the potentials: $\pi_{ij} = a_i u_i K_{ij} v_j b_j$. Updating them
is two products with K, read once from memory for both; when they grow they are absorbed, $f \gets
f + \varepsilon \log u$, and when a product leaves the range of its floating-point numbers one pass
is made in logarithms. So it is as fast as scaling and as safe as logarithms.

Over-relaxed steps $u \gets u^{1-w} (1/K(bv))^w$ turn a contraction $\theta$ a pass into $w - 1$
for $w = 2/(1 + \sqrt{1-\theta})$; $\theta$ is read off the errors, and w falls back towards 1
where they do not fall.

Where directions remain that contract by almost nothing a pass (clouds that hardly touch), Newton
steps take over, by conjugate gradients on the same products.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .kernel import Kernel

CHECK = 5
"""Passes between two looks at the marginal error."""
GROWN = 30.0
"""|log u| at which scalings are absorbed: float32 ends at 88."""
SETTLED = 4
"""Looks after which the effect of a relaxation is judged."""
BLOWN = 10.0
"""Growth of the error that makes a relaxation too bold."""
STALLED = 20
"""Looks over which the largest error must be lower than over as many before, or a stage ends."""
SLOW = 1.9
"""Relaxation beyond which Newton steps are cheaper than passes."""
NEAR = 0.05
"""Marginal error from which Newton steps are tried."""
CONJUGATE = 200
"""Steps of conjugate gradients for one Newton step."""
RESIDUAL = 1e-6
"""Part of the squared residual at which they end."""
BOLD = 2.0
"""Largest change of a logarithm in one Newton step."""
TINY = 1e-37
"""Where a denominator would vanish."""


class Scaling:
    """Potentials f, g and scalings u, v on their way."""

    def __init__(self, kernel: Kernel, a: Tensor, b: Tensor,
                 start: tuple[Tensor, Tensor] | None) -> None:
        self.kernel, self.a, self.b = kernel, a, b
        self.fresh = start is None
        first = (torch.zeros_like(a), torch.zeros_like(b)) if start is None else start
        self.f, self.g = (potential.to(a.dtype).clone() for potential in first)
        self.error, self.w = math.inf, 1.0
        self.u, self.v = torch.ones_like(a), torch.ones_like(b)

    def run(self, epsilon: float, tolerance: float, passes: int) -> int:
        """Passes at one epsilon until the marginal error is small; how many it took."""
        self.epsilon = epsilon
        self.load()
        if self.fresh:
            self.rest()
            self.fresh = False
        pace, done, plain = Pace(self.w), 0, True
        while done < passes:
            for _ in range(CHECK - 1):
                self.sweep(pace.w)
            error = self.sweep(pace.w, look=True)
            done += CHECK
            if not math.isfinite(error) or self.grown():
                self.settle(math.isfinite(error))
                continue
            if error <= tolerance and self.proven(tolerance):
                done += 2
                break
            if pace.look(error, CHECK):
                self.error = error
                break
            if plain and pace.w > SLOW and error < NEAR:
                done += self.finish(tolerance, passes - done)
                plain = False
                if self.error <= tolerance:
                    break
        self.w = min(pace.w, SLOW)
        self.absorb()
        return done

    def finish(self, tolerance: float, passes: int) -> int:
        """Newton steps for log u and log v as long as they pay; the passes they took.

        With exact columns, rho the row sums and y the change of log v, a step solves
        (diag b - pi^T diag(1/rho) pi) y = pi^T (1 - a / rho) by conjugate gradients, each of whose
        steps is a pass, and for which a few slow directions are a few steps.
        """
        done, before = 0, math.inf
        while not self.proven(tolerance) and done < passes and self.error < 0.9 * before:
            before, kept = self.error, (self.u.clone(), self.v.clone())
            done += self.leap() + 4
        if self.error > before:
            (self.u, self.v), self.error = kept, before
        return done

    def leap(self) -> int:
        left, right = self.a * self.u, self.b * self.v
        rho = left * self.forth(right)  # (*S, n)

        def curve(y: Tensor) -> Tensor:
            return self.b * y - right * self.around(right * y, left * left / rho)

        y, steps = conjugate(curve, right * self.back(left - left * self.a / rho), self.b)
        x = (self.a - left * self.forth(right * y)) / rho - 1
        self.u.mul_(x.clamp_(-BOLD, BOLD).exp_())
        self.v.mul_(y.clamp_(-BOLD, BOLD).exp_())
        return steps

    def forth(self, vector: Tensor) -> Tensor:
        """K vector, (*S, n)."""
        return torch.cat([across(block, vector) for _, block in self.kernel.blocks()], -1)

    def back(self, vector: Tensor) -> Tensor:
        """K^T vector, (*S, m)."""
        parts = [across(block.mT, vector[..., rows]) for rows, block in self.kernel.blocks()]
        return torch.stack(parts).sum(0)

    def around(self, vector: Tensor, scale: Tensor) -> Tensor:
        """K^T diag(scale) K vector, (*S, m), in one reading of K."""
        parts = [across(block.mT, scale[..., rows] * across(block, vector))
                 for rows, block in self.kernel.blocks()]
        return torch.stack(parts).sum(0)

    def proven(self, tolerance: float) -> bool:
        """Two plain passes: the first makes the columns exact, the second sees what that leaves
        of the rows, and can only better it."""
        self.sweep(1.0)
        self.error = self.sweep(1.0, look=True)
        return self.error <= tolerance

    def load(self) -> None:
        self.kernel.set(self.f, self.g, self.epsilon)
        self.u, self.v = torch.ones_like(self.a), torch.ones_like(self.b)

    def sweep(self, w: float, look: bool = False) -> float:
        """One pass: every row scaled, then every column; where it is looked at, the L1 error of
        the row sums before it."""
        given, c = self.b * self.v, torch.zeros_like(self.b)
        error = torch.zeros_like(c[..., 0])
        for rows, block in self.kernel.blocks():
            a, u = self.a[..., rows], self.u[..., rows]
            r = across(block, given)  # (*S, k)
            if look:
                error += (a * (u * r - 1).abs()).sum(-1)
            relax(u, r, w)
            c += across(block.mT, a * u)
        relax(self.v, c, w)
        return float(error.max()) if look else math.nan

    def grown(self) -> bool:
        return any(float(s.log().abs().max()) > GROWN for s in (self.u, self.v))

    def absorb(self) -> None:
        self.f = self.f + self.epsilon * self.u.log()
        self.g = self.g + self.epsilon * self.v.log()

    def settle(self, sound: bool) -> None:
        """Take the scalings into the potentials; where they overflowed, one pass in logarithms
        from the potentials of before."""
        if sound:
            self.absorb()
            self.load()
        else:
            self.load()
            self.rest()

    def rest(self) -> None:
        """One pass in logarithms: f_i = -epsilon log sum_j b_j e^((g_j - c_ij)/epsilon), and so
        for g, which no choice of potentials and epsilon can overflow."""
        log_b, total = self.b.log(), torch.full_like(self.b, -torch.inf)
        for rows in self.kernel.rows:
            block = self.kernel.exponents(rows)
            shift = torch.logsumexp(block + log_b[..., None, :], -1)  # (*S, k)
            self.f[..., rows] -= self.epsilon * shift
            block += (self.a[..., rows].log() - shift)[..., None]
            total = torch.logaddexp(total, torch.logsumexp(block, -2))
        self.g = self.g - self.epsilon * total
        self.load()


def conjugate(curve: Callable[[Tensor], Tensor], right: Tensor, scale: Tensor
              ) -> tuple[Tensor, int]:
    """y with curve(y) = right by conjugate gradients, preconditioned by the diagonal `scale`, and
    in how many steps."""
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    y, residual = torch.zeros_like(right), right.clone()
    ahead = way = inverse * residual
    power = first = (residual * ahead).sum(-1, keepdim=True)
    steps = 0
    while steps < CONJUGATE and bool((power > RESIDUAL * first).any()):
        bent = curve(way)
        length = power / (way * bent).sum(-1, keepdim=True).clamp_min(TINY)
        y, residual = y + length * way, residual - length * bent
        ahead = inverse * residual
        last, power = power, (residual * ahead).sum(-1, keepdim=True)
        way = ahead + power / last.clamp_min(TINY) * way
        steps += 1
    return y, steps


def across(block: Tensor, vector: Tensor) -> Tensor:
    """The product (*S, k) of matrices (*S, k, m) and vectors (*S, m)."""
    if block.ndim == 2:
        return block.mv(vector)
    return (block @ vector[..., None])[..., 0]


def relax(scaling: Tensor, product: Tensor, w: float) -> None:
    """scaling <- scaling^(1 - w) product^(-w), in place."""
    if w == 1.0:
        torch.reciprocal(product, out=scaling)
    else:
        scaling.pow_(1 - w).mul_(product.pow_(-w))


class Pace:
    """How far to over-relax, and whether to go on at all, from the errors that were seen.

    A new w stirs the error up before it pays, so it is judged after a while and not at once.
    """

    def __init__(self, w: float) -> None:
        self.w = w
        self.errors: list[float] = []  # since w was chosen

    def look(self, error: float, passes: int) -> bool:
        """Take note of an error; true where rounding no longer lets it fall."""
        self.errors.append(error)
        if error > BLOWN * self.errors[0]:
            self.choose(1 + (self.w - 1) / 2)
        elif len(self.errors) > (1 if self.w == 1.0 else SETTLED):
            back = min(len(self.errors) - 1, SETTLED - 1)
            self.relax((error / self.errors[-1 - back]) ** (1 / (passes * back)))
        late, early = self.errors[-STALLED:], self.errors[-2 * STALLED:-STALLED]
        return len(early) == STALLED and max(late) > 0.9 * max(early)

    def relax(self, rate: float) -> None:
        """w from what a pass left of the error: (rate + w - 1)^2 = rate w^2 theta (Young 1954)."""
        rate = min(rate, 0.9999)
        if rate > self.w - 1:
            theta = min((rate + self.w - 1) ** 2 / (rate * self.w**2), 0.9999)
            best = 2 / (1 + math.sqrt(1 - theta))
            if best > self.w + 0.01:
                self.choose(best)

    def choose(self, w: float) -> None:
        self.w, self.errors = w, self.errors[-1:]
