"""Arrays, tensors, pairs, named arrays, datasets and rows from Python, and .npy and .npz files.

The type of an array decides its kind: floats are real, booleans and integers that are only 0 and 1
are binary, bytes are levels, other integers are counts, strings are categories. Images are
(N, H, W), (N, C, H, W) or (N, H, W, C) with 1, 3 or 4 channels. Arrays that differ only in length
are sequences.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...core.deferred import torch
from ...core.errors import DataError, shown
from ..codecs import scalar
from ..codecs.array import Array
from ..codecs.base import Codec, Locator
from ..codecs.scalar import EXACT, Binary, Categorical, Number, exact_enough, is_large, listed
from ..codecs.sequence import Steps, is_uneven, uneven
from ..frames import is_frame
from .base import RawData, ReadFormat, RowLocations, check_file, join
from .stored import Place, at_once
from .tables import from_frame, is_names

CHANNELS = (1, 3, 4)
TARGETS = ("y", "label", "labels", "target", "targets")
Layout = Literal["", "HW", "HWC"]


def from_arrays(values: Mapping[str, np.ndarray], name: str, file: str = "") -> RawData:
    """Fields of equal length; a field called y, label or target is the target."""
    for field, array in values.items():
        if array.ndim == 0 or (len(array) and not array.size):
            raise DataError(f"{field} of {name} has the shape {array.shape}; give rows of values")
        if getattr(array.dtype, "kind", "") == "O" and array.ndim > 1:
            raise DataError(
                f"{field} of {name} holds values that are not numbers in "
                f"{array.ndim} dimensions; give a frame"
            )
    lengths = {field: len(array) for field, array in values.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{field} has {n}" for field, n in lengths.items())
        raise DataError(f"the arrays of {name} differ in length ({counts}); make them agree")
    target = next((field for field in TARGETS if field in values and len(values) > 1), None)
    main = next(field for field in values if field != target)
    places = RowLocations.count(lengths[main], file)
    labels = frozenset(
        {target} if target and not is_uneven(values[target]) and is_names(values[target]) else ()
    )
    return RawData(name, values, (main,), places, target, labels=labels)


def from_array(array: Any, name: str = "array", file: str = "") -> RawData:
    """One array or tensor; text or mixed values in two dimensions are a table."""
    values = numpy_of(array)
    if values.ndim == 2 and values.dtype.kind == "O":
        return from_frame(values, name)
    shown = values.ndim >= 3 and values.dtype.kind in "iub"
    return from_arrays({"image" if shown else "x": values}, name, file)


def from_pair(x: Any, y: Any, name: str = "pair") -> RawData:
    """(x, y): x is the event, y the target."""
    if is_frame(x):
        return from_frame(x, name, y)
    values = numpy_of(x)
    if values.ndim == 2 and values.dtype.kind == "O":
        return from_frame(values, name, y)
    return from_arrays({"x": values, "y": numpy_of(y)}, name)


def has_shapes(values: Mapping[Any, Any]) -> bool:
    """Whether these are named arrays, some of several dimensions, rather than columns."""
    found = values.values()
    return any(isinstance(each, np.ndarray | torch.Tensor) and each.ndim > 1 for each in found)


def from_rows(rows: Iterable[Any], name: str) -> RawData:
    """Rows: numbers, vectors, mappings, or (x, y) items of a torch Dataset."""
    items = list(rows)
    first = items[0] if items else None
    if isinstance(first, Mapping):
        return from_frame(items, name)
    if isinstance(first, tuple) and len(first) == 2 and numpy_of(first[0]).ndim:
        for row, item in enumerate(items, 1):
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise DataError(
                    f"expected an (x, y) pair in every row, as in the first, found "
                    f"{shown(item)} in row {row}; fix that row"
                )
        x, y = (stacked([item[place] for item in items], name) for place in (0, 1))
        return from_pair(x, y, name)
    if isinstance(first, tuple) and len(first) == 1:
        items = [item[0] for item in items]
    if isinstance(first, list | tuple) and any(isinstance(cell, str) for cell in first):
        items = [np.array(item, object) for item in items]
    return from_array(stacked(items, name), name)


def stacked(items: list[Any], name: str) -> np.ndarray:
    """Rows as one array; arrays that differ only in length as an object array."""
    arrays = [numpy_of(item) for item in items]
    if (
        all(isinstance(item, np.ndarray | torch.Tensor) for item in items)
        and (found := uneven(arrays)) is not None
    ):
        return found
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(
            f"the rows of {name} have the shapes {listed(sorted(shapes))}; give every "
            "row the same shape, or make them arrays that differ only in length"
        )
    return np.stack(arrays) if arrays else np.empty(0)


def numpy_of(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        found = np.asarray(values)
    except ValueError:
        return stacked(list(values), "the data")
    if found.dtype.kind not in "biufOUS":
        raise DataError(f"an array of type {found.dtype} cannot be read; convert it to numbers")
    return found.astype(object) if found.dtype.kind in "US" else found


def read_file(path: Path, form: ReadFormat) -> RawData:
    """A .npy file is one array; a .npz file is named arrays, or x_train, y_test and the like.
    Arrays that do not fit into memory are mapped into it, those of a .npz after unpacking."""
    if form.store is None:
        check_file(path)
    try:
        if form.store is not None:
            arrays = mapped(path, form.store)
        else:
            with path.open("rb") as file:
                loaded = np.load(file, allow_pickle=False)
                arrays = {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except MemoryError as error:
        raise DataError(
            f"{path} has a shape that does not fit into memory ({error}); save it again "
            "with numpy.save or numpy.savez"
        ) from error
    except Exception as error:  # numpy parses headers as Python, which fails in many ways
        raise DataError(
            f"{path} cannot be read as arrays ({error}); save it again with "
            "numpy.save or numpy.savez, without objects"
        ) from error
    if not arrays:
        raise DataError(f"{path} holds no arrays; save at least one")
    if "" in arrays:
        return from_array(arrays[""], path.stem)
    return from_archive({key: numpy_of(found) for key, found in arrays.items()}, path.stem)


def mapped(path: Path, store: Place) -> dict[str, np.ndarray]:
    """The arrays of a file, read when they are used."""
    if not zipfile.is_zipfile(path):
        return {"": np.load(path, "r", allow_pickle=False)}
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            out = store.new(".npy")
            with archive.open(name) as packed, out.open("wb") as file:
                shutil.copyfileobj(packed, file, 2**20)
            found[name.removesuffix(".npy")] = np.load(out, "r", allow_pickle=False)
    return found


def from_archive(arrays: Mapping[str, np.ndarray], name: str) -> RawData:
    splits: dict[str, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        found = re.fullmatch(r"(?:(.+)_)?(train|valid|val|test)(?:_(.+))?", key)
        field, split = (found[1] or found[3] or "x", found[2]) if found else (key, "")
        splits.setdefault("valid" if split == "val" else split, {})[field] = array
    if "" in splits or "train" not in splits:
        return from_arrays(arrays, name)
    return join({split: from_arrays(fields, name) for split, fields in splits.items()}, name)


def fit(values: np.ndarray, at: Locator, label: bool = False) -> Codec:
    """The codec for the type of an array."""
    if is_uneven(values):
        return Steps.fit(values, at)
    if values.dtype.kind == "O" or label:
        return Categorical.fit(values, "str" if values.dtype.kind == "O" else str(values.dtype))
    low, high = extremes(values)
    if values.dtype.kind in "iu" and max(-low, high) > scalar.EXACT_FLOAT64:
        return fit_large_integers(values, at)
    whole = values.dtype.kind != "f" and max(-low, high) <= EXACT
    if values.dtype == np.float64 or (values.dtype.kind in "iu" and not whole):
        exact_enough(lambda: blocks(values), at)
    return fit_single(values, low, high) if values.ndim == 1 else fit_shaped(values, at, low, high)


def blocks(values: Any) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of an array some at a time, with the number of the first."""
    size = at_once(values.shape)
    for start in range(0, len(values), size):
        yield start, np.asarray(values[start : start + size])


def extremes(values: Any) -> tuple[Any, Any]:
    """The smallest and the largest value as numbers of Python; 0 and 1 for booleans and floats,
    whose size does not decide about their kind."""
    if values.dtype.kind in "bf":
        return 0, 1
    ends = [(int(some.min()), int(some.max())) for _, some in blocks(values)]
    return min(low for low, _ in ends), max(high for _, high in ends)


def fit_large_integers(values: np.ndarray, at: Locator) -> Codec:
    """The codec of whole numbers beyond 2^53: exact with an offset, or refused."""
    codec = scalar.fit_large(values, str(values.dtype)) if values.ndim == 1 else None
    if codec is None:
        row = int(np.argmax([is_large(part) for part in values.reshape(len(values), -1)]))
        raise DataError(
            f"{at(row)}: expected whole numbers up to 2^53, or one column within a range of "
            f"2^24, found {values.min()} to {values.max()}; subtract an offset, or convert them "
            "to text for categories"
        )
    return codec


def fit_single(values: np.ndarray, low: int, high: int) -> Codec:
    dtype = str(values.dtype)
    if values.dtype.kind == "b":
        return Binary(values=("False", "True"), dtype=dtype)
    if values.dtype.kind == "f":
        return Number(kind="real", dtype=dtype)
    if low >= 0 and high <= 1:
        return Binary(dtype=dtype)
    return Number(kind="counts" if max(-low, high) <= EXACT else "real", dtype=dtype)


def fit_shaped(values: np.ndarray, at: Locator, low: int, high: int) -> Codec:
    kind, size = kind_of(values, at, low, high)
    layout = layout_of(values)
    row = values.shape[1:]
    shape = {"HW": (1, *row), "HWC": (row[-1], *row[:-1]), "": row}[layout]
    if kind in ("levels", "binary") and values.ndim == 4 and not layout and row[0] not in CHANNELS:
        raise DataError(f"images of shape {row} have neither 1, 3 nor 4 channels; reshape them")
    return Array(kind=kind, shape=shape, size=size, dtype=str(values.dtype), layout=layout)


def kind_of(values: np.ndarray, at: Locator, low: int, high: int) -> tuple[Any, int]:
    """real, binary, levels or counts, and the number of levels."""
    if values.dtype.kind == "f":
        return "real", 0
    if values.dtype.kind == "b" or (low >= 0 and high <= 1):
        return "binary", 0
    if values.dtype == np.uint8:
        return "levels", 256
    if values.ndim == 2:
        return ("counts" if max(-low, high) <= EXACT else "real"), 0
    if low < 0 or high > 255:
        raise DataError(
            f"{at(0)}: integers in {values.ndim - 1} dimensions must be levels from 0 "
            "to 255; make the array float for real values"
        )
    return "levels", 256


def layout_of(values: np.ndarray) -> Layout:
    if values.ndim == 3 and values.dtype.kind != "f":
        return "HW"
    first, last = values.shape[1], values.shape[-1]
    ranks = {channels: rank for rank, channels in enumerate(CHANNELS)}  # 4 is more likely a height
    return "HWC" if values.ndim == 4 and ranks.get(last, 9) < ranks.get(first, 9) else ""
