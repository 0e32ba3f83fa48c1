"""The references fitted by counting, and what they are asked with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import small_data
import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.baseline.chow_liu import ChowLiuTree
from monge.models.baseline.independent import Independent
from monge.models.baseline.mixture import MixtureModel

COUNTED = {
    "independent": Independent.Config(bins=8),
    "chow_liu": ChowLiuTree.Config(bins=8),
    "mixture": MixtureModel.Config(components=3, bins=8),
}
counted = pytest.mark.parametrize("config", COUNTED.values(), ids=COUNTED)


def build(config, space: Space):
    """In double precision from the first number."""
    torch.set_default_dtype(torch.float64)
    try:
        return config.build(space)
    finally:
        torch.set_default_dtype(torch.float32)


def fitted(config, space: Space, batch: Batch, steps: int = 3):
    torch.manual_seed(0)
    model = build(config, space)
    update = model.updates()[0]
    for _ in range(steps):
        update.loss(batch)
    return model


def hide(batch: Batch, share: float = 0.3, seed: int = 0) -> Batch:
    return replace(
        batch, observed=torch.rand(batch.x.shape, generator=make_generator(seed)) > share
    )


def world(kind: str) -> tuple[Space, Batch]:
    space, batch = small_data.make(kind)
    return space, batch.double()


def shares(x: Tensor, every: Tensor) -> Tensor:
    """The share of rows x (N, D) that equal each of the states (S, D)."""
    same = (x[:, None] == every).all(2)
    return same.double().mean(0)
