"""Rows in the form in which people look at them: pictures, tables, texts, sounds, points."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from torch import Tensor

from ..core.space import Space
from ..data.dataset import View
from ..plot.image_grid import as_bytes, grid
from . import charts

MAX_CELLS = 24
"""Columns of a row of numbers that a table shows."""
SIDE = 72
"""Pixels to which a small picture is enlarged."""


@dataclass(frozen=True)
class Shown:
    """Rows to be shown; `form` names the part of the template."""

    form: str  # pictures, table, texts, sounds, points, lines
    count: int
    head: list[str] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    charts: list[Markup] = field(default_factory=list)
    note: str = ""


def plain(value: Any) -> Any:
    """A value of numpy or pandas as Python's own; None for NaN and empty cells."""
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, np.float32):
        value = float(str(value))  # its own digits, not those of the nearest double
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | bool | int) else str(value)


def form_of(view: View) -> str:
    """In which form the rows of an event are shown."""
    space = view.space
    if space.is_image:
        return "pictures"
    if view.text is not None:
        return "texts"
    if view.sound is not None:
        return "sounds"
    if not view.selection.schema.table and space.kind == "real" and space.shape == (2,):
        return "points"
    if len(space.shape) >= 1 and (len(space.shape) == 2 or space.dims > MAX_CELLS * 2):
        return "lines"
    return "table"


def show(view: View, x: Tensor, length: Tensor | None = None, lead: Any = None) -> Shown:
    """Events x (N, *event) for a template; `lead` are columns before those of a table."""
    form = form_of(view)
    if form == "pictures":
        return Shown(form, len(x))
    decoded = view.decode(x)
    if form == "texts":
        return Shown(form, len(x), rows=[[str(text)] for text in decoded])
    if form == "points":
        return Shown(form, len(x), charts=[charts.points(x.numpy(), None, "Rows")])
    if form in ("sounds", "lines"):
        ends = [None] * len(x) if length is None else length.tolist()
        every = [np.asarray(row)[:end] for row, end in zip(decoded, ends, strict=True)]
        return Shown(form, len(x), charts=[line(row, k + 1) for k, row in enumerate(every)])
    return table(view, decoded, lead)


def line(row: np.ndarray, number: int) -> Markup:
    title = f"row {number}: {len(row)} steps"
    return charts.wave(row, title)


def table(view: View, decoded: Any, lead: Any = None) -> Shown:
    if isinstance(decoded, np.ndarray):
        flat = decoded.reshape(len(decoded), -1)
        names = list(view.columns)
        if len(names) != flat.shape[1]:
            names = [f"x{place}" for place in range(1, flat.shape[1] + 1)]
        cut = flat.shape[1] > MAX_CELLS
        rows = [[plain(value) for value in row[:MAX_CELLS]] for row in flat]
        note = f"the first {MAX_CELLS} of {flat.shape[1]} numbers" if cut else ""
        names = names[:MAX_CELLS]
    else:
        names, note = [str(name) for name in decoded.columns], ""
        columns = [[plain(v) for v in decoded.iloc[:, k]] for k in range(len(names))]
        rows = [list(cells) for cells in zip(*columns, strict=True)]
    if lead is not None:
        names = [*lead, *names]
        rows = [[*(lead[name][k] for name in lead), *row] for k, row in enumerate(rows)]
    return Shown("table", len(rows), names, rows, note=note)


def png(image: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def pictures(
    x: Tensor, space: Space, columns: int | None = None, zoom: int | None = None
) -> bytes:
    """Images as one PNG, small ones enlarged."""
    side = max(space.shape[1:])
    return png(grid(as_bytes(x.numpy(), space), columns, zoom or max(1, SIDE // side)))
