"""Exported functions: rows and conditions as a flat list of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from .batch import Batch
from .rng import make_generator
from .space import Space

LENGTH_SUFFIX = "_length"
"""Suffix of a part's name in the name of its lengths."""
EXAMPLE_ROWS = 3
"""Rows of example inputs; an exported function takes any number."""

Spaces = Mapping[str, Space]


def input_names(spaces: Spaces) -> tuple[str, ...]:
    """The names of the tensors: a part of variable length is followed by its lengths."""
    return tuple(
        each
        for name, space in spaces.items()
        for each in ([name, name + LENGTH_SUFFIX] if space.varies else [name])
    )


def batches(spaces: Spaces, tensors: Iterable[Tensor]) -> dict[str, Batch]:
    """The parts that a list of tensors holds, by name."""
    named = dict(zip(input_names(spaces), tensors, strict=True))
    return {name: Batch(named[name], length=named.get(name + LENGTH_SUFFIX)) for name in spaces}


def example_inputs(
    spaces: Spaces, like: Tensor, rows: int = EXAMPLE_ROWS, seed: int = 0
) -> tuple[Tensor, ...]:
    """Random rows within the range of the training rows; numbers have the type of `like`."""
    generator, found = make_generator(seed), []
    for space in spaces.values():
        u = torch.rand(rows, *space.shape, generator=generator, dtype=torch.float64)
        sizes = torch.tensor([part.size or 2 for part in space.columns or (space,)])
        kinds = [part.kind for part in space.columns or (space,)]
        low, high = (space.spread(name).double() for name in ("low", "high"))
        number = torch.tensor([kind in ("real", "counts") for kind in kinds])
        x = torch.where(number, low + u * (high - low), (u * sizes).floor())
        x = torch.where(torch.tensor([kind == "counts" for kind in kinds]), x.round(), x)
        x = x if space.shape else x.reshape(rows)
        whole = space.kind in ("label", "tokens")
        found.append(x.to(like.device, torch.int64 if whole else like.dtype))
        if space.varies:
            found.append(torch.arange(rows, device=like.device) % space.shape[0] + 1)
    return tuple(found)
