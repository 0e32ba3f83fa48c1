"""A mixture of Gaussians as a map: known densities, exact inverses, numbers of any size."""

import math

import torch

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.flow.coupling import CouplingFlow
from monge.models.flow.maf import MAF
from monge.nn.mlp import MLP
from monge.prob.bijections.rosenblatt import (
    UNUSED_LOG_WEIGHT,
    Rosenblatt,
    fit_mixture,
    joint_log_prob,
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
