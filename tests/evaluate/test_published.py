"""Distances are those of published implementations: POT, scikit-learn, scipy; and the scores of
models order them as their divergence from the truth does."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel

from monge.core.abilities import HasLikelihood, Likelihood
from monge.core.batch import as_batch
from monge.core.gaussian_modes import GaussianModes
from monge.core.model import Model
from monge.core.rng import make_generator
from monge.data import loading as data
from monge.evaluate.frechet import feature_space_distances, frechet, kernel
from monge.evaluate.suite import EvaluationContext, all_metrics
from monge.prob.divergence import mmd, sinkhorn_divergence, wasserstein
from monge.solve.quadrature import lattice
from monge.solve.transport.exact import bures, on_line, sliced

I, K = torch.arange(1, 25).double()[:, None], torch.arange(1, 4).double()
X, Y = torch.sin(I * K * 0.7), 0.8 * torch.cos(I[:18] * K * 1.3) + 0.4
LINES = torch.nn.functional.normalize(torch.cos(torch.arange(1, 129)[:, None] * K), dim=1)


@pytest.mark.parametrize(
    ("found", "pot"),
    [  # by POT 0.9.7
        (
            lambda: sinkhorn_divergence(X, Y, 0.5, relative=False, tolerance=1e-12),
            0.6206741430111847,
        ),
        (
            lambda: sinkhorn_divergence(
                X, Y, 0.5, variant="sharp", relative=False, tolerance=1e-12
            ),
            0.7853056821688279,
        ),
        (lambda: on_line(LINES @ X.T, LINES @ Y.T, 2.0).mean().sqrt(), 0.41292161750695855),
        (lambda: wasserstein(X, Y, 2.0).square(), 0.8193371680125147),
        (lambda: bures(X.mean(0), X.T.cov(), Y.mean(0), Y.T.cov()).sqrt(), 0.6291185311476398),
    ],
    ids=[
        "solve_sample",
        "empirical_sinkhorn_divergence",
        "sliced_wasserstein_distance",
        "emd2",
        "bures_wasserstein_distance",
    ],
)
def test_transport_is_pots(found, pot):
    assert float(found()) == pytest.approx(pot, abs=1e-9)


def test_slices_are_lines_of_the_generator():
    lines = torch.randn(128, 3, generator=make_generator(3), dtype=torch.float64)
    lines = torch.nn.functional.normalize(lines, dim=1)
    expected = on_line(lines @ X.T, lines @ Y.T, 2.0).mean().sqrt()
    assert float(sliced(X, Y, generator=make_generator(3))) == pytest.approx(
        float(expected), abs=1e-12
    )


def double_sum(k, x: np.ndarray, y: np.ndarray) -> float:
    """The unbiased squared distance of two samples under a kernel, pair by pair."""

    def within(x):
        n, matrix = len(x), k(x, x)
        return sum(matrix[i, j] for i in range(n) for j in range(n) if i != j) / (n * (n - 1))

    return within(x) + within(y) - 2 * float(np.mean(k(x, y)))


def test_kernel_distances_are_those_of_scikit_learns_kernels():
    x, y = X.numpy(), Y.numpy()
    known = double_sum(lambda a, b: rbf_kernel(a, b, gamma=1 / (2 * 0.8**2)), x, y)
    assert float(mmd(X, Y, 0.8)) == pytest.approx(known, abs=1e-9)
    known = double_sum(lambda a, b: polynomial_kernel(a, b, 3, gamma=1 / 3, coef0=1), x, y)
    assert float(kernel(X, Y)) == pytest.approx(known, abs=1e-9)


def test_the_frechet_distance_is_that_of_scipys_root_and_of_two_gaussians():
    x, y = X.numpy(), Y.numpy()
    first, second = np.cov(x.T), np.cov(y.T)
    shift = ((x.mean(0) - y.mean(0)) ** 2).sum()
    known = shift + np.trace(first + second - 2 * sqrtm(first @ second).real)
    assert float(frechet(X, Y)) == pytest.approx(known, abs=1e-9)
    samples = torch.randn(2, 40_000, 3, generator=make_generator(0), dtype=torch.float64)
    scale, move = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([1.0, 0.0, -1.0])
    closed = 2.0 + (1.0 - scale).square().sum()  # N(0, 1) and N(move, scale^2), diagonal
    assert float(frechet(samples[0], samples[1] * scale + move)) == pytest.approx(
        float(closed), abs=0.1
    )


def test_a_kernel_distance_is_right_in_the_mean_and_a_frechet_distance_of_few_rows_is_not():
    pairs = torch.randn(60, 2, 30, 8, generator=make_generator(0), dtype=torch.float64)
    found = [feature_space_distances(x, y) for x, y in pairs]
    near = torch.tensor([each["kernel_distance"].value for each in found])
    assert abs(near.mean()) < 3 * near.std() / 60**0.5
    far = torch.tensor([each["frechet_distance"].value for each in found])
    assert far.min() > 0.5
    errors = torch.tensor([each["kernel_distance"].stderr for each in found])
    assert near.std() / 3 < errors.mean() < near.std() * 3


class KnownDensity(Model, HasLikelihood):
    """A model with a given density."""

    events = {"real"}

    def __init__(self, space, density):
        super().__init__(KnownDensity.Config(), space)
        self.density = density

    def loss(self, batch):
        return {}

    def likelihood(self, batch, options=None, generator=None):
        return Likelihood(self.density(as_batch(batch).x.double()), "exact")

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


def test_scores_order_models_as_their_divergence_from_the_truth_does():
    source = data.open("eight_gaussians", "rows=4000")
    rows, train = source.view().split("test"), source.view().split("train")
    truth = source.density
    assert isinstance(truth, GaussianModes)
    round_one = GaussianModes(torch.zeros(1, 2), 2.9)  # as wide as all eight together
    densities = [GaussianModes(truth.centres, truth.spread * s) for s in (1.1, 1.6)] + [round_one]
    x, volume = lattice(2, 401, 8.0)
    mass = (truth(x) + volume).exp()
    assert float(mass.sum()) == pytest.approx(1, abs=1e-6)
    known = EvaluationContext(density=truth)
    exact = [float((mass * (truth(x) - one(x))).sum()) for one in densities]
    assert exact == sorted(exact)
    found = [
        all_metrics(KnownDensity(rows.space, one), rows, train, known=known) for one in densities
    ]
    for each, value in zip(found, exact, strict=True):
        assert abs(each["kl"].value - value) < 4 * each["kl"].stderr
        assert abs(each["likelihood_gap"].value) < 4 * each["likelihood_gap"].stderr
    order = [-each["log_likelihood"].value for each in found]
    assert order == sorted(order)
    assert min(order) > -float((mass * truth(x)).sum()) - 0.2


def test_rows_known_by_heart_score_higher():
    source = data.open("moons", "rows=600")
    rows, train = source.view().split("test"), source.view().split("train")
    found = all_metrics(
        KnownDensity(rows.space, GaussianModes(train.whole().x.double(), 0.03)), rows, train
    )
    gap = found["likelihood_gap"]
    assert gap.value > 3 * gap.stderr > 0
    assert math.isfinite(gap.value)
