"""Draws of the weights: chains and particles train, widen where there are no data, and resume."""

import math
from dataclasses import replace

import pytest
import torch
from small_data import Rows
from training import advance, assert_unbroken

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.predict.bayes import BayesPredictor
from monge.nn.mlp import MLP
from monge.prob.laplace import LaplacePosterior, gauss_newton, positive_part
from monge.solve.mcmc import DualAveraging, median_bandwidth, split_rhat, stein_direction
from monge.train.trainer import Trainer

X = Space(kind="real", shape=(1,), name="x", mean=(0.0,), scale=(1.0,), rows=80)
SPACE = Space(kind="real", shape=(), name="y", mean=(0.0,), scale=(1.0,), rows=80, given={"x": X})
SMALL = {
    "laplace": {"refresh": 5},
    "hmc": {"draws": 8, "chains": 2, "leaps": 5, "warmup": 10, "thin": 1},
    "svgd": {"draws": 6},
}
STEPS = {"laplace": 150, "hmc": 40, "svgd": 150}


def rows(n=80):
    """y = sin 2 x + 0.1 noise for x within -1..1."""
    x = 2 * torch.rand(n, 1, generator=make_generator(0)) - 1
    y = (2 * x[:, 0]).sin() + 0.1 * torch.randn(n, generator=make_generator(1))
    return Batch(y, {"x": Batch(x)})


def config(inference, **fields):
    net = MLP.Config(width=12, depth=1, activation="tanh")
    return BayesPredictor.Config(inference=inference, net=net, **SMALL[inference] | fields)


def trainer(inference):
    torch.manual_seed(0)
    chosen = BayesPredictor.defaults_with(SPACE, {"inference": inference}).train
    chosen = replace(chosen, lr=0.03, batch_size=40, warmup=0)
    return Trainer(config(inference).build(SPACE), Rows(rows()), chosen, seed=1)


@pytest.mark.parametrize("inference", ["laplace", "hmc", "svgd"])
def test_fits_are_certain_near_data_and_resume_bit_for_bit(inference, tmp_path):
    assert_unbroken(lambda: trainer(inference), tmp_path)
    made = trainer(inference)
    before = made.model.likelihood(rows()).value.mean().item()
    advance(made, STEPS[inference])
    model = made.model.eval()
    found = model.likelihood(rows())
    assert found.kind == "estimate"
    assert found.value.mean().item() > max(before, -0.5)
    near, far = (
        torch.stack(
            [
                model.head.mean(params)
                for params in model.passes({"x": Batch(torch.full((1, 1), at))}, 1, None)
            ]
        ).var(0)
        for at in (0.0, 5.0)
    )
    assert far > 2 * near > 0
    given = {"x": Batch(torch.zeros(50, 1))}
    first, again = (model.sample(50, given, generator=make_generator(3)) for _ in range(2))
    assert torch.equal(first, again)
    few = model.SamplingConfig(passes=3)
    assert len(model.passes(given, 50, few)) == 3


def test_the_gaussian_of_the_last_layer_is_the_posterior_given_its_features():
    made = trainer("laplace")
    advance(made, 30)
    model, batch = made.model.double().eval(), rows().double()
    model.fit_posterior(batch)
    features = model.features(model.trunk_inputs(batch.given, 80))
    params = model.params(batch.given, 80)
    shift = torch.zeros_like(params).requires_grad_()
    nll = -model.head.log_prob(params + shift, batch.x[:, None]).sum()
    (slope,) = torch.autograd.grad(nll, shift, create_graph=True)
    moved = slope.abs().sum(0) > 0
    place = int(moved.nonzero()[0]) if int(moved.sum()) == 1 else 0
    (curve,) = torch.autograd.grad(slope[:, place].sum(), shift)
    curve = curve[0, place]
    precision = curve * features.T @ features + model.precision * torch.eye(features.shape[1])
    found = model.root @ model.root.T
    outputs = model.scales.inputs
    found = found.reshape(features.shape[1], outputs, features.shape[1], outputs)
    torch.testing.assert_close(
        found[:, place, :, place], torch.linalg.inv(precision.detach()), rtol=1e-6, atol=1e-8
    )


def test_chains_that_do_not_agree_are_found():
    made = trainer("hmc")
    advance(made, 3)
    model = made.model.eval()
    with torch.no_grad():
        model.kept.copy_(torch.randn_like(model.kept) * 0.1)
        model.kept[::2] += 3.0  # the first chain
        model.moves.fill_(1000)
        model.accepted.fill_(0.05)
    names = {finding.name for finding in model.diagnose(rows())}
    assert names == {"chains apart", "acceptance"}
    assert trainer("laplace").model.diagnose(rows()) == []


@pytest.mark.parametrize(
    ("inference", "fields", "values"),
    [
        ("hmc", {"draws": 9, "chains": 4}, r"draws=9.*chains=4.*draws=12"),
        ("laplace", {"net": MLP.Config(width=9000, depth=1)}, r"4096.*\b18002|4096.*\b9001"),
        ("svgd", {"net": MLP.Config(width=500, depth=2)}, r"100000.*inference=laplace"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(inference, fields, values):
    with pytest.raises(UsageError, match=values):
        replace(config(inference), **fields).build(SPACE)


def test_the_step_size_is_one_at_which_moves_are_accepted_as_wished():
    found = DualAveraging.start(0.01)
    for _ in range(500):
        found = found.update((-found.step * 3).exp(), 0.8, 0.01)  # accepted less when larger
    assert float(found.averaged) == pytest.approx(-math.log(0.8) / 3, rel=0.1)


def test_particles_come_to_follow_a_gaussian():
    w = torch.randn(40, 1, generator=make_generator(0)).double() - 4
    for _ in range(800):
        w = w + 0.1 * stein_direction(w, (2 - w) / 0.25)
    assert float(w.mean()) == pytest.approx(2, abs=0.05)
    assert float(w.std()) == pytest.approx(0.5, abs=0.1)


def test_particles_at_one_place_have_a_bandwidth():
    assert float(median_bandwidth(torch.zeros(3, 3))) > 0
    assert split_rhat(torch.ones(10, 2, 3)).tolist() == [1.0] * 3


def test_outputs_that_nothing_couples_are_blocks_of_the_curvature():
    g = torch.Generator().manual_seed(0)
    full = torch.zeros(5, 7, 7, dtype=torch.float64)
    for own in ([0, 3, 5], [1, 6], [2]):  # 4 has no curvature at all
        part = torch.randn(5, len(own), len(own), generator=g, dtype=torch.float64)
        full[:, torch.tensor(own)[:, None], torch.tensor(own)] = part + part.mT
    values, vectors = torch.linalg.eigh(full)
    due = vectors * values.clamp(min=0)[:, None] @ vectors.mT
    assert (values < -0.1).any()
    torch.testing.assert_close(positive_part(full), due, rtol=0, atol=1e-12)
    dense = torch.tensor([[[1.0, 2.0], [2.0, 1.0]]])  # eigenvalues -1 and 3
    torch.testing.assert_close(positive_part(dense), torch.full((1, 2, 2), 1.5))


def test_the_evidence_of_a_linear_model_with_gaussian_noise_is_exact():
    g = torch.Generator().manual_seed(0)
    features = torch.randn(12, 3, generator=g, dtype=torch.float64)
    y, alpha = torch.randn(12, generator=g, dtype=torch.float64), torch.tensor(0.7).double()
    hessian = gauss_newton(features, torch.ones(12, 1, 1, dtype=torch.float64))
    mean = torch.linalg.solve(hessian + alpha * torch.eye(3), features.T @ y)
    found = LaplacePosterior.fit(hessian, mean.square().sum(), alpha, adapt=False)
    at_mean = torch.distributions.Normal(features @ mean, 1.0).log_prob(y).sum()
    covariance = torch.eye(12).double() + features @ features.T / alpha
    exact = torch.distributions.MultivariateNormal(torch.zeros(12).double(), covariance)
    torch.testing.assert_close(found.log_evidence(at_mean), exact.log_prob(y))
    best = LaplacePosterior.fit(hessian, mean.square().sum(), alpha)  # alpha |mean|^2 = gamma
    torch.testing.assert_close(best.precision * mean.square().sum(), best.determined)


def test_the_bandwidth_is_the_median_square_over_the_logarithm_of_the_count():
    w = torch.tensor([[0.0], [1.0], [3.0]])  # squared distances 1, 4 and 9
    found = median_bandwidth(torch.cdist(w, w).square())
    assert float(found) == pytest.approx(4 / math.log(3), rel=1e-6)
