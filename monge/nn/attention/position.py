r"""Positional encodings: absolute, rotary and relative.

Absolute positions are vectors E_t that are added to the steps or concatenated with them: sinusoids
$E_{t,2i} = \sin(t\,\omega_i)$, $E_{t,2i+1} = \cos(t\,\omega_i)$ with $\omega_i = 10000^{-2i/d}$
(Vaswani et al. 2017), of any length, or learned ones, up to a length. Rotary positions rotate
queries and keys by t omega_i in each plane i, so their products depend only on t - s (Su et al.
2021). A relative bias $b_{t-s}$ is added to the scores: a learned table clipped at a distance
(Shaw et al. 2018), one per bucket of distances (Raffel et al. 2020), or the fixed slopes
$-m_h |t - s|$ of ALiBi (Press et al. 2022).
"""

from __future__ import annotations

import abc
import math
from typing import Literal

import torch
from torch import Tensor, nn

from ...core.errors import UsageError

Positions = Literal["none", "sinusoidal", "learned", "rotary", "table", "buckets", "alibi"]
Layout = Literal["interleaved", "halves"]
Join = Literal["add", "concatenate"]
WAVELENGTH_BASE = 10_000.0
MAX_DISTANCE = 128
"""Distance beyond which a table or the buckets do not distinguish distances."""


def frequencies(width: int) -> Tensor:
    """omega_i = BASE^(-2i / width) of the planes i = 0..ceil(width / 2) - 1, float64."""
    return WAVELENGTH_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def sinusoids(length: int, width: int, layout: Layout = "interleaved") -> Tensor:
    """E (length, width), float64: sines and cosines interleaved, or all sines before all
    cosines."""
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequencies(width)  # (T, planes)
    pair = torch.stack([angle.sin(), angle.cos()], 2 if layout == "interleaved" else 1)
    return pair.flatten(1)[:, :width]


class AbsolutePositions(nn.Module, abc.ABC):
    """Position vectors: x_t + E_t, or [x_t, E_t].

    Since [x, E] W = x W_1 + E W_2, adding is the case W_1 = W_2. `outputs` is the width after it.
    """

    anchor: Tensor

    def __init__(self, width: int, join: Join = "add") -> None:
        super().__init__()
        self.width, self.join = width, join
        self.outputs = width if join == "add" else 2 * width
        self.register_buffer("anchor", torch.zeros(()), persistent=False)  # holds the dtype

    @abc.abstractmethod
    def table(self, length: int) -> Tensor:
        """E of the first `length` positions, (length, width)."""

    def forward(self, x: Tensor) -> Tensor:  # (B, T, width) -> (B, T, outputs)
        return self.combine(x, self.table(x.shape[1]))

    def combine(self, x: Tensor, places: Tensor) -> Tensor:
        """x (..., width) combined with the vectors of its positions, which broadcast with it."""
        if self.join == "add":
            return x + places
        return torch.cat([x, places.expand_as(x)], -1)


class SinusoidalPositions(AbsolutePositions):
    """Fixed sinusoids: E_{t+k} is E_t rotated by k omega_i in each plane."""

    def __init__(self, width: int, join: Join = "add", layout: Layout = "interleaved") -> None:
        super().__init__(width, join)
        self.layout: Layout = layout

    def table(self, length: int) -> Tensor:
        return sinusoids(length, self.width, self.layout).to(self.anchor)


class LearnedPositions(AbsolutePositions):
    """A learned vector for each of the first `max_steps` positions."""

    def __init__(self, width: int, max_steps: int, join: Join = "add") -> None:
        super().__init__(width, join)
        self.weight = nn.Parameter(0.02 * torch.randn(max_steps, width))

    def table(self, length: int) -> Tensor:
        if length > len(self.weight):
            raise UsageError(
                f"a sequence of {length} steps is longer than the {len(self.weight)} "
                "learned positions; choose positions=sinusoidal or a larger length"
            )
        return self.weight[:length]


class RotaryPositions(nn.Module):
    """(x_i, x_{i+d/2}) rotated by the angle t omega_i, for queries and keys of width d."""

    anchor: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 2:
            raise UsageError(
                f"rotary positions need heads of even width, found {width}; choose a "
                "width that is a multiple of twice the heads"
            )
        self.width = width
        self.register_buffer("anchor", torch.zeros(()), persistent=False)

    def table(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of the first positions, (length, width)."""
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequencies(self.width)
        cos, sin = angle.cos(), angle.sin()  # (T, width / 2)
        return (
            torch.cat([cos, cos], 1).to(self.anchor),
            torch.cat([-sin, sin], 1).to(self.anchor),
        )

    def forward(self, x: Tensor) -> Tensor:  # (..., T, width)
        return rotate(x, *self.table(x.shape[-2]))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (..., width) rotated by angles whose cosines and signed sines broadcast with it."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


class RelativeBias(nn.Module, abc.ABC):
    """b_h(t - s), added to the score of query t and key s in head h."""

    heads: int

    @abc.abstractmethod
    def of(self, distance: Tensor) -> Tensor:
        """The bias (heads, *S) at distances t - s, whole numbers (*S)."""

    def forward(self, queries: int, keys: int) -> Tensor:
        """(heads, queries, keys); positions are counted from the first."""
        count = torch.arange(max(queries, keys), device=self.device)
        return self.of(count[:queries, None] - count[None, :keys])

    @property
    @abc.abstractmethod
    def device(self) -> torch.device: ...


class ClippedBias(RelativeBias):
    """A learned number for each distance, clipped to -reach..reach."""

    def __init__(self, heads: int, reach: int = MAX_DISTANCE) -> None:
        super().__init__()
        self.heads, self.reach = heads, reach
        self.weight = nn.Parameter(torch.zeros(heads, 2 * reach + 1))

    def of(self, distance: Tensor) -> Tensor:
        return self.weight[:, distance.clamp(-self.reach, self.reach) + self.reach]

    @property
    def device(self) -> torch.device:
        return self.weight.device


class BucketBias(RelativeBias):
    """A learned number for each bucket of distances: single distances first, then buckets that
    grow geometrically up to `reach`; past and future have half of the buckets each."""

    def __init__(self, heads: int, count: int = 32, reach: int = MAX_DISTANCE) -> None:
        super().__init__()
        self.heads, self.runs, self.reach = heads, count // 2, reach
        self.weight = nn.Parameter(torch.zeros(heads, 2 * self.runs))

    def of(self, distance: Tensor) -> Tensor:
        return self.weight[:, self.bucket(distance)]

    def bucket(self, distance: Tensor) -> Tensor:
        single = self.runs // 2
        size = distance.abs()
        ratio = (size.clamp(min=1).double() / single).log() / math.log(self.reach / single)
        wide = single + (ratio * (self.runs - single)).floor().long()
        run = torch.where(size < single, size, wide.clamp(max=self.runs - 1))
        return torch.where(distance < 0, run + self.runs, run)

    @property
    def device(self) -> torch.device:
        return self.weight.device


class AlibiBias(RelativeBias):
    """-m_h |t - s| with fixed slopes m_h = 2^(-8 h / heads), h = 1..heads."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def of(self, distance: Tensor) -> Tensor:
        return -distance.abs() * self.slopes.reshape(-1, *(1,) * distance.ndim)

    @property
    def device(self) -> torch.device:
        return self.slopes.device


def absolute_positions(
    kind: Positions, width: int, max_steps: int, join: Join = "add"
) -> AbsolutePositions | None:
    """The position vectors of this kind; None for other kinds."""
    if kind == "sinusoidal":
        return SinusoidalPositions(width, join)
    return LearnedPositions(width, max_steps, join) if kind == "learned" else None


def relative_bias(kind: Positions, heads: int) -> RelativeBias | None:
    """The relative bias of this kind; None for other kinds."""
    known = {"table": ClippedBias, "buckets": BucketBias, "alibi": AlibiBias}
    return known[kind](heads) if kind in known else None
