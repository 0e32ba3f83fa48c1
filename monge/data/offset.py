"""Numbers far from zero beside their spread, such as seconds since 1970, less an offset: float32
has no digits for both."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .codec import EXACT, At, Number, finite, numbers, numpy_dtype, shortest, whole_numbers


class Offset(Number):
    """A number as its distance from one of the numbers."""

    tag = "codec/offset_number"
    offset: float
    """What is taken off; scores are the same with and without it."""

    def encode(self, values: np.ndarray, at: At) -> Tensor:
        return super().encode(finite(numbers(values, at), at) - self.offset, at)

    def decode(self, x: np.ndarray) -> np.ndarray:
        close = np.rint(x).astype(np.float64) if self.kind == "counts" else shortest(x)
        moved = close + self.offset
        dtype = numpy_dtype(self.dtype)
        return moved.astype(dtype) if dtype.kind == "f" else whole_numbers(moved, dtype)


def fit(values: np.ndarray, dtype: str) -> Offset:
    """The codec of the distinct numbers of a column: whole ones stay whole where they fit."""
    middle = float(np.sort(values)[len(values) // 2])
    whole = "int" in dtype.lower() and np.abs(values - middle).max() <= EXACT
    return Offset(kind="counts" if whole else "real", dtype=dtype, offset=middle)
