"""The split of rows into train, valid and test."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core.errors import DataError, UsageError
from ..core.keyed_bits import derive_seed, keyed_bits
from .options import Options
from .readers.base import SPLITS

PIECE = 2**16
"""Rows whose keys are computed at once."""
FEWEST = 3
"""The fewest rows that can be split."""


def shuffle(n: int, *keys: int | str) -> np.ndarray:
    """A permutation of n rows that depends only on the keys."""
    return uniforms(n, *keys).argsort(kind="stable")


def divide(
    n: int,
    options: Options,
    given: np.ndarray | None = None,
    name: str = "the data",
    whole: bool = False,
) -> dict[str, np.ndarray]:
    """Row numbers of each split, in order. Given splits are used; missing ones are taken from the
    training rows. Too few rows are refused, or all used for training if `whole` is set."""
    whose = np.zeros(n, np.int8) if given is None else given.astype(np.int8)
    free = n - int(np.count_nonzero(whose))
    parts = [
        (code, part)
        for code, part in ((1, options.valid), (2, options.test))
        if not (whose == code).any()
    ]
    if free <= len(parts) and whole:
        parts = []
    elif free <= len(parts):
        raise DataError(
            f"{name} has {n} row{'s' * (n != 1)}, too few to train, validate and test on; give at "
            f"least {FEWEST}"
        )
    if parts:
        ends = [0]
        for code, part in parts:
            left = free - ends[-1] - (1 if code == 2 else len(parts))
            ends.append(ends[-1] + min(max(1, round(part * free)), left))
        whose[whose == 0] = ranked(
            uniforms(free, options.seed, "split"), ends, [c for c, _ in parts]
        )
    return {split: np.flatnonzero(whose == code) for code, split in enumerate(SPLITS)}


def uniforms(n: int, *keys: int | str) -> np.ndarray:
    """The keys by which `shuffle` orders n rows."""
    seed, found = derive_seed(*keys), np.empty(n)
    for start in range(0, n, PIECE):
        rows = np.arange(start, min(start + PIECE, n), dtype=np.int64)
        bits = keyed_bits(rows, np.zeros(1, np.int64), seed)[:, 0]
        found[start : start + len(rows)] = (bits + 0.5) * 2.0**-53
    return found


def ranked(keys: np.ndarray, ends: Sequence[int], codes: Sequence[int]) -> np.ndarray:
    """The code of each row by the rank of its key (n,): codes[i] from rank ends[i] up to
    ends[i + 1], 0 beyond. Sorting takes many times the memory."""
    found, limits = np.zeros(len(keys), np.int8), np.partition(keys, ends)[ends]
    for code, low, high in zip(codes, limits[:-1], limits[1:], strict=True):
        found[(keys >= low) & (keys < high)] = code
    sizes = [int((found == code).sum()) for code in codes]
    if sizes != np.diff(ends).tolist():  # equal keys: the first row comes first
        order = np.argsort(keys, kind="stable")
        for code, start, end in zip(codes, ends[:-1], ends[1:], strict=True):
            found[order[start:end]] = code
    return found


def by_group(groups: np.ndarray, options: Options, name: str) -> np.ndarray:
    """The split of each row (N,), all rows of one group in one split; groups (N,) are codes."""
    sizes = np.bincount(groups)
    order = shuffle(len(sizes), options.seed, "groups")
    if len(sizes) < FEWEST:
        raise DataError(
            f"{name} has {len(sizes)} values of data.group={options.group}, too few to train, "
            f"validate and test on different ones; give at least {FEWEST}"
        )
    split, start = np.zeros(len(sizes), np.int64), 0
    for code, part, left in ((1, options.valid, 2), (2, options.test, 1)):
        wanted = np.searchsorted(sizes[order[start:]].cumsum(), part * len(groups)) + 1
        end = min(start + int(wanted), len(order) - left)
        split[order[start:end]], start = code, end
    return split[groups]


def by_time(times: np.ndarray, options: Options, name: str) -> np.ndarray:
    """The split of each row (N,): the latest times are tested on, those before validated on."""
    different = np.unique(times)
    if len(different) < FEWEST:
        raise DataError(
            f"{name} has {len(different)} times in data.time={options.time}, too few to train, "
            f"validate and test on different ones; give at least {FEWEST}"
        )
    ordered = np.sort(times)
    first_test = ordered[round((1 - options.test) * (len(times) - 1))]
    first_test = max(first_test, different[2])
    earlier = ordered[ordered < first_test]
    first_valid = ordered[round((1 - options.test - options.valid) * (len(times) - 1))]
    first_valid = min(max(first_valid, different[1]), earlier[-1])
    return (times >= first_valid).astype(np.int64) + (times >= first_test)


def labelled(codes: np.ndarray, options: Options) -> np.ndarray:
    """The rows that `data.labels` keeps, in order, spread evenly over the classes."""
    seen = len(np.unique(codes[codes >= 0]))
    if options.labels < seen:
        raise UsageError(
            f"data.labels={options.labels} leaves some of the {seen} classes without "
            "a row; keep at least one of each"
        )
    order = shuffle(len(codes), options.seed, "labels")
    order = order[codes[order] >= 0]
    rank = np.empty_like(order)
    for code in np.unique(codes[order]):
        mine = codes[order] == code
        rank[mine] = np.arange(mine.sum())
    return np.sort(order[rank.argsort(kind="stable")][: options.labels])


def balanced(codes: np.ndarray) -> np.ndarray:
    """Rows repeated until all classes are equally frequent; rows without a label are left out."""
    classes = [np.flatnonzero(codes == code) for code in np.unique(codes[codes >= 0])]
    most = max(map(len, classes), default=0)
    repeated = [rows[np.arange(most) % len(rows)] for rows in classes]
    return np.sort(np.concatenate(repeated)) if classes else np.empty(0, np.int64)


def repeated(rows: np.ndarray, others: int, share: float | None) -> np.ndarray:
    """Rows (n,) repeated until they are at least this share of themselves and `others`."""
    wanted = math.ceil(share / (1 - share) * others) if share else 0
    return rows[np.arange(max(wanted, len(rows))) % len(rows)]


def keep(n: int, options: Options, given: np.ndarray | None = None) -> np.ndarray:
    """The rows that `data.rows` keeps; with given splits it reduces only the training rows."""
    free = np.arange(n) if given is None else np.flatnonzero(given == 0)
    if not options.rows or options.rows >= len(free):
        return np.arange(n)
    mask = np.ones(n, bool)
    mask[free[shuffle(len(free), options.seed, "rows")][options.rows :]] = False
    return np.flatnonzero(mask)
