"""Laws that hold for any input: schedules, bijections, splits, budgets, codecs and metrics."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monge.core.errors import MongeError, UsageError
from monge.data.options import Options
from monge.data.splits import by_group, divide
from monge.evaluate.energy_distance import energy
from monge.evaluate.forecasts import crps, normal_crps
from monge.evaluate.text import bleu, chrf, distance
from monge.models.diffusion.vdm import LearnedSchedule
from monge.prob.bijections.spline import SplineMap
from monge.prob.bijections.univariate import AdditiveMap, AffineMap
from monge.prob.divergence import jensen_shannon, kl, total_variation, wasserstein
from monge.prob.noise_schedule import NoiseSchedule
from monge.solve.transport.exact import on_line
from monge.train.budget import Budget

FEW = settings(max_examples=40)
NUMBERS = st.floats(-8, 8, allow_nan=False, width=32)
SHAPES = st.sampled_from(("linear", "cosine", "sigmoid", "logsnr", "edm"))
FAMILIES = st.sampled_from(("preserving", "exploding", "sub"))


def schedule(shape, family, high, low):
    return NoiseSchedule.Config(shape=shape, family=family, high=high, low=low).build()


@FEW
@given(SHAPES, FAMILIES, st.floats(2, 12), st.floats(-14, -4), st.floats(0, 1), st.floats(0, 1))
def test_the_log_snr_of_a_schedule_falls_and_time_inverts_it(shape, family, high, low, a, b):
    process = schedule(shape, family, high, low)
    t = torch.tensor(sorted((a, b)), dtype=torch.float64)
    log_snr = process.log_snr(t)
    assert log_snr[0] >= log_snr[1]
    assert low - 1e-9 <= float(log_snr[1]) <= float(log_snr[0]) <= high + 1e-9
    assert torch.allclose(process.log_snr(process.time(log_snr)), log_snr, atol=1e-8)
    ratio = process.alpha(t).square() / process.sigma(t).square()
    assert torch.allclose(ratio.log(), log_snr, atol=1e-8)


@FEW
@given(SHAPES, FAMILIES, st.lists(st.floats(0, 1), min_size=3, max_size=3, unique=True))
def test_two_steps_of_noise_are_one(shape, family, times):
    process = schedule(shape, family, 6.0, -6.0)
    s, t, u = torch.tensor(sorted(times), dtype=torch.float64)
    first, second, both = process.step(s, t), process.step(t, u), process.step(s, u)
    ratio = process.alpha(u) / process.alpha(t)
    found = ratio.square() * first.forward + second.forward
    assert float((found - both.forward).abs() / process.spread(u).square()) < 1e-9


@FEW
@given(st.integers(1, 12), st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_a_learned_schedule_falls_for_any_weights(width, seed, a, b):
    torch.manual_seed(seed)
    learned = LearnedSchedule.Config(width=width).build().double()
    with torch.no_grad():
        for parameter in learned.shape_params:
            parameter.add_(4 * torch.randn_like(parameter))
        log_snr = learned.log_snr(torch.tensor(sorted((a, b)), dtype=torch.float64))
    rounding = 1e-12 * (learned.ends[0] - learned.ends[1])  # of equal times, too
    assert log_snr[0] >= log_snr[1] - rounding


@FEW
@given(
    st.sampled_from((AdditiveMap(), AffineMap(), SplineMap(4), SplineMap(7))),
    st.integers(0, 10_000),
    st.lists(NUMBERS, min_size=1, max_size=5),
)
def test_maps_of_one_number_are_undone_and_rise(warp, seed, values):
    z = torch.tensor(values, dtype=torch.float64).sort().values[None]
    torch.manual_seed(seed)
    params = torch.randn(1, 1, warp.count, dtype=torch.float64).expand(1, z.shape[1], -1)
    x, log_slope = warp(params, z)
    again, back = warp.inverse(params, x)
    assert torch.allclose(again, z, atol=1e-6)
    assert torch.allclose(log_slope, -back, atol=1e-5)
    assert bool((x.diff() >= -1e-9).all())


@FEW
@given(st.integers(3, 400), st.integers(0, 99), st.floats(0.01, 0.4), st.floats(0.01, 0.4))
def test_splits_are_a_partition_that_depends_on_the_seed_alone(n, seed, valid, test):
    options = Options(seed=seed, valid=valid, test=test)
    parts = divide(n, options)
    rows = np.concatenate(list(parts.values()))
    assert np.sort(rows).tolist() == list(range(n))
    assert all(len(part) for part in parts.values())
    again = divide(n, options)
    assert all(np.array_equal(part, again[name]) for name, part in parts.items())


@FEW
@given(st.lists(st.integers(0, 7), min_size=12, max_size=80), st.integers(0, 99))
def test_rows_of_one_group_are_in_one_split(groups, seed):
    codes = np.unique(groups, return_inverse=True)[1]
    options = Options(seed=seed, group="group")
    try:
        split = by_group(codes, options, "the data")
    except MongeError:
        assert codes.max() + 1 < 3
        return
    assert all(len(set(split[codes == code])) == 1 for code in set(codes))


@FEW
@given(
    st.integers(1, 10**6),
    st.sampled_from(("s", "sec", "m", "minutes", "h", "steps", "step", "epochs")),
    st.booleans(),
)
def test_a_budget_is_read_as_it_is_written(amount, unit, more):
    budget = Budget.read(f"{'+' if more else ''}{amount}{unit}")
    factor = {"s": 1, "sec": 1, "m": 60, "minutes": 60, "h": 3600}.get(unit)
    limits = (budget.seconds, budget.steps, budget.epochs)
    assert budget.more == more
    assert sum(math.isfinite(limit) for limit in limits) == 1
    expected = amount * factor if factor else amount
    place = 0 if factor else 1 if unit.startswith("step") else 2
    assert limits[place] == expected


@FEW
@given(st.text(alphabet="0123456789.+-e smhxyz", max_size=8))
def test_any_other_budget_is_refused(text):
    try:
        budget = Budget.read(text)
    except UsageError:
        return
    assert min(budget.seconds, budget.steps, budget.epochs) > 0


TABLE = st.lists(st.floats(0.01, 1), min_size=4, max_size=4)


@FEW
@given(TABLE, TABLE, TABLE)
def test_divergences_obey_their_axioms(p, q, r):
    p, q, r = (torch.tensor(each, dtype=torch.float64) / sum(each) for each in (p, q, r))
    assert kl(p, q) >= -1e-12
    assert abs(float(kl(p, p))) < 1e-12
    assert -1e-12 <= jensen_shannon(p, q) <= math.log(2)
    assert torch.isclose(jensen_shannon(p, q), jensen_shannon(q, p), atol=1e-12)
    assert total_variation(p, r) <= total_variation(p, q) + total_variation(q, r) + 1e-12


POINTS = st.lists(NUMBERS, min_size=2, max_size=7)


@FEW
@given(POINTS, POINTS, st.floats(-5, 5))
def test_distances_are_symmetric_and_see_shifts(x, y, shift):
    x, y = (torch.tensor(each, dtype=torch.float64) for each in (x, y))
    assert float(on_line(x, x + shift, 1.0)) == pytest.approx(abs(shift), abs=1e-9)
    there, back = on_line(x, y, 2.0), on_line(y, x, 2.0)
    assert float(there) == pytest.approx(float(back), abs=1e-9)
    one, two = wasserstein(x[:, None], y[:, None]), on_line(x, y, 1.0)
    assert float(one) == pytest.approx(float(two), abs=1e-7)
    assert energy(x[:, None], y[:, None]).value == pytest.approx(
        energy(y[:, None], x[:, None]).value, abs=1e-9
    )


@FEW
@given(POINTS, NUMBERS, NUMBERS)
def test_the_crps_moves_with_its_forecast(samples, truth, shift):
    draws = torch.tensor(samples, dtype=torch.float64).reshape(-1, 1, 1, 1)
    truth = torch.full((1, 1, 1), truth, dtype=torch.float64)
    scale = torch.ones(1, dtype=torch.float64)
    here = crps(draws, truth, scale)
    assert torch.allclose(crps(draws + shift, truth + shift, scale), here, atol=1e-9)
    assert torch.allclose(crps(3 * draws, 3 * truth, scale), 3 * here, atol=1e-9)
    assert torch.allclose(crps(draws.flip(0), truth, scale), here, atol=1e-9)
    sure = normal_crps(truth, torch.full_like(truth, 1e-6), truth + shift, scale)
    assert float(sure) == pytest.approx(abs(shift), abs=1e-5)


WORDS = st.lists(st.sampled_from(("the", "cat", "sat", "on", "a", "mat")), min_size=1, max_size=8)


@FEW
@given(WORDS, WORDS, WORDS)
def test_edit_distance_is_a_metric_and_text_scores_have_bounds(a, b, c):
    assert distance(a, b) == distance(b, a)
    assert distance(a, c) <= distance(a, b) + distance(b, c)
    assert (distance(a, b) == 0) == (a == b)
    lines = [" ".join(a)], [" ".join(b)]
    for score in (bleu, chrf):
        assert 0 <= score(*lines).value <= 100 + 1e-9
    assert chrf(lines[0], lines[0]).value == pytest.approx(chrf(lines[1], lines[1]).value)
