"""Errata of games and critics: whose mean, which sign, which divergence."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.adversarial._game import (
    Logarithmic,
    discriminator_terms,
    generator_terms,
    value,
)
from ...prob.divergence import jensen_shannon, kl
from ...solve.assignment import on_line
from ..adversarial import LOG4, game, tables
from ..gaps import gap, normal
from ..identity import Control
from ..transport import potential

ROUNDING = 1e-12


def r10_steeper_critics_find_more() -> Control:
    """Not sup over slopes <= 1 is K W, but sup over slopes <= K. [000:328]"""
    x, y = normal(2, 12)
    cuts, heights = potential(x, y)
    f, g = (heights[torch.searchsorted(cuts, points)] for points in (x, y))
    gain = f.mean() - g.mean()
    steep, distance = 3.0, on_line(x, y, 1.0)
    return Control(gap(gain, steep * distance), gap(steep * gain, steep * distance), ROUNDING)


def r14_the_laws_are_compared_with_their_mean() -> Control:
    """Not KL to p/(p + q) in V(D*) + log 4, but to the mean (p + q)/2. [002:363]"""
    p, q = tables()
    best = game(p, q, p / (p + q))
    printed = -LOG4 + kl(p, p / (p + q)) + kl(q, q / (p + q))
    return Control(gap(printed, best), gap(-LOG4 + 2 * jensen_shannon(p, q), best), ROUNDING)


def r16_a_fake_is_told_by_one_minus_d() -> Control:
    """Not E[1 - log D(x, G)] in Pix2Pix, but E log(1 - D(x, G)). [002:403]"""
    p, q = tables()
    with torch.enable_grad():
        d = (p / (p + q)).requires_grad_()
        printed = (p * d.log() + q * (1 - d.log())).sum()
        slopes = [torch.autograd.grad(each, d)[0] for each in (printed, game(p, q, d))]
    wrong, right = (float(slope.abs().amax()) for slope in slopes)  # D* must be stationary
    return Control(wrong, right, ROUNDING)


def r65_the_loss_of_d_is_minus_half_the_value() -> Control:
    """Not L(D) = (E log D + E log(1 - D)) / 2, but minus that. [002:339-341]"""
    real, fake = normal(2, 50)
    loss = torch.stack([term.mean() for term in
                        discriminator_terms("minimax", real, fake).values()]).sum()
    half = value(real, fake) / 2
    return Control(gap(loss, half), gap(loss, -half), ROUNDING)


def r66_the_generator_lowers_the_value() -> Control:
    """Not G* = argmax_G V(G, D*), but argmin: no law gives less than q = p. [002:347]"""
    p, others = tables(1)[0], tables(500)
    least = game(p, p, p / (2 * p))
    found = game(p, others, p / (p + others))
    return Control(float((found - least).amax()), float((least - found).amax()), ROUNDING)


def r67_the_generator_moves_its_own_draws() -> Control:
    """Not min_G E_(p_d) log(1 - D), which G cannot move, but E_(p_g). [002:378]"""
    return moved("minimax")


def r70_the_ascent_is_over_its_own_draws() -> Control:
    """Not max_G E_(p_d) log D, which G cannot move, but E_z log D(G(z)). [002:380]"""
    return moved("nonsaturating")


def moved(kind: Logarithmic) -> Control:
    """How far the slope in p_g = softmax(a) of a mean over p_d, and of one over p_g, is from that
    of the divergence which the game lowers."""
    p, start = tables()
    with torch.enable_grad():
        a = start.log().requires_grad_()
        q = a.softmax(0)
        verdict = (p / q).log().detach()  # the logit of D*, held fixed
        terms, js = 2 * generator_terms(kind, verdict), 2 * jensen_shannon(p, q)
        goal = js if kind == "minimax" else kl(q, p) - js
        due, data, own = (slope(each, a) for each in (goal, (p * terms).sum() + 0 * a.sum(),
                                                      (q * terms).sum()))
    return Control(gap(data, due), gap(own, due), ROUNDING)


def slope(loss: Tensor, a: Tensor) -> Tensor:
    return torch.autograd.grad(loss, a, retain_graph=True)[0]
