r"""Samplers that solve the flow whose marginals are those of the noising, in few steps.

DPM-Solver++ (Lu et al. 2022) is exact where $\hat x$ is constant between t and s,

$z_s = \frac{\sigma_s}{\sigma_t} z_t + \alpha_s (1 - e^{-h}) D$, $2h = \lambda_s - \lambda_t$,

with D extrapolated from the last two $\hat x$. Heun's method (Karras et al. 2022) solves
$dy/dv = (y - \hat x) / v$ for $y = z / \alpha$ and $v = \sigma / \alpha$, after a little noise
(churn) that makes up for errors. With an angle for the time, $\tan\varphi = \sigma / \alpha$, and
$\zeta = z / \sqrt{\alpha^2 + \sigma^2}$, the flow is

$d\zeta / d\varphi = \hat\epsilon \cos\varphi - \hat x \sin\varphi$,

which is near one at both ends, and adaptive methods take it as it is.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Generator, Tensor

from ...core.config import Range
from ...solve.ode import Method, Solver, State, Tally, along, walk
from ._samplers import Path, Predict, Sampler, Spacing, noise_like

if TYPE_CHECKING:
    from ...prob.noise_schedule import Noising


class DPM(Sampler):
    """DPM-Solver++ (2M): D = x_i + (x_i - x_{i-1}) h_i / (2 h_{i-1}), or x_i at first and last,
    where there is nothing to extrapolate from or too much to extrapolate over.

    The step that led to z_i is then taken again with D = (x_{i-1} + x_i) / 2, the estimates at
    both of its ends (UniPC: Zhao et al. 2023), which costs no evaluation.
    """

    usual = 25

    class Config(Sampler.Config):
        tag = "sampler/dpm"
        spacing: Spacing = "middle"
        """Where the steps are: dense in the middle, even in time, even in the log of the
        signal-to-noise ratio, or as EDM has its noise levels."""
        order: Literal[1, 2] = 2
        """How many estimates a step stands on; 1 is DDIM without noise."""
        correct: bool = True
        """Take each step again once the estimate at its end is known; order 2 only."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: Noising,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        times = self.times(noising, z, start, grid)
        rise = (noising.log_snr(times) / 2).diff()
        alpha, sigma, second = noising.alpha(times), noising.sigma(times), self.config.order == 2

        def move(z: Tensor, i: int, estimate: Tensor) -> Tensor:
            """From z_i to z_{i+1}."""
            fresh = -alpha[i + 1] * torch.expm1(-rise[i])
            return sigma[i + 1] / sigma[i] * z + fresh * estimate

        before = old = z
        for i, t in enumerate(times[:-1]):
            x0 = predict(z, t.expand(len(z))).x0
            if i and second and self.config.correct:
                z = move(before, i - 1, (old + x0) / 2)
            estimate = x0
            if second and 0 < i < len(rise) - 1:
                estimate = x0 + rise[i] / (2 * rise[i - 1]) * (x0 - old)
            before, old, z = z, x0, move(z, i, estimate)
            yield z, x0


class Heun(Sampler):
    """EDM's sampler: v is raised by churn, then a step of Heun's method leads to the next v.

    A step asks the network twice.
    """

    usual = 18

    class Config(Sampler.Config):
        tag = "sampler/heun"
        spacing: Spacing = "middle"
        """Where the steps are: dense in the middle, even in time, even in the log of the
        signal-to-noise ratio, or as EDM has its noise levels."""
        churn: Annotated[float, Range(0)] = 0.0
        """Noise drawn anew over all steps; 0 is deterministic, EDM has up to 80."""
        low: Annotated[float, Range(0)] = 0.05
        """Churn only where sigma / alpha is above this,"""
        high: Annotated[float, Range(0)] = 50.0
        """and below this."""
        inflate: Annotated[float, Range(0, open=True)] = 1.003
        """Scale of the churned noise, a little more than 1 since networks denoise too well."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: Noising,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        times = self.times(noising, z, start, grid)
        levels, y = level(noising, times), z / noising.alpha(times[0])  # sigma / alpha
        for i, (t, s) in enumerate(itertools.pairwise(times)):
            y, v, t = self.stir(noising, y, t, times, generator)
            x0, w = self.ask(predict, noising, y, t), levels[i + 1]
            slope = (y - x0) / v
            ahead = y + (w - v) * slope
            again = (ahead - self.ask(predict, noising, ahead, s)) / w
            y = y + (w - v) * (slope + again) / 2
            yield noising.alpha(s) * y, x0

    def ask(self, predict: Predict, noising: Noising, y: Tensor, t: Tensor) -> Tensor:
        return predict(noising.alpha(t) * y, t.expand(len(y))).x0

    def stir(
        self, noising: Noising, y: Tensor, t: Tensor, times: Tensor, generator: Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """y at a level of noise that is a little higher, that level and its time."""
        config, v = self.config, level(noising, t)
        share = min(config.churn / (len(times) - 1), math.sqrt(2) - 1)
        if not (share and config.low <= v <= config.high):
            return y, v, t
        most = level(noising, times[0])
        later = noising.time(-2 * torch.minimum(v * (1 + share), most).log())
        raised = level(noising, later)
        more = (raised.square() - v.square()).clamp_min(0).sqrt()
        return y + config.inflate * more * noise_like(y, generator), raised, later


def level(noising: Noising, t: Tensor) -> Tensor:
    """sigma / alpha."""
    return (-noising.log_snr(t) / 2).exp()


class ODE(Sampler):
    """The probability flow (Song et al. 2021) in the angle of sigma / alpha, by an adaptive or a
    fixed Runge-Kutta method; each row has steps of its own."""

    usual = 32

    class Config(Sampler.Config):
        tag = "sampler/ode"
        method: Method = "dopri5"
        """Runge-Kutta method; dopri5 chooses its steps by their error."""
        tolerance: Annotated[float, Range(0, open=True)] = 1e-3
        """dopri5: error of a step, relative and absolute."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: Noising,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        ends = z.new_tensor([start, 0.0])
        known = [z]  # the estimate of x where the field was last asked for

        def field(angle: Tensor, state: State) -> State:
            slope, known[0] = velocity(predict, noising, angle, state[0])
            return (slope,)

        solver = Solver(self.config.method, self.count(grid), self.config.tolerance)
        scale, angles = noising.spread(ends), level(noising, ends).atan().tolist()
        path = walk(field, (z / scale[0],), angles, solver, Tally())
        for _, (zeta,) in itertools.islice(path, 1, None):
            yield zeta * scale[1], known[0]


def velocity(
    predict: Predict, noising: Noising, angle: Tensor, zeta: Tensor
) -> tuple[Tensor, Tensor]:
    """The derivative of zeta (B, D) by the angle () or (B,), and the estimate of x there."""
    t = noising.time(-2 * angle.tan().log()).expand(len(zeta))
    told, angle = predict(zeta * along(noising.spread(t), zeta), t), along(angle, zeta)
    return told.noise * angle.cos() - told.x0 * angle.sin(), told.x0
