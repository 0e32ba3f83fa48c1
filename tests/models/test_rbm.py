"""Restricted Boltzmann machines: normaliser, chains, samples and completions."""

import math

import pytest
import small_data
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.energy import rbm
from monge.models.energy.rbm import RBM
from monge.train.trainer import Trainer


def built(dims=5, hidden=4, scale=1.0, **fields):
    space = Space(kind="binary", shape=(dims,), rows=100)
    torch.manual_seed(0)
    model = RBM.Config(hidden=hidden, **fields).build(space).double()
    for param in model.parameters():
        param.data = scale * torch.randn_like(param)
    return model


def bits(count, dims):
    return (torch.rand(count, dims, generator=make_generator(1)) < 0.5).double()


@pytest.mark.parametrize(("dims", "hidden"), [(5, 3), (3, 5)])
def test_the_sum_over_either_side_is_that_over_all_states(dims, hidden):
    model = built(dims, hidden)
    v, h = (torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * n).double() for n in (dims, hidden))
    energies = v @ model.weight @ h.T + (v @ model.visible)[:, None] + h @ model.hidden
    assert model.exact_log_z().item() == pytest.approx(energies.exp().sum().log().item())
    log_p = model.likelihood(Batch(v)).value
    torch.testing.assert_close(log_p, energies.logsumexp(1) - energies.logsumexp((0, 1)))


def test_annealing_finds_the_normaliser_within_its_error(monkeypatch):
    model = built(10, 8, scale=0.7)
    exact = model.exact_log_z()
    found, error = model.annealed_log_z(500, 200, seed=0)
    assert abs(found - exact) < 5 * error
    assert 0 < error < 0.1
    found, rough = model.annealed_log_z(2, 20_000, seed=0)  # unbiased by any ladder
    assert abs(found - exact) < 5 * rough
    assert 10 * rough > 2 * error
    monkeypatch.setattr(rbm, "MAX_ENUMERATED", 0)
    estimate = model.likelihood(Batch(bits(3, 10)))
    assert estimate.kind == "estimate"
    assert (estimate.stderr > 0).all()


def test_an_estimate_is_made_once_for_weights(monkeypatch):
    monkeypatch.setattr(rbm, "MAX_ENUMERATED", 0)
    model = built()
    calls = []
    once = model.annealed_log_z
    model.annealed_log_z = lambda *words: (calls.append(words), once(*words))[1]
    options = model.LikelihoodConfig(temperatures=5, runs=4)
    first, second = (model.likelihood(Batch(bits(2, 5)), options).value for _ in range(2))
    assert len(calls) == 1
    assert torch.equal(first, second)
    with torch.no_grad():
        model.weight.mul_(2)
    assert not torch.equal(first, model.likelihood(Batch(bits(2, 5)), options).value)
    assert len(calls) == 2


def test_gibbs_turns_reach_the_distribution(monkeypatch):
    model, count = built(4, 3), 20_000
    v = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4).double()
    p = model.likelihood(Batch(v)).value.exp()
    powers = 2 ** torch.arange(3, -1, -1)
    for exact in (True, False):
        if not exact:
            monkeypatch.setattr(rbm, "MAX_ENUMERATED", 0)
        x = model.sample(count, None, model.SamplingConfig(turns=60), make_generator(0))
        seen = torch.bincount((x.long() * powers).sum(1), minlength=16) / count
        assert (seen - p).abs().max() < 5 * 0.5 / math.sqrt(count)


def test_completions_follow_the_conditional_distribution():
    model, count = built(3, 4), 20_000
    known = torch.tensor([[1.0, 0.0, 0.0]]).double().repeat(count, 1)
    seen = torch.tensor([True, False, False]).repeat(count, 1)
    x = model.complete(
        Batch(known, observed=seen), model.SamplingConfig(turns=40), make_generator(0)
    )
    states = torch.tensor([[1.0, a, b] for a in (0, 1) for b in (0, 1)]).double()
    p = model.likelihood(Batch(states)).value.softmax(0)
    found = torch.bincount((2 * x[:, 1] + x[:, 2]).long(), minlength=4) / count
    assert (x[:, 0] == 1).all()
    assert (found - p).abs().max() < 5 * 0.5 / math.sqrt(count)


def test_chains_go_on_and_contrastive_divergence_starts_at_the_data():
    rows = bits(64, 5)
    model = built(chains=16)
    assert [update.name for update in model.updates()] == ["chains", "model"]
    before = model.states.clone()
    torch.manual_seed(0)
    model.move_chains(Batch(rows))
    assert not torch.equal(model.states, before)
    gap = model.loss(Batch(rows))["energy"]
    expected = model.free_energy(rows) - model.free_energy(model.states).mean()
    torch.testing.assert_close(gap, expected)
    plain = built(chains=0)
    assert [update.name for update in plain.updates()] == ["model"]
    plain.weight.data.zero_()
    plain.visible.data.fill_(50.0)  # one turn leads from any row to ones
    gap = plain.loss(Batch(rows))["energy"]
    torch.testing.assert_close(
        gap, plain.free_energy(rows) - plain.free_energy(torch.ones(1, 5).double())
    )


def test_a_machine_learns_two_patterns():
    rows = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]]).repeat(100, 1)
    space = Space(kind="binary", shape=(4,), rows=200)
    defaults = RBM.defaults(space)
    torch.manual_seed(0)
    trainer = Trainer(
        defaults.config.build(space), small_data.Rows(Batch(rows)), defaults.train, seed=0
    )
    for _ in range(600):
        trainer.train_step(1.0)
    mean = trainer.model.likelihood(Batch(rows)).value.mean().item()
    assert -1.2 < mean < -math.log(2) + 1e-6  # two equally likely rows


def test_missing_bits_are_refused_where_rows_are_scored():
    model = built()
    seen = torch.ones(2, 5, dtype=torch.bool)
    seen[0, 0] = False
    with pytest.raises(DataError, match="missing"):
        model.likelihood(Batch(bits(2, 5), observed=seen))
