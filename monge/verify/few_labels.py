"""Identities of learning from rows without labels."""

from __future__ import annotations

import math

import torch

from ..core.batch import Batch
from ..core.space import Space
from ..models.predict.m2 import marginal_bound
from ..models.predict.mlp import MLPPredictor
from ..models.predict.semi import SemiSupervised
from ..models.represent.byol import angle_loss
from ..nn.mlp import MLP
from ._helpers import most, normal
from .framework import Residual

CLASSES = 4
STEPS = 12


def small(method: str, **settings: object) -> SemiSupervised:
    """A predictor of classes from three numbers."""
    inputs = Space(kind="real", shape=(3,), name="x", mean=(0.0,) * 3, scale=(1.0,) * 3)
    space = Space(kind="label", size=CLASSES, name="y", given={"x": inputs})
    net = MLPPredictor.Config(net=MLP.Config(width=4, depth=1))
    config = SemiSupervised.Config(method=method, predictor=net, **settings)  # type: ignore[arg-type]
    return SemiSupervised(config, space).double()


def x133_pseudo_labels_cost_at_most_the_entropy() -> Residual:
    """-log max_k p_k <= H(p), with equality for evenly shared classes.

    Examines: models.predict.semi.

    Source: Lee 2013, Pseudo-Label, sec. 3.1; Grandvalet & Bengio 2005, Semi-supervised Learning
    by Entropy Minimization."""
    model, n = small("pseudo_label", threshold=0.0), 64
    model.predictor.out.weight.copy_(normal(CLASSES, 4))
    batch = Batch(torch.zeros(n, dtype=torch.long), {"x": Batch(normal(n, 3))})
    every = torch.ones(n, dtype=torch.bool)
    targets, kept = model.targets(batch, every)
    params = model.predictor.params(batch.given, n)
    cost = model.disagreement(params, targets, kept)
    log_p = params.log_softmax(1)
    above = float((cost + (log_p.exp() * log_p).sum(1)).amax())
    model.predictor.out.weight.zero_()
    model.predictor.out.bias.zero_()
    targets, kept = model.targets(batch, every)
    even = model.disagreement(model.predictor.params(batch.given, n), targets, kept)
    equal = float((even - math.log(CLASSES)).abs().amax())
    return Residual(most(above, equal), 1e-12)


def x133_the_teacher_is_an_average_of_students() -> Residual:
    """Weights of a teacher: sum_k (1 - d_k) prod_{j > k} d_j w_k, d_0 = 0.

    Examines: models.predict.semi.

    Source: Tarvainen & Valpola 2017, Mean teachers are better role models, eq. 2."""
    decay, model = 0.8, small("mean_teacher", teacher_decay=0.8)
    assert model.teacher is not None, "a mean teacher has one"
    weight, mine = model.predictor.out.weight, model.teacher.out.weight
    expected = mine.clone()
    for step in range(STEPS):
        weight.copy_(normal(*weight.shape))
        model.move_teacher(Batch(torch.zeros(1), step=step))
        own = min(decay, (1 + step) / (10 + step))
        expected = own * expected + (1 - own) * weight
    return Residual(float((mine - expected).abs().amax()), 1e-12)


def x134_the_angle_is_the_distance_of_directions() -> Residual:
    """2 - 2 cos(a, b) = |a / |a| - b / |b||^2, whatever the lengths are.

    Examines: models.represent.byol.

    Source: Grill et al. 2020, Bootstrap Your Own Latent, eq. 2."""
    one, two = normal(2, 32, 5)
    apart = (one / one.norm(dim=1, keepdim=True) - two / two.norm(dim=1, keepdim=True)).square()
    gaps = [angle_loss(one, two) - apart.sum(1), angle_loss(3 * one, two) - angle_loss(one, two)]
    return Residual(most(*(float(gap.abs().amax()) for gap in gaps)), 1e-12)


def x135_the_bound_without_a_label_is_missed_by_a_divergence() -> Residual:
    """sum_y q(y) [L_y + log p_y - log q_y] = log Z - KL(q || p_y e^L_y / Z).

    Examines: models.predict.m2.

    Source: Kingma, Rezende, Mohamed & Welling 2014, Semi-supervised Learning with Deep Generative
    Models, eq. 7."""
    bounds, log_prior = 3 * normal(16, CLASSES), normal(CLASSES).log_softmax(0)
    log_q, joint = normal(16, CLASSES).log_softmax(1), bounds + log_prior
    evidence, posterior = joint.logsumexp(1), joint.log_softmax(1)
    divergence = (log_q.exp() * (log_q - posterior)).sum(1)
    gaps = [
        marginal_bound(bounds, log_prior, log_q) - evidence + divergence,
        marginal_bound(bounds, log_prior, posterior) - evidence,
    ]
    return Residual(most(*(float(gap.abs().amax()) for gap in gaps)), 1e-12)
