"""Fill in unknown cells: samples given the known cells, or their mean, median and interval.

Completed rows of a table are the rows that were read, with the unknown cells replaced: whatever a
cell holds that is known, and in a csv file however it is written, it stays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import DataError, UsageError, nearest
from ..core.memory import require_memory
from ..core.space import Space
from ..data import frames, loading
from ..data.batches import Split
from ..data.codecs.array import Array
from ..data.codecs.base import Codec
from ..data.codecs.scalar import Number, listed
from ..data.dataset import View
from ..data.readers import tables
from ..data.readers.delimited import COMMA, NOTHING
from ..evaluate.rejection import CompleteRows

FillBy = Literal["sample", "mean", "median"]
POINT_DRAWS = 100
"""Completions of each row from which its mean, median and interval are computed."""
MAX_CHUNK = 4096
"""Rows completed at once."""
COPIES_OF_DRAWS = 3
"""Numbers held for each number of the draws, at least: row, which cells are known, draw."""


@dataclass(frozen=True)
class Completed:
    """Rows with their unknown cells filled in, several for each row of the data if asked for."""

    x: Tensor  # (rows * draws, *event)
    filled: Tensor  # (rows, *event): which cells were unknown
    replaced: Tensor  # (rows, *event): these, or all if the observed ones change too
    low: Tensor | None = None  # (rows, *event): the interval of each filled number
    high: Tensor | None = None
    notes: tuple[str, ...] = ()  # how cells were sampled that known columns follow from

    @property
    def unknown_rows(self) -> int:
        """How many rows have no known cell."""
        return int(self.filled.flatten(1).all(1).sum())


def unknown_cells(batch: Batch, space: Space, keep: Sequence[str] = ()) -> Batch:
    """The rows with every empty cell unknown, but those of the columns to `keep` as they are."""
    if space.is_plain and not keep:
        return batch
    parts = space.columns or (space,)
    names = [part.name for part in parts]
    for name in keep:
        if name not in names:
            raise UsageError(f"--keep-holes: there is no column {name!r}{nearest(name, names)}")
    rigid = [part.name for part in parts if part.name in keep and not part.optional]
    if rigid and batch.observed is not None:
        raise DataError(
            f"--keep-holes: {listed(rigid)} had no empty cells when the model was fitted, so that "
            "an empty cell of it is unknown; leave it out of --keep-holes"
        )
    asked = torch.tensor([name not in keep for name in names])
    hidden = space.empty(batch.x) & (asked if space.columns else asked[0])
    if not bool(hidden.any()):
        return batch
    # x keeps what it holds: a model may use that a cell was empty (values that hide themselves).
    return replace(batch, observed=batch.observed_mask & ~hidden)


def array_rows(view: View, what: Any, noisy: bool) -> Batch | None:
    """Rows of an array or of a frame of numbers for a run of arrays, images or vectors, in the
    shape of an event, channels first or last or left out if there is one, or flattened: NaN is an
    unknown entry, and with `noisy` levels need not be whole. A file is read so if it is noisy.
    None where the run has a table or conditions, or its own reading of the data will do."""
    codec = view.event.fields[0].codec
    if not view.event.single or view.given or not isinstance(codec, Array) or codec.sampled:
        return None
    if isinstance(what, torch.Tensor | np.ndarray):
        x = np.asarray(what)
    elif frames.is_frame(what):
        x = what.to_numpy(dtype=np.float64)
    elif noisy and what is not None:
        x = loading.open(what).view().split("all").whole().x.numpy()
    else:
        return None
    if x.dtype.kind not in "biuf" or x.ndim < 1 or x[:1].size != math.prod(codec.shape):
        return None
    holes = bool(np.isnan(x).any()) if x.dtype.kind == "f" else False
    channels = codec.shape[0] if len(codec.shape) == 3 else 1
    last = codec.layout == "HWC" and x.ndim == 4 and x.shape[-1] == channels
    x = (np.moveaxis(x, -1, 1) if last else x).reshape(len(x), *codec.shape)
    fractions = codec.kind in ("levels", "binary") and x.dtype.kind == "f"
    if not (noisy or holes or fractions or what.ndim != 1 + len(codec.layout or codec.shape)):
        return None
    seen = ~np.isnan(x) if x.dtype.kind == "f" else np.ones(x.shape, bool)
    x = np.where(seen, x, 0)
    if not noisy:
        x = codec.keep(x, lambda row: f"row {row + 1}").numpy()
    if not np.isfinite(x).all():
        raise DataError("expected finite numbers, found an infinite one; fix or drop such rows")
    return Batch(torch.from_numpy(x.astype(np.float32)), observed=torch.from_numpy(seen))


def in_form_of(found: np.ndarray, what: Any, draws: int, keeps_observed: bool) -> Any:
    """Completed rows in the shape of the array, or the columns of the frame, that was given, with
    its own entries where they stay."""
    if not (frames.is_frame(what) or isinstance(what, np.ndarray | torch.Tensor)):
        return found
    given = np.asarray(what).repeat(draws, 0)
    found = found.reshape(given.shape)
    if keeps_observed and given.dtype.kind == "f":
        found = np.where(np.isnan(given), found, given)
    if frames.is_frame(what):
        import pandas as pd

        return pd.DataFrame(found, what.index.repeat(draws), what.columns)
    return found


@dataclass(frozen=True)
class MadeColumn:
    """A column of completed rows, and which of its cells were not known."""

    label: str | int
    codec: Codec
    values: np.ndarray  # (N,), decoded
    replaced: np.ndarray  # (N,)

    @property
    def cells(self) -> Any:
        """The column with its type in the data of the run."""
        return tables.series(self.codec, self.values)

    def replaces(self, empty: Any) -> np.ndarray:
        """Which cells are replaced, (N,): those that were not known, and empty ones that follow
        from others."""
        return self.replaced | (empty.to_numpy(bool) & ~self.cells.isna().to_numpy(bool))


def about_unknown_rows(count: int) -> list[str]:
    """A note about rows of which nothing is known, if there are any."""
    rows = "1 row has" if count == 1 else f"{count} rows have"
    return [f"{rows} no known cell; such rows are sampled as new ones"] if count else []


def about_known_cells(view: View, rows: Split) -> list[str]:
    """A note if the known cells of completed rows are not those of a file or a frame."""
    if not view.selection.schema.table or rows.original is not None:
        return []
    return [
        "known numbers have seven digits, as the encoded rows are at hand and not the files that "
        "they were read from"
    ]


def completed_table(view: View, rows: Split, done: Completed, as_text: bool = False) -> Any:
    """Completed rows in the form of the data: those of a table as they were read, with the unknown
    cells replaced; `as_text` keeps the cells of a text file as they are written."""
    import pandas as pd

    draws = len(done.x) // max(len(rows), 1)
    decoded, original = view.decoded_columns(done.x), rows.original
    if decoded is None or original is None:
        return view.decode(done.x, rows.repeated_keys(draws))
    names = {field.key: field.name for field in view.selection.schema.fields}
    replaced = replaced_cells(view, rows, done, draws)
    made = {
        names[label]: MadeColumn(label, codec, values, replaced[names[label]])
        for label, codec, values in decoded
    }
    texts = original.texts if as_text else None
    examples = None if texts is None else original.first_texts
    table = original.table if texts is None else texts
    table = table.iloc[np.arange(len(table)).repeat(draws)].reset_index(drop=True)
    labels = original.labels if texts is None else {}
    columns: dict[Any, Any] = {}
    for name, cells in table.items():
        new = made.pop(str(name), None)
        if new is None:
            columns[labels.get(str(name), name)] = cells
        elif examples is None:
            columns[new.label] = with_cells(cells, new)
        else:
            columns[new.label] = with_texts(cells, new, examples[name])
    return pd.DataFrame({**columns, **{new.label: new.cells for new in made.values()}})


def replaced_cells(view: View, rows: Split, done: Completed, draws: int) -> dict[str, np.ndarray]:
    """Which cells of each column of completed rows are not those of the data, (N,): what was
    unknown, and what is computed from it unless it was known itself."""
    event = done.replaced.reshape(len(rows), -1).numpy()
    found = {field.name: event[:, place] for place, field in enumerate(view.event.fields)}
    known = {name: ~codes.isnan().numpy() for name, codes in rows.implied.items()}
    for above in view.restored.differences:
        found[above.name] = found[above.name] & ~known.get(above.name, np.zeros(len(rows), bool))
    for each in view.restored.derived:
        changed = np.any([found[name] for name in each.sources] or [np.zeros(len(rows), bool)], 0)
        found[each.name] = changed & ~known.get(each.name, np.zeros(len(rows), bool))
    return {name: some.repeat(draws) for name, some in found.items()}


def with_cells(cells: Any, new: MadeColumn) -> Any:
    """A column with its unknown cells replaced, of the type in the data of the run if no other
    cell changes by it."""
    replaced = new.replaces(cells.isna())
    if not replaced.any():
        return cells
    cells, made = tables.as_moments(cells), new.cells
    if cells.dtype.kind == made.dtype.kind == "f":  # float64 or Float64: as it was
        made = made.astype(cells.dtype)
    try:
        found = cells.mask(replaced, made)
    except (TypeError, ValueError):  # the type of the column cannot hold the new cells
        found = cells.astype(object).mask(replaced, made.astype(object))
    if found.dtype == made.dtype:
        return found
    try:
        cast = found.astype(made.dtype)
    except (TypeError, ValueError):
        return found
    same = (cast.astype(object) == found.astype(object)) | (cast.isna() & found.isna())
    return cast if same.all() else found


def with_texts(cells: Any, new: MadeColumn, examples: Any) -> Any:
    """A column of text with its unknown cells replaced, spelled as the examples are."""
    if isinstance(new.codec, Number):  # decimal commas would separate cells
        cells, examples = (each.str.replace(COMMA, ".", regex=True) for each in (cells, examples))
    replaced = new.replaces(cells.isin(NOTHING))
    if not replaced.any():
        return cells
    texts = cells.to_numpy(object, copy=True)
    known = examples[~examples.isin(NOTHING)].str.strip()
    texts[replaced] = spelled(new.codec, new.values[replaced], known)
    return type(cells)(texts, cells.index, dtype=object)


PLAIN_NUMBER = re.compile(r"[+-]?\d+(?:\.(\d+))?")
"""A number without an exponent, and its decimals."""


def spelled(codec: Codec, values: np.ndarray, examples: Sequence[str]) -> list[str]:
    """Values as text, with the decimals or the capitals of the examples where these agree."""
    texts = tables.written_cells(values, codec)
    if texts is None:
        cells = tables.series(codec, values)
        texts = cells.astype(object).where(cells.notna(), "").map(str).tolist()
    if isinstance(codec, Number):
        found = [PLAIN_NUMBER.fullmatch(each) for each in examples]
        decimals = {len(each[1] or "") if each else -1 for each in found}
        most = max(decimals, default=-1)
        if decimals == {most} and most >= 0:
            return [with_decimals(text, most) for text in texts]
        return [text.removesuffix(".0") for text in texts] if 0 in decimals else texts
    if {*texts} <= {"True", "False", ""}:
        for case in (str.lower, str.upper):
            if all(each == case(each) for each in examples):
                return [case(text) for text in texts]
    return texts


def with_decimals(text: str, count: int) -> str:
    """A number written with so many decimals if it has no more."""
    whole, _, decimals = text.partition(".")
    decimals = decimals.rstrip("0")
    if not PLAIN_NUMBER.fullmatch(text) or len(decimals) > count:
        return text
    return f"{whole}.{decimals.ljust(count, '0')}" if count else whole


def point_estimate(draws: Tensor, space: Space, by: FillBy) -> Tensor:
    """The mean or median of numbers and the most frequent code of names, of draws
    (rows, draws, *event)."""
    numbers = draws.mean(1) if by == "mean" else quantile_of(draws, 0.5)
    kinds = [part.kind for part in space.columns] or [space.kind]
    names = torch.tensor([kind in ("label", "binary") for kind in kinds])
    if not bool(names.any()):
        return numbers
    return torch.where(names if space.columns else names[0], draws.mode(1).values, numbers)


def quantile_of(draws: Tensor, level: float) -> Tensor:
    """The quantile of draws (rows, draws, *event) of each row; torch's own takes no empty tensor
    and no large one."""
    return torch.from_numpy(np.quantile(draws.numpy(), level, axis=1)).to(draws)


def complete_rows(
    batch: Batch,
    space: Space,
    complete: CompleteRows,
    by: FillBy = "sample",
    draws: int = 1,
    interval: float | None = None,
    keeps_observed: bool = True,
) -> Completed:
    """Rows without an unknown cell are not computed, unless observed values change too."""
    if draws < 1:
        raise UsageError(f"expected at least 1 draw of each row, found draws={draws}; use draws=1")
    each = COPIES_OF_DRAWS * 8.0 * batch.x[:1].numel() * len(batch)
    require_memory(f"draws={draws} of {len(batch)} rows", draws * each, "draw fewer at a time")
    unknown, sampled = ~batch.observed_mask, by == "sample"
    replaced = unknown if keeps_observed else torch.ones_like(unknown)
    some = replaced.flatten(1).any(1)
    count = draws if sampled and interval is None else max(draws, POINT_DRAWS)
    found = torch.cat(
        [
            complete(batch[rows], count)
            for chunk in torch.arange(len(batch)).split(chunk_size(count))
            if len(rows := chunk[some[chunk]])
        ]
        or [batch.x[:0, None].repeat_interleave(count, 1)]
    )
    numbers = found.to(torch.get_default_dtype())
    made = found[:, :draws] if sampled else point_estimate(numbers, space, by)[:, None].to(found)

    def filled_by(values: Tensor) -> Tensor:  # (some, K, *event) -> (rows, K, *event)
        x = batch.x.to(values)[:, None].repeat_interleave(values.shape[1], 1)
        x[some] = torch.where(replaced[some, None], values, x[some])
        return x

    low = high = None
    if interval is not None:
        ends = (quantile_of(numbers, level / 2) for level in (1 - interval, 1 + interval))
        low, high = (filled_by(end[:, None])[:, 0] for end in ends)
    return Completed(filled_by(made).flatten(0, 1), unknown, replaced, low, high)


def chunk_size(draws: int) -> int:
    """Rows that are completed at a time: a power of two, as is the size of the parts in which
    tables are read, so that noise does not depend on these."""
    return 1 << max(MAX_CHUNK // draws, 1).bit_length() - 1


def in_chunks(each: Callable[[Batch], Tensor], batch: Batch, size: int = MAX_CHUNK) -> Tensor:
    """What a function gives for the rows, computed for some at a time."""
    parts = torch.arange(max(len(batch), 1))[: len(batch)].split(size)
    return torch.cat([each(batch[rows]) for rows in parts])
