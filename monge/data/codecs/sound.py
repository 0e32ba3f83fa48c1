"""Sound as sampled amplitudes, and mu-law."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ...core.config import Range
from ...core.deferred import torch
from ...core.errors import DataError
from ...core.space import Space
from ..packed import Ragged
from ..readers.wav import ZERO, Bits, Clip
from .base import Codec, Locator
from .scalar import whole_numbers
from .sequence import SequenceCodec, spread

if TYPE_CHECKING:
    from torch import Tensor

MU = 255


class Sound(SequenceCodec):
    """Sampled amplitudes, one or several channels."""

    tag = "codec/sound"
    rate: Annotated[int, Range(1)]
    """Samples per second."""
    bits: Bits = 16
    """Bits per sample in the file; 32 means floats."""
    mulaw: bool = False
    """Whether a level is a mu-law code."""
    parts: tuple[str, ...] = ()
    """Names of the parts of file names; empty for those that are not read."""

    @property
    def channels(self) -> int:
        return self.step[0] if self.step else 1

    @property
    def channel_layout(self) -> str:
        """The number of channels, as text."""
        return {1: "mono", 2: "stereo"}.get(self.channels, f"{self.channels} channels")

    @property
    def encoding(self) -> str:
        """The sample format, as text."""
        if self.mulaw:
            return "mu-law levels"
        return "floats" if self.bits == 32 else f"{self.bits}-bit levels"

    def measure(self, x: Ragged, name: str) -> Space:
        return replace(super().measure(x, name), rate=0 if self.mulaw else self.rate)

    def encode(self, values: np.ndarray, at: Locator) -> Ragged:
        for row, samples in enumerate(values if self.bits == 32 else ()):
            if not np.isfinite(samples).all():
                raise DataError(f"{at(row)} holds samples that are not finite; record it again")
        rows = [torch.from_numpy(np.ascontiguousarray(samples)) for samples in values]
        return Ragged.join(rows, ZERO[self.bits])

    def decode(self, x: np.ndarray) -> np.ndarray:
        """PCM samples of `bits` bits."""
        if self.mulaw:
            return quantise(expand(torch.from_numpy(np.asarray(x))), self.bits).numpy()
        if self.kind == "real":
            return x.astype(np.float32)
        levels = np.clip(x.astype(np.float64), 0, self.size - 1)
        return whole_numbers(levels - ZERO[self.bits], np.dtype(self.dtype))

    def clip(self, samples: np.ndarray) -> Clip:
        """Decoded samples as the content of a wav file."""
        return Clip(samples, self.rate, self.bits)

    def describe(self, rows: Ragged) -> str:
        bits = "floats" if self.bits == 32 else f"{self.bits} bits"
        return (
            f"{spread(rows.length)} steps, {spread(rows.length, self.rate)} s at {self.rate} "
            f"Hz, {bits}, {self.channel_layout}"
        )

    def adopt(self, other: Codec, x: Any, name: str) -> Ragged:
        if not isinstance(other, Sound):
            raise DataError(
                f"{name} is not sound, but the run was fitted on sound; give wav files"
            )
        for mine, its, word in (
            (f"{self.rate} Hz", f"{other.rate} Hz", f"+resample{self.rate}"),
            (self.encoding, other.encoding, "+mulaw" if self.mulaw else ""),
            (self.channel_layout, other.channel_layout, "+mono" if self.channels == 1 else ""),
        ):
            if mine != its:
                raise DataError(
                    f"{name} has {its} where the run has {mine}; "
                    + (f"add {word} to its name" if word else f"convert it to {mine}")
                )
        return super().adopt(other, x, name)


def amplitude(x: Tensor, bits: int) -> Tensor:
    """Stored samples as amplitudes in -1..1, float64; floats are amplitudes already."""
    if bits == 32:
        return x.double()
    half = 2 ** (bits - 1)
    return (x.double() - (half - ZERO[bits])) / half


def quantise(s: Tensor, bits: int) -> Tensor:
    """Amplitudes as the nearest stored samples of `bits` bits."""
    if bits == 32:
        return s.float()
    half = 2 ** (bits - 1)
    levels = (s * half).round().clamp(-half, half - 1) + (half - ZERO[bits])
    return levels.to({8: torch.uint8, 16: torch.int16, 24: torch.int32}[bits])


def compress(s: Tensor) -> Tensor:
    """Amplitudes as mu-law codes, uint8."""
    curve = s.sign() * torch.log1p(MU * s.abs()) / math.log1p(MU)
    return ((curve + 1) / 2 * MU + 0.5).floor().byte()


def expand(code: Tensor) -> Tensor:
    """The amplitude of a mu-law code."""
    curve = 2 * code.double().round().clamp(0, MU) / MU - 1
    return curve.sign() * torch.expm1(curve.abs() * math.log1p(MU)) / MU
