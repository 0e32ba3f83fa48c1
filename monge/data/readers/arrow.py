"""Tables in files of Arrow: parquet, feather, arrow and ipc, read some rows at a time.

Files of Arrow have a list of their parts at the end, or are streams without one, as the library
`datasets` writes them.

Numbers and booleans keep their type, dictionaries are text, and dates and times become text, as
they are in a csv file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import DataError, UsageError
from .columns import Column, coded_text

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"ARROW1"
"""What a file of Arrow begins with that has a list of its parts."""
ROWS = 2**16
"""Rows that are read at a time."""


def read(path: Path, columns: Mapping[str, Column], first: Path) -> int:
    """Read a file into columns; returns its rows. `first` was read before into the same ones."""
    count = 0
    likely = rows_of(path)
    for batch in batches(path):
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            column, cells = columns[str(name)], as_cells(array, str(name), path)
            known = column.kind
            column.add(cells, likely)
            if column.mixed:
                raise DataError(
                    f"{path}, column {name!r}: expected {KINDS[str(known)]} as in {first.name}, "
                    f"found {array.type}; write the files with one type"
                )
        count += len(batch)
    return count


KINDS = {
    "int64": "whole numbers",
    "uint64": "whole numbers",
    "float64": "numbers",
    "bool": "booleans",
    "object": "text",
}


def names(path: Path) -> list[str]:
    """The columns of a file."""
    with opened(path) as file:
        schema = file.schema_arrow if path.suffix.lower() == ".parquet" else file.schema
    found = [str(name) for name in schema.names]
    for name in found:
        if found.count(name) > 1:
            raise DataError(
                f"{path}: expected column names that differ, found {name!r} twice; rename one"
            )
    return found


def rows_of(path: Path) -> int:
    with opened(path) as file:
        if path.suffix.lower() == ".parquet":
            return file.metadata.num_rows
        return sum(batch.num_rows for batch in parts(file))


def parts(file: Any) -> Iterator[pa.RecordBatch]:
    """The parts of a file of Arrow, or of a stream."""
    import pyarrow as pa

    if not isinstance(file, pa.ipc.RecordBatchFileReader):
        yield from file
        return
    for place in range(file.num_record_batches):
        yield file.get_batch(place)


def batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a file some at a time."""
    import pyarrow as pa

    try:
        with opened(path) as file:
            if path.suffix.lower() == ".parquet":
                yield from file.iter_batches(batch_size=ROWS)
                return
            for batch in parts(file):
                for start in range(0, len(batch), ROWS):
                    yield batch.slice(start, ROWS)
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from error


def opened(path: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(
            f"{path.name} needs pyarrow, which is not installed; install monge[parquet], or save "
            "the table as .csv"
        ) from error
    try:
        if path.suffix.lower() == ".parquet":
            return pq.ParquetFile(path, pre_buffer=False)  # which would hold what was read
        source = pa.memory_map(str(path))
        whole = source.read(len(MAGIC)) == MAGIC
        source.seek(0)
        return pa.ipc.open_file(source) if whole else pa.ipc.open_stream(source)
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> DataError:
    reason = str(error).splitlines()[0].rstrip(".")
    return DataError(
        f"{path}: expected a whole file, found one that cannot be read ({reason}); write it or "
        "download it again"
    )


def as_cells(array: pa.Array, name: str, path: Path) -> Any:
    """The cells of some rows as an array of pandas, or text as places among different cells."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as of

    kind = array.type
    if of.is_dictionary(kind):
        return as_cells(array.cast(kind.value_type), name, path)
    if of.is_null(kind):
        return pd.array([None] * len(array), dtype="Int64")
    if of.is_date(kind):
        array = pc.strftime(array.cast(pa.timestamp("s")), "%Y-%m-%d")
    elif of.is_timestamp(kind):
        array = written(array)
    if of.is_string(array.type) or of.is_large_string(array.type):
        return coded_text(array)
    if of.is_boolean(kind):
        return pd.array(array.to_numpy(zero_copy_only=False), dtype="boolean")
    wide = (
        pa.uint64()
        if of.is_uint64(kind)
        else pa.int64()
        if of.is_integer(kind)
        else pa.float64()
        if of.is_floating(kind) or of.is_decimal(kind)
        else None
    )
    if wide is None:
        raise DataError(
            f"{path}, column {name!r}: expected numbers, text, booleans or dates, found {kind}; "
            "convert it, or leave it out of the file"
        )
    filled = array.cast(wide).fill_null(0) if array.null_count else array.cast(wide)
    values, missing = filled.to_numpy(zero_copy_only=False), np.zeros(len(array), bool)
    if array.null_count:
        missing = array.is_null().to_numpy(zero_copy_only=False)
    if of.is_floating(wide):
        return pd.arrays.FloatingArray(values, missing)
    return pd.arrays.IntegerArray(values, missing)


def written(moments: pa.Array) -> pa.Array:
    """Times as text, those with a zone in UTC; seconds have as few decimals as they need."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        plain = moments.cast(pa.timestamp("s", moments.type.tz))
    except pa.ArrowInvalid:  # fractions of a second
        plain = moments.cast(pa.timestamp("us", moments.type.tz), safe=False)
    if plain.type.tz:
        plain = plain.cast(pa.timestamp(plain.type.unit, "UTC"))
    return pc.strftime(plain, "%Y-%m-%d %H:%M:%S")
