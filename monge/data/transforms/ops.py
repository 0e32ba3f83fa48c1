"""Transforms, written with a plus after the name of a dataset: mnist+binarise.

A transform takes a codec and stored rows, of levels (N, *shape) or of sound, and returns both
changed. It is part of the name of the data, so its loss of information concerns no model.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ...core.errors import DataError
from ...core.memory import require_memory
from ..codecs.array import Array
from ..codecs.sequence import SequenceCodec, lengths
from ..codecs.sound import MU, Sound, amplitude, compress
from ..packed import Ragged
from ..readers.audio import joined, resampled

ELEMENTS_AT_ONCE = 2**22
"""Numbers converted to float32 at once."""


def binarise(codec: Array, x: Tensor) -> tuple[Array, Tensor]:
    """Each value 1 with probability value / top: sampled afresh in training, fixed elsewhere"""
    return replace(codec, kind="binary", sampled=True), x


def binarise_fixed(codec: Array, x: Tensor) -> tuple[Array, Tensor]:
    """Each value 1 with probability value / top, sampled once for each row"""
    rows = torch.arange(len(x))
    pieces = zip(x.split(_size(codec)), rows.split(_size(codec)), strict=True)
    bits = torch.cat([codec.sample_bits(part, row, False).byte() for part, row in pieces])
    return replace(codec, kind="binary", size=0), bits


def threshold(codec: Array, x: Tensor) -> tuple[Array, Tensor]:
    """1 where a value is above half of the top level"""
    return replace(codec, kind="binary", size=0), (2 * x.short() > codec.top).byte()


def grey(codec: Array, x: Tensor) -> tuple[Array, Tensor]:
    """Colour images as grey images"""
    if codec.shape[0] == 1:
        return codec, x
    weights = torch.tensor([0.299, 0.587, 0.114]).reshape(3, 1, 1)
    parts = [(part[:, :3] * weights).sum(1, keepdim=True) for part in x.split(_size(codec))]
    changed = replace(codec, shape=(1, *codec.shape[1:]), layout="HW")
    return changed, torch.cat([part.round().byte() for part in parts])


def resize(codec: Array, x: Tensor, side: int) -> tuple[Array, Tensor]:
    """Images of side x side: the central square, shrunk or enlarged (resize64)"""
    height, width = x.shape[-2:]
    if (height, width) == (side, side):
        return codec, x
    require_memory(f"+resize{side}", float(len(x) * x.shape[1] * side**2), "choose a smaller side")
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    square = x[..., top : top + edge, left : left + edge]
    parts = [
        interpolate(part.float(), (side, side), mode="bilinear", antialias=True)
        for part in square.split(_size(codec))
    ]
    small = torch.cat([part.round().clamp(0, codec.top).byte() for part in parts])
    return replace(codec, shape=(codec.shape[0], side, side)), small


def mulaw(codec: Sound, x: Ragged) -> tuple[Sound, Ragged]:
    """Sound in 256 levels, fine where it is quiet and coarse where it is loud (mu = 255)"""
    loudest = float(x.flat.abs().max()) if codec.bits == 32 else 1.0
    if loudest > 1:
        raise DataError(
            f"+mulaw takes amplitudes from -1 to 1, but the floats reach "
            f"{loudest:.4g}; scale them first"
        )
    parts = [compress(amplitude(part, codec.bits)) for part in x.flat.split(ELEMENTS_AT_ONCE)]
    return replace(codec, kind="levels", size=MU + 1, mulaw=True), x.change(torch.cat(parts))


def mono(codec: Sound, x: Ragged) -> tuple[Sound, Ragged]:
    """The mean of several channels of sound"""
    parts = [
        torch.from_numpy(joined(part.numpy(), codec.bits))
        for part in x.flat.split(ELEMENTS_AT_ONCE)
    ]
    return replace(codec, step=()), x.change(torch.cat(parts), x.base)


def resample(codec: Sound, x: Ragged, rate: int) -> tuple[Sound, Ragged]:
    """Sound at the given number of samples per second (resample8000)"""
    if codec.rate == rate:
        return codec, x
    rows = [
        torch.from_numpy(resampled(row.numpy(), codec.rate, rate, codec.bits)) for row in x.rows
    ]
    return replace(codec, rate=rate, longest=lengths(rows)[0]), Ragged.join(rows, x.base)


def cut(codec: SequenceCodec, x: Ragged, steps: int) -> tuple[SequenceCodec, Ragged]:
    """Sequences cut after the given number of steps (cut4000)"""
    rows = [row[:steps] for row in x.rows]
    longest, varies = lengths(rows)
    return replace(codec, longest=longest, varies=varies), Ragged.join(rows, x.base)


def _size(codec: Array) -> int:
    """Rows to transform at once."""
    return max(1, ELEMENTS_AT_ONCE // math.prod(codec.shape))
