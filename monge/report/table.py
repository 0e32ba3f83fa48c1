"""The part of a report about a table: new rows beside real ones, and how their columns differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.abilities import CanSample
from ..data.codecs.base import Codec
from ..data.codecs.date import Date
from ..evaluate.likelihood import row_subset
from ..evaluate.tabular import Coding, columns_of, marginals, pairs
from ..run.run import Run
from .html import chart, gallery, paragraph, part, table

if TYPE_CHECKING:
    import pandas as pd


SHOWN_ROWS = 10
"""Rows that are shown of the data and of the samples."""
MAX_ROWS = 2000
"""Most rows that are compared."""
MAX_COLUMNS = 40
"""Columns that are drawn."""
MAX_PAIRS = 8
"""Pairs of columns that are listed."""
MAX_NAMES = 7
"""Names of a column that have a bar of their own."""
MAX_DIFFERENCE = 0.01
"""Smallest total variation that is listed."""
BINS = 6, 24
"""Fewest and most bars of a histogram; more rows have more."""
TAIL = 0.005
"""Share of real values beyond each end of a histogram, which the last bars hold."""


@dataclass(frozen=True)
class Rows:
    """Test rows of a table, as many new ones, and training rows."""

    run: Run
    real: Tensor  # (n, *event)
    new: Tensor
    train: Tensor

    @classmethod
    def of(cls, run: Run) -> Rows | None:
        """None if the event is no table, or cannot be sampled."""
        if not run.view.selection.schema.table or not isinstance(run.model, CanSample):
            return None
        if columns_of(run.space) is None:
            return None
        real = row_subset(run.split(None, "test"), MAX_ROWS)
        train = row_subset(run.split(None, "train"), MAX_ROWS)
        given = real.to(run.compute.torch_device()).given if run.space.given else None
        new = run.sample_tensor(len(real), given)
        seen = [torch.where(b.observed_mask, b.x.double(), torch.nan) for b in (real, train)]
        return cls(run, seen[0], new.double(), seen[1])

    def frame(self, x: Tensor) -> pd.DataFrame:
        """Rows as they are written, without keys."""
        table: Any = self.run.view.decode(x.float(), {})
        return table


def table_sections(run: Run) -> dict[str, list[str]]:
    """The sections about a table; none if the run is of something else."""
    rows = Rows.of(run)
    if rows is None:
        return {}
    real, new = rows.frame(rows.real), rows.frame(rows.new)
    codecs = {field.key: field.codec for field in run.view.selection.schema.fields}
    beside = "given the inputs of the test rows, " if run.space.given else ""
    return {
        "Rows": [
            sample_table("rows of the data (test split)", real),
            sample_table(f"new rows, {beside}sampled from the model", new),
        ],
        "Columns": [
            paragraph(
                f"Filled: {len(real)} test rows. Line or hollow bar: as many new rows. TV is the "
                "total variation between the two: 0 if they agree, 1 if they share nothing."
            ),
            gallery(column_charts(codecs, real, new)),
            part("Pairs that differ most", pair_table(rows)),
            part("Empty cells", empty_table(real, new)),
        ],
    }


def sample_table(title: str, frame: pd.DataFrame) -> str:
    few = frame.head(SHOWN_ROWS)
    body = [
        [number, *(written(value) for value in row)]
        for number, row in enumerate(few.itertuples(index=False, name=None), 1)
    ]
    return table(f"{len(few)} {title}", ["", *map(str, few.columns)], body)


def written(value: Any) -> Any:
    """A cell as text; an empty one stays empty."""
    import pandas as pd

    if pd.isna(value):
        return ""
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def column_charts(codecs: Mapping[Any, Codec], real: pd.DataFrame, new: pd.DataFrame) -> list[str]:
    """A histogram or bars of each column; columns without a value are left out."""
    found = []
    for name in list(real)[:MAX_COLUMNS]:
        a, b = real[name], new[name]
        if isinstance(codecs.get(name), Date):
            a, b = as_moments(a), as_moments(b)
        a, b = a.dropna(), b.dropna()
        if len(a) and len(b):
            found.append(column_chart(str(name), a, b))
    return found


def as_moments(column: Any) -> Any:
    import pandas as pd

    return pd.to_datetime(column, errors="coerce", utc=True).dt.tz_localize(None)


def column_chart(name: str, a: Any, b: Any) -> str:
    import pandas as pd

    numbers = pd.api.types.is_numeric_dtype(a.dtype) and not pd.api.types.is_bool_dtype(a.dtype)
    if a.dtype.kind != "M" and (not numbers or a.nunique() <= MAX_NAMES):
        return bars(name, a, b)
    x, y = (
        side.astype("datetime64[s]").to_numpy().astype(np.int64).astype(float)
        if a.dtype.kind == "M"
        else side.to_numpy(float)
        for side in (a, b)
    )
    low, high = np.quantile(x, [TAIL, 1 - TAIL])
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, int(np.clip(2 * len(x) ** (1 / 3), *BINS)) + 1)
    shares = [np.histogram(np.clip(side, low, high), edges)[0] / len(side) for side in (x, y)]
    ends = [
        str(np.datetime64(int(end), "s").astype("datetime64[D]"))
        if a.dtype.kind == "M"
        else f"{end:.4g}"
        for end in (low, high)
    ]
    return chart(caption(name, *shares), shares[0].tolist(), shares[1].tolist(), ends)


def bars(name: str, a: Any, b: Any) -> str:
    """Shares of the most frequent names; the rest together."""
    first, second = (side.astype(str).value_counts(normalize=True) for side in (a, b))
    total = first.add(second, fill_value=0.0)
    names = list(total.sort_values(ascending=False, kind="stable").index)
    names = names if len(names) <= MAX_NAMES + 1 else names[:MAX_NAMES]
    if a.dtype.kind in "biuf":
        names.sort(key=lambda name: name == "True" if a.dtype.kind == "b" else float(name))
    x, y = ([float(side.get(each, 0.0)) for each in names] for side in (first, second))
    if len(names) < len(total):
        names, x, y = [*names, "others"], [*x, max(1 - sum(x), 0)], [*y, max(1 - sum(y), 0)]
    return chart(caption(name, x, y), x, y, names, named=True)


def caption(name: str, a: Any, b: Any) -> str:
    return f"{name} (TV {np.abs(np.subtract(a, b)).sum() / 2:.2f})"


def pair_table(rows: Rows) -> str:
    """The pairs of columns whose joint distributions differ most, beside the difference between
    training and test rows."""
    space = columns_of(replace(rows.run.space, given={}), rows.run.view.columns)
    if space is None or len(space.columns) < 2:
        return ""
    real, new, train = (x.reshape(len(x), -1) for x in (rows.real, rows.new, rows.train))
    coding = Coding.of(train, space)
    a, b, c = (coding(side) for side in (real, new, train))
    far, usual = pairs(a, b, coding), pairs(a, c, coding)
    own = marginals(a, b, coding)
    names = list(combinations(range(len(space.columns)), 2))
    worst = [int(i) for i in (far - usual).argsort(descending=True)[:MAX_PAIRS]]
    body = [
        [
            " and ".join(space.columns[i].name for i in names[place]),
            round(float(far[place]), 3),
            round(float(usual[place]), 3),
            *(round(float(own[i]), 3) for i in names[place]),
        ]
        for place in worst
        if far[place] - usual[place] > MAX_DIFFERENCE
    ]
    if not body:
        return paragraph("No pair of columns differs more than training rows from test rows.")
    return table(
        "total variation between test rows and other rows",
        ["columns", "new rows", "training rows", "first alone", "second alone"],
        body,
    )


def empty_table(real: Any, new: Any) -> str:
    """The share of empty cells of each column that has some."""
    shares = [
        (str(name), 100 * float(real[name].isna().mean()), 100 * float(new[name].isna().mean()))
        for name in real
    ]
    body = [[name, f"{a:.1f}", f"{b:.1f}"] for name, a, b in shares if max(a, b) > 0]
    if not body:
        return ""
    return table("share of empty cells, %", ["column", "test rows", "new rows"], body)
