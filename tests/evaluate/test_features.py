"""The feature network: what it learns, that it sees a wrong model, and that runs share it."""

import json
from dataclasses import replace

import pytest
import small_data
import torch

import monge
from monge.cli.main import attempt
from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.feature_net import WIDTH, train_feature_net
from monge.evaluate.frechet import feature_space_distances
from monge.run import feature_extractor as eyes
from monge.run.storage import FEATURES
from monge.train import checkpoint


def images(n: int, seed: int, dims: tuple[int, ...] = (1, 6, 6)) -> tuple[Batch, torch.Tensor]:
    """A bright half, upper or lower, in noise; which one is the name."""
    names = torch.arange(n) % 2
    x = 0.5 * torch.randn(n, *dims, generator=make_generator(seed))
    half = dims[-2] // 2
    x[names == 0, :, :half] += 1
    x[names == 1, :, half:] += 1
    return Batch(x), names


SPACE = Space(kind="real", shape=(1, 6, 6), name="x", rows=400, mean=(0.5,), scale=(0.7,))


def test_names_are_learned_and_unknown_ones_left_out():
    train, names = images(400, 0)
    hidden = torch.where(torch.arange(400) % 4 == 0, -1, names)
    net = train_feature_net(SPACE, small_data.Rows(train), hidden, 2)
    test, truth = images(200, 1)
    assert net.accuracy(small_data.Rows(test), truth) > 0.95
    h = net(train)
    assert h.shape == (400, WIDTH)
    torch.testing.assert_close(h.mean(0), torch.zeros(WIDTH).double(), atol=1e-4, rtol=0)
    torch.testing.assert_close(h.std(0), torch.ones(WIDTH).double(), atol=1e-4, rtol=0)


def test_the_network_is_a_function_of_its_seed_and_large_images_are_downsampled():
    space = replace(SPACE, shape=(1, 40, 36))
    rows = small_data.Rows(images(64, 0, space.shape)[0])
    first, again, other = (
        train_feature_net(space, rows, seed=seed)(rows.whole()) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("named", [True, False])
def test_samples_of_another_distribution_are_farther_than_real_rows(named):
    train, names = images(400, 0)
    net = train_feature_net(SPACE, small_data.Rows(train), names if named else None, 2)
    held, near, other = (net(images(200, seed)[0]) for seed in (1, 2, 3))
    mixed = images(200, 3)[0].x
    blurred = net(Batch((mixed + mixed.flip(0)) / 2))
    real, fake, again = (feature_space_distances(side, held) for side in (near, blurred, other))
    for name in real:
        assert fake[name].value > real[name].value + 3 * fake[name].stderr, name
        assert abs(again[name].value - real[name].value) < fake[name].value / 4


@pytest.mark.parametrize("kind", ["columns", "levels", "binary", "counts"])
def test_every_kind_of_event_has_features(kind):
    space, batch = small_data.make(kind, 64)
    assert train_feature_net(space, small_data.Rows(batch))(batch).isfinite().all()


def test_a_run_pins_its_network_and_one_beside_it_takes_that(tmp_path, monkeypatch, capsys):
    first, second = (
        monge.fit(name, "moons", "data.rows=400", budget="5steps", out=tmp_path / name)
        for name in ("gaussian", "independent")
    )
    ours = eyes.feature_extractor(first)
    assert (tmp_path / "gaussian" / FEATURES).exists()

    def never(*_):
        raise AssertionError("learned twice")

    monkeypatch.setattr(eyes, "train_feature_net", never)
    for run in (first, second):
        found = eyes.feature_extractor(run)
        assert found.metadata == ours.metadata
        assert torch.equal(found.net.body[1].weight, ours.net.body[1].weight)
    assert (tmp_path / "independent" / FEATURES).exists()
    assert attempt(["evaluate", str(tmp_path / "gaussian")]) == 0
    text = capsys.readouterr().out
    assert str(ours) in text
    assert "real rows" in text.splitlines()[0]
    assert [
        line for line in text.splitlines() if line in ("likelihood", "samples", "table", "cost")
    ] == ["likelihood", "samples", "table", "cost"]
    assert "_of_real_rows" not in text


def test_other_data_beside_are_no_reason_to_take_their_network(tmp_path):
    runs = [
        monge.fit(
            "gaussian",
            "moons",
            "data.rows=300",
            f"data.seed={seed}",
            budget="5steps",
            out=tmp_path / str(seed),
        )
        for seed in (0, 1)
    ]
    first, other = (eyes.feature_extractor(run) for run in runs)
    assert first.metadata["fingerprint"] != other.metadata["fingerprint"]
    assert not torch.equal(first.net.body[1].weight, other.net.body[1].weight)
    (tmp_path / "0" / FEATURES).write_text("damaged")
    assert torch.equal(
        eyes.feature_extractor(runs[0]).net.body[1].weight, first.net.body[1].weight
    )
    assert checkpoint.about(tmp_path / "0" / FEATURES) == first.metadata


def test_a_label_beside_the_event_teaches_the_network_and_json_is_complete(tmp_path, capsys):
    monge.fit("independent", "digits", "data.rows=400", budget="5steps", out=tmp_path / "run")
    assert attempt(["evaluate", str(tmp_path / "run"), "--split", "all", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "real rows" in [finding["name"] for finding in report["findings"]]
    assert report["features"]["label"] == "label"
    assert 0.5 < report["features"]["accuracy"] <= 1
    assert "not Inception" in report["features"]["description"]
    assert sum(map(len, report["groups"].values())) == len(report["metrics"])
    assert {"parameters", "train_seconds", "samples_per_second", "peak_memory"} == set(
        report["groups"]["cost"]
    )
    assert report["metrics"]["peak_memory"]["value"] > 50
    for name in ("frechet_distance", "kernel_distance", "mmd", "c2st", "coverage"):
        assert f"{name}_of_real_rows" in report["metrics"]


def test_a_run_whose_data_changed_is_not_evaluated(tmp_path, capsys):
    rows = ["a,b", *(f"{i % 7}.5,{i % 3}.25" for i in range(60))]
    (tmp_path / "two.csv").write_text("\n".join(rows))
    monge.fit("independent", str(tmp_path / "two.csv"), budget="5steps", out=tmp_path / "run")
    (tmp_path / "two.csv").write_text("\n".join([*rows, "9.5,9.25"]))
    assert attempt(["evaluate", str(tmp_path / "run")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    assert "two.csv" in printed.err
    assert str(tmp_path / "run") in printed.err
