r"""Forecast metrics, with three baselines: naive, seasonal naive and AR(1).

MSE and MAE in standard deviations of the training steps, so that channels are comparable; MASE,
the absolute error relative to that of repeating the last season within the training steps
(Hyndman & Koehler 2006); sMAPE in percent; CRPS $= E|X - y| - \frac12 E|X - X'|$ from samples,
which is the absolute error of a point forecast (Gneiting & Raftery 2007); and the coverage of the
central 80 % interval.

Naive repeats the last value, seasonal naive the last season, AR(1) is
$\mu + \rho^h (x_L - \mu)$ with $\rho$ by least squares over training pasts. Windows overlap, so a
standard error counts one window in `horizon`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from ..core.abilities import CanComplete, CanSample, HasMarginals, HasMean
from ..core.batch import Batch
from ..core.metric import Metric
from ..core.model import Model, device_of
from ..core.rng import make_generator
from ..core.space import Space
from .likelihood import HeldOutRows

PAST = "past"
MEASURES = ("mse", "mae", "mase", "smape", "crps")
RIVALS = ("naive", "seasonal_naive", "ar1")
LEVEL = 0.8
"""Probability of the central interval."""
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
SAMPLED_FUTURES, MAX_WINDOWS = 100, 400
"""Futures sampled for each window, and most windows."""
SLOW = (32, 32)
"""The same for models that sample step by step."""
PIECE = 64
"""Windows evaluated at once."""


@dataclass(frozen=True)
class SeriesReference:
    """Statistics of the training steps of each channel."""

    season: int
    scale: Tensor  # (C,): standard deviation
    naive: Tensor  # (C,): mean error of repeating the last season
    rho: Tensor  # (C,): of AR(1)
    mean: Tensor  # (C,)
    sigma: Tensor  # (C,)

    @classmethod
    def of(cls, past: Tensor, season: int, scale: Tensor) -> SeriesReference:
        """From training pasts (N, L, C)."""
        x, lag = past.double(), season if season < past.shape[1] else 1
        naive = (x[:, lag:] - x[:, :-lag]).abs().mean((0, 1)).clamp_min(1e-12)
        before, after = x[:, :-1].flatten(0, 1), x[:, 1:].flatten(0, 1)
        centre, later = before.mean(0), after.mean(0)
        rho = ((before - centre) * (after - later)).sum(0) / (before - centre).square().sum(
            0
        ).clamp_min(1e-12)
        rho = rho.clamp(-0.9999, 0.9999)
        mean = (later - rho * centre) / (1 - rho)
        sigma = (after - mean - rho * (before - mean)).square().mean(0).sqrt()
        return cls(season, scale.double(), naive, rho, mean, sigma)

    def ar1(self, past: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
        """Mean (B, H, C) and standard deviation (H, C)."""
        power = self.rho ** torch.arange(1, horizon + 1)[:, None].double()  # (H, C)
        spread = ((1 - power.square()) / (1 - self.rho.square())).sqrt() * self.sigma
        return self.mean + power * (past[:, -1:] - self.mean), spread


def is_forecast(model: Model) -> bool:
    """Whether the model generates a future given a past."""
    return PAST in model.space.given


def scale_of(space: Space) -> Tensor:
    """Standard deviation of the training steps of each channel, (C,)."""
    part = space.given.get(PAST, space)
    mean, scale = (part.spread(name).reshape(part.shape[0], -1) for name in ("mean", "scale"))
    return (scale.square().mean(0) + mean.var(0, correction=0)).sqrt()


def cut(model: Model, batch: Batch, horizon: int) -> tuple[Tensor, Tensor]:
    """Past and future (B, T, C) of rows."""
    channels = math.prod(model.space.shape[1:])
    x = batch.x.reshape(len(batch), -1, channels)
    if is_forecast(model):
        return batch.given[PAST].x.reshape(len(batch), -1, channels), x
    return x[:, :-horizon], x[:, -horizon:]


def sample_futures(
    model: Model, batch: Batch, horizon: int, n: int, generator: Generator
) -> Tensor:
    """n futures of each row, (n, B, H, C): sampled given the past, or by completing the row."""
    rows = batch[torch.arange(len(batch)).repeat(n)]
    if is_forecast(model):
        assert isinstance(model, CanSample), "forecasters can be sampled"
        x = model.sample(len(rows), rows.given, generator=generator)
    else:
        assert isinstance(model, CanComplete), "models of whole windows complete them"
        seen = torch.ones_like(rows.x, dtype=torch.bool)
        seen[:, -horizon:] = False
        hidden = Batch(rows.x, rows.given, seen, row=rows.row)
        x = model.complete(hidden, generator=generator)[:, -horizon:]
    return x.reshape(n, len(batch), horizon, -1)


@torch.no_grad()
def forecast_scores(
    model: Model, rows: HeldOutRows, training: Batch, season: int, horizon: int, seed: int = 0
) -> dict[str, Metric]:
    """Metrics of the model and the three baselines; those that need samples use a subset of
    windows, and so do the others unless the distribution is known in closed form."""
    reference = SeriesReference.of(cut(model, training, horizon)[0], season, scale_of(model.space))
    place = device_of(model)
    samples, most = (SAMPLED_FUTURES, MAX_WINDOWS) if is_forecast(model) else SLOW
    exact = is_forecast(model) and isinstance(model, HasMean) and isinstance(model, HasMarginals)
    watched, generator = spread(len(rows), most), make_generator(seed, place)
    values_by_name: dict[str, list[Tensor]] = {}
    for index in watched.split(PIECE):
        batch = rows.batch(index)
        x = sample_futures(model, batch.to(place), horizon, samples, generator).double().cpu()
        found = {"crps": crps(x, cut(model, batch, horizon)[1].double(), reference.scale)}
        if not exact:
            ends = [x.quantile(end, 0) for end in ENDS]
            found |= window_scores(model, batch, reference, horizon, x.mean(0), *ends)
        keep(values_by_name, found)
    for index in torch.arange(len(rows)).split(PIECE) if exact else ():
        batch = rows.batch(index)
        keep(
            values_by_name,
            window_scores(model, batch, reference, horizon, *closed_form(model, batch.to(place))),
        )
    names = [
        *MEASURES,
        f"coverage_{LEVEL:g}",
        *(f"{rival}.{name}" for rival in RIVALS for name in MEASURES),
    ]
    return {name: score(name, torch.cat(values_by_name[name]), horizon) for name in names}


def keep(values_by_name: dict[str, list[Tensor]], found: dict[str, Tensor]) -> None:
    for name, values in found.items():
        values_by_name.setdefault(name, []).append(values)


def spread(count: int, most: int) -> Tensor:
    """At most `most` whole numbers below `count`, evenly spaced."""
    size = min(count, most)
    return torch.arange(size) * count // size


def closed_form(model: Any, batch: Batch) -> list[Tensor]:
    """The mean and the ends of the central interval, (B, H, C), from the distribution itself."""
    distribution, mean = model.marginals(batch.given), model.mean(batch.given)
    steps = mean.reshape(len(batch), mean.shape[1], -1)
    return [
        part.reshape(steps.shape).double().cpu()
        for part in (steps, *(distribution.quantile(end) for end in ENDS))
    ]


def window_scores(
    model: Model,
    batch: Batch,
    reference: SeriesReference,
    horizon: int,
    mean: Tensor,
    low: Tensor,
    high: Tensor,
) -> dict[str, Tensor]:
    """Metrics of a forecast (B, H, C) with its interval, and of the baselines, per window."""
    past, truth = (part.double() for part in cut(model, batch, horizon))
    found = points(mean, truth, reference) | {
        f"coverage_{LEVEL:g}": ((low <= truth) & (truth <= high)).double().mean((1, 2))
    }
    for name, forecast in naive_forecasts(past, horizon, reference.season).items():
        found |= named(name, points(forecast, truth, reference))
    ar1, sigma = reference.ar1(past, horizon)
    found |= named("ar1", points(ar1, truth, reference))
    return found | {"ar1.crps": normal_crps(ar1, sigma, truth, reference.scale)}


def naive_forecasts(past: Tensor, horizon: int, season: int) -> dict[str, Tensor]:
    """The forecasts that repeat the past, (B, H, C)."""
    lag = min(season, past.shape[1])
    steps = torch.arange(horizon) % lag - lag
    return {"naive": past[:, -1:].expand(-1, horizon, -1), "seasonal_naive": past[:, steps]}


def points(forecast: Tensor, truth: Tensor, reference: SeriesReference) -> dict[str, Tensor]:
    """The metrics of point forecasts, per window."""
    gap = (forecast - truth).abs()
    both = (forecast.abs() + truth.abs()).clamp_min(1e-12)
    return {
        "mse": (gap / reference.scale).square().mean((1, 2)),
        "mae": (gap / reference.scale).mean((1, 2)),
        "mase": (gap / reference.naive).mean((1, 2)),
        "smape": (200 * gap / both).mean((1, 2)),
    }


def named(name: str, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Metrics prefixed by `name`; the CRPS of a point forecast is the absolute error."""
    return {f"{name}.{key}": values for key, values in found.items()} | {
        f"{name}.crps": found["mae"]
    }


def crps(samples: Tensor, truth: Tensor, scale: Tensor) -> Tensor:
    """The CRPS of samples (n, B, H, C) by its unbiased estimator, (B,)."""
    n = len(samples)
    ordered = samples.sort(0).values
    weight = (2 * torch.arange(1, n + 1).double() - n - 1).reshape(n, 1, 1, 1)
    within = (weight * ordered).sum(0) / (n * max(n - 1, 1))
    return (((samples - truth).abs().mean(0) - within) / scale).mean((1, 2))


def normal_crps(mean: Tensor, sigma: Tensor, truth: Tensor, scale: Tensor) -> Tensor:
    """CRPS of normal forecasts: sigma (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi))."""
    z = (truth - mean) / sigma
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    each = z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi)
    return (sigma * each / scale).mean((1, 2))


def score(name: str, values: Tensor, horizon: int) -> Metric:
    """The mean over windows; its error counts one window in `horizon`, as windows overlap."""
    last = name.rpartition(".")[2] if not name.startswith("coverage") else "coverage"
    unit = {
        "mse": "standardised",
        "mae": "standardised",
        "crps": "standardised",
        "mase": "naive",
        "smape": "%",
        "coverage": "share",
    }[last]
    count = max(len(values) / horizon, 1.0)
    error = float(values.std() / math.sqrt(count)) if len(values) > 1 else 0.0
    return Metric(
        float(values.mean()), "estimate" if last == "coverage" else "distance", error, unit
    )
