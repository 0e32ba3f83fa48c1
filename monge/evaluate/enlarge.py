"""How drawn enlargements compare with the pictures they stand for."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.abilities import CanEnlarge, CanSample
from ..core.batch import Batch
from ..core.model import Model
from ..core.noise import fresh
from ..core.score import Score

ROWS, DRAWS = 256, 4
"""Rows that are enlarged, and how often each is."""


@torch.no_grad()
def enlargements(model: Model, batch: Batch, seed: int = 0) -> dict[str, Score]:
    """psnr of single draws; what their small pictures miss of what was given and how much draws
    of one row differ, both in shares of the range."""
    if not isinstance(model, CanEnlarge) or not isinstance(model, CanSample):
        return {}
    batch = batch[:ROWS]
    span = float(max(model.space.size - 1, 1))
    draws = torch.stack([model.sample(len(batch), batch.given, generator=fresh(seed + k))
                         for k in range(DRAWS)])  # (DRAWS, B, C, H, W)
    error = (draws - batch.x).square().flatten(2).mean(2)  # (DRAWS, B)
    psnr = 10 * torch.log10(span**2 / error.clamp_min(1e-12)).mean(0)
    small = torch.stack([model.shrink(x) for x in draws])
    missed = (small - batch.given[model.source].x).abs().flatten(2).mean((0, 2)) / span
    varied = draws.std(0).flatten(1).mean(1) / span
    return {"psnr": score(psnr, "dB"), "small_picture_error": score(missed, "of range"),
            "spread_of_draws": score(varied, "of range")}


def score(values: Tensor, unit: str) -> Score:
    """The mean over rows."""
    return Score(float(values.mean()), "estimate", float(values.std() / len(values) ** 0.5), unit)
