"""Keys: columns that only identify the rows of a table, such as row numbers, uuids or A0001.

A key is not modelled. Samples get new ones, numbers after the largest or strings of the same
pattern, and completed rows keep theirs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.config import Config
from ..core.errors import DataError
from .codecs.date_format import is_date
from .codecs.scalar import EXACT_FLOAT64, pieces
from .packed import Picked
from .readers.base import RawData

FEWEST = 20
"""Rows from which a column without equal values is taken for a key."""
NAME = re.compile(r"(?i)(^|[^a-z])(id|key|index|row|no|nr|num|number)s?([^a-z]|$)|Id$|rowname")
"""The name of a column of numbers that do not start at 0 or 1 but are still a key."""
NUMBERED = re.compile(r"(\D*?)(\d{1,15})")
"""A counted key: A0001, row-17."""
HEXADECIMAL = re.compile(r"[0-9a-f-]{8,}|[0-9A-F-]{8,}")
"""A hash or a uuid."""
LETTER = re.compile(r"[^\W\d_]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
CLASSES = (
    (re.compile(r"[0-9]"), "9", "0123456789"),
    (re.compile(r"[a-z]"), "a", "abcdefghijklmnopqrstuvwxyz"),
    (re.compile(r"[A-Z]"), "A", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
)
"""The classes of characters, their marks in a pattern, and their members."""
MAX_ATTEMPTS = 100
"""Strings tried for each new key before a pattern is taken to have no more."""


class RowKey(Config):
    """A column that identifies the rows."""

    tag = "data/row_key"
    name: str
    """The column."""
    place: int
    """Its place among the columns of the data."""
    key: str | int = ""
    """Its label in a frame, if it differs from the name."""
    dtype: str = "object"
    """Its type in the data."""
    prefix: str = ""
    """What comes before the number of a counted key."""
    width: int = 0
    """Digits of the number of a counted key, with zeros in front; 0 for no zeros."""
    following: int | None = None
    """The number after the largest; None for strings without an order."""
    pattern: str = ""
    """Strings without an order: 9, a, A and h for a digit, a letter and a hexadecimal digit."""

    @property
    def note(self) -> str:
        return f"{self.name} is a key; it is not modelled, and samples get new ones"

    def fresh(self, n: int) -> np.ndarray:
        """n new keys."""
        if self.following is None:
            return np.array(self.strings(n), object)
        numbers = range(self.following, self.following + n)
        if not self.prefix and self.dtype != "object" and not self.width:
            return np.array(numbers, self.dtype)
        return np.array([f"{self.prefix}{number:0{self.width}}" for number in numbers], object)

    def strings(self, n: int) -> list[str]:
        """n different strings of the pattern, the same at every call."""
        found: dict[str, None] = {}
        for number in range(n * MAX_ATTEMPTS):
            if len(found) == n:
                break
            found[spell(self.pattern, f"{self.name}/{number}")] = None
        if len(found) < n:
            raise DataError(
                f"the keys of column {self.name!r} have too few strings of the pattern "
                f"{self.pattern!r} for {n} rows; sample fewer rows, or drop the column with "
                f"data.drop={self.name}"
            )
        return list(found)


def spell(pattern: str, seed: str) -> str:
    """A string of the pattern that looks random and is a function of the seed."""
    letters = {mark: members for _, mark, members in CLASSES} | {"h": "0123456789abcdef"}
    letters["H"] = letters["h"].upper()
    digest = hashlib.shake_256(seed.encode()).digest(len(pattern))
    return "".join(
        letters[mark][byte % len(letters[mark])] if mark in letters else mark
        for mark, byte in zip(pattern, digest, strict=True)
    )


def find(raw: RawData, excluded: Collection[str]) -> tuple[RowKey, ...]:
    """The keys among the columns of a table that are not `excluded`; one column is left."""
    if len(raw) <= FEWEST:
        return ()
    found = []
    for place, (name, column) in enumerate(raw.values.items()):
        if name in excluded or name in raw.codecs or name not in raw.main:
            continue
        about = describe(name, column)
        if about is not None:
            found.append(
                RowKey(
                    name=name,
                    place=place,
                    key=raw.keys.get(name, name),
                    dtype=str(column.dtype),
                    **about,
                )
            )
    return tuple(found) if len(found) < len(raw.main) else ()


def describe(name: str, column: Any) -> dict[str, Any] | None:
    """The numbering or the pattern of a key; None for other columns."""
    if column.isna().any():
        return None
    if column.dtype.kind in "iu":
        numbers = column.to_numpy()
        low, high = int(numbers.min()), int(numbers.max())
        counts = len(numbers) - 1 == high - low < EXACT_FLOAT64 and is_gapless(numbers, low)
        # years or ages of one row each count too, but from elsewhere
        named = low in (0, 1) or NAME.search(name) is not None
        return {"following": high + 1} if counts and named else None
    if column.dtype.kind not in "OTU" or not column.is_unique:
        return None
    cells = column.tolist()
    if not all(isinstance(cell, str) for cell in cells):
        return None
    return hexadecimal(cells) or (counted(cells) or shaped(cells) if has_words(cells) else None)


def is_gapless(numbers: np.ndarray, low: int) -> bool:
    """Whether as many numbers from `low` on as there are occur once each."""
    seen = np.zeros(len(numbers), bool)
    for _, some in pieces(numbers):
        seen[some - low] = True
    return bool(seen.all())


def hexadecimal(cells: list[str]) -> dict[str, Any] | None:
    """The pattern of hashes and uuids."""
    if not all(map(HEXADECIMAL.fullmatch, cells)) or not any(map(LETTER.search, cells)):
        return None
    mark = "H" if any(letter.isupper() for cell in cells for letter in cell) else "h"
    patterns = {re.sub(r"[0-9a-fA-F]", mark, cell) for cell in cells}
    return {"pattern": patterns.pop()} if len(patterns) == 1 else None


def has_words(cells: list[str]) -> bool:
    """Whether each cell is one word of letters and digits, and neither a number nor a time."""
    return all(
        LETTER.search(cell)
        and re.search(r"\d", cell)
        and not re.search(r"\s", cell)
        and not is_date(cell)
        and not NUMBER.fullmatch(cell)
        for cell in cells
    )


def counted(cells: list[str]) -> dict[str, Any] | None:
    """The numbering of cells that are a prefix and a number without gaps."""
    found = [NUMBERED.fullmatch(cell) for cell in cells]
    parts = [match.groups() for match in found if match is not None]
    if len(parts) < len(cells) or len({prefix for prefix, _ in parts}) > 1:
        return None
    numbers = [int(digits) for _, digits in parts]
    if max(numbers) - min(numbers) >= 2 * len(numbers):
        return None
    widths = {len(digits) for _, digits in parts}
    padded = any(digits[0] == "0" and len(digits) > 1 for _, digits in parts)
    width = min(widths) if padded else 0
    return {"prefix": parts[0][0], "width": width, "following": max(numbers) + 1}


def shaped(cells: list[str]) -> dict[str, Any] | None:
    """The pattern that all cells share."""
    patterns = {pattern_of(cell) for cell in cells}
    return {"pattern": patterns.pop()} if len(patterns) == 1 else None


def pattern_of(cell: str) -> str:
    for members, mark, _ in CLASSES:
        cell = members.sub(mark, cell)
    return cell


def separate(raw: RawData, keys: Collection[RowKey]) -> RawData:
    """The table without its keys, whose cells are stored beside it."""
    names = {key.name for key in keys}
    if not names & {*raw.values}:
        return raw
    cells: Mapping[str, Any] = {
        name: raw.values[name].to_numpy() for name in raw.values if name in names
    }
    return replace(
        raw,
        values=Picked(raw.values, [name for name in raw.values if name not in names]),
        main=tuple(name for name in raw.main if name not in names),
        row_keys={**raw.row_keys, **cells},
    )
