"""Series: one or several channels at equal steps of time, read as windows of past and future.

A window is `lookback` steps followed by `horizon` steps; there is one at each position where it
fits, and all are views of one array. The fields of a window: `series` (all of it), `past`,
`future`, `time` (of the first step of the future), and on request `known` (columns whose future is
known in advance) and `calendar` (day, week and year), both over the steps of the future.

Splits are by time: training comes first, then validation, then test. A window belongs to the
split that contains all of its future; its past may lie in an earlier split, as it is known when
the forecast is made. A window whose future straddles two splits is left out, so nothing leaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ...core.config import Range
from ...core.deferred import torch
from ...core.space import Space
from ..packed import Ragged, statistics
from .base import Codec, Locator
from .time_index import TimeIndex


@dataclass(frozen=True)
class Series:
    """Steps in order; separate recordings are concatenated."""

    name: str
    values: NDArray[np.float32]  # (T, C)
    channels: tuple[str, ...]
    clock: TimeIndex
    known: NDArray[np.float32]  # (T + steps known after the end, K)
    covariates: tuple[str, ...] = ()
    column: str = "time"  # name of the column of times
    lengths: tuple[int, ...] = ()  # of the recordings
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class WindowSpec:
    """How a series is cut into windows."""

    lookback: int
    horizon: int
    season: int

    @property
    def steps(self) -> int:
        return self.lookback + self.horizon


class Window(Codec):
    """Some steps of every window."""

    tag = "codec/window"
    channels: tuple[str, ...]
    """Names of the numbers of a step."""
    before: Annotated[int, Range(0)] = 0
    """Steps of a window before these."""
    steps: Annotated[int, Range(1)]
    """Number of steps."""
    after: Annotated[int, Range(0)] = 0
    """Steps of a window after these."""
    season: Annotated[int, Range(1)] = 1
    """Steps of the cycle that a naive forecast repeats."""
    vector: bool
    """Whether a step is a vector rather than a number."""

    @property
    def step(self) -> tuple[int, ...]:
        return (len(self.channels),) if self.vector else ()

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the numbers of a window."""
        return tuple(
            f"{name}+{step}" for step in range(1, self.steps + 1) for name in self.channels
        )

    def encode(self, values: Any, at: Locator) -> Ragged:
        """values: the steps (T, C) and where each window begins."""
        flat, start = (torch.from_numpy(part) for part in values)
        start = start + self.before
        return Ragged(flat.reshape(-1, *self.step), start, torch.full_like(start, self.steps))

    def decode(self, x: np.ndarray) -> np.ndarray:
        return x.astype(np.float64)

    def measure(self, x: Ragged, name: str) -> Space:
        """Every step that a training window touches counts once, so that past and future are
        standardised alike."""
        edge = torch.zeros(len(x.flat) + 1, dtype=torch.long)
        edge.index_add_(0, x.start - self.before, torch.ones_like(x.start))
        edge.index_add_(0, x.start + self.steps + self.after, -torch.ones_like(x.start))
        found = statistics(x.flat[edge[:-1].cumsum(0) > 0], len(self.channels))
        found["rows"] = len(x)
        return Space(kind="real", shape=(self.steps, *self.step), name=name, **found)
