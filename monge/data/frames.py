"""Frames and series of other libraries: read as pandas frames, and results given in kind.

Every frame is a pandas frame inside Monge. One of another library is converted column by column
with narwhals, which needs no Arrow; what a run gives back is converted to the library and types of
the frame that was passed in. A series of sktime (times as the index), darts (`TimeSeries`) or
GluonTS (a dataset of entries with start and target) becomes a frame with a column of times.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import DataError

if TYPE_CHECKING:
    import narwhals as nw
    import pandas as pd


def is_frame(what: Any) -> bool:
    """Whether this is a frame or a column of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(what, pandas.DataFrame | pandas.Series)


def foreign(what: Any) -> Any:
    """A frame, lazy frame or column of another library than pandas, wrapped by narwhals and with
    its rows computed; None for anything else."""
    library = type(what).__module__.partition(".")[0]
    if library in ("builtins", "numpy", "torch", "pandas", "pathlib", "scipy", "monge"):
        return None
    import narwhals as nw

    if library == "pyarrow" and callable(collect := getattr(what, "to_table", None)):
        what = collect()  # a dataset of files
    found = nw.from_native(what, pass_through=True, allow_series=True)
    if isinstance(found, nw.LazyFrame):
        return found.collect()
    return found if isinstance(found, nw.DataFrame | nw.Series) else None


LARGE = 2**28
"""Bytes of files from which the rows of an Arrow dataset are not held in memory."""


def files_of(data: Any) -> list[str]:
    """The files of an Arrow dataset that are too large to be held in memory; none for anything
    else, nor if its columns are not those of its files."""
    files = getattr(data, "files", None)
    if type(data).__module__ != "pyarrow._dataset" or not files:
        return []
    pieces = list(data.get_fragments())
    plain = all(str(piece.partition_expression) in ("true", "True") for piece in pieces)
    local = all(os.path.isfile(path) for path in files)
    named = (
        local
        and plain
        and all(piece.physical_schema.names == data.schema.names for piece in pieces[:1])
    )
    return list(files) if named and sum(map(os.path.getsize, files)) >= LARGE else []


def as_pandas(data: Any) -> Any:
    """A frame of another library (polars, Arrow, ...), alone or in an (x, y) pair, as a pandas
    frame; anything else as it is."""
    return opened(data)[0]


def opened(data: Any) -> tuple[Any, Any]:
    """Data with frames of other libraries as pandas frames, and a frame without rows of the
    library and the types of the first: the form of results; None if there is none."""
    if isinstance(data, tuple) and len(data) == 2:
        (x, form), (y, _) = map(opened_part, data)
        return (x, y), form
    return opened_part(with_times(data))


def opened_part(data: Any) -> tuple[Any, Any]:
    """`opened` of data that are no pair and no series."""
    if is_frame(data) or type(data).__module__.partition(".")[0] == "pandas":
        return data, None
    if files_of(data):
        return data, None
    found = foreign(data)
    if found is None:
        return converted(data), None
    import narwhals as nw
    import pandas as pd

    if isinstance(found, nw.Series):
        return column(found).rename(found.name or None), found[:0].to_native()
    frame = pd.DataFrame({name: column(found[name]) for name in found.columns})
    return frame, found[:0].to_native()


def with_times(data: Any) -> Any:
    """A series of another library, or with times as its index, as a frame with a column of times;
    anything else as it is. A frame of several columns whose index are moments, not periods, stays
    a table, since rows of many tables have a time."""
    library = type(data).__module__.partition(".")[0]
    if library == "darts":
        data = (getattr(data, "to_dataframe", None) or data.pd_dataframe)()
    elif library == "gluonts" or is_entries(data):
        data = from_entries(data)
    if not is_frame(data):
        return data
    import pandas as pd

    index, panel = data.index, library in ("darts", "gluonts")
    if index.nlevels == 2 and isinstance(index.levels[1], pd.DatetimeIndex | pd.PeriodIndex):
        wide = data.unstack(0).dropna()  # the time that all series cover
        if data.ndim == 1 or data.shape[1] == 1:
            names = [str(name) for name in wide.columns.get_level_values(-1)]
        else:
            names = [f"{series} {column}" for column, series in wide.columns]
        wide.columns = pd.Index(names)
        data, index, panel = wide, wide.index, True
    series = data.ndim == 1 or panel
    if not isinstance(index, (pd.DatetimeIndex, pd.PeriodIndex) if series else pd.PeriodIndex):
        return data
    frame = data.to_frame(data.name or "value") if isinstance(data, pd.Series) else data
    name = str(index.name or "time")
    if name in frame:
        return data
    times = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
    frame = frame.reset_index(drop=True)
    frame.insert(0, name, times)
    return frame


def is_entries(data: Any) -> bool:
    """Whether these are the entries of a dataset of GluonTS."""
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(each, dict) and {"start", "target"} <= set(each) for each in data)
    )


def from_entries(entries: Any) -> pd.DataFrame:
    """The series of a dataset of GluonTS as columns over the time that all of them cover."""
    import pandas as pd

    columns = {}
    for number, entry in enumerate(entries):
        start, values = entry["start"], np.asarray(entry["target"])
        if not isinstance(start, pd.Period) or values.ndim != 1:
            raise DataError(
                f"expected entries with a start that is a period and a target of one number per "
                f"step, found {type(start).__name__} and shape {values.shape} in entry {number}; "
                "give start=pd.Period(TIME, freq)"
            )
        times = pd.period_range(start, periods=len(values), freq=start.freq)
        columns[str(entry.get("item_id", f"series{number + 1}"))] = pd.Series(values, times)
    return pd.DataFrame(columns).dropna()


def converted(data: Any) -> Any:
    """An object that narwhals does not know, by its own method `to_pandas` if it has one."""
    convert = getattr(data, "to_pandas", None)
    if not callable(convert):
        return data
    try:
        return convert()
    except ImportError as error:
        raise DataError(
            f"expected a frame that can be converted to pandas, found one that needs "
            f"another package ({error}); install it, or convert the frame yourself"
        ) from error


def column(values: nw.Series[Any]) -> pd.Series[Any]:
    """A column of another library with the pandas type of the same meaning."""
    import narwhals as nw
    import pandas as pd

    kind = values.dtype
    if kind == nw.Boolean or kind.is_integer():
        if not bool(values.is_null().any()):
            return pd.Series(values.to_numpy())
        return pd.Series(values.to_list(), dtype=str(kind) if kind.is_integer() else "boolean")
    if kind.is_float():
        return pd.Series(values.to_numpy())
    if kind == nw.Decimal:
        return pd.Series([np.nan if value is None else float(value) for value in values.to_list()])
    if kind == nw.Datetime or kind == nw.Date:
        return moments(values)
    if kind == nw.Enum or kind == nw.Categorical:
        cells = values.cast(nw.String).to_list()
        known = (
            list(kind.categories)
            if isinstance(kind, nw.Enum)
            else sorted({cell for cell in cells if cell is not None})
        )
        return pd.Series(pd.Categorical(cells, known, ordered=kind == nw.Enum))
    return pd.Series(values.to_list())


def moments(values: nw.Series[Any]) -> pd.Series[Any]:
    """Dates or times as times of pandas, with their time zone."""
    import narwhals as nw
    import pandas as pd

    zone = getattr(values.dtype, "time_zone", None)
    dates = values.cast(nw.Datetime("us")) if values.dtype == nw.Date else values
    since = pd.Series(dates.dt.timestamp("us").to_list(), dtype="Int64")
    found = pd.to_datetime(since, unit="us", utc=zone is not None)
    return found.dt.tz_convert(zone) if zone else found


def in_kind(result: Any, form: Any, same_columns: bool = True) -> Any:
    """A pandas frame or column in the library of `form`, with the types of its columns where they
    are the same; as it is if there is none."""
    template = foreign(form) if is_frame(result) else None
    if template is None:
        return result
    import narwhals as nw

    if result.ndim == 1:
        return native(result, str(result.name), template, None).to_native()
    known = template.schema if same_columns and isinstance(template, nw.DataFrame) else {}
    columns = [native(result[name], str(name), template, known.get(str(name))) for name in result]
    return columns[0].to_frame().with_columns(*columns[1:]).to_native()


def native(values: pd.Series[Any], name: str, template: Any, wanted: Any) -> nw.Series[Any]:
    """A column in the library of the template, of the type `wanted` where its values admit it."""
    import narwhals as nw

    cells: Any = values.to_numpy()
    if not isinstance(values.dtype, np.dtype) or values.isna().any() or values.dtype.kind in "MO":
        cells = values.astype(object).where(values.notna(), None).to_list()
    kind = None
    if values.dtype.kind == "M":
        zone = getattr(values.dtype, "tz", None)
        kind = nw.Datetime("us", None if zone is None else str(zone))
        cells = [None if cell is None else cell.to_pydatetime() for cell in cells]
    if wanted is not None and wanted.is_integer() and values.dtype.kind == "f":
        if (values.dropna() % 1 != 0).any():
            wanted = None  # means of whole numbers
        else:
            cells = [None if cell is None else int(cell) for cell in cells]
    made = nw.new_series(name, cells, kind, backend=template.implementation)
    return made if wanted is None or made.dtype == wanted else made.cast(wanted)
