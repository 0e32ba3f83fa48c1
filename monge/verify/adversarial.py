r"""Identities of critics.

$|f(x) - f(y)| \le \prod_l \|W_l\|_2 \, |u(x) - u(y)|$, where u(x) is what the first linear map
reads of x: the bound holds in the critic's own coordinates, not in the units of the data.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.abilities import HasCritic
from ..core.batch import Batch, conform
from ..core.model import Model
from ..core.noise import fresh
from .identity import Residual
from .subjects import random_rows

PAIRS = 5000
"""Pairs of events between which the critic's slope is taken."""
ROUNDING = 1e-12
"""What float64 leaves of a ratio."""


def x88_critic_is_lipschitz(model: HasCritic, batch: Batch) -> Residual:
    """|f(x) - f(y)| <= prod ||W|| |x - y|, as the ratio of the two."""
    assert isinstance(model, Model)
    given = conform(batch[:1].given, model.space, PAIRS)
    event = replace(model.space, given={})
    x, y = (Batch(random_rows(event, PAIRS, fresh(seed)).x, given) for seed in (5, 6))
    (u, f), (v, g) = (read(model, rows) for rows in (x, y))
    norms = [torch.linalg.matrix_norm(layer.weight.double(), 2) for layer in model.critic_layers()]
    reach = torch.stack(norms).prod() * (u - v).norm(dim=1)  # (PAIRS,)
    slope = torch.where(f == g, 0.0, (f - g).abs() / reach)
    return Residual(float(slope.amax()), 1 + ROUNDING)


def read(model: HasCritic, rows: Batch) -> tuple[Tensor, Tensor]:
    """What the critic's first map reads of each row, (B, inputs), and its verdict, (B,)."""
    seen: list[Tensor] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    handle = model.critic_layers()[0].register_forward_pre_hook(note)
    try:
        verdict = model.criticise(rows)
    finally:
        handle.remove()
    return seen[0].reshape(len(rows), -1), verdict
