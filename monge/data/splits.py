"""The split of rows into train, valid and test."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError, UsageError
from ..core.rng import derive_seed, keyed_uniform
from .options import Options
from .readers.base import SPLITS

FEWEST = 3
"""The fewest rows that can be split."""


def shuffle(n: int, *keys: int | str) -> Tensor:
    """A permutation of n rows that depends only on the keys."""
    return keyed_uniform(torch.arange(n), (1,), derive_seed(*keys))[:, 0].argsort(stable=True)


def divide(
    n: int,
    options: Options,
    given: np.ndarray | None = None,
    name: str = "the data",
    whole: bool = False,
) -> dict[str, Tensor]:
    """Row numbers of each split, in order. Given splits are used; missing ones are taken from the
    training rows. Too few rows are refused, or all used for training if `whole` is set."""
    whose = torch.zeros(n, dtype=torch.long) if given is None else torch.from_numpy(given).long()
    free = (whose == 0).nonzero()[:, 0]
    parts = [
        (code, part)
        for code, part in ((1, options.valid), (2, options.test))
        if not (whose == code).any()
    ]
    if len(free) <= len(parts) and whole:
        parts = []
    elif len(free) <= len(parts):
        raise DataError(
            f"{name} has {n} rows, too few to train, validate and test on; give at least {FEWEST}"
        )
    order = free[shuffle(len(free), options.seed, "split")]
    for code, part in parts:
        size = min(max(1, round(part * len(free))), len(order) - (1 if code == 2 else len(parts)))
        whose[order[:size]], order = code, order[size:]
    return {split: (whose == code).nonzero()[:, 0] for code, split in enumerate(SPLITS)}


def by_group(groups: np.ndarray, options: Options, name: str) -> np.ndarray:
    """The split of each row (N,), all rows of one group in one split; groups (N,) are codes."""
    sizes = np.bincount(groups)
    order = shuffle(len(sizes), options.seed, "groups").numpy()
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


def labelled(codes: Tensor, options: Options) -> Tensor:
    """The rows that `data.labels` keeps, in order, spread evenly over the classes."""
    seen = len(codes[codes >= 0].unique())
    if options.labels < seen:
        raise UsageError(
            f"data.labels={options.labels} leaves some of the {seen} classes without "
            "a row; keep at least one of each"
        )
    order = shuffle(len(codes), options.seed, "labels")
    order = order[codes[order] >= 0]
    rank = torch.empty_like(order)
    for code in codes[order].unique():
        mine = codes[order] == code
        rank[mine] = torch.arange(int(mine.sum()))
    return order[rank.argsort(stable=True)][: options.labels].sort().values


def balanced(codes: Tensor) -> Tensor:
    """Rows repeated until all classes are equally frequent; rows without a label are left out."""
    classes = [(codes == code).nonzero()[:, 0] for code in codes[codes >= 0].unique()]
    most = max(map(len, classes), default=0)
    return (
        torch.cat([rows[torch.arange(most) % len(rows)] for rows in classes]).sort().values
        if classes
        else torch.empty(0, dtype=torch.long)
    )


def keep(n: int, options: Options, given: np.ndarray | None = None) -> Tensor:
    """The rows that `data.rows` keeps; with given splits it reduces only the training rows."""
    free = torch.arange(n) if given is None else torch.from_numpy(given == 0).nonzero()[:, 0]
    if not options.rows or options.rows >= len(free):
        return torch.arange(n)
    mask = torch.ones(n, dtype=torch.bool)
    mask[free[shuffle(len(free), options.seed, "rows")][options.rows :]] = False
    return mask.nonzero()[:, 0]
