"""In-painting, denoising and editing by models whose answers are known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from known import LINE, Known, normals

import monge
from monge.cli.main import attempt
from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.diffusion._ode_samplers import DPM
from monge.models.diffusion._parameterisation import DenoiserPrediction
from monge.models.diffusion._samplers import Ancestral
from monge.models.diffusion._sampling import repaint, repaint_route
from monge.prob.noise_schedule import NoiseSchedule

PLANE = Space(kind="real", shape=(2,), name="x", mean=(0.0, 0.0), scale=(1.0, 1.0), rows=100)
RHO = 0.9


class Pair(Known):
    """Two normals with correlation RHO."""

    def predict(self, z, t, conditions=None):
        alpha, sigma = self.schedule.alpha(t)[:, None], self.schedule.sigma(t)[:, None]
        rotation = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double() / 2**0.5
        spread = torch.tensor([1 + RHO, 1 - RHO]).double()  # of sum and difference
        gain = alpha * spread / (alpha.square() * spread + sigma.square())
        return DenoiserPrediction(z, alpha, sigma, "x0", (gain * (z @ rotation)) @ rotation)


def completed(n=2000, seen=1.5, **options):
    model = Pair(Pair.Config(), PLANE)
    x = torch.tensor([[seen, 7.0]]).double().repeat(n, 1)
    batch = Batch(x, observed=torch.tensor([[True, False]]).expand(n, 2))
    return model.complete(
        batch, model.SamplingConfig(sampler=DPM.Config(steps=30), **options), make_generator(0)
    )


def test_resampling_brings_what_is_hidden_to_agree_with_what_is_seen():
    """x_2 | x_1 = N(rho x_1, 1 - rho^2)."""
    x = completed(resamples=10)
    assert (x[:, 0] == 1.5).all()
    assert abs(x[:, 1].mean() - RHO * 1.5) < 0.12
    assert abs(x[:, 1].std() - (1 - RHO**2) ** 0.5) < 0.08
    once = completed(resamples=1)
    assert abs(once[:, 1].mean() - RHO * 1.5) > 0.2  # sampled without regard to what was seen


def test_stretches_of_several_steps_are_gone_through_again():
    assert list(repaint_route(4, 1, 1)) == [0, 1, 2, 3, 4]
    assert list(repaint_route(3, 2, 1)) == [0, 1, 0, 1, 2, 1, 2, 3, 2, 3]
    assert list(repaint_route(5, 2, 3)) == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    x = completed(resamples=6, jump_length=3)
    assert abs(x[:, 1].mean() - RHO * 1.5) < 0.15


def test_nothing_hidden_is_nothing_changed_and_all_hidden_is_a_sample():
    model = Pair(Pair.Config(), PLANE)
    x = torch.randn(400, 2, generator=make_generator(0), dtype=torch.float64)
    assert torch.equal(model.complete(Batch(x), None, make_generator(0)), x)
    free = model.complete(
        Batch(x, observed=torch.zeros(400, 2, dtype=torch.bool)), None, make_generator(0)
    )
    assert abs(torch.corrcoef(free.T)[0, 1] - RHO) < 0.05


def test_what_was_seen_is_at_its_noise_along_the_way():
    noising = NoiseSchedule.Config().build()
    y, seen = torch.full((4000, 1), 2.0).double(), torch.ones(4000, 1, dtype=torch.bool)
    times = Ancestral.Config(steps=4).build().times(noising, y, 1.0, 0)

    def predict(z, t):
        return DenoiserPrediction(
            z, noising.alpha(t)[:, None], noising.sigma(t)[:, None], "x0", 0 * z
        )

    for (z, _), t in zip(
        repaint(predict, noising, times, y, seen, 1, 1, make_generator(0)), times[1:], strict=True
    ):
        assert abs(z.mean() - 2 * noising.alpha(t)) < 0.08
        assert abs(z.std() - noising.sigma(t)) < 0.05


@pytest.mark.parametrize("steps", [0, 400])
def test_denoising_samples_the_posterior_of_the_clean_row(steps):
    """By Bayes' rule on a grid; a model of T steps begins at the next of its times."""
    noise, seen = 0.5, 0.3
    model = Known(Known.Config(), LINE)
    model.steps = steps
    options = model.SamplingConfig(noise=noise, sampler=DPM.Config(steps=100))
    x = model.complete(Batch(torch.full((4000, 1), seen).double()), options, make_generator(0))
    grid = torch.linspace(-4, 4, 4001, dtype=torch.float64)[:, None]
    one = torch.ones(1, 1).double()
    log_p = normals(0, 1).log_prob(grid, one, 0 * one) - 0.5 * ((seen - grid[:, 0]) / noise) ** 2
    weight = log_p.softmax(0)
    mean = (weight * grid[:, 0]).sum()
    spread = (weight * (grid[:, 0] - mean).square()).sum().sqrt()
    assert abs(x.mean() - mean) < 0.02
    assert abs(x.std() - spread) < 0.02
    assert abs(x.mean() - seen) > 0.02  # it is not simply kept


def test_entries_of_unequal_scale_are_brought_to_one_level_of_noise():
    scaled = replace(PLANE, scale=(1.0, 10.0))
    model = Pair(Pair.Config(), scaled)
    options = model.SamplingConfig(noise=0.5, sampler=DPM.Config(steps=30))
    x = model.complete(
        Batch(torch.tensor([[1.0, 10.0]]).double().repeat(2000, 1)), options, make_generator(0)
    )
    assert x.isfinite().all()
    assert (x[:, 1] - 10).abs().mean() > 0.5


def test_editing_keeps_less_the_further_it_goes():
    model = Known(Known.Config(), LINE)
    x = torch.full((2000, 1), 0.8).double()

    def away(edit):
        options = model.SamplingConfig(edit=edit, sampler=DPM.Config(steps=20))
        return (model.complete(Batch(x), options, make_generator(0)) - x).abs().mean().item()

    assert away(0.05) < away(0.3) < away(0.6) < away(1.0)
    assert away(0.05) < 0.1


def test_what_does_not_go_together_is_refused():
    model = Known(Known.Config(), LINE)
    batch = Batch(torch.zeros(3, 1).double())
    with pytest.raises(UsageError, match=r"noise=1 and edit=0\.5"):
        model.complete(batch, model.SamplingConfig(noise=1.0, edit=0.5))
    with pytest.raises(UsageError, match=r"noise.*edit"):
        model.complete(
            replace(batch, observed=torch.zeros(3, 1, dtype=torch.bool)),
            model.SamplingConfig(noise=1.0),
        )
    with pytest.raises(DataError, match=r"noise.*1e\+05"):
        model.complete(batch, model.SamplingConfig(noise=1e5))


def test_a_run_of_levels_completes_arrays_and_frames_and_denoises_what_is_between_levels(tmp_path):
    levels = np.random.default_rng(0).integers(0, 5, (80, 4, 4)).astype(np.uint8)
    run = monge.fit("ddpm", levels, budget="1steps", out=tmp_path / "run", progress=False)
    noisy = levels[:3] + 0.4
    assert run.space.kind == "levels"
    forms = (noisy, noisy.reshape(3, 16), pd.DataFrame(noisy.reshape(3, 16), index=[5, 6, 7]))
    for given in forms:
        found = run.complete(given, noise=1.0, steps=2, seed=1)
        assert type(found) is type(given)
        assert found.shape == given.shape
        assert np.asarray(found).dtype == np.uint8
    assert list(found.index) == [5, 6, 7]
    assert np.array_equal(found, run.complete(noisy, noise=1.0, steps=2, seed=1).reshape(3, 16))
    with pytest.raises(DataError, match="row 1: "):
        run.complete(noisy, steps=2)
    holes = levels[:3].astype(float)
    holes[:, :2] = np.nan
    filled = run.complete(holes, steps=2)
    assert np.array_equal(filled[:, 2:], levels[:3, 2:])
    np.save(tmp_path / "noisy.npy", noisy)
    out = str(tmp_path / "clean.npz")
    asked = [str(run.folder), str(tmp_path / "noisy.npy"), "--noise", "1", "sample.steps=2"]
    assert attempt(["complete", *asked, "-o", out]) == 0
    assert len(np.load(out)[next(iter(np.load(out)))]) == 3
