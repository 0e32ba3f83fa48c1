"""The output of a reader: named values, not yet encoded, and the location of each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from ...core.errors import DataError
from ..codecs.base import Codec, Locator
from ..codecs.scalar import listed

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class RowLocations:
    """The location of rows in messages: file and line, or number from 1."""

    lines: np.ndarray  # (N,) from 1, as in the file
    owner: np.ndarray  # (N,) index into `files`
    files: tuple[str, ...] = ("",)

    @classmethod
    def count(cls, n: int, file: str = "") -> RowLocations:
        return cls.of(np.arange(1, n + 1), file)

    @classmethod
    def of(cls, lines: np.ndarray, file: str = "") -> RowLocations:
        return cls(lines, np.zeros(len(lines), np.int32), (file,))

    @classmethod
    def join(cls, parts: Sequence[RowLocations]) -> RowLocations:
        owner = np.repeat(np.arange(len(parts), dtype=np.int32), [len(p.lines) for p in parts])
        files = tuple(part.files[0] for part in parts)
        return cls(np.concatenate([part.lines for part in parts]), owner, files)

    def take(self, rows: np.ndarray) -> RowLocations:
        return RowLocations(self.lines[rows], self.owner[rows], self.files)

    def at(self, what: str) -> Locator:
        """Names a cell of `what` at the start of a message."""

        def where(row: int) -> str:
            file = self.files[self.owner[row]]
            return f"{what}, row {self.lines[row]}" + (f" of {file}" if file else "")

        return where


@dataclass(frozen=True)
class ReadFormat:
    """The format that files are converted to when read: from the transforms in the name, and from
    the schema of a run."""

    side: int | None = None  # of images
    rate: int | None = None  # of sounds
    mono: bool = False
    parts: tuple[str, ...] = ()  # names of the parts of sound file names in an earlier run
    texts: Mapping[str, Codec] = field(default_factory=dict)  # text codecs of an earlier run


@dataclass(frozen=True)
class RawData:
    """Fields as read; a table has one per column."""

    name: str
    values: Mapping[str, Any]  # a numpy array, or in a table a pandas Series
    main: tuple[str, ...]
    places: RowLocations
    target: str | None = None
    inputs: tuple[str, ...] = ()  # the fields a target is predicted from; empty for all others
    table: bool = False
    plain: bool = False  # whether numbers have neither atoms nor bounds, as in published tables
    named: bool = True  # whether the column names come from the file
    keys: Mapping[str, str | int] = field(default_factory=dict)  # column labels of a frame
    labels: frozenset[str] = frozenset()  # fields that are always categorical
    codecs: Mapping[str, Codec] = field(default_factory=dict)  # codecs that the reader knows
    split: np.ndarray | None = None  # (N,) index into SPLITS
    density: Callable[[Tensor], Tensor] | None = None
    notes: tuple[str, ...] = ()
    numbered: bool = False  # whether `split` is one of several in the data
    row_keys: Mapping[str, np.ndarray] = field(default_factory=dict)  # columns of keys
    carved: bool = False  # whether the reader made `split`, as tokens or blocks depend on it

    def __len__(self) -> int:
        return len(self.places.lines)

    def at(self, name: str) -> Locator:
        return self.places.at(f"column {name!r}" if self.table else name)


def join(parts: Mapping[str, RawData], name: str) -> RawData:
    """Join files of one kind, keyed by their split."""
    raws = align(list(parts.values()))
    first = raws[0]
    values = {
        field: stack([raw.values[field] for raw in raws], first.table, field)
        for field in first.values
    }
    split = np.repeat([SPLITS.index(part) for part in parts], [len(raw) for raw in raws])
    return replace(
        first,
        name=name,
        values=values,
        split=split,
        places=RowLocations.join([raw.places for raw in raws]),
        notes=tuple(note for raw in raws for note in raw.notes),
    )


def align(raws: list[RawData]) -> list[RawData]:
    """Give all files the field names of the first that has names."""
    leader = next((raw for raw in raws if raw.named), raws[0])
    return [rename(raw, leader) for raw in raws]


def rename(raw: RawData, leader: RawData) -> RawData:
    if set(raw.values) == set(leader.values):
        return raw
    if raw.named or len(raw.values) != len(leader.values):
        raise DataError(
            f"{raw.places.files[0] or raw.name} has the columns "
            f"{listed(raw.values)} and {leader.places.files[0] or leader.name} has "
            f"{listed(leader.values)}; files of one folder must agree"
        )
    values = dict(zip(leader.values, raw.values.values(), strict=True))
    return replace(raw, values=values, main=leader.main, named=True)


def stack(pieces: list[Any], table: bool, name: str) -> Any:
    if table:
        import pandas as pd

        return pd.concat(pieces, ignore_index=True)
    shapes = {piece.shape[1:] for piece in pieces}
    if len(shapes) > 1:
        raise DataError(
            f"{name} has the shapes {' and '.join(map(str, sorted(shapes)))} in "
            "different splits; make them equal; resize images with +resize64"
        )
    return np.concatenate(pieces)
