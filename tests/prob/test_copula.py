"""Sinh-arcsinh margins and the Gaussian copula against the density of the joint normal."""

import math

import pytest
import torch

from monge.core.rng import make_generator
from monge.prob.copula import GaussianCopula, SinhArcsinhMargins, log_cosh


@pytest.fixture
def margins():
    found = SinhArcsinhMargins(torch.tensor([0, 0, 1])).double()
    found.log_scale.data = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64)
    found.shape.data = torch.tensor([-1.0, 3.0], dtype=torch.float64)
    return found


def test_margins_are_inverted_and_know_their_slope(margins):
    r = torch.randn(6, 3, dtype=torch.float64, generator=make_generator(0)).requires_grad_()
    z, slope = margins(r)
    torch.testing.assert_close(margins.inverse(z), r)
    (derivative,) = torch.autograd.grad(z.sum(), r)
    torch.testing.assert_close(slope, derivative.log())
    assert margins.delta[0] == margins.delta[1] != margins.delta[2]
    assert all(0.4 < float(each) < 1 for each in margins.delta.detach())
    far = torch.tensor([-800.0, 0.0, 2.0, 800.0], dtype=torch.float64)
    expected = [800 - math.log(2), 0.0, math.log(math.cosh(2)), 800 - math.log(2)]
    assert log_cosh(far).tolist() == pytest.approx(expected)


def test_margins_are_initialised_near_what_they_are(margins):
    z = torch.randn(4000, 3, dtype=torch.float64, generator=make_generator(1))
    with torch.no_grad():
        r = margins.inverse(z)
    fresh = SinhArcsinhMargins(margins.owner).double()
    fresh.fit(r)
    torch.testing.assert_close(fresh.delta, margins.delta, atol=0.08, rtol=0)
    z, _ = fresh(r)
    edge = torch.special.ndtri(torch.tensor(0.9, dtype=torch.float64))
    assert ((z.abs() < edge).double().mean(0) - 0.8).abs().max() < 0.01


@pytest.mark.parametrize("rank", [0, 1, 2, 9])
def test_a_copula_has_the_density_of_its_normal(rank):
    copula = GaussianCopula(4, rank).double()
    covariance = torch.eye(4, dtype=torch.float64)
    if rank:
        copula.raw.data = torch.randn(copula.raw.shape, generator=make_generator(rank)).double()
        own, causes = copula.parts
        covariance = own.diag() + causes @ causes.mT
    torch.testing.assert_close(covariance.diagonal(), torch.ones(4, dtype=torch.float64))
    z = torch.randn(5, 4, dtype=torch.float64, generator=make_generator(7))
    quadratic = (z @ torch.linalg.inv(covariance) * z).sum(1) - z.square().sum(1)
    expected = -quadratic / 2 - covariance.logdet() / 2
    torch.testing.assert_close(copula.log_density(z), expected)
    drawn = copula.sample(20_000, z, make_generator(3))
    torch.testing.assert_close(drawn.mT @ drawn / len(drawn), covariance, atol=0.05, rtol=0)


def test_a_copula_is_initialised_with_the_factors_of_the_values():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        copula = GaussianCopula(4, 1).double()
        causes = torch.tensor([0.9, -0.6, 0.3, 0.0], dtype=torch.float64)
        common, own = torch.randn(5000, 1).double(), torch.randn(5000, 4).double()
        z = common * causes + own * (1 - causes.square()).sqrt()
        copula.fit(z)
        _, found = copula.parts
    sizes, axes = torch.linalg.eigh(torch.corrcoef(z.mT))
    expected = axes[:, -1] * sizes[-1].sqrt()
    torch.testing.assert_close(
        found[:, 0] * found[0, 0].sign(), expected * expected[0].sign(), atol=0.05, rtol=0
    )
    GaussianCopula(4, 0).fit(own)


def test_without_factors_numbers_are_independent():
    copula = GaussianCopula(3, 0)
    z = torch.randn(5, 3, dtype=torch.float64)
    assert copula.log_density(z).tolist() == [0.0] * 5
    copula.fit(z)
    samples = copula.sample(4000, z, make_generator(0))
    assert (torch.corrcoef(samples.T) - torch.eye(3)).abs().max().item() < 0.1
    assert GaussianCopula(3, 9).rank == 3
    nearly = GaussianCopula(50, 9).raw.detach()
    assert 0.007 < float(nearly.square().mean().sqrt()) < 0.013
