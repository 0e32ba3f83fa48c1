"""Fields that a reader writes to files rather than holding them in memory, encoded already."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...core.errors import DataError

PIECE = 2**22
"""Numbers of an array that are processed at once."""


class Place(Protocol):
    """Where a reader writes what does not fit into memory."""

    direct: bool
    """Whether pictures stay in their files, as there is no room for them elsewhere."""

    def new(self, suffix: str) -> Path:
        """A file of its own; the same in a process that goes on for one that was killed."""


@dataclass(frozen=True)
class StoredRows:
    """Rows (N, *row) in files, one file after another."""

    paths: tuple[Path, ...]
    kind: str
    shape: tuple[int, ...]  # (N, *row)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.kind)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def joined(self, parts: Sequence[StoredRows]) -> StoredRows:
        """The rows of several."""
        paths = tuple(path for part in parts for path in part.paths)
        return StoredRows(paths, self.kind, (sum(map(len, parts)), *self.shape[1:]))

    def in_one(self, path: Path) -> None:
        """Put all rows into one file."""
        self.paths[0].replace(path)
        with path.open("ab") as file:
            for other in self.paths[1:]:
                with other.open("rb") as more:
                    shutil.copyfileobj(more, file, 2**20)
                other.unlink()


@dataclass(frozen=True)
class StoredSteps:
    """Rows of unequal length: their steps in one file, their lengths (N,) beside it."""

    path: Path
    kind: str
    length: np.ndarray  # (N,)

    def __len__(self) -> int:
        return len(self.length)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.kind)


class Chain:
    """Arrays of the same type, one after another, of which slices are read."""

    def __init__(self, parts: Sequence[Any], name: str) -> None:
        self.parts = parts
        kinds = {(str(part.dtype), part.shape[1:]) for part in parts}
        if len(kinds) > 1:
            found = " and ".join(f"{shape} of {kind}" for kind, shape in sorted(kinds))
            raise DataError(f"{name} has {found} in different splits; make them equal")
        self.shape = (sum(map(len, parts)), *parts[0].shape[1:])
        self.dtype, self.ndim, self.size = parts[0].dtype, parts[0].ndim, math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        if not isinstance(rows, slice):
            return self[rows : rows + 1][0]
        low, high, _ = rows.indices(len(self))
        found, start = [], 0
        for part in self.parts:
            found.append(part[max(low - start, 0) : max(high - start, 0)])
            start += len(part)
        return np.concatenate(found)


def at_once(shape: Sequence[int]) -> int:
    """Rows of an array (N, *row) that are processed at once."""
    return max(1, PIECE // max(math.prod(shape[1:]), 1))
