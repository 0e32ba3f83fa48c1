"""Common errors on games and critics: the expectation, the sign, the divergence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...models.adversarial._convnets import downsampler, upsampler
from ...models.adversarial._lipschitz import gradient_norms
from ...models.adversarial._losses import Logarithmic, discriminator_terms, generator_terms, value
from ...prob.divergence import jensen_shannon, kl
from ...solve.transport.exact import on_line
from .._helpers import gap, most, normal
from .._linear_regions import interpolant
from ..adversarial import LOG4, game, tables
from ..framework import Control
from ..transport import potential

ROUNDING = 1e-12


def r10_steeper_critics_find_more() -> Control:
    """Common error: sup over slopes <= 1 is K W_1; correct: sup over slopes <= K is K W_1.

    Examines: models.adversarial._lipschitz, solve.transport.exact.

    Source: Arjovsky, Chintala & Bottou 2017, Wasserstein GAN, sec. 3."""
    x, y = normal(2, 12)
    flat = interpolant(*potential(x, y))  # a critic of slope 1 that attains the distance
    steep, distance = 3.0, on_line(x, y, 1.0)
    gain = flat(x[:, None]).mean() - flat(y[:, None]).mean()
    points = torch.linspace(float(x.amin()), float(x.amax()), 50, dtype=torch.float64)[:, None]
    slopes = gradient_norms(lambda v: steep * flat(v)[:, 0], points)
    right = most(gap(steep * gain, steep * distance), float(slopes.amax()) - steep)
    return Control(gap(gain, steep * distance), right, ROUNDING)


def r14_the_distributions_are_compared_with_their_mean() -> Control:
    """Common error: V(D*) + log 4 has KL to p/(p + q); correct: KL to the mean (p + q)/2.

    Examines: models.adversarial._losses, prob.divergence.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, sec. 4.1."""
    p, q = tables()
    best = game(p, q, p / (p + q))
    printed = -LOG4 + kl(p, p / (p + q)) + kl(q, q / (p + q))
    return Control(gap(printed, best), gap(-LOG4 + 2 * jensen_shannon(p, q), best), ROUNDING)


def r16_a_fake_has_the_probability_one_minus_d() -> Control:
    """Common error: E[1 - log D(x, G)] in the Pix2Pix loss; correct: E log(1 - D(x, G)).

    Examines: models.adversarial._losses.

    Source: Isola et al. 2017, Image-to-Image Translation with Conditional Adversarial Networks,
    sec. 3.1."""
    p, q = tables()
    with torch.enable_grad():
        d = (p / (p + q)).requires_grad_()
        printed = (p * d.log() + q * (1 - d.log())).sum()
        slopes = [torch.autograd.grad(each, d)[0] for each in (printed, game(p, q, d))]
    wrong, right = (float(slope.abs().amax()) for slope in slopes)  # D* must be stationary
    return Control(wrong, right, ROUNDING)


def r65_the_loss_of_d_is_minus_half_the_value() -> Control:
    """Common error: the loss of D is (E log D + E log(1 - D)) / 2; correct: minus that.

    Examines: models.adversarial._losses.

    Source: Goodfellow 2016, NIPS 2016 Tutorial: Generative Adversarial Networks, sec. 3.2."""
    real, fake = normal(2, 50)
    loss = torch.stack(
        [term.mean() for term in discriminator_terms("minimax", real, fake).values()]
    ).sum()
    half = value(real, fake) / 2
    return Control(gap(loss, half), gap(loss, -half), ROUNDING)


def r66_the_generator_lowers_the_value() -> Control:
    """Common error: G* = argmax_G V(G, D*); correct: argmin_G, attained at q = p.

    Examines: models.adversarial._losses.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, theorem 1."""
    p, others = tables(1)[0], tables(500)
    least = game(p, p, p / (2 * p))
    found = game(p, others, p / (p + others))
    return Control(float((found - least).amax()), float((least - found).amax()), ROUNDING)


def r67_the_generator_moves_its_own_samples() -> Control:
    """Common error: G minimises E_(p_d) log(1 - D), which has no G; correct: E_(p_g) log(1 - D).

    Examines: models.adversarial._losses, prob.divergence.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, eq. 1."""
    return moved("minimax")


def r70_the_ascent_is_over_its_own_samples() -> Control:
    """Common error: G maximises E_(p_d) log D, which has no G; correct: E_z log D(G(z)).

    Examines: models.adversarial._losses, prob.divergence.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, sec. 3."""
    return moved("nonsaturating")


def r71_batch_norm_leaves_out_two_layers() -> Control:
    """Common error: batch norm in all of a DCGAN; correct: not in G's output, D's input.

    Nor does the last map of D, whose output is a logit, have one.

    Examines: models.adversarial._convnets.

    Source: Radford, Metz & Chintala 2016, Unsupervised Representation Learning with DCGANs, sec.
    3."""
    nets = upsampler(8, 1, (16, 16), 4, 2, bounded=True), downsampler(1, (16, 16), 4, 2)
    maps, norms = (
        [sum(isinstance(layer, kinds) for layer in net) for net in nets]
        for kinds in ((nn.Conv2d, nn.ConvTranspose2d), nn.BatchNorm2d)
    )
    missing = sum(maps) - sum(norms)  # of every convolution there is
    due = [maps[0] - 1, maps[1] - 2]
    return Control(missing, most(abs(a - b) for a, b in zip(norms, due, strict=True)), 0.0)


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
        due, data, own = (
            gradient(each, a)
            for each in (goal, (p * terms).sum() + 0 * a.sum(), (q * terms).sum())
        )
    return Control(gap(data, due), gap(own, due), ROUNDING)


def gradient(loss: Tensor, a: Tensor) -> Tensor:
    return torch.autograd.grad(loss, a, retain_graph=True)[0]
