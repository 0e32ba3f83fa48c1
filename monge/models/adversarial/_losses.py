r"""GAN losses in logits $a = \log D/(1 - D)$ of a discriminator D.

$V(G, D) = E_{p_d} \log D + E_z \log(1 - D(G(z)))$. The discriminator lowers
$J_D = -\tfrac12 E_{p_d}\log D - \tfrac12 E_z\log(1 - D(G(z))) = -V/2$, the cross entropy of a
batch half real, half fake. Whatever the generator, the best is $D^* = p_d/(p_d + p_g)$, so that
$D^*/(1 - D^*) = p_d/p_g$ and $V(G, D^*) = -\log 4 + 2\,\mathrm{JS}(p_d\|p_g)$; any other D gives
less, hence $(V + \log 4)/2$ is a lower bound of JS, 0 at equality. The generator lowers

nonsaturating  $-\tfrac12 E_z\log D(G(z))$, whose slope in a survives where D is sure of fakes
minimax        $\tfrac12 E_z\log(1 - D(G(z))) = -J_D$ but for what it cannot move
squares        $\tfrac12 E_z (D(G(z)) - 1)^2$ against $\tfrac12 E(D - 1)^2 + \tfrac12 E D(G(z))^2$,
               D being unbounded (Mao et al. 2017); its best is the same $D^*$
hinge          $-\tfrac12 E_z a(G(z))$ against $\tfrac12 E(1 - a)_+ + \tfrac12 E(1 + a(G(z)))_+$, a
               being unbounded (Lim & Ye 2017); its best is the sign of $p_d - p_g$, no ratio

(Goodfellow et al. 2014). What the discriminator reaches bounds a divergence from below, each 0
where the distributions agree: JS by the logarithmic losses; by squares the triangular
discrimination $\int (p_d - p_g)^2/(p_d + p_g) = 2 - 8 \min J_D \le 2$; by the hinge the total
variation $\tfrac12\int|p_d - p_g| = 1 - \min J_D \le 1$.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import UsageError
from ...core.model import Losses

Logarithmic = Literal["nonsaturating", "minimax"]
Game = Literal[Logarithmic, "squares", "hinge"]
EDGE = 1e-6
"""How near D may be to an end of its range when its ratio is computed."""


def discriminator_terms(
    game: Game, real: Tensor, fake: Tensor, label_smoothing: float = 0.0
) -> Losses:
    """J_D in two terms of the shape of the logits. With `label_smoothing` s the label of real rows
    is 1 - s, that of fake rows stays 0, and the best D is (1 - s) p_d / (p_d + p_g) (Salimans et
    al. 2016)."""
    if game == "squares":
        return {"real": (real - (1 - label_smoothing)).square() / 2, "fake": fake.square() / 2}
    if game == "hinge":
        return {"real": F.relu(1 - real) / 2, "fake": F.relu(1 + fake) / 2}
    return {"real": (F.softplus(-real) + label_smoothing * real) / 2, "fake": F.softplus(fake) / 2}


def generator_terms(game: Game, fake: Tensor) -> Tensor:
    """What the generator lowers, in the shape of the logits."""
    if game == "squares":
        return (fake - 1).square() / 2
    if game == "hinge":
        return -fake / 2
    return F.softplus(-fake) / 2 if game == "nonsaturating" else -F.softplus(fake) / 2


def value(real: Tensor, fake: Tensor) -> Tensor:
    """V of logits, ()."""
    return -F.softplus(-real).mean() - F.softplus(fake).mean()


def divergence_bound(real: Tensor, fake: Tensor) -> Tensor:
    """(V + log 4) / 2 <= JS(p_d || p_g) <= log 2, ()."""
    return (value(real, fake) + math.log(4)) / 2


def estimates(game: Game, real: Tensor, fake: Tensor) -> Losses:
    """What outputs of the discriminator at real and fake points say about the game, each (): a
    lower bound of the divergence that the game measures, and V if it has one."""
    loss = torch.stack([term.mean() for term in discriminator_terms(game, real, fake).values()])
    if game == "squares":
        return {"triangular_bound": 2 - 8 * loss.sum()}
    if game == "hinge":
        return {"tv_bound": 1 - loss.sum()}
    return {"value": value(real, fake), "js_bound": divergence_bound(real, fake)}


def bound_of(found: Losses) -> Tensor:
    """The bound of the divergence among `estimates`, ()."""
    return next(value for name, value in found.items() if name.endswith("_bound"))


def accuracy(game: Game, real: Tensor, fake: Tensor) -> Tensor:
    """Share of real and fake points that the discriminator classifies correctly, ()."""
    middle = 0.5 if game == "squares" else 0.0
    return torch.cat([real > middle, fake <= middle]).to(real.dtype).mean()


def log_ratio(game: Game, logit: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """log p_d / p_g estimated from a discriminator's output."""
    if game == "hinge":
        raise UsageError(
            "game=hinge learns only where data are denser than samples, not their ratio; train "
            "with game=nonsaturating or squares"
        )
    if game != "squares" and not label_smoothing:
        return logit
    top = 1 - label_smoothing
    d = logit if game == "squares" else torch.sigmoid(logit)
    d = d.clamp(EDGE * top, (1 - EDGE) * top)
    return d.log() - (top - d).log()
