"""Bins against sums over their cells: masses, samples, means, modes, cumulatives and codes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from monge.core.rng import make_generator
from monge.core.space import Space
from monge.prob.bins import (
    CELLS_PER_STD,
    MAX_REPEATED,
    MAX_REPEATED_IN_ALL,
    UNREACHABLE_CELL,
    BinnedCounts,
    Bins,
    CellStates,
    EntryCodes,
    bin_starts,
    cells_to_upper,
    finite_log,
    robust_scale,
)

PARTS = {
    "counts": Space(kind="counts", mean=(4.0,), scale=(3.0,)),
    "counts from -2": Space(kind="counts", mean=(4.0,), scale=(3.0,), lower=-2.0),
    "counts from -2 to 40": Space(
        kind="counts", mean=(4.0,), scale=(3.0,), lower=-2.0, upper=40.0
    ),
    "levels": Space(kind="levels", size=60, mean=(20.0,), scale=(9.0,), high=(59.0,)),
    "real": Space(kind="real", mean=(4.0,), scale=(3.0,)),
    "real from -2": Space(kind="real", mean=(4.0,), scale=(3.0,), lower=-2.0),
    "real from -2 to 40": Space(kind="real", mean=(4.0,), scale=(3.0,), lower=-2.0, upper=40.0),
}
BINS = 7


def values(part: Space, n: int = 400) -> torch.Tensor:
    """Skewed values with repetitions, sorted."""
    normal = torch.randn(n, generator=make_generator(3), dtype=torch.float64)
    x = 1.5 * normal.exp() - 1.5
    x[: n // 5] = 2.0
    return (x if part.kind == "real" else x.round().clamp(-2, 40).abs()).sort().values


def made(name: str, fitted: bool) -> Bins:
    part = PARTS[name]
    bins = Bins([part], BINS).double()
    if fitted:
        bins.fit(0, values(part))
    return bins


def cells_of(bins: Bins) -> torch.Tensor:
    """A value in the middle of every cell that may matter, (N, 1)."""
    tail = float(bins.tail.max())
    used = bins.low[0][bins.live[0]]
    first = int(used[1]) - int(60 * tail) if not bins.floored[0] else 0
    last = int(bins.top[0]) or int(used[-1]) + int(60 * tail)
    cell = torch.arange(first, last, dtype=torch.float64)[:, None]
    return bins.origin + bins.unit * (cell + 0.5 * bins.real)


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_a_bin_has_mass_one_and_its_mean_and_peak_are_those_of_its_cells(name, fitted):
    bins = made(name, fitted)
    x = cells_of(bins)
    run, inside = bins.encode(x)
    width = float(bins.unit) if bins.real[0] else 1.0
    mass = inside[:, 0].exp() * width
    assert run.unique().tolist() == bins.live[0].nonzero()[:, 0].tolist()
    for k in run.unique().tolist():
        own = run[:, 0] == k
        assert mass[own].sum().item() == pytest.approx(1.0, abs=1e-9)
        mean = (mass[own] @ x[own, 0]).item()
        assert bins.middle[0, k].item() == pytest.approx(mean, abs=1e-6)
        if not bins.real[0]:
            assert mass[own & (x[:, 0] == bins.peak[0, k])].item() == mass[own].max().item()
    assert not bins.middle[0][~bins.live[0]].any()


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_samples_of_a_bin_lie_in_it_and_follow_its_masses(name, fitted):
    bins, n = made(name, fitted), 4000
    u = ((torch.arange(n, dtype=torch.float64) + 0.5) / n)[:, None]
    v = torch.full_like(u, 0.5)
    for k in bins.live[0].nonzero()[:, 0].tolist():
        run = torch.full_like(u, k, dtype=torch.long)
        x = bins.decode(run, u, v)
        assert torch.equal(bins.encode(x)[0], run)
        found, count = x[:, 0].unique(return_counts=True)
        width = float(bins.unit) if bins.real[0] else 1.0
        mass = bins.encode(found[:, None])[1][:, 0].exp() * width
        assert (count / n - mass).abs().max().item() < 1.01 / n
        if not bins.real[0]:
            for where in found[:: max(len(found) // 9, 1)].tolist():
                own, share = bins.below(torch.tensor([[where]], dtype=torch.float64))
                assert own.item() == k
                assert share.item() == pytest.approx(
                    float((x <= where).double().mean()), abs=1.01 / n
                )
    if bins.real[0]:
        low, high = (bins.decode(run[:1], u[:1], at * v[:1]) for at in (0.0, 1.0))
        assert (high - low).item() == pytest.approx(0.5 * float(bins.unit), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("counts", (0.5,)),
        ("counts from -2", (-3.0, 1.5)),
        ("counts from -2 to 40", (-3.0, 41.0)),
        ("levels", (-1.0, 60.0, 3.5)),
        ("real from -2", (-2.001,)),
        ("real from -2 to 40", (-2.001, 40.001)),
    ],
)
def test_values_without_a_cell_are_impossible(name, wrong):
    for fitted in (False, True):
        inside = made(name, fitted).encode(torch.tensor(wrong, dtype=torch.float64)[:, None])[1]
        assert inside.isneginf().all()


def test_the_ends_of_the_bounds_are_possible():
    for name, ends in {"counts from -2 to 40": (-2.0, 40.0), "levels": (0.0, 59.0)}.items():
        bins = made(name, True)
        assert bins.encode(torch.tensor(ends, dtype=torch.float64)[:, None])[1].isfinite().all()


def test_before_fitting_bins_are_equal_and_centred():
    counts = made("counts", False)
    step = round(6 * 3.0 / BINS)
    inner = counts.low[0, 1:]
    assert (inner.diff() == step).all()
    assert inner[BINS // 2 - 1] == 4  # the mean
    assert counts.tail.tolist() == [[step, step]]
    levels = made("levels", False)
    widths = levels.high[0] - levels.low[0]
    assert widths.sum() == 60
    assert int(widths.max() - widths.min()) <= 1
    real = made("real", False)
    assert real.origin.item() == 4.0
    assert real.unit.item() == pytest.approx(3.0 / CELLS_PER_STD)
    narrow = Bins([Space(kind="counts", mean=(0.0,), scale=(0.1,))], BINS)
    assert (narrow.low[0, 1:].diff() == 1).all()
    lower = made("counts from -2", False)
    assert lower.low[0, 0] == 0
    assert lower.low[0, 1] == 1
    assert lower.origin.item() == -2.0


def test_bins_hold_equal_shares_and_tails_their_mean_excess():
    bins = Bins([PARTS["counts"]], 5).double()
    bins.fit(0, torch.arange(100, dtype=torch.float64))
    assert bins.low[0, 1:4].tolist() == [25, 50, 75]
    assert bins.live[0].tolist() == [True] * 4 + [False]
    typical = (75 - 25) / 3
    due = (sum(range(25)) + typical) / 26
    torch.testing.assert_close(bins.tail, torch.full((1, 2), due, dtype=torch.float64))
    few = Bins([PARTS["counts"]], 9).double()
    few.fit(0, torch.tensor([5.0, 5.0, 7.0], dtype=torch.float64))
    assert few.low[0, 1:5].tolist() == [5, 6, 7, 8]
    assert few.tail.tolist() == [[1.0, 1.0]]  # at least the width of one cell
    left = Bins([PARTS["counts"]], 9).double()
    left.fit(0, torch.tensor([-40.0, 5.0, 5.0], dtype=torch.float64))
    assert left.low[0, 1:5].tolist() == [-40, -39, 5, 6]
    assert left.tail[0].tolist() == [46 / 4, 46 / 4]


def test_the_unit_of_real_numbers_is_their_robust_scale():
    x = torch.linspace(10, 20, 101, dtype=torch.float64)
    assert robust_scale(x) == pytest.approx(5.0 / 1.349)
    assert robust_scale(torch.full((9,), 2.0)) == 1.0
    spike = torch.tensor([0.0] * 8 + [4.0, 8.0], dtype=torch.float64)
    assert robust_scale(spike) == pytest.approx(float(spike.std(correction=0)))
    bins = made("real", False)
    bins.fit(0, x)
    assert bins.origin.item() == 15.0
    assert bins.unit.item() == pytest.approx(5.0 / 1.349 / CELLS_PER_STD)
    bounded = made("real from -2 to 40", True)
    assert bounded.origin.item() == -2.0
    assert bounded.unit.item() * int(bounded.top) == pytest.approx(42.0)


def test_cells_between_bounds():
    assert cells_to_upper(PARTS["counts"]) == 0
    assert cells_to_upper(PARTS["counts from -2"]) == 0
    assert cells_to_upper(Space(kind="counts", upper=3.0)) == 0
    assert cells_to_upper(PARTS["counts from -2 to 40"]) == 43
    assert cells_to_upper(PARTS["real from -2 to 40"]) == round(42 / 3 * CELLS_PER_STD)
    assert cells_to_upper(Space(kind="real", lower=0.0, upper=1e-9)) == 1


def test_binned_counts_have_the_mean_mode_and_cumulative_of_their_masses():
    parts = [PARTS["counts"], PARTS["counts from -2 to 40"]]
    binned = BinnedCounts(parts, BINS).double()
    seen = torch.ones(400, 2, dtype=torch.bool)
    seen[:30, 0] = False
    x = torch.stack([values(part) for part in parts], 1)
    binned.fit(x.masked_fill(~seen, torch.nan), seen)
    run = binned.runs.encode(x)[0]
    for j in range(2):
        count = torch.bincount(run[seen[:, j], j], minlength=BINS)
        assert torch.equal(binned.share[j], count + 0.5)
    assert torch.equal(binned.initial_params().exp().round(decimals=6), binned.share)
    noise = torch.randn(2, BINS, generator=make_generator(1), dtype=torch.float64)
    params = binned.initial_params() + noise
    grid = torch.arange(-2.0, 3000.0, dtype=torch.float64)[:, None].expand(-1, 2)
    mass = binned.log_prob(params.expand(len(grid), 2, BINS), grid).exp()
    low = torch.arange(-3000.0, -2.0, dtype=torch.float64)[:, None].expand(-1, 2)
    under = binned.log_prob(params.expand(len(low), 2, BINS), low).exp()
    total = mass.sum(0) + under.sum(0)
    torch.testing.assert_close(total, torch.ones(2, dtype=torch.float64))
    mean = (mass * grid).sum(0) + (under * low).sum(0)
    torch.testing.assert_close(binned.mean(params), mean)
    assert torch.equal(binned.mode(params), grid[mass.argmax(0), 0])
    for t in (-2.0, 0.0, 2.0, 2.7, 11.0, 40.0):
        place = math.floor(t) + 2
        due = under.sum(0) + mass[: place + 1].sum(0)
        found = binned.cumulative(params, torch.full((2,), t, dtype=torch.float64))
        torch.testing.assert_close(found, due)
    both = torch.stack([torch.linspace(0.01, 0.99, 50), torch.linspace(-2, 2, 50)], -1).double()
    drawn = binned.sample(params.expand(50, 2, BINS), both[:, None].expand(50, 2, 2))
    for j in range(2):
        assert torch.equal(binned.sample(params[j].expand(50, BINS), both, j), drawn[:, j])


MIXED = (
    Space(kind="binary", size=2),
    Space(kind="label", size=4, optional=True),
    Space(kind="levels", size=5),
    PARTS["levels"],
    PARTS["counts"],
    Space(kind="real", mean=(4.0,), scale=(3.0,), optional=True, atoms=(0.0, 9.0)),
    Space(kind="counts", mean=(4.0,), scale=(3.0,), optional=True),
)
SIZES = [2, 4, 5, BINS, BINS, BINS + 3, BINS + 1]


def mixed_rows() -> torch.Tensor:
    columns = [values(part) for part in MIXED[3:]]
    codes = [torch.arange(400, dtype=torch.float64) % size for size in SIZES[:3]]
    x = torch.stack([*codes, *columns], 1)
    x[::4, 5], x[1::4, 5], x[2::8, 5], x[::5, 6] = torch.nan, 0.0, 9.0, torch.nan
    return x


def made_codes() -> tuple[EntryCodes, torch.Tensor]:
    table = Space(kind="columns", shape=(len(MIXED),), columns=MIXED)
    codes, x = EntryCodes(table, BINS).double(), mixed_rows()
    codes.fit(x, torch.ones_like(x, dtype=torch.bool))
    return codes, x


def test_codes_are_laid_out_by_entry():
    codes, _ = made_codes()
    assert codes.sizes.tolist() == SIZES
    assert codes.total == sum(SIZES)
    assert codes.offset.tolist() == [sum(SIZES[:i]) for i in range(len(SIZES))]
    assert codes.owner.tolist() == [i for i, size in enumerate(SIZES) for _ in range(size)]
    assert codes.grouped.tolist() == [3, 4, 5, 6]
    assert codes.base.tolist() == [2, 4, 5, BINS, BINS, BINS, BINS]
    empty = [codes.offset[i] + SIZES[i] - 1 for i in (1, 5, 6)]
    assert codes.is_empty.nonzero()[:, 0].tolist() == empty


def test_rows_become_codes_and_codes_rows():
    codes, x = made_codes()
    code, inside = codes.encode(x)
    assert inside.isfinite().all()
    again = codes.sample(code, make_generator(0))
    torch.testing.assert_close(again[:, :3], x[:, :3])
    assert torch.equal(again.isnan(), x.isnan())
    for atom in (0.0, 9.0):
        assert torch.equal(again[:, 5] == atom, x[:, 5] == atom)
    assert torch.equal(codes.encode(again)[0], code)
    assert code[:, 5].unique().tolist()[-3:] == [BINS, BINS + 1, BINS + 2]
    states = [4.0, 9.0, torch.nan, 0.0]
    number = torch.tensor([[0.0, 0.0, 0.0, 1.0, 1.0, value, 3.0] for value in states]).double()
    found, log_p = codes.encode(number)
    assert found[1:, 5].tolist() == [BINS + 1, BINS + 2, BINS]
    assert not log_p[1:, 5].any()
    assert log_p[0, 5].item() != 0.0
    wrong = torch.tensor(
        [[2.0, 4.0, 5.0, 60.0, 0.5, 1.0, 0.5], [-1.0, 0.5, -1.0, 3.0, torch.nan, 1.0, 1]]
    )
    expected = [[True] * 5 + [False, True], [True] * 3 + [False, True, False, False]]
    assert codes.encode(wrong.double())[1].isneginf().tolist() == expected


def test_sums_tables_and_one_hot_codes():
    codes, x = made_codes()
    code, _ = codes.encode(x)
    seen = torch.ones_like(code, dtype=torch.bool)
    seen[0, 2] = False
    hot = codes.one_hot(code, seen)
    assert torch.equal(codes.sums(hot), seen.double())
    for i in range(len(SIZES)):
        own = hot[1:, codes.offset[i] : codes.offset[i] + SIZES[i]]
        assert torch.equal(own.argmax(1), code[1:, i])
    even = codes.even()
    torch.testing.assert_close(codes.sums(even), torch.ones(len(SIZES), dtype=torch.float64))
    assert even[:2].tolist() == [0.5, 0.5]
    for j, i in enumerate(codes.grouped.tolist()):
        own = even[codes.offset[i] : codes.offset[i] + BINS]
        assert torch.equal(own > 0, codes.runs.live[j])
        assert len(own[own > 0].unique()) == 1
    counts, prior = hot.sum(0), codes.even()
    rows = torch.arange(1.0, 8.0, dtype=torch.float64)
    for more in (3.0, rows):
        shrunk = codes.shrink(counts, prior, more)
        torch.testing.assert_close(codes.sums(shrunk), torch.ones(7, dtype=torch.float64))
        own = torch.as_tensor(more).expand(7)[codes.owner]
        total = codes.sums(counts)[codes.owner]
        torch.testing.assert_close(shrunk, (counts + own * prior) / (total + own))
    log_p = shrunk.log()
    empty = torch.stack([shrunk[codes.is_empty & (codes.owner == i)].sum() for i in range(7)])
    torch.testing.assert_close(codes.log_present(log_p).exp(), 1 - empty)
    assert torch.equal(codes.present(log_p).isneginf(), codes.is_empty | log_p.isneginf())


def test_codes_are_chosen_by_their_cumulative():
    codes, _ = made_codes()
    log_p = torch.randn(3, codes.total, generator=make_generator(1), dtype=torch.float64)
    which = torch.arange(600) % 3
    found = codes.choose(log_p, which, make_generator(5))
    u = torch.rand(600, len(SIZES), generator=make_generator(5), dtype=torch.float64)
    for i, (start, size) in enumerate(zip(codes.offset.tolist(), SIZES, strict=True)):
        p = log_p[which, start : start + size].exp()
        cumulative = p.cumsum(1) / p.sum(1, keepdim=True)
        assert torch.equal(found[:, i], (cumulative <= u[:, i : i + 1]).sum(1))


def test_states_are_read_and_written():
    states = CellStates(MIXED)
    assert states.sizes.tolist() == [1, 1, 1, 1, 1, 4, 2]
    assert not states.single
    assert CellStates(MIXED[:5]).single
    x = mixed_rows()
    state = states(x)
    assert not state[:, :5].any()
    assert torch.equal(state[:, 5] == 3, x[:, 5].isnan())
    assert torch.equal(state[:, 5] == 2, x[:, 5] == 9)
    assert torch.equal(state[:, 5] == 1, x[:, 5] == 0)
    assert torch.equal(state[:, 6], x[:, 6].isnan().long())
    other = states.write(torch.full_like(x, 7.0), state)
    assert torch.equal(states(other), state)
    assert (other[state == 0] == 7).all()


def test_logarithms_stay_finite():
    p = torch.tensor([0.0, 0.25, 1.0])
    found = finite_log(p)
    assert found.isfinite().all()
    torch.testing.assert_close(found[1:], p[1:].log())


def test_values_that_are_frequent_get_a_bin_of_their_own():
    light = [float(k) for k in range(50)]
    cells = torch.tensor(light + [60.0] * 300 + [70.0] * 200 + [80.0]).double().sort().values
    starts = bin_starts(cells, 8, True).tolist()
    assert {60.0, 70.0, 80.0} <= set(starts)  # each of the two ends where the next value is
    assert len(starts) <= 8
    counts = bin_starts(cells, 8, False).tolist()
    assert {60.0, 61.0, 70.0, 71.0} <= set(counts)


def test_the_largest_value_may_be_the_frequent_one():
    cells = torch.cat([torch.arange(50.0), torch.full((200,), 100.0)]).double()
    starts = bin_starts(cells, 8, True).tolist()
    assert starts[-1] == 100.0
    assert 1.0 not in starts  # nothing begins at the second of fifty values
    shares = torch.bucketize(cells[:50], torch.tensor(starts).double(), right=True).bincount()
    assert shares[shares > 0].min() >= 5


def test_every_bin_is_written_and_read():
    part = Space(kind="counts", mean=(20.0,), scale=(12.0,), optional=True)
    table = Space(kind="columns", shape=(1,), columns=(part,))
    codes = EntryCodes(table, BINS).double()
    x = torch.arange(60, dtype=torch.float64)[:, None]
    codes.fit(x, torch.ones_like(x, dtype=torch.bool))
    code = torch.arange(int(codes.runs.live.sum()))[:, None]
    again = codes.sample(code, make_generator(1))
    assert torch.equal(codes.encode(again)[0], code)


@pytest.mark.parametrize("name", ["counts", "real"])
def test_values_beyond_all_cells_are_in_the_outer_bins(name):
    bins = made(name, True)
    run, inside = bins.encode(torch.tensor([[-1e30], [1e30]], dtype=torch.float64))
    assert run[:, 0].tolist() == [0, int(bins.live[0].sum()) - 1]
    assert inside.isfinite().all()


def test_bins_reach_over_three_deviations_before_they_are_fitted():
    bins = Bins((Space(kind="counts", mean=(500.0,), scale=(1000.0,)),), 64)
    first, last = float(bins.high[0, 0]), float(bins.low[0, 63])
    width = 6000 / 64
    assert first == pytest.approx(500 - 3000 + width, abs=width)
    assert last == pytest.approx(500 + 3000 - width, abs=width)


def repeated_counts(lower=None):
    """Counts over a wide range, of which half are among forty values, with their distribution."""
    g = torch.Generator().manual_seed(0)
    chosen = torch.randint(0, 3000, (40,), generator=g)
    again = chosen[torch.randint(0, 40, (4000,), generator=g)]
    others = torch.randint(0 if lower == 0 else -500, 4000, (4000,), generator=g)
    x = torch.where(torch.rand(4000, generator=g) < 0.5, again, others).double()
    space = Space(
        kind="counts",
        shape=(1,),
        rows=4000,
        mean=(float(x.mean()),),
        scale=(float(x.std()),),
        lower=lower,
    )
    counts = BinnedCounts(space.parts, 64).double()
    counts.fit(x[:, None], torch.ones(4000, 1, dtype=torch.bool))
    params = torch.randn(1, 1, 64, generator=g, dtype=torch.float64)
    return counts, params, chosen, x


@pytest.mark.parametrize("lower", [None, 0])
def test_repeated_counts_are_discounted_by_the_share_of_single_ones(lower):
    """Absolute discounting: the share of a value in its bin is (its rows - d) / rows of the bin
    with d = n1 / (n1 + 2 n2), half a value added to either, of values with one and two rows. A
    bin that is open below has no values of its own."""
    counts, _, _, x = repeated_counts(lower)
    bins, rows = counts.runs, Counter(x.long().tolist())
    starts, ends = (edge[0] + bins.origin[0] for edge in (bins.low, bins.high))
    starts, ends = starts.tolist(), ends.tolist()
    if lower is None:
        starts[0] = -math.inf

    def bin_of(value):
        return next(k for k, (a, b) in enumerate(zip(starts, ends, strict=True)) if a <= value < b)

    wide = {v: bin_of(v) for v in rows if 1 < ends[bin_of(v)] - starts[bin_of(v)] < math.inf}
    once, twice = (sum(rows[v] == times for v in wide) for times in (1, 2))
    discount = (once + 0.5) / (once + 2 * twice + 1)
    total = Counter(bin_of(v) for v in x.long().tolist())
    due = {v: (rows[v] - discount) / total[k] for v, k in wide.items() if rows[v] > 1}
    kept = bins.repeated_share[0] > 0
    values = (bins.repeated[0, kept] + bins.origin[0]).tolist()
    found = dict(zip(values, bins.repeated_share[0, kept].tolist(), strict=True))
    assert len(due) > 40
    assert found == pytest.approx(due, rel=1e-6)


@pytest.mark.parametrize("lower", [None, 0])
def test_repeated_counts_have_probabilities_of_their_own(lower):
    counts, params, chosen, _ = repeated_counts(lower)
    x = torch.arange(0 if lower == 0 else -40_000, 40_000).double()[:, None]
    every = params.expand(len(x), 1, 64)
    p = counts.log_prob(every, x).exp()[:, 0]
    assert abs(p.sum() - 1) < 1e-5
    torch.testing.assert_close(counts.cumulative(every, x)[:, 0], p.cumsum(0), rtol=0, atol=1e-5)
    torch.testing.assert_close(counts.mean(params)[0, 0], (p * x[:, 0]).sum(), rtol=1e-4, atol=0)
    assert counts.mode(params)[0, 0] == x[p.argmax(), 0]
    beside = counts.log_prob(params.expand(40, 1, 64), chosen[:, None].double() + 7)
    own = counts.log_prob(params.expand(40, 1, 64), chosen[:, None].double())
    assert (own - beside).median() > 2
    n, g = 100_000, torch.Generator().manual_seed(1)
    noise = torch.stack([torch.rand(n, 1, generator=g), torch.randn(n, 1, generator=g)], -1)
    drawn = counts.sample(params.expand(n, 1, 64), noise.double())[:, 0]
    places = (drawn - x[0, 0]).long().clamp(0, len(x) - 1)
    share = torch.bincount(places, minlength=len(x)).double() / n
    frequent = p > 5e-4
    error = (p * (1 - p) / n).sqrt()
    assert ((share - p).abs() < 5 * error + 1e-5)[frequent].all()
    assert (share.cumsum(0) - p.cumsum(0)).abs().max() < 0.01


@pytest.mark.parametrize("lower", [None, 0])
def test_a_count_is_the_quantile_of_its_probability(lower):
    """Flows of tables turn probabilities within a bin into counts and back."""
    bins = repeated_counts(lower)[0].runs
    u = torch.linspace(0, 1, 501, dtype=torch.float64)[:-1, None]
    for run in range(1, int(bins.live.sum())):
        x = bins.decode(torch.full((500, 1), run), u, u)
        assert (x.diff(dim=0) >= 0).all()
        found, upto = bins.below(x)
        assert (found == run).all()
        own = bins.encode(x)[1].exp()
        assert ((upto - own < u + 1e-9) & (u < upto + 1e-9)).all()


def test_repeated_numbers_beside_counts_have_no_probability_of_their_own():
    """A density has no mass at a single value."""
    x = repeated_counts()[3]
    space = Space(
        kind="counts", shape=(1,), rows=4000, mean=(float(x.mean()),), scale=(float(x.std()),)
    )
    parts = (*space.parts, replace(space, kind="real", shape=()))
    bins = Bins(parts, 64)
    for j in range(2):
        bins.fit(j, x.sort().values)
    assert bins.repeated_share[0].any()
    assert not bins.repeated_share[1].any()


def test_many_counts_share_the_room_for_repeated_values():
    part = Space(kind="counts", mean=(0.0,), scale=(1e3,), rows=100_000)
    few, many = (Bins((part,) * n, 4).repeated for n in (2, 200))
    assert few.shape[1] == MAX_REPEATED
    assert many.numel() <= MAX_REPEATED_IN_ALL < many.numel() + 200


def test_values_of_single_rows_are_not_kept():
    g = torch.Generator().manual_seed(0)
    x = torch.randperm(100_000, generator=g)[:2000].double()
    space = Space(kind="counts", shape=(1,), rows=2000, mean=(5e4,), scale=(3e4,))
    counts = BinnedCounts(space.parts, 64)
    counts.fit(x[:, None], torch.ones(2000, 1, dtype=torch.bool))
    assert not counts.runs.repeated_share.any()
    state = counts.state_dict()
    for name in ("runs.repeated", "runs.repeated_share"):  # as runs from before have it
        del state[name]
    BinnedCounts(space.parts, 64).load_state_dict(state)


@pytest.mark.parametrize("name", ["levels", "counts from -2 to 40", "counts from -2"])
def test_the_lowest_values_may_have_bins_of_their_own(name):
    bins = made(name, False)
    first = float(bins.origin)
    often = torch.tensor([first, first + 1]).double().repeat_interleave(100)
    bins.fit(0, torch.cat([often, first + torch.arange(2.0, 40.0).double()]))
    assert bins.low[0, :3].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["levels", "counts from -2 to 40"])
def test_the_highest_value_may_have_a_bin_of_its_own(name):
    bins = made(name, False)
    last = float(bins.origin + bins.top) - 1
    often = torch.full((100,), last).double()
    bins.fit(0, torch.cat([last - torch.arange(1.0, 39.0).double().flip(0), often]))
    used = bins.live[0].nonzero()[-1]
    assert (bins.low[0, used].item(), bins.high[0, used].item()) == (
        int(bins.top) - 1,
        int(bins.top),
    )
    assert (bins.low[0][~bins.live[0]] >= UNREACHABLE_CELL).all()
