"""Deep energy-based models: the base, chains, losses, normaliser, samples and the gradient."""

import math
from dataclasses import replace

import pytest
import small_data
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models._annealing import NormalPath
from monge.models.energy.ebm import EBM, resampled
from monge.nn.mlp import MLP
from monge.registry import check_compatible
from monge.train.trainer import Trainer

NET = MLP.Config(width=16, depth=2)
QUICK = EBM.LikelihoodConfig(temperatures=20, runs=32, leaps=1)
SHORT = EBM.SamplingConfig(temperatures=20, moves=5, leaps=1)


def built(dims=2, scale=0.5, **fields):
    """A model with random weights whose base is N(0, I)."""
    space = Space(kind="real", shape=(dims,), rows=100)
    torch.manual_seed(0)
    model = EBM.Config(net=NET, **fields).build(space).double().eval()
    for param in model.parameters():
        param.data += scale * torch.randn_like(param)
    return model


def fitted(space, rows, **fields):
    torch.manual_seed(0)
    config = EBM.Config(net=NET, widths=(4, 4), **fields)
    model = config.build(space).double().eval()
    model.initialise_from_data(Batch(rows))
    return model


def leaning(count, seed=0):
    """Two correlated normal numbers in units of their own."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(count, 2, generator=g, dtype=torch.float64)
    return torch.stack([100 + 10 * z[:, 0], z[:, 0] + 0.5 * z[:, 1]], 1)


def test_without_energy_the_model_is_its_base():
    x = leaning(2000)
    model = fitted(small_data.fitted(Space(kind="real", shape=(2,)), x), x)
    found = model.likelihood(Batch(leaning(1000, 1)), QUICK)
    assert found.kind == "estimate"
    assert (found.stderr == 0).all()
    entropy = math.log(2 * math.pi * math.e) + math.log(10 * 0.5)
    assert abs(found.value.mean().item() + entropy) < 0.15
    samples = model.sample(4000, None, SHORT, make_generator(0))
    own, other = torch.corrcoef(x.T)[0, 1], torch.corrcoef(samples.T)[0, 1]
    assert abs(own - other) < 0.05


def test_the_inverse_of_whitening_gives_the_rows_back():
    x = leaning(5000)
    model = fitted(small_data.fitted(Space(kind="real", shape=(2,)), x), x)
    w, log_det = model.whiten(x)
    torch.testing.assert_close(model.to_data(w), x)
    jacobian = torch.autograd.functional.jacobian(lambda row: model.whiten(row)[0][0], x[:1])
    torch.testing.assert_close(log_det[0], jacobian[:, 0].det().abs().log())
    torch.testing.assert_close(w.T.cov(), torch.eye(2).double(), atol=0.05, rtol=0)


def test_maps_of_entries_need_many_rows():
    for count, linear in ((329, True), (330, False)):
        x = leaning(count)
        model = fitted(small_data.fitted(Space(kind="real", shape=(2,)), x), x)
        slopes = model.numbers(leaning(50, 1))[1]
        assert torch.allclose(slopes, slopes[:1].expand_as(slopes), atol=1e-4) == linear


def test_samples_follow_what_is_scored():
    model, n = built(scale=0.7), 4000
    axis = torch.linspace(-6, 6, 121, dtype=torch.float64)
    w = torch.cartesian_prod(axis, axis)
    p = model.log_density(w).softmax(0)
    options = model.SamplingConfig(temperatures=40, moves=10)
    x = model.sample(n, None, options, make_generator(0))
    for f in (lambda w: w, torch.square, lambda w: w.prod(1, keepdim=True), torch.sin):
        values = f(x)
        error = values.std(0) / math.sqrt(n)
        assert ((values.mean(0) - p @ f(w)).abs() < 5 * error).all()


def test_a_single_sample_is_one_of_many_chains(monkeypatch):
    model, seen = built(), []
    run = NormalPath.run
    monkeypatch.setattr(
        NormalPath,
        "run",
        lambda self, start, *rest: (seen.append(len(start)), run(self, start, *rest))[1],
    )
    options = model.SamplingConfig(temperatures=3, chains=64, moves=1)
    assert model.sample(1, None, options, make_generator(0)).shape == (1, 2)
    assert model.sample(100, None, options, make_generator(0)).shape == (100, 2)
    assert seen == [64, 100]


def test_chains_are_drawn_in_proportion_to_their_weights():
    which = resampled(torch.tensor([0.5, 0.0, 0.3, 0.2]).log(), 1000, make_generator(0))
    counts = torch.bincount(which, minlength=4)
    assert ((counts - torch.tensor([500, 0, 300, 200])).abs() <= 1).all()
    assert not torch.equal(which, which.sort().values)


def test_an_estimate_is_made_once_for_weights():
    model, options = built(), EBM.LikelihoodConfig(temperatures=5, runs=8)
    calls = []
    once = model.annealed_log_z
    model.annealed_log_z = lambda *words: (calls.append(words), once(*words))[1]
    rows = Batch(torch.randn(3, 2).double())
    first, second = (model.likelihood(rows, options) for _ in range(2))
    assert torch.equal(first.value, second.value)
    assert (first.stderr > 0).all()
    assert len(calls) == 1
    with torch.no_grad():
        model.net.out.weight.mul_(2)
    model.likelihood(rows, options)
    assert len(calls) == 2


def test_chains_go_round_and_some_start_anew():
    model = built(chains=8, moved=4, restart=0.0)
    model.states.copy_(torch.arange(16.0).reshape(8, 2) / 8)
    before = model.states.clone()
    torch.manual_seed(0)
    found = model.move_chains(Batch(torch.zeros(2, 2)))
    assert torch.equal(model.states[:4], before[4:])
    assert not torch.equal(model.states[4:], before[:4])
    torch.testing.assert_close(found["energy"], model.energy(model.states[4:]).mean())
    rows = torch.randn(5, 2).double()
    gap = model.energy(rows) - model.energy(model.states[4:]).mean()
    torch.testing.assert_close(model.loss(Batch(rows))["energy"], gap)
    far = built(chains=4, moved=4, restart=1.0, step_size=1e-9)
    far.states.fill_(50.0)
    far.move_chains(Batch(rows))
    assert far.states.abs().max() < 10


def test_the_step_size_follows_the_moves_accepted():
    for step, grows in ((0.01, True), (1.5, False)):
        model = built(scale=2.0, chains=64, moved=64, step_size=step)
        torch.manual_seed(0)
        model.move_chains(Batch(torch.zeros(2, 2)))
        assert (model.step_size > step) == grows


def test_chains_without_noise_run_downhill():
    model = built(chains=64, moved=64, restart=0.0, noise=0.0, moves=20, step_size=0.2)
    model.states.normal_()

    def height(w):
        return model.energy(w) + w.square().sum(1) / 2

    before = height(model.states)
    model.move_chains(Batch(torch.zeros(2, 2)))
    assert (height(model.states) < before).all()
    assert model.step_size == pytest.approx(0.2)


def test_squared_energies_are_penalised():
    model = built(chains=4, moved=4, penalty=0.5)
    rows = torch.randn(3, 2).double()
    found = model.loss(Batch(rows))["penalty"]
    own, others = model.energy(rows), model.energy(model.states)
    torch.testing.assert_close(found, 0.5 * (own.square() + others.square().mean()))


@pytest.mark.parametrize("loss", ["cd", "nce"])
def test_both_losses_learn_two_modes(loss):
    g = torch.Generator().manual_seed(0)
    side = (torch.rand(600, 1, generator=g) < 0.5) * 4.0 - 2
    rows = torch.cat([side, torch.zeros(600, 1)], 1) + 0.5 * torch.randn(600, 2, generator=g)
    space = small_data.fitted(Space(kind="real", shape=(2,)), rows)
    config = EBM.Config(net=NET, loss=loss, chains=128, penalty=0.01)
    torch.manual_seed(0)
    train = EBM.defaults(space).train.override("ema_decay=0", "warmup=0", "lr=5e-3")
    trainer = Trainer(config.build(space), small_data.Rows(Batch(rows[:500])), train, seed=0)
    for _ in range(150):
        trainer.train_step(1.0)
    found = trainer.model.eval().likelihood(Batch(rows[500:]), QUICK).value.mean().item()
    true = -math.log(2) - math.log(2 * math.pi * math.e * 0.25)  # of two modes that do not overlap
    assert true - 0.25 < found < true + 0.25


def test_more_noise_of_levels_raises_their_likelihood():
    space, batch = small_data.make("levels")
    model = fitted(space, batch.x.double())
    with torch.no_grad():
        model.net.out.weight.normal_(generator=make_generator(0))
    rows = batch[:50].double()
    one, many = (model.likelihood(rows, replace(QUICK, samples=k)) for k in (1, 30))
    assert many.value.mean() > one.value.mean()
    assert (many.stderr > one.stderr).all()
    x = model.sample(20, None, SHORT, make_generator(0))
    assert set(x.flatten().tolist()) <= {0.0, 1.0, 2.0, 3.0}


def test_the_gradient_of_log_p_points_to_the_data():
    x = leaning(2000)
    model = fitted(small_data.fitted(Space(kind="real", shape=(2,)), x), x)
    slopes = model.score(torch.tensor([[70.0, 0.0], [130.0, 0.0]]).double())
    assert slopes[0, 0] > 0 > slopes[1, 0]
    with pytest.raises(UsageError, match="ebm"):
        model.score(x[:1], torch.zeros(1))


def test_columns_of_numbers_are_taken_and_others_refused():
    number = Space(kind="real", name="weight", rows=50)
    count = Space(kind="counts", name="age", rows=50, mean=(40.0,), scale=(9.0,), lower=0.0)
    table = Space(kind="columns", shape=(2,), columns=(number, count), rows=50)
    check_compatible("ebm", EBM, table)
    rows = torch.stack([torch.randn(50), torch.arange(50.0)], 1).double()
    model = fitted(table, rows)
    x = model.sample(30, None, SHORT, make_generator(0))
    assert torch.equal(x[:, 1], x[:, 1].round())
    assert (x[:, 1] >= 0).all()
    assert model.likelihood(Batch(rows), QUICK).value.isfinite().all()
    named = Space(kind="label", size=3, name="colour", rows=50)
    atoms = Space(kind="real", name="rain", rows=50, atoms=(0.0,))
    for odd in (named, atoms):
        wrong = Space(kind="columns", shape=(2,), columns=(number, odd), rows=50)
        with pytest.raises(DataError, match=odd.name):
            check_compatible("ebm", EBM, wrong)


def test_many_entries_have_no_correlations_in_the_base():
    space = Space(kind="real", shape=(1, 33, 32), rows=10)
    model = EBM.Config(widths=(2, 2), chains=2).build(space)
    assert model.root.shape == (1,)
    x = torch.randn(4, 1, 33, 32)
    model.initialise_from_data(Batch(x))
    w, _ = model.whiten(x.flatten(1))
    torch.testing.assert_close(model.to_data(w).float(), x, atol=1e-4, rtol=1e-4)
    assert model.energy(w).shape == (4,)
