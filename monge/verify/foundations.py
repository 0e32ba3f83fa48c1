"""Identities of the foundations: geometry, the rules of probability, derivatives, convexity.

Identities of divergences: entropy, Kullback-Leibler, Jensen-Shannon, and their closed forms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Dirichlet, MultivariateNormal, Normal, kl_divergence

from ..nn.layers.activation import Activation, activation
from ..prob.divergence import (
    cross_entropy,
    diagonal_kl,
    entropy,
    gaussian_kl,
    jensen_shannon,
    kl,
    total_variation,
)
from ._helpers import gap, most, normal
from .framework import Residual

Scalar = Callable[[Tensor], Tensor]
ROUNDING = 1e-12


@torch.enable_grad()
def derivative(f: Scalar, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


def x1_rotations_keep_products_norms_and_volume() -> Residual:
    """<Qu, Qv> = <u, v>, |Qu| = |u|, |det Q| = 1 for orthogonal Q.

    Examines: mathematics only.

    Source: Strang 2016, Introduction to Linear Algebra, sec. 4.4."""
    q, u, v = torch.linalg.qr(normal(6, 6))[0], normal(6), normal(6)
    worst = most(gap((q @ u) @ (q @ v), u @ v), gap((q @ u).norm(), u.norm()))
    return Residual(most(worst, gap(torch.linalg.det(q).abs(), torch.ones(()))), ROUNDING)


def x2_the_chain_rule_holds_in_every_order() -> Residual:
    """p(x,y,z) = p(a) p(b|a) p(c|a,b) in all six orders, and Bayes' rule.

    Examines: mathematics only.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2."""
    joint = torch.rand(2, 2, 2, dtype=torch.float64)
    joint /= joint.sum()
    worst = 0.0
    for order in itertools.permutations(range(3)):
        p = joint.permute(order)
        first, second = p.sum((1, 2))[:, None, None], p.sum(2)[..., None]
        chain = first * (second / first) * (p / second)
        worst = most(worst, gap(chain, p))
    xy = joint.sum(2)
    x, y = xy.sum(1), xy.sum(0)
    bayes = (xy / x[:, None]) * x[:, None] / y
    return Residual(most(worst, gap(bayes, xy / y)), 1e-13)


def x2_the_tower_rule_and_the_variance() -> Residual:
    """E[E[X|Y]] = E[X]; Var X = E[X^2] - E[X]^2.

    Examines: mathematics only.

    Source: Casella & Berger 2002, Statistical Inference, sec. 2.3 and 4.4."""
    joint, value = torch.rand(4, 5, dtype=torch.float64), normal(4)
    joint /= joint.sum()
    x, y = joint.sum(1), joint.sum(0)
    inner = value @ (joint / y)
    mean = value @ x
    spread = (value - mean).square() @ x
    return Residual(most(gap(inner @ y, mean), gap(spread, value.square() @ x - mean**2)), 1e-13)


def x3_the_derivative_table() -> Residual:
    """Twelve vector and matrix derivatives agree with autograd.

    Examines: mathematics only.

    Source: Petersen & Pedersen 2012, The Matrix Cookbook, sec. 2."""
    x, b, c, a, m = normal(4), normal(4), normal(3), normal(4, 4), normal(3, 4)
    point = torch.rand(5, dtype=torch.float64) + 0.5
    table: list[tuple[Scalar, Tensor, Tensor]] = [
        (lambda x: b @ x, x, b),
        (lambda x: x @ x, x, 2 * x),
        (lambda x: x @ a @ x, x, (a + a.T) @ x),
        (lambda x: b @ a @ x, x, a.T @ b),
        (lambda m: c @ m @ b, m, torch.outer(c, b)),
        (lambda m: b @ m.T @ c, m, torch.outer(c, b)),
        (lambda x: (x - b).norm(), x, (x - b) / (x - b).norm()),
        (lambda x: x.norm() ** 2, x, 2 * x),
        (lambda m: m.norm() ** 2, m, 2 * m),
        (torch.log, point, 1 / point),
        (lambda t: 1 / torch.sin(t), point, -torch.cos(point) / torch.sin(point) ** 2),
        (torch.abs, x, torch.sign(x)),
    ]
    return Residual(most(gap(derivative(f, at), known) for f, at, known in table), ROUNDING)


def x4_quotients_powers_and_sigmoids() -> Residual:
    """(f/g)' , (f^g)', s' = s(1-s), tanh = 2 s(2x) - 1, tanh' = 1 - tanh^2.

    Examines: mathematics only.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 3.10 and 6.3.2."""
    x = torch.rand(50, dtype=torch.float64) + 0.5
    f, g, df, dg = torch.exp(x), torch.sin(x) + 2, torch.exp(x), torch.cos(x)
    s, t = torch.sigmoid(x), torch.tanh(x)
    worst = most(
        gap(derivative(lambda x: torch.exp(x) / (torch.sin(x) + 2), x), (df * g - f * dg) / g**2),
        gap(
            derivative(lambda x: torch.exp(x) ** (torch.sin(x) + 2), x),
            f**g * (df * g / f + dg * f.log()),
        )
        / float((f**g).max()),
        gap(derivative(torch.sigmoid, x), s * (1 - s)),
        gap(t, 2 * torch.sigmoid(2 * x) - 1),
        gap(derivative(torch.tanh, x), 1 - t**2),
    )
    return Residual(worst, 1e-13)


def x4_activations_are_their_formulas() -> Residual:
    """Every activation function is the function that its name says.

    Examines: nn.layers.activation.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 6.3; Hendrycks & Gimpel 2016,
    Gaussian Error Linear Units."""
    z = torch.linspace(-4, 4, 81, dtype=torch.float64)
    grown, share = z.exp(), 1 / (1 + (-z).exp())
    known: dict[Activation, Tensor] = {
        "relu": z.clamp(min=0),
        "leaky": torch.where(z > 0, z, 0.2 * z),
        "rrelu": torch.where(z > 0, z, (1 / 8 + 1 / 3) / 2 * z),
        "elu": torch.where(z > 0, z, grown - 1),
        "gelu": z * torch.special.ndtr(z),
        "silu": z * share,
        "softplus": (1 + grown).log(),
        "tanh": (grown - 1 / grown) / (grown + 1 / grown),
        "sigmoid": share,
        "arctan": torch.atan2(z, torch.ones_like(z)),
        "identity": z,
        "softmax": grown / grown.sum(),
    }
    worst = [gap(activation(name).eval()(z.clone()), due) for name, due in known.items()]
    return Residual(most(worst), ROUNDING)


def x11_convex_means_above_its_tangents_and_below_its_chords() -> Residual:
    """Chords lie above a convex f, and its second differences are >= 0.

    Examines: mathematics only.

    Source: Boyd & Vandenberghe 2004, Convex Optimization, sec. 3.1."""
    x, y = normal(200), normal(200)
    t, step, worst = torch.rand(200, dtype=torch.float64), 1e-3, 0.0
    functions: list[Scalar] = [torch.exp, torch.square, torch.abs, torch.nn.functional.softplus]
    for f in functions:
        chord = t * f(x) + (1 - t) * f(y)
        bend = (f(x + step) - 2 * f(x) + f(x - step)) / step**2
        worst = most(worst, float((f(t * x + (1 - t) * y) - chord).max()), float((-bend).max()))
    return Residual(worst, 1e-6)


@torch.enable_grad()
def x11_descent_on_a_convex_loss_ends_at_one_value() -> Residual:
    """Gradient descent on a convex loss reaches one value from any start.

    Examines: mathematics only.

    Source: Boyd & Vandenberghe 2004, Convex Optimization, sec. 4.2.2."""
    features, target, starts = normal(40, 3), normal(40), 5 * normal(8, 3)
    w = starts.clone().requires_grad_()
    for _ in range(2000):
        loss = (w @ features.T - target).square().mean(1)
        w = (w - 0.1 * torch.autograd.grad(loss.sum(), w)[0]).detach().requires_grad_()
    return Residual(float((loss.max() - loss.min()).detach()), 1e-5)


def x11_jensens_gap_is_not_negative() -> Residual:
    """log E[X] >= E[log X].

    Examines: mathematics only.

    Source: Boyd & Vandenberghe 2004, Convex Optimization, sec. 3.1.8."""
    p = torch.distributions.Dirichlet(torch.ones(6, dtype=torch.float64)).sample((500,))
    x = torch.rand(500, 6, dtype=torch.float64) + 0.01
    return Residual(float(((p * x.log()).sum(1) - (p * x).sum(1).log()).max()), 0)


def tables(count: int, size: int = 6) -> Tensor:
    return Dirichlet(torch.ones(size, dtype=torch.float64)).sample((count,))


def x5_cross_entropy_is_entropy_and_divergence() -> Residual:
    """H(p,q) = H(p) + KL(p||q); JS = H(M) - H(P)/2 - H(Q)/2.

    Examines: prob.divergence.

    Source: Cover & Thomas 2006, Elements of Information Theory, ch. 2; Lin 1991, Divergence
    Measures Based on the Shannon Entropy."""
    p, q = tables(100), tables(100)
    first = (cross_entropy(p, q) - entropy(p) - kl(p, q)).abs().max()
    mixed = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return Residual(float(torch.maximum(first, (jensen_shannon(p, q) - mixed).abs().max())), 1e-13)


def x6_divergences_are_bounded_below() -> Residual:
    """KL >= |p-q|_1^2 / 2 >= 0 and 0 <= JS <= log 2.

    Examines: prob.divergence.

    Source: Cover & Thomas 2006, Elements of Information Theory, lemma 11.6.1; Lin 1991, Divergence
    Measures Based on the Shannon Entropy."""
    p, q = tables(5000), tables(5000)
    pinsker = 2 * total_variation(p, q).square() - kl(p, q)
    js = jensen_shannon(p, q)
    return Residual(float(torch.stack([pinsker, -js, js - math.log(2)]).max()), 1e-12)


def x6_disjoint_supports() -> Residual:
    """On disjoint supports KL is infinite, JS = log 2, and TV = 1.

    Examines: prob.divergence.

    Source: Arjovsky & Bottou 2017, Towards Principled Methods for Training GANs, sec. 2."""
    p, q = torch.tensor([[0.4, 0.6, 0, 0], [0, 0, 0.3, 0.7]], dtype=torch.float64)
    finite = 0.0 if math.isinf(float(kl(p, q))) else 1.0
    inside = 0.0 if math.isfinite(float(kl(p, (p + q) / 2))) else 1.0  # supp p inside supp q
    rest = abs(float(jensen_shannon(p, q)) - math.log(2)) + abs(float(total_variation(p, q)) - 1)
    return Residual(finite + inside + rest, 1e-13)


def x6_the_root_of_js_is_a_metric_and_kl_is_not() -> Residual:
    """sqrt(JS) obeys the triangle inequality; KL violates it.

    Examines: prob.divergence.

    Source: Endres & Schindelin 2003, A New Metric for Probability Distributions."""
    p, q, r = tables(3000), tables(3000), tables(3000)
    root = [jensen_shannon(a, b).clamp_min(0).sqrt() for a, b in ((p, r), (p, q), (q, r))]
    detour = float((root[0] - root[1] - root[2]).max())
    heads = torch.tensor([0.5, 0.25, 0.1], dtype=torch.float64)
    half, quarter, tenth = torch.stack([heads, 1 - heads], 1)
    broken = float(kl(half, quarter) + kl(quarter, tenth) - kl(half, tenth))  # below zero
    return Residual(most(detour, broken), 1e-12)


def x7_gaussian_divergences_are_closed() -> Residual:
    """KL of normals, diagonal and full, equals that of torch.distributions.

    Examines: prob.divergence.

    Source: Rasmussen & Williams 2006, Gaussian Processes for Machine Learning, sec. A.5."""
    mean = torch.randn(2, 4, dtype=torch.float64)
    std = torch.rand(2, 4, dtype=torch.float64) + 0.3
    low = torch.tril(torch.randn(2, 4, 4, dtype=torch.float64), -1) + torch.diag_embed(std)
    cov = low @ low.mT
    full = kl_divergence(MultivariateNormal(mean[0], cov[0]), MultivariateNormal(mean[1], cov[1]))
    flat = kl_divergence(Normal(mean[0], std[0]), Normal(mean[1], std[1])).sum()
    gaps = [
        gaussian_kl(mean[0], cov[0], mean[1], cov[1]) - full,
        diagonal_kl(mean[0], std[0], mean[1], std[1]) - flat,
    ]
    return Residual(float(torch.stack(gaps).abs().max()), 1e-11)


def x7_expected_log_density_is_no_divergence() -> Residual:
    """E_q log p = -H(q) - KL(q||p), which is not the KL.

    Examines: prob.divergence.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, app. B."""
    mean = torch.randn(2, 3, dtype=torch.float64)
    std = torch.rand(2, 3, dtype=torch.float64) + 0.3
    ratio = (std[0].square() + (mean[0] - mean[1]).square()) / std[1].square()
    expected = -(math.log(2 * math.pi) / 2 + std[1].log() + ratio / 2).sum()
    own = Normal(mean[0], std[0]).entropy().sum()
    whole = -own - diagonal_kl(mean[0], std[0], mean[1], std[1])
    return Residual(float((expected - whole).abs()), 1e-12)
