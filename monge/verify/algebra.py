"""Identities of the foundations: geometry, the rules of probability, derivatives, convexity."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from .gaps import gap, most, normal
from .identity import Residual

Scalar = Callable[[Tensor], Tensor]
ROUNDING = 1e-12


@torch.enable_grad()
def slope(f: Scalar, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


def x1_rotations_keep_products_norms_and_volume() -> Residual:
    """<Qu, Qv> = <u, v>, |Qu| = |u|, |det Q| = 1 for orthogonal Q.

    Source: Strang 2016, Introduction to Linear Algebra, sec. 4.4."""
    q, u, v = torch.linalg.qr(normal(6, 6))[0], normal(6), normal(6)
    worst = most(gap((q @ u) @ (q @ v), u @ v), gap((q @ u).norm(), u.norm()))
    return Residual(most(worst, gap(torch.linalg.det(q).abs(), torch.ones(()))), ROUNDING)


def x2_the_chain_rule_holds_in_every_order() -> Residual:
    """p(x,y,z) = p(a) p(b|a) p(c|a,b) in all six orders, and Bayes' rule.

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
    return Residual(most(gap(slope(f, at), known) for f, at, known in table), ROUNDING)


def x4_quotients_powers_and_sigmoids() -> Residual:
    """(f/g)' , (f^g)', s' = s(1-s), tanh = 2 s(2x) - 1, tanh' = 1 - tanh^2.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 3.10 and 6.3.2."""
    x = torch.rand(50, dtype=torch.float64) + 0.5
    f, g, df, dg = torch.exp(x), torch.sin(x) + 2, torch.exp(x), torch.cos(x)
    s, t = torch.sigmoid(x), torch.tanh(x)
    worst = most(
        gap(slope(lambda x: torch.exp(x) / (torch.sin(x) + 2), x), (df * g - f * dg) / g**2),
        gap(slope(lambda x: torch.exp(x) ** (torch.sin(x) + 2), x),
            f**g * (df * g / f + dg * f.log())) / float((f**g).max()),
        gap(slope(torch.sigmoid, x), s * (1 - s)), gap(t, 2 * torch.sigmoid(2 * x) - 1),
        gap(slope(torch.tanh, x), 1 - t**2))
    return Residual(worst, 1e-13)


def x11_convex_means_above_its_tangents_and_below_its_chords() -> Residual:
    """Chords lie above a convex f, and its second differences are >= 0.

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

    Source: Boyd & Vandenberghe 2004, Convex Optimization, sec. 4.2.2."""
    features, target, starts = normal(40, 3), normal(40), 5 * normal(8, 3)
    w = starts.clone().requires_grad_()
    for _ in range(2000):
        loss = (w @ features.T - target).square().mean(1)
        w = (w - 0.1 * torch.autograd.grad(loss.sum(), w)[0]).detach().requires_grad_()
    return Residual(float((loss.max() - loss.min()).detach()), 1e-5)


def x11_jensens_gap_is_not_negative() -> Residual:
    """log E[X] >= E[log X].

    Source: Boyd & Vandenberghe 2004, Convex Optimization, sec. 3.1.8."""
    p = torch.distributions.Dirichlet(torch.ones(6, dtype=torch.float64)).sample((500,))
    x = torch.rand(500, 6, dtype=torch.float64) + 0.01
    return Residual(float(((p * x.log()).sum(1) - (p * x).sum(1).log()).max()), 0)
