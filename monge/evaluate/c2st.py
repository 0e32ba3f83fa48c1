"""The classifier two-sample test: can a network distinguish samples from data?

A classifier is trained on half of the rows of both sides and evaluated on the other half, and the
other way round. If both have one distribution, its expected accuracy is 1/2, whatever it learned;
more than that, beyond the standard error, proves a difference (Lopez-Paz & Oquab 2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import DataError
from ..core.metric import Metric
from ..core.model import new_optimiser, take_step
from ..core.rng import make_generator
from ..nn.mlp import MLP

MIN_TEST_ROWS = 20
"""Fewest rows of each side."""
STEPS, BATCH, RATE = 300, 128, 2e-3
NET = MLP.Config(width=64, depth=2, activation="relu")
NORMAL = 1.96
"""Half-width of a 95 % interval in standard errors."""


def c2st(x: Tensor, y: Tensor, seed: int = 0) -> Metric:
    """Accuracy of distinguishing x (n, F) from y (m, F), equally many of each, with its standard
    error."""
    n = min(len(x), len(y)) // 2 * 2
    if n < MIN_TEST_ROWS:
        raise DataError(
            f"the smaller side has {min(len(x), len(y))} rows; a classifier "
            f"two-sample test needs at least {MIN_TEST_ROWS}; give more rows"
        )
    orders = [torch.randperm(len(side), generator=make_generator(seed))[:n] for side in (x, y)]
    halves = [
        side[order].float().unflatten(0, (2, -1))
        for side, order in zip((x, y), orders, strict=True)
    ]
    share = cross_predictions(halves[0], halves[1], seed).double().mean().item()
    return Metric(
        share, "estimate", math.sqrt(max(share * (1 - share), 0.25 / n) / (2 * n)), "accuracy"
    )


def interval(score: Metric) -> tuple[float, float]:
    """The 95 % confidence interval of the accuracy."""
    return score.value - NORMAL * score.stderr, score.value + NORMAL * score.stderr


def cross_predictions(x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Whether each row is classified correctly by the network trained on the other half,
    (2, 2 n), of halves x and y (2, n, F). Both networks are trained at once, weights stacked."""
    rows = torch.cat([x, y], 1)  # (2, 2 n, F)
    middle, spread = rows.mean(1, keepdim=True), rows.std(1, keepdim=True).clamp_min(1e-6)
    labels = torch.cat([torch.ones(x.shape[1]), torch.zeros(y.shape[1])])
    near = (rows - middle) / spread
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        layers = stacked([NET.build(rows.shape[2], 1) for _ in range(2)])
        weights = [part for layer in layers for part in layer]
        adam = new_optimiser(torch.optim.AdamW, weights, RATE, weight_decay=0.01, fused=True)
        for pick in torch.randint(rows.shape[1], (STEPS, 2, BATCH)):
            chosen = near.gather(1, pick[..., None].expand(-1, -1, near.shape[2]))
            loss = F.binary_cross_entropy_with_logits(answer(layers, chosen), labels[pick])
            for part, gradient in zip(
                weights, torch.autograd.grad(2 * loss, weights), strict=True
            ):
                part.grad = gradient
            take_step(adam)
    with torch.no_grad():
        other = (rows.flip(0) - middle) / spread
        return (answer(layers, other) > 0) == (labels > 0)


def stacked(nets: Sequence[MLP]) -> list[tuple[Tensor, Tensor]]:
    """Weights (K, inputs, outputs) and biases (K, 1, outputs) of each layer of K networks."""
    return [
        (
            torch.stack([layer.weight.detach().T for layer in layers]).requires_grad_(),
            torch.stack([layer.bias.detach()[None] for layer in layers]).requires_grad_(),
        )
        for layers in zip(*(net.linears for net in nets), strict=True)
    ]


def answer(layers: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """The logits (K, B) of stacked networks on rows x (K, B, F)."""
    for weight, bias in layers[:-1]:
        x = torch.baddbmm(bias, x, weight).relu()
    weight, bias = layers[-1]
    return torch.baddbmm(bias, x, weight)[..., 0]
