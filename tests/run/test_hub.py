"""A folder for the hub holds what a run needs, is loaded like one, and tells no path."""

import json

import numpy as np
import pytest
import yaml

import monge
from monge.cli.main import attempt


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("hub") / "mine"
    data = out.parent / "secret-place" / "rows.npy"
    data.parent.mkdir()
    np.save(data, np.random.default_rng(0).normal(size=(60, 3)))
    return monge.fit("vae", str(data), "latent=2", "width=8", budget="3steps", out=out)


def test_a_hub_folder_is_loaded_like_the_run(run, tmp_path, capsys):
    folder = tmp_path / "shared"
    assert attempt(["export", str(run.folder), "--to", "hf", str(folder)]) == 0
    capsys.readouterr()
    found = monge.load(folder)
    np.testing.assert_array_equal(found.sample(4, seed=1), run.sample(4, seed=1))
    rows = np.zeros((2, 3))
    np.testing.assert_array_equal(found.log_likelihood(rows).value, run.log_likelihood(rows).value)
    assert found.result == run.result
    with pytest.raises(monge.RunError, match="compacted"):
        next(found.train("1steps"))
    again = tmp_path / "again"
    assert attempt(["export", str(folder), "--to", "hf", str(again)]) == 1  # it has no card.md
    assert not again.exists()


def test_the_card_has_front_matter_and_no_file_tells_where_the_data_are(run, tmp_path, capsys):
    folder = tmp_path / "shared"
    assert attempt(["export", str(run.folder), "--to", "hf", str(folder), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert {"README.md", "config.json", "model.safetensors", "run.json"} <= set(files)
    assert not {"last.safetensors", "best.safetensors"} & set(files)
    _, front, body = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "monge"
    assert "latent.vae" in yaml.safe_load(front)["tags"]
    assert "monge.load" in body
    assert json.loads((folder / "config.json").read_text())["config"]["latent"] == 2
    for path in folder.rglob("*"):
        assert b"secret-place" not in path.read_bytes(), path.name


def test_a_folder_with_files_is_not_touched(run, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert attempt(["export", str(run.folder), "--to", "hf", str(tmp_path)]) == 2
    assert attempt(["export", str(run.folder)]) == 2
    assert attempt(["export", str(run.folder), "--to", "hf", "x", "-o", "y.pt2"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert [path.name for path in tmp_path.iterdir() if path.name != "runs"] == ["mine.txt"]
