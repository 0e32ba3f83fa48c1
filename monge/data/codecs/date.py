"""Dates among the columns of a table: whole days, months, minutes or seconds since the earliest.

A column holds dates if all its non-empty cells have one format, which the first cell determines;
samples are written in the same format.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...core.errors import DataError
from ...core.space import Space
from ..packed import statistics
from .base import Codec, Locator
from .scalar import EXACT, blank, refuse
from .time_index import DAY, TimeIndex

LOOKS = re.compile(r"\d{4}-\d{2}|\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T]\d{1,2}:\d{2}(:\d{2})?)?")
"""Pattern of cells that may be dates; pandas finds the order of day, month and year."""
LIMITS = np.array(["1000-01-01", "9999-12-01"], "datetime64[s]")
"""Samples outside these years are clipped to them."""


class Date(Codec):
    """A date or time, as ticks since the earliest one."""

    tag = "codec/date"
    clock: TimeIndex
    """The length of a tick and the format of times."""
    kind: Literal["counts", "real"] = "counts"
    """Whether ticks are whole; seconds over years exceed float32 and become days."""

    def encode(self, values: np.ndarray, at: Locator) -> Tensor:
        seen = np.array([not blank(value) for value in values], bool)
        times = parsed(
            np.array(
                [value if there else None for value, there in zip(values, seen, strict=True)],
                object,
            ),
            self.clock.form,
        )
        wrong = np.flatnonzero(seen & np.isnat(times))
        if len(wrong):
            raise DataError(
                f"{at(int(wrong[0]))}: {values[wrong[0]]!r} is not a date of the format "
                f"{self.clock.form}; fix the cell or leave it empty"
            )
        ticks = np.full(len(values), np.nan)
        ticks[seen] = self.clock.ticks(times[seen])
        if self.kind == "counts":
            refuse(
                ticks != np.rint(ticks),
                ticks,
                at,
                f"steps of {self.clock.step} since {self.clock.origin} is not a whole number",
            )
        return torch.from_numpy(ticks.astype(np.float32))

    def decode(self, x: np.ndarray) -> np.ndarray:
        ticks = np.clip(x.astype(np.float64), *self.clock.ticks(LIMITS))
        ticks = np.rint(ticks) if self.kind == "counts" else ticks
        seen = ~np.isnan(ticks)
        written = np.full(len(ticks), None, object)
        written[seen] = self.clock.written(ticks[seen])
        return written

    def measure(self, x: Tensor, name: str) -> Space:
        return Space(kind=self.kind, name=name, **statistics(x, 1))


def fit(values: np.ndarray, dtype: str) -> Date | None:
    """The codec for the distinct cells of a column; None if they are not dates."""
    if not all(isinstance(value, str) and LOOKS.fullmatch(value) for value in values):
        return None
    form = next(
        (form for form in forms(values[0]) if not np.isnat(parsed(values, form)).any()), None
    )
    if form is None:
        return None
    times = parsed(values, form)
    origin = str(times.min()).replace("T", " ")
    if "%d" not in form:
        return Date(clock=TimeIndex(origin=origin, unit="month", form=form), dtype=dtype)
    since = (times - times.min()).astype(np.int64)
    every = next(every for every in (DAY, 60, 1) if not (since % every).any())
    whole = since.max() / every <= EXACT
    clock = TimeIndex(
        origin=origin, unit="second", form=form, every=float(every if whole else DAY)
    )
    return Date(clock=clock, kind="counts" if whole else "real", dtype=dtype)


def forms(cell: str) -> list[str]:
    """Possible formats of a date; month before day comes first."""
    from pandas.tseries.api import guess_datetime_format

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether the day comes first is what is being tested
        found = [guess_datetime_format(cell, dayfirst=first) for first in (False, True)]
    return [form for form in found if form and "%Y" in form]


def parsed(cells: np.ndarray, form: str) -> Any:
    """Times (N,), missing for cells of another format."""
    import pandas as pd

    return (
        pd.DatetimeIndex(pd.to_datetime(cells, format=form, errors="coerce"))
        .to_numpy()
        .astype("datetime64[s]")
    )
