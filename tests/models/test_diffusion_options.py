"""Settings of diffusion models on the command line: presets, scoring methods, invalid values."""

import json
import re

import pytest
import torch

import monge
from monge.cli.main import attempt
from monge.core.abilities import HasLikelihood
from monge.core.batch import Batch
from monge.core.config import apply_overrides
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.data import loading as data
from monge.models.diffusion._denoisers import MLPDenoiser
from monge.models.diffusion.ddpm import DDPM
from monge.models.diffusion.vdm import VDM, LearnedSchedule

REAL = Space(kind="real", shape=(2,), name="x", rows=1000)
IMAGE = Space(
    kind="levels",
    shape=(1, 7, 6),
    size=5,
    name="x",
    rows=100,
    mean=(2.0,),
    scale=(1.4,),
    low=(0.0,),
    high=(4.0,),
)
SMALL = ("net=mlp", "net.width=16", "net.depth=2")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("settings") / "run"
    return monge.fit("ddpm", "digits", "steps=20", *SMALL, budget="2steps", out=place)


def refused(capsys, *settings):
    assert attempt([*settings, "--json"]) in (1, 2)
    return json.loads(capsys.readouterr().out)["error"]


def test_presets_are_the_papers():
    ddpm = DDPM.preset("ddpm", IMAGE)
    assert (ddpm.steps, ddpm.target, ddpm.weight) == (1000, "noise", "simple")
    assert ddpm.schedule.shape == "linear"
    first = DDPM.preset("sohl_dickstein", IMAGE)
    assert (first.weight, first.variance) == ("elbo", "learned")
    assert first.build(IMAGE).sample(2, generator=make_generator(0)).shape == (2, 1, 7, 6)
    assert VDM.preset("vdm", IMAGE).target == "noise"
    assert {*DDPM.presets} | {*VDM.presets} == {"sohl_dickstein", "ddpm", "vdm"}


def test_a_preset_is_one_setting_which_others_may_change(tmp_path, capsys):
    run = monge.fit(
        "ddpm",
        "moons",
        "steps=30",
        "preset=ddpm",
        "net.width=16",
        "data.rows=100",
        budget="2steps",
        out=tmp_path / "run",
    )
    assert (run.config.steps, run.config.target, run.config.schedule.shape) == (
        30,
        "noise",
        "linear",
    )
    assert attempt(["models", "ddpm", "--json"]) == 0
    assert "Ho et al. 2020" in json.loads(capsys.readouterr().out)["presets"]["ddpm"]
    assert attempt(["models", "ddpm"]) == 0
    assert "preset=sohl_dickstein" in capsys.readouterr().out
    unknown = refused(capsys, "fit", "ddpm", "moons", "preset=edm")
    assert re.search(r"\bddpm\b.*'edm'.*sohl_dickstein, ddpm", unknown)
    none = refused(capsys, "fit", "made", "moons", "preset=edm")
    assert re.search(r"\bmade\b.*'edm'", none)


def test_options_apply_to_their_own_command():
    scoring, sampling = DDPM.LikelihoodConfig(), DDPM.SamplingConfig()
    assert apply_overrides(
        scoring, ["score.method=ode", "probes=3"], "score"
    ) == DDPM.LikelihoodConfig(method="ode", probes=3)
    assert apply_overrides(
        sampling, ["sampler=heun", "sample.steps=4"], "sample"
    ) == sampling.override("sampler=heun", "steps=4")
    with pytest.raises(UsageError, match="'method'"):
        apply_overrides(HasLikelihood.LikelihoodConfig(), ["method=ode"], "score")


def test_a_likelihood_describes_its_samples_and_tolerance(run, capsys):
    torch.manual_seed(0)
    model, y = DDPM.smallest_config(REAL).build(REAL), Batch(torch.zeros(3, 2))
    for settings, values in (
        ("samples=8", r"\b8 samples\b"),
        ("method=ode tolerance=0.01", r"\b0\.01\b.*\bexact\b"),
        ("method=ode trace=hutchinson probes=3", r"\b0\.0001\b.*\b3\b"),
    ):
        options = apply_overrides(model.LikelihoodConfig(), settings.split(), "score")
        assert re.search(values, model.likelihood(y, options).description)
    assert attempt(["score", str(run.folder), "samples=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert re.search(r"\b20 steps\b.*\b2 samples\b", found["method"])
    assert 0 < found["noise"] < found["stderr"] * 2
    assert attempt(["score", str(run.folder), "samples=2"]) == 0
    assert f"± {found['noise']:.4f}" in capsys.readouterr().out


def test_terms_of_a_score_are_named_by_time_and_by_noise():
    config = DDPM.Config(net=MLPDenoiser.Config(width=8, depth=1), steps=6)
    found = list(config.build(REAL).terms(Batch(torch.zeros(3, 2))))
    assert found[:2] == ["prior", "reconstruction"]
    assert found[2].startswith("diffusion, t 1.00 to 0.")
    assert found[2].endswith("log-SNR -9.0 to -6.6")
    assert found[-2].endswith("to 0.00, log-SNR 7.6 to 10.0")
    assert found[-1] == "gap of 6 steps"


def test_rows_of_the_run_are_completed_with_the_settings(run, tmp_path, capsys):
    out = tmp_path / "c.png"
    assert (
        attempt(
            [
                "complete",
                str(run.folder),
                "--hide",
                "lower",
                "--rows",
                "2",
                "-o",
                str(out),
                "steps=3",
                "resamples=1",
            ]
        )
        == 0
    )
    assert out.exists()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        (["fit", "ddpm", "moons", "steps=0"], "steps=0"),
        (
            ["fit", "ddpm", "moons", "schedule.low=-2"],
            "low=-2",
        ),
        (
            ["fit", "vdm", "moons", "schedule.low=-3"],
            "low=-3",
        ),
        (
            ["sample", "RUN", "sampler=ancestral", "steps=21"],
            "steps=21",
        ),
        (
            ["sample", "RUN", "gamma=3"],
            "gamma",
        ),
        (
            ["complete", "RUN", "noise=2", "edit=0.5", "--hide", "box", "-o", "x.png"],
            "noise=2 and edit=0.5",
        ),
    ],
)
def test_wrong_settings_are_refused(run, capsys, settings, value):
    settings = [str(run.folder) if setting == "RUN" else setting for setting in settings]
    assert value in refused(capsys, *settings)


def test_a_guide_for_another_field_is_refused(run, capsys):
    guide = f"guide={run.folder}"
    error = refused(capsys, "sample", str(run.folder), guide, "--given", "label=3")
    assert re.search(f"'label'.*{re.escape(guide)}.*--given label", error)


def test_images_are_sampled_given_small_ones_by_naming_these():
    space = data.open("digits+low2").view(given=["source"]).space
    assert (space.name, space.shape, space.given["source"].shape) == (
        "target",
        (1, 8, 8),
        (1, 4, 4),
    )


def test_an_end_that_is_learned_begins_as_noise():
    with pytest.raises(UsageError, match=r"0\.135"):
        LearnedSchedule.Config(low=-2.0)
