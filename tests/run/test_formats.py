"""Saved runs of every format stay readable.

`fixtures/format-N` holds a run as format N was written, the log-likelihoods of its rows, and the
fields of every tag. A new format adds a folder and leaves the older ones. Until a format is
released its folder is regenerated with

    python tests/run/test_formats.py
"""

import json
import shutil
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import monge
from monge.core import config
from monge.core.errors import RunError
from monge.run import storage
from monge.run.saved import ComputeConfig

FIXTURES = Path(__file__).parents[1] / "fixtures"
FORMATS = sorted(FIXTURES.glob("format-*"))


def rows(n: int) -> pd.DataFrame:
    """Two numbers, a category and a flag, without a random generator."""
    i = np.arange(n)
    return pd.DataFrame(
        {
            "x": np.sin(i),
            "y": np.cos(3 * i) + 2,
            "kind": np.array(list("abc"))[i % 3],
            "flag": i % 5 == 0,
        }
    )


def make(folder: Path) -> None:
    """Write the fixture of the current format."""
    shutil.rmtree(folder, ignore_errors=True)
    run = monge.fit(
        "made",
        rows(90),
        "width=4",
        "depth=1",
        budget="40steps",
        out=folder / "run",
        compute=ComputeConfig(device="cpu", threads=1),
    )
    (run.folder / ".lock").unlink()
    scores = run.log_likelihood(rows(5)).value
    content = {
        "expected.json": [round(float(score), 6) for score in scores],
        "tags.json": {
            tag: [field.name for field in fields(config.find(tag))]
            for tag in sorted(config.modules())
        },
    }
    for name, entry in content.items():
        (folder / name).write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")


def test_the_current_format_has_a_fixture():
    assert [path.name for path in FORMATS] == [f"format-{n}" for n in range(2, storage.FORMAT + 1)]


@pytest.mark.parametrize("where", FORMATS, ids=lambda path: path.name)
def test_a_saved_run_still_samples_and_scores(where, tmp_path):
    shutil.copytree(where / "run", tmp_path / "run")
    run = monge.load(tmp_path / "run")
    assert list(run.sample(3).columns) == ["x", "y", "kind", "flag"]
    expected = json.loads((where / "expected.json").read_text())
    assert torch.as_tensor(run.log_likelihood(rows(5)).value).tolist() == pytest.approx(
        expected, abs=1e-4
    )
    assert run.train_config.to_dict()
    assert run.result["step"] > 0


@pytest.mark.parametrize("where", FORMATS, ids=lambda path: path.name)
def test_every_tag_still_has_its_fields(where):
    """A tag or a field that is gone, or a new field without a default, makes runs unreadable."""
    known = json.loads((where / "tags.json").read_text())
    assert not set(known) - set(config.modules())
    for tag, names in known.items():
        now = {field.name: field for field in fields(config.find(tag))}
        assert set(names) <= set(now), tag
        assert all(
            field.default is not MISSING or field.default_factory is not MISSING
            for name, field in now.items()
            if name not in names
        ), tag


@pytest.mark.parametrize("where", FORMATS, ids=lambda path: path.name)
def test_a_saved_run_names_no_module(where):
    for path in where.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"monge." not in content, path.name
            assert b"__main__" not in content, path.name


def as_written_before(run) -> None:
    """Take the versions of weights from the settings of a run, as runs from before have none."""
    file = run.folder / "run.json"
    text = file.read_text()
    assert "@2" in text
    file.write_text(text.replace("@2", ""))


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("vae", ("net=grid", "net.widths=4", "latent=16")),
        ("latent_diffusion", ("vae.net.widths=4", "vae.latent=16", "prior.net.width=4")),
    ],
)
def test_runs_whose_weights_have_another_meaning_are_refused(model, settings, tmp_path):
    """The encoder's map of net=grid was once read at other places."""
    run = monge.fit(model, "digits", *settings, budget="1steps", out=tmp_path / "run")
    assert monge.load(run.folder).model.config == run.config
    as_written_before(run)
    with pytest.raises(RunError, match=r"model/latent\.vae@2.*model/latent\.vae'.*fit"):
        monge.load(run.folder).sample(1)
    with pytest.raises(RunError, match=r"model/latent\.vae@2"):
        list(monge.load(run.folder).train("2steps"))


@pytest.mark.parametrize(("model", "settings"), [("vqvae", ("net.widths=4",)), ("vae", ())])
def test_runs_whose_weights_mean_what_they_did_have_no_version(model, settings, tmp_path):
    run = monge.fit(model, "digits", *settings, budget="1steps", out=tmp_path / "run")
    assert "@" not in json.dumps(run.metadata["config"])


if __name__ == "__main__":
    make(FIXTURES / f"format-{storage.FORMAT}")
