"""Known answers: distributions whose density, entropy or distance is known in closed form."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import monge
from monge.data import loading as data
from monge.evaluate.energy_distance import energy


def gaussian(n, rng):
    """Rows of a correlated Gaussian in three dimensions, and its distribution."""
    mean, mix = np.array([5.0, -2.0, 0.5]), np.array([[2.0, 0, 0], [1.0, 0.5, 0], [0.3, -1, 1]])
    return rng.normal(size=(n, 3)) @ mix.T + mean, stats.multivariate_normal(mean, mix @ mix.T)


@pytest.mark.parametrize(
    ("model", "overrides", "gap"),
    [
        ("gaussian", (), 0.03),
        ("mixture", ("components=1",), 0.03),
        ("made", ("width=64", "depth=1"), 0.15),
        ("vae", ("latent=3",), 0.15),
    ],
)
def test_a_gaussian_is_learned_in_the_units_of_the_data(model, overrides, gap):
    """The held-out log-likelihood is near the truth on the same rows, and never much above."""
    x, distribution = gaussian(3000, np.random.default_rng(7))
    test, _ = gaussian(2000, np.random.default_rng(8))
    run = monge.fit(model, x, *overrides, "train.lr=3e-3", budget="600steps")
    truth, found = distribution.logpdf(test).mean(), run.log_likelihood(test).mean
    assert found.value <= truth + 4 * found.stderr
    assert found.value > truth - gap


@pytest.mark.parametrize(
    "model", ["gaussian", "mixture", "made", "vae", "independent", "chow_liu"]
)
def test_a_change_of_units_costs_its_jacobian(model):
    """log p of 1000 x + 7 is log p of x, less log 1000 for each dimension."""
    x, _ = gaussian(400, np.random.default_rng(7))
    plain, scaled = (monge.fit(model, rows, budget="20steps") for rows in (x, 1000 * x + 7))
    difference = plain.log_likelihood(x).value - scaled.log_likelihood(1000 * x + 7).value
    np.testing.assert_allclose(difference, 3 * math.log(1000), atol=0.02)


def chain(n, rng, length=8, stay=0.9):
    """A bigram source: each bit equals the one before it with probability `stay`."""
    x = np.empty((n, length), bool)
    x[:, 0] = rng.random(n) < 0.5
    for t in range(1, length):
        x[:, t] = np.where(rng.random(n) < stay, x[:, t - 1], ~x[:, t - 1])
    bit = -(stay * math.log(stay) + (1 - stay) * math.log(1 - stay))
    return x, math.log(2) + (length - 1) * bit


@pytest.mark.parametrize("model", ["chow_liu", "made"])
def test_a_bigram_source_has_its_entropy(model):
    rng = np.random.default_rng(7)
    x, entropy = chain(6000, rng)
    run = monge.fit(model, x, budget="400steps")
    found = run.log_likelihood(chain(4000, rng)[0]).mean
    assert found.value == pytest.approx(-entropy, abs=0.02 + 4 * found.stderr)


def test_the_tree_finds_the_chain():
    rng = np.random.default_rng(7)
    x, _ = chain(6000, rng)
    shuffle = rng.permutation(8)
    straight, shuffled = (
        monge.fit("chow_liu", rows, budget="1steps") for rows in (x, x[:, shuffle])
    )
    np.testing.assert_allclose(
        straight.log_likelihood(x).value, shuffled.log_likelihood(x[:, shuffle]).value, rtol=1e-5
    )


@pytest.mark.parametrize("kind", ["counts", pytest.param("levels", marks=pytest.mark.slow)])
def test_a_small_discrete_distribution_is_learned(kind):
    """An arbitrary distribution over 3 x 2 x 3 states: the model is near it in total variation,
    hardly farther than the frequencies of its rows (dropout, which adds bias, is off)."""
    dtype, rng = np.int64 if kind == "counts" else np.uint8, np.random.default_rng(7)
    p = rng.dirichlet(np.full(18, 0.5))
    codes = rng.choice(18, size=8000, p=p)
    states = np.stack(np.unravel_index(np.arange(18), (3, 2, 3)), 1).astype(dtype)
    run = monge.fit(
        "made",
        states[codes],
        "width=64",
        "levels=categorical",
        "dropout=0",
        "train.lr=1e-2",
        budget="600steps",
    )
    q = np.exp(run.log_likelihood(states).value)
    empirical = np.bincount(codes, minlength=18) / 8000
    assert 0.5 * np.abs(q - p).sum() < 0.02 + 0.5 * np.abs(empirical - p).sum()


@pytest.mark.parametrize(
    "name",
    [
        "eight_gaussians",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("checkerboard", "rings")),
    ],
)
def test_no_model_beats_the_true_density(name):
    """The mean log-likelihood of a model stays below that of the density of the data."""
    dataset = data.open(name, "rows=2000")
    test = dataset.view().split("test").whole().x
    truth = dataset.density(test.double()).mean().item()
    run = monge.fit("mixture", dataset)
    found = run.log_likelihood().mean
    assert found.value < truth + 4 * found.stderr
    assert found.value > truth - 2


def test_energy_distance_of_two_gaussians():
    """2 E|X - Y| - E|X - X'| - E|Y - Y'| for N(0, 1) and N(m, 1) by the folded normal."""

    def folded(m, s):
        return s * math.sqrt(2 / math.pi) * math.exp(-m * m / (2 * s * s)) + m * math.erf(
            m / (s * math.sqrt(2))
        )

    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2000, 1, generator=g, dtype=torch.float64) for _ in range(2))
    truth = 2 * folded(1.0, math.sqrt(2)) - 2 * folded(0.0, math.sqrt(2))
    far, near = energy(x, y + 1), energy(x, y)
    assert abs(far.value - truth) < 5 * far.stderr
    assert abs(near.value) < 0.01
    assert near.better_than(far)
