"""Cumulatives, quantiles, modes and listed values, each against its density."""

import math

import pytest
import small_data
import torch

from monge.core.marginals import MixedMarginals
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.prob.heads import Head, HeadMarginals

KINDS = {
    "real": Space(
        kind="real",
        shape=(2,),
        mean=(1.0, -3.0),
        scale=(2.0, 0.5),
        low=(-4.0, -5.0),
        high=(6.0, -1.0),
    ),
    "counts": small_data.make("counts")[0],
    "levels": Space(
        kind="levels", shape=(2,), size=100, mean=(40.0,), scale=(20.0,), high=(99.0,)
    ),
    "binary": Space(kind="binary", shape=(2,), mean=(0.3,)),
    "label": Space(kind="label", shape=(2,), size=4, high=(3.0,)),
}


def made(kind, rows=5):
    head = Head(KINDS[kind], components=3).double()
    if kind == "counts":
        x = small_data.make("counts")[1].x.double()
        head.fit(x, torch.ones_like(x, dtype=torch.bool))
    noise = torch.randn(rows, head.width, dtype=torch.float64, generator=make_generator(1))
    return head, head.initial_params() + noise


def grid(kind):
    if kind == "real":
        return torch.linspace(-20, 20, 20_001, dtype=torch.float64)
    top = {"counts": 60, "levels": 99, "binary": 1, "label": 3}[kind]
    return torch.arange(-60 if kind == "counts" else 0, top + 1, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_below_is_the_sum_of_the_density(kind):
    head, params = made(kind)
    values = grid(kind)
    log_p = head.log_prob(
        params.expand(len(values), *params.shape), values[:, None, None].expand(-1, len(params), 2)
    )  # (G, B, 2)
    width = values[1] - values[0] if kind == "real" else 1.0
    total = (log_p.exp() * width).cumsum(0)
    for place in range(0, len(values), max(len(values) // 7, 1)):
        t = values[place].expand(len(params), 2)
        torch.testing.assert_close(
            head.cumulative(params, t), total[place], atol=3e-3 if kind == "real" else 1e-6, rtol=0
        )
    mode = head.mode(params)
    assert (head.log_prob(params, mode) >= log_p.amax(0) - 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
def test_listed_values_are_the_distribution(kind):
    head, params = made(kind)
    for entry, log_p in enumerate(head.values(params)):
        if kind in ("real", "counts"):
            assert log_p.shape == (5, 0)
            continue
        torch.testing.assert_close(log_p.logsumexp(1), torch.zeros(5, dtype=torch.float64))
        for code in range(log_p.shape[1]):
            x = torch.full((5, 2), float(code), dtype=torch.float64)
            torch.testing.assert_close(log_p[:, code], head.log_prob(params, x)[:, entry])


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantile_is_the_first_value_that_suffices(kind):
    head, params = made(kind)
    distribution = MixedMarginals(
        [
            HeadMarginals(KINDS[kind], head, params),
            HeadMarginals(KINDS[kind], head, params.flip(0)),
        ]
    )
    for level in (0.001, 0.3, 0.95):
        t = distribution.quantile(level)
        assert (distribution.cumulative(t) >= level - 1e-9).all()
        below = t - (1e-6 if kind == "real" else 1.0)
        assert (distribution.cumulative(below) < level + 1e-12).all()


def test_a_normal_has_the_quantiles_of_the_normal():
    space = Space(kind="real", mean=(10.0,), scale=(3.0,), low=(9.0,), high=(11.0,))
    head = Head(space, components=1).double()
    distribution = HeadMarginals(space, head, torch.zeros(1, 2, dtype=torch.float64))
    scale = 3.0 * head.by_group[0].split(torch.zeros(1, 1, 2).double())[2].item()
    assert abs(distribution.quantile(0.975).item() - (10 + 1.959963985 * scale)) < 1e-6
    assert math.isclose(distribution.quantile(1e-6).item(), 10 - 4.753424309 * scale, rel_tol=1e-6)
