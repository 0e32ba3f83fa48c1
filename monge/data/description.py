"""What a dataset holds, in the words of its user: one entry per column, and its problems.

`describe` opens data even where reading them as they are is refused: it sets what the refusal
advises, and lists it among the problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import DataError
from ..core.space import Space
from . import loading
from .codecs.date import Date
from .codecs.date_format import MONTHS, is_ambiguous, parse_times, write_times
from .codecs.scalar import MISSING, Binary, Categorical, listed
from .codecs.sequence import SequenceCodec
from .codecs.time_index import TimeIndex
from .codecs.window import Window
from .dataset import Dataset, empty_cells, example
from .packed import Ragged, as_ranks, single_columns
from .readers.series import NONE
from .schema import Field

MAX_REPAIRS = 20
"""Refusals that are met by a setting before one is final."""
MAX_TRIED = 60
"""Columns that are left out in turn to find the one that cannot be read."""
MOSTLY_EMPTY = 0.5
"""Share of empty cells from which a column is reported."""
RARE = 5
"""Rows of a name below which it is rare."""
FEW_ROWS = 100
"""Rows below which held-out values are uncertain."""
ROUNDED_CELLS, ROUNDED_VALUES = 1000, 20
"""Cells from which a model learns what values repeat, and the most values that then hold half of
the cells of a column that is reported."""
FEW_COLUMNS = 3
"""Columns below which rows repeat by themselves."""
SHOWN_NAMES = 28
"""Characters of names that are shown of a column."""
KINDS = {"real": "number", "counts": "whole number", "binary": "flag", "label": "names"}


@dataclass(frozen=True)
class Problem:
    """Something about the data that its user should know, and what to do about it."""

    name: str
    columns: tuple[str, ...]
    count: int  # of rows, cells or columns
    sentence: str
    remedy: str


def describe(what: Any, *settings: str) -> tuple[Dataset, list[Problem], tuple[str, ...]]:
    """The dataset, its problems, and the settings and transforms under which it can be read."""
    used, found = settings, []
    for _ in range(MAX_REPAIRS):
        try:
            source = loading.open(transformed(what, used), *plain(used))
        except DataError as error:
            more = error.settings or spare_column(what, used)
            if not more or {*more} <= {*used}:
                raise
            used = merged(used, more)
            sentence = str(error).rpartition("; ")[0]
            columns = tuple(
                name for each in more if each.startswith("drop=") for name in each[5:].split(",")
            )
            advice = " ".join(f"data.{setting}" for setting in plain(more))
            remedy = f"set {advice}" if advice else f"write {transformed(what, more)}"
            found.append(Problem("unreadable", columns, 1, sentence, remedy))
        else:
            return source, found + list(problems(source)), used
    raise DataError(f"{what} has more problems than settings can meet; fix the first of them")


def headline(source: Dataset, splits: dict[str, int]) -> str:
    """The name, the numbers of rows and columns, and the splits."""
    keys, absent = len(source.schema.row_keys), len(source.schema.derived)
    width = len(source.fields) + keys
    modelled = len(source.main)
    size = f"{len(source)} rows"
    if "past" in source.fields:
        size = f"{len(source)} windows of a series"
    if source.schema.table:
        size += f", {width} column{'s' * (width != 1)}"
        verb = "is" if modelled == 1 else "are"
        size += f" of which {modelled} {verb} modelled" if keys or absent else ""
    less = f"; {source.dropped} rows with empty cells dropped" if source.dropped else ""
    counts = ", ".join(f"{count} {name}" for name, count in splits.items())
    by = source.options.group or source.options.time.removesuffix(NONE)
    chosen = f"by {by}" if by and source.schema.table else "random, by data.seed"
    origin = "as given" if source.has_splits else chosen
    origin = "by time" if "past" in source.fields else origin
    return f"{source.name}: {size}; {counts} ({origin}){less}"


def merged(settings: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Settings and those that replace or extend them; transforms come last."""
    found = dict(setting.split("=", 1) for setting in plain(settings))
    for setting in plain(more):
        name, value = setting.split("=", 1)
        longer = name == "drop" and name in found
        found[name] = f"{found[name]},{value}" if longer else value
    changes = [each for each in (*settings, *more) if each.startswith("+")]
    return (*(f"{name}={value}" for name, value in found.items()), *dict.fromkeys(changes))


def plain(settings: Sequence[str]) -> tuple[str, ...]:
    """Settings without transforms."""
    return tuple(setting for setting in settings if not setting.startswith("+"))


def transformed(what: Any, settings: Sequence[str]) -> Any:
    """The name of data with the transforms among some settings."""
    changes = "".join(setting for setting in settings if setting.startswith("+"))
    return f"{what}{changes}" if changes else what


def spare_column(what: Any, settings: Sequence[str]) -> tuple[str, ...]:
    """The setting that leaves out the one column without which the data can be read, if any."""
    try:
        options = loading.Options().override(*plain(settings))
        raw = loading.choose_columns(loading.read(loading.locate(what)[0], options), options)
    except DataError:
        return ()
    for name in list(raw.values)[:MAX_TRIED] if raw.table and len(raw.values) > 1 else ():
        try:
            loading.open(what, *merged(settings, [f"drop={name}"]))
        except DataError:
            continue
        return (f"drop={name}",)
    return ()


def problems(source: Dataset) -> Iterator[Problem]:
    """What a table has that its user may not know."""
    if "past" not in source.fields:
        yield from few_rows(source)
    if not source.schema.table:
        return
    yield from duplicates(source)
    for field in source.schema.fields:
        yield from mostly_empty(field, source)
        yield from digits_of_dates(field, source)
        yield from rare_names(field, source)
        yield from unclear_dates(field, source)
    yield from rounded_numbers(source)
    yield from leaks(source)


def few_rows(source: Dataset) -> Iterator[Problem]:
    if len(source) < FEW_ROWS:
        test = len(source.rows_of("test"))
        yield Problem(
            "few rows",
            (),
            len(source),
            f"{len(source)} rows are few: {test} of them test{'s' * (test == 1)} a model",
            "judge models by `monge compare` over several --seeds",
        )


def duplicates(source: Dataset) -> Iterator[Problem]:
    columns = [as_ranks(column) for column in single_columns(source.stored).values()]
    if len(columns) < len(source.stored) or len(columns) < FEW_COLUMNS:
        return
    rows = np.stack(columns, 1)
    count = len(rows) - count_different(rows)
    # rows of few names repeat by themselves
    if count and any(is_number(field.space) for field in source.schema.fields):
        share = percent(count / len(rows))
        yield Problem(
            "duplicates",
            (),
            count,
            f"{plural(count, 'row')} ({share}) repeat{'s' * (count == 1)} an earlier one, so that "
            "test rows may be among the training rows",
            "remove them from the file if they are copies rather than observations",
        )


def count_different(rows: np.ndarray) -> int:
    """How many of the rows (N, D) differ from one another."""
    order = np.lexsort(rows.T)
    return 1 + int((rows[order[1:]] != rows[order[:-1]]).any(1).sum())


def is_number(space: Space) -> bool:
    return space.kind in ("real", "counts")


def mostly_empty(field: Field, source: Dataset) -> Iterator[Problem]:
    count = empty_cells(field, source)
    if count >= MOSTLY_EMPTY * len(source):
        yield Problem(
            "mostly empty",
            (field.name,),
            count,
            f"{field.name} is empty in {percent(count / len(source))} of the rows",
            f"leave it out with data.drop={field.name} if you do not need it",
        )


def rare_names(field: Field, source: Dataset) -> Iterator[Problem]:
    codec, codes = field.codec, source.stored[field.name]
    if not isinstance(codec, Categorical) or not isinstance(codes, np.ndarray):
        return
    counts = np.bincount(codes[codes >= 0], minlength=len(codec.names)).tolist()
    rare = [
        name
        for name, count in zip(codec.names, counts, strict=True)
        if 0 < count < RARE and name != MISSING
    ]
    derived = {each.name for each in source.schema.derived}
    if rare and field.name not in derived:
        yield Problem(
            "rare names",
            (field.name,),
            len(rare),
            f"{plural(len(rare), 'name')} of {field.name} ({listed(rare, 3)}) "
            f"{'has' if len(rare) == 1 else 'have'} fewer than {RARE} rows",
            "write one name such as 'other' for them, or expect little of them",
        )


def rounded_numbers(source: Dataset) -> Iterator[Problem]:
    """Columns of real numbers of which a few values hold most cells."""
    few = {field.name: common_values(field, source) for field in source.schema.fields}
    found = {name: count for name, count in few.items() if 0 < count <= ROUNDED_VALUES}
    if found:
        least, most = min(found.values()), max(found.values())
        values = f"{most} values" if least == most else f"{least} to {most} values each"
        yield Problem(
            "rounded numbers",
            tuple(found),
            len(found),
            f"half of the numbers of {listed(list(found), 3)} take only {values}: densities can "
            "be as high as they like there, so that log-likelihoods of models say little beside "
            "one another",
            "compare samples by `monge evaluate` too, or write such numbers in smaller units, as "
            "whole numbers, which have probabilities",
        )


def common_values(field: Field, source: Dataset) -> int:
    """How many values hold half of the cells of a column of real numbers, apart from those that
    models know of; 0 where there are too few cells for a model to learn which."""
    codes = source.stored[field.name]
    if field.space.kind != "real" or field.space.shape or not isinstance(codes, np.ndarray):
        return 0
    values, counts = np.unique(codes[~np.isnan(codes)], return_counts=True)
    counts = np.sort(counts[~np.isin(values, field.space.atoms)])[::-1]
    if counts.sum() < ROUNDED_CELLS:
        return 0
    return 1 + int(np.searchsorted(counts.cumsum(), counts.sum() / 2))


def digits_of_dates(field: Field, source: Dataset) -> Iterator[Problem]:
    """Whole numbers such as 20160131, all of which are dates."""
    codes = source.stored[field.name]
    if field.space.kind != "counts" or isinstance(field.codec, Date) or field.space.shape:
        return
    assert isinstance(codes, np.ndarray), "a column has one number a row"
    base = getattr(field.codec, "offset", 0)
    numbers = np.unique(codes[~np.isnan(codes)].astype(np.float64) + base)
    if len(numbers) < RARE or numbers.min() < 1000_01_01 or numbers.max() > 9999_12_31:
        return
    cells = np.array([f"{number:.0f}" for number in numbers.tolist()], object)
    if not np.isnat(parse_times(cells, "%Y%m%d")).any():
        yield Problem(
            "dates as numbers",
            (field.name,),
            len(source),
            f"{field.name} holds numbers such as {cells[0]} that look like dates",
            f"write them as {cells[0][:4]}-{cells[0][4:6]}-{cells[0][6:]} if they are",
        )


def unclear_dates(field: Field, source: Dataset) -> Iterator[Problem]:
    codec, codes = field.codec, source.stored[field.name]
    if not isinstance(codec, Date) or not isinstance(codes, np.ndarray):
        return
    cells = [cell for cell in codec.decode(np.unique(codes)) if cell is not None]
    form = codec.clock.form
    if is_ambiguous(cells, form):
        times = parse_times(np.array(cells, object), form)
        months = times.astype("datetime64[M]").astype(int) % 12
        telling = int(np.argmax(write_times(times, "%d") != write_times(times, "%m")))
        yield Problem(
            "unclear dates",
            (field.name,),
            len(cells),
            f"the dates of {field.name} may have day or month first; {cells[telling]} is read as "
            f"a day in {MONTHS[months[telling]]}",
            "write them as 2016-07-01 if that is wrong",
        )
    if "z" in form:
        yield Problem(
            "several time zones",
            (field.name,),
            len(cells),
            f"the times of {field.name} are of several zones; they are read and written in UTC",
            "convert them to one zone to have it back",
        )


def leaks(source: Dataset) -> Iterator[Problem]:
    """Columns that determine one another, as targets."""
    for each in source.schema.derived:
        if each.sources and getattr(each, "inverse", False):
            other = each.sources[0]
            yield Problem(
                "leakage",
                (other, each.name),
                len(source),
                f"{other} and {each.name} determine one another",
                f"to predict {other}, leave the other out with data.drop={each.name}",
            )


def columns(source: Dataset) -> list[dict[str, Any]]:
    """One entry per column: its kind, values, mean, share of empty cells, and what else is known
    of it."""
    if "series" in source.fields and isinstance(source.fields["series"].codec, Window):
        return list(channels(source))
    found = [column(field, source) for field in source.schema.fields]
    for key in source.schema.row_keys:
        value = source.row_keys[key.name][0] if len(source) else ""
        found.insert(
            key.place,
            {
                "column": key.name,
                "kind": "key",
                "values": f"{value}, …",
                "mean": None,
                "empty": None,
                "about": "made anew for samples",
            },
        )
    return found


def column(field: Field, source: Dataset) -> dict[str, Any]:
    space, codec = field.space, field.codec
    kind, values, mean = KINDS.get(space.kind, space.kind), "", None
    if isinstance(codec, Date):
        kind, (low, high) = "date", codec.decode(np.array([space.low[0], space.high[0]]))
        values = f"{low} to {high}"
    elif isinstance(codec, Categorical):
        values = some_names([name for name in codec.names if name != MISSING])
    elif isinstance(codec, Binary):
        values, mean = " or ".join(codec.values), percent(space.mean[0])
    elif isinstance(codec, SequenceCodec):
        kind, values = str(space), str(example(field, source))
    else:
        base, parts = getattr(codec, "offset", 0), space.columns or (space,)
        low = min(x for part in parts for x in part.low)
        high = max(x for part in parts for x in part.high)
        kind, mean = (str(space), None) if space.shape else (kind, digits(base + space.mean[0]))
        values = f"{digits(base + low)} to {digits(base + high)}"
    empty = empty_cells(field, source) / max(len(source), 1)
    return {
        "column": field.name,
        "kind": kind,
        "values": values,
        "mean": mean,
        "empty": percent(empty) if empty else None,
        "about": "; ".join(about(field, source)) or None,
    }


def about(field: Field, source: Dataset) -> Iterator[str]:
    """The support of a column, and how it follows from others."""
    space, x = field.space, source.stored[field.name]
    derived = {each.name: each for each in source.schema.derived}
    above = {each.name: each.base for each in source.schema.differences}
    if field.name in derived:
        sources = listed(derived[field.name].sources)
        yield f"computed from {sources}" if sources else "constant"
        return
    if field.name in above:
        yield f"modelled as the difference from {above[field.name]}"
    base = getattr(field.codec, "offset", 0)
    if isinstance(x, np.ndarray) and not isinstance(field.codec, Date):
        for atom in space.atoms:
            yield f"{digits(base + atom)} in {percent(float((x == atom).mean()))}"
        ends = [
            f"{word} {digits(base + end)}"
            for word, end in (("at least", space.lower), ("at most", space.upper))
            if end is not None
        ]
        if ends:
            yield " and ".join(ends)
    if source.target == field.name:
        yield "target"
    if source.schema.table and field.name not in source.main:
        yield "not modelled"


def channels(source: Dataset) -> Iterator[dict[str, Any]]:
    """The times and the channels of a series."""
    clock, window = source.fields["time"].codec, source.fields["series"].codec
    rows, first = source.stored["series"], source.stored["time"]
    assert isinstance(clock, TimeIndex), "a series has a clock"
    assert isinstance(window, Window), "a series has windows"
    assert isinstance(rows, Ragged), "windows overlap"
    assert isinstance(first, np.ndarray), "a time is one number"
    past = source.fields["past"].codec
    assert isinstance(past, Window), "a series has a past"
    start, end = (
        float(first.min()) - past.steps,
        float(first.max()) + window.steps - past.steps - 1,
    )
    low, high = clock.written(np.array([start, end]))
    blank = dict.fromkeys(("column", "kind", "values", "mean", "empty", "about"))
    yield blank | {
        "column": str(source.fields["time"].key or "time"),
        "kind": "time",
        "values": f"{low} to {high}",
        "about": f"steps of {clock.step}, season {window.season}",
    }
    flat = rows.flat.reshape(len(rows.flat), -1).double()  # (T, channels)
    for place, name in enumerate(window.channels):
        x = flat[:, place]
        low, high, mean = map(digits, (float(x.min()), float(x.max()), float(x.mean())))
        yield blank | {
            "column": name,
            "kind": "series",
            "values": f"{low} to {high}",
            "mean": mean,
        }


def some_names(names: Sequence[str]) -> str:
    """Names, as many as fit, and how many there are."""
    text = ", ".join(names)
    if len(text) <= SHOWN_NAMES:
        return text
    shown = text[:SHOWN_NAMES].rpartition(", ")[0] or text[:SHOWN_NAMES]
    return f"{shown}, … ({len(names)})"


def digits(value: float) -> str:
    """A number with four significant digits, and all those before the point."""
    if value == 0 or 1e-4 <= abs(value) < 1e9:
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """0.1987 as 19.9 %."""
    return f"{100 * share:.3g} %"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
