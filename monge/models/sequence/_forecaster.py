r"""Base of forecast models of a future given a past: coordinates, scales, margins, copula.

In standardised coordinates $y = \mu(past) + s(past) \odot r$: a network gives the mean, and a few
features of the volatility of each channel give the scale, $\log s_c = w_c \cdot v_c(past)$. Other
conditions (the calendar, inputs known in advance) are added to the mean, step by step. The errors
r have heavy-tailed margins and a Gaussian copula.

The future is one block of steps or several, $p(y \mid x) = \prod_k p(y_k \mid x, y_{<k})$, each
given the last L values before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import CanSample, HasLikelihood, Likelihood
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import DataError
from ...core.model import Model
from ...core.space import Space
from ...nn.forecasters import ForecastNet, NLinear
from ...nn.inputs.sequence import SequenceContext
from ...nn.layers.linear import Linear
from ...prob.copula import GaussianCopula, SinhArcsinhMargins
from .._ordering import check_no_missing

PAST = "past"
BACKFITTING_ROUNDS = 4
"""Alternations between solving for the map of the past and for that of the known inputs."""
MIN_VOLATILITY = 1e-3
"""Added to volatilities before their logarithm, in standard deviations."""
SCALE_RIDGE = 0.1
"""Ridge penalty of the initial weights of the scale, relative to the mean square of a feature."""
MAX_LOG_SCALE = 2.0
"""Bound on the absolute log-scale."""


def unsupported_series(name: str, space: Space) -> str | None:
    """None, or why an event and its conditions are not a future and its past."""
    past = space.given.get(PAST)
    if past is None:
        return (
            f"{name} forecasts a future given its past, found as conditions "
            f"{', '.join(space.given) or 'nothing'}; give a series: a column of times in order "
            "beside numbers (data.drop leaves other columns out), or data.horizon=24 if the rows "
            "are its steps"
        )
    if (
        past.kind != "real"
        or len(past.shape) not in (1, 2)
        or past.shape[1:] != space.shape[1:]
        or len(space.shape) not in (1, 2)
    ):
        return (
            f"{name} expected a past with the channels of its future, found {past} and {space}; "
            "cut both from one series"
        )
    return None


class SeriesCoordinates(nn.Module):
    """Futures (B, H, C) and pasts (B, L, C) in standardised coordinates, and back."""

    shift: Tensor
    scale: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        past = space.given[PAST]
        self.shape, self.horizon, self.lookback = space.shape, space.shape[0], past.shape[0]
        self.channels = space.dims // self.horizon
        mean, scale = (past.spread(name).reshape(self.lookback, -1) for name in ("mean", "scale"))
        spread = (scale.square().mean(0) + mean.var(0, correction=0)).sqrt()
        self.register_buffer("shift", mean.mean(0), persistent=False)  # (C,)
        self.register_buffer("scale", spread, persistent=False)

    def inside(self, x: Tensor) -> Tensor:
        """(B, T, ...) in the units of the data to standardised (B, T, C)."""
        return (x.reshape(len(x), -1, self.channels).to(self.shift) - self.shift) / self.scale

    def outside(self, y: Tensor) -> Tensor:
        """Standardised (B, H, C) to futures (B, *event) in the units of the data."""
        return (self.shift + self.scale * y).reshape(-1, *self.shape)

    def past(self, name: str, given: Mapping[str, Batch]) -> Tensor:
        batch = given[PAST]
        if batch.observed is not None and not bool(batch.observed.all()):
            raise DataError(
                f"{name} needs every step of the past, but some are missing; fill "
                "them, for instance with data.gaps=fill"
            )
        return self.inside(batch.x)


class ChannelScale(nn.Module):
    """log s (B, C): the log-scale of each channel's errors, from features of its past."""

    centre: Tensor
    spread: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, 4))
        for name, value in (("centre", 0.0), ("spread", 1.0)):
            self.register_buffer(name, torch.full((channels, 4), value))

    def read(self, past: Tensor) -> Tensor:
        """v (B, C, 4): log root mean square of the steps, of the last steps and of the deviations
        from the mean, and the last value."""
        moves = past.diff(dim=1) if past.shape[1] > 1 else past
        late = moves[:, -max(len(moves[0]) // 4, 1) :]
        sizes = [part.square().mean(1).sqrt() for part in (moves, late, past - past.mean(1, True))]
        return torch.stack([*((size + MIN_VOLATILITY).log() for size in sizes), past[:, -1]], -1)

    @torch.no_grad()
    def fit(self, past: Tensor, gap: Tensor) -> None:
        """Initialise by a regression of the log size of a window's errors (N, H, C)."""
        v = self.read(past)
        self.centre.copy_(v.mean(0))
        self.spread.copy_(v.std(0, correction=0).clamp_min(1e-3))
        v = self.standard(past).transpose(0, 1)  # (C, N, 4)
        size = (gap.square().mean(1).sqrt() + MIN_VOLATILITY).log()
        target = (size - size.mean(0)).mT[..., None]
        eye = SCALE_RIDGE * len(past) * torch.eye(v.shape[-1]).to(v)
        self.weight.copy_(torch.linalg.solve(v.mT @ v + eye, v.mT @ target)[..., 0])

    def standard(self, past: Tensor) -> Tensor:
        return ((self.read(past) - self.centre) / self.spread).clamp(-4, 4)

    def forward(self, past: Tensor) -> Tensor:
        raw = (self.weight * self.standard(past)).sum(-1)
        return MAX_LOG_SCALE * torch.tanh(raw / MAX_LOG_SCALE)


class KnownInputs(nn.Module):
    """Conditions other than the past as an addition to the mean of every step, (B, H, C)."""

    def __init__(self, space: Space, channels: int) -> None:
        super().__init__()
        rest = {name: part for name, part in space.given.items() if name != PAST}
        self.context = SequenceContext(replace(space, given=rest), 1)
        self.lift = Linear(self.context.width, channels) if self.context.width else None
        if self.lift is not None:
            nn.init.zeros_(self.lift.weight)
            nn.init.zeros_(self.lift.bias)

    def forward(self, given: Mapping[str, Batch], n: int, steps: int) -> Tensor | float:
        return 0.0 if self.lift is None else self.lift(self.context(given, n, steps))

    @torch.no_grad()
    def solve(self, given: Mapping[str, Batch], target: Tensor, steps: int) -> None:
        """Least squares on the residuals `target` (N, T, C) of the first steps."""
        if self.lift is None:
            return
        context = self.context(given, len(target), steps)
        assert context is not None, "a map exists only if there are conditions"
        rows = context.expand(-1, steps, -1)[:, : target.shape[1]].flatten(0, 1)
        rows = torch.nn.functional.pad(rows, (0, 1), value=1.0).double()
        eye = 1e-4 * len(rows) * torch.eye(rows.shape[1]).to(rows)
        found = torch.linalg.solve(rows.mT @ rows + eye, rows.mT @ target.flatten(0, 1).double())
        self.lift.weight.copy_(found[:-1].mT)
        self.lift.bias.copy_(found[-1])


class ForecastModel(Model, HasLikelihood, CanSample):
    """p(y | x) of a future (H, C) given its past (L, C), `steps` at a time."""

    events = {"real"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}
    is_predictor = True

    class Config(Model.Config):
        net: ForecastNet.Config = NLinear.Config()
        """Network from the past to the mean: nlinear, dlinear, layers, recurrence (rnn, gru,
        lstm), convolution (tcn, wavenet) or attention."""
        fit: Literal["squares", "likelihood"] = "squares"
        """squares: the mean by least squares, then margins, then the copula; likelihood: all
        by the joint likelihood."""
        rank: Annotated[int, Range(0)] = 16
        """Rank of the copula: common factors of a block's errors; 0 makes them independent."""

    config: Config
    excess: Tensor

    def __init__(self, config: Config, space: Space, steps: int) -> None:
        super().__init__(config, space)
        self.name, self.steps = type(self).__name__.lower(), steps
        self.frame = SeriesCoordinates(space)
        channels = self.frame.channels
        self.net = config.net.build(self.frame.lookback, steps, channels)
        self.beside = KnownInputs(space, channels)
        self.unsteadiness = ChannelScale(channels)
        self.margins = SinhArcsinhMargins(torch.arange(channels).repeat(steps))
        self.dependence = GaussianCopula(steps * channels, config.rank)
        # Errors of the windows that the mean was fitted to are smaller than on new windows.
        self.register_buffer("excess", torch.ones(channels))

    @property
    def blocks(self) -> int:
        return self.frame.horizon // self.steps

    @torch.no_grad()
    def initialise_from_data(self, batch: Batch) -> None:
        past, y, beside = self.laid(batch)
        y = y[:, : self.steps]
        for _ in range(BACKFITTING_ROUNDS if self.beside.lift is not None else 1):
            self.excess.copy_(self.net.solve(past, y - cut(beside, 0, self.steps)))
            self.beside.solve(batch.given, y - self.net(past), self.frame.horizon)
            beside = self.beside(batch.given, len(y), self.frame.horizon)
        gap = (y - self.net(past) - cut(beside, 0, self.steps)) * self.excess
        self.unsteadiness.fit(past, gap)
        r = (gap * (-self.unsteadiness(past)[:, None]).exp()).flatten(1)
        self.margins.fit(r)
        self.dependence.fit(self.margins(r)[0])

    def laid(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | float]:
        """Past (B, L, C) and future (B, H, C), standardised, and the addition to its mean."""
        check_no_missing(self.name, batch)
        ready = broadcast_conditions(batch.given, self.space, len(batch))
        beside = self.beside(ready, len(batch), self.frame.horizon)
        return self.frame.past(self.name, ready), self.frame.inside(batch.x), beside

    def random_block(self, y: Tensor) -> Tensor:
        """The first step of one random block of each row, (B, 1)."""
        which = torch.randint(self.blocks, (len(y),), device=y.device)
        return (which * self.steps)[:, None]

    def alone(self, gap: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """log p of a block as if its entries were independent, in the units of the data, (B,), and
        their normal scores (B, D)."""
        z, slope = self.margins((gap * (-spread).exp()).flatten(1))
        log_scale = self.steps * (spread.sum((1, 2)) + self.frame.scale.log().sum())
        each = slope - 0.5 * z.square() - 0.5 * math.log(2 * math.pi)
        return each.sum(1) - log_scale, z

    def density(self, gap: Tensor, spread: Tensor) -> Tensor:
        """log p of the errors of a block (B, steps, C)."""
        alone, z = self.alone(gap, spread)
        return alone + self.dependence.log_density(z)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        past, y, beside = self.laid(as_batch(batch))
        full, total = torch.cat([past, y], 1), y.new_zeros(len(y))
        for start in range(0, self.frame.horizon, self.steps):
            window = full[:, start : start + self.frame.lookback]
            centre = self.net(window) + cut(beside, start, self.steps)
            gap = y[:, start : start + self.steps] - centre
            total = total + self.density(gap, self.unsteadiness(window)[:, None])
        return Likelihood(total, "exact")

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        return unsupported_series(cls.__module__.rpartition(".")[2], space)


def cut(beside: Tensor | float, start: int, steps: int) -> Tensor | float:
    """The steps from `start` on of (B, 1 or H, C); without a step axis it is returned as is."""
    if isinstance(beside, float) or beside.shape[1] == 1:
        return beside
    return beside[:, start : start + steps]


def taken(x: Any, first: Tensor, steps: int) -> Any:
    """The steps from `first` (B, 1) on of x (B, T, C), (B, steps, C); without a step axis x is
    returned as is."""
    if isinstance(x, float) or x.shape[1] == 1:
        return x
    place = first + torch.arange(steps, device=first.device)
    return x.gather(1, place[..., None].expand(-1, -1, x.shape[2]))
