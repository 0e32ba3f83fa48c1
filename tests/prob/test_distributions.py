"""Distributions of single numbers against sums and integrals of their own densities."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from monge.core.rng import make_generator
from monge.core.space import Space
from monge.prob.bins import BinnedCounts
from monge.prob.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiscretisedLogisticMixture,
    Distribution,
    GaussianMixture,
    log_mean_exp,
    normal_log_prob,
    normal_log_prob_rows,
    sample_categorical,
    smoothed_counts,
)
from monge.prob.mixed_number import NEAREST, BoundedCoordinate, MixedNumber

REAL = Space(kind="real", mean=(3.0,), scale=(2.0,))
BOUNDS = {
    "none": REAL,
    "lower": replace(REAL, lower=-1.0),
    "upper": replace(REAL, upper=9.0),
    "both": replace(REAL, lower=-1.0, upper=9.0),
}
SHIFT, SCALE = torch.tensor([3.0, -1.0]).double(), torch.tensor([2.0, 0.5]).double()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=make_generator(seed), dtype=torch.float64)


def normal_noise(n: int) -> Tensor:
    """Uniforms and normals of a rank-one lattice, (n, 2): even in both."""
    k = torch.arange(n, dtype=torch.float64)
    even = (k + 0.5) / n
    other = (k * 0.6180339887498949 + 0.5) % 1
    return torch.stack([even, torch.special.ndtri(other.clamp(1e-9, 1 - 1e-9))], -1)


@pytest.mark.parametrize("components", [1, 3])
def test_a_mixture_of_gaussians_has_the_moments_of_its_density(components):
    mixture = GaussianMixture(components, SHIFT, SCALE)
    params = mixture.initial_params() + 0.4 * random(2, mixture.count)
    x = torch.linspace(-30, 30, 60_001, dtype=torch.float64)[:, None].expand(-1, 2)
    log_p = mixture.log_prob(params.expand(len(x), 2, -1), x)
    p = log_p.exp()
    torch.testing.assert_close(torch.trapezoid(p, x, dim=0), torch.ones(2).double())
    torch.testing.assert_close(mixture.mean(params), torch.trapezoid(p * x, x, dim=0))
    highest = x[p.argmax(0), 0]
    assert (mixture.mode(params) - highest).abs().max().item() < 2e-3
    for t in (-2.0, 0.5, 4.0):
        below = torch.trapezoid(torch.where(x <= t, p, 0.0), x, dim=0)
        found = mixture.cumulative(params, torch.full((2,), t).double())
        torch.testing.assert_close(found, below, atol=1e-3, rtol=0)
    noise = normal_noise(4096)
    drawn = mixture.sample(params.expand(4096, 2, -1), noise[:, None].expand(-1, 2, 2))
    share = (drawn[:, :, None] <= torch.tensor([-2.0, 0.5, 4.0])).double().mean(0)  # (2, 3)
    for k, t in enumerate((-2.0, 0.5, 4.0)):
        due = mixture.cumulative(params, torch.full((2,), t).double())
        assert (share[:, k] - due).abs().max().item() < 0.01
    for j in range(2):
        alone = mixture.sample(params[j].expand(9, -1), noise[:9], j)
        assert torch.equal(alone, drawn[:9, j])


@pytest.mark.parametrize("components", [1, 2, 5])
def test_a_mixture_starts_with_the_mean_and_the_variance_of_the_data(components):
    mixture = GaussianMixture(components, SHIFT, SCALE)
    _, means, scales = mixture.split(mixture.initial_params())
    assert abs(float(means.mean())) < 1e-6
    variance = means.square().mean(-1) + scales.square().mean(-1)
    torch.testing.assert_close(variance, torch.ones(2).double(), atol=5e-3, rtol=0)
    logistic = DiscretisedLogisticMixture(components, 20 * SCALE, 9 * SCALE, 60)
    _, _, widths = logistic.split(logistic.initial_params())
    spread = (widths * math.pi / math.sqrt(3)).square().mean(-1) + means.square().mean(-1)
    assert ((spread - 1).abs() < 0.25).all()  # and its floor beside it


def test_the_highest_of_several_modes_is_found():
    mixture = GaussianMixture(2, SHIFT, SCALE)
    for heavy, place in ((2.0, -3.0), (-2.0, 4.0)):
        row = torch.tensor([heavy, 0.0, -3.0, 4.0, -1.0, -1.0], dtype=torch.float64)
        mode = mixture.mode(row.expand(2, -1))
        torch.testing.assert_close(mode, SHIFT + SCALE * place, atol=1e-3, rtol=1e-3)
    narrow = torch.tensor([0.0, 0.0, -3.0, 4.0, 0.5, -1.5], dtype=torch.float64)
    torch.testing.assert_close(
        mixture.mode(narrow.expand(2, -1)), SHIFT + SCALE * 4.0, atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("components", [1, 3])
def test_a_discretised_mixture_is_its_values(components):
    levels = DiscretisedLogisticMixture(components, 20 * SCALE, 9 * SCALE, 60)
    params = levels.initial_params() + 0.4 * random(2, levels.count)
    log_p = levels.values(params)
    assert log_p.shape == (2, 61)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(2).double())
    codes = torch.arange(61.0, dtype=torch.float64)
    logits, means, scales = levels.split(params)
    edge = (codes[1:] - 0.5)[:, None, None]  # between two levels
    below = torch.sigmoid(
        ((edge - levels.shift[:, None]) / levels.scale[:, None] - means) / scales
    )
    under = (logits.softmax(-1) * below).sum(-1).T  # (2, 60)
    zero, one = torch.zeros(2, 1).double(), torch.ones(2, 1).double()
    due = torch.cat([under, one], 1) - torch.cat([zero, under], 1)
    torch.testing.assert_close(log_p.exp(), due, atol=1e-12, rtol=0)
    assert (levels.mean(params) - log_p.exp() @ codes).abs().max().item() < 0.1
    for t in (-1.0, 0.0, 17.0, 59.5, 60.0):
        found = levels.cumulative(params, torch.full((2,), t).double())
        torch.testing.assert_close(found, (log_p.exp() * (codes <= t)).sum(1))
    assert torch.equal(levels.mode(params), log_p.argmax(-1).double())
    n = 8192
    drawn = levels.sample(params.expand(n, 2, -1), normal_noise(n)[:, None].expand(-1, 2, 2))
    for j in range(2):
        share = torch.bincount(drawn[:, j].long(), minlength=61) / n
        assert (share - log_p[j].exp()).abs().max().item() < 0.01
    assert drawn.min() >= 0
    assert drawn.max() <= 60


def test_bits_and_codes_are_their_tables():
    bits = BernoulliDistribution(torch.tensor([0.2, 0.7]).double())
    torch.testing.assert_close(
        bits.initial_params()[:, 0].sigmoid(), torch.tensor([0.2, 0.7]).double()
    )
    params = random(2, 1)
    p = params[:, 0].sigmoid()
    both = bits.values(params).exp()
    torch.testing.assert_close(both, torch.stack([1 - p, p], -1))
    for x in (0.0, 1.0):
        found = bits.log_prob(params, torch.full((2,), x).double()).exp()
        torch.testing.assert_close(found, both[:, int(x)])
    assert torch.equal(bits.mean(params), p)
    assert torch.equal(bits.mode(params), (p > 0.5).double())
    noise = torch.stack([p - 0.01, p], -1)  # below its probability a uniform is 1
    assert bits.sample(params, noise).tolist() == [1.0, 1.0]
    assert bits.sample(params, noise + 0.02).tolist() == [0.0, 0.0]
    x = torch.tensor([[1.0, 0], [1, 1], [0, 1], [1, 1]]).double()
    seen = torch.tensor([[True, True], [True, False], [True, True], [False, True]])
    bits.fit(x, seen)
    torch.testing.assert_close(bits.odds.sigmoid(), torch.tensor([2.5 / 4, 2.5 / 4]).double())
    codes = CategoricalDistribution(2, 4, ordered=True)
    codes.fit(
        torch.tensor([[0.0, 3], [1, 3], [1, 2]]),
        torch.tensor([[True, True], [True, True], [True, False]]),
    )
    assert codes.share.tolist() == [[1.5, 2.5, 0.5, 0.5], [0.5, 0.5, 0.5, 2.5]]
    assert torch.equal(codes.initial_params(), codes.share.log())
    table = random(2, 4)
    p = table.softmax(-1)
    torch.testing.assert_close(codes.mean(table), p @ torch.arange(4.0).double())
    assert torch.equal(
        CategoricalDistribution(2, 4, ordered=False).mean(table), p.argmax(-1).double()
    )
    torch.testing.assert_close(codes.values(table).exp(), p)
    for k in range(4):
        found = codes.log_prob(table, torch.full((2,), float(k))).exp()
        torch.testing.assert_close(found, p[:, k])
        below = codes.cumulative(table, torch.full((2,), k + 0.5))
        torch.testing.assert_close(below, p[:, : k + 1].sum(1))
    assert torch.equal(codes.present(table), table)
    assert not codes.log_present(table).any()
    optional = CategoricalDistribution(2, 4, ordered=False, optional=True)
    torch.testing.assert_close(optional.log_present(table).exp(), 1 - p[:, -1])
    there = optional.present(table).softmax(-1)
    assert not there[:, -1].any()
    torch.testing.assert_close(there[:, :3], p[:, :3] / p[:, :3].sum(1, keepdim=True))


def test_codes_are_sampled_by_their_cumulative():
    logits = random(6)
    logits[[0, 5]] = -torch.inf
    p = logits.softmax(0)
    total = p.cumsum(0)
    u = torch.linspace(0, 1 - 1e-12, 997, dtype=torch.float64)
    found = sample_categorical(logits.expand(997, 6), u)
    assert torch.equal(found, (total <= u[:, None]).sum(1).clamp(max=5))
    assert sample_categorical(logits, torch.ones(()).double()).item() <= 5
    assert set(found.tolist()) == {1, 2, 3, 4}
    seen = torch.tensor([[True], [False], [True]])
    counts = smoothed_counts(torch.tensor([[2.0], [1.0], [2.0]]), seen, 4)
    assert counts.tolist() == [[0.5, 0.5, 2.5, 0.5]]


def test_normal_densities_and_means_of_weights():
    z = random(5, 2, 3)
    due = torch.distributions.Normal(0.0, 1.0).log_prob(z)
    torch.testing.assert_close(normal_log_prob(z), due)
    torch.testing.assert_close(normal_log_prob_rows(z), due.sum((1, 2)))
    log_w = random(7, 4)
    value, error = log_mean_exp(log_w)
    w = log_w.exp()
    torch.testing.assert_close(value, w.mean(0).log())
    torch.testing.assert_close(error, w.std(0) / math.sqrt(7) / w.mean(0))
    torch.testing.assert_close(log_mean_exp(log_w - 1e4)[0], value - 1e4)


@pytest.mark.parametrize("name", BOUNDS)
def test_coordinates_of_bounded_numbers_are_inverted_and_know_their_slope(name):
    part = BOUNDS[name]
    coordinate = BoundedCoordinate([part, part]).double()
    low, high = coordinate.ends()
    assert low.tolist() == [part.lower if part.lower is not None else -math.inf] * 2
    assert high.tolist() == [part.upper if part.upper is not None else math.inf] * 2
    x = torch.linspace(-0.9, 8.9, 33, dtype=torch.float64)[:, None].expand(-1, 2)
    x = x.clone().requires_grad_()
    t, slope = coordinate(x)
    torch.testing.assert_close(coordinate.inverse(t), x)
    (each,) = torch.autograd.grad(t.sum(), x)
    torch.testing.assert_close(slope.exp(), each)
    assert bool((t.diff(dim=0) > 0).all())
    alone, its = coordinate(x[:, 1], 1)
    assert torch.equal(alone, t[:, 1])
    assert torch.equal(its, slope[:, 1])
    assert torch.equal(coordinate.inverse(alone, 1), coordinate.inverse(t)[:, 1])
    for bound in (part.lower, part.upper):
        if bound is not None:
            at, _ = coordinate(torch.full((1, 2), bound).double())
            assert at.isfinite().all()
            width = 10.0 if name == "both" else 2.0
            near = (coordinate.inverse(at) - bound).abs() / width
            torch.testing.assert_close(
                near, torch.full((1, 2), NEAREST).double(), rtol=1e-3, atol=0
            )


def test_whole_numbers_keep_their_coordinate():
    part = Space(kind="counts", mean=(3.0,), scale=(2.0,), lower=0.0, upper=9.0)
    coordinate = BoundedCoordinate([part]).double()
    x = torch.arange(9.0)[:, None]
    assert torch.equal(coordinate(x)[0], x)
    assert not coordinate(x)[1].any()
    assert torch.equal(coordinate.inverse(x), x)


def mixed(name: str, optional: bool, atoms: tuple[float, ...], components: int = 2) -> MixedNumber:
    part = replace(BOUNDS[name], optional=optional, atoms=atoms)
    return MixedNumber([part, part], None, components).double()


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("atoms", [(), (0.5,), (0.5, 4.0)])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_mixed_number_is_density_and_masses(name, atoms, optional):
    number = mixed(name, optional, atoms)
    states = 1 + len(atoms) + optional
    assert number.count == number.number.count + (states if states > 1 else 0)
    params = number.initial_params() + 0.4 * random(2, number.count, seed=3)
    low = BOUNDS[name].lower if BOUNDS[name].lower is not None else -40.0
    high = BOUNDS[name].upper if BOUNDS[name].upper is not None else 50.0
    n = 40_000
    x = low + (high - low) * (torch.arange(n, dtype=torch.float64) + 0.5) / n  # no atom is hit
    width = (high - low) / n
    p = number.log_prob(params.expand(n, 2, -1), x[:, None].expand(-1, 2)).exp() * width
    mass = [number.log_prob(params, torch.full((2,), atom).double()).exp() for atom in atoms]
    empty = torch.zeros(2).double()
    if optional:
        empty = number.log_prob(params, torch.full((2,), torch.nan).double()).exp()
    total = p.sum(0) + sum(mass) + empty
    torch.testing.assert_close(total, torch.ones(2).double(), atol=2e-4, rtol=0)
    torch.testing.assert_close(number.log_present(params).exp(), 1 - empty)
    there = number.present(params)
    mean = ((p * x[:, None]).sum(0) + sum(m * a for m, a in zip(mass, atoms, strict=True))) / (
        1 - empty
    )
    torch.testing.assert_close(number.mean(params), mean, atol=5e-3, rtol=0)
    if optional:
        nan = torch.full((2,), torch.nan).double()
        assert number.log_prob(there, nan).isneginf().all()
    torch.testing.assert_close(number.mean(there), number.mean(params))
    for t in (-1.0, 0.2, 0.5, 3.0, 9.0):
        below = (p * (x <= t)[:, None]).sum(0)
        below = below + sum(m * (a <= t) for m, a in zip(mass, atoms, strict=True))
        found = number.cumulative(params, torch.full((2,), t).double())
        torch.testing.assert_close(found, below / (1 - empty), atol=2e-3, rtol=0)
    noise = normal_noise(8192)
    drawn = number.sample(params.expand(8192, 2, -1), noise[:, None].expand(-1, 2, 2))
    assert (drawn.isnan().double().mean(0) - empty).abs().max().item() < 1e-3
    for m, a in zip(mass, atoms, strict=True):
        assert ((drawn == a).double().mean(0) - m).abs().max().item() < 1e-3
    for t in (0.2, 3.0):
        share = (drawn <= t).double().mean(0) / (1 - empty)
        due = number.cumulative(params, torch.full((2,), t).double())
        assert (share - due).abs().max().item() < 0.02
    alone = number.sample(params[1].expand(8192, -1), noise, 1)
    assert torch.equal(alone.nan_to_num(-9e9), drawn[:, 1].nan_to_num(-9e9))


def test_a_mixed_number_counts_its_states_and_its_mode_is_an_atom_of_more_than_half():
    number = mixed("lower", True, (0.5, 4.0), 1)
    x = torch.tensor([0.5, 0.5, 4.0, torch.nan, 2.0, 2.5, 1.0]).double()[:, None].expand(-1, 2)
    seen = torch.ones_like(x, dtype=torch.bool)
    seen[0, 1] = False
    number.fit(x, seen)
    assert number.share.tolist() == [[3.5, 2.5, 1.5, 1.5], [3.5, 1.5, 1.5, 1.5]]
    assert number.state_of(x)[:, 0].tolist() == [1, 1, 2, 3, 0, 0, 0]
    start = number.initial_params()
    torch.testing.assert_close(start[:, :4], number.share.log())
    plain = number.coordinate.inverse(number.number.mode(start[:, 4:]))
    for state, value in ((1, 0.5), (2, 4.0)):
        heavy = start.clone()
        heavy[:, state] = 9.0
        assert number.mode(heavy).tolist() == [value, value]
    torch.testing.assert_close(number.mode(start), plain)
    assert isinstance(number, Distribution)


@pytest.mark.parametrize("name", BOUNDS)
def test_the_mixture_of_a_number_starts_at_its_mean_and_scale(name):
    part = replace(BOUNDS[name], scale=(0.01,))
    number = MixedNumber([part], None, 1).double()
    t, slope = number.coordinate(torch.tensor([3.0]).double())
    torch.testing.assert_close(number.number.shift, t, rtol=1e-5, atol=0)
    torch.testing.assert_close(number.number.scale, 0.01 * slope.exp(), rtol=1e-5, atol=0)
    values = torch.tensor([2.0, 4.0, 6.0, torch.nan]).double()[:, None]
    seen = torch.ones_like(values, dtype=torch.bool)
    optional = MixedNumber([replace(part, optional=True)], None, 1).double()
    optional.fit(values, seen)
    assert optional.share.tolist() == [[3.5, 1.5]]


def test_an_atom_of_just_half_is_not_the_mode():
    number = mixed("none", False, (7.0,), 1)
    params = number.initial_params()
    params[:, :2] = 0.0
    assert number.present_share(params).tolist() == [[0.5, 0.5]] * 2
    assert (number.mode(params) != 7.0).all()


@pytest.mark.parametrize("name", BOUNDS)
def test_nothing_lies_below_a_lower_bound_and_nothing_above_an_upper_one(name):
    """However much of the density is beside the bound."""
    number = mixed(name, False, (), 1)
    start, end = number.coordinate.ends()
    params = number.initial_params()
    for bound, inward, due in ((start, 1e-3, 0.0), (end, -1e-3, 1.0)):
        if bound.isfinite().all():
            near = torch.where(torch.arange(number.count) == 0, -6e4 * inward, params)
            assert number.cumulative(near, bound).tolist() == [due, due]
            beside = number.cumulative(near, bound + inward)
            torch.testing.assert_close(beside, torch.full((2,), 1 - due).double())


def test_counts_that_are_empty_fit_no_bins():
    part = Space(kind="counts", mean=(6.0,), scale=(3.0,), optional=True)
    number = MixedNumber([part], BinnedCounts([part], 8), 1).double()
    x = torch.cat([torch.arange(3.0, 9.0), torch.full((40,), torch.nan)]).double()[:, None]
    number.fit(x, torch.ones_like(x, dtype=torch.bool))
    alone = BinnedCounts([part], 8).double()
    alone.fit(x[:6], torch.ones(6, 1, dtype=torch.bool))
    torch.testing.assert_close(number.number.state_dict(), alone.state_dict())


def test_scales_of_coordinates_have_limits():
    for scale, due in ((1e9, 1e6), (1e-9, 1e-6)):
        part = Space(kind="real", scale=(scale,))
        assert MixedNumber([part], None, 1).number.scale.item() == pytest.approx(due, rel=1e-7)
