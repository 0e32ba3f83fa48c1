"""Fill in unknown cells: samples given the known cells, or their mean, median and interval."""

from __future__ import annotations

import math
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
from ..data.codecs.array import Array
from ..data.codecs.scalar import listed
from ..data.dataset import View
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
    low: Tensor | None = None  # (rows, *event): the interval of each filled number
    high: Tensor | None = None


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


def in_form_of(found: np.ndarray, what: Any, draws: int) -> Any:
    """Completed rows in the shape of the array, or the columns of the frame, that was given."""
    if frames.is_frame(what):
        import pandas as pd

        flat = found.reshape(len(found), -1)
        return pd.DataFrame(flat, what.index.repeat(draws), what.columns)
    if not isinstance(what, np.ndarray | torch.Tensor):
        return found
    return found.reshape(len(found), *what.shape[1:])


def point_estimate(draws: Tensor, space: Space, by: FillBy) -> Tensor:
    """The mean or median of numbers and the most frequent code of names, of draws
    (rows, draws, *event)."""
    numbers = draws.mean(1) if by == "mean" else draws.quantile(0.5, 1)
    kinds = [part.kind for part in space.columns] or [space.kind]
    names = torch.tensor([kind in ("label", "binary") for kind in kinds])
    if not bool(names.any()):
        return numbers
    return torch.where(names if space.columns else names[0], draws.mode(1).values, numbers)


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
        ends = (numbers.quantile(level / 2, 1) for level in (1 - interval, 1 + interval))
        low, high = (filled_by(end[:, None])[:, 0] for end in ends)
    return Completed(filled_by(made).flatten(0, 1), unknown, low, high)


def chunk_size(draws: int) -> int:
    """Rows that are completed at a time: a power of two, as is the size of the parts in which
    tables are read, so that noise does not depend on these."""
    return 1 << max(MAX_CHUNK // draws, 1).bit_length() - 1


def in_chunks(each: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    """What a function gives for the rows, computed for some at a time."""
    parts = torch.arange(max(len(batch), 1))[: len(batch)].split(MAX_CHUNK)
    return torch.cat([each(batch[rows]) for rows in parts])
