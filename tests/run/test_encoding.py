"""Codes there and back, walks between them and sums of them; and every refusal."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import monge
from monge.cli.main import attempt
from monge.core.errors import DataError, UsageError
from monge.run import latent

SMALL = ("latent=2", "net.width=16", "train.eval_every=50")


@pytest.fixture(scope="module")
def vae(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "vae"
    return monge.fit("vae", "digits", *SMALL, budget="60steps", out=folder)


@pytest.fixture(scope="module")
def wgan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "wgan"
    return monge.fit("wgan", "digits", "latent=3", budget="2steps", out=folder)


def test_the_arc_keeps_gaussian_codes_on_their_shell():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 5, 64, generator=g, dtype=torch.float64)
    a, b = 8 * a / a.norm(dim=1, keepdim=True), 8 * b / b.norm(dim=1, keepdim=True)
    t = torch.linspace(0, 1, 7, dtype=torch.float64)
    arc, line = latent.slerp(a, b, t), latent.lerp(a, b, t)
    for walk in (arc, line):
        torch.testing.assert_close(walk[:, 0], a)
        torch.testing.assert_close(walk[:, -1], b)
    torch.testing.assert_close(arc.norm(dim=2), torch.full((5, 7), 8.0, dtype=torch.float64))
    assert line[:, 3].norm(dim=1).max() < 7  # the straight line leaves the shell
    speed = arc.diff(dim=1).norm(dim=2)
    torch.testing.assert_close(speed, speed[:, :1].expand_as(speed), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(latent.slerp(a, a, t), latent.lerp(a, a, t))


def test_signs_and_labels_are_read():
    assert latent.parse("+a -b +c") == [(1, "a"), (-1, "b"), (1, "c")]
    assert latent.parse("self-emp -not in list") == [(1, "self-emp"), (-1, "not in list")]
    with pytest.raises(UsageError, match="labels"):
        latent.parse("+a - +c")


def test_codes_of_rows_go_there_and_back_in_python(vae):
    z = vae.encode()
    rows = vae.split().whole()
    assert z.shape == (len(rows), 2)
    torch.testing.assert_close(torch.from_numpy(z), vae.model.encode(rows))
    x = vae.decode(z[:5])
    assert x.shape == (5, 8, 8)
    assert x.dtype == np.uint8
    with pytest.raises(DataError, match=r"shape \(4, 3\).*give \(N, 2\)"):
        vae.decode(np.zeros((4, 3)))
    flow = monge.fit(
        "coupling", "moons", "data.rows=200", budget="2steps", out=vae.folder.parent / "flow"
    )
    points = flow.split().whole().x.numpy()
    np.testing.assert_allclose(flow.decode(flow.encode()), points, atol=1e-3)


def test_a_sum_of_labels_is_the_sum_of_their_mean_codes(vae):
    z, names = vae.encode(), latent.table(vae)["label"].to_numpy()
    sheet = latent.arithmetic(vae, "+3 -5 +8")
    mean = {name: z[names == name].mean(0) for name in "358"}
    want = np.stack([mean["3"], mean["5"], mean["8"], mean["3"] - mean["5"] + mean["8"]])
    torch.testing.assert_close(sheet.x, latent.decoded(vae, want))
    # signs that add up to 0 are a direction from the middle of all codes
    away = latent.arithmetic(vae, "+3 -5").x[-1:]
    middle = (z.mean(0) + mean["3"] - mean["5"])[None]
    torch.testing.assert_close(away, latent.decoded(vae, middle))
    with pytest.raises(DataError, match="'x'; choose from 0, 1"):
        latent.arithmetic(vae, "+3 -x")


def test_a_line_of_a_traversal_moves_one_coordinate(vae):
    sheet = latent.traverse(vae, row=2, steps=5)
    assert (len(sheet.x), sheet.columns, sheet.lines) == (10, 5, ("z1", "z2"))
    z = torch.from_numpy(vae.encode())
    low, high = z[:, 1].quantile(torch.tensor([0.025, 0.975]))
    ends = torch.stack([z[2, 0].expand(2), torch.stack([low, high])], 1)
    torch.testing.assert_close(sheet.x[[5, 9]], latent.decoded(vae, ends))
    with pytest.raises(UsageError, match="1001"):
        latent.traverse(vae, row=1000)


def test_generators_walk_between_draws_and_add_what_draws_look_like(wgan):
    sheet = latent.interpolate(wgan, lines=3, steps=4)
    assert sheet.x.shape == (12, 1, 8, 8)
    z = torch.randn(latent.PRIOR_SAMPLES, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sheet.x[[0, 3]], latent.decoded(wgan, z[:2]))
    have = latent.coded(wgan, None, None, 0)
    names = latent.known_names(wgan, have, None)
    assert len(names) == latent.PRIOR_SAMPLES
    a, b = sorted(set(names))[:2]
    assert latent.arithmetic(wgan, f"+{a} -{b} +{a}").x.shape == (4, 1, 8, 8)
    with pytest.raises(UsageError, match="encode"):
        wgan.encode()


def test_sums_need_labels_that_the_codes_can_know(vae, tmp_path):
    plain = monge.fit(
        "vae", "moons", *SMALL, "data.rows=100", budget="2steps", out=tmp_path / "plain"
    )
    with pytest.raises(UsageError, match="moons has none"):
        latent.arithmetic(plain, "+a")
    with pytest.raises(UsageError, match="a field 'image' of labels"):
        latent.arithmetic(vae, "+a", field="image")
    run_json = monge.fit(
        "vae", "digits", *SMALL, given=["label"], budget="2steps", out=tmp_path / "run_json"
    )
    with pytest.raises(UsageError, match="--given"):
        latent.arithmetic(run_json, "+3")
    assert latent.interpolate(run_json, lines=2).x.shape == (18, 1, 8, 8)


def test_the_verb_writes_tables_maps_and_sheets(vae, tmp_path, capsys):
    def run_json(*args):
        code = attempt(["encode", str(vae.folder), *map(str, args), "--json"])
        return code, json.loads(capsys.readouterr().out)

    assert run_json("-o", tmp_path / "codes.csv")[1]["columns"] == ["row", "z1", "z2", "label"]
    assert len(pd.read_csv(tmp_path / "codes.csv")) == len(vae.split())
    assert run_json("-o", tmp_path / "codes.npz")[0] == 0
    assert np.load(tmp_path / "codes.npz")["z1"].shape == (len(vae.split()),)
    assert run_json("-o", tmp_path / "map.png")[0] == 0
    for name, *args in (
        ("t", "--traverse"),
        ("i", "--interpolate", "-n", 3),
        ("a", "--arithmetic", "+3 -5 +8"),
    ):
        assert run_json(*args, "-o", tmp_path / f"{name}.png")[0] == 0
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert min(picture.size) > 48
    assert run_json("--interpolate", "-o", tmp_path / "walk.csv")[0] == 0
    assert len(pd.read_csv(tmp_path / "walk.csv")) == 8 * 9
    for args, sentence in (
        (("--traverse", "--interpolate", "-o", "x.png"), "--traverse"),
        (("-o", tmp_path / "codes.txt"), ".txt"),
        (("--arithmetic", "+zero", "-o", tmp_path / "a.png"), "'zero'"),
    ):
        code, found = run_json(*args)
        assert code > 0
        assert sentence in found["error"]


def test_a_table_without_its_writer_is_refused(vae, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert attempt(["encode", str(vae.folder), "-o", str(tmp_path / "codes.parquet")]) == 2
    assert "codes.parquet needs pyarrow" in capsys.readouterr().err
