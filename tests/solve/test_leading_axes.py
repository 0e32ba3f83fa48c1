"""Functions of matrices, points, tables and series with leading axes: each problem is its own."""

import pytest
import torch
from torch import Tensor

from monge.core.rng import make_generator
from monge.core.space import Space
from monge.prob import divergence, linear_ar
from monge.prob.bijections.spline import SplineMap
from monge.prob.bijections.univariate import AdditiveMap, AffineMap
from monge.prob.distributions import sample_categorical
from monge.prob.heads import Head
from monge.solve.transport.exact import bures, doubly_stochastic, on_line, root, soft_permutation
from monge.solve.transport.ground_cost import Power, cosine, squared
from monge.solve.transport.sinkhorn import sinkhorn, unrolled

LEADING = (2, 3)
GENERATOR = make_generator(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*LEADING, *shape, generator=GENERATOR, dtype=torch.float64)


def positive(n: int) -> Tensor:
    matrix = normal(n, n)
    return matrix @ matrix.mT + torch.eye(n).double()


TABLES = [normal(5).softmax(-1) for _ in range(4)]
PHI = linear_ar.step_up(normal(3).tanh())
CASES = {
    "squared": (squared, normal(4, 2), normal(5, 2)),
    "power": (Power(1.5), normal(4, 2), normal(5, 2)),
    "cosine": (cosine, normal(4, 2), normal(5, 2)),
    "on line": (lambda x, y: on_line(x, y, 2.0), normal(4), normal(4)),
    "on line with weights": (
        lambda x, y, a, b: on_line(x, y, 1.0, a, b),
        normal(5),
        normal(5),
        *TABLES[:2],
    ),
    "root": (root, positive(3)),
    "bures": (bures, normal(3), positive(3), normal(3), positive(3)),
    "doubly stochastic": (doubly_stochastic, normal(4, 4).exp()),
    "soft permutation": (lambda s: soft_permutation(s, 0.5, 7), normal(4, 4)),
    "sinkhorn": (
        lambda x, y: sinkhorn(x, y, 0.5, tolerance=1e-11).value,
        normal(4, 2),
        normal(5, 2),
    ),
    "plan": (lambda x, y: sinkhorn(x, y, 0.5, tolerance=1e-11).matrix, normal(4, 2), normal(5, 2)),
    "primal": (
        lambda x, y: sinkhorn(x, y, 0.5, tolerance=1e-11).primal,
        normal(4, 2),
        normal(5, 2),
    ),
    "sharp": (lambda c: sinkhorn(c, epsilon=0.5, tolerance=1e-11).sharp, normal(4, 5).abs()),
    "unrolled": (lambda x, y: unrolled(x, y, 0.5, passes=9), normal(4, 2), normal(5, 2)),
    "entropy": (divergence.entropy, TABLES[0]),
    "cross entropy": (divergence.cross_entropy, *TABLES[:2]),
    "kl": (divergence.kl, *TABLES[:2]),
    "jeffreys": (divergence.jeffreys, *TABLES[:2]),
    "jensen-shannon": (divergence.jensen_shannon, *TABLES[:2]),
    "total variation": (divergence.total_variation, *TABLES[:2]),
    "gaussian kl": (divergence.gaussian_kl, normal(3), positive(3), normal(3), positive(3)),
    "diagonal kl": (
        divergence.diagonal_kl,
        normal(3),
        normal(3).exp(),
        normal(3),
        normal(3).exp(),
    ),
    "expected": (
        divergence.gaussian_expected_log_density,
        normal(3),
        positive(3),
        normal(3),
        positive(3),
    ),
    "step up": (linear_ar.step_up, normal(3).tanh()),
    "step down": (lambda phi: linear_ar.step_down(phi)[0], PHI),
    "stationary": (lambda phi: linear_ar.is_stationary(phi).double(), 2 * PHI),
    "variances": (linear_ar.prediction_variances, normal(3).tanh(), normal().exp()),
    "autocovariance": (lambda phi, v: linear_ar.autocovariance(phi, v, 6), PHI, normal().exp()),
    "levinson": (
        lambda gamma: torch.cat(linear_ar.levinson(gamma), -1),
        linear_ar.autocovariance(PHI, normal().exp(), 4),
    ),
    "categorical": (
        lambda logits, u: sample_categorical(logits, u.sigmoid()).double(),
        normal(5),
        normal(),
    ),
    **{
        f"{name} {way}": (lambda p, x, f=f: torch.stack(f(p, x)), normal(4, warp.count), normal(4))
        for name, warp in (
            ("additive", AdditiveMap()),
            ("affine", AffineMap()),
            ("spline", SplineMap(4)),
        )
        for way, f in (("there", warp), ("back", warp.inverse))
    },
}


@pytest.mark.parametrize("name", CASES)
def test_problems_are_solved_one_by_one(name):
    call, *args = CASES[name]
    together = call(*args)
    if name.endswith((" there", " back")):
        together = together.movedim(0, len(LEADING))
    for i in range(LEADING[0]):
        for j in range(LEADING[1]):
            alone = call(*(arg[i, j] for arg in args))
            torch.testing.assert_close(together[i, j], alone, rtol=1e-7, atol=1e-8)


COLUMNS = (
    Space(kind="real", mean=(1.0,)),
    Space(kind="label", size=3, optional=True),
    Space(kind="counts", mean=(4.0,), scale=(2.0,)),
    Space(kind="levels", size=100, mean=(50.0,), scale=(20.0,)),
    Space(kind="real", lower=0.0, mean=(1.0,), optional=True, atoms=(0.0,)),
    Space(kind="binary", size=2, mean=(0.4,)),
)


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS[:1] * 2, COLUMNS[2:3] * 2])
def test_heads_take_rows_of_any_shape(columns):
    head = Head(Space(kind="columns", shape=(len(columns),), columns=columns), 2).double()
    params = head.initial_params() + 0.5 * normal(4, head.width)
    noise = torch.stack([normal(4, head.dims).sigmoid(), normal(4, head.dims)], -1)
    x = head.sample(params, noise)
    found = {
        "log_prob": head.log_prob(params, x),
        "mean": head.mean(params),
        "mode": head.mode(params),
        "cumulative": head.cumulative(params, x.nan_to_num(0.5)),
        "log_present": head.log_present(params),
        "present": head.present(params),
        **{f"values {i}": each for i, each in enumerate(head.values(params))},
    }
    flat, own = params.flatten(0, 2), x.flatten(0, 2)
    again = {
        "log_prob": head.log_prob(flat, own),
        "mean": head.mean(flat),
        "mode": head.mode(flat),
        "cumulative": head.cumulative(flat, own.nan_to_num(0.5)),
        "log_present": head.log_present(flat),
        "present": head.present(flat),
        **{f"values {i}": each for i, each in enumerate(head.values(flat))},
    }
    torch.testing.assert_close(
        head.sample(flat, noise.flatten(0, 2)), own, rtol=0, atol=0, equal_nan=True
    )
    for name, value in found.items():
        torch.testing.assert_close(value.flatten(0, 2), again[name])
