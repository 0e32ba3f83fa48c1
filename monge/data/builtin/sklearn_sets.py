"""Datasets that come with scikit-learn, so nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..codecs.array import Array
from ..codecs.scalar import Categorical
from ..readers.base import RawData, RowLocations


def digits() -> RawData:
    """1797 handwritten digits, 8x8 images of 17 levels"""
    from sklearn.datasets import load_digits

    found = load_digits()
    codecs = {
        "image": Array(kind="levels", shape=(1, 8, 8), size=17, dtype="uint8", layout="HW"),
        "label": Categorical(names=tuple(map(str, range(10))), dtype="int64"),
    }
    return RawData(
        "digits",
        {"image": found.images, "label": found.target},
        ("image",),
        RowLocations.count(len(found.target)),
        "label",
        codecs=codecs,
    )


def iris() -> RawData:
    """150 flowers of three species, four lengths"""
    from sklearn.datasets import load_iris

    return _labelled("iris", load_iris())


def wine() -> RawData:
    """178 wines of three growers, thirteen measurements"""
    from sklearn.datasets import load_wine

    return _labelled("wine", load_wine())


def breast_cancer() -> RawData:
    """569 tumours, benign or malignant, thirty measurements"""
    from sklearn.datasets import load_breast_cancer

    return _labelled("breast_cancer", load_breast_cancer())


def diabetes() -> RawData:
    """442 patients, ten measurements and the progression a year later"""
    from sklearn.datasets import load_diabetes

    found = load_diabetes()
    return RawData(
        "diabetes",
        {"x": found.data, "y": found.target},
        ("x",),
        RowLocations.count(len(found.target)),
        "y",
        codecs={"x": _vector(found.feature_names)},
    )


def _labelled(name: str, found: Any) -> RawData:
    species = np.array(found.target_names.tolist(), object)[found.target]
    return RawData(
        name,
        {"x": found.data, "label": species},
        ("x",),
        RowLocations.count(len(species)),
        "label",
        codecs={"x": _vector(found.feature_names)},
    )


def _vector(names: Iterable[str]) -> Array:
    entries = tuple(map(str, names))
    return Array(kind="real", shape=(len(entries),), dtype="float64", entries=entries)
