r"""Identities beneath prediction: likelihoods as losses, and what one hidden layer can do.

$-\log p(y \mid f(x))$ is a squared error for a Gaussian, a cross entropy for classes, so training
by maximum likelihood is what those losses always were.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import registry
from ..core.batch import Batch
from ..core.space import Space
from ..prob.distributions import BernoulliDistribution, CategoricalDistribution, GaussianMixture
from ._helpers import gap, most, normal
from ._linear_regions import cells, cells_at_most, fold, interpolant, pieces, rectified
from .framework import Residual

ROUNDING = 1e-13
UNITS = 6


def gaussian(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """-log N(x; mean, scale^2) by the head of real entries, all (n,), (n,)."""
    distribution = GaussianMixture(1, torch.zeros(1), torch.ones(1)).double()
    floor = distribution.floor  # raw + floor is the log-scale after a softplus
    raw = floor + (scale.log() - floor).expm1().log()
    return -distribution.log_prob(torch.stack([mean, raw], -1)[:, None], x[:, None])[:, 0]


def x12_gaussian_likelihood_is_a_squared_error() -> Residual:
    """-log N(y; m, s^2) = (y - m)^2 / (2 s^2) + log(2 pi s^2) / 2.

    Examines: prob.distributions.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2.5."""
    y, mean, scale = normal(50), normal(50), (0.3 * normal(50)).exp()
    squared = (y - mean).square() / (2 * scale.square())
    return Residual(
        gap(gaussian(y, mean, scale), squared + 0.5 * (2 * math.pi * scale**2).log()), 1e-12
    )


def x12_the_best_variance_is_the_mean_squared_residual() -> Residual:
    """The likelihood is stationary at mean = average, s^2 = mean residual^2.

    Examines: prob.distributions.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2.5."""
    y = normal(50) + 3
    best = torch.stack([y.mean(), y.std(correction=0)])
    with torch.enable_grad():
        leaf = best.clone().requires_grad_()
        total = gaussian(y, leaf[0].expand(50), leaf[1].expand(50)).sum()
        (slope,) = torch.autograd.grad(total, leaf)
    return Residual(float(slope.abs().amax()), 1e-11)


def logits() -> tuple[CategoricalDistribution, Tensor, Tensor]:
    """The distribution of 5 classes with logits (n, 1, 5) and codes (n, 1)."""
    return (
        CategoricalDistribution(1, 5, False).double(),
        2 * normal(20, 1, 5),
        torch.arange(20)[:, None] % 5,
    )


def x13_softmax_ignores_a_shift() -> Residual:
    """Class probabilities do not change when all logits shift alike.

    Examines: prob.distributions.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 6.2.2.3."""
    distribution, z, y = logits()
    return Residual(gap(distribution.log_prob(z + 7, y), distribution.log_prob(z, y)), ROUNDING)


def x13_cross_entropy_of_a_name_is_its_log_probability() -> Residual:
    """-sum_k onehot_k log pi_k = -log pi_y.

    Examines: prob.distributions.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 4.3.4."""
    distribution, z, y = logits()
    crossed = (F.one_hot(y, 5) * z.softmax(-1).log()).sum(-1)
    return Residual(gap(crossed, distribution.log_prob(z, y)), ROUNDING)


def x13_gradient_of_cross_entropy_is_probability_minus_name() -> Residual:
    """d(-log pi_y)/dz = pi - onehot(y).

    Examines: prob.distributions.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 4.3.4."""
    distribution, z, y = logits()
    with torch.enable_grad():
        leaf = z.clone().requires_grad_()
        (slope,) = torch.autograd.grad(-distribution.log_prob(leaf, y).sum(), leaf)
    return Residual(gap(slope, z.softmax(-1) - F.one_hot(y, 5)), ROUNDING)


def x13_jacobian_of_softmax() -> Residual:
    """d pi / dz = diag(pi) - pi pi^T, of the model's probabilities.

    Examines: prob.distributions.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 4.3.4."""
    distribution, z, _ = logits()
    row = z[0, 0]

    def probabilities(row: Tensor) -> Tensor:
        return distribution.log_prob(row.expand(5, 1, 5), torch.arange(5)[:, None])[:, 0].exp()

    with torch.enable_grad():
        found = torch.autograd.functional.jacobian(probabilities, row)
    pi = probabilities(row)
    return Residual(gap(found, pi.diag() - pi[:, None] * pi), ROUNDING)


def x13_two_classes_are_a_bernoulli() -> Residual:
    """Softmax over two logits is a Bernoulli with their difference as logit.

    Examines: prob.distributions.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 4.2."""
    z, y = 3 * normal(20, 1, 2), torch.arange(20)[:, None] % 2
    two, one = (
        CategoricalDistribution(1, 2, False).double(),
        BernoulliDistribution(torch.tensor([0.5])).double(),
    )
    return Residual(gap(two.log_prob(z, y), one.log_prob(z[..., 1:] - z[..., :1], y)), ROUNDING)


def logistic() -> tuple[Tensor, Tensor, Tensor]:
    return normal(30, 4), (normal(30) > 0).double(), normal(4)


def logistic_loss(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """-sum log p(y | x) with logit x w."""
    distribution = BernoulliDistribution(torch.tensor([0.5])).double()
    return -distribution.log_prob((x @ w)[:, None, None], y[:, None]).sum()


def x14_gradient_of_logistic_regression() -> Residual:
    """The gradient of -log p(y | x) is X^T (sigmoid(X w) - y).

    Examines: prob.distributions.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 4.3.2 and 4.3.3."""
    x, y, w = logistic()
    with torch.enable_grad():
        found = torch.autograd.functional.jacobian(lambda w: logistic_loss(x, y, w), w)
    return Residual(gap(found, x.T @ ((x @ w).sigmoid() - y)), 1e-12)


def x14_logistic_regression_is_convex() -> Residual:
    """No eigenvalue of the Hessian X^T diag(p (1 - p)) X is below 0.

    Examines: prob.distributions.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 4.3.3."""
    x, y, w = logistic()
    with torch.enable_grad():
        found = torch.autograd.functional.hessian(lambda w: logistic_loss(x, y, w), w)
    p = (x @ w).sigmoid()
    known = x.T @ ((p * (1 - p))[:, None] * x)
    return Residual(most(gap(found, known), -float(torch.linalg.eigvalsh(found)[0])), 1e-12)


def x17_units_of_one_layer_cut_a_line_once_each() -> Residual:
    """A generic network of 6 hidden units has 7 linear pieces on a line.

    Examines: nn.mlp.

    Source: Prince 2023, Understanding Deep Learning, ch. 3."""
    net = rectified(UNITS)
    net.linears[0].weight.copy_(normal(UNITS, 1))
    net.linears[0].bias.copy_(normal(UNITS))
    return Residual(abs(pieces(net, -1e6, 1e6) - cells_at_most(UNITS, 1)), 0.0)


def x17_layers_that_fold_multiply_their_pieces() -> Residual:
    """Folding networks have (units + 1)^depth pieces: 16 for 3 units, 2 layers.

    Examines: nn.mlp.

    Source: Montúfar et al. 2014, On the Number of Linear Regions of Deep Neural Networks."""
    cases = [(3, 1), (3, 2), (3, 3), (5, 2)]
    return Residual(
        sum(
            abs(pieces(fold(units, depth), 0.0, 1.0) - (units + 1) ** depth)
            for units, depth in cases
        ),
        0.0,
    )


def x17_units_of_one_layer_cut_a_plane() -> Residual:
    """6 generic units cut a plane into 1 + 6 + 15 = 22 pieces.

    Examines: mathematics only.

    Source: Zaslavsky 1975, Facing up to Arrangements."""
    return Residual(abs(cells(normal(UNITS, 2), normal(UNITS)) - cells_at_most(UNITS, 2)), 0.0)


def x18_one_hidden_layer_approximates_a_curve() -> Residual:
    """D units come within max|f''| h^2 / 8 of sin on [0, 2 pi], h = 2 pi / D.

    Examines: nn.mlp.

    Source: Cybenko 1989, Approximation by Superpositions of a Sigmoidal Function; de Boor 2001, A
    Practical Guide to Splines."""
    worst = -math.inf
    for units in (4, 10, 40):
        knots = torch.linspace(0, 2 * math.pi, units + 1, dtype=torch.float64)
        x = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)
        error = gap(interpolant(knots, knots.sin())(x[:, None])[:, 0], x.sin())
        worst = most(worst, error - (2 * math.pi / units) ** 2 / 8)
    return Residual(worst, 1e-12)


def x15_a_perceptron_makes_few_mistakes() -> Residual:
    """A perceptron makes at most (R / margin)^2 mistakes on separable rows.

    Examines: models.predict.perceptron.

    Source: Novikoff 1962, On Convergence Proofs on Perceptrons."""
    inputs = Space(kind="real", shape=(3,))
    space = Space(kind="binary", size=2, given={"inputs": inputs})
    perceptron = registry.find("predict.perceptron")
    plane = normal(4)
    points = F.pad(normal(400, 3), (0, 1), value=1.0)  # (n, 4): the last is the bias
    far = points @ plane / plane.norm()
    kept = far.abs() > 0.2
    points, far = points[kept], far[kept]
    model = perceptron.smallest_config(space).build(space).double()
    batch = Batch((far > 0).double(), {"inputs": Batch(points[:, :3])})
    for _ in range(200):
        if float(model.loss(batch)["errors"]) == 0:
            break
    most_mistakes = (points.norm(dim=1).amax() / far.abs().amin()) ** 2
    wrong = float(model.loss(batch)["errors"])
    return Residual(float(model.mistakes) / float(most_mistakes) + wrong, 1.0)
