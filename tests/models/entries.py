"""Spaces of a few entries, what they may be given, and every state of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space

BINARY = Space(kind="binary", shape=(6,), mean=(0.3,))
LEVELS = Space(kind="levels", shape=(1, 2, 2), size=3, mean=(1.0,))
COLUMNS = (
    Space(kind="binary"),
    Space(kind="label", size=3),
    Space(kind="levels", size=4),
    Space(kind="real", mean=(3.0,), scale=(2.0,)),
    Space(kind="counts", mean=(5.0,), scale=(3.0,)),
)
TABLE = Space(kind="columns", shape=(5,), columns=COLUMNS)
GIVEN = {"label": Space(kind="label", size=2), "size": Space(kind="real", shape=(2,))}


def with_given(space: Space) -> Space:
    return replace(space, given=GIVEN)


def conditions(n: int, label: int | None = None) -> dict[str, Batch]:
    codes = torch.arange(n) % 2 if label is None else torch.full((n,), label)
    sizes = torch.randn(n, 2, generator=make_generator(9), dtype=torch.float64)
    return {"label": Batch(codes), "size": Batch(sizes)}


def states(*sizes: int) -> Tensor:
    """Every row of entries of these sizes, (S, D)."""
    return torch.tensor(list(itertools.product(*map(range, sizes))), dtype=torch.float64)
