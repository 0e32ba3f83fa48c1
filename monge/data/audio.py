"""Sound: wav files and folders of them, one row a file, each with a length of its own.

Samples are levels 0..2^bits - 1 in the order of their amplitude, so that nothing is lost; floats
are real. Folders under the root are labels, and so are the parts of the file names between
underscores where all names have equally many: digit_speaker_take.wav.

mu-law (ITU-T G.711; van den Oord et al. 2016) makes 256 levels of them: with s in [-1, 1],

    f(s) = sign(s) ln(1 + mu |s|) / ln(1 + mu),  mu = 255,  code = round((f + 1) / 2 * mu).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core.config import Range
from ..core.error import DataError
from . import content
from .codec import At, Codec, listed, whole_numbers
from .options import Options
from .ragged import Ragged
from .raw import Form, Places, Raw
from .sequence import Sequence, lengths, pack, spread
from .tags import classes, name_parts, tagged
from .wav import ZERO, Bits, Clip, load

MU = 255
SUFFIX = ".wav"


class Sound(Sequence):
    """Samples of an amplitude at a rate, one or several channels."""

    tag = "codec/sound"
    rate: Annotated[int, Range(1)]
    """Samples a second."""
    bits: Bits = 16
    """Of a sample in the file; 32 are floats."""
    mulaw: bool = False
    """Whether a level is a mu-law code."""
    parts: tuple[str, ...] = ()
    """What the parts of a file's name are called, empty where they are not read."""

    @property
    def channels(self) -> int:
        return self.step[0] if self.step else 1

    @property
    def sides(self) -> str:
        """How many channels, in words."""
        return {1: "mono", 2: "stereo"}.get(self.channels, f"{self.channels} channels")

    @property
    def law(self) -> str:
        """How a sample is written, in words."""
        if self.mulaw:
            return "mu-law levels"
        return "floats" if self.bits == 32 else f"{self.bits}-bit levels"

    def encode(self, values: np.ndarray, at: At) -> Ragged:
        for row, samples in enumerate(values if self.bits == 32 else ()):
            if not np.isfinite(samples).all():
                raise DataError(f"{at(row)} holds samples that are not finite; record it again")
        rows = [torch.from_numpy(np.ascontiguousarray(samples)) for samples in values]
        return Ragged.join(rows, ZERO[self.bits])

    def decode(self, x: np.ndarray) -> np.ndarray:
        """PCM as a file of so many bits holds it."""
        if self.mulaw:
            return quantise(expand(torch.from_numpy(np.asarray(x))), self.bits).numpy()
        if self.kind == "real":
            return x.astype(np.float32)
        levels = np.clip(x.astype(np.float64), 0, self.size - 1)
        return whole_numbers(levels - ZERO[self.bits], np.dtype(self.dtype))

    def clip(self, samples: np.ndarray) -> Clip:
        """Decoded samples as a file."""
        return Clip(samples, self.rate, self.bits)

    def tell(self, rows: Ragged) -> str:
        bits = "floats" if self.bits == 32 else f"{self.bits} bits"
        return (f"{spread(rows.length)} steps, {spread(rows.length, self.rate)} s at {self.rate} "
                f"Hz, {bits}, {self.sides}")

    def adopt(self, other: Codec, x: Any, name: str) -> Ragged:
        if not isinstance(other, Sound):
            raise DataError(f"{name} is not sound as the run's is; give wav files")
        for mine, its, word in (
                (f"{self.rate} Hz", f"{other.rate} Hz", f"+resample{self.rate}"),
                (self.law, other.law, "+mulaw" if self.mulaw else ""),
                (self.sides, other.sides, "+mono" if self.channels == 1 else "")):
            if mine != its:
                raise DataError(f"{name} has {its} where the run has {mine}; " +
                                (f"write its name with {word}" if word else f"give it {mine}"))
        return super().adopt(other, x, name)


def amplitude(x: Tensor, bits: int) -> Tensor:
    """Stored samples as float64, 1 the loudest; floats are amplitudes already."""
    if bits == 32:
        return x.double()
    half = 2 ** (bits - 1)
    return (x.double() - (half - ZERO[bits])) / half


def quantise(s: Tensor, bits: int) -> Tensor:
    """Amplitudes as the nearest samples of so many bits, as they are stored."""
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
    """The amplitude a mu-law code stands for."""
    curve = 2 * code.double().round().clamp(0, MU) / MU - 1
    return curve.sign() * torch.expm1(curve.abs() * math.log1p(MU)) / MU


def is_sound(path: Path) -> bool:
    """What only looks like a file counts, so that it is refused as it is read, not left out."""
    return path.suffix.lower() == SUFFIX and not path.is_dir() and path.name[0] != "."


def find(folder: Path) -> list[Path]:
    """Every wav in a folder and its class folders."""
    return sorted(path for path in [*folder.iterdir(), *folder.glob("*/*")] if is_sound(path))


def read(shelves: Mapping[Path, Several[Path]], name: str, options: Options, form: Form) -> Raw:
    """A row for each file of each folder, brought to one form."""
    paths = [path for shelf in shelves.values() for path in shelf]
    for path in paths:
        content.check(path)
    clips = [mend(load(path), form) for path in paths]
    agree(paths, [clip.rate for clip in clips], "Hz", f"write {name}+resample8000")
    agree(paths, [clip.channels for clip in clips], "channels", f"write {name}+mono")
    agree(paths, [clip.bits for clip in clips], "bits", "convert one with ffmpeg -c:a pcm_s16le")
    names = form.parts or name_parts(paths, options.parts)
    pairs = [(root, path) for root, shelf in shelves.items() for path in shelf]
    tags = classes(pairs, "sounds") | tagged(paths, names)
    values = {"sound": pack([clip.samples for clip in clips])}
    values |= {tag: np.array(words, object) for tag, words in tags.items()}
    places = Places(np.arange(1, len(paths) + 1), np.arange(len(paths), dtype=np.int32),
                    tuple(path.name for path in paths))
    notes = (f"{listed(tags)}: from the names of files and folders",) if tags else ()
    return Raw(name, values, ("sound",), places, "label" if "label" in tags else None,
               labels=frozenset(tags), codecs={"sound": fit(clips, names)}, notes=notes)


def fit(clips: Several[Clip], parts: tuple[str, ...] = ()) -> Sound:
    first = clips[0]
    longest, varies = lengths(clip.samples for clip in clips)
    return Sound(kind="real" if first.bits == 32 else "levels", rate=first.rate,
                 size=0 if first.bits == 32 else 2**first.bits, step=first.samples.shape[1:],
                 longest=longest, varies=varies, bits=cast(Bits, first.bits),  # none has 64 here
                 dtype=str(first.samples.dtype), parts=parts)


def mend(clip: Clip, form: Form) -> Clip:
    """What files that differ may need before they can stand beside one another; floats are of 32
    bits, in which models compute."""
    if clip.bits == 64:
        with np.errstate(over="ignore"):  # what is infinite in 32 bits is refused with its row
            clip = replace(clip, samples=clip.samples.astype(np.float32), bits=32)
    if form.mono:
        clip = replace(clip, samples=joined(clip.samples, clip.bits))
    if form.rate and form.rate != clip.rate:
        found = resampled(clip.samples, clip.rate, form.rate, clip.bits)
        clip = replace(clip, samples=found, rate=form.rate)
    return clip


def joined(samples: np.ndarray, bits: int) -> np.ndarray:
    """The mean of the channels, (T,)."""
    if samples.ndim == 1:
        return samples
    return quantise(amplitude(torch.from_numpy(samples), bits).mean(1), bits).numpy()


def resampled(samples: np.ndarray, old: int, new: int, bits: int) -> np.ndarray:
    """Samples at another rate, what the new rate cannot hold filtered out before."""
    from scipy.signal import resample_poly

    shared = math.gcd(old, new)
    s = amplitude(torch.from_numpy(samples), bits).numpy()
    return quantise(torch.from_numpy(resample_poly(s, new // shared, old // shared)), bits).numpy()


def agree(paths: Several[Path], values: Several[int], what: str, remedy: str) -> None:
    odd = next((place for place, value in enumerate(values) if value != values[0]), None)
    if odd is not None:
        raise DataError(f"{paths[0].name} has {values[0]} {what} and {paths[odd].name} has "
                        f"{values[odd]}; {remedy}")
