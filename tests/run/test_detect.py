"""Rows unlike the data of a run: scores against known values, and what the command writes."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score

import monge
from monge.cli.main import attempt
from monge.evaluate.detection import (
    auroc,
    compressed_nats,
    false_alarms,
    mahalanobis,
    p_values,
)

GENERATOR = np.random.default_rng(0)


def test_the_area_is_that_of_pairs_with_ties():
    inside, outside = GENERATOR.integers(0, 6, 80), GENERATOR.integers(2, 8, 50)
    found = auroc(inside.astype(float), outside.astype(float))
    labels = np.repeat([0, 1], [80, 50])
    scores = np.concatenate([inside, outside])
    assert found.value == pytest.approx(roc_auc_score(labels, scores))
    assert found.value == pytest.approx(mannwhitneyu(outside, inside).statistic / (80 * 50))


def test_the_error_of_the_area_is_its_spread_over_samples():
    areas = [auroc(GENERATOR.normal(size=60), GENERATOR.normal(0.7, size=40)) for _ in range(400)]
    spread = np.std([each.value for each in areas])
    assert np.mean([each.stderr for each in areas]) == pytest.approx(spread, rel=0.15)


def test_false_alarms_are_counted_where_nineteen_of_twenty_are_found():
    inside, outside = np.arange(100.0), np.arange(90.0, 110.0)  # the threshold is 91
    assert false_alarms(inside, outside) == pytest.approx(0.09)
    assert false_alarms(inside, outside[:19]) == pytest.approx(0.1)  # all have to be found


def test_p_values_of_rows_inside_are_uniform_and_never_0():
    inside = GENERATOR.normal(size=999)
    found = p_values(inside, GENERATOR.normal(size=4000))
    for level in (0.05, 0.5):
        error = 5 * math.sqrt(level * (1 - level) * (1 / 4000 + 1 / 999))
        assert abs((found <= level).mean() - level) < error
    assert p_values(inside, np.array([1e9]))[0] == pytest.approx(1 / 1000)
    assert p_values(inside, np.array([-1e9]))[0] == 1


def test_mahalanobis_is_euclidean_in_coordinates_without_correlation():
    shape = np.array([[2.0, 0.0], [1.5, 0.5]])
    points = GENERATOR.normal(size=(20_000, 2))
    found = mahalanobis(points @ shape.T, np.array([[3.0, 4.0], [0.0, 1.0]]) @ shape.T)
    np.testing.assert_allclose(found, [5, 1], rtol=0.03)
    constant = np.column_stack([points, np.ones(len(points))])
    assert mahalanobis(constant, np.array([[0.0, 0.0, 3.0]]))[0] > 10


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 16, 16), (300,)])
def test_noise_costs_a_compressor_more_than_one_colour(shape):
    plain, noise = np.zeros((1, *shape), np.uint8), GENERATOR.integers(0, 256, (1, *shape))
    costs = compressed_nats(np.concatenate([plain, noise.astype(np.uint8)]))
    assert costs[1] > 2 * costs[0]


@pytest.fixture(scope="module")
def digits():
    return monge.fit("chow_liu", "digits", progress=False)


def test_a_likelihood_prefers_black_pictures_and_others_do_not(digits):
    found = digits.detect(np.zeros((40, 1, 8, 8), np.uint8))
    assert found.auroc("likelihood").value < 0.05
    for name in ("typicality", "complexity"):
        assert found.auroc(name).value > 0.95
        assert (found.p_values(name) < 0.01).all()


def test_rows_of_the_same_data_are_not_told_apart(digits):
    found = digits.detect(digits.sample(200, seed=0))
    again = digits.detect("digits")
    area = found.auroc("likelihood")
    assert abs(area.value - 0.5) < 0.15
    assert again.auroc("likelihood").value < 0.55  # most are rows of the training
    assert set(found.table().columns) >= {"row", "likelihood", "likelihood_p", "mahalanobis"}


def test_a_background_takes_away_what_both_know():
    x = GENERATOR.normal(size=(400, 2))
    x[:, 1] *= 0.1
    own, background = (
        monge.fit("gaussian", rows, progress=False)
        for rows in (x, 3 * GENERATOR.normal(size=(400, 2)))
    )
    odd = np.column_stack([GENERATOR.normal(size=100) * 0.1, GENERATOR.normal(size=100)])
    found = own.detect(odd, background)
    expected = background.log_likelihood(odd).value - own.log_likelihood(odd).value
    np.testing.assert_allclose(found.outside["ratio"], expected, rtol=1e-5)
    assert found.auroc("ratio").value > 0.8


def test_the_command_writes_a_line_per_row(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"a": GENERATOR.normal(size=200), "b": ["x", "y"] * 100})
    frame.to_csv("rows.csv", index=False)
    odd = frame.head(20).assign(a=50.0)
    odd.to_csv("odd.csv", index=False)
    monge.fit("chow_liu", "rows.csv", progress=False, out="known")
    assert attempt(["detect", "known", "odd.csv", "-o", "out.csv", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["mahalanobis"]["auroc"] == 1
    assert len(pd.read_csv("out.csv")) == 20
    frame.rename(columns={"a": "c"}).to_csv("other.csv", index=False)
    assert attempt(["detect", "known", "other.csv"]) != 0
    assert "a" in capsys.readouterr().err
    monge.fit("gaussian", GENERATOR.normal(size=(50, 3)), progress=False, out="wide")
    assert attempt(["detect", "known", "odd.csv", "--background", "wide"]) == 2


def test_texts_have_likelihoods_and_no_distances(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("\n".join(["anna", "bert", "carl", "dora", "emil", "fritz"] * 20))
    run = monge.fit("gpt", file, "width=8", "depth=1", "heads=2", progress=False, budget="2steps")
    assert run.space.kind == "tokens"
    assert set(run.detect(file).inside) == {"likelihood", "typicality"}
