"""Sound: wav files and folders of them, one row of any length per file.

Samples are levels 0..2^bits - 1 in the order of their amplitude, without loss; floats are real.
Folders under the root are labels, and so are the parts of the file names between underscores, if
all names have the same number of parts: digit_speaker_take.wav. A table in the folder may describe
the files, for instance with a transcript each (`path_labels`).

mu-law (ITU-T G.711; van den Oord et al. 2016) reduces them to 256 levels: with s in [-1, 1],

    f(s) = sign(s) ln(1 + mu |s|) / ln(1 + mu),  mu = 255,  code = round((f + 1) / 2 * mu).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from ...core.deferred import torch
from ...core.errors import DataError
from ..codecs.scalar import listed
from ..codecs.sequence import lengths, pack
from ..codecs.sound import Sound, amplitude, quantise
from ..options import Options
from .base import RawData, ReadFormat, RowLocations, check_file
from .path_labels import classes, described, file_names, name_parts, tagged
from .wav import Bits, Clip, load

SUFFIX = ".wav"


def is_sound(path: Path) -> bool:
    """By suffix; also for broken links, so that they are refused on reading, not ignored."""
    return path.suffix.lower() == SUFFIX and not path.is_dir() and path.name[0] != "."


def find(folder: Path) -> list[Path]:
    """Every wav in a folder and its class folders."""
    return sorted(path for path in [*folder.iterdir(), *folder.glob("*/*")] if is_sound(path))


def read(
    shelves: Mapping[Path, Several[Path]], name: str, options: Options, form: ReadFormat
) -> RawData:
    """One row per file of each folder, converted to one format."""
    paths = [path for shelf in shelves.values() for path in shelf]
    for path in paths:
        check_file(path)
    clips = [conformed(load(path), form) for path in paths]
    agree(paths, [clip.rate for clip in clips], "Hz", name, "+resample8000")
    agree(paths, [clip.channels for clip in clips], "channels", name, "+mono")
    agree(paths, [clip.bits for clip in clips], "bits", name)
    names = form.parts or name_parts(paths, options.parts)
    pairs = [(root, path) for root, shelf in shelves.items() for path in shelf]
    tags = classes(pairs, "sounds") | tagged(paths, names)
    values = {"sound": pack([clip.samples for clip in clips])}
    values |= {tag: np.array(words, object) for tag, words in tags.items()}
    values |= described_shelves(shelves)
    places = RowLocations(
        np.arange(1, len(paths) + 1),
        np.arange(len(paths), dtype=np.int32),
        tuple(path.name for path in paths),
    )
    notes = (f"{listed(tags)}: from the names of files and folders",) if tags else ()
    return RawData(
        name,
        values,
        ("sound",),
        places,
        "label" if "label" in tags else None,
        labels=frozenset(tags),
        codecs={"sound": fit(clips, names)},
        row_keys=file_names(pairs),
        notes=notes,
    )


def described_shelves(shelves: Mapping[Path, Several[Path]]) -> dict[str, np.ndarray]:
    """The columns of the metadata table in each folder, one below the other."""
    parts = [described(shelf, root) for root, shelf in shelves.items() if shelf]
    for part in parts:
        if part.keys() != parts[0].keys():
            raise DataError(
                f"expected the same columns in the metadata table of each folder, found "
                f"{listed(parts[0]) or 'none'} in one and {listed(part) or 'none'} in another; "
                "make them equal"
            )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def fit(clips: Several[Clip], parts: tuple[str, ...] = ()) -> Sound:
    first = clips[0]
    longest, varies = lengths(clip.samples for clip in clips)
    return Sound(
        kind="real" if first.bits == 32 else "levels",
        rate=first.rate,
        size=0 if first.bits == 32 else 2**first.bits,
        step=first.samples.shape[1:],
        longest=longest,
        varies=varies,
        bits=cast(Bits, first.bits),  # never 64 here
        dtype=str(first.samples.dtype),
        parts=parts,
    )


def conformed(clip: Clip, form: ReadFormat) -> Clip:
    """A clip with the rate and channels of `form`; floats are converted to 32 bits."""
    if clip.bits == 64:
        with np.errstate(over="ignore"):  # values that overflow are refused later, with their row
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
    """Samples at another rate, with an anti-aliasing filter."""
    from scipy.signal import resample_poly

    shared = math.gcd(old, new)
    s = amplitude(torch.from_numpy(samples), bits).numpy()
    return quantise(torch.from_numpy(resample_poly(s, new // shared, old // shared)), bits).numpy()


def agree(
    paths: Several[Path], values: Several[int], what: str, name: str, change: str = ""
) -> None:
    """Refuse files that differ, and advise a transform of their name where there is one."""
    odd = next((place for place, value in enumerate(values) if value != values[0]), None)
    if odd is None:
        return
    remedy = f"write {name}{change}" if change else "convert one with ffmpeg -c:a pcm_s16le"
    raise DataError(
        f"{paths[0].name} has {values[0]} {what} and {paths[odd].name} has "
        f"{values[odd]}; {remedy}",
        *([change] if change else []),
    )
