r"""Noise as a function of time: $z_t = \alpha_t x + \sigma_t \epsilon$, data at 0, noise at 1.

Up to a rescaling of z, a process is determined by its log-SNR $\lambda_t = \log
\alpha_t^2/\sigma_t^2$, which decreases in t (Kingma et al. 2021). A shape determines the curve of
the log-SNR, a family the scale of z:

variance preserving $\alpha^2 + \sigma^2 = 1$; exploding $\alpha = 1$; sub-VP
$\sigma = 1 - \alpha^2$ (Song et al. 2021). Between times s < t, with
$c = 1 - e^{\lambda_t - \lambda_s}$,

$q(z_t | z_s) = N(\frac{\alpha_t}{\alpha_s} z_s, \sigma_t^2 c)$ and $q(z_s | z_t, x) =
N(\frac{\alpha_s}{\alpha_t} e^{\lambda_t - \lambda_s} z_t + \alpha_s c\, x, \sigma_s^2 c)$.

In continuous time $dz = f z\, dt + g\, dw$ with $f = \frac{d}{dt} \log \alpha$ and
$g^2 = -\lambda' \sigma^2$. A model of T steps sees the same process at the times 0, 1/T, ..., 1.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.config import Config as BaseConfig
from ..core.config import Configured, Range
from ..core.errors import UsageError

Family = Literal["preserving", "exploding", "sub"]
LINEAR_BETA_MIN, LINEAR_BETA_MAX = 0.1, 20.0
"""Beta of the linear schedule at both ends: 1e-4 to 0.02 per step for 1000 steps."""
SIGMOID_HALF_RANGE = 3.0
"""The sigmoid schedule is the sigmoid from minus this to plus this."""
MAX_FINAL_LOG_SNR = -4.0
"""Largest final log-SNR at which z still counts as noise."""


def check_final_log_snr(low: float) -> None:
    """Check that the final log-SNR is low enough to sample from noise."""
    if low > MAX_FINAL_LOG_SNR:
        raise UsageError(
            f"expected a final log-SNR of at most {MAX_FINAL_LOG_SNR:g}, found low={low:g} "
            f"(SNR {math.exp(low):.3g}); give low={MAX_FINAL_LOG_SNR:g} or less"
        )


class PosteriorStep(NamedTuple):
    """Coefficients between two times s < t, each of their shape."""

    on_z: Tensor  # of z_t in the mean of q(z_s | z_t, x)
    on_x: Tensor  # of x in that mean
    variance: Tensor  # of q(z_s | z_t, x)
    forward: Tensor  # variance of q(z_t | z_s)


class NoiseProcess(abc.ABC):
    """A noise process, determined by its log-SNR and its family.

    Times and results have the same shape, such as (B,).
    """

    family: Family

    @abc.abstractmethod
    def log_snr(self, t: Tensor) -> Tensor:
        """lambda, which decreases in t."""

    @abc.abstractmethod
    def derivative(self, t: Tensor) -> Tensor:
        """The derivative of lambda, below 0."""

    @abc.abstractmethod
    def time(self, log_snr: Tensor) -> Tensor:
        """The time at which lambda has this value, clamped to [0, 1]."""

    def snr(self, t: Tensor) -> Tensor:
        return self.log_snr(t).exp()

    def alpha(self, t: Tensor) -> Tensor:
        return alpha_sigma(self.family, self.log_snr(t))[0]

    def alpha_bar(self, t: Tensor) -> Tensor:
        """alpha squared, the remaining share of the data's variance."""
        return self.alpha(t).square()

    def sigma(self, t: Tensor) -> Tensor:
        return alpha_sigma(self.family, self.log_snr(t))[1]

    def spread(self, t: Tensor) -> Tensor:
        """The standard deviation of z if that of x is 1; at t = 1, that of the prior."""
        return (self.alpha(t).square() + self.sigma(t).square()).sqrt()

    def drift(self, t: Tensor) -> Tensor:
        """f, the drift coefficient."""
        alpha, sigma = alpha_sigma(self.family, self.log_snr(t))
        share = {
            "preserving": sigma.square(),
            "exploding": torch.zeros_like(sigma),
            "sub": sigma / (1 + alpha.square()),
        }[self.family]
        return 0.5 * share * self.derivative(t)

    def diffusion(self, t: Tensor) -> Tensor:
        """g^2, the squared diffusion coefficient."""
        return -self.derivative(t) * self.sigma(t).square()

    def grid(self, steps: int, like: Tensor | None = None) -> Tensor:
        """t_0 = 0, ..., t_steps = 1, (steps + 1,), of the device and type of `like`."""
        if steps < 1:
            raise UsageError(
                f"expected at least 1 step, found steps={steps}; give steps=1 or more"
            )
        ticks = torch.arange(steps + 1)
        return (ticks if like is None else ticks.to(like)) / steps

    def step(self, s: Tensor, t: Tensor) -> PosteriorStep:
        """q(z_s | z_t, x) and the variance of q(z_t | z_s), for 0 <= s < t <= 1."""
        before, after = self.log_snr(s), self.log_snr(t)
        (alpha_s, sigma_s), (alpha_t, sigma_t) = (
            alpha_sigma(self.family, each) for each in (before, after)
        )
        gone = -torch.expm1(after - before)  # c
        return PosteriorStep(
            alpha_s / alpha_t * torch.exp(after - before),
            alpha_s * gone,
            sigma_s.square() * gone,
            sigma_t.square() * gone,
        )


class NoiseSchedule(Configured, NoiseProcess):
    r"""A process whose log-SNR falls from `high` to `low` along a fixed curve.

    linear: $-\log \alpha^2 = b_0 u + (b_1 - b_0) u^2 / 2$ (Ho et al. 2020); cosine: $\alpha =
    \cos(\pi u / 2)$ (Nichol & Dhariwal 2021); sigmoid: $\alpha^2$ is a sigmoid (Jabri et al.
    2023); logsnr: $\lambda$ is linear; edm: $\sigma^{1/\rho}$ is linear with $\alpha = 1$ (Karras
    et al. 2022). `shift` is added to $\lambda$ (Hoogeboom et al. 2023), and u covers the part of
    the curve between `high` and `low`.
    """

    class Config(BaseConfig):
        tag = "noise/schedule"
        shape: Literal["linear", "cosine", "sigmoid", "logsnr", "edm"] = "cosine"
        """Curve of the log-SNR from `high` to `low`."""
        family: Family = "preserving"
        """Scale of z: variance preserving, exploding, or sub-variance-preserving (sub)."""
        high: Annotated[float, Range(-2, 30)] = 10.0
        """Log-SNR at the data; details below e^(-high/2) standard deviations are not modelled."""
        low: Annotated[float, Range(-30)] = -9.0
        """Log-SNR at the noise."""
        rho: Annotated[float, Range(1)] = 7.0
        """edm: the root of sigma that is linear in time."""
        shift: Annotated[float, Range(-10, 10)] = 0.0
        """Moves the curve along the log-SNR: below 0, more of the times are noisy, at which what
        pictures show as a whole is decided."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_final_log_snr(self.low)

    def __init__(self, config: Config) -> None:
        self.config, self.family = config, config.family
        self.curve = CURVES[config.shape](config.rho)
        ends = torch.tensor([config.high, config.low], dtype=torch.float64)
        self.start, self.end = self.curve.place(ends - config.shift).tolist()

    def place(self, t: Tensor) -> Tensor:
        return self.start + (self.end - self.start) * t

    def log_snr(self, t: Tensor) -> Tensor:
        return self.curve.height(self.place(t)) + self.config.shift

    def derivative(self, t: Tensor) -> Tensor:
        return (self.end - self.start) * self.curve.derivative(self.place(t))

    def time(self, log_snr: Tensor) -> Tensor:
        place = self.curve.place(log_snr - self.config.shift)
        return ((place - self.start) / (self.end - self.start)).clamp(0, 1)


@dataclass(frozen=True)
class LogSNRCurve(abc.ABC):
    """lambda(u), falling, with its inverse."""

    rho: float

    @abc.abstractmethod
    def height(self, u: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def place(self, log_snr: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def derivative(self, u: Tensor) -> Tensor: ...


class LinearBetaCurve(LogSNRCurve):
    def lost(self, u: Tensor) -> Tensor:
        """-log alpha^2 of a variance-preserving process."""
        return u * (LINEAR_BETA_MIN + 0.5 * (LINEAR_BETA_MAX - LINEAR_BETA_MIN) * u)

    def height(self, u: Tensor) -> Tensor:
        return -torch.expm1(self.lost(u)).log()

    def place(self, log_snr: Tensor) -> Tensor:
        lost = F.softplus(-log_snr)
        root = (LINEAR_BETA_MIN**2 + 2 * (LINEAR_BETA_MAX - LINEAR_BETA_MIN) * lost).sqrt()
        return 2 * lost / (LINEAR_BETA_MIN + root)

    def derivative(self, u: Tensor) -> Tensor:
        return (LINEAR_BETA_MIN + (LINEAR_BETA_MAX - LINEAR_BETA_MIN) * u) / torch.expm1(
            -self.lost(u)
        )


class CosineCurve(LogSNRCurve):
    def height(self, u: Tensor) -> Tensor:
        return -2 * torch.tan(0.5 * math.pi * u).log()

    def place(self, log_snr: Tensor) -> Tensor:
        return 2 / math.pi * torch.atan(torch.exp(-0.5 * log_snr))

    def derivative(self, u: Tensor) -> Tensor:
        return -2 * math.pi / torch.sin(math.pi * u)


class SigmoidCurve(LogSNRCurve):
    def height(self, u: Tensor) -> Tensor:
        here, span = SIGMOID_HALF_RANGE * (2 * u - 1), 2 * SIGMOID_HALF_RANGE
        left = F.logsigmoid(-here) + torch.log(-torch.expm1(span * (u - 1)))
        return left - F.logsigmoid(here) - torch.log(-torch.expm1(-span * u))

    def place(self, log_snr: Tensor) -> Tensor:
        top = torch.sigmoid(
            torch.tensor(SIGMOID_HALF_RANGE, dtype=log_snr.dtype, device=log_snr.device)
        )
        above = (1 - top) + (2 * top - 1) * torch.sigmoid(-log_snr)  # the sigmoid at u
        return 0.5 + 0.5 * torch.logit(above) / SIGMOID_HALF_RANGE

    def derivative(self, u: Tensor) -> Tensor:
        span = 2 * SIGMOID_HALF_RANGE
        return -span * (1 + 1 / torch.expm1(span * (1 - u)) + 1 / torch.expm1(span * u))


class LinearLogSNRCurve(LogSNRCurve):
    def height(self, u: Tensor) -> Tensor:
        return -u

    def place(self, log_snr: Tensor) -> Tensor:
        return -log_snr

    def derivative(self, u: Tensor) -> Tensor:
        return torch.full_like(u, -1.0)


class EDMCurve(LogSNRCurve):
    def height(self, u: Tensor) -> Tensor:
        return -2 * self.rho * u.log()

    def place(self, log_snr: Tensor) -> Tensor:
        return torch.exp(-log_snr / (2 * self.rho))

    def derivative(self, u: Tensor) -> Tensor:
        return -2 * self.rho / u


CURVES: dict[str, type[LogSNRCurve]] = {
    "linear": LinearBetaCurve,
    "cosine": CosineCurve,
    "sigmoid": SigmoidCurve,
    "logsnr": LinearLogSNRCurve,
    "edm": EDMCurve,
}


def alpha_sigma(family: Family, log_snr: Tensor) -> tuple[Tensor, Tensor]:
    """alpha and sigma of a log-SNR."""
    if family == "preserving":
        return torch.sigmoid(log_snr).sqrt(), torch.sigmoid(-log_snr).sqrt()
    if family == "exploding":
        return torch.ones_like(log_snr), torch.exp(-0.5 * log_snr)
    ratio = torch.exp(0.5 * log_snr)  # of alpha to 1 - alpha^2
    sigma = 2 / (1 + (1 + 4 * ratio.square()).sqrt())
    return ratio * sigma, sigma
