"""PixelRNN sums to one over images, and samples with row caches as with full passes."""

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
from monge.models.autoregressive.pixelrnn import PixelRNN
from monge.nn.autoregressive.pixelrnn import DiagonalBiLSTM, RowLSTM

NETWORKS = [DiagonalBiLSTM, RowLSTM]


def pixelrnn(space: Space, owner=DiagonalBiLSTM, **settings: object) -> PixelRNN:
    net = owner.Config(**{"width": 9, "depth": 2, "first": 3, **settings})
    torch.manual_seed(0)
    model = PixelRNN.Config(net=net, components=2).build(space).double().eval()
    for parameter in model.net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize("owner", NETWORKS)
@pytest.mark.parametrize("space", [BINARY, COLOUR, LEVELS, ROW], ids=space_id)
def test_sums_to_one_over_every_image(space, owner):
    log_p = pixelrnn(space, owner).log_prob(states(space))
    assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("owner", NETWORKS)
def test_each_label_has_its_own_distribution(owner):
    model, x = pixelrnn(replace(BINARY, given=GIVEN), owner), states(BINARY)
    each = [model.log_prob(Batch(x, {"label": Batch(torch.tensor([code]))})) for code in range(3)]
    for log_p in each:
        assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    assert not torch.allclose(each[0], each[1])


@pytest.mark.parametrize("owner", NETWORKS)
@pytest.mark.parametrize("given", [{}, GIVEN], ids=["alone", "given"])
@pytest.mark.parametrize("space", [LEVELS, RGB, REAL, ROW], ids=space_id)
def test_cached_samples_equal_full_passes_and_the_end_of_a_stream(space, given, owner):
    model = pixelrnn(replace(space, given=given), owner)
    conditions = {"label": Batch(torch.arange(12) % 3)} if given else {}
    quick = model.sample(12, conditions, generator=make_generator(1))
    slow = model.sample(12, conditions, PixelRNN.SamplingConfig(cached=False), make_generator(1))
    *_, last = model.stream(12, conditions, generator=make_generator(1))
    assert quick.shape == (12, *space.shape)
    assert quick.std() > 0
    torch.testing.assert_close(quick, slow, rtol=0, atol=1e-9)
    assert torch.equal(quick, last)


@pytest.mark.parametrize("owner", NETWORKS)
def test_samples_what_it_scores(owner):
    model, n = pixelrnn(COLOUR, owner), 8000
    log_p = model.log_prob(states(COLOUR))
    own = model.log_prob(model.sample(n, generator=make_generator(2)))
    negentropy = (log_p.exp() * log_p).sum()
    assert (own.mean() - negentropy).abs() < 4 * own.std() / math.sqrt(n)


def test_a_row_sees_a_triangle_and_diagonals_see_all():
    space = Space(kind="binary", shape=(1, 9, 9))
    row, diagonal = (pixelrnn(space, owner) for owner in (RowLSTM, DiagonalBiLSTM))
    for place in ((0, 5), (4, 0), (4, 4), (4, 8), (8, 3)):
        assert not diagonal.blind_spot_map(*place).any()
    blind = row.blind_spot_map(4, 4)
    right = [[1, 8], [2, 7], [2, 8], [3, 6], [3, 7], [3, 8]]
    assert blind.nonzero().tolist() == [*right, [4, 0]]  # three layers reach three to the left


@pytest.mark.parametrize("owner", NETWORKS)
def test_the_rest_of_an_image_follows_the_conditional(owner):
    model, n = pixelrnn(BINARY, owner), 8000
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


def test_lower_rows_are_no_beginning():
    seen = torch.tensor([[[False], [True]]]).expand(2, 1, 2, 3)
    with pytest.raises(DataError, match=r"pixelrnn.*row 0\b.*\b3\b.*\b2\b"):
        pixelrnn(BINARY).complete(Batch(torch.zeros(2, 1, 2, 3), observed=seen))


@pytest.mark.parametrize("owner", NETWORKS)
def test_learns_stripes(owner):
    space = Space(kind="binary", shape=(1, 4, 4), mean=(0.5,))
    torch.manual_seed(0)
    model = PixelRNN.Config(net=owner.Config(width=8, depth=1, first=3)).build(space)
    x = torch.randint(2, (64, 1, 1, 4)).float().expand(64, 1, 4, 4)  # every row is the first
    optimiser = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(60):
        optimiser.zero_grad()
        model.loss(Batch(x))["nll"].mean().backward()
        optimiser.step()
    assert model.log_prob(x).mean().item() == pytest.approx(-4 * math.log(2), abs=0.3)


def test_overrides_choose_the_network():
    config = PixelRNN.Config().override("net=row", "net.width=8", "net.kernel=5")
    assert config.net == RowLSTM.Config(width=8, kernel=5)
    assert PixelRNN.Config.from_dict(config.to_dict()) == config
    with pytest.raises(UsageError, match="'kernel'"):
        PixelRNN.Config().override("net=diagonal", "net.kernel=5")
    with pytest.raises(UsageError, match="net=gated"):
        config.override("net=gated")


def test_defaults_are_buildable_for_every_kind():
    digits = Space(kind="levels", shape=(1, 8, 8), size=17, high=(16.0,))
    for space in (BINARY, RGB, REAL, ROW, digits):
        for rows in (100, 100_000):
            config = PixelRNN.defaults(replace(space, rows=rows)).config
            assert PixelRNN.Config.from_dict(config.to_dict()) == config
            assert config.build(space).sample(2).shape == (2, *space.shape)
    assert "2x3x4x5" in PixelRNN.unsupported_reason(Space(kind="real", shape=(2, 3, 4, 5)))
