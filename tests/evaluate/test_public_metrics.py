"""Metrics agree with their public implementations where these are installed."""

import numpy as np
import pytest
import scipy.stats
import torch
from pandas import DataFrame
from sklearn import metrics as sklearn_metrics

from monge.core.space import Space
from monge.evaluate.completion import paired_energy
from monge.evaluate.disentangle import mutual
from monge.evaluate.energy_distance import energy
from monge.evaluate.forecasts import crps, normal_crps
from monge.evaluate.predictions import TargetPrediction, of_classes, of_numbers
from monge.evaluate.tabular import Coding, roc_area, table_metrics
from monge.evaluate.text import bleu, chrf
from monge.evaluate.tstr import explained
from monge.prob.divergence import jensen_shannon, kl, wasserstein
from monge.solve.transport.exact import exact, on_line

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=40), RNG.normal(0.4, 1.3, size=25)


def tensor(x):
    return torch.from_numpy(np.asarray(x, dtype=np.float64))


def prediction(truth, **fields):
    n = len(truth)
    plain = dict.fromkeys(("mean", "mode", "low", "high", "below"), torch.zeros(n))
    known = {"probabilities": torch.zeros(n, 0), "seen": torch.ones(n, dtype=torch.bool)}
    return TargetPrediction(
        level=0.9, truth=tensor(truth), **(plain | known | {"space": Space(kind="real")} | fields)
    )


def test_scores_of_classes_are_those_of_scikit_learn():
    p = RNG.dirichlet(np.ones(4), size=60)
    truth = RNG.integers(0, 4, size=60)
    space = Space(kind="label", size=4)
    found = of_classes(
        prediction(truth, space=space, probabilities=tensor(p), mode=tensor(p.argmax(1)))
    )
    assert found["accuracy"].value == pytest.approx(
        sklearn_metrics.accuracy_score(truth, p.argmax(1))
    )
    assert found["nll"].value == pytest.approx(sklearn_metrics.log_loss(truth, p), rel=1e-9)


def test_scores_of_numbers_are_those_of_scikit_learn():
    truth, mean = RNG.normal(size=(2, 50))
    found = of_numbers(prediction(truth, mean=tensor(mean)))
    error = sklearn_metrics.mean_squared_error(truth, mean)
    assert found["rmse"].value == pytest.approx(error**0.5)
    assert found["mae"].value == pytest.approx(sklearn_metrics.mean_absolute_error(truth, mean))
    assert explained(tensor(mean), tensor(truth)).value == pytest.approx(
        sklearn_metrics.r2_score(truth, mean)
    )


def test_areas_and_information_are_those_of_scikit_learn():
    labels = np.r_[np.ones(len(X)), np.zeros(len(Y))]
    area = sklearn_metrics.roc_auc_score(labels, np.r_[X, Y])
    assert roc_area(tensor(X), tensor(Y)).value == pytest.approx(area)
    a, b = RNG.integers(0, 3, size=(2, 100))
    assert mutual(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(
        sklearn_metrics.mutual_info_score(a, b), abs=1e-9
    )


def test_distances_on_a_line_are_those_of_scipy():
    found = on_line(tensor(X), tensor(Y), 1.0)
    assert float(found) == pytest.approx(scipy.stats.wasserstein_distance(X, Y))
    whole = scipy.stats.energy_distance(X, Y) ** 2  # of the distributions that put 1/n on each
    n, m = len(X), len(Y)
    near = [np.abs(np.subtract.outer(x, x)).mean() for x in (X, Y)]
    fair = whole - near[0] / (n - 1) - near[1] / (m - 1)  # pairs of a point with itself left out
    assert energy(tensor(X)[:, None], tensor(Y)[:, None]).value == pytest.approx(fair)


@pytest.mark.filterwarnings("error")
def test_single_rows_have_no_energy_distance():
    one, many = torch.zeros(1, 2), torch.zeros(3, 2)
    for x, y in ((one, many), (many, one)):
        assert np.isnan(energy(x, y).value)
    assert np.isnan(paired_energy(torch.zeros(1, 4, 2), one).value)


def test_divergences_are_those_of_scipy():
    p, q = RNG.dirichlet(np.ones(6), size=2)
    assert float(kl(tensor(p), tensor(q))) == pytest.approx(scipy.stats.entropy(p, q))
    root = scipy.spatial.distance.jensenshannon(p, q)
    assert float(jensen_shannon(tensor(p), tensor(q))) == pytest.approx(root**2)


def test_the_crps_is_an_integral_of_squares():
    truth = 0.3
    grid = np.linspace(-12, 12, 400_001)
    step = grid[1] - grid[0]
    due = ((scipy.stats.norm(0.5, 1.2).cdf(grid) - (grid >= truth)) ** 2).sum() * step
    scale, one = torch.ones(1).double(), torch.ones(1, 1, 1).double()
    assert float(normal_crps(0.5 * one, 1.2 * one, truth * one, scale)) == pytest.approx(
        due, abs=1e-4
    )


def test_transport_is_that_of_pot():
    ot = pytest.importorskip("ot")
    cost = np.abs(np.subtract.outer(X, Y))
    even = [np.full(len(each), 1 / len(each)) for each in (X, Y)]
    assert float(exact(tensor(cost)).cost) == pytest.approx(ot.emd2(*even, cost))
    assert float(wasserstein(tensor(X)[:, None], tensor(Y)[:, None])) == pytest.approx(
        ot.emd2(*even, cost)
    )


OWN = ['The cat, it "sat" on a mat.', "it is raining 3.5 mm today", "no"]
TRUE = ["The cat sat on the mat.", "it rains 3.5 mm today, I think", "nothing at all"]


@pytest.mark.parametrize("n", [1, 3])
def test_text_scores_are_those_of_sacrebleu(n):
    sacrebleu = pytest.importorskip("sacrebleu")
    own, true = OWN[:n], TRUE[:n]
    assert bleu(own, true).value == pytest.approx(sacrebleu.corpus_bleu(own, [true]).score)
    assert chrf(own, true).value == pytest.approx(sacrebleu.corpus_chrf(own, [true]).score)
    swapped = [text[::-1] for text in own]  # no pair of words is right: counts are smoothed
    assert bleu(swapped, own).value == pytest.approx(sacrebleu.corpus_bleu(swapped, [own]).score)


def test_the_crps_is_that_of_properscoring():
    properscoring = pytest.importorskip("properscoring")
    draws, truth = tensor(X).reshape(-1, 1, 1, 1), torch.full((1, 1, 1), 0.3).double()
    one = torch.ones(1).double()
    n = len(X)
    near = np.abs(np.subtract.outer(X, X)).mean() / 2
    plain = float(crps(draws, truth, one)) + near / (n - 1)  # pairs of a sample with itself
    assert plain == pytest.approx(properscoring.crps_ensemble(0.3, X))
    normal = normal_crps(0.5 * one[None, None], 1.2 * one[None, None], truth, one)
    assert float(normal) == pytest.approx(properscoring.crps_gaussian(0.3, 0.5, 1.2))


def test_tables_are_compared_as_by_sdmetrics():
    columns = pytest.importorskip("sdmetrics.single_column")
    pairs = pytest.importorskip("sdmetrics.column_pairs")
    names = tuple(Space(kind="label", size=4, name=name) for name in "ab")
    space = Space(kind="columns", shape=(2,), columns=names, rows=200)
    real, made = RNG.integers(0, 4, size=(2, 200, 2))
    made[:, 1] = (made[:, 1] + made[:, 0]) % 3  # other shares and dependence
    found = table_metrics(tensor(real), tensor(made), Coding.of(tensor(real), space))
    sides = [DataFrame(each, columns=["a", "b"]) for each in (real, made)]
    shapes = [columns.TVComplement.compute(*(side[name] for side in sides)) for name in "ab"]
    assert 1 - found["marginals"].value == pytest.approx(np.mean(shapes))
    assert 1 - found["worst_marginal"].value == pytest.approx(min(shapes))
    alike = pairs.ContingencySimilarity.compute(*sides)
    assert 1 - found["pairs"].value == pytest.approx(alike)


def test_correlations_are_compared_as_by_sdmetrics():
    pairs = pytest.importorskip("sdmetrics.column_pairs")
    numbers = tuple(Space(kind="real", name=name) for name in "ab")
    space = Space(kind="columns", shape=(2,), columns=numbers, rows=200)
    real, made = RNG.normal(size=(2, 200, 2))
    made[:, 1] += made[:, 0]
    found = table_metrics(tensor(real), tensor(made), Coding.of(tensor(real), space))
    sides = [DataFrame(each, columns=["a", "b"]) for each in (real, made)]
    alike = pairs.CorrelationSimilarity.compute(*sides)
    assert 1 - found["pair_correlations"].value / 2 == pytest.approx(alike)
