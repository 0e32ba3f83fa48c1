"""The terms of a diffusion bound against divergences of normal distributions from torch."""

from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.gaussian_modes import GaussianModes
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.diffusion._likelihood import entrywise_step_kl, gaussian_denoiser_error, prior_kl
from monge.models.diffusion._parameterisation import DenoiserPrediction
from monge.models.diffusion.ddpm import DDPM
from monge.models.diffusion.score_sde import ScoreSDE
from monge.prob.divergence import fisher_divergence
from monge.prob.noise_schedule import NoiseSchedule

FAMILIES = pytest.mark.parametrize("family", ["preserving", "exploding", "sub"])


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=make_generator(seed), dtype=torch.float64)


def noising(family, low=-4.0):
    return NoiseSchedule.Config(family=family, low=low).build()


@FAMILIES
def test_the_prior_term_is_the_divergence_at_the_end(family):
    """At an end that is barely noise, so that no part of it is too small to be seen."""
    way, y, one = noising(family), gaussian(5, 3), torch.ones((), dtype=torch.float64)
    truth = kl_divergence(Normal(way.alpha(one) * y, way.sigma(one)), Normal(0, way.spread(one)))
    torch.testing.assert_close(prior_kl(way, y), truth.sum(1), rtol=1e-10, atol=1e-12)


@FAMILIES
@pytest.mark.parametrize("variance", ["forward", "posterior", "learned"])
def test_a_step_of_another_variance_is_a_divergence_of_normals(family, variance):
    way, y, z, guess = (
        noising(family),
        gaussian(5, 3),
        gaussian(5, 3, seed=1),
        gaussian(5, 3, seed=2),
    )
    s, t = torch.full((5,), 0.4).double(), torch.full((5,), 0.6).double()
    column = t[:, None]
    share = torch.rand(5, 3, generator=make_generator(3), dtype=torch.float64)
    prediction = DenoiserPrediction(
        z,
        way.alpha(column),
        way.sigma(column),
        "x0",
        guess,
        share if variance == "learned" else None,
    )
    step = way.step(s[:, None], column)
    ratio = {"forward": 1.0, "posterior": 0.0, "learned": share}[variance]
    wide = step.variance * (step.forward / step.variance) ** ratio
    truth = kl_divergence(
        Normal(step.on_z * z + step.on_x * y, step.variance.sqrt()),
        Normal(step.on_z * z + step.on_x * guess, wide.sqrt()),
    )
    torch.testing.assert_close(entrywise_step_kl(way, s, t, y, prediction, variance), truth)


@FAMILIES
def test_the_miss_of_the_simplest_denoiser_has_the_mean_that_is_taken_off(family):
    """Its mean over noise, by the nodes of Gauss and Hermite, which are exact for squares."""
    way, y = noising(family), gaussian(4, 1)
    t = torch.tensor(0.55, dtype=torch.float64)
    nodes = torch.tensor([-(3**0.5), 0.0, 3**0.5], dtype=torch.float64)
    misses, means = zip(
        *(
            gaussian_denoiser_error(y, torch.full_like(y, float(node)), way.alpha(t), way.sigma(t))
            for node in nodes
        ),
        strict=True,
    )
    mean = (misses[0] + 4 * misses[1] + misses[2]) / 6
    torch.testing.assert_close(means[0], mean)
    assert torch.equal(means[0], means[2])


@pytest.mark.parametrize("variance", ["posterior", "forward", "learned"])
def test_the_consistency_form_is_the_same_bound_with_a_larger_error(variance):
    space = Space(kind="real", shape=(2,), mean=(0.0, 0.0), scale=(1.0, 1.0), rows=100)
    torch.manual_seed(0)
    config = replace(DDPM.smallest_config(space), steps=5, variance=variance)
    config = config.override("schedule.high=3", "schedule.low=-4")
    model = config.build(space).double().eval()
    batch = Batch(gaussian(1, 2).expand(400, 2), row=torch.arange(400))
    values = {
        method: model.likelihood(batch, model.LikelihoodConfig(method=method, samples=20))
        for method in ("bound", "consistency")
    }
    error = {name: found.value.std().item() / 20 for name, found in values.items()}
    gap = (values["bound"].value - values["consistency"].value).mean().item()
    assert abs(gap) < 5 * sum(error.values())
    assert error["bound"] < error["consistency"] < 0.2
    assert values["consistency"].kind == "bound"


def test_the_consistency_form_needs_steps():
    space = Space(kind="real", shape=(2,), rows=100)
    model = ScoreSDE.smallest_config(space).build(space)
    with pytest.raises(UsageError, match="method=bound"):
        model.likelihood(torch.zeros(3, 2), model.LikelihoodConfig(method="consistency"))


def test_explicit_score_matching_is_zero_at_the_score_alone():
    modes = GaussianModes(torch.tensor([[0.0, 1.0], [2.0, 0.0]]).double(), 0.7)
    x = gaussian(50, 2)

    def score(x):
        near = (-(x[:, None] - modes.centres).square().sum(-1) / (2 * 0.49)).softmax(1)
        return (near @ modes.centres - x) / 0.49

    assert fisher_divergence(score, modes, x).max() < 1e-20
    moved = fisher_divergence(lambda x: score(x) + 1, modes, x)
    torch.testing.assert_close(moved, torch.ones(50).double())
