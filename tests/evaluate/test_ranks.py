"""Ranks are uniform for the conditional distribution of the data, and not for others."""

import math

import pytest
import torch

from monge.core.abilities import CanSample, HasLikelihood, Likelihood
from monge.core.batch import Batch
from monge.core.model import Model
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.ranks import (
    DRAWS,
    Ranks,
    covered,
    is_ranked,
    rank_metrics,
    rank_statistics,
    ranks_of,
)
from monge.plot.ranks import write_ranks

X = Space(kind="real", shape=(2,), name="x", rows=600)
SPACE = Space(kind="real", shape=(2,), name="theta", rows=600, given={"x": X})


class Posterior(Model, CanSample, HasLikelihood):
    """theta_i | x ~ N(x_i / 2, 1/2), scaled, moved or with equal noise in both entries."""

    events = {"real"}
    givens = {"real"}

    def __init__(self, scale=1.0, shift=0.0, together=False, space=SPACE):
        super().__init__(Model.Config(), space)
        self.scale, self.shift, self.together = scale * math.sqrt(0.5), shift, together

    def loss(self, batch):
        return {"nll": torch.zeros(len(batch))}

    def mean(self, given):
        return given["x"].x / 2 + self.shift

    def sample(self, n, given=None, options=None, generator=None):
        noise = torch.randn(n, 2, generator=generator)
        noise = noise[:, :1].expand(-1, 2) if self.together else noise
        return (self.mean(given) + self.scale * noise).double()

    def likelihood(self, batch, options=None, generator=None):
        z = (batch.x - self.mean(batch.given)) / self.scale
        return Likelihood(-z.square().sum(1) / 2, "exact")

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


class Rows:
    """theta ~ N(0, 1), x | theta ~ N(theta, 1), two entries that are independent."""

    def __init__(self, n=600):
        noise = torch.randn(n, 4, generator=make_generator(1))
        self.theta, self.x = noise[:, :2], noise[:, :2] + noise[:, 2:]

    def __len__(self):
        return len(self.x)

    def batch(self, index):
        return Batch(self.theta[index], {"x": Batch(self.x[index])})


def metrics(*args, **fields):
    return rank_metrics(rank_statistics(Posterior(*args, **fields), Rows()))


def test_the_exact_posterior_is_calibrated():
    found = metrics()
    assert found["rank_p"].value > 1e-3
    for name in ("theta1", "theta2", "density"):
        for level in (0.5, 0.9):
            error = math.sqrt(level * (1 - level) / 600)
            assert abs(found[f"{name}.coverage_{level:g}"].value - level) < 4 * error
    assert found["rows_ranked"].value == 600


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"scale": 0.7}, "theta1"),
        ({"scale": 1.5}, "theta2"),
        ({"shift": 0.3}, "theta1"),
        ({"together": True}, "density"),
    ],
    ids=["narrow", "wide", "biased", "dependent"],
)
def test_other_distributions_are_not(fields, name):
    found = metrics(**fields)
    assert found["rank_p"].value < 1e-6
    assert found[f"{name}.rank_p"].value < 1e-6
    if "scale" in fields:
        covers = found[f"{name}.coverage_0.9"].value
        assert covers < 0.85 if fields["scale"] < 1 else covers > 0.95


def test_ranks_of_entries_do_not_see_dependence():
    found = metrics(together=True)
    assert min(found["theta1.rank_p"].value, found["theta2.rank_p"].value) > 1e-3


def test_equal_values_have_every_rank_equally_often():
    values = torch.zeros(20_000, 4, 1)
    ranks = ranks_of(values, make_generator(0)).flatten().bincount(minlength=4)
    assert len(ranks) == 4
    assert (ranks - 5000).abs().max() < 5 * math.sqrt(20_000 * 0.25 * 0.75)


def test_intervals_have_their_probability():
    ranks = torch.arange(DRAWS + 1)
    for level in (0.5, 0.9):
        middle, top = (covered(ranks, level, highest) for highest in (False, True))
        assert middle.double().mean() == top.double().mean() == pytest.approx(level)
        assert torch.equal(middle, middle.flip(0))
        assert top[-1]
        assert not top[0]


def test_only_numbers_given_fields_of_the_same_row_are_ranked():
    assert is_ranked(Posterior())
    alone = Space(kind="real", shape=(2,), name="theta", rows=600)
    label = Space(kind="label", size=3, name="theta", rows=600, given={"x": X})
    wide = Space(kind="real", shape=(40,), name="theta", rows=600, given={"x": X})
    assert not any(is_ranked(Posterior(space=space)) for space in (alone, label, wide))
    assert rank_statistics(Posterior(), Rows(20)) is None
    assert rank_metrics(None) == {}


def test_histograms_are_plotted(tmp_path):
    ranks = Ranks(("a", "b"), torch.arange(200).reshape(100, 2) % (DRAWS + 1))
    assert ranks.counts().sum(1).tolist() == [100, 100]
    write_ranks(tmp_path / "figures" / "ranks.png", ranks)
    assert (tmp_path / "figures" / "ranks.png").stat().st_size > 1000
