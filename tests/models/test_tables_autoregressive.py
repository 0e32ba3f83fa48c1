"""Autoregressive models of tables with empty cells, atoms and bounds: sums and completions."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import islice

import pytest
import torch
from mixed_table import (
    DISCRETE,
    FLAG,
    REALS,
    SHARE,
    completion_error,
    conditional,
    deviation,
    discrete_rows,
    questions,
    real_rows,
    table,
    total,
)

from monge.core.batch import Batch
from monge.core.ensemble import Ensemble
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models import _particles
from monge.models.autoregressive.count_table import CountTable
from monge.models.autoregressive.deep_nade import DeepNADE
from monge.models.autoregressive.fvsbn import FVSBN
from monge.models.autoregressive.gpt import GPT
from monge.models.autoregressive.made import MADE
from monge.models.autoregressive.nade import NADE
from monge.nn.attention.transformer import CausalTransformer
from monge.nn.autoregressive.any_order import DenseSubsetNet

CONFIGS = {
    "made": MADE.Config(width=16, depth=1, components=2, orders=2, masks=1),
    "nade": NADE.Config(width=16, components=2),
    "relu": NADE.Config(width=16, components=2, activation="relu"),
    "gpt": GPT.Config(
        net=CausalTransformer.Config(width=16, depth=1, heads=2, expand=2), components=2
    ),
    "fvsbn": FVSBN.Config(components=2),
    "deep_nade": DeepNADE.Config(
        orders=1, order="natural", components=2, net=DenseSubsetNet.Config(width=16)
    ),
}
every = pytest.mark.parametrize("name", CONFIGS)
FEW = 20
"""Steps of a fit whose checks hold for any weights."""
BITS = Space(kind="binary", shape=(5,), mean=(0.5,), scale=(0.5,), rows=600)


@functools.cache
def fitted(name: str, what: str):
    """A model of the discrete table or of the bits, which several tests ask."""
    space, rows = (DISCRETE, discrete_rows()) if what == "table" else (BITS, copied_bits())
    return built(CONFIGS[name], space, rows)


def built(config, space: Space, x: torch.Tensor, steps: int = 150):
    """A model of these rows after a short fit, in double precision."""
    torch.manual_seed(3)
    model, x = config.build(space), x.float()
    model.initialise_from_data(Batch(x))
    adam = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(steps):
        loss = model.loss(Batch(x))["nll"].mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model.double().eval()


def copied_bits(n: int = 600) -> torch.Tensor:
    """Five bits, each later one nearly always the first."""
    u = torch.rand(n, 5, generator=make_generator(0))
    flips = u < torch.tensor([0.5, 0.15, 0.15, 0.15, 0.15])
    return ((flips[:, :1].long() + flips.long() * torch.tensor([0, 1, 1, 1, 1])) % 2).float()


@every
def test_discrete_tables_sum_to_one(name):
    assert total(fitted(name, "table"), DISCRETE) == pytest.approx(1, abs=1e-9)


@every
def test_real_tables_integrate_to_one(name):
    x = torch.stack([discrete_rows()[:, 1], real_rows()[:, 0]], 1)
    model = built(CONFIGS[name], table(FLAG, SHARE), x, FEW)
    assert total(model, table(FLAG, SHARE)) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", ["made", "nade", "relu", "gpt", "fvsbn"])
def test_completions_of_any_pattern_follow_the_conditional_given_present(name, cached):
    model = fitted(name, "table")
    options = model.SamplingConfig(particles=100, cached=cached)
    for row, hidden in islice(questions(), int(cached), None, 8):
        assert completion_error(model, DISCRETE, row, hidden, 500, options) < 5


@pytest.mark.parametrize("name", ["made", "gpt", "fvsbn"])
def test_several_completions_of_a_row_follow_the_conditional(name):
    model = fitted(name, "table")
    options = model.SamplingConfig(particles=100)
    for row, hidden in islice(questions(), 0, None, 5):
        assert completion_error(model, DISCRETE, row, hidden, 500, options, 5) < 5


@pytest.mark.parametrize("name", ["made", "nade", "gpt", "fvsbn"])
def test_several_completions_of_a_row_share_its_particles(name, monkeypatch):
    model, walked = fitted(name, "bits"), []
    noise = model.entry_noise
    monkeypatch.setattr(model, "entry_noise", lambda n, *rest: walked.append(n) or noise(n, *rest))
    rows = Batch(copied_bits(3).double(), observed=torch.tensor([False, True, False, True, True]))
    rows = replace(rows, observed=rows.observed.expand(3, 5))
    model.complete_several(rows, 10, model.SamplingConfig(particles=60), make_generator(1))
    assert sum(walked) <= 2 * 60 * len(rows)  # two orders round up


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", ["made", "nade", "relu", "gpt", "fvsbn"])
def test_particles_are_resampled_with_all_that_was_computed_of_them(name, cached, monkeypatch):
    """Bits of which every other one is seen, with the particles resampled after each."""
    monkeypatch.setattr(_particles, "RESAMPLE_BELOW", 1.01)
    model = fitted(name, "bits")
    row = torch.tensor([0.0, 1, 0, 1, 0], dtype=torch.float64)
    hidden = torch.tensor([True, False, True, False, True])
    found, due = bits_conditional(model, row, hidden)
    n = 500
    batch = Batch(row.expand(n, 5), observed=(~hidden).expand(n, 5))
    options = model.SamplingConfig(particles=100, cached=cached)
    done = model.complete(batch, options, make_generator(1))
    count, median, worst = model.effective
    assert count == 100
    assert 1 <= worst <= median < 90
    assert f"{median:.3g}" in model.completion
    assert deviation(done, found, due) < 5


@pytest.mark.parametrize("name", ["made", "gpt"])
def test_an_ensemble_completes_any_pattern(name):
    """Members that disagree are chosen by their likelihood of what is observed."""
    config = CONFIGS[name]
    model = Ensemble.Config(member=config, members=2).build(DISCRETE).double().eval()
    x = discrete_rows()
    other = torch.stack([2 - x[:, 0], x[:, 1], 4 - x[:, 2]], 1)
    fits = (fitted(name, "table"), built(config, DISCRETE, other, 60))
    for member, fit in zip(model.each, fits, strict=True):
        member.load_state_dict(fit.state_dict())
    options = model.SamplingConfig(particles=64)
    for row, hidden in islice(questions(), 0, None, 7 if name == "made" else 19):
        assert completion_error(model, DISCRETE, row, hidden, 400, options) < 5


def test_what_a_table_of_counts_says_of_any_pattern_is_its_sum():
    model = CountTable.Config().build(DISCRETE).double()
    model.count(Batch(discrete_rows()))
    for row, hidden in questions():
        found, _ = conditional(model, DISCRETE, row, hidden)
        due = model.log_prob(found).logsumexp(0)
        batch = Batch(row[None], observed=~hidden[None])
        torch.testing.assert_close(model.observed_log_prob(batch)[0], due)


def bits_conditional(model, row, hidden):
    every = torch.cartesian_prod(*[torch.arange(2.0).double()] * 5)
    found = every[((every == row) | hidden).all(1)]
    return found, model.log_prob(found).detach().softmax(0)


def test_the_mean_weight_is_the_probability_of_what_is_observed(monkeypatch):
    """Which chooses between the members of a mixture."""
    monkeypatch.setattr(_particles, "RESAMPLE_BELOW", 1.01)
    model, kept = fitted("fvsbn", "bits"), []
    monkeypatch.setattr(
        _particles, "choose_member", lambda filled, _: kept.extend(filled) or filled[0]
    )
    row = torch.tensor([[0.0, 1, 0, 1, 0]], dtype=torch.float64)
    seen = torch.tensor([[False, True, False, True, False]])
    options = model.SamplingConfig(particles=4000)
    model.complete(Batch(row, observed=seen), options, make_generator(0))
    every = torch.cartesian_prod(*[torch.arange(2.0).double()] * 5)
    due = model.log_prob(every[((every == row) | ~seen).all(1)]).logsumexp(0).item()
    assert kept[0].log_mean.item() == pytest.approx(due, abs=0.05)


def test_few_particles_are_far_from_the_conditional():
    """One particle ignores what comes after a hidden entry, so the test above can fail."""
    model = fitted("nade", "table")
    options = model.SamplingConfig(particles=1)
    errors = [
        completion_error(model, DISCRETE, row, hidden, 500, options) for row, hidden in questions()
    ]
    assert max(errors) > 20


def test_an_order_that_starts_with_what_is_known_is_completed_given_present():
    """deep_nade: the observed entries first, then the hidden ones in its order."""
    model = fitted("deep_nade", "table")
    options = model.SamplingConfig(particles=100)

    class Reordered:
        """log p of the hidden entries of a row given the others, in the order of the model."""

        def __init__(self, hidden):
            self.hidden = hidden

        def log_prob(self, x):
            seen, log_p = (~self.hidden).expand(x.shape).clone(), 0
            for entry in self.hidden.nonzero()[:, 0].tolist():
                log_p = log_p + model.predictions(Batch(x), seen)[:, entry]
                seen[:, entry] = True
            return log_p

        def complete(self, *inputs):
            return model.complete(*inputs)

    for row, hidden in islice(questions(), 2, None, 3):
        one = Reordered(hidden)
        assert completion_error(one, DISCRETE, row, hidden, 500, options) < 5


@every
def test_numbers_are_completed_within_bounds_and_never_empty(name):
    model = built(CONFIGS[name], REALS, real_rows(), FEW)
    for seen in ([False, True], [True, False], [False, False]):
        observed = torch.tensor(seen).expand(20, 2)
        x = real_rows(20, 5)
        done = model.complete(Batch(x, observed=observed), generator=make_generator(0))
        assert not bool((done.isnan() & ~observed).any())
        assert torch.equal(done.isnan() & observed, x.isnan() & observed)
        share = done[:, 0][~done[:, 0].isnan()]
        assert bool(((share >= 0) & (share <= 1)).all())


def test_exact_rows_and_weighted_rows_of_one_batch():
    model = fitted("nade", "bits")
    x = torch.ones(4, 5, dtype=torch.float64)
    seen = torch.tensor([[True] * 3 + [False] * 2, [False, True, True, True, True]] * 2)
    done = model.complete(Batch(x, observed=seen), generator=make_generator(0))
    assert torch.equal(done[seen], x[seen])
    assert model.effective is not None
    first = Batch(x[::2], observed=seen[::2])
    model.complete(first, generator=make_generator(0))
    assert model.effective is None
    assert "exact" in model.completion


def test_a_row_that_the_model_cannot_have_is_completed_all_the_same():
    """The count is beyond its bound: every particle has weight 0."""
    model = fitted("nade", "table")
    x = torch.tensor([[0.0, 1, 77.0]], dtype=torch.float64)
    seen = torch.tensor([[False, True, True]])
    done = model.complete(Batch(x, observed=seen), generator=make_generator(0))
    assert torch.equal(done[0, 1:], x[0, 1:])
    assert done[0, 0] in (0.0, 1.0)


def test_the_conditional_by_brute_force_is_a_distribution():
    model = fitted("nade", "table")
    for row, hidden in questions():
        found, due = conditional(model, DISCRETE, row, hidden)
        assert float(due.sum()) == pytest.approx(1)
        assert len(found) == 2 ** int(hidden[0]) * 2 ** int(hidden[1]) * 5 ** int(hidden[2])
