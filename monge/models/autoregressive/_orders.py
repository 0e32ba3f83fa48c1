"""The orders of the entries in autoregressive models."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, Literal

import torch
from torch import Tensor

from ...core.config import MAX_LAYERS, Config, Range
from ...core.errors import UsageError
from ...core.rng import keyed_uniform
from ...core.space import Space

Order = Literal["natural", "snake", "random", "given"]


class Orders(Config):
    """The orders in which the members of a mixture factorise the entries."""

    orders: Annotated[int, Range(1, MAX_LAYERS)] = 1
    """Number of orders; the model is the uniform mixture over them."""
    order: Order = "natural"
    """First order: natural, snake (image rows in alternating direction), random, or given (by
    `sequence`); further orders are random."""
    sequence: tuple[int, ...] = ()
    """For order=given: the entries, counted from 0, in the order they are sampled."""

    def places(self, space: Space) -> Tensor:
        """The position of each entry in each order, (K, D)."""
        shuffled = keyed_uniform(torch.arange(self.orders), (space.dims,)).argsort(1)
        if self.sequence and self.order != "given":
            raise UsageError(
                f"sequence needs order=given, found order={self.order}; "
                "change the order or remove the sequence"
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
    """The entries (D,) with every other row of an image from right to left."""
    entries = torch.arange(math.prod(shape)).reshape(shape)
    if len(shape) > 1:
        entries[..., 1::2, :] = entries[..., 1::2, :].flip(-1)
    return entries.flatten()


def check_sequence(sequence: tuple[int, ...], dims: int) -> None:
    counts, due = Counter(sequence), range(dims)
    faults = {
        "missing": [entry for entry in due if not counts[entry]],
        "repeated": [entry for entry in due if counts[entry] > 1],
        "out of range": sorted(entry for entry in counts if entry not in due),
    }
    problems = [
        f"{', '.join(map(str, found[:5]))}{', ...' if len(found) > 5 else ''} "
        f"{'is' if len(found) == 1 else 'are'} {fault}"
        for fault, found in faults.items()
        if found
    ]
    if problems:
        raise UsageError(
            f"expected each entry from 0 to {dims - 1} once in sequence, but "
            f"{' and '.join(problems)}; list every entry in the order it is sampled"
        )
