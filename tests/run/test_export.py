"""Exported steps equal the model's own, and the loop in the help samples like the sampler."""

import itertools
import json
import sys

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import monge
from monge.cli.main import attempt
from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator

SMALL = ("net=mlp", "width=16", "depth=1")


@pytest.fixture(scope="module")
def ddpm(tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "ddpm"
    return monge.fit("ddpm", "digits", *SMALL, given=["label"], budget="4steps", out=out)


def sampled(file, n, dims, steps, *given, seed=0):
    """The loop that the help of `monge export` shows."""
    step, g = torch.export.load(file).module(), make_generator(seed)
    z, zero = torch.randn(n, dims, generator=g), torch.zeros(n)
    with torch.no_grad():
        for t, s in itertools.pairwise(torch.linspace(1, 0, steps + 1)):
            z, _ = step(z, t.expand(n), s.expand(n), 0 * z, *given)
        return step(z, zero, zero, torch.randn(n, dims, generator=g), *given)[1]


def test_the_loop_samples_like_ddim(ddpm, tmp_path, capsys):
    file = tmp_path / "net.pt2"
    assert attempt(["export", str(ddpm.folder), "-o", str(file), "--json"]) == 0
    inputs = json.loads(capsys.readouterr().out)["inputs"]
    assert inputs["z"] == ["rows", 64]
    assert list(inputs) == ["z", "t", "s", "noise", "label"]
    label = torch.tensor([0, 1, 1, 0, 9])
    own = ddpm.sample_tensor(5, {"label": Batch(label)}, "sampler=ddim", "steps=6", seed=3)
    assert torch.equal(sampled(file, 5, 64, 6, label, seed=3), own)
    step, z, t = torch.export.load(file).module(), torch.randn(5, 64), torch.full((5,), 0.5)
    one, two = (step(z, t, t / 2, z, given)[0] for given in (label, 9 - label))
    assert not torch.allclose(one, two)


def test_a_decoder_is_exported(tmp_path):
    run = monge.fit("vae", "moons", "latent=2", budget="2steps", out=tmp_path / "vae")
    run.export(tmp_path / "decoder.pt2")
    z = torch.randn(3, 2, generator=make_generator(0))
    found = torch.export.load(tmp_path / "decoder.pt2").module()(z)
    torch.testing.assert_close(found, run.model.decode(z))


@pytest.mark.parametrize(
    ("model", "data", "what", "options"),
    [
        pytest.param("coupling", "moons", "decode", {"layers": 2}, marks=pytest.mark.slow),
        ("coupling", "moons", "score", {"layers": 2}),
        ("made", "moons", "score", {"width": 8}),
    ],
)
def test_functions_are_exported_for_any_number_of_rows(model, data, what, options, tmp_path):
    run = monge.fit(model, data, budget="2steps", out=tmp_path / "run", **options)
    described = run.export(tmp_path / "net.pt2", what)
    assert described["function"] == what
    assert all(shape[0] == "rows" for shape in described["inputs"].values())
    function = torch.export.load(tmp_path / "net.pt2").module()
    own = run.model
    if what == "score":
        x = run.split(None, "test").whole().x[:7]
        found, expected = function(x), own.log_prob(x)
    else:
        z = torch.randn(7, 2, generator=make_generator(0))
        found, expected = function(z), own.decode(z)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_traced_is_refused_in_a_sentence(tmp_path, monkeypatch):
    """A file whose outputs differ, or that only takes the rows of the example, is not written."""
    run = monge.fit("vae", "moons", "latent=2", budget="2steps", out=tmp_path / "vae")
    out = tmp_path / "net.pt2"
    own = type(run.model).decode
    monkeypatch.setattr(
        type(run.model), "decode", lambda self, z, g: own(self, z, g) * len(z.tolist())
    )
    with pytest.raises(UsageError, match=r"latent\.vae.*decode"):
        run.export(out)
    monkeypatch.setattr(type(run.model), "decode", own)
    with pytest.raises(UsageError, match="bound"):
        run.export(out, "score")
    assert not out.exists()


def test_unsupported_exports_are_refused(ddpm, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"\.txt.*\.pt2"):
        ddpm.export(tmp_path / "net.txt")
    made = monge.fit("made", "moons", "width=8", budget="2steps", out=tmp_path / "made")
    with pytest.raises(UsageError, match=r"autoregressive\.made.*latent\."):
        made.export(tmp_path / "net.pt2", "decode")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError, match=r"monge\[onnx\].*\.pt2"):
        ddpm.export(tmp_path / "net.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddpm", "vdm", "diffusion.score_sde"])
def test_a_unet_is_exported(name, tmp_path):
    run = monge.fit(
        name, "digits", "net=unet", "net.width=8", budget="2steps", out=tmp_path / "run"
    )
    run.export(tmp_path / "net.pt2")
    own = run.sample_tensor(3, None, "sampler=ddim", "steps=5")
    found = sampled(tmp_path / "net.pt2", 3, 64, 5)
    assert (found != own).double().mean() < 0.02


@pytest.mark.slow
def test_a_model_conditioned_on_text_is_exported_with_lengths(tmp_path):
    captions = [f"{word} of {n}" for n in range(60) for word in ("left", "far right")]
    x = pd.DataFrame({"a": [-1.0, 1.0] * 60, "caption": captions})
    run = monge.fit(
        "ddpm",
        x,
        "net.width=8",
        "net.depth=1",
        given=["caption"],
        budget="5steps",
        out=tmp_path / "run",
    )
    inputs = run.export(tmp_path / "net.pt2")["inputs"]
    assert list(inputs)[4:] == ["caption", "caption_length"]
    text = run.view.encode_given("caption", "left of 7")
    steps = F.pad(text.x, (0, inputs["caption"][1] - text.x.shape[1]), value=77).expand(3, -1)
    found = sampled(tmp_path / "net.pt2", 3, 1, 5, steps.contiguous(), text.length.repeat(3))
    own = run.sample_tensor(3, {"caption": text}, "sampler=ddim", "steps=5")
    torch.testing.assert_close(found.reshape(own.shape), own)


def test_an_animation_and_edited_images_are_written(tmp_path, capsys):
    run = monge.fit("ddpm", "digits", *SMALL, budget="3steps", out=tmp_path / "run")
    animation = tmp_path / "film.gif"
    assert (
        attempt(
            [
                "sample",
                str(run.folder),
                "-n",
                "4",
                "--stream",
                "-o",
                str(animation),
                "steps=5",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["frames"] == 6
    for flags in (["--hide", "lower"], ["--noise", "2"], ["--edit", "0.5"]):
        out = tmp_path / f"{flags[0][2:]}.png"
        assert (
            attempt(
                [
                    "complete",
                    str(run.folder),
                    "digits",
                    *flags,
                    "--rows",
                    "3",
                    "-o",
                    str(out),
                    "steps=3",
                    "--json",
                ]
            )
            == 0
        )
        method = json.loads(capsys.readouterr().out)["method"]
        assert ("RePaint" if flags[0] == "--hide" else flags[0][2:]) in method
        assert out.exists()
    assert (
        attempt(
            [
                "complete",
                str(run.folder),
                "digits",
                "--rows",
                "3",
                "-o",
                str(tmp_path / "none.png"),
            ]
        )
        == 1
    )
    assert "--hide" in capsys.readouterr().err
