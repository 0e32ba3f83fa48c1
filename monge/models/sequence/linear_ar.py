r"""Linear autoregression: every value a weighted sum of those before it, plus noise

Fitted without gradients: least squares, the equations of Yule (1927) and Walker (1931), or the
exact likelihood (Box & Jenkins 1970). The order is chosen by a criterion unless it is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
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
from ...core.model import Defaults, Losses, Model, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...prob.linear_ar import conditional_means, is_stationary
from .._ordering import check_no_missing, check_prefix
from ._ar_fit import (
    beginning,
    join_windows,
    least_squares,
    maximum_likelihood,
    select,
    yule_walker,
)

METHODS = {"squares": least_squares, "yule_walker": yule_walker, "likelihood": maximum_likelihood}
TOLD = 8
"""Channels whose estimates are told."""


class LinearAR(Model, HasLikelihood, HasConditionals, CanSample, CanComplete, CanDiagnose):
    r"""$x_t = b_0 + \sum_{j=1}^p \phi_j x_{t-j} + \varepsilon_t$, $\varepsilon_t \sim
    N(0, \sigma^2)$, for each channel of a series (T,) or (T, C) on its own.

    The first p values follow the stationary law where there is one, so that the law is that of
    any stretch of the series and AR(1) has $\gamma(k) = \sigma^2 \rho^{|k|} / (1 - \rho^2)$; with
    `start=mean` the past before them is taken to be the mean, $x_1 = \mu + \varepsilon$. Without a
    stationary law they are independent normals.
    """

    events = {"real"}

    class Config(Model.Config):
        tag = "model/sequence.linear_ar"
        order: Annotated[int, Range(0)] = 0
        """Values before it that a value depends on; 0 chooses, for each channel."""
        most: Annotated[int, Range(1)] = 24
        """Highest order that is chosen."""
        criterion: Literal["aic", "bic"] = "bic"
        """What chooses the order: Akaike's criterion or Schwarz's."""
        method: Literal["squares", "yule_walker", "likelihood"] = "squares"
        """How coefficients are found."""
        start: Literal["stationary", "mean"] = "stationary"
        """What the first values follow."""

    config: Config
    intercept: Tensor
    phi: Tensor
    variance: Tensor
    stderr: Tensor
    count: Tensor
    early: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.steps = space.shape[0]
        self.channels = space.dims // self.steps
        self.most = min(config.order or config.most, max(self.steps - 1, 1))
        mean, scale = (space.spread(name).reshape(self.steps, -1) for name in ("mean", "scale"))
        spread = (scale.square().mean(0) + mean.var(0, correction=0)).clamp_min(1e-12)
        table = torch.zeros(self.channels, self.most)
        state = {
            "intercept": mean.mean(0),
            "phi": table,
            "variance": spread,
            "stderr": table,
            "count": torch.zeros(self.channels),
            "early": torch.stack([mean.mean(0), spread]),
        }
        for name, value in state.items():
            self.register_buffer(name, value.clone())

    def updates(self) -> Sequence[Update]:
        return [Update("fit", self.fit, whole=True)]

    def loss(self, batch: Batch) -> Losses:
        return {"nll": -self.log_prob(batch)}

    @torch.no_grad()
    def fit(self, batch: Batch) -> Losses:
        check_no_missing("linear_ar", batch)
        series = join_windows(self.laid(batch.x).double().cpu())
        for channel in range(self.channels):
            pieces = [piece[..., channel] for piece in series]
            order = self.config.order or select(pieces, self.most, self.config.criterion)
            found = METHODS[self.config.method](pieces, min(order, self.most))
            self.intercept[channel], self.variance[channel] = found.intercept, found.v
            for table, values in ((self.phi, found.phi), (self.stderr, found.stderr)):
                table[channel] = 0
                table[channel, : len(values)] = values.to(table)
            self.count[channel] = found.count
            first = torch.cat([piece[:, : self.most].flatten() for piece in pieces])
            whole = torch.cat([piece.flatten() for piece in pieces])
            self.early[0, channel] = first.mean()
            self.early[1, channel] = whole.var(correction=0).clamp_min(1e-12)
        return self.loss(batch)

    def laid(self, x: Tensor) -> Tensor:  # (B, T, C)
        return x.reshape(len(x), -1, self.channels).to(self.phi.dtype)

    @property
    def stationary(self) -> Tensor:
        """Whether each channel is, (C,)."""
        return is_stationary(self.phi)

    def conditional_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (B, T, C) and variance (T, C) of every value given those before it."""
        still, steps = self.stationary, x.shape[1]
        phi = torch.where(still[:, None], self.phi, 0.0)  # where there is no beginning, no matter
        first, spread = beginning(phi, self.variance, steps)
        if self.config.start == "mean":
            shifted = torch.arange(self.most).to(phi.device)
            inside = (shifted[:, None] > shifted).to(phi)  # row t reads lags 1, ..., t
            first = self.phi[:, None] * inside
            spread = self.variance[:, None].expand(-1, steps)
        mean = conditional_means(x, self.intercept, self.phi, first)
        free = ~still & (torch.arange(steps).to(phi.device) < self.most)[:, None]  # (T, C)
        return (
            torch.where(free, self.early[0], mean),
            torch.where(free, self.early[1], torch.where(still, spread.mT, self.variance)),
        )

    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        check_no_missing("linear_ar", batch)
        broadcast_conditions(batch.given, self.space, len(batch))
        mean, variance = self.conditional_moments(self.laid(batch.x))
        return torch.stack([mean, variance.expand_as(mean)], -1).flatten(1, 2)  # (B, D, 2)

    def conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        mean, variance = self.parameters_of_conditionals(batch).unbind(-1)
        gap = self.laid(batch.x).flatten(1) - mean
        return -0.5 * (gap.square() / variance + variance.log() + math.log(2 * math.pi))

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
        broadcast_conditions(given or {}, self.space, n)
        x = self.phi.new_zeros(n, *self.space.shape)
        return self.complete(
            Batch(x, observed=torch.zeros_like(x, dtype=torch.bool)), options, generator
        )

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        x, seen = self.laid(batch.x).clone(), self.laid(batch.observed_mask) > 0
        check_prefix("linear_ar", self.orders, batch.observed_mask.reshape(len(x), -1))
        noise = torch.empty_like(x).normal_(generator=generator)
        hidden = ~seen.all(0).all(1)
        begin = int(hidden.nonzero()[0]) if bool(hidden.any()) else self.steps
        for t in range(begin, self.steps):
            mean, variance = self.conditional_moments(x[:, max(0, t - self.most) : t + 1])
            drawn = mean[:, -1] + variance[-1].sqrt() * noise[:, t]
            x[:, t] = torch.where(seen[:, t], x[:, t], drawn)
        return torch.where(batch.observed_mask, batch.x.to(x), x.reshape(batch.x.shape))

    def diagnose(self, batch: Batch) -> list[Finding]:
        told = [
            Finding("estimates", self.estimates_text(channel), "")
            for channel in range(min(self.channels, TOLD))
        ]
        wild = (~self.stationary).nonzero()[:, 0].tolist()
        if wild:
            names = ", ".join(str(channel + 1) for channel in wild)
            told.append(
                Finding(
                    "not_stationary",
                    f"channel {names} has no stationary law: its variance grows without end.",
                    "Difference the series, or use method=yule_walker.",
                )
            )
        return told

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
        scale = float(self.variance[channel].sqrt())
        error = scale / math.sqrt(2 * max(float(self.count[channel]), 1))
        return (
            f"channel {channel + 1}: order {order}, coefficients {each or 'none'}, scale "
            f"{scale:.4g} ± {error:.2g}."
        )

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if len(space.shape) in (1, 2):
            return None
        return f"linear_ar needs series (steps,) or (steps, channels), got {space}; reshape them"

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """As many values back as leave half of a window to explain."""
        most = max(1, min(30, space.shape[0] // 2 if space.shape else 1))
        return Defaults(cls.Config(most=most), TrainConfig(max_steps=1, eval_every=1, patience=0))

    @classmethod
    def smallest_config(cls, space: Space) -> Any:
        return cls.Config(order=1, method="likelihood")
