"""Write samples, tables and arrays to a file in the format of its suffix."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UsageError
from ..core.files import replacing

if TYPE_CHECKING:
    from .run import Run


def check_format(run: Run, out: Path) -> None:
    """Refuse a format that samples of this run do not have, before any work is done."""
    from ..data.builtin.synthetic import Pen

    drawn = run.view.sound or isinstance(run.view.event.fields[0].codec, Pen)
    if out.suffix == ".wav" and run.view.sound is None:
        raise UsageError(f"expected audio for .wav, found {run.space}; use .png, .csv or .npz")
    if out.suffix == ".png" and not (drawn or run.space.is_image or run.space.shape == (2,)):
        raise UsageError(f"cannot plot {run.space} as .png; use -o samples.csv or .npz")
    if out.suffix not in (".wav", ".png", ".csv", ".npz"):
        raise UsageError(f"cannot write {run.space} as {out.suffix}; use .png, .csv or .npz")


def write(
    run: Run,
    x: Any,
    out: Path,
    length: Any = None,
    columns: int | None = None,
) -> list[Path]:
    """Write samples in the format of the suffix and return the files written; sequences end at
    `length`, images are arranged in `columns`, rows of a table get new keys."""
    import numpy as np

    check_format(run, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".wav":
        return write_sounds(run, x, out, length)
    if out.suffix == ".csv":
        write_table(table(run, x), out)
        return [out]
    if out.suffix == ".npz":
        decoded: Any = run.view.decode(x)
        arrays: Any = (
            {"x": decoded}
            if isinstance(decoded, np.ndarray)
            else {name: column.to_numpy() for name, column in decoded.items()}
        )
        arrays |= {} if length is None else {"length": length.numpy()}
        write_arrays(out, arrays)
        return [out]
    from ..data.builtin.synthetic import Pen
    from ..plot import image_grid, sequences

    if sound := run.view.sound:
        sequences.write_waves(out, sounds(run, x, length), sound.rate)
    elif isinstance(run.view.event.fields[0].codec, Pen):
        sequences.write_strokes(out, sounds(run, x, length))
    elif run.space.is_image:
        image_grid.write_grid(out, x.numpy(), run.space, columns)
    else:
        image_grid.write_points(out, x.numpy())
    return [out]


def write_sounds(run: Run, x: Any, out: Path, length: Any = None) -> list[Path]:
    """One file, or several: out-1.wav, out-2.wav and so on."""
    from ..data.readers import wav

    sound = run.view.sound
    assert sound is not None, "checked before"
    clips = sounds(run, x, length)
    digits = len(str(len(clips)))
    paths = (
        [out]
        if len(clips) == 1
        else [
            out.with_name(f"{out.stem}-{place:0{digits}}{out.suffix}")
            for place in range(1, len(clips) + 1)
        ]
    )
    for path, samples in zip(paths, clips, strict=True):
        with replacing(path) as fresh:
            wav.save(fresh, sound.clip(samples))
    return paths


def sounds(run: Run, x: Any, length: Any = None) -> list[Any]:
    """Sequences in data units, each cut at its length."""
    decoded = run.view.decode(x)
    ends = [decoded.shape[1]] * len(decoded) if length is None else length.tolist()
    return [samples[:end] for samples, end in zip(decoded, ends, strict=True)]


PART = 2**16
"""Rows of a table that are computed and written at a time."""


def write_table(table: Any, out: Path) -> None:
    """A frame as .csv or .parquet."""
    write_tables([table], out)


def write_tables(tables: Iterable[Any], out: Path) -> None:
    """The rows of frames one after another as .csv or .parquet, each written before the next one
    is asked for; the file has its name only once it is whole."""
    try:
        with replacing(out) as fresh:
            if out.suffix == ".parquet":
                write_parquet(tables, fresh)
                return
            with open(fresh, "w", encoding="utf-8", newline="") as file:
                for number, table in enumerate(tables):
                    table.to_csv(file, index=False, header=not number)
    except ImportError as error:
        raise UsageError(
            f"{out.name} needs pyarrow, which is not installed; install it, or write .csv"
        ) from error


def write_parquet(tables: Iterable[Any], out: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for table in tables:
            # cells are missing in one part and not in another
            kind = None if writer is None else writer.schema
            made = pa.Table.from_pandas(table, kind, preserve_index=False)
            writer = writer or pq.ParquetWriter(out, made.schema)
            writer.write_table(made)
    finally:
        if writer is not None:
            writer.close()


def write_arrays(out: Path, arrays: Mapping[str, Any]) -> None:
    """Named arrays as .npz, whatever their names; columns of names become text."""
    import zipfile

    import numpy as np

    with replacing(out) as fresh, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            array = np.asarray(array)
            if array.dtype == object:
                array = np.array(["" if v is None or v != v else str(v) for v in array])
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def frame(run: Run, x: Any, row_keys: Any = None) -> Any:
    """Samples as a table, one row each, with new keys or `row_keys`."""
    return as_frame(run, run.view.decode(x, row_keys))


def as_frame(run: Run, decoded: Any) -> Any:
    """Rows in the form of the data as a table."""
    import pandas as pd

    if isinstance(decoded, pd.DataFrame):
        return decoded
    flat = decoded.reshape(len(decoded), -1)
    return pd.DataFrame(flat, columns=entry_names(run, flat.shape[1]))


def entry_names(run: Run, count: int) -> list[str]:
    """The names of the entries of a row."""
    names = run.view.columns
    return list(names) if len(names) == count else [f"x{place + 1}" for place in range(count)]


@dataclass(frozen=True)
class WrittenTable:
    """A table whose cells are text already."""

    columns: list[tuple[str, list[str]]]

    def to_csv(self, file: Any, index: bool = False, header: bool = True) -> None:
        """Write it as pandas writes a frame."""
        writer = csv.writer(file, lineterminator=os.linesep)
        if header:
            writer.writerow(label for label, _ in self.columns)
        writer.writerows(zip(*(cells for _, cells in self.columns), strict=True))


def table(run: Run, x: Any, row_keys: Any = None) -> Any:
    """What `frame` gives, for a csv file: without pandas, which takes longer to import than a
    table to write, unless a column needs it."""
    from ..data.readers.tables import written_cells

    columns: list[tuple[Any, Any]] = []
    decoded = run.view.decoded_columns(x)
    if decoded is None:
        (rows,) = run.view.event.decode(x)
        flat = rows.reshape(len(rows), -1)
        names = entry_names(run, flat.shape[1])
        columns += [(name, written_cells(flat[:, k])) for k, name in enumerate(names)]
    else:
        columns += [(label, written_cells(values, codec)) for label, codec, values in decoded]
        for place, label, cells in run.view.key_columns(len(x), row_keys):
            columns.insert(place, (label, written_cells(cells)))
    if any(cells is None for _, cells in columns):
        return frame(run, x, row_keys)
    return WrittenTable(columns)
