"""Reading other data with the schema of a run: its fields, their order and their codecs.

Data that does not fit is refused with an error; an absent target is read as missing in every row,
so that it can be predicted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.deferred import torch
from ..core.errors import DataError
from ..core.space import Space
from . import constraints
from .codecs.array import Array
from .codecs.base import Codec, Locator
from .codecs.scalar import Categorical, distinct, known_names, listed, spelled
from .codecs.sequence import SequenceCodec, is_uneven, pack
from .codecs.tokens import Text
from .derived import Formula, cell, in_numbers, refuse_broken_rows
from .packed import FieldRows, Ragged, single_columns
from .readers import tables
from .readers.arrays import from_arrays
from .readers.base import Original, RawData, named_as
from .readers.stored import StoredSteps
from .schema import Schema, Selection

if TYPE_CHECKING:
    from torch import Tensor


def match(raw: RawData, selection: Selection) -> RawData:
    """The same rows under the names of the run's fields; other fields are left out, and a field
    that the run needs must be present."""
    schema, needed = selection.schema, selection.required
    if schema.table != raw.table:
        raw = as_columns(raw, schema) if schema.table else as_array(raw, schema)
    elif raw.table:
        raw = same_columns(raw, schema)
    else:
        raw = same_roles(raw, schema)
    known = [field.name for field in schema.fields]
    absent = [name for name in known if name not in raw.values and name in needed]
    if absent:
        raise DataError(
            f"{raw.name} lacks {listed(absent)}, which the run was fitted on; it has "
            f"{listed(raw.values)}"
        )
    extra = [name for name in raw.values if name not in known]
    are = "is" if len(extra) == 1 else "are"
    notes = (f"{listed(extra)} {are} not used by the run",) if extra else ()
    values = {name: raw.values[name] for name in known if name in raw.values}
    values |= {
        field.name: pack(list(values[field.name]))
        for field in schema.fields
        if isinstance(field.codec, SequenceCodec)
        and field.name in values
        and not isinstance(values[field.name], StoredSteps)
        and not is_uneven(values[field.name])
    }
    return replace(raw, values=values, notes=raw.notes + notes)


def without_new_names(raw: RawData, selection: Selection) -> RawData:
    """The same rows with empty cells in place of names that the run does not know. In a condition
    or a target such a name counts as unknown; a row that has it elsewhere is refused, since the
    model gives it no probability. A note counts them. In a column that the run does not use it is
    passed over."""
    values, notes, is_new = dict(raw.values), [], False
    refused = np.zeros(len(raw), bool)
    unknown = {*selection.conditions, *(selection.event if selection.predicted else ())}
    computed = {each.name for each in selection.restored.derived}
    for field in selection.schema.fields:
        if field.name not in values:
            continue
        names = known_names(field.codec)
        column = values[field.name]
        if names is None or getattr(column, "ndim", 0) != 1:
            continue
        cells = tables.cells(column, raw.at(field.name)) if raw.table else column
        strange = new_cells(cells, names)
        if not strange.any():
            continue
        is_new = True
        first = int(np.argmax(strange))
        name = f"{raw.at(field.name)(first)}: {spelled(cells[first])!r} was not in training"
        count = f"such names in {int(strange.sum())} of {len(raw)} rows"
        if field.name in unknown:
            notes.append(f"{name} and is read as an empty cell, as are {count}")
        elif field.name in {*selection.event, *computed}:
            notes.append(f"{name}, so that the row is refused and left out, as are {count}")
            refused |= strange
        emptied = cells.astype(object)
        emptied[strange] = None
        values[field.name] = tables.as_column(emptied) if raw.table else emptied
    if not is_new:
        return raw
    return replace(
        raw,
        values=values,
        notes=(*raw.notes, *notes),
        refused=refused if refused.any() else None,
    )


def new_cells(cells: np.ndarray, names: Collection[str]) -> np.ndarray:
    """Which cells hold something that is not among the names, (N,)."""
    found, place = distinct(cells)
    strange = np.array([*(spelled(value) not in names for value in found), False], bool)
    return strange[place]  # index -1, an empty cell, is the last


def same_columns(raw: RawData, schema: Schema) -> RawData:
    """Columns without names are taken in the run's order."""
    known = [field.name for field in schema.fields]
    unnamed = not raw.named or all(re.fullmatch(r"c\d+", name) for name in known)
    if not unnamed or set(known) <= set(raw.values):
        return raw
    if len(known) != len(raw.values):
        raise DataError(
            f"{raw.name} has {len(raw.values)} columns without names where the run "
            f"has {len(known)}; add a first line that names them"
        )
    return named_as(raw, known)


def same_roles(raw: RawData, schema: Schema) -> RawData:
    """Match the main field and the target by role, whatever their names."""
    names = {raw.main[0]: schema.main[0]}
    if raw.target and schema.target:
        names[raw.target] = schema.target
    return replace(
        raw,
        main=schema.main,
        target=schema.target,
        values={names.get(name, name): value for name, value in raw.values.items()},
    )


def as_columns(raw: RawData, schema: Schema) -> RawData:
    """An array (N, D) as the columns of the run's table."""
    import pandas as pd

    x = raw.values[raw.main[0]]
    rows = x.reshape(len(x), -1)  # (N, D)
    names = next(
        (
            names
            for names in (schema.main, [field.name for field in schema.fields])
            if len(names) == rows.shape[1]
        ),
        None,
    )
    if names is None:
        raise DataError(
            f"{raw.name} has {rows.shape[1]} columns where the run has "
            f"{len(schema.main)}; give the columns {listed(schema.main)}"
        )
    values = {name: pd.Series(rows[:, place]) for place, name in enumerate(names)}
    original = Original(tuple(names), lambda: pd.DataFrame(rows, columns=[*names]))
    if raw.target and schema.target:
        values[schema.target] = pd.Series(raw.values[raw.target])
    return replace(raw, values=values, table=True, original=original)


def as_array(raw: RawData, schema: Schema) -> RawData:
    """The columns of a table as the run's vector."""
    columns = [name for name in raw.values if name != schema.target]
    try:
        rows = np.stack([raw.values[name].to_numpy(np.float64) for name in columns], 1)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{raw.name} holds cells that are not numbers where the run has vectors "
            f"({error}); give numbers alone"
        ) from error
    values = {schema.main[0]: rows}
    if schema.target in raw.values:
        values[str(schema.target)] = raw.values[str(schema.target)].to_numpy()
    return replace(
        from_arrays(values, raw.name),
        places=raw.places,
        main=schema.main,
        target=schema.target,
        split=raw.split,
        notes=raw.notes,
    )


def adopt(wanted: Array, other: Codec, x: Any, name: str, at: Locator) -> Tensor:
    """Rows encoded by `other`, converted to the run's codec."""
    if not isinstance(other, Array) or other.shape != wanted.shape:
        raise DataError(misfit(wanted, other, name))
    if other.sampled and not (wanted.sampled and wanted.size == other.size):
        x = other.sample_bits(x, torch.arange(len(x)), False).byte()
        other = replace(other, kind="binary", sampled=False, size=0)
    if other.sampled or (wanted.kind, wanted.size, wanted.sampled) == (
        other.kind,
        other.size,
        False,
    ):
        return x
    if wanted.kind == "binary" and other.kind == "levels" and int(x.max()) > 1:
        raise DataError(
            f"{name} holds {other.size} levels where the run has binary values; "
            "write the name of the data with the run's transform, as in "
            "mnist+binarise"
        )
    if wanted.sampled:
        return x * wanted.top  # values that are already 0 or 1 have probability 0 or 1
    return wanted.keep(x.numpy(), at)


def misfit(wanted: Array, other: Codec, name: str) -> str:
    got = spell(other.shape) if isinstance(other, Array) else "single values"
    remedy = (
        f"; write the name of the data with +resize{wanted.shape[-1]}"
        if len(wanted.shape) == 3 and wanted.shape[-1] == wanted.shape[-2]
        else "; reshape it"
    )
    return f"{name} has the shape {got} where the run has {spell(wanted.shape)}{remedy}"


def spell(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def absent(codec: Codec, n: int, name: str) -> FieldRows:
    """A field of which every value is missing; a missing text has no symbols, not even its end."""
    if isinstance(codec, Text) and codec.ends:
        none = torch.zeros(n, dtype=torch.long)
        return Ragged(torch.zeros(1, dtype=torch.long), none, none)
    if isinstance(codec, SequenceCodec):
        raise DataError(f"the rows lack {name}, and a sequence cannot be predicted; add it")
    if isinstance(codec, Categorical):
        return np.full(n, -1)
    if isinstance(codec, Array):
        return torch.full((n, *codec.shape), torch.nan)
    return np.full(n, np.nan, np.float32)


def encode(
    raw: RawData, schema: Schema, fitted: Mapping[str, Codec], tensors: Mapping[str, FieldRows]
) -> dict[str, FieldRows]:
    """Encode every field of the run: arrays from their transformed rows, others from values."""
    found: dict[str, FieldRows] = {}
    for field in schema.fields:
        name, codec = field.name, field.codec
        if name not in raw.values:
            found[name] = absent(codec, len(raw), name)
        elif isinstance(codec, SequenceCodec):
            found[name] = codec.adopt(fitted[name], tensors[name], name)
        elif isinstance(codec, Array):
            found[name] = adopt(codec, fitted[name], tensors[name], name, raw.at(name))
        else:
            found[name] = tensors[name]
    return found


def fill_sources(
    selection: Selection, raw: RawData, tensors: Mapping[str, FieldRows]
) -> Mapping[str, FieldRows]:
    """The columns with empty cells filled in that follow from a column computed from them."""
    derived = selection.restored.derived if selection.is_whole else ()
    if not derived:
        return tensors
    found, codes = dict(tensors), dict(single_columns(tensors))
    codecs = {field.name: field.codec for field in selection.schema.fields}
    for each in reversed(derived):
        if {each.name, *each.sources} <= {*codes} & {*raw.values}:
            for source, filled in each.fill_source(codes, codecs).items():
                found[source] = codes[source] = filled
    return found


def refuse_impossible(
    selection: Selection,
    raw: RawData,
    codecs: Mapping[str, Codec],
    tensors: Mapping[str, FieldRows],
) -> None:
    """DataError about a row that the model of a run excludes: by bounds, constraints or derived
    columns."""
    schema, restored = selection.schema, selection.restored
    if not selection.is_whole or not schema.table:
        return
    codes = {name: x for name, x in single_columns(tensors).items() if name in raw.values}
    known = {**{field.name: field.codec for field in schema.fields}, **codecs}
    above = {each.name for each in restored.differences}  # the difference alone has a bound
    for field in schema.fields:
        if field.name in codes and field.name in {*selection.event} - above:
            refuse_outside(field.space, codes[field.name], raw.at(field.name))
    if schema.declared:
        found = constraints.parse(schema.declared, [field.name for field in schema.fields])
        present = [each for each in found if {*each.columns} <= {*codes}]
        numbers = in_numbers({n: codes[n] for each in present for n in each.columns}, known)
        constraints.refuse_broken(
            present, numbers, raw.places, lambda name, row: cell(name, codes, known, row)
        )
    lookups = [each for each in restored.derived if not isinstance(each, Formula)]
    if lookups:  # a formula of unknown cells is met by completing them
        refuse_broken_rows(lookups, codes, known, raw.places)


def refuse_outside(space: Space, x: np.ndarray, at: Locator) -> None:
    """DataError about the first number of a column x (N,) that is outside its bounds."""
    for end, sign, wrong in (
        (space.lower, "below the lower", x < (space.lower or 0.0)),
        (space.upper, "above the upper", x > (space.upper or 0.0)),
    ):
        if end is not None and bool(wrong.any()):
            row = int(np.argmax(wrong))
            raise DataError(
                f"{at(row)}: {float(x[row]):.12g} is {sign} bound {end:g} of the data of the run; "
                "fix the cell, or refit with data.space=plain"
            )
