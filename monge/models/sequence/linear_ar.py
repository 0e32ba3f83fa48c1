r"""Linear autoregression: every value a weighted sum of those before it, plus noise

Fitted without gradients: least squares, the equations of Yule (1927) and Walker (1931), or the
exact likelihood (Box & Jenkins 1970). By default a criterion chooses the order, among regressions
of the same values. Differences put unit roots into the polynomial of the lags: the coefficients of
$\phi(B) (1 - B)^d (1 - B^s)$ are those of one autoregression of order p + d + s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ...core.abilities import (
    CanComplete,
    CanDiagnose,
    CanSample,
    Finding,
    Given,
    HasConditionals,
    HasLikelihood,
    Likelihood,
)
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Model, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...prob.linear_ar import (
    conditional_means,
    is_stationary,
    levinson,
    prediction_variances,
    sample_autocovariance,
    step_down,
    step_up,
)
from .._ordering import check_no_missing, check_prefix

MAX_REPORTED_CHANNELS = 8
"""Channels whose estimates are reported."""
MAX_INITIAL_ARTANH = 3.5
"""Bound on artanh of the partial autocorrelations where the likelihood search starts."""

VALUES_PER_LAG = 3
"""Fewest values per coefficient in the regressions whose orders are compared."""
SCALE_SHARES = (4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625)
"""Values of c in units of the root mean square; at the last, asinh is nearly a logarithm."""


class LinearAR(Model, HasLikelihood, HasConditionals, CanSample, CanComplete, CanDiagnose):
    r"""$x_t = b_0 + \sum_{j=1}^p \phi_j x_{t-j} + \varepsilon_t$, $\varepsilon_t \sim
    N(0, \sigma^2)$, for each channel of a series (T,) or (T, C) on its own, or the same of
    asinh(x / c), on which noise and growth are in proportion to the level.

    The first p values follow the stationary distribution if it exists, so that any stretch of the
    series has the same one and AR(1) has $\gamma(k) = \sigma^2 \rho^{|k|} / (1 - \rho^2)$; with
    `start=mean` the values before them equal the mean, $x_1 = \mu + \varepsilon$. Without a
    stationary distribution value t <= p follows the regression on the t - 1 before it.
    """

    events = {"real"}

    class Config(Model.Config):
        tag = "model/sequence.linear_ar"
        order: Annotated[int, Range(0)] = 0
        """Number of lags; 0 lets the criterion choose, for each channel."""
        max_order: Annotated[int, Range(1)] = 24
        """Highest order that the criterion may choose."""
        criterion: Literal["aic", "bic"] = "bic"
        """Criterion that chooses the order: Akaike's (aic) or Schwarz's (bic)."""
        method: Literal["squares", "yule_walker", "likelihood"] = "squares"
        """Estimator: least squares, Yule-Walker equations or maximum likelihood."""
        difference: Annotated[int, Range(0, 2)] = 0
        """How often the series is differenced before the fit: x_t - x_(t-1)."""
        season: Annotated[int, Range(0)] = 0
        """Steps of a season whose difference x_t - x_(t-season) is fitted; 0 is none."""
        scale: Literal["auto", "linear", "log"] = "auto"
        """Scale on which the model is linear: that of the values, or asinh(x / c), which is a
        logarithm far above c; auto takes the likelier c or none, and the logarithm for positive
        values that keep growing."""
        start: Literal["stationary", "mean"] = "stationary"
        """First values: stationary distribution, or as if all values before were the mean."""

    config: Config
    intercept: Tensor
    phi: Tensor
    variance: Tensor
    stderr: Tensor
    count: Tensor
    c: Tensor
    first_phi: Tensor
    first_intercept: Tensor
    first_variance: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.steps = space.shape[0]
        self.channels = space.dims // self.steps
        roots, most = config.difference + config.season, max(self.steps - 1, 1)
        if roots >= self.steps:
            raise UsageError(
                f"difference={config.difference} and season={config.season} need series of more "
                f"than {roots} steps, found {self.steps}; lower them, or raise data.lookback"
            )
        self.max_order = min(roots + (config.order or config.max_order), most)
        mean, scale = (space.spread(name).reshape(self.steps, -1) for name in ("mean", "scale"))
        spread = (scale.square().mean(0) + mean.var(0, correction=0)).clamp_min(1e-12)
        table = torch.zeros(self.channels, self.max_order)
        state = {
            "intercept": mean.mean(0),
            "phi": table,
            "variance": spread,
            "stderr": table,
            "count": torch.zeros(self.channels),
            "c": torch.zeros(self.channels),
            "first_phi": table[:, None].expand(-1, self.max_order, -1),
            "first_intercept": mean.mean(0)[:, None].expand(-1, self.max_order),
            "first_variance": spread[:, None].expand(-1, self.max_order),
        }
        for name, value in state.items():
            self.register_buffer(name, value.clone())

    def updates(self) -> Sequence[Update]:
        return [Update("fit", self.fit, whole=True)]

    def loss(self, batch: Batch) -> Losses:
        """-log p(x) = -sum_t log N(x_t; E[x_t | x_<t], Var[x_t | x_<t]); `fit` minimises it,
        exactly with `method=likelihood`."""
        return {"nll": -self.conditionals(batch).sum(1)}

    @torch.no_grad()
    def fit(self, batch: Batch) -> Losses:
        """Choose the order of each channel and estimate its coefficients from all rows."""
        check_no_missing("linear_ar", batch)
        series = join_windows(self.laid(batch.x).double().cpu())
        for channel in range(self.channels):
            pieces = [piece[..., channel] for piece in series]
            self.c[channel] = c = self.choose_scale(pieces)
            self.fit_channel(channel, [to_scale(piece, c) for piece in pieces])
        return self.loss(batch)

    def fit_channel(self, channel: int, pieces: list[Tensor]) -> None:
        found = self.estimate(pieces)
        self.intercept[channel], self.variance[channel] = found.intercept, found.v
        for table, values in ((self.phi, found.phi), (self.stderr, found.stderr)):
            table[channel] = 0
            table[channel, : len(values)] = values.to(table)
        self.count[channel] = found.count
        for t in range(self.max_order):
            early = least_squares(pieces, t)
            self.first_intercept[channel, t], self.first_variance[channel, t] = (
                early.intercept,
                early.v,
            )
            self.first_phi[channel, t, :t] = early.phi.to(self.first_phi)

    def estimate(self, pieces: list[Tensor]) -> ARFit:
        """The autoregression of the differences, as one of the values."""
        config = self.config
        own = [difference(piece, config.difference, config.season) for piece in pieces]
        most = self.max_order - config.difference - config.season
        order = config.order or select(own, most, config.criterion)
        found = METHODS[config.method](own, min(order, most))
        return with_unit_roots(found, config.difference, config.season)

    def choose_scale(self, pieces: list[Tensor]) -> float:
        """c of asinh(x / c), 0 for the values themselves."""
        config, values = self.config, torch.cat([piece.flatten() for piece in pieces])
        scales = [0.0, *(float(values.square().mean().sqrt()) * share for share in SCALE_SHARES)]
        if config.scale == "linear" or not scales[-1] > 0:
            return 0.0
        if config.scale == "log":
            return scales[-1]
        most = self.max_order - config.difference - config.season
        costs = []
        for c in scales:
            own = [to_scale(piece, c) for piece in pieces]
            own = [difference(piece, config.difference, config.season) for piece in own]
            start = config.difference + config.season + regressed_from(own, most)
            late = torch.cat([piece[:, start:].flatten() for piece in pieces])
            costs.append(float(order_costs(own, most, config.criterion).min()))
            costs[-1] += math.log(len(late)) * (c > 0) - 2 * float(log_slope(late, c).sum())
        best = scales[int(np.argmin(costs))]
        phi = self.estimate([to_scale(piece, best) for piece in pieces]).phi
        grows = bool((values > 0).all()) and not bool(is_stationary(phi))
        return scales[-1] if grows else best

    def laid(self, x: Tensor) -> Tensor:  # (B, T, C)
        return x.reshape(len(x), -1, self.channels).to(self.phi.dtype)

    @property
    def stationary(self) -> Tensor:
        """Whether each channel is stationary, (C,)."""
        return is_stationary(self.phi)

    def conditional_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (B, T, C) and variance (T, C) of every value given those before it."""
        still, steps = self.stationary, x.shape[1]
        phi = torch.where(still[:, None], self.phi, 0.0)  # only stationary channels use it below
        first, spread = initial_predictors(phi, self.variance, steps)
        if self.config.start == "mean":
            shifted = torch.arange(self.max_order).to(phi.device)
            inside = (shifted[:, None] > shifted).to(phi)  # row t reads lags 1, ..., t
            first = self.phi[:, None] * inside
            spread = self.variance[:, None].expand(-1, steps)
        mean = conditional_means(x, self.intercept, self.phi, first)
        free = ~still & (torch.arange(steps).to(phi.device) < self.max_order)[:, None]  # (T, C)
        spread = torch.where(still, spread.mT, self.variance)  # (T, C)
        if bool(free.any()):
            begin, variance = self.first_moments(x)
            mean, spread = torch.where(free, begin, mean), torch.where(free, variance, spread)
        return mean, spread

    def first_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same of the first values of a series that is not stationary, (B, T, C) and (T, C);
        0 and 1 after them."""
        mean, variance = torch.zeros_like(x), torch.ones_like(x[0])
        for t in range(min(self.max_order, x.shape[1])):
            past = x[:, :t].flip(1)  # (B, t, C): lags 1, ..., t
            lags = torch.einsum("ntc,ct->nc", past, self.first_phi[:, t, :t])
            mean[:, t] = self.first_intercept[:, t] + lags
            variance[t] = self.first_variance[:, t]
        return mean, variance

    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        check_no_missing("linear_ar", batch)
        broadcast_conditions(batch.given, self.space, len(batch))
        mean, variance = self.conditional_moments(to_scale(self.laid(batch.x), self.c))
        return torch.stack([mean, variance.expand_as(mean)], -1).flatten(1, 2)  # (B, D, 2)

    def conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        mean, variance = self.parameters_of_conditionals(batch).unbind(-1)
        x = self.laid(batch.x)
        gap = to_scale(x, self.c).flatten(1) - mean
        normal = -0.5 * (gap.square() / variance + variance.log() + math.log(2 * math.pi))
        return normal + log_slope(x, self.c).flatten(1)

    @property
    def orders(self) -> Sequence[Tensor]:
        return [torch.arange(self.space.dims, device=self.phi.device)]

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        return Likelihood(self.conditionals(as_batch(batch)).sum(1), "exact")

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x_t = E[x_t | x_<t] + Var[x_t | x_<t]^(1/2) eps_t, one step after the other."""
        broadcast_conditions(given or {}, self.space, n)
        x = self.phi.new_zeros(n, self.steps, self.channels)
        noise = torch.empty_like(x).normal_(generator=generator)
        for t in range(self.steps):
            x[:, t] = self.next_value(x, noise, t)
        return from_scale(x, self.c).reshape(n, *self.space.shape)

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        x, seen = to_scale(self.laid(batch.x), self.c), self.laid(batch.observed_mask) > 0
        check_prefix("linear_ar", self.orders, batch.observed_mask.reshape(len(x), -1))
        noise = torch.empty_like(x).normal_(generator=generator)
        hidden = ~seen.all(0).all(1)
        begin = int(hidden.nonzero()[0]) if bool(hidden.any()) else self.steps
        for t in range(begin, self.steps):
            x[:, t] = torch.where(seen[:, t], x[:, t], self.next_value(x, noise, t))
        filled = from_scale(x, self.c).reshape(batch.x.shape)
        return torch.where(batch.observed_mask, batch.x.to(x), filled)

    def next_value(self, x: Tensor, noise: Tensor, t: int) -> Tensor:
        """A sample of x_t (B, C) given the values before it in x (B, T, C), on this scale."""
        if t >= self.max_order:  # the recursion itself
            past = x[:, t - self.max_order : t].flip(1)  # (B, p, C): lags 1, ..., p
            mean = self.intercept + (past * self.phi.mT).sum(1)
            return mean + self.variance.sqrt() * noise[:, t]
        means, variance = self.conditional_moments(x[:, : t + 1])
        return means[:, -1] + variance[-1].sqrt() * noise[:, t]

    def diagnose(self, batch: Batch) -> list[Finding]:
        findings = [
            Finding("estimates", self.estimates_text(channel), "")
            for channel in range(min(self.channels, MAX_REPORTED_CHANNELS))
        ]
        unstable = (~self.stationary).nonzero()[:, 0].tolist()
        if unstable:
            names = ", ".join(str(channel + 1) for channel in unstable)
            findings.append(
                Finding(
                    "not_stationary",
                    f"channel {names} has no stationary distribution: its variance is unbounded.",
                    "Set difference=1 or a season, or use method=yule_walker.",
                )
            )
        return findings

    def estimates_text(self, channel: int) -> str:
        """Coefficients and scale with their standard errors."""
        order = (
            int((self.phi[channel] != 0).nonzero().amax()) + 1
            if bool((self.phi[channel] != 0).any())
            else 0
        )
        pairs = zip(
            self.phi[channel, :order].tolist(), self.stderr[channel, :order].tolist(), strict=True
        )
        each = ", ".join(f"{value:.4f} ± {error:.4f}" for value, error in pairs)
        scale, c = float(self.variance[channel].sqrt()), float(self.c[channel])
        where = f" of asinh(x / {c:.4g})" if c else ""
        error = scale / math.sqrt(2 * max(float(self.count[channel]), 1))
        return (
            f"channel {channel + 1}{where}: order {order}, coefficients {each or 'none'}, scale "
            f"{scale:.4g} ± {error:.2g}."
        )

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if len(space.shape) in (1, 2):
            return None
        return (
            f"linear_ar expected series (steps,) or (steps, channels), found {space}; reshape them"
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """At most half of a window as lags, so that half of it is left to fit."""
        max_order = max(1, min(30, space.shape[0] // 2 if space.shape else 1))
        return Defaults(
            cls.Config(max_order=max_order), TrainConfig(max_steps=1, eval_every=1, patience=0)
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Any:
        return cls.Config(order=1, method="likelihood")


@dataclass(frozen=True)
class ARFit:
    """x_t = b_0 + sum_j phi_j x_{t-j} + e_t with e_t of variance v."""

    intercept: Tensor  # ()
    phi: Tensor  # (p,)
    v: Tensor  # ()
    covariance: Tensor  # (p, p): of phi
    count: int  # values that the fit predicts

    @property
    def stderr(self) -> Tensor:  # (p,)
        return self.covariance.diagonal().clamp_min(0).sqrt()


def to_scale(x: Tensor, c: Tensor | float) -> Tensor:
    """asinh(x / c), and x where c is 0; c is a number or one of each channel."""
    c = torch.as_tensor(c, dtype=x.dtype, device=x.device)
    return torch.where(c > 0, (x / torch.where(c > 0, c, 1.0)).asinh(), x)


def from_scale(y: Tensor, c: Tensor) -> Tensor:
    return torch.where(c > 0, y.sinh() * c, y)


def log_slope(x: Tensor, c: Tensor | float) -> Tensor:
    """The logarithm of the derivative of `to_scale`."""
    c = torch.as_tensor(c, dtype=x.dtype, device=x.device)
    return torch.where(c > 0, -0.5 * (x.square() + c.square()).log(), 0.0)


def difference(x: Tensor, times: int, season: int) -> Tensor:
    """(1 - B)^times (1 - B^season) x of series (n, T)."""
    x = x.diff(n=times, dim=1)
    return x[:, season:] - x[:, : x.shape[1] - season] if season else x


def with_unit_roots(found: ARFit, times: int, season: int) -> ARFit:
    """The autoregression of the values that has these differences."""
    root = torch.ones(1, dtype=found.phi.dtype)
    for lag in [1] * times + [season] * (season > 0):
        root = F.pad(root, (0, lag)) - F.pad(root, (lag, 0))  # times 1 - B^lag
    order = len(found.phi)
    # phi(B) root(B) = root - sum_j phi_j B^j root: column j of the matrix is root moved by j.
    columns = [F.pad(root, (j, order - j)) for j in range(1, order + 1)]
    moved = torch.stack(columns, 1) if order else root.new_zeros(len(root), 0)
    phi = moved @ found.phi - F.pad(root, (0, order))
    covariance = moved @ found.covariance @ moved.mT
    return replace(found, phi=phi[1:], covariance=covariance[1:, 1:])


def join_windows(x: Tensor) -> list[Tensor]:
    """Windows (N, T, C) as series (n, T', C): windows that overlap by all but one step are joined,
    so that no value counts twice; without any, the windows are returned as they are."""
    if len(x) < 2 or x.shape[1] < 2:
        return [x]
    follows = (x[1:, :-1] == x[:-1, 1:]).flatten(1).all(1)
    if not bool(follows.any()):
        return [x]
    starts = torch.cat([follows.new_ones(1), ~follows]).nonzero()[:, 0].tolist()
    ends = [*starts[1:], len(x)]
    return [torch.cat([x[a], x[a + 1 : b, -1]])[None] for a, b in zip(starts, ends, strict=True)]


def select(pieces: list[Tensor], max_order: int, criterion: str) -> int:
    """The order up to `max_order` with the smallest criterion, for series (n, T) each."""
    return int(order_costs(pieces, max_order, criterion).argmin())


def order_costs(pieces: list[Tensor], max_order: int, criterion: str) -> Tensor:
    """The criterion of each order: -2 log-likelihood and the penalty of regressions of the same
    values. A QR decomposition of the lags, nearest first, gives the residuals of all."""
    a, y = lag_matrix(pieces, regressed_from(pieces, max_order))
    q, _ = torch.linalg.qr(a)
    explained = (q.mT @ y).square().cumsum(0)  # by 1 and the lags up to each
    v = ((y.square().sum() - explained) / len(y)).clamp_min(1e-12 * float(y.var(correction=0)))
    penalty = 2.0 if criterion == "aic" else math.log(len(y))
    return len(y) * v.clamp_min(1e-300).log() + penalty * torch.arange(len(v)).to(v)


def regressed_from(pieces: list[Tensor], max_order: int) -> int:
    """The highest order, up to `max_order`, that leaves several values to fit per coefficient."""
    while max_order and VALUES_PER_LAG * max_order > sum(
        len(piece) * max(piece.shape[1] - max_order, 0) for piece in pieces
    ):
        max_order -= 1
    return max_order


def lag_matrix(pieces: list[Tensor], order: int) -> tuple[Tensor, Tensor]:
    """1 and the `order` values before each value, nearest first, and the value."""
    parts = [piece.unfold(1, order + 1, 1) for piece in pieces if piece.shape[1] > order]
    rows = torch.cat([part.flatten(0, 1) for part in parts])
    return torch.cat([torch.ones_like(rows[:, :1]), rows[:, :-1].flip(1)], 1), rows[:, -1]


def covariances(pieces: list[Tensor], lags: int) -> Tensor:
    """Autocovariances of all pieces about their common mean, (lags + 1,)."""
    count = sum(piece.numel() for piece in pieces)
    mean = sum(float(piece.sum()) for piece in pieces) / count
    parts = [piece.numel() / count * sample_autocovariance(piece - mean, lags) for piece in pieces]
    return torch.stack(parts).sum(0)


def least_squares(pieces: list[Tensor], order: int) -> ARFit:
    """Regress every value on the `order` values before it and on 1."""
    a, y = lag_matrix(pieces, order)
    inverse = torch.linalg.pinv(a.mT @ a, hermitian=True)
    b = inverse @ (a.mT @ y)
    v = (y - a @ b).square().sum() / max(len(y) - order - 1, 1)
    return ARFit(b[0], b[1:], v.clamp_min(1e-12), (v * inverse)[1:, 1:], len(y))


def yule_walker(pieces: list[Tensor], order: int) -> ARFit:
    """Solve the Yule-Walker equations of the autocovariances; the result is always stationary."""
    gamma = covariances(pieces, order)
    gamma = torch.cat([gamma[:1].clamp_min(1e-12), gamma[1:]])
    kappa, v = levinson(gamma)
    phi, count = step_up(kappa), sum(piece.numel() for piece in pieces)
    mean = sum(float(piece.sum()) for piece in pieces) / count
    return ARFit(
        mean * (1 - phi.sum()),
        phi,
        v[-1].clamp_min(1e-12),
        covariance_of(gamma, v[-1], count),
        count,
    )


def covariance_of(gamma: Tensor, v: Tensor, count: int) -> Tensor:
    """Covariance v / n Gamma^-1 of estimates, with Gamma the autocovariance matrix, (p, p)."""
    order = len(gamma) - 1
    place = torch.arange(order)
    matrix = gamma[(place[:, None] - place).abs()]
    inverse = torch.linalg.pinv(matrix, hermitian=True)
    return v / count * inverse


def maximum_likelihood(pieces: list[Tensor], order: int) -> ARFit:
    """Maximise the exact likelihood by L-BFGS from the Yule-Walker estimate, over the mean, the
    log-scale and artanh of each partial autocorrelation, which keeps the series stationary."""
    from scipy.optimize import minimize  # slow to import, and only this estimator needs it

    initial = yule_walker(pieces, order)
    kappa, _ = step_down(initial.phi)
    bound = math.tanh(MAX_INITIAL_ARTANH)
    start = torch.cat(
        [
            (initial.intercept / (1 - initial.phi.sum()))[None],
            initial.v.log()[None] / 2,
            kappa.clamp(-bound, bound).atanh(),
        ]
    )
    scale = initial.v.sqrt()  # unit of the mean
    count = sum(piece.numel() for piece in pieces)

    def read(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        phi = step_up(u[2:].tanh())
        return scale * u[0] * (1 - phi.sum()), phi, (2 * u[1]).exp()

    def cost(point: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            u = torch.from_numpy(point).requires_grad_()
            each = [log_likelihood(piece, *read(u)).sum() for piece in pieces]
            value = -torch.stack(each).sum() / count
            (slope,) = torch.autograd.grad(value, u)
        return float(value.detach()), slope.numpy()

    start[0] /= scale
    found = minimize(
        cost,
        start.numpy(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 200, "ftol": 1e-12, "gtol": 1e-8},
    )
    intercept, phi, v = read(torch.from_numpy(found.x))
    return ARFit(intercept, phi, v, covariance_of(covariances(pieces, order), v, count), count)


def log_likelihood(x: Tensor, intercept: Tensor, phi: Tensor, v: Tensor) -> Tensor:
    """Exact log-likelihood of stationary series x (N, T), (N,)."""
    first, spread = initial_predictors(phi[None], v[None], x.shape[1])
    mean = conditional_means(x[..., None], intercept[None], phi[None], first)[..., 0]
    each = (x - mean).square() / spread[0] + spread[0].log() + math.log(2 * math.pi)
    return -0.5 * each.sum(1)


def initial_predictors(phi: Tensor, v: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The predictors of the first p values of stationary series, (C, p, p), and the variance of
    every value given those before it, (C, T)."""
    order = phi.shape[-1]
    kappa, predictors = step_down(phi)
    rows = [F.pad(each, (0, order - each.shape[-1])) for each in predictors]
    first = torch.stack(rows[:order], 1) if order else phi[:, None, :][:, :0]
    early = prediction_variances(kappa, v)[:, :order]
    late = v[:, None].expand(-1, max(steps - order, 0))
    return first, torch.cat([early, late], 1)[:, :steps]


METHODS = {"squares": least_squares, "yule_walker": yule_walker, "likelihood": maximum_likelihood}
