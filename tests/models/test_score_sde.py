"""Score models: what is matched, and that all three ways have their minimum at the score."""

import numpy as np
import pandas as pd
import pytest
import torch

import monge
from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.diffusion._denoisers import MLPDenoiser
from monge.models.diffusion._ode_samplers import DPM
from monge.models.diffusion._samplers import Langevin
from monge.models.diffusion.score_sde import ScoreSDE

PLANE = Space(kind="real", shape=(2,), name="x", mean=(1.0, -1.0), scale=(2.0, 0.5), rows=1000)
WAYS = ("denoising", "implicit", "sliced")


def build(match, **fields):
    torch.manual_seed(0)
    config = ScoreSDE.Config(net=MLPDenoiser.Config(width=16, depth=2), objective=match, **fields)
    model = config.build(PLANE).double()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def rows(n=64):
    x = torch.randn(n, 2, generator=make_generator(1), dtype=torch.float64)
    return Batch(torch.tensor([1.0, -1.0]) + torch.tensor([2.0, 0.5]) * x)


def loss(model, batch, seed=0):
    torch.manual_seed(seed)
    (term,) = model.loss(batch).values()
    return term


def test_slices_have_the_trace_as_their_mean():
    batch = Batch(rows().x[:1].repeat(4000, 1))
    exact, sliced = build("implicit"), build("sliced", probes=4)
    z, log_snr = torch.randn(1, 2).double().repeat(4000, 1), torch.zeros(4000).double()
    conditions = exact.encode_conditions({}, len(batch))
    with torch.no_grad():
        truth = exact.trace_loss(z, log_snr, conditions)
        found = sliced.trace_loss(z, log_snr, conditions)
    assert truth.std() < 1e-9
    assert abs(found.mean() - truth[0]) < 5 * found.std() / 4000**0.5
    assert found.std() > 1e-4


def test_implicit_and_denoising_differ_by_a_constant():
    """E|s + eps/sigma|^2/2 - E[tr ds + |s|^2/2] is the same for any two networks."""
    batch, gaps = rows(40_000), []
    for shift in (0.0, 0.3):
        both = [build(way) for way in ("denoising", "implicit")]
        for model in both:
            model.net.net.out.bias.data += shift
        with torch.no_grad():
            one, two = (loss(model, batch) for model in both)
        gaps.append((one - two).mean())
    moved = (one - two).std() / 40_000**0.5
    assert abs(gaps[0] - gaps[1]) < 6 * moved
    assert abs(one.mean() - two.mean()) > 0.1


@pytest.mark.parametrize("match", WAYS)
def test_gradients_reach_every_weight(match):
    model = build(match)
    loss(model, rows()).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_langevin_is_the_default_and_others_can_be_asked_for():
    model = build("denoising")
    options = model.SamplingConfig().override("sampler.steps=3", "corrections=2")
    assert type(options.sampler.build()).__name__ == "Langevin"
    assert model.sample(5, None, options, make_generator(0)).shape == (5, 2)
    assert model.sample(
        5, None, model.SamplingConfig(sampler=DPM.Config(steps=3)), make_generator(0)
    ).shape
    assert len(list(model.stream(5, None, options, make_generator(0)))) == 4


def test_tables_are_sampled_by_the_probability_flow(tmp_path):
    n = 200
    frame = pd.DataFrame({"a": np.arange(n) % 7 * 1.5, "b": np.where(np.arange(n) % 3, "x", None)})
    run = monge.fit("score_sde", frame, budget="2steps", out=tmp_path / "run", progress=False)
    plain, flow, steps = (
        run.sample_tensor(20, None, *options, seed=3)
        for options in ([], ["sampler=dpm"], ["sampler=langevin", "sampler.steps=2"])
    )
    assert torch.equal(plain.nan_to_num(), flow.nan_to_num())
    assert not torch.equal(plain.nan_to_num(), steps.nan_to_num())
    both = monge.fit("score_sde", frame, budget="2steps", ensemble=2, out=tmp_path / "two")
    assert type(both.model.sampling_defaults()) is type(run.model.sampling_defaults())
    assert both.model.sampling_defaults() == run.model.sampling_defaults()


@pytest.mark.slow
@pytest.mark.parametrize("match", WAYS)
def test_moons_are_learned_in_each_way(match):
    run = monge.fit(
        "diffusion.score_sde", "moons", f"objective={match}", "width=64", budget="1500steps"
    )
    x = torch.as_tensor(run.sample_tensor(500, None, "sampler=dpm"))
    truth = run.split(None, "test").whole().x
    near = torch.cdist(x, truth).amin(1)
    assert near.mean() < 0.2


def test_residuals_of_few_levels_are_sampled_by_the_probability_flow():
    """Langevin steps left the samples of digits ten times as far from the rows."""
    few = Space(kind="levels", shape=(1, 6, 6), size=5, name="x", rows=100)
    for space, target, sampler in ((few, "residual", DPM), (PLANE, "score", Langevin)):
        model = ScoreSDE.defaults(space).config.build(space)
        assert model.config.target == target
        assert type(model.sampling_defaults().sampler) is sampler.Config
