"""The held-out objective of a model that is no law: what training lowers, on rows it has not seen.

Its unit is that of the model's own loss, so it compares settings of one model on one data set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from ..core.batch import Batch
from ..core.model import Model
from ..core.score import Score
from .likelihood import home


def objective(model: Model, batches: Iterable[Batch], seed: int = 0) -> Score:
    """The mean of the model's loss, with the same noise at every call."""
    values = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for batch in batches:
            terms = model.loss(batch.to(home(model)))
            values.append(sum(term.double().expand(len(batch)) for term in terms.values()))
    value = torch.cat([torch.as_tensor(each) for each in values])
    error = float(value.std()) / math.sqrt(len(value)) if len(value) > 1 else math.nan
    return Score(float(value.mean()), "loss", error, "loss")
