"""Completion of tables: the truth completes with the figures that theory gives it, and worse
completions are seen."""

import math
from dataclasses import replace
from functools import cache

import pytest
import small_data
import torch

from monge.core.abilities import CanComplete, CanSample
from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.model import Model
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate import completion
from monge.evaluate.completion import (
    DRAWS,
    completion_metrics,
    mean_over_rows,
    paired_energy,
    random_rank,
)
from monge.evaluate.energy_distance import energy
from monge.evaluate.suite import flat, metric_groups, skipped_metrics

CORRELATION = 0.9
COLUMNS = (
    Space(kind="real", name="a", optional=True),
    Space(kind="real", name="b", scale=(2.0,)),
    Space(kind="label", size=3, name="c", optional=True),
)
SPACE = Space(kind="columns", shape=(3,), columns=COLUMNS, rows=2000)


def table(n: int, seed: int = 0) -> torch.Tensor:
    """Two numbers of correlation 0.9 and the sign of the first as a name; a tenth of a and c are
    empty."""
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(n, generator=g)
    b = 2 * (CORRELATION * a + math.sqrt(1 - CORRELATION**2) * torch.randn(n, generator=g))
    x = torch.stack([a, b, (a > 0).float()], 1)
    x[torch.rand(n, generator=g) < 0.1, 0] = torch.nan
    x[torch.rand(n, generator=g) < 0.1, 2] = 2
    return x


POOL = table(1500, 99)
POOL = POOL[~SPACE.empty(POOL).any(1)]


class Conditional(Model, CanSample, CanComplete):
    """Completes from the true conditional distributions, or from wrong ones."""

    events = {"columns"}

    def __init__(self, noise: float = 0.0, shift: float = 0.0):
        super().__init__(Conditional.Config(), SPACE)
        self.noise, self.shift = noise, shift

    def loss(self, batch):
        return {}

    def sample(self, n, given=None, options=None, generator=None):
        return table(n, int(torch.randint(1000, (), generator=generator)))

    def complete(self, batch, options=None, generator=None):
        assert not SPACE.empty(batch.x)[~batch.observed_mask].any()
        known = batch.observed_mask & ~SPACE.empty(batch.x)
        scale = torch.tensor([0.15, 0.3, 0.01])
        gap = ((batch.x.nan_to_num()[:, None] - POOL) / scale).square() * known[:, None]  # kernel
        pick = torch.multinomial((-gap.sum(-1) / 2).softmax(1), 1, generator=generator)[:, 0]
        noise = torch.randn(len(batch), 3, generator=generator)
        x = POOL[pick] + (self.shift + self.noise * noise) * torch.tensor([1.0, 2.0, 0.0])
        return torch.where(batch.observed_mask, batch.x, x)

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


ROWS = small_data.Rows(Batch(table(400, 1)))


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    monkeypatch.setattr(completion, "PATIENCE", math.inf)


@cache
def true_figures():
    return completion_metrics(Conditional(), ROWS)


@pytest.fixture
def truth():
    return true_figures()


def test_keys_are_flat_and_every_share_is_reported(truth):
    names = ("mae", "coverage_80", "accuracy", "energy_distance")
    expected = {f"hidden_{p}_{name}" for p in (10, 30, 50) for name in names}
    assert set(truth) == expected | {"rows_completed"}
    assert truth["rows_completed"].value == completion.MAX_ROWS
    assert all(math.isfinite(score.value) for score in truth.values())
    assert all(truth[f"hidden_{p}_{name}"].stderr > 0 for p in (10, 50) for name in names[:2])


def test_the_truth_covers_what_it_should_and_keeps_its_distance(truth):
    for percent in (10, 30, 50):
        covered = truth[f"hidden_{percent}_coverage_80"]
        assert abs(covered.value - 0.8) < 3.5 * covered.stderr
        apart = truth[f"hidden_{percent}_energy_distance"]
        assert abs(apart.value) < 3.5 * apart.stderr + 0.002
    # b given a has a deviation of 0.44, so the median errs by 0.35; with nothing known by 0.8.
    assert 0.2 < truth["hidden_10_mae"].value < truth["hidden_50_mae"].value < 0.8
    assert truth["hidden_10_accuracy"].value > truth["hidden_50_accuracy"].value > 0.6


def test_draws_of_the_truth_cover_four_fifths_and_their_median_is_the_middle():
    space = Space(kind="columns", shape=(1,), columns=(Space(kind="real", name="a"),))
    g, n = make_generator(0), 20_000
    truth = torch.rand(n, 1, generator=g)
    draws = torch.rand(n, completion.DRAWS, 1, generator=g)
    points = torch.zeros(n, 1, 1)[:50], torch.zeros(n, 1)[:50]
    filled = completion.Filled(truth, torch.ones(n, 1, dtype=torch.bool), draws, *points)
    covered = completion.completion_scores(filled, space)["coverage_80"]
    assert abs(covered.value - 0.8) < 3.5 * covered.stderr
    known = torch.arange(49.0).flip(0).reshape(1, 49, 1).expand(2, 49, 1)
    filled = completion.Filled(torch.full((2, 1), 23.0), filled.hidden[:2], known, *points)
    assert completion.completion_scores(filled, space)["mae"].value == 1


def test_wide_and_shifted_draws_are_seen(truth):
    wide = completion_metrics(Conditional(noise=2.0), ROWS)
    shifted = completion_metrics(Conditional(shift=1.0), ROWS)
    for percent in (30, 50):
        assert wide[f"hidden_{percent}_coverage_80"].value > 0.95
        assert shifted[f"hidden_{percent}_coverage_80"].value < 0.6
        mae, ideal = (found[f"hidden_{percent}_mae"] for found in (shifted, truth))
        assert mae.value > ideal.value + 4 * mae.stderr
        far = shifted[f"hidden_{percent}_energy_distance"]
        assert far.value > 4 * far.stderr


def test_the_same_seed_hides_the_same_cells():
    small = small_data.Rows(ROWS.all[:20])
    first, again, other = (completion_metrics(Conditional(), small, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_empty_and_unknown_cells_are_not_hidden(monkeypatch):
    seen = []

    def fill(*args):
        filled = original(*args)
        seen.append(filled)
        return filled

    original = completion.fill
    monkeypatch.setattr(completion, "fill", fill)
    observed = torch.ones(400, 3, dtype=torch.bool)
    observed[::2, 1] = False
    completion_metrics(Conditional(), small_data.Rows(replace(ROWS.all, observed=observed)))
    hidden = torch.cat([part.hidden for part in seen])
    rows = torch.cat([part.truth for part in seen])
    assert not bool((hidden & SPACE.empty(rows)).any())
    shares = [float(part.hidden[:, 0].double().mean()) for part in seen[2::3]]
    assert sum(shares) / len(shares) == pytest.approx(0.45, abs=0.1)  # half of the known
    some = completion.row_subset(small_data.Rows(replace(ROWS.all, observed=observed)), 200)
    first = completion.MIN_ROWS
    assert not bool((hidden[:first, 1] & ~some.observed_mask[:first, 1]).any())
    assert all(part.draws.shape[1] == completion.DRAWS for part in seen)


def test_a_slow_model_completes_fewer_rows(monkeypatch):
    monkeypatch.setattr(completion, "PATIENCE", 0.0)
    found = completion_metrics(Conditional(), ROWS)
    assert found["rows_completed"].value == completion.MIN_ROWS


def test_standard_errors_are_over_rows():
    values = torch.randn(50, 1, dtype=torch.float64, generator=make_generator(0))
    where = torch.ones(50, 4, dtype=torch.bool)
    found = mean_over_rows(values.expand(50, 4), where, "share")
    assert found.value == pytest.approx(float(values.mean()))
    assert found.stderr == pytest.approx(float(values.std()) / 50**0.5)


def test_the_paired_energy_distance_is_unbiased_and_leaves_out_own_pairs():
    g = make_generator(0)
    found = []
    for _ in range(40):
        x, y = (torch.randn(60, 2, dtype=torch.float64, generator=g) for _ in range(2))
        shared = torch.cat([y[:, :1], x[:, 1:]], 1)[:, None]  # one column is known
        found.append(paired_energy(shared, y))
    mean = sum(score.value for score in found) / 40
    error = sum(score.stderr for score in found) / 40
    assert abs(mean) < 3 * error / 40**0.5
    x, y = torch.randn(300, 2, dtype=torch.float64, generator=g) + 1, y.repeat(5, 1)[:300]
    whole = paired_energy(x[:, None], y)
    assert whole.value == pytest.approx(energy(x, y).value, rel=0.05)


class FirstOnly(Conditional):
    def complete(self, batch, options=None, generator=None):
        raise DataError("only the last columns can be completed; hide those")


def test_a_model_that_refuses_such_cells_has_no_completion_and_a_finding():
    model, rows = FirstOnly(), small_data.Rows(ROWS.all[:30])
    assert completion_metrics(model, rows) == {}
    (finding,) = skipped_metrics(model, rows)
    assert finding.name == "completion"
    assert "only the last columns" in finding.sentence


def test_evaluation_has_a_group_of_completion_and_its_keys_are_unique():
    train = small_data.Rows(Batch(table(300, 2)))
    few = small_data.Rows(ROWS.all[:60])
    groups = metric_groups(Conditional(), few, train)
    assert list(groups) == ["samples", "table", "privacy", "completion", "cost"]
    found = flat(groups)
    assert sum(map(len, groups.values())) == len(found)
    assert all(math.isfinite(score.value) for score in found.values())


def test_the_rank_of_a_value_among_its_like_is_uniform_with_ties():
    """Zeros piled up are otherwise inside every interval."""
    g, n = torch.Generator().manual_seed(1), 20_000
    x = torch.poisson(torch.full((n, DRAWS + 1, 1), 0.3), generator=g).double()
    rank = random_rank(x[:, 0], x[:, 1:])
    shares = torch.bincount(rank.flatten().long(), minlength=DRAWS + 1) / n
    assert len(shares) == DRAWS + 1
    expected = 1 / (DRAWS + 1)
    assert (shares - expected).abs().max() < 5 * (expected / n) ** 0.5
