"""Common errors on foundations: probability, convexity, derivatives, divergences, networks."""

from __future__ import annotations

import itertools
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.predict.logistic import Logistic
from ...prob.divergence import (
    cross_entropy,
    diagonal_kl,
    gaussian_kl,
    jeffreys,
    jensen_shannon,
    kl,
)
from .._helpers import gap, most, normal
from .._linear_regions import cells, cells_at_most, interpolant, rectified
from ..foundations import Scalar, derivative
from ..framework import Control
from ..subjects import PAIRED, subject

ROUNDING = 1e-12


def random_distributions(*shape: int) -> Tensor:
    """Random tables over the last axis."""
    return normal(*shape).softmax(-1)


def x_and_y() -> Tensor:
    return random_distributions(12).reshape(3, 4)


def r17_a_joint_distribution_does_not_sum_to_one_at_each_y() -> Control:
    """Common error: sum_x P(x,y) = 1 for every y; correct: sum_x P(x|y) = 1.

    Examines: mathematics only.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2."""
    joint, one = x_and_y(), torch.ones(4).double()
    return Control(gap(joint.sum(0), one), gap((joint / joint.sum(0)).sum(0), one), ROUNDING)


def r18_independence_is_a_product() -> Control:
    """Common error: P(x,y) = P(x) for independent x and y; correct: P(x,y) = P(x) P(y).

    Examines: mathematics only.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2."""
    x, y = random_distributions(3), random_distributions(4)
    joint = torch.outer(x, y)
    product = joint.sum(1)[:, None] * joint.sum(0)
    return Control(gap(joint, joint.sum(1)[:, None]), gap(joint, product), ROUNDING)


def r19_convex_bends_upward() -> Control:
    """Common error: f'' <= 0 for a convex f; correct: f'' >= 0.

    Examines: mathematics only.

    Source: Boyd & Vandenberghe 2004, Convex Optimization, sec. 3.1.4."""
    x = normal(100)
    functions: list[Scalar] = [torch.exp, torch.square, F.softplus]
    bends = torch.cat([derivative(partial(slope_of, f), x) for f in functions])
    return Control(float(bends.amax()), float((-bends).amax()), ROUNDING)


@torch.enable_grad()
def slope_of(f: Scalar, x: Tensor) -> Tensor:
    """The first derivative, itself differentiable."""
    return torch.autograd.grad(f(x).sum(), x, create_graph=True)[0]


def r20_only_minima_of_a_convex_function_are_global() -> Control:
    """Common error: every local optimum of a convex f is global; correct: every local minimum.

    Examines: mathematics only.

    Source: Boyd & Vandenberghe 2004, Convex Optimization, sec. 4.2.2."""
    f = (torch.linspace(0, 1, 1001, dtype=torch.float64) - 0.3).square()
    ends = F.pad(f[None], (1, 1), value=math.nan)[0]
    low = f[~(f > ends[:-2]) & ~(f > ends[2:])]
    high = f[~(f < ends[:-2]) & ~(f < ends[2:])]
    return Control(gap(high, f.amax()), gap(low, f.amin()), ROUNDING)


def r21_the_jacobian_of_a_linear_map() -> Control:
    """Common error: the Jacobian of Ax is the transpose of A; correct: A, a row for each output.

    Examines: mathematics only.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 4.3.1."""
    a, x = normal(4, 4), normal(4)
    with torch.enable_grad():
        found = torch.autograd.functional.jacobian(lambda v: a @ v, x)
    return Control(gap(found, a.T), gap(found, a), ROUNDING)


def r22_quotients_and_powers() -> Control:
    """Common error: (f/g)' = (f g - f' g) / g^2; correct: (f' g - f g') / g^2.

    Examines: mathematics only.

    Source: Spivak 2006, Calculus, ch. 10."""
    x = torch.rand(50, dtype=torch.float64) + 0.5
    f, g, df, dg = x.square(), x.sin() + 2, 2 * x, x.cos()
    found = derivative(lambda v: v.square() / (v.sin() + 2), x)
    power = derivative(lambda v: v.square() ** (v.sin() + 2), x)
    right = most(
        gap(found, (df * g - f * dg) / g**2), gap(power, f**g * (df * g / f + dg * f.log()))
    )
    return Control(gap(found, (f * g - df * g) / g**2), right, ROUNDING)


def r23_time_moves_a_function_of_time() -> Control:
    """Common error: df(x,y,t)/dt = f_x x' + f_y y'; correct: f_x x' + f_y y' + f_t.

    Examines: mathematics only.

    Source: Apostol 1969, Calculus, volume II, ch. 8."""
    t = torch.rand(20, dtype=torch.float64)
    found = derivative(
        lambda t: t.sin() * t.square() * t.exp(), t
    )  # x = sin t, y = t^2, f = x y e^t
    along = (t.cos() * t.square() + 2 * t * t.sin()) * t.exp()
    here = t.sin() * t.square() * t.exp()
    return Control(gap(found, along), gap(found, along + here), ROUNDING)


def r24_the_slope_of_an_absolute_value() -> Control:
    """Common error: d|x|/dx = (-1)^|x| (x > 0); correct: sign(x) for x other than 0.

    Examines: mathematics only.

    Source: Spivak 2006, Calculus, ch. 9."""
    x = torch.tensor([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    found = derivative(torch.abs, x)
    return Control(gap(found, (-1) ** x.abs() * (x > 0)), gap(found, x.sign()), ROUNDING)


def r25_a_divergence_is_infinite_where_mass_is_lost() -> Control:
    """Common error: KL(P||Q) = inf if supports differ; correct: if P has mass where Q has none.

    Examines: prob.divergence.

    Source: Cover & Thomas 2006, Elements of Information Theory, sec. 2.3."""
    narrow, wide = torch.tensor([[0.4, 0.6, 0.0], [0.3, 0.3, 0.4]], dtype=torch.float64)
    pairs = [(narrow, wide), (wide, narrow), (wide, wide)]
    endless = [math.isinf(float(kl(p, q))) for p, q in pairs]
    differ = [not torch.equal(p > 0, q > 0) for p, q in pairs]
    lost = [bool(((p > 0) & (q == 0)).any()) for p, q in pairs]
    wrong, right = (
        sum(a != b for a, b in zip(endless, rule, strict=True)) for rule in (differ, lost)
    )
    return Control(wrong, right, 0.0)


def r26_the_ratio_in_the_proof_that_kl_is_not_negative() -> Control:
    """Common error: -KL = int p log(p/p); correct: int p log(q/p) <= log int q = 0.

    Examines: prob.divergence.

    Source: Cover & Thomas 2006, Elements of Information Theory, theorem 2.6.3."""
    p, q = random_distributions(2, 50, 6)
    minus = -kl(p, q)
    printed, proper = (p * (p / p).log()).sum(1), (p * (q / p).log()).sum(1)
    return Control(gap(printed, minus), most(gap(proper, minus), float(proper.amax())), ROUNDING)


def r27_the_closed_form_of_a_gaussian_divergence() -> Control:
    """Common error: -KL(q||p) = E_q log p; correct: E_q log p + H(q).

    Examines: prob.divergence.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, app. B."""
    mean, std = normal(2, 4), (0.3 * normal(2, 4)).exp()
    ratio = (std[0].square() + (mean[0] - mean[1]).square()) / std[1].square()
    minus = -(cross_entropy_of(mean, std) - entropy_of(std[0]))
    printed = -0.5 * (math.log(2 * math.pi) + std[1].square().log().sum() + ratio.sum())
    return Control(
        gap(printed, minus), gap(-diagonal_kl(mean[0], std[0], mean[1], std[1]), minus), ROUNDING
    )


def cross_entropy_of(mean: Tensor, std: Tensor) -> Tensor:
    """-E_q log p of two diagonal normals, q the first."""
    ratio = (std[0].square() + (mean[0] - mean[1]).square()) / std[1].square()
    return 0.5 * (math.log(2 * math.pi) + 2 * std[1].log() + ratio).sum()


def entropy_of(std: Tensor) -> Tensor:
    return torch.distributions.Normal(0.0, std).entropy().sum()


def r28_which_distribution_the_mean_is_taken_over() -> Control:
    """Common error: KL(q||p) of normals has the inverse covariance of q; correct: that of p.

    Examines: prob.divergence.

    Source: Rasmussen & Williams 2006, Gaussian Processes for Machine Learning, sec. A.5."""
    mean, low = normal(2, 3), 0.3 * normal(2, 3, 3).tril() + torch.eye(3).double()
    (q, p), apart = low @ low.mT, mean[0] - mean[1]

    def form(inner: Tensor, outer: Tensor) -> Tensor:
        inverse = torch.linalg.inv(inner)
        return 0.5 * (
            torch.logdet(inner)
            - torch.logdet(outer)
            - 3
            + torch.trace(inverse @ outer)
            + apart @ inverse @ apart
        )

    whole = gaussian_kl(mean[0], q, mean[1], p)
    return Control(gap(form(q, p), whole), gap(form(p, q), whole), ROUNDING)


def r30_a_convex_function_lies_above_its_tangents() -> Control:
    """Common error: h(y) >= h(x) + h(x)'(y - x); correct: h(x) + grad h(x)'(y - x).

    h is the loss of a logistic regression at weights x and y.

    Examines: models.predict.logistic.

    Source: Boyd & Vandenberghe 2004, Convex Optimization, sec. 3.1.3."""
    made = subject("logistic", Logistic.Config(), PAIRED[3])
    assert isinstance(made.model, Logistic)
    params = [made.model.out.weight, made.model.out.bias]

    def at(x: Tensor) -> tuple[Tensor, Tensor]:
        """h and its gradient."""
        nn.utils.vector_to_parameters(x, params)
        with torch.enable_grad():
            terms = made.model.loss(made.batch).values()
            h = torch.stack([term.mean() for term in terms]).sum()
            slope = torch.autograd.grad(h, params)
        return h.detach(), nn.utils.parameters_to_vector(slope)

    points = normal(40, sum(param.numel() for param in params))
    h, slopes = map(torch.stack, zip(*map(at, points), strict=True))  # (40,), (40, W)

    def below(slope: Tensor) -> float:  # how far h lies below its tangent
        tangent = h[:, None] + slope @ points.T - (slope * points).sum(1, keepdim=True)
        return float((tangent - h).amax())

    return Control(below(h[:, None].expand_as(points)), below(slopes), ROUNDING)


def r31_the_minus_stands_inside() -> Control:
    """Common error: argmax prod p = -argmin sum log p; correct: argmin of -sum log p.

    Examines: mathematics only.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 5.5."""
    y = (torch.arange(20) < 7).double()
    grid = torch.arange(1, 1000, dtype=torch.float64) / 1000
    log_p = y.sum() * grid.log() + (20 - y.sum()) * (1 - grid).log()
    best = grid[log_p.exp().argmax()]
    return Control(gap(-grid[log_p.argmin()], best), gap(grid[(-log_p).argmin()], best), ROUNDING)


def r32_not_every_activation_approximates() -> Control:
    """Common error: any non-linear unit approximates sin; correct: any that is no polynomial.

    Examines: nn.mlp.

    Source: Leshno et al. 1993, Multilayer Feedforward Networks with a Nonpolynomial Activation
    Function."""
    x = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)
    squares = torch.stack([x**0, x, x**2], 1)  # what any number of units (a x + b)^2 can be
    best = squares @ torch.linalg.lstsq(squares, x.sin()[:, None]).solution
    knots = torch.linspace(0, 2 * math.pi, 401, dtype=torch.float64)
    bent = interpolant(knots, knots.sin())(x[:, None])
    return Control(gap(best[:, 0], x.sin()), gap(bent[:, 0], x.sin()), 1e-3)


def r33_how_many_pieces_a_layer_makes() -> Control:
    """Common error: 6 ReLU units cut a plane into 2^6 pieces; correct: 1 + 6 + 15 = 22 at most.

    Examines: mathematics only.

    Source: Zaslavsky 1975, Facing up to Arrangements; Montúfar et al. 2014, On the Number of
    Linear Regions of Deep Neural Networks."""
    found = cells(normal(6, 2), normal(6))
    return Control(abs(found - 2**6), abs(found - cells_at_most(6, 2)), 0.0)


def r68_the_mixture_of_two_distributions() -> Control:
    """Common error: JS = KL(p||q) + KL(q||p); correct: the mean KL to (p + q)/2.

    Examines: prob.divergence.

    Source: Lin 1991, Divergence Measures Based on the Shannon Entropy."""
    p, q = random_distributions(2, 50, 6)
    middle = (p + q) / 2
    entropies = [cross_entropy(each, each) for each in (middle, p, q)]
    whole = entropies[0] - (entropies[1] + entropies[2]) / 2
    return Control(gap(jeffreys(p, q), whole), gap(jensen_shannon(p, q), whole), ROUNDING)


def r105_kinks_have_no_slope() -> Control:
    """Common error: |x| has one slope at 0; correct: any g in [-1, 1], as |x| >= g x.

    Examines: mathematics only.

    Source: Rockafellar 1970, Convex Analysis, sec. 23."""
    step, x = 1e-3, normal(100)
    quotients = [abs(side) / side for side in (step, -step)]
    chosen = derivative(torch.abs, torch.zeros(1, dtype=torch.float64))
    beyond = float((chosen * x - x.abs()).amax())
    return Control(abs(quotients[0] - quotients[1]), beyond, ROUNDING)


def r119_linear_layers_are_not_convex_either() -> Control:
    """Common error: linear layers make the loss convex; correct: a single one does, two do not.

    Examines: mathematics only.

    Source: Baldi & Hornik 1989, Neural Networks and Principal Component Analysis."""
    ends = normal(2, 2000, 2)
    middle = ends.mean(0)

    def bulge(loss: Scalar) -> float:
        return float((loss(middle) - (loss(ends[0]) + loss(ends[1])) / 2).amax())

    deep = bulge(lambda w: (1 - w[:, 0] * w[:, 1]).square())
    return Control(deep, bulge(lambda w: (1 - w.sum(1)).square()), ROUNDING)


def r121_slopes_of_pieces_obey_one_relation() -> Control:
    """Common error: of D + 1 ReLU slopes one is 0 or the others' sum; correct: one relation.

    Units that face left at the second and at the fourth joint give s_0 + s_2 + s_4 = s_1 + s_3.

    Examines: nn.mlp.

    Source: Montúfar et al. 2014, On the Number of Linear Regions of Deep Neural Networks; Prince
    2023, Understanding Deep Learning, ch. 3."""
    facing = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    joints = torch.arange(1.0, 5.0, dtype=torch.float64)
    net = rectified(4)
    net.linears[0].weight.copy_(facing[:, None])
    net.linears[0].bias.copy_(-facing * joints)
    net.linears[1].weight.copy_(normal(1, 4))
    middles = torch.arange(0.5, 5.0, dtype=torch.float64)[:, None]
    slopes = derivative(lambda x: net(x)[:, 0], middles)[:, 0]  # (5,)
    apart = [
        (slopes[place] - slopes[list(each)].sum()).abs()
        for place in range(5)
        for size in range(5)
        for each in itertools.combinations([i for i in range(5) if i != place], size)
    ]
    return Control(
        float(torch.stack(apart).amin()), gap(slopes[0::2].sum(), slopes[1::2].sum()), ROUNDING
    )
