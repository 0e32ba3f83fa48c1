"""Divergences against their definitions, torch's closed forms, and on disjoint supports."""

import math

import pytest
import torch
from torch.distributions import Categorical, MultivariateNormal, Normal, kl_divergence

from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.prob import divergence as d
from monge.solve.transport.exact import exact
from monge.solve.transport.ground_cost import squared
from monge.solve.transport.sinkhorn import sinkhorn


def tables(count: int = 20, size: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    raw = torch.rand(2, count, size, generator=g, dtype=torch.float64)
    return tuple(raw / raw.sum(-1, keepdim=True))


def points(n: int, dims: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_tables_agree_with_torch():
    p, q = tables()
    torch.testing.assert_close(d.kl(p, q), kl_divergence(Categorical(p), Categorical(q)))
    torch.testing.assert_close(d.entropy(p), Categorical(p).entropy())
    torch.testing.assert_close(d.cross_entropy(p, q), d.entropy(p) + d.kl(p, q))
    torch.testing.assert_close(d.jeffreys(p, q), d.jeffreys(q, p))
    assert not torch.allclose(d.kl(p, q), d.kl(q, p))


def test_zeros_are_no_numbers_lost():
    p = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    q = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    assert d.kl(p, q).item() == pytest.approx(math.log(2))
    assert d.kl(q, p).item() == math.inf
    assert d.jeffreys(p, q).item() == math.inf
    assert d.cross_entropy(q, p).item() == math.inf
    assert math.isfinite(d.jensen_shannon(p, q).item())


def test_disjoint_supports_are_as_far_as_can_be_whatever_lies_between():
    near, far = torch.eye(6, dtype=torch.float64)[1], torch.eye(6, dtype=torch.float64)[5]
    here, places = torch.eye(6, dtype=torch.float64)[0], torch.arange(6.0)[:, None].double()
    for other in (near, far):
        assert d.kl(here, other).item() == math.inf
        assert d.jensen_shannon(here, other).item() == pytest.approx(math.log(2))
        assert d.total_variation(here, other).item() == 1
    assert d.wasserstein(places[:1], places[1:2]).item() == 1
    assert d.wasserstein(places[:1], places[5:]).item() == 5


def test_gaussians_agree_with_torch():
    mean, low = points(2, 3), torch.tril(points(6, 3, seed=1).reshape(2, 3, 3)).clone()
    low.diagonal(dim1=1, dim2=2).abs_().add_(0.3)
    cov = low @ low.mT
    known = kl_divergence(*(MultivariateNormal(m, c) for m, c in zip(mean, cov, strict=True)))
    torch.testing.assert_close(d.gaussian_kl(mean[0], cov[0], mean[1], cov[1]), known)
    std = points(2, 3, seed=2).exp()
    known = kl_divergence(Normal(mean[0], std[0]), Normal(mean[1], std[1])).sum()
    torch.testing.assert_close(d.diagonal_kl(mean[0], std[0], mean[1], std[1]), known)


def test_the_expected_log_density_of_gaussians_is_the_entropy_and_the_divergence():
    mean, low = points(2, 3), torch.tril(points(6, 3, seed=1).reshape(2, 3, 3)).clone()
    low.diagonal(dim1=1, dim2=2).abs_().add_(0.3)
    cov = low @ low.mT
    entropy = MultivariateNormal(mean[0], cov[0]).entropy()
    divergence = d.gaussian_kl(mean[0], cov[0], mean[1], cov[1])
    found = d.gaussian_expected_log_density(mean[0], cov[0], mean[1], cov[1])
    torch.testing.assert_close(found, -entropy - divergence)


def test_smoothing_makes_the_divergence_of_disjoint_supports_finite_and_the_bandwidth_decides_it():
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    for bandwidth in (0.1, 0.5, 2.0):  # of two points: |x - y|^2 / (2 sigma^2)
        found = d.smoothed_kl(x, y, bandwidth, 20_000, g).item()
        error = 2**0.5 / bandwidth / 20_000**0.5
        assert found == pytest.approx(1 / bandwidth**2, abs=5 * error)
    same = points(40)
    assert d.smoothed_kl(same, same, 0.3, generator=g).item() == 0


def test_mmd_is_unbiased_and_sees_a_shift():
    """E over pairs of samples of one distribution is zero, which the biased statistic's is not."""
    same = torch.stack(
        [d.mmd(points(40, seed=i), points(40, seed=100 + i), 1.0) for i in range(60)]
    )
    assert abs(same.mean().item()) < 4 * same.std().item() / 60**0.5
    biased = torch.exp(-squared(points(40), points(40)) / 2).mean() - d.off_diagonal(
        torch.exp(-squared(points(40), points(40)) / 2)
    )
    assert biased.item() > 0.01
    assert d.mmd(points(40), points(40, seed=1) + 3).item() > 0.3
    with pytest.raises(DataError, match=r"\b2 rows.*\b1\b"):
        d.mmd(points(1), points(5))


def test_mmd_of_two_gaussians_is_known():
    """k with bandwidth h between N(0, 1) and N(m, 1): E k = h/sqrt(h^2+2) e^(-m^2/(2(h^2+2)))."""
    x, y = points(3000, 1), points(3000, 1, seed=1) + 1
    root = 1 / math.sqrt(3)
    truth = 2 * root - 2 * root * math.exp(-1 / 6)
    assert d.mmd(x, y, 1.0).item() == pytest.approx(truth, abs=0.02)


def test_wasserstein_of_a_shift_is_its_length():
    x, shift = points(30), torch.tensor([3.0, -4.0], dtype=torch.float64)
    for p in (1.0, 2.0):
        assert d.wasserstein(x, x + shift, p).item() == pytest.approx(5, abs=1e-9)
    one = torch.zeros(1, 2, dtype=torch.float64)
    assert d.wasserstein(one, one + shift).item() == pytest.approx(5)
    line = points(9, 1)
    assert d.wasserstein(line, line + 2).item() == pytest.approx(2, abs=1e-12)


@pytest.mark.parametrize("variant", ["entropic", "sharp"])
def test_the_sinkhorn_divergence_is_zero_for_equal_samples_and_the_plain_cost_is_not(variant):
    x, y = points(30), points(30, seed=1) + 1

    def between(x, y):
        return d.sinkhorn_divergence(
            x, y, 0.5, variant=variant, relative=False, tolerance=1e-11
        ).item()

    assert abs(between(x, x.clone())) < 1e-9
    assert between(x, y) > 0.1
    assert abs(between(x, y) - between(y, x)) < 1e-8
    assert abs(sinkhorn(x, x, 0.5, tolerance=1e-11).value.item()) > 0.1


def test_the_sinkhorn_divergence_runs_from_transport_to_the_means():
    x, y = points(40), points(40, seed=1) + 1
    little = d.sinkhorn_divergence(x, y, 1e-3, relative=True, tolerance=1e-7)
    much = d.sinkhorn_divergence(x, y, 1e4, relative=True, tolerance=1e-9)
    assert little.item() == pytest.approx(d.wasserstein(x, y, 2.0).item() ** 2, rel=0.02)
    assert much.item() == pytest.approx((x.mean(0) - y.mean(0)).square().sum().item(), rel=1e-3)


def test_its_gradient_is_that_of_differences():
    x, y = points(6), points(7, seed=1)
    step = 1e-5 * points(6, seed=2)
    x.requires_grad_()

    def value(x):
        return d.sinkhorn_divergence(x, y, 0.5, relative=False, tolerance=1e-13)

    (slope,) = torch.autograd.grad(value(x), x)
    change = (value(x.detach() + step) - value(x.detach() - step)) / 2
    assert change.item() == pytest.approx((slope * step).sum().item(), rel=1e-5)


def test_smoothed_divergences_are_those_of_gaussians():
    g = make_generator(3)
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.6, 0.0]]).double()
    found = d.smoothed_divergences(x, y, 0.5, 200_000, g)
    gap = 0.6 / 0.5  # in standard deviations
    assert found["kl"].item() == pytest.approx(gap**2 / 2, rel=0.02)
    assert found["reverse_kl"].item() == pytest.approx(gap**2 / 2, rel=0.02)
    assert found["jeffreys"].item() == pytest.approx(gap**2, rel=0.02)
    variation = math.erf(gap / 2 / math.sqrt(2))
    assert found["total_variation"].item() == pytest.approx(variation, rel=0.02)
    t = torch.linspace(-8, 9, 200_001, dtype=torch.float64)
    p, q = (torch.exp(-((t - m) ** 2) / 2) for m in (0.0, gap))
    known = d.jensen_shannon(p / p.sum(), q / q.sum()).item()
    assert found["jensen_shannon"].item() == pytest.approx(known, rel=0.02)


@pytest.mark.parametrize("dims", [1, 2])
def test_one_comparison_holds_all_divergences(dims):
    points = torch.rand(6, dims, generator=make_generator(0), dtype=torch.float64)
    p, q = torch.rand(2, 6, generator=make_generator(1), dtype=torch.float64)
    p, q = p / p.sum(), q / q.sum()
    found = d.compare_divergences(p, q, points, epsilon=0.01)
    assert found["jeffreys"] == pytest.approx(found["kl"] + found["reverse_kl"])
    assert found["wasserstein_1"] <= found["wasserstein_2"] + 1e-12
    assert found["sinkhorn_divergence"] == pytest.approx(found["wasserstein_2"] ** 2, rel=0.3)
    assert min(found.values()) > 0
    away = torch.cdist(points, points).square()
    kernel = torch.exp(-away / (2 * away.mean()))
    assert found["mmd"] == pytest.approx(float((p - q) @ kernel @ (p - q)))
    best = exact(away, p, q).cost
    assert found["wasserstein_2"] == pytest.approx(float(best.sqrt()))
    assert found["wasserstein_1"] == pytest.approx(float(exact(away.sqrt(), p, q).cost))
    scaled = 0.01 * float(away.mean())
    cross, own, other = (
        float(sinkhorn(away, epsilon=scaled, a=a, b=b, tolerance=1e-10).value)
        for a, b in ((p, q), (p, p), (q, q))
    )
    assert found["sinkhorn_divergence"] == pytest.approx(cross - (own + other) / 2, abs=1e-7)
    same = d.compare_divergences(p, p, points)
    assert max(map(abs, same.values())) < 1e-7
    apart = d.compare_divergences(*torch.eye(6).double()[[0, 5]], points)
    assert apart["kl"] == apart["reverse_kl"] == math.inf
    assert apart["jensen_shannon"] == pytest.approx(math.log(2))
    distance = (points[0] - points[5]).norm().item()
    assert apart["wasserstein_1"] == apart["wasserstein_2"] == pytest.approx(distance)
    with pytest.raises(DataError, match="6, 6 and 3"):
        d.compare_divergences(p, q, points[:3])


def test_the_default_points_are_whole_numbers():
    p, q = torch.eye(4).double()[[0, 3]]
    found = d.compare_divergences(p, q)
    assert found["wasserstein_1"] == found["wasserstein_2"] == pytest.approx(3.0)


def test_the_fisher_divergence_is_half_the_square_of_the_gap_of_scores():
    x = torch.randn(6, 2, 2, dtype=torch.float64)
    shift = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def log_density(v):
        return -v.square().sum((1, 2)) / 2

    with torch.no_grad():  # the score of the density needs a gradient all the same
        found = d.fisher_divergence(lambda v: shift - v, log_density, x)
    torch.testing.assert_close(found, torch.full((6,), 4 * 0.49 / 2).double())
    live = d.fisher_divergence(lambda v: shift - v, log_density, x)
    (slope,) = torch.autograd.grad(live.mean(), shift)
    torch.testing.assert_close(slope, torch.tensor(4 * 0.7).double())


def test_two_rows_are_enough_for_an_unbiased_statistic():
    assert d.off_diagonal(torch.tensor([[5.0, 1.0], [2.0, 7.0]])).item() == 1.5
    with pytest.raises(DataError, match="1"):
        d.off_diagonal(torch.ones(1, 1))


def test_smoothed_divergences_are_means_around_every_row():
    g = make_generator(3)
    x, y = torch.randn(3, 2, generator=g).double(), torch.randn(4, 2, generator=g).double() + 1
    found = d.smoothed_divergences(x, y, 0.5, samples=50, generator=make_generator(4))
    same = make_generator(4)
    ratios = []
    for side in (x, y):
        noise = torch.randn(50, *side.shape, generator=same, dtype=torch.float64)
        points = (side + 0.5 * noise).reshape(-1, 1, 2)
        p, q = ((-(points - each).square().sum(2) / 0.5).exp().mean(1) for each in (x, y))
        ratios.append((p / q).log())
    assert found["kl"].item() == pytest.approx(ratios[0].mean().item())
    assert found["reverse_kl"].item() == pytest.approx(-ratios[1].mean().item())
