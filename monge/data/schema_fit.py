"""The schema of new data: the space of each field, keys, derived columns and constraints.

The support of a column is part of its space: may its cells be empty, which single values have a
probability, and between which natural bounds do its numbers lie. All rows of all splits decide
about it, so that every row of the data has a finite log-likelihood, and every model of the data
has the same support and the same dominating measure. Training rows alone decide about statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..core.errors import UsageError
from ..core.space import Space
from . import constraints, row_keys
from .codecs.array import Array
from .codecs.base import Codec
from .codecs.date import Date
from .codecs.scalar import Offset
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
from .packed import PIECE, Chosen, PackedTensor, Picked, levels, single_columns
from .readers.base import RawData
from .schema import Field, Schema, mark_missing

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

Bounds = tuple[float | None, float | None]


def fit_schema(
    raw: RawData,
    name: str,
    codecs: Mapping[str, Codec],
    tensors: Mapping[str, PackedTensor],
    train: Tensor,
    options: Options,
    keys: tuple[row_keys.RowKey, ...] = (),
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
        if finds_support(raw, options) and is_number(space) and isinstance(column, Tensor):
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
    columns: Mapping[str, Tensor],
    codecs: Mapping[str, Codec],
    train: Tensor,
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


def find_keys(raw: RawData, options: Options) -> tuple[row_keys.RowKey, ...]:
    """The columns of a table that only identify its rows, unless a setting names them."""
    if not finds_support(raw, options):
        return ()
    named = {*options.names, *options.sentences, *raw.labels, *raw.inputs, raw.target or ""}
    return row_keys.find(raw, named | constraint_columns(options, list(raw.values)))


def constraint_columns(options: Options, known: Sequence[str]) -> set[str]:
    if not options.constraints:
        return set()
    found = constraints.parse(options.constraints, known)
    return {name for each in found for name in each.columns}


def read_constraints(
    raw: RawData,
    options: Options,
    codecs: Mapping[str, Codec],
    tensors: Mapping[str, PackedTensor],
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
    x: Tensor,
    models_empty: bool,
    bounds: Bounds = (None, None),
    has_zero: bool = True,
) -> Space:
    """The space of a column of numbers x (N,), NaN where a cell is empty. `bounds` replace natural
    ones, which exist only if `has_zero`: the code 0 stands for the number 0."""
    empty = x.isnan()
    seen = x[~empty] if bool(empty.any()) else x
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


def natural_bounds(seen: Tensor, scale: float) -> Bounds:
    """The natural bounds that all values obey and the nearest value is within `scale` of: farther
    away a bound excludes nothing that a model would sample."""
    low, high = (float(end) for end in seen.aminmax())
    if low < LOWER_BOUND:
        return None, None
    upper = next((end for end in UPPER_BOUNDS if is_share(low, high, end)), None)
    lower = LOWER_BOUND if upper is not None or low - LOWER_BOUND < scale else None
    return lower, upper


def is_share(low: float, high: float, end: float) -> bool:
    """Whether numbers from `low` to `high` are shares of `end`: they reach it, or come close to
    both 0 and it."""
    return high == end or (low <= MARGIN * end and (1 - MARGIN) * end <= high <= end)


def frequent_values(seen: Tensor) -> list[float]:
    """The values that hold a large share of the cells, far more than any other.

    Cells are first counted in buckets: a value that matters here is in a bucket that holds as
    many, and only the cells of such buckets are sorted."""
    sizes = torch.zeros(BUCKETS, dtype=torch.long)
    for part in seen.split(PIECE):
        sizes += bucket(part).bincount(minlength=BUCKETS)
    few = int((sizes > 0).sum()) <= MAX_ATOMS + 1
    common = sizes >= max(1, len(seen) * ATOM_SHARE / ATOM_LEAD * (not few))
    if not bool(common.any()):
        return []
    cells = torch.cat([part[common[bucket(part)]] for part in seen.split(PIECE)])
    found_in = levels(cells, len(cells))
    if found_in is None or (few and len(found_in[0]) <= MAX_ATOMS + 1):
        return []  # few values are levels of a scale
    values, counts = found_in
    counts, order = counts.sort(descending=True)
    counts = torch.cat([counts, counts.new_zeros(MAX_ATOMS + 1)])  # rarer values do not matter
    found: list[float] = []
    shares = counts / len(seen)
    for place in range(MAX_ATOMS):
        if shares[place] < ATOM_SHARE:
            break
        if shares[place] >= ATOM_LEAD * shares[place + 1]:
            found = values[order[: place + 1]].tolist()
    return found


def bucket(x: Tensor) -> Tensor:
    """The bucket of each number, the same for equal ones."""
    bits = (x.float() + 0.0).view(torch.int32).long()  # 0 in place of -0
    return (bits * 2654435761 >> 16) % BUCKETS
