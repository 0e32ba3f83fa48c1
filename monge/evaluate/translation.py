"""How far translated pictures are from what they should be, beside the two simplest guesses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.model import Model
from ..core.score import Score


def is_translation(model: Model) -> bool:
    """Whether events and their one condition are pictures of one size, in pairs."""
    given = list(model.space.given.values())
    return (not model.unpaired and len(given) == 1 and model.space.is_picture
            and given[0].is_picture and given[0].shape[1:] == model.space.shape[1:])


def translated(x: Tensor, rows: Batch, train: Batch) -> dict[str, Score]:
    """Mean absolute error a pixel, in units of the data: of draws, of the source taken for the
    target, and of the mean training picture."""
    source, = rows.given.values()
    guess = source.x if source.x.shape == rows.x.shape else \
        source.x.mean(1, keepdim=True).expand_as(rows.x)
    mean = train.x.mean(0, keepdim=True).expand_as(rows.x)
    known = {"l1": x, "l1_of_source": guess, "l1_of_mean": mean}
    return {name: told((each - rows.x).abs().flatten(1).mean(1)) for name, each in known.items()}


def told(error: Tensor) -> Score:  # (B,)
    value = error.double()
    spread = float(value.std()) / math.sqrt(len(value)) if len(value) > 1 else math.nan
    return Score(float(torch.mean(value)), "distance", spread, "a pixel")
