"""The Gaussian: its maximum, marginals, conditionals, and whole numbers as cells of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from counted import fitted, shares, world
from torch.distributions import MultivariateNormal, Normal

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.baseline._gaussians import pattern_groups, pattern_of
from monge.models.baseline.gaussian import Gaussian


def test_gaussian_is_the_maximum_of_the_likelihood():
    space, batch = world("real")
    model = fitted(Gaussian.Config(shrink=1e-9), space, batch, 1)
    gaussian = MultivariateNormal(batch.x.mean(0), batch.x.T.cov(correction=0))
    torch.testing.assert_close(
        model.log_prob(batch), gaussian.log_prob(batch.x), rtol=1e-6, atol=1e-5
    )
    assert model.likelihood(batch).kind == "exact"


def test_gaussian_marginals_and_conditionals():
    space = Space(kind="real", shape=(3,))
    root = torch.tensor([[1.0, 0, 0], [0.8, 0.5, 0], [-0.3, 0.9, 0.4]], dtype=torch.float64)
    x = torch.randn(400, 3, generator=make_generator(0), dtype=torch.float64) @ root.T + 2
    model = fitted(Gaussian.Config(), space, Batch(x), 1)
    gaussian = model.distributions[0]
    mean, cov = gaussian.mean[0], gaussian.root[0] @ gaussian.root[0].T
    seen = torch.tensor([True, False, True])
    question = Batch(x[:1].expand(40000, 3), observed=seen.expand(40000, 3))
    marginal = MultivariateNormal(mean[seen], cov[seen][:, seen])
    torch.testing.assert_close(model.log_prob(question[:1])[0], marginal.log_prob(x[0, seen]))
    gain = torch.linalg.solve(cov[seen][:, seen], cov[seen][:, 1])
    completed = model.complete(question, generator=make_generator(1))[:, 1]
    spread = (cov[1, 1] - gain @ cov[seen][:, 1]).sqrt()
    assert completed.mean() == pytest.approx(float(mean[1] + gain @ (x[0] - mean)[seen]), abs=0.01)
    assert completed.std() == pytest.approx(float(spread), rel=0.02)


@pytest.mark.parametrize("missing", [False, True])
def test_whole_numbers_have_the_variance_of_their_cells(missing):
    """A twelfth, whether a row has missing entries, which are regressed on the others, or not."""
    x = torch.randint(0, 5, (200, 2), generator=make_generator(0)).double()
    space = Space(kind="counts", shape=(2,), mean=(2.0,), scale=(1.5,))
    seen = torch.ones_like(x, dtype=torch.bool)
    rows = Batch(torch.cat([x, x[:1]]), observed=torch.cat([seen, ~seen[:1]]))
    model = fitted(Gaussian.Config(shrink=1e-9), space, rows if missing else Batch(x), 100)
    gaussian = model.distributions[0]
    root = gaussian.scale.double()[:, None] * gaussian.root[0].double()
    truth = x.T.cov(correction=0) + torch.eye(2) / 12
    torch.testing.assert_close(root @ root.T, truth, rtol=1e-4, atol=1e-4)


def test_levels_under_a_gaussian_are_bounded_tightly():
    """One entry: the truth is a difference of distribution functions, the ends open."""
    space = Space(kind="levels", shape=(1,), size=4)
    x = (1.5 + 1.5 * torch.randn(300, 1, generator=make_generator(0)).double()).floor().clamp(0, 3)
    model = fitted(Gaussian.Config(), space, Batch(x), 1)
    gaussian = model.distributions[0]
    edges = Normal(gaussian.mean[0, 0], gaussian.root[0, 0, 0]).cdf(
        gaussian.standard(torch.arange(1.0, 4.0))
    )
    truth = torch.cat([edges, torch.ones(1)]).diff(prepend=torch.zeros(1)).log()
    every = torch.arange(4.0, dtype=torch.float64)[:, None]
    loose = model.likelihood(every)
    tight = model.likelihood(every, model.LikelihoodConfig(samples=400))
    assert loose.kind == tight.kind == "bound"
    assert (loose.value < tight.value).all()
    torch.testing.assert_close(tight.value[1:3], truth[1:3], atol=0.03, rtol=0)
    assert (tight.value <= truth + 0.03).all()
    found = shares(model.sample(40000, generator=make_generator(1)), every)
    assert (found - truth.exp()).abs().sum() / 2 < 0.01


def test_completing_levels_under_a_gaussian_follows_the_cells():
    space = Space(kind="levels", shape=(2,), size=3)
    root = torch.tensor([[1, 0.9], [0, 0.4]], dtype=torch.float64)
    z = torch.randn(500, 2, generator=make_generator(0)).double() @ root
    model = fitted(Gaussian.Config(), space, Batch((z + 1.5).floor().clamp(0, 2)), 1)
    joint = model.sample(200000, generator=make_generator(1))
    for first in range(3):
        truth = joint[joint[:, 0] == first, 1].long().bincount(minlength=3).double()
        hidden = torch.tensor([True, False]).expand(20000, 2)
        question = Batch(torch.tensor([[first, 0.0]]).double().expand(20000, 2), observed=hidden)
        completed = (
            model.complete(question, generator=make_generator(2))[:, 1]
            .long()
            .bincount(minlength=3)
        )
        assert (completed / 20000 - truth / truth.sum()).abs().sum() / 2 < 0.015


def test_labels_stand_beside_a_gaussian():
    space, batch = world("columns")
    model = fitted(Gaussian.Config(pseudo=1.0), space, batch, 1)
    only = replace(batch, observed=torch.tensor([False, True, False]).expand(1000, 3))
    count = batch.x[:, 1].long().bincount(minlength=3) + 1
    expected = (count / count.sum()).log()[batch.x[:, 1].long()]
    torch.testing.assert_close(model.log_prob(only), expected, check_dtype=False)


@pytest.mark.parametrize("dims", [1, 7, 52, 60, 130])
@pytest.mark.parametrize("components", [0, 3])
def test_rows_are_grouped_by_what_is_missing(dims, components):
    """Packed bits number the patterns as sorting whole rows does, and the groups hold every row
    once, beside rows of its pattern."""
    generator = make_generator(0)
    some = torch.rand(20, dims, generator=generator) < 0.8
    some[0, 0] = True
    some[1] = some[0].logical_xor(torch.arange(dims) == dims - 1)  # a difference in the last bit
    seen = some[torch.randint(20, (300,), generator=generator)]
    which = torch.randint(components, (300,), generator=generator) if components else None
    keys = seen.long() if which is None else torch.cat([which[:, None], seen.long()], 1)
    expected = keys.unique(dim=0, return_inverse=True)[1]
    assert torch.equal(pattern_of(seen, which), expected)
    found = []
    for group in pattern_groups(seen, 100, which):
        for rows, used in zip(group.rows, group.used, strict=True):
            assert len(expected[rows[used]].unique()) == 1
            found += rows[used].tolist()
    assert sorted(found) == list(range(300))
