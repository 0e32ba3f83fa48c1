"""The classifier two-sample test: can a network tell samples from data?

A classifier is trained on half of the rows of both sides and judged on the other half, and the
other way round. If both come from one law its accuracy is 1/2 in the mean, whatever it learned;
more than that, beyond the error of so many rows, proves a difference (Lopez-Paz & Oquab 2017).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.error import DataError
from ..core.noise import fresh
from ..core.score import Score
from ..nn.mlp import MLP

FEWEST = 20
"""Rows of each side below which the test says nothing."""
STEPS, BATCH, RATE = 300, 128, 2e-3
NET = MLP.Config(width=64, depth=2, activation="relu")
NORMAL = 1.96
"""Standard errors to either side of an interval of 95 %."""


def c2st(x: Tensor, y: Tensor, seed: int = 0) -> Score:
    """Accuracy of telling x (n, F) from y (m, F), as many of each, with its standard error."""
    n = min(len(x), len(y)) // 2 * 2
    if n < FEWEST:
        raise DataError(f"the smaller side has {min(len(x), len(y))} rows; a classifier "
                        f"two-sample test needs {FEWEST} at least")
    orders = [torch.randperm(len(side), generator=fresh(seed))[:n] for side in (x, y)]
    halves = [side[order].float().chunk(2) for side, order in zip((x, y), orders, strict=True)]
    right = [told_apart(halves[0][a], halves[1][a], halves[0][1 - a], halves[1][1 - a], seed)
             for a in (0, 1)]
    share = torch.cat(right).double().mean().item()
    return Score(share, "estimate", math.sqrt(max(share * (1 - share), 0.25 / n) / (2 * n)),
                 "accuracy")


def interval(score: Score) -> tuple[float, float]:
    """Where the accuracy lies with a confidence of 95 %."""
    return score.value - NORMAL * score.stderr, score.value + NORMAL * score.stderr


def told_apart(x: Tensor, y: Tensor, other: Tensor, rival: Tensor, seed: int) -> Tensor:
    """Whether each row of the other halves is told apart by what x and y teach, (2 n,)."""
    rows = torch.cat([x, y])
    middle, spread = rows.mean(0), rows.std(0).clamp_min(1e-6)
    labels = torch.cat([torch.ones(len(x)), torch.zeros(len(y))])
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        net: MLP = NET.build(rows.shape[1], 1)
        adam = torch.optim.AdamW(net.parameters(), RATE, weight_decay=0.01, fused=True)
        for _ in range(STEPS):
            pick = torch.randint(len(rows), (BATCH,))
            logit = net((rows[pick] - middle) / spread)[:, 0]
            adam.zero_grad()
            F.binary_cross_entropy_with_logits(logit, labels[pick]).backward()
            adam.step()
    with torch.no_grad():
        first, second = (net((side - middle) / spread)[:, 0] for side in (other, rival))
    return torch.cat([first > 0, second <= 0])
