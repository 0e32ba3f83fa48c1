r"""Identities of critics.

$|f(x) - f(y)| \le \prod_l \|W_l\|_2 \, |u(x) - u(y)|$, where u(x) is what the first linear map
reads of x: the bound holds in the critic's own coordinates, not in the units of the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.abilities import HasCritic
from ..core.batch import Batch, broadcast_conditions
from ..core.model import Model
from ..core.rng import make_generator
from ..models.adversarial._lipschitz import Clipping, norm_bound
from ..nn.mlp import MLP
from ..prob.divergence import wasserstein
from ._helpers import most, normal
from .framework import Residual
from .subjects import random_rows

PAIRS = 5000
"""Pairs of events between which the critic's slope is taken."""
MOVED = 64
"""Events of each of two samples between which mass is moved."""
ROUNDING = 1e-12
"""What float64 leaves of a ratio."""


def x72_a_critic_gives_no_more_than_k_times_the_distance(
    model: HasCritic, batch: Batch
) -> Residual:
    """E_p f - E_q f <= K W_1(p, q) between any rows, K = prod ||W||.

    Source: Arjovsky, Chintala & Bottou 2017, Wasserstein GAN, sec. 3."""
    assert isinstance(model, Model)
    given = broadcast_conditions(batch[:1].given, model.space, MOVED)
    event = replace(model.space, given={})
    x, y = (Batch(random_rows(event, MOVED, make_generator(seed)).x, given) for seed in (5, 6))
    (u, f), (v, g) = (read(model, rows) for rows in (x, y))
    whole = norm(model.critic_layers()) * wasserstein(u, v)
    return Residual(float((f.mean() - g.mean()).abs() - whole), ROUNDING)


def x72_a_trained_clipped_critic_stays_below() -> Residual:
    """A critic trained with weight clipping finds at most K W_1.

    Examines: models.adversarial._lipschitz, prob.divergence.

    Source: Arjovsky, Chintala & Bottou 2017, Wasserstein GAN, sec. 3."""
    x, y = normal(64, 2), normal(64, 2) + 2
    critic: MLP = MLP.Config(width=16, depth=2, activation="leaky").build(2, 1).double()
    held = Clipping(Clipping.Config(bound=0.1))
    optimiser = torch.optim.RMSprop(critic.parameters(), 5e-3)
    with torch.enable_grad():
        for _ in range(100):
            held.project(critic.parameters())
            optimiser.zero_grad()
            (critic(y).mean() - critic(x).mean()).backward()
            optimiser.step()
    held.project(critic.parameters())
    found = float(critic(x).mean() - critic(y).mean())
    whole = float(norm(critic.linears) * wasserstein(x, y))
    largest = most(float(weight.abs().amax()) for weight in critic.parameters())
    return Residual(
        most(found - whole, 0.0 if found > 0.01 * whole else 1.0, largest - held.config.bound),
        ROUNDING,
    )


def x88_critic_is_lipschitz(model: HasCritic, batch: Batch) -> Residual:
    """|f(x) - f(y)| <= prod ||W|| |x - y|, as the ratio of the two.

    Source: Miyato et al. 2018, Spectral Normalization for Generative Adversarial Networks, sec.
    2.1."""
    assert isinstance(model, Model)
    given = broadcast_conditions(batch[:1].given, model.space, PAIRS)
    event = replace(model.space, given={})
    x, y = (Batch(random_rows(event, PAIRS, make_generator(seed)).x, given) for seed in (5, 6))
    (u, f), (v, g) = (read(model, rows) for rows in (x, y))
    reach = norm(model.critic_layers()) * (u - v).norm(dim=1)  # (PAIRS,)
    slope = torch.where(f == g, 0.0, (f - g).abs() / reach)
    return Residual(float(slope.amax()), 1 + ROUNDING)


def norm(layers: Iterable[nn.Linear | nn.Conv2d]) -> Tensor:
    """The product of spectral norms, ()."""
    each = [
        torch.linalg.matrix_norm(layer.weight.double(), 2)
        if isinstance(layer, nn.Linear)
        else norm_bound(layer)
        for layer in layers
    ]
    return torch.stack(each).prod()


def read(model: HasCritic, rows: Batch) -> tuple[Tensor, Tensor]:
    """Inputs of the critic's first map for each row, (B, inputs), and its output, (B,)."""
    seen: list[Tensor] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    handle = model.critic_layers()[0].register_forward_pre_hook(note)
    try:
        verdict = model.criticise(rows)
    finally:
        handle.remove()
    return seen[0].reshape(len(rows), -1), verdict
