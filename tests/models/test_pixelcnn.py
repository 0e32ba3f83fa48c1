"""PixelCNN sums to one over images, and samples with row caches as with full passes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from pixels import BINARY, COLOUR, GIVEN, LEVELS, REAL, RGB, ROW, space_id
from small_data import states

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive.pixelcnn import PixelCNN
from monge.nn.autoregressive.pixelcnn import GatedPixelCNN, PlainPixelCNN

NETWORKS = [GatedPixelCNN, PlainPixelCNN]


def pixelcnn(space: Space, owner=GatedPixelCNN, **settings: object) -> PixelCNN:
    net = owner.Config(**{"width": 9, "depth": 3, "first": 5, **settings})
    torch.manual_seed(0)
    model = PixelCNN.Config(net=net, components=2).build(space).double().eval()
    for parameter in model.net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def labels(n: int) -> dict[str, Batch]:
    return {"label": Batch(torch.arange(n) % 3)}


@pytest.mark.parametrize("owner", NETWORKS)
@pytest.mark.parametrize("space", [BINARY, COLOUR, LEVELS, ROW], ids=space_id)
def test_sums_to_one_over_every_image(space, owner):
    log_p = pixelcnn(space, owner).log_prob(states(space))
    assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("owner", NETWORKS)
def test_each_label_has_its_own_distribution(owner):
    model, x = pixelcnn(replace(BINARY, given=GIVEN), owner), states(BINARY)
    each = [model.log_prob(Batch(x, {"label": Batch(torch.tensor([code]))})) for code in range(3)]
    for log_p in each:
        assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    assert not torch.allclose(each[0], each[1])


@pytest.mark.parametrize("owner", NETWORKS)
@pytest.mark.parametrize("given", [{}, GIVEN], ids=["alone", "given"])
@pytest.mark.parametrize("space", [BINARY, LEVELS, RGB, REAL, ROW], ids=space_id)
def test_cached_samples_equal_full_passes_and_the_end_of_a_stream(space, given, owner):
    model = pixelcnn(replace(space, given=given), owner)
    conditions = labels(20) if given else {}
    quick = model.sample(20, conditions, generator=make_generator(1))
    slow = model.sample(20, conditions, PixelCNN.SamplingConfig(cached=False), make_generator(1))
    *_, last = model.stream(20, conditions, generator=make_generator(1))
    assert quick.shape == (20, *space.shape)
    assert quick.std() > 0
    torch.testing.assert_close(quick, slow, rtol=0, atol=1e-9)
    assert torch.equal(quick, last)


@pytest.mark.parametrize("owner", NETWORKS)
def test_samples_what_it_scores(owner):
    model, n = pixelcnn(COLOUR, owner), 8000
    log_p = model.log_prob(states(COLOUR))
    own = model.log_prob(model.sample(n, generator=make_generator(2)))
    negentropy = (log_p.exp() * log_p).sum()
    assert (own.mean() - negentropy).abs() < 4 * own.std() / math.sqrt(n)


def test_pixels_come_in_raster_order_and_colours_within_them():
    (order,) = pixelcnn(Space(kind="binary", shape=(3, 2, 2))).orders
    assert order.reshape(3, 2, 2).tolist() == [
        [[0, 3], [6, 9]],
        [[1, 4], [7, 10]],
        [[2, 5], [8, 11]],
    ]


@pytest.mark.parametrize("owner", NETWORKS)
def test_blue_never_feeds_green_or_red(owner):
    model, x = pixelcnn(RGB, owner), 255 * torch.rand(2, 3, 3, 4).double().round()
    before = model.parameters_of_conditionals(Batch(x)).reshape(2, 3, 3, 4, -1)
    x[:, 2, 1, 1] = 255 - x[:, 2, 1, 1]
    after = model.parameters_of_conditionals(Batch(x)).reshape(2, 3, 3, 4, -1)
    moved = (before != after).any(-1).any(0)  # (3, 3, 4)
    assert not moved[:, 0].any()
    assert not moved[:, 1, :2].any()
    assert moved[:, 1, 2].all()


def test_the_blind_spot_as_a_map():
    space = Space(kind="binary", shape=(1, 9, 9))
    plain, gated = (
        pixelcnn(space, owner, depth=6, first=3) for owner in (PlainPixelCNN, GatedPixelCNN)
    )
    assert not gated.blind_spot_map(4, 4).any()
    assert plain.blind_spot_map(4, 4).nonzero().tolist() == [
        [1, 8],
        [2, 7],
        [2, 8],
        [3, 6],
        [3, 7],
        [3, 8],
    ]


@pytest.mark.parametrize("owner", NETWORKS)
def test_the_rest_of_an_image_follows_the_conditional(owner):
    model, n = pixelcnn(BINARY, owner), 8000
    top = torch.tensor([[[1.0, 0, 1]]], dtype=torch.float64)
    seen = torch.tensor([[[True], [False]]]).expand(n, 1, 2, 3)
    hidden = torch.cat([top, torch.full_like(top, torch.nan)], 1).expand(n, 1, 2, 3)
    samples = model.complete(Batch(hidden, observed=seen), generator=make_generator(4))
    assert torch.equal(samples[:, :, 0], top.expand(n, 1, 3))
    lower = states(Space(kind="binary", shape=(1, 1, 3)))
    log_p = model.log_prob(torch.cat([top.expand(8, 1, 1, 3), lower], 2))
    due = (log_p - log_p.logsumexp(0)).exp()
    codes = samples[:, 0, 1] @ torch.tensor([4.0, 2, 1], dtype=torch.float64)
    found = torch.bincount(codes.long(), minlength=8)
    assert ((found - n * due).square() / (n * due)).sum() < 7 + 5 * math.sqrt(14)


def test_upper_rows_of_every_colour_are_a_beginning_and_lower_ones_are_not():
    model, x = pixelcnn(RGB), torch.zeros(2, 3, 3, 4).double() + 7
    seen = torch.zeros(2, 3, 3, 4, dtype=torch.bool)
    seen[:, :, :2] = True
    samples = model.complete(Batch(x, observed=seen), generator=make_generator(0))
    assert (samples[:, :, :2] == 7).all()
    assert (samples[:, :, 2] != 7).any()
    with pytest.raises(DataError, match=r"pixelcnn.*row 0\b.*\b8\b.*\b31\b"):
        model.complete(Batch(x, observed=~seen))


def test_scores_in_pieces_are_the_same_scores(monkeypatch):
    model = pixelcnn(replace(REAL, given=GIVEN))
    batch = Batch(torch.randn(7, 1, 4, 3, dtype=torch.float64), labels(7))
    with torch.no_grad():
        whole = model.log_prob(batch)
        monkeypatch.setattr("monge.models.autoregressive._images.MAX_LAYER_ELEMENTS", 1)
        torch.testing.assert_close(model.log_prob(batch), whole)


@pytest.mark.parametrize("owner", NETWORKS)
def test_learns_stripes(owner):
    space = Space(kind="binary", shape=(1, 4, 4), mean=(0.5,))
    torch.manual_seed(0)
    model = PixelCNN.Config(net=owner.Config(width=8, depth=2, first=3)).build(space)
    x = torch.randint(2, (256, 1, 1, 4)).float().expand(256, 1, 4, 4)  # every row is the first
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        optimiser.zero_grad()
        model.loss(Batch(x))["nll"].mean().backward()
        optimiser.step()
    assert model.log_prob(x).mean().item() == pytest.approx(-4 * math.log(2), abs=0.3)


def test_begins_at_the_frequencies_of_each_entry():
    model = PixelCNN.Config(net=GatedPixelCNN.Config(width=4, depth=1)).build(LEVELS)
    x = torch.tensor([[0.0, 1, 2, 2], [0, 1, 1, 2]]).repeat(50, 1).reshape(100, 1, 2, 2)
    model.initialise_from_data(Batch(x))
    assert model.conditionals(Batch(x[:1]))[0, 0].item() == pytest.approx(0, abs=0.05)
    assert model.conditionals(Batch(x[:1]))[0, 2].item() == pytest.approx(-math.log(2), abs=0.05)


def test_overrides_choose_the_network():
    config = PixelCNN.Config().override("net=plain", "net.width=8", "net.kernel=5")
    assert config.net == PlainPixelCNN.Config(width=8, kernel=5)
    assert PixelCNN.Config.from_dict(config.to_dict()) == config
    with pytest.raises(UsageError, match="kernel=4"):
        config.override("net.kernel=4")


def test_defaults_are_buildable_for_every_kind():
    digits = Space(kind="levels", shape=(1, 8, 8), size=17, high=(16.0,))
    large = Space(kind="binary", shape=(1, 28, 28))
    for space in (BINARY, RGB, REAL, ROW, digits, large):
        for rows in (100, 100_000):
            config = PixelCNN.defaults(replace(space, rows=rows)).config
            assert PixelCNN.Config.from_dict(config.to_dict()) == config
            assert config.build(space).sample(2).shape == (2, *space.shape)
    photographs = PixelCNN.defaults(Space(kind="levels", shape=(3, 32, 32), size=256, rows=8000))
    few = PixelCNN.defaults(replace(large, rows=8000))
    assert photographs.config.net.dropout == 0 < few.config.net.dropout
    assert photographs.train.batch_size < few.train.batch_size
    assert PixelCNN.unsupported_reason(digits) is None
    assert "2x3x4x5" in PixelCNN.unsupported_reason(Space(kind="real", shape=(2, 3, 4, 5)))
