"""Identities of layers: what may depend on what."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..core.abilities import HasConditionals
from ..core.batch import Batch
from .identity import Residual
from .subjects import strangers


def x22_the_future_has_no_influence(model: HasConditionals, batch: Batch) -> Residual:
    """Entries from t on do not change conditionals up to t, bit for bit.

    Source: Germain et al. 2015, MADE: Masked Autoencoder for Distribution Estimation."""
    x, other = batch.x.reshape(len(batch), -1), strangers(model, batch)
    worst = torch.zeros((), dtype=torch.float64)
    for member, order in enumerate(model.orders):
        before = model.parameters_of_conditionals(batch, member)  # (B, D, parameters)
        for place in range(len(order)):
            changed = torch.where(order >= place, other, x).reshape(batch.x.shape)
            after = model.parameters_of_conditionals(replace(batch, x=changed), member)
            gap = (after - before)[:, order <= place].abs().amax()
            worst = torch.maximum(worst, gap)  # keeps a NaN
    return Residual(float(worst), 0.0)
