"""Dates among the columns of a table: whole days, months, minutes or seconds since the earliest.

A column is dates where every cell that is there is written in one form, which is found from the
first; samples are written in that form again.
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
"""What may be a date; pandas finds the order of its parts."""
LIMITS = np.array(["1000-01-01", "9999-12-01"], "datetime64[s]")
"""Draws beyond these years are written as these."""


class Date(Codec):
    """A moment, as ticks of a clock since the earliest."""

    tag = "codec/date"
    clock: TimeIndex
    """What a tick is, and how times are written."""
    kind: Literal["counts", "real"] = "counts"
    """Whether ticks are whole; seconds over years are too many for float32 and become days."""

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
                f"{at(int(wrong[0]))}: {values[wrong[0]]!r} is no date of the form "
                f"{self.clock.form}; fix the cell or leave it empty"
            )
        ticks = np.full(len(values), np.nan)
        ticks[seen] = self.clock.ticks(times[seen])
        if self.kind == "counts":
            refuse(
                ticks != np.rint(ticks),
                ticks,
                at,
                f"steps of {self.clock.step} since {self.clock.origin} is no whole number of them",
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
    """The codec of the distinct cells of a column, where they are dates."""
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
    """How a date may be written, the month before the day first."""
    from pandas.tseries.api import guess_datetime_format

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a day stands first, which is the question
        found = [guess_datetime_format(cell, dayfirst=first) for first in (False, True)]
    return [form for form in found if form and "%Y" in form]


def parsed(cells: np.ndarray, form: str) -> Any:
    """Times (N,), none where a cell is not written so."""
    import pandas as pd

    return (
        pd.DatetimeIndex(pd.to_datetime(cells, format=form, errors="coerce"))
        .to_numpy()
        .astype("datetime64[s]")
    )
