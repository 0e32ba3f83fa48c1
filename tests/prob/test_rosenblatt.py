"""A mixture of Gaussians as a map: known densities, exact inverses, numbers of any size."""

import math

import pytest
import torch

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.flow.coupling import CouplingFlow
from monge.models.flow.maf import MAF
from monge.nn.mlp import MLP
from monge.prob.bijections.rosenblatt import (
    BOX,
    EM_STEPS,
    FOLDS,
    UNUSED_LOG_WEIGHT,
    Rosenblatt,
    cross_validated_log_prob,
    fit_em,
    fit_mixture,
    initial_centres,
    joint_log_prob,
    normal_score,
    stacking_log_weights,
)


def rows(n=120, dims=3):
    """Two clusters."""
    g = make_generator(0)
    near = 0.3 * torch.randn(n // 2, dims, generator=g) + 1.5
    wide = torch.randn(n // 2, dims, generator=g) * torch.linspace(1, 0.3, dims) - 1
    return torch.cat([near, wide]).double()


def built(dims=3, components=4):
    layer = Rosenblatt(dims, components).double()
    layer.initialise_from_data(rows(dims=dims))
    return layer


def log_normal(z):
    return -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)


def test_its_density_is_that_of_the_mixture():
    x, layer = rows(), built()
    z, log_det = layer.inverse(x)
    known = joint_log_prob(x, fit_mixture(x, 4)).logsumexp(1)
    torch.testing.assert_close(log_normal(z) + log_det, known)
    distribution = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=layer.logits),
        torch.distributions.MultivariateNormal(
            layer.mean, scale_tril=torch.linalg.inv(layer.matrix()).tril()
        ),
    )
    torch.testing.assert_close(log_normal(z) + log_det, distribution.log_prob(x))


def test_it_comes_back_and_knows_its_volume_both_ways():
    layer, z = built(), torch.randn(20, 3, generator=make_generator(1)).double()
    x, there = layer(z)
    again, back = layer.inverse(x)
    torch.testing.assert_close(again, z, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(there, -back)
    for way, value in ((layer, z[:1]), (layer.inverse, x[:1].detach())):
        matrix = torch.autograd.functional.jacobian(lambda v, f=way: f(v)[0][0], value)[:, 0]
        torch.testing.assert_close(torch.linalg.slogdet(matrix)[1], way(value)[1][0])
        assert torch.equal(matrix.triu(1), torch.zeros(3, 3).double())


def test_samples_have_the_moments_of_the_mixture():
    layer = built()
    with torch.no_grad():
        x, _ = layer(torch.randn(4000, 3, generator=make_generator(2)).double())
        mean = (layer.logits.softmax(0)[:, None] * layer.mean).sum(0)
    assert ((x.mean(0) - mean).abs() < 5 * x.std(0) / 4000**0.5).all()


def test_numbers_of_any_size_pass_in_float32():
    layer = built().float()
    x = torch.tensor([[1e6, 0.0, 0.0], [0.0, -1e6, 1e6], [9.99, -9.99, 5.0]])
    z, log_det = layer.inverse(x)
    assert z.isfinite().all()
    assert log_det.isfinite().all()
    torch.testing.assert_close(layer(z)[0], x, rtol=1e-3, atol=1e-2)
    log_det.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_weights_go_to_what_holds_on_other_rows():
    one = torch.randn(200, 2, generator=make_generator(3)).double()
    two = torch.cat([one[:100] * 0.1 + 3, one[100:] * 0.1 - 3])
    shares = []
    for x in (one, two):
        log_weights, mean, _ = fit_mixture(x, 6)
        assert len(mean) == 6
        assert abs(log_weights.exp().sum() - 1) < 1e-9
        shares.append(log_weights[:2].exp().sum())  # of the two mixtures of one component
    assert shares[1] < 0.05 < shares[0]
    assert (fit_mixture(one[:4], 6)[0] > UNUSED_LOG_WEIGHT).sum() == 2  # four rows bear no more


def test_a_flow_begins_as_the_mixture():
    x = rows(dims=2).float()
    space = Space(
        kind="real",
        shape=(2,),
        rows=120,
        name="x",
        mean=tuple(x.mean(0).tolist()),
        scale=tuple(x.std(0).tolist()),
    )
    for owner in (CouplingFlow, MAF):
        torch.manual_seed(0)
        defaults = owner.defaults(space).config
        assert defaults.components == 30
        model = defaults.build(space).double().eval()
        model.initialise_from_data(Batch(x.double()))
        coordinates, paid = model.outer.inverse(x.double())
        known = joint_log_prob(coordinates, fit_mixture(coordinates, 30)).logsumexp(1) + paid
        with torch.no_grad():
            torch.testing.assert_close(model.log_prob(x.double()), known, rtol=1e-4, atol=1e-4)
    many = Space(kind="real", shape=(2,), rows=10_000)
    assert CouplingFlow.defaults(many).config.components == 0
    assert isinstance(CouplingFlow.defaults(many).config.net, MLP.Config)


def test_em_starts_far_apart_and_shrinks_to_the_pooled_covariance():
    x, count, more = rows(dims=2), 3, 1.5
    centres = initial_centres(x, count)
    first = x[torch.linspace(0, 119, 100).long()]
    chosen = [first[(first - x.mean(0)).norm(dim=1).argmin()]]
    for _ in range(2):
        away = torch.stack([(first - one).norm(dim=1) for one in chosen]).amin(0)
        chosen.append(first[away.argmax()])
    assert torch.equal(centres, torch.stack(chosen))
    few = x[:2]
    assert torch.equal(initial_centres(few, 2).sort(0).values, few.sort(0).values)
    pooled = (x - x.mean(0)).T @ (x - x.mean(0)) / 120 + 1e-4 * torch.eye(2).double()
    prior = pooled / count
    weights, mean, cov = torch.full((3,), 1 / 3).double(), centres, prior.expand(3, 2, 2)
    for _ in range(EM_STEPS):
        normal = torch.distributions.MultivariateNormal(mean, cov)
        share = (weights.log() + normal.log_prob(x[:, None])).softmax(1)
        mass = share.sum(0)
        mean = share.T @ x / mass[:, None]
        scatter = torch.stack(
            [((x - m) * share[:, k : k + 1]).T @ (x - m) for k, m in enumerate(mean)]
        )
        cov = (scatter + more * prior) / (mass + more)[:, None, None]
        weights = (mass + 1 / 3) / 121
    found = fit_em(x, count, more)
    torch.testing.assert_close(found[0].exp(), weights)
    torch.testing.assert_close(found[1], mean)
    torch.testing.assert_close(found[2], cov)


def test_rows_are_scored_by_the_other_folds_and_options_stacked():
    x = rows(40, 2)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    found = cross_validated_log_prob(x, 2, 4.0)
    for k in range(FOLDS):
        own = order % FOLDS == k
        due = joint_log_prob(x[own], fit_em(x[~own], 2, 4.0)).logsumexp(1)
        torch.testing.assert_close(found[own], due)
    log_p = torch.tensor([[0.0, -50.0], [-50.0, 0.0], [0.0, -50.0], [0.0, -50.0]]).double()
    torch.testing.assert_close(
        stacking_log_weights(log_p).exp(), torch.tensor([0.75, 0.25]).double()
    )
    options = [(1, 4.0), (1, 1.0), (2, 4.0), (2, 1.0)]
    log_weights, mean, cov = fit_mixture(x, 6)
    stacked = stacking_log_weights(
        torch.stack([cross_validated_log_prob(x, *each) for each in options], 1)
    )
    parts = [fit_em(x, *each) for each in options]
    torch.testing.assert_close(mean, torch.cat([part[1] for part in parts]))
    torch.testing.assert_close(cov, torch.cat([part[2] for part in parts]))
    due = torch.cat([part[0] + w for w, part in zip(stacked, parts, strict=True)])
    torch.testing.assert_close(log_weights, due.clamp_min(UNUSED_LOG_WEIGHT))
    assert [len(fit_mixture(x, most)[1]) for most in (1, 3, 8)] == [1, 3, 8]
    three = fit_mixture(x, 3)
    assert three[0].exp().sum().item() == pytest.approx(1.0)
    assert (three[0] == UNUSED_LOG_WEIGHT).sum() == 1  # one and one, and two would be too many
    five, six = x[18:23], x[17:23]  # three rows for each component, of both clusters
    assert [len(fit_mixture(few, 4)[1].unique(dim=0)) for few in (five, six)] == [1, 3]


def test_outside_the_box_the_slope_is_one():
    layer = built(dims=2)
    inside = torch.tensor([[BOX, 0.5]]).double()
    z, _ = layer.inverse(inside)
    far, log_det = layer.inverse(inside + torch.tensor([[3.0, 0.0]]).double())
    torch.testing.assert_close(far - z, torch.tensor([[3.0, 0.0]]).double())
    both = layer.inverse(torch.tensor([[BOX + 3, -BOX - 2]]).double())
    assert both[1].item() == 0.0
    back, there = layer(torch.cat([far, both[0]]))
    due = torch.tensor([[BOX + 3, 0.5], [BOX + 3, -BOX - 2]]).double()
    torch.testing.assert_close(back, due)
    torch.testing.assert_close(there, -torch.cat([log_det, both[1]]))


def test_normal_scores_are_exact_far_in_the_tails():
    e = torch.tensor([-30.0, -6.0, -3.2, -3.1, 0.0, 2.0, 30.0]).double()[:, None]
    share, log_p = torch.zeros_like(e), -e.square() / 2 - math.log(2 * math.pi) / 2
    e.requires_grad_()
    z, log_slope = normal_score(share, e, log_p)
    torch.testing.assert_close(z, e[:, 0])  # one normal is its own score
    torch.testing.assert_close(log_slope, torch.zeros(7).double(), atol=1e-9, rtol=0)
    (slope,) = torch.autograd.grad(z.sum(), e)
    torch.testing.assert_close(slope, torch.ones_like(slope))
