"""The codec of a field: converts between a user's values and the stored rows of a dataset."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.config import Config
from ...core.space import Space
from ..packed import FieldRows

Locator = Callable[[int], str]
"""Names a row, counted from 0, at the start of a message: "column 'age', row 7"."""


class Codec(Config, abc.ABC):
    """Encodes and decodes the values of one field."""

    tag = "codec/"
    dtype: str = "float64"
    """Type of the values in the data."""

    @abc.abstractmethod
    def encode(self, values: np.ndarray, at: Locator) -> FieldRows:
        """The stored rows, (N,) or (N, ...); DataError for the first value that does not fit."""

    @abc.abstractmethod
    def decode(self, x: np.ndarray) -> np.ndarray:
        """Values in the form of the data."""

    @abc.abstractmethod
    def measure(self, x: Any, name: str) -> Space:
        """The space of the field, with the statistics of these stored rows."""
