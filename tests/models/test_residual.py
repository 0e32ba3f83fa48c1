"""Residual flows: contractions, their inverse, and exact and estimated log-determinants."""

import pytest
import torch

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.flow.residual import ResidualFlow
from monge.prob.bijections.residual import (
    CERTAIN_TERMS,
    SLOPE,
    STOP,
    ContractiveNet,
    series_length,
)

SPACE = Space(kind="real", shape=(3,), rows=100)


def built(scale: float = 1.0) -> ResidualFlow:
    torch.manual_seed(0)
    model = ResidualFlow.Config(blocks=2, width=8, depth=1).build(SPACE).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("scale", [0.5, 5.0])
def test_networks_contract_whatever_their_weights(scale):
    torch.manual_seed(0)
    net = ContractiveNet(3, 2, 16, 2).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_().mul_(scale)
    x, y = scale * torch.randn(2, 500, 3).double()
    c, weights = torch.randn(1, 2).double().expand(500, 2), net.weights()
    slope = (net(x, c, weights) - net(y, c, weights)).norm(dim=1) / (x - y).norm(dim=1)
    assert slope.max() <= SLOPE**3
    assert slope.max() > 0.01


def test_blocks_are_inverted_to_rounding_and_know_their_volume():
    model = built(2.0)
    z = torch.randn(20, 3, generator=make_generator(0)).double()
    with torch.no_grad():
        y, there = model.push(z)
        again, back = model.pull(y)
    torch.testing.assert_close(again, z, atol=1e-12, rtol=0)
    torch.testing.assert_close(there, -back)
    matrix = torch.autograd.functional.jacobian(lambda v: model.pull(v)[0][0], y[:1])[:, 0]
    torch.testing.assert_close(torch.linalg.slogdet(matrix)[1], back[0])


def test_a_series_of_random_length_is_unbiased_and_called_an_estimate():
    model, n = built(), 1000
    batch = Batch(torch.tensor([[0.3, -0.5, 0.8]]).double().expand(n, 3), row=torch.arange(n))
    with torch.no_grad():
        exact = model.likelihood(batch[:1])
        options = model.LikelihoodConfig(logdet="roulette", probes=20)
        found = [model.likelihood(batch, options, make_generator(seed)) for seed in range(8)]
    assert exact.kind == "exact"
    assert {each.kind for each in found} == {"estimate"}
    means = torch.stack([each.value.mean() for each in found])
    error = float(means.std() / len(means) ** 0.5)
    assert abs(float(means.mean() - exact.value[0])) < 5 * max(error, 1e-3)
    alone = model.likelihood(batch[3:4], options, make_generator(0)).value
    torch.testing.assert_close(alone[0], found[0].value[3])


def test_the_length_of_a_series_has_the_probabilities_that_divide_its_terms():
    lengths = torch.tensor(
        [series_length(u) for u in torch.linspace(0.0005, 0.9995, 1000).tolist()]
    )
    for k in range(1, 6):
        reached = (1 - STOP) ** max(k - CERTAIN_TERMS, 0)
        assert (lengths >= k).double().mean().item() == pytest.approx(reached, abs=2e-3)


def test_gradients_of_the_estimate_are_those_of_the_exact_value_in_the_mean():
    torch.manual_seed(0)
    space = Space(kind="real", shape=(5,), rows=100)
    model = ResidualFlow.Config(blocks=1, width=8, depth=1).build(space).double()
    weight = model.inner.parts[0].net.layers[1].weight
    with torch.no_grad():
        weight.normal_()
    batch = Batch(torch.randn(1, 5).double().expand(4000, 5))

    def slope(value):
        return torch.autograd.grad(value, weight)[0]

    exact = slope(-model.likelihood(batch[:1]).value.mean())
    found = torch.stack([slope(model.loss(batch)["nll"].mean()) for _ in range(12)])
    error = found.std(0) / 12**0.5
    assert float(((found.mean(0) - exact).abs() / error.clamp_min(2e-3)).max()) < 6
