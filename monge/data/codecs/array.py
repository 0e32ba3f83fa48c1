"""Fields whose values have a shape: vectors, images, stacks of either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...core.deferred import torch
from ...core.keyed_bits import derive_seed
from ...core.space import Space
from ..packed import Moments, statistics
from .base import Codec, Locator
from .scalar import Number, finite, refuse, whole_numbers

if TYPE_CHECKING:
    from torch import Tensor

DRAW = 1024
"""Rows whose noise is generated at once."""


class Array(Codec):
    """Arrays of numbers. Levels and binary values are stored as bytes. With `sampled`, a byte is a
    probability: the value in a batch is 1 with probability value / (size - 1)."""

    tag = "codec/array"
    kind: Literal["real", "binary", "levels", "counts"]
    """Kind of the numbers."""
    shape: tuple[int, ...]
    """Shape of one row, channels first."""
    size: int = 0
    """Number of levels of a byte."""
    layout: Literal["", "HW", "HWC"] = ""
    """Shape of a row in the data, if not `shape`."""
    entries: tuple[str, ...] = ()
    """Names of the entries of a vector."""
    sampled: bool = False
    """Whether binary values are sampled when they are used."""

    @property
    def top(self) -> int:
        """The largest level, which stands for probability 1 if values are sampled."""
        return max(self.size - 1, 1)

    def encode(self, values: np.ndarray, at: Locator) -> Tensor:
        return self.keep(self.arrange(values), at)

    def keep(self, rows: np.ndarray, at: Locator) -> Tensor:
        """Rows (N, *shape) in the smallest type of their kind."""
        rows = np.ascontiguousarray(rows)
        if self.kind == "counts":
            refuse(rows != np.rint(rows), rows, at, "has a fraction where whole numbers belong")
        if self.kind in ("real", "counts"):
            return torch.from_numpy(finite(rows, at).astype(np.float32))
        if rows.dtype != np.uint8 or rows.max() > self.top:
            strange = (rows > self.top) | (rows < 0) | (rows != np.rint(rows)) | np.isnan(rows)
            refuse(
                strange,
                np.nan_to_num(rows.astype(np.float64), nan=-1),
                at,
                f"is not a whole number from 0 to {self.top}",
            )
        return torch.from_numpy(rows.astype(np.uint8))

    def arrange(self, values: np.ndarray) -> np.ndarray:
        """Channels first."""
        if self.layout == "HW":
            return values[:, None]
        return np.moveaxis(values, -1, 1) if self.layout == "HWC" else values

    def decode(self, x: np.ndarray) -> np.ndarray:
        dtype = np.dtype(self.dtype)
        if self.kind == "binary":
            x = (x > 0.5).astype(dtype)
        elif dtype.kind in "iu":
            x = whole_numbers(np.clip(x, 0, self.top) if self.size else x, dtype)
        else:
            x = x.astype(dtype)
        if self.layout == "HW":
            return x[:, 0]
        return np.moveaxis(x, 1, -1) if self.layout == "HWC" else x

    def measure(self, x: Any, name: str) -> Space:
        groups = self.shape[0] if len(self.shape) in (1, 3) else 1
        if self.kind == "counts":
            names, whole = self.entries or (name,) * groups, Number(kind="counts")
            columns = tuple(whole.measure(x[:, i], names[i]) for i in range(groups))
            return Space(kind="columns", shape=self.shape, name=name, columns=columns, rows=len(x))
        found = statistics(x, groups)
        size = self.size if self.kind == "levels" else 0
        if self.sampled:
            found.update(chances(tuple(mean / self.top for mean in found["mean"])))
        return Space(kind=self.kind, shape=self.shape, size=size, name=name, **found)

    def sample_bits(self, x: Tensor, rows: Tensor, fresh: bool) -> Tensor:
        """Sample binary values of stored rows: by torch's generator if `fresh`, else as a function
        of the row numbers."""
        from ...core.rng import keyed_uniform

        chance = x.float() / self.top
        if fresh:
            return (torch.rand_like(chance) < chance).float()
        pieces = zip(chance.split(DRAW), rows.split(DRAW), strict=True)
        seed = derive_seed("binarise")
        return torch.cat([(keyed_uniform(r, self.shape, seed) < c).float() for c, r in pieces])


def chances(means: tuple[float, ...]) -> Moments:
    """The statistics of binary values with these means."""
    scale = tuple((mean * (1 - mean)) ** 0.5 or 1.0 for mean in means)
    return {"mean": means, "scale": scale, "low": (0.0,) * len(means), "high": (1.0,) * len(means)}
