"""Examples that show a fact: each runs in little time and shows what it says."""

import importlib
from pathlib import Path

import pytest

import monge

ROOT = Path(__file__).parents[1]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"examples.{name}")


def test_accuracy_is_flat_where_cross_entropy_has_a_slope(example, monkeypatch, tmp_path, capsys):
    accuracy, out = example("accuracy"), tmp_path / "accuracy.png"
    found = accuracy.summarise(accuracy.measure(100))
    assert found["share of points where accuracy has slope 0"] > 0.99
    assert found["share where cross entropy has slope 0"] == 0
    assert 2 < found["values of accuracy on the line"] < 60
    assert found["values of cross entropy"] == 100
    monkeypatch.setattr("sys.argv", ["accuracy", "-o", str(out)])
    accuracy.main()
    assert out.read_bytes()[:4] == b"\x89PNG"
    assert "accuracy has slope 0" in capsys.readouterr().out


def test_bias_variance_and_noise_add_up_to_the_error(example):
    module = example("bias_variance")
    found = module.bias_variance("predict.mlp", "net.depth=0", fits=2, rows=60, budget="5steps")
    assert found["sum"] == pytest.approx(found["measured error"], rel=0.1)
    assert found["bias^2"] > found["variance"]  # a line through a sine


def test_almost_without_noise_a_noisy_classifier_is_as_accurate_as_without(example, tmp_path):
    module, model = example("guidance"), "diffusion.noisy_classifier"
    settings = ("train.ema_decay=0", "train.lr=1e-2")
    run = monge.fit(
        model, "digits", *settings, budget="40steps", out=tmp_path / "run", progress=False
    )
    rows = run.split(None, "test").whole()
    clean = float((run.model.mode(rows.given) == rows.x).double().mean())
    assert module.noisy_accuracy(run, 14.0) == pytest.approx(clean, abs=0.02)
    assert module.noisy_accuracy(run, -8.0) < clean - 0.1


@pytest.mark.slow
def test_a_classifier_that_knows_noise_guides_better(example, tmp_path):
    levels, guided = example("guidance").contrast(str(tmp_path), 800, 10, 3.0)
    assert list(levels) == list(guided.index) == ["noise-aware", "clean"]
    assert guided["noise-aware"] > guided["clean"] + 0.1
    assert levels.loc[-2.0, "noise-aware"] > levels.loc[-2.0, "clean"]


@pytest.mark.slow
def test_mixing_has_a_curve_and_a_gap(example):
    module = example("mixing")
    found = module.curve("gaussian", 80, 0, ratios=(0.0, 1.0), iterations=5)
    assert found["0"] > 0.7
    assert found["1"] > 0.7
    assert 0.4 < found["gap"] <= 1


@pytest.mark.slow
def test_a_network_has_less_bias_and_more_variance_than_a_line(example):
    module = example("bias_variance")
    line, network = (
        module.bias_variance("predict.mlp", *each, fits=6, rows=100, budget="200steps")
        for each in module.CAPACITIES.values()
    )
    assert network["bias^2"] < line["bias^2"] / 2
    assert network["variance"] > line["variance"]
