r"""Networks from the past of a series to its future, all steps at once.

The past is (B, L, C), standardised; the future (B, H, C). Most subtract the last value of the past
and add it to the output, so that the level of a series may drift.

Linear maps are hard to beat (Zeng et al. 2023) and need no gradient training: NLinear is
$y = x_L + W (x - x_L) + b$, DLinear $y = W_1\, \mathrm{avg}(x) + W_2 (x - \mathrm{avg}(x)) + b$,
one W for all channels; W is the ridge regression over training windows.
"""

from __future__ import annotations

import abc
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.config import Config as BaseConfig
from ..core.config import Configured, Range
from . import dilated, mlp, recurrent
from .attention import transformer
from .layers.linear import Linear

RIDGES = tuple(10.0**power for power in (-5, -4, -3, -2.5, -2, -1.5, -1, -0.5, 0))
"""Candidate penalties, relative to the mean square of a feature."""
FOLDS = 5
"""Folds, consecutive in time, of the cross-validation that selects the penalty."""
MAX_ERROR_RATIO = 3.0
"""Upper bound of the factor by which future errors exceed those of training windows."""
CHUNK_WINDOWS = 1024
"""Windows whose features are computed at once."""


class ForecastNet(Configured, nn.Module, abc.ABC):
    """(B, L, C) -> (B, H, C)."""

    class Config(BaseConfig):
        tag = "forecaster/"

    def __init__(self, config: Config, lookback: int, horizon: int, channels: int) -> None:
        super().__init__()
        self.lookback, self.horizon, self.channels = lookback, horizon, channels

    @abc.abstractmethod
    def forward(self, past: Tensor) -> Tensor: ...

    def solve(self, past: Tensor, future: Tensor) -> Tensor:
        """Fit the weights in closed form to training windows (N, L, C) and (N, H, C), in time
        order; a network trained by gradients is unchanged. Returns the factor by which
        future errors exceed those of training windows, (C,)."""
        return torch.ones(self.channels).to(past)


class LinearForecast(ForecastNet):
    """y = offset + W phi(x), the same W for all channels or one for each."""

    class Config(ForecastNet.Config):
        solve: bool = True
        """Weights by ridge regression over the training windows; false trains them."""
        ridge: Annotated[float, Range(0)] = 0.0
        """Penalty of the regression, relative to the mean square of a feature; 0 chooses by
        cross-validation."""
        shared: bool = True
        """One map for all channels."""

    config: Config

    def __init__(
        self, config: Config, lookback: int, horizon: int, channels: int, features: int
    ) -> None:
        super().__init__(config, lookback, horizon, channels)
        self.config = config
        maps = 1 if config.shared else channels
        self.weight = nn.Parameter(
            torch.zeros(maps, features, horizon), requires_grad=not config.solve
        )

    @abc.abstractmethod
    def read(self, past: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of the map (B, C, features), and the offset of its output (B, C, 1)."""

    def forward(self, past: Tensor) -> Tensor:
        phi, offset = self.read(past)
        return (
            torch.einsum("bcf,cfh->bch", phi, self.weight.expand(self.channels, -1, -1)) + offset
        ).mT

    @torch.no_grad()
    def solve(self, past: Tensor, future: Tensor) -> Tensor:
        """Each fold is an interval of time, forecast from windows whose future is outside it."""
        n = len(past)
        if not self.config.solve:
            return super().solve(past, future)
        if n < 2 * FOLDS:
            self.weight.copy_(
                solve_ridge(*self.sums(past, future), self.config.ridge or RIDGES[-1])
            )
            return super().solve(past, future)
        folds = torch.arange(n).chunk(FOLDS)
        held = [self.sums(past[fold], future[fold]) for fold in folds]
        rest_sums = []
        for fold in folds:
            begin, end = max(int(fold[0]) - self.horizon, 0), int(fold[-1]) + 1 + self.horizon
            sides = (slice(0, begin), slice(end, n))
            each = [self.sums(past[side], future[side]) for side in sides]
            rest_sums.append((each[0][0] + each[1][0], each[0][1] + each[1][1]))
        best = self.config.ridge or min(
            RIDGES,
            key=lambda ridge: sum(
                squared_error(*own, solve_ridge(*rest, ridge))
                for own, rest in zip(held, rest_sums, strict=True)
            ),
        )
        unseen = sum(
            self.squared_errors(past[fold], future[fold], solve_ridge(*rest, best))
            for fold, rest in zip(folds, rest_sums, strict=True)
        )
        gram, cross = (sum(parts) for parts in zip(*held, strict=True))
        self.weight.copy_(solve_ridge(torch.as_tensor(gram), torch.as_tensor(cross), best))
        seen = self.squared_errors(past, future, self.weight)
        return (unseen / seen.clamp_min(1e-9)).sqrt().clamp(1, MAX_ERROR_RATIO).to(past)

    def squared_errors(self, past: Tensor, future: Tensor, weight: Tensor) -> Tensor:
        """The sum of squared errors of each channel, (C,)."""
        total = weight.new_zeros(self.channels)
        for x, y in zip(past.split(CHUNK_WINDOWS), future.split(CHUNK_WINDOWS), strict=True):
            phi, offset = self.read(x)
            predicted = (
                torch.einsum("bcf,cfh->bch", phi, weight.to(phi).expand(self.channels, -1, -1))
                + offset
            )
            total += (predicted.mT - y).square().sum((0, 1))
        return total

    def sums(self, past: Tensor, future: Tensor) -> tuple[Tensor, Tensor]:
        """phi' phi (maps, F, F) and phi' y (maps, F, H), float64."""
        maps, size, steps = self.weight.shape
        gram, cross = (
            self.weight.new_zeros(maps, size, wide, dtype=torch.float64) for wide in (size, steps)
        )
        for x, y in zip(past.split(CHUNK_WINDOWS), future.split(CHUNK_WINDOWS), strict=True):
            phi, offset = self.read(x)
            rows, target = phi.transpose(0, 1), (y.mT - offset).transpose(0, 1)  # (C, B, ...)
            if self.config.shared:
                rows, target = rows.flatten(0, 1)[None], target.flatten(0, 1)[None]
            gram += rows.mT @ rows
            cross += rows.mT @ target
        return gram, cross


def solve_ridge(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """(G + ridge tr(G) / F I)^-1 X' y; features that are always zero get weight 0."""
    size = gram.shape[-1]
    mean = gram.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-9)
    eye = torch.eye(size, dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram + (ridge * mean)[:, None, None] * eye, cross)


def squared_error(gram: Tensor, cross: Tensor, weight: Tensor) -> float:
    """The sum of squared errors, up to a constant."""
    return float((weight * (gram @ weight - 2 * cross)).sum())


class NLinear(LinearForecast):
    """A linear map of the past minus its last value."""

    class Config(LinearForecast.Config):
        tag = "forecaster/nlinear"

    def __init__(self, config: Config, lookback: int, horizon: int, channels: int) -> None:
        super().__init__(config, lookback, horizon, channels, lookback + 1)

    def read(self, past: Tensor) -> tuple[Tensor, Tensor]:
        x, last = past.mT, past.mT[..., -1:]
        return F.pad(x - last, (0, 1), value=1.0), last


class DLinear(LinearForecast):
    """Separate linear maps of the trend, a moving average, and of the remainder."""

    class Config(LinearForecast.Config):
        tag = "forecaster/dlinear"
        kernel: Annotated[int, Range(1)] = 25
        """Steps of the moving average; the ends are repeated."""

    config: Config

    def __init__(self, config: Config, lookback: int, horizon: int, channels: int) -> None:
        super().__init__(config, lookback, horizon, channels, 2 * lookback + 1)

    def read(self, past: Tensor) -> tuple[Tensor, Tensor]:
        x, size = past.mT, self.config.kernel
        wide = F.pad(x, ((size - 1) // 2, size // 2), mode="replicate")
        trend = F.avg_pool1d(wide, size, 1)
        return F.pad(torch.cat([trend, x - trend], -1), (0, 1), value=1.0), 0 * x[..., :1]


class ResidualForecast(ForecastNet):
    """y = x_L + V h, with h the features of a network of the past minus its last value."""

    net: Any
    last: nn.Linear

    def build_output(self, width: int) -> nn.Linear:
        """The output layer, initialised near zero."""
        last = Linear(width, self.horizon * self.channels)
        nn.init.normal_(last.weight, std=1e-3)
        nn.init.zeros_(last.bias)
        return last

    @abc.abstractmethod
    def hidden(self, x: Tensor) -> Tensor:
        """h (B, width) of (B, L, C)."""

    def forward(self, past: Tensor) -> Tensor:
        last = past[:, -1:]
        y = self.last(self.hidden(past - last))
        return last + y.unflatten(1, (self.horizon, self.channels))


class MLPForecast(ResidualForecast):
    """An MLP of the whole past."""

    class Config(ResidualForecast.Config):
        tag = "forecaster/layers"
        net: mlp.MLP.Config = mlp.MLP.Config(width=256, dropout=0.1)
        """The layers."""

    def __init__(self, config: Config, lookback: int, horizon: int, channels: int) -> None:
        super().__init__(config, lookback, horizon, channels)
        self.net = config.net.build(lookback * channels, config.net.width)
        self.last = self.build_output(config.net.width)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.net(x.flatten(1)))


class RecurrentForecast(ResidualForecast):
    """The hidden state of a recurrent network after the past."""

    class Config(ResidualForecast.Config):
        tag = "forecaster/recurrence"
        net: recurrent.RecurrentNet.Config = recurrent.GRU.Config(width=64)
        """Network that reads the steps: rnn, lstm or gru."""

    def __init__(self, config: Config, lookback: int, horizon: int, channels: int) -> None:
        super().__init__(config, lookback, horizon, channels)
        self.net = config.net.build(channels)
        self.last = self.build_output(self.net.outputs)

    def hidden(self, x: Tensor) -> Tensor:
        return self.net(x)[:, -1]


class ConvForecast(ResidualForecast):
    """The output of dilated causal convolutions at the last step of the past."""

    class Config(ResidualForecast.Config):
        tag = "forecaster/convolution"
        net: dilated.DilatedStack.Config = dilated.TCNStack.Config(width=32, layers=7)
        """Network: tcn (plain residual blocks), wavenet (gated, with skip paths) or continuous."""

    def __init__(self, config: Config, lookback: int, horizon: int, channels: int) -> None:
        super().__init__(config, lookback, horizon, channels)
        self.lift = Linear(channels, config.net.width)
        self.net = config.net.build(config.net.width)
        self.last = self.build_output(config.net.width)

    def hidden(self, x: Tensor) -> Tensor:
        return self.net(self.lift(x))[:, -1]


class TransformerForecast(ResidualForecast):
    """A transformer over patches of the past (Nie et al. 2023), mean-pooled."""

    class Config(ResidualForecast.Config):
        tag = "forecaster/attention"
        net: transformer.TransformerEncoder.Config = transformer.TransformerEncoder.Config(
            width=64, depth=2, dropout=0.2
        )
        """The blocks."""
        patch: Annotated[int, Range(1)] = 16
        """Steps per token; a remainder at the beginning is not read."""

    def __init__(self, config: Config, lookback: int, horizon: int, channels: int) -> None:
        super().__init__(config, lookback, horizon, channels)
        self.patch = min(config.patch, lookback)
        self.net = config.net.build(self.patch * channels, lookback // self.patch)
        self.last = self.build_output(self.net.outputs)

    def hidden(self, x: Tensor) -> Tensor:
        tokens = x[:, x.shape[1] % self.patch :].unflatten(1, (-1, self.patch)).flatten(2)
        return self.net(tokens).mean(1)
