"""Data made from known causes: seeded row by row, and the causes can be read from the rows."""

import math

import numpy as np
import pytest
import torch

from monge.data import loading as data


@pytest.mark.parametrize("name", ["strokes", "sines", "shapes", "linear_gaussian", "two_moons"])
def test_rows_are_functions_of_their_own_number(name):
    def rows(*settings):
        return data.open(name, *settings).view().split("all").whole()

    few, more = rows("rows=40"), rows("rows=60")
    width = few.x.shape[1]
    assert torch.equal(few.x, more.x[:40, :width])
    other = rows("rows=40", "seed=1").x
    assert other.shape != few.x.shape or not torch.equal(other, few.x)


def test_strokes_have_lengths_letters_and_hands():
    source = data.open("strokes", "rows=600")
    batch = source.view(given=["letter", "style"]).split("all").whole()
    assert batch.x.shape[2] == 2
    assert batch.length.min() >= 16
    assert batch.length.max() == 32
    assert source.target == "letter"
    assert source.fields["letter"].codec.names == tuple("celosv")
    ends = batch.x.cumsum(1)[torch.arange(600), batch.length - 1]
    letter, style = (batch.given[name].x for name in ("letter", "style"))
    o, ell = (letter == "celosv".index(c) for c in "ol")
    assert ends[o].norm(dim=1).median() < 0.15  # an o closes
    assert ends[ell].norm(dim=1).median() > 0.5
    height = batch.x.cumsum(1)[..., 1]
    assert (height[ell].amax(1) - height[ell].amin(1)).median() > 1.6
    lean = source.fields["style"].codec.names.index("slanted")
    tall = height[ell & (style == lean)]
    across = batch.x.cumsum(1)[..., 0][ell & (style == lean)]
    top = tall.argmax(1)
    assert across[torch.arange(len(top)), top].median() > 0.7


def test_the_period_of_a_wave_is_its_field():
    source = data.open("sines", "rows=200")
    x = source.view().split("all").whole().x.double()
    period = source.tensors["period"].double()
    time = torch.arange(48).double()
    angle = 2 * math.pi * time / period[:, None]
    base = torch.stack([angle.sin(), angle.cos()], 2)  # (N, 48, 2)
    rest = x - (base @ torch.linalg.lstsq(base, x[..., None]).solution)[..., 0]
    assert abs(rest.std() - 0.1 * math.sqrt(46 / 48)) < 0.005
    wrong = torch.linalg.lstsq(base.flip(0), x[..., None]).solution
    assert (x - (base.flip(0) @ wrong)[..., 0]).std() > 0.3


def test_a_wedge_is_where_its_factors_say():
    source = data.open("shapes", "rows=1500")
    x = source.view().split("all").whole().x[:, 0]
    factors = {
        name: source.tensors[name].numpy() for name in ("across", "down", "size", "rotation")
    }
    assert set(x.unique().tolist()) == {0.0, 1.0}
    axis = torch.arange(16.0)
    mass = x.sum((1, 2))
    for name, sums in (("across", x.sum(1)), ("down", x.sum(2))):
        centre = (sums @ axis) / mass
        assert np.corrcoef(centre, factors[name])[0, 1] > 0.9
    assert np.corrcoef(mass, factors["size"])[0, 1] > 0.9
    flat = x[torch.from_numpy(factors["rotation"] == 0)]
    assert (flat.amax(1).sum(1) > flat.amax(2).sum(1)).float().mean() > 0.95  # lies on its side
    upright = x[torch.from_numpy(factors["rotation"] == 5)]
    assert (upright.amax(1).sum(1) < upright.amax(2).sum(1)).float().mean() > 0.95
    every = np.unique(np.stack(list(factors.values()), 1), axis=0)
    assert len(every) > 600


def test_simulations_follow_their_simulator():
    batch = data.open("linear_gaussian").view(given=["x"]).split("all").whole()
    theta, x = batch.x.double(), batch.given["x"].x.double()
    assert theta.shape == x.shape == (2000, 3)
    assert theta.min() >= -2
    assert theta.max() <= 2
    assert abs(theta.std() - 4 / math.sqrt(12)) < 0.02
    assert abs((x - theta).mean() - 1) < 5 * 0.1 / math.sqrt(6000)
    assert abs((x - theta).std() - 0.1) < 5 * 0.1 / math.sqrt(12000)


def test_what_two_moons_observe_has_two_causes():
    batch = data.open("two_moons", "rows=1000").view(given=["x"]).split("all").whole()
    theta, x = batch.x.double(), batch.given["x"].x.double()
    other = -theta.flip(1)  # the same sum up to its sign, the same difference
    for causes in (theta, other):
        sums, gaps = causes.sum(1).abs() / math.sqrt(2), causes.diff(dim=1)[:, 0] / math.sqrt(2)
        radius = (x - torch.stack([0.25 - sums, gaps], 1)).norm(dim=1)
        assert abs(radius.mean() - 0.1) < 0.002
        assert abs(radius.std() - 0.01) < 0.002
