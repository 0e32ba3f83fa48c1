"""The codec of a field: between the values a user has and the compact tensors of a dataset."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.config import Config
from ...core.space import Space
from ..packed import PackedTensor

Locator = Callable[[int], str]
"""The beginning of a sentence about a row, counted from 0: "column 'age', row 7"."""


class Codec(Config, abc.ABC):
    """How one field is written down."""

    tag = "codec/"
    dtype: str = "float64"
    """What the values were stored as."""

    @abc.abstractmethod
    def encode(self, values: np.ndarray, at: Locator) -> PackedTensor:
        """(N, ...) compact, or a DataError about the first value that does not fit."""

    @abc.abstractmethod
    def decode(self, x: np.ndarray) -> np.ndarray:
        """Values in the form the data had."""

    @abc.abstractmethod
    def measure(self, x: Any, name: str) -> Space:
        """The space of the field, its statistics from these compact rows."""
