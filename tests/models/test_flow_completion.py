"""What flows sample for hidden entries, compared with known conditionals."""

from dataclasses import replace

import pytest
import small_data
import torch

from monge import registry
from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.flow.cnf import CNF
from monge.nn.mlp import MLP
from monge.prob.bijections.linear import LULinear
from monge.prob.hmc import HamiltonianMonteCarlo

LONG = {"moves": 60, "leaps": 4}


def gaussian(name="coupling", dims=3):
    """A flow whose networks give zero, so that its learned matrices make it a Gaussian, and the
    mean and covariance of that."""
    torch.manual_seed(0)
    space = Space(
        kind="real", shape=(dims,), mean=(1.0, -2.0, 0.5), scale=(2.0, 0.5, 1.0), rows=1000
    )
    model = registry.find(name).smallest_config(space).build(space).double().eval()
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, LULinear):
                layer.lower.add_(0.5 * torch.randn_like(layer.lower))
                layer.upper.add_(0.5 * torch.randn_like(layer.upper))
    zero = torch.zeros(1, dims, dtype=torch.float64)
    with torch.no_grad():
        mean = model.push(zero)[0][0]
        root = torch.stack(
            [
                model.push(zero + unit)[0][0] - mean
                for unit in torch.eye(dims, dtype=torch.float64)
            ],
            1,
        )
    return model, mean, root @ root.T


def conditional(mean, cov, seen, x):
    """Mean and covariance of the hidden entries of N(mean, cov) given those seen."""
    h, o = (~seen).nonzero()[:, 0], seen.nonzero()[:, 0]
    gain = cov[h][:, o] @ torch.linalg.inv(cov[o][:, o])
    return mean[h] + gain @ (x[o] - mean[o]), cov[h][:, h] - gain @ cov[o][:, h]


@pytest.mark.parametrize("seen", [[True, False, False], [False, True, True]], ids=str)
def test_a_gaussian_flow_samples_the_known_conditional(seen):
    model, mean, cov = gaussian()
    seen, n = torch.tensor(seen), 1500
    x = mean + torch.tensor([1.0, -0.3, 0.8]).double()
    centre, spread = conditional(mean, cov, seen, x)
    batch = Batch(x.expand(n, 3), observed=seen.expand(n, 3))
    completed = model.complete(batch, model.SamplingConfig(**LONG), make_generator(0))
    assert torch.equal(completed[:, seen], batch.x[:, seen])
    hidden = completed[:, ~seen]
    error = 5 * (spread.diagonal() / n).sqrt()
    assert ((hidden.mean(0) - centre).abs() < error).all()
    torch.testing.assert_close(
        torch.cov(hidden.T).reshape(spread.shape),
        spread,
        rtol=0.2,
        atol=0.05 * float(spread.diagonal().max()),
    )
    plain = model.sample(n, generator=make_generator(0))[:, ~seen].mean(0)
    assert ((plain - centre).abs() > error).any()  # what was seen matters here


def test_a_seen_level_is_anywhere_in_its_interval():
    """Of two levels that a flow makes depend on one another, P(second | first) is that of the
    distribution, which many samples of the noise show."""
    space, batch = small_data.make("levels", 300)
    space = replace(space, shape=(2,))
    rows = replace(batch, x=batch.x.reshape(-1, 4)[:, :2]).double()
    torch.manual_seed(1)
    model = registry.find("coupling").smallest_config(space).build(space).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    model.initialise_from_data(rows)
    every = torch.cartesian_prod(torch.tensor([1.0]), torch.arange(4.0)).double()
    with torch.no_grad():
        share = model.likelihood(every, model.LikelihoodConfig(samples=600)).value.softmax(0)
    n = 1500
    shown = Batch(
        torch.tensor([1.0, 0.0]).double().expand(n, 2),
        observed=torch.tensor([True, False]).expand(n, 2),
    )
    completed = model.complete(shown, model.SamplingConfig(**LONG), make_generator(0))
    found = torch.bincount(completed[:, 1].long(), minlength=4) / n
    # The outermost levels also take what is sampled beyond them.
    assert (found - share).abs().max() < 0.06
    assert (share - 0.25).abs().max() > 0.1


def test_a_chain_leaves_its_distribution_and_fixed_entries_unchanged():
    start = torch.randn(4000, 2, dtype=torch.float64, generator=make_generator(0))
    start[:, 1] = 7.0
    free = torch.tensor([True, False]).expand(4000, 2)

    def log_p(s):
        return -s[:, 0].square() / 2 - s[:, 1].square()

    end = HamiltonianMonteCarlo(log_p, free, 10, 3, make_generator(1)).run(start)
    assert (end[:, 1] == 7).all()
    assert abs(end[:, 0].mean()) < 0.08
    assert abs(end[:, 0].std() - 1) < 0.06
    assert (end[:, 0] - start[:, 0]).abs().mean() > 0.3


def test_a_chain_rejects_what_is_not_finite():
    def log_p(s):
        return torch.where(s[:, 0] > 0, -s[:, 0], torch.nan)

    start = torch.ones(50, 1, dtype=torch.float64)
    end = HamiltonianMonteCarlo(log_p, start > 0, 20, 3, make_generator(0)).run(start)
    assert (end > 0).all()
    assert end.isfinite().all()


def test_many_entries_of_a_continuous_flow_are_repainted():
    space = Space(kind="real", shape=(40,), rows=100)
    model = CNF.Config(net=MLP.Config(width=16)).build(space).double().eval()
    assert "RePaint" in model.completion
    assert "RePaint" not in CNF.Config().build(Space(kind="real", shape=(2,), rows=9)).completion
    x = torch.randn(200, 40, dtype=torch.float64, generator=make_generator(0))
    seen = torch.arange(40).expand(200, 40) < 20
    completed = model.complete(Batch(x, observed=seen), generator=make_generator(1))
    assert torch.equal(completed[seen], x[seen])
    assert abs(completed[~seen].std() - 1) < 0.1  # it begins as N(0, I)


@pytest.mark.parametrize("seen", [[True, False, False], [False, True, True]], ids=str)
@pytest.mark.parametrize("draws", [1, 100])
def test_candidates_of_a_continuous_flow_follow_the_conditional(seen, draws):
    """A velocity linear in x makes a Gaussian: x(0) = expm(-A) z."""
    space = Space(kind="real", shape=(3,), rows=1000)
    model = CNF.Config(net=MLP.Config(width=4, depth=1)).build(space).double().eval()
    matrix = torch.tensor([[0.5, 0.8, 0.0], [0.0, -0.4, 0.9], [0.3, 0.0, 0.2]]).double()

    class Linear(torch.nn.Module):
        has_analytic_trace, shape = True, (3,)

        def forward(self, x, t, context=None):
            return x @ matrix.T

        def traced(self, x, t, context):
            return x @ matrix.T, matrix.trace().expand(len(x))

    model.flow.velocity = Linear()
    root = torch.linalg.matrix_exp(-matrix)
    cov, seen = root @ root.T, torch.tensor(seen)
    x = torch.tensor([[1.5, -1.0, 0.5], [-0.5, 0.7, 1.0]]).double()
    n = 60 if draws == 1 else 10
    batch = Batch(x.repeat_interleave(n, 0), observed=seen.expand(2 * n, 3))
    options = model.SamplingConfig(candidates=64)
    found = model.complete_several(batch, draws, options, make_generator(0))
    assert torch.equal(found[..., seen], batch.x[:, None, seen].expand(-1, draws, -1))
    for row, made in zip(x, found.reshape(2, -1, 3)[..., ~seen], strict=True):
        centre, spread = conditional(torch.zeros(3).double(), cov, seen, row)
        assert ((made.mean(0) - centre).abs() < 5 * (spread.diagonal() / len(made)).sqrt()).all()
        torch.testing.assert_close(
            torch.cov(made.T).reshape(spread.shape), spread, rtol=0.3, atol=0.05
        )
    assert model.effective[1] > 0.5 * model.effective[0]
