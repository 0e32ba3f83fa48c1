"""The schema of new data: the space of each field, keys, derived columns and constraints.

The support of a column is part of its space: may its cells be empty, which single values have a
probability, and between which natural bounds do its numbers lie. All rows of all splits decide
about it, so that every row of the data has a finite log-likelihood, and every model of the data
has the same support and the same dominating measure. Training rows alone decide about statistics.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.space import Space
from . import constraints
from .codecs.array import Array
from .codecs.base import Codec
from .codecs.date import Date
from .codecs.date_format import is_date
from .codecs.scalar import EXACT_FLOAT64, Offset
from .codecs.scalar import pieces as numbered_pieces
from .derived import (
    Construction,
    Derived,
    Difference,
    cell,
    construct,
    find_date_pairs,
    find_derived,
    in_numbers,
    refuse_broken_rows,
)
from .options import Options
from .packed import Chosen, FieldRows, Picked, levels, pieces, single_columns
from .readers.base import RawData
from .schema import CHARACTER_CLASSES, Field, RowKey, Schema, mark_missing

ATOM_SHARE = 0.03
"""Smallest share of the cells that an atom holds."""
ATOM_LEAD = 4.0
"""How many times as frequent as the next value an atom is: rounded numbers repeat, and no value
of them stands out."""
BUCKETS = 2**16
"""In which the cells of a column are counted to find frequent values."""
MAX_ATOMS = 3
"""Largest number of atoms of a column, apart from its bounds."""
LOWER_BOUND = 0.0
UPPER_BOUNDS = (1.0, 100.0)
"""Natural upper bounds of numbers that are not negative: a share and a percentage."""
MARGIN = 0.1
"""How close to 0 and to a natural upper bound numbers come, relative to it."""
FEWEST_KEYS = 20
"""Rows from which a column without equal values is taken for a key."""
KEY_NAME = re.compile(r"(?i)(^|[^a-z])(id|key|index|row|no|nr|num|number)s?([^a-z]|$)|Id$|rowname")
"""The name of a column of numbers that do not start at 0 or 1 but are still a key."""
ID_NAME = re.compile(r"(?i:(^|[^a-z])(id|uid|guid|key)$)|[a-z]I[dD]$")
"""The name of a column of numbers that is a key wherever they differ."""
NUMBERED = re.compile(r"(\D*?)(\d{1,15})")
"""A counted key: A0001, row-17."""
HEXADECIMAL = re.compile(r"[0-9a-f-]{8,}|[0-9A-F-]{8,}")
"""A hash or a uuid."""
LONG, LONG_NUMBER = 10**18, re.compile(r"[1-9]\d{18,}")
"""A whole number of 19 digits or more, which is nothing to compute with: the smallest, and how
they are written."""
LETTER = re.compile(r"[^\W\d_]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

Bounds = tuple[float | None, float | None]


def fit_schema(
    raw: RawData,
    name: str,
    codecs: Mapping[str, Codec],
    tensors: Mapping[str, FieldRows],
    train: np.ndarray,
    options: Options,
    keys: tuple[RowKey, ...] = (),
    comparisons: Sequence[constraints.ColumnConstraint] = (),
) -> Schema:
    """Fields with the statistics of the training rows and the support of all."""
    columns = single_columns(tensors)
    made = construct(comparisons, columns, codecs) if comparisons else Construction()
    fields = []
    for field, codec in codecs.items():
        column = tensors[field]
        space = codec.measure(
            Chosen(tensors, field, train) if isinstance(codec, Array) else column[train], field
        )
        if finds_support(raw, options) and is_number(space) and isinstance(column, np.ndarray):
            bounds = made.bounds.get(field, (None, None))
            has_zero = not isinstance(codec, Date | Offset)
            space = find_support(space, column, options.models_empty, bounds, has_zero)
        fields.append(
            Field(
                name=field,
                codec=codec,
                space=mark_missing(space, column),
                key=raw.keys.get(field, field),
            )
        )
    derived: tuple[Derived, ...] = made.formulas
    if finds_support(raw, options):
        used = {column for each in comparisons for column in each.columns}
        fixed = {*used, *raw.labels, *raw.inputs, *([raw.target] if raw.target else [])}
        modelled = Picked(columns, [column for column in raw.main if column in columns])
        derived += find_derived(modelled, codecs, fixed)
        fixed |= {each.name for each in derived}
        made = replace(made, orderings=made.orderings + find_date_pairs(modelled, codecs, fixed))
    absent = {each.name for each in derived}
    differences = tuple(
        difference(small, large, columns, codecs, train, options.models_empty)
        for small, large in made.orderings
    )
    return Schema(
        name=name,
        fields=tuple(fields),
        main=tuple(field for field in raw.main if field not in absent),
        target=raw.target,
        inputs=raw.inputs,
        table=raw.table,
        row_keys=keys,
        derived=derived,
        differences=differences,
        constraints=tuple(each.spelled for each in made.rejected),
        declared=tuple(dict.fromkeys(each.text for each in comparisons)),
    )


def difference(
    small: str,
    large: str,
    columns: Mapping[str, np.ndarray],
    codecs: Mapping[str, Codec],
    train: np.ndarray,
    models_empty: bool,
) -> Difference:
    """The column `large` as its distance above the column `small`."""
    shift = constraints.zero_of(codecs[large]) - constraints.zero_of(codecs[small])
    bare = Difference(name=large, base=small, shift=shift, space=Space(kind="real"))
    distance = bare.subtract(columns)
    space = codecs[large].measure(distance[train], large)
    space = find_support(space, distance, models_empty, (0.0, None), has_zero=False)
    return replace(bare, space=mark_missing(space, distance))


def is_number(space: Space) -> bool:
    return space.kind in ("real", "counts") and not space.shape


def finds_support(raw: RawData, options: Options) -> bool:
    """Whether empty cells, atoms, bounds, keys and derived columns of a table are found."""
    return raw.table and not raw.plain and options.space == "auto"


def find_keys(raw: RawData, options: Options) -> tuple[RowKey, ...]:
    """The columns of a table that only identify its rows, unless a setting names them."""
    if not finds_support(raw, options):
        return ()
    named = {*options.names, *options.sentences, *raw.labels, *raw.inputs, raw.target or ""}
    return find_key_columns(raw, named | constraint_columns(options, list(raw.values)))


def constraint_columns(options: Options, known: Sequence[str]) -> set[str]:
    if not options.constraints:
        return set()
    found = constraints.parse(options.constraints, known)
    return {name for each in found for name in each.columns}


def read_constraints(
    raw: RawData,
    options: Options,
    codecs: Mapping[str, Codec],
    tensors: Mapping[str, FieldRows],
) -> list[constraints.ColumnConstraint]:
    """The constraints of the settings, which all rows obey."""
    if not finds_support(raw, options):
        raise UsageError(
            f"data.constraints: expected a table of your own, read with data.space=auto, found "
            f"{raw.name}; remove it"
        )
    found = constraints.parse(options.constraints, raw.main)
    constraints.refuse_other_columns(found, codecs)
    used = {name for each in found for name in each.columns}
    codes = {name: column for name, column in single_columns(tensors).items() if name in used}
    constraints.refuse_broken(
        found,
        in_numbers(codes, codecs),
        raw.places,
        lambda name, row: cell(name, codes, codecs, row),
    )
    formulas = construct(found, codes, codecs).formulas
    refuse_broken_rows(formulas, codes, codecs, raw.places)
    return found


def find_support(
    space: Space,
    x: np.ndarray,
    models_empty: bool,
    bounds: Bounds = (None, None),
    has_zero: bool = True,
) -> Space:
    """The space of a column of numbers x (N,), NaN where a cell is empty. `bounds` replace natural
    ones, which exist only if `has_zero`: the code 0 stands for the number 0."""
    empty = np.isnan(x)
    seen = x[~empty] if empty.any() else x
    if not len(seen):
        return space
    natural = natural_bounds(seen, space.scale[0]) if has_zero else (None, None)
    lower, upper = (
        found if bound is None else bound for found, bound in zip(natural, bounds, strict=True)
    )
    atoms: list[float] = []
    if space.kind == "real":
        on_bounds = [
            end for end in (lower, upper) if end is not None and bool((seen == end).any())
        ]
        atoms = sorted({*frequent_values(seen), *on_bounds})
    return replace(
        space,
        optional=models_empty and len(seen) < len(x),
        atoms=tuple(atoms),
        lower=lower,
        upper=upper,
    )


def natural_bounds(seen: np.ndarray, scale: float) -> Bounds:
    """The natural bounds that all values obey and the nearest value is within `scale` of: farther
    away a bound excludes nothing that a model would sample."""
    low, high = float(seen.min()), float(seen.max())
    if low < LOWER_BOUND:
        return None, None
    upper = next((end for end in UPPER_BOUNDS if is_share(low, high, end)), None)
    lower = LOWER_BOUND if upper is not None or low - LOWER_BOUND < scale else None
    return lower, upper


def is_share(low: float, high: float, end: float) -> bool:
    """Whether numbers from `low` to `high` are shares of `end`: they reach it, or come close to
    both 0 and it."""
    return high == end or (low <= MARGIN * end and (1 - MARGIN) * end <= high <= end)


def frequent_values(seen: np.ndarray) -> list[float]:
    """The values that hold a large share of the cells, far more than any other.

    Cells are first counted in buckets: a value that matters here is in a bucket that holds as
    many, and only the cells of such buckets are sorted."""
    sizes = np.zeros(BUCKETS, np.int64)
    for part in pieces(seen):
        sizes += np.bincount(bucket(part), minlength=BUCKETS)
    few = int((sizes > 0).sum()) <= MAX_ATOMS + 1
    common = sizes >= max(1, len(seen) * ATOM_SHARE / ATOM_LEAD * (not few))
    if not bool(common.any()):
        return []
    cells = np.concatenate([part[common[bucket(part)]] for part in pieces(seen)])
    found_in = levels(cells, len(cells))
    if found_in is None or (few and len(found_in[0]) <= MAX_ATOMS + 1):
        return []  # few values are levels of a scale
    values, counts = found_in
    order = np.argsort(-counts, kind="stable")
    counts = np.append(counts[order], np.zeros(MAX_ATOMS + 1, int))  # rarer values do not matter
    found: list[float] = []
    shares = counts / len(seen)
    for place in range(MAX_ATOMS):
        if shares[place] < ATOM_SHARE:
            break
        if shares[place] >= ATOM_LEAD * shares[place + 1]:
            found = values[order[: place + 1]].tolist()
    return found


def bucket(x: np.ndarray) -> np.ndarray:
    """The bucket of each number, the same for equal ones."""
    bits = (x.astype(np.float32) + np.float32(0)).view(np.int32).astype(np.int64)  # 0, never -0
    return (bits * 2654435761 >> 16) % BUCKETS


def find_key_columns(raw: RawData, excluded: Collection[str]) -> tuple[RowKey, ...]:
    """The keys among the columns of a table that are not `excluded`; one column is left."""
    if len(raw) <= FEWEST_KEYS:
        return ()
    found = []
    for place, (name, column) in enumerate(raw.values.items()):
        if name in excluded or name in raw.codecs or name not in raw.main:
            continue
        about = describe_key(name, column)
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


def describe_key(name: str, column: Any) -> dict[str, Any] | None:
    """The numbering or the pattern of a key; None for other columns."""
    if column.isna().any():
        return None
    if column.dtype.kind in "iu":
        numbers = column.to_numpy()
        low, high = int(numbers.min()), int(numbers.max())
        counts = len(numbers) - 1 == high - low < EXACT_FLOAT64 and is_gapless(numbers, low)
        # years or ages of one row each count too, but from elsewhere
        named = low in (0, 1) or KEY_NAME.search(name) is not None
        called = ID_NAME.search(name) is not None or low >= LONG
        room = np.iinfo(numbers.dtype).max - high > len(numbers)
        apart = called and room and len(np.unique(numbers)) == len(numbers)
        return {"following": high + 1} if (counts and named) or apart else None
    is_text = not isinstance(column.dtype, np.dtype)  # of strings alone; others may hold anything
    if column.dtype.kind not in "OTU" or (is_text and not column.is_unique):
        return None
    cells = column.tolist()
    if not all(isinstance(cell, str) for cell in cells) or not column.is_unique:
        return None
    if has_words(cells) or all(map(LONG_NUMBER.fullmatch, cells)):
        return hexadecimal(cells) or counted(cells) or shaped(cells)
    return hexadecimal(cells)


def is_gapless(numbers: np.ndarray, low: int) -> bool:
    """Whether as many numbers from `low` on as there are occur once each."""
    seen = np.zeros(len(numbers), bool)
    for _, some in numbered_pieces(numbers):
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
    for members, mark, _ in CHARACTER_CLASSES:
        cell = members.sub(mark, cell)
    return cell


def separate_keys(raw: RawData, keys: Collection[RowKey]) -> RawData:
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
