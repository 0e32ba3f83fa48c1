"""Hamiltonian Monte Carlo leaves its density invariant, and InfoNCE is its formula."""

import math

import pytest
import torch

from monge.core.rng import make_generator
from monge.prob.hmc import HamiltonianMonteCarlo
from monge.prob.info_nce import info_nce, nt_xent

SCALE = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)


def log_p(s):
    return -((s - 1) / SCALE).square().sum(1) / 2


def chain(free, moves=40, leaps=5, seed=0):
    return HamiltonianMonteCarlo(log_p, free, moves, leaps, make_generator(seed))


def test_chains_reach_their_density_and_leave_known_entries():
    start = torch.full((600, 3), 2.0, dtype=torch.float64)
    free = torch.ones_like(start)
    free[:, 2] = 0
    found = chain(free).run(start)
    assert torch.equal(found[:, 2], start[:, 2])
    moved = (found[:, :2] - 1) / SCALE[:2]
    assert moved.mean(0).abs().max() < 5 / 600**0.5
    assert (moved.std(0) - 1).abs().max() < 0.15


def test_a_move_is_reversible_and_nearly_keeps_its_energy():
    start = torch.randn(4, 3, dtype=torch.float64, generator=make_generator(2))
    sampler = chain(torch.ones_like(start), leaps=20)
    value, slope = sampler.gradient(start)
    torch.testing.assert_close(value, log_p(start))
    torch.testing.assert_close(slope, (1 - start) / SCALE.square())
    rate = torch.full((4, 1), 1e-3, dtype=torch.float64)
    end, reached, uphill, chance = sampler.leap(start, value, slope, rate)
    assert chance.min() > 1 - 1e-5
    torch.testing.assert_close(reached, log_p(end))
    torch.testing.assert_close(uphill, (1 - end) / SCALE.square())
    assert (chance <= 1).all()
    *_, coarse = sampler.leap(start, value, slope, 1000 * rate)
    assert coarse.min() < 0.5


def test_the_length_of_a_move_varies_by_a_fifth():
    """On a flat density a move is its length times the momentum."""
    start = torch.zeros(2000, 2, dtype=torch.float64)
    sampler = HamiltonianMonteCarlo(
        lambda s: 0 * s.sum(1), torch.ones_like(start), 1, 1, make_generator(0)
    )
    value, slope = sampler.gradient(start)
    end, *_, chance = sampler.leap(start, value, slope, torch.full((2000, 1), 0.5).double())
    momentum = torch.randn(2000, 2, generator=make_generator(0), dtype=torch.float64)
    length = end / momentum / 0.5
    torch.testing.assert_close(length[:, 0], length[:, 1])
    assert 0.8 < length.min() < 0.81
    assert 1.19 < length.max() < 1.2
    assert (chance == 1).all()


@pytest.mark.parametrize("beyond", [math.nan, math.inf])
def test_moves_to_where_no_density_is_are_refused(beyond):
    def half(s):
        return torch.where(s[:, 0] > 1, beyond, -s.square().sum(1) / 2)

    start = torch.zeros(50, 1, dtype=torch.float64)
    sampler = HamiltonianMonteCarlo(half, torch.ones_like(start), 20, 5, make_generator(0))
    found = sampler.run(start)
    assert ((found <= 1) & (found != 0)).all()


def test_info_nce_is_cross_entropy_of_the_positive():
    scores = torch.randn(3, 5, generator=make_generator(0))
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(3), reduction="none")
    torch.testing.assert_close(info_nce(scores), expected)


def test_every_other_view_is_a_candidate():
    one, two = torch.randn(2, 4, 3, generator=make_generator(1)).unbind(0)
    views = torch.nn.functional.normalize(torch.cat([one, two]), dim=1)
    expected = []
    for place in range(8):
        positive, others = (place + 4) % 8, [k for k in range(8) if k != place]
        s = [math.exp(float(views[place] @ views[k]) / 0.5) for k in others]
        expected.append(-math.log(math.exp(float(views[place] @ views[positive]) / 0.5) / sum(s)))
    pairs = [(expected[n] + expected[n + 4]) / 2 for n in range(4)]
    torch.testing.assert_close(nt_xent(one, two, 0.5), torch.tensor(pairs))


def test_steps_are_adapted_to_the_acceptance_that_is_wanted(monkeypatch):
    """From any density, narrow or wide, and in the first half of the moves alone."""
    rates = []
    plain = HamiltonianMonteCarlo.leap

    def leap(self, s, value, slope, rate):
        rates.append(rate.clone())
        return plain(self, s, value, slope, rate)

    monkeypatch.setattr(HamiltonianMonteCarlo, "leap", leap)
    found = {}
    for scale in (0.01, 10.0):
        rates.clear()
        start = torch.zeros(50, 2, dtype=torch.float64)
        sampler = HamiltonianMonteCarlo(
            lambda s, scale=scale: -(s / scale).square().sum(1) / 2,
            torch.ones_like(start),
            60,
            4,
            make_generator(0),
        )
        sampler.run(start)
        found[scale] = float(rates[-1].median())
        assert all(torch.equal(rate, rates[30]) for rate in rates[30:])
        assert not torch.equal(rates[29], rates[28])
    assert found[0.01] < 0.03
    assert found[10.0] > 3
