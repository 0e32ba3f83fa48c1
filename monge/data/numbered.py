"""A table beside files of numbers: which columns are inputs, which the target, and several splits.

The form in which regression benchmarks are passed on: data.txt, index_features.txt,
index_target.txt, and index_train_k.txt with index_test_k.txt for each split k.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ..core.error import DataError, WordError
from . import content, table
from .options import Options
from .raw import SPLITS, Raw


def read(folder: Path, name: str, options: Options) -> Raw:
    """The table with the split that `data.split` chooses; validation rows are carved from its
    training rows."""
    raw = table.read_file(folder / "data.txt", options)
    columns = list(raw.values)
    inputs = [columns[i] for i in numbers(folder / "index_features.txt", len(columns))]
    target = [columns[i] for i in numbers(folder / "index_target.txt", len(columns))]
    if len(target) != 1:
        raise DataError(f"{folder / 'index_target.txt'} names {len(target)} columns; name one")
    values = {key: raw.values[key] for key in columns if key in inputs or key in target}
    train, test = (find(folder, part, options.split) for part in ("train", "test"))
    split = np.full(len(raw), -1)
    split[numbers(train, len(raw))] = SPLITS.index("train")
    split[numbers(test, len(raw))] = SPLITS.index("test")
    kept = np.flatnonzero(split >= 0)
    values = {key: column.iloc[kept].reset_index(drop=True) for key, column in values.items()}
    return replace(raw, name=name, values=values, main=tuple(values), target=target[0],
                   split=split[kept], places=raw.places.take(kept), numbered=True)


def find(folder: Path, part: str, number: int) -> Path:
    path = folder / f"index_{part}_{number}.txt"
    if not path.exists():
        known = len(list(folder.glob(f"index_{part}_*.txt")))
        raise WordError(f"data.split={number}: {folder} has no {path.name}; choose from 0 to "
                        f"{known - 1}")
    return path


def numbers(path: Path, limit: int) -> np.ndarray:
    """Places from 0, one a line, below `limit`."""
    content.check(path)
    try:
        found = np.loadtxt(path, ndmin=1)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} does not hold a number a line ({error}); mend it") from error
    if not len(found) or not np.isin(found, np.arange(limit)).all():
        raise DataError(f"{path} must hold whole numbers from 0 to {limit - 1}; mend it")
    return found.astype(np.int64)
