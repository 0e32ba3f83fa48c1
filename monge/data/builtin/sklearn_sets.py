"""Datasets that come with scikit-learn, so nothing is downloaded.

The two that are used most are read from its files: importing scikit-learn takes half as long as
importing torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..codecs.array import Array
from ..codecs.scalar import Categorical
from ..readers.base import RawData, RowLocations


def digits() -> RawData:
    """1797 handwritten digits, 8x8 images of 17 levels"""
    cells = np.loadtxt(_stored("digits.csv.gz"), delimiter=",")  # (1797, 65)
    codecs = {
        "image": Array(kind="levels", shape=(1, 8, 8), size=17, dtype="uint8", layout="HW"),
        "label": Categorical(names=tuple(map(str, range(10))), dtype="int64"),
    }
    return RawData(
        "digits",
        {"image": cells[:, :-1].reshape(-1, 8, 8), "label": cells[:, -1].astype(np.int64)},
        ("image",),
        RowLocations.count(len(cells)),
        "label",
        codecs=codecs,
    )


def iris() -> RawData:
    """150 flowers of three species, four lengths"""
    path = _stored("iris.csv")
    cells = np.loadtxt(path, delimiter=",", skiprows=1)  # (150, 5)
    with path.open(encoding="utf-8") as lines:
        names = np.array(next(lines).strip().split(",")[2:])
    parts = [f"{part} {side} (cm)" for part in ("sepal", "petal") for side in ("length", "width")]
    return _labelled(
        "iris",
        SimpleNamespace(
            data=cells[:, :-1],
            target=cells[:, -1].astype(np.int64),
            target_names=names,
            feature_names=parts,
        ),
    )


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


def _stored(name: str) -> Path:
    """A file of scikit-learn, which is not imported."""
    found = find_spec("sklearn")
    assert found is not None, "scikit-learn is required"
    assert found.origin is not None, "scikit-learn is a package"
    return Path(found.origin).parent / "datasets" / "data" / name


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
