"""The orders that the members of a law take its entries in."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, Literal

import torch
from torch import Tensor

from ...core.config import Config, Range
from ...core.errors import UsageError
from ...core.rng import keyed_uniform
from ...core.space import Space

Order = Literal["natural", "snake", "random", "given"]


class Orders(Config):
    """In which orders the members of a law take its entries."""

    orders: Annotated[int, Range(1)] = 1
    """How many orders of the entries there are; the law is the mean over them."""
    order: Order = "natural"
    """The first order: as the entries stand, the rows of a picture to and fro (snake), shuffled
    (random), or as `sequence` has it (given); further orders are shuffled."""
    sequence: tuple[int, ...] = ()
    """With order=given: the entries, counted from 0, in the order they are drawn."""

    def places(self, space: Space) -> Tensor:
        """The place of each entry in each order, (K, D)."""
        shuffled = keyed_uniform(torch.arange(self.orders), (space.dims,)).argsort(1)
        if self.sequence and self.order != "given":
            raise UsageError(
                f"sequence is read with order=given, not with order={self.order}; "
                "change the order or leave the sequence out"
            )
        match self.order:
            case "natural":
                shuffled[0] = torch.arange(space.dims)
            case "snake":
                shuffled[0] = snake(space.shape).argsort()
            case "given":
                check_sequence(self.sequence, space.dims)
                shuffled[0] = torch.tensor(self.sequence, dtype=torch.long).argsort()
        return shuffled


def snake(shape: tuple[int, ...]) -> Tensor:
    """The entries (D,) with every other row of a picture taken from right to left."""
    entries = torch.arange(math.prod(shape)).reshape(shape)
    if len(shape) > 1:
        entries[..., 1::2, :] = entries[..., 1::2, :].flip(-1)
    return entries.flatten()


def check_sequence(sequence: tuple[int, ...], dims: int) -> None:
    counts, due = Counter(sequence), range(dims)
    faults = {
        "missing": [entry for entry in due if not counts[entry]],
        "doubled": [entry for entry in due if counts[entry] > 1],
        "no entry": sorted(entry for entry in counts if entry not in due),
    }
    told = [
        f"{', '.join(map(str, found[:5]))}{', ...' if len(found) > 5 else ''} "
        f"{'is' if len(found) == 1 else 'are'} {fault}"
        for fault, found in faults.items()
        if found
    ]
    if told:
        raise UsageError(
            f"sequence must name each of the entries 0 to {dims - 1} once, but "
            f"{' and '.join(told)}; write them all in the order they are drawn"
        )
