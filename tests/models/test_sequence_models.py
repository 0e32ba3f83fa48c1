"""Models of sequences: windows, lengths, ends, layouts and conditions, against direct answers."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product

import pytest
import small_data
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.likelihood import row_likelihoods
from monge.evaluate.suite import all_metrics, skipped_metrics
from monge.models._ordering import StepLayout
from monge.models._sequence import SequenceModel
from monge.models.autoregressive.wavenet import WaveNet
from monge.nn import dilated

LOCAL = Space(kind="real", shape=(12, 2), varies=True, name="pitch", rows=100)


def build(space: Space, window: int = 0, **fields) -> WaveNet:
    torch.manual_seed(0)
    net = dilated.WaveNetStack.Config(width=5, layers=2, skip=6)
    model = WaveNet.Config(net=net, window=window, components=2, **fields).build(space).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def varying(kind: str, n: int = 40) -> tuple[Space, Batch]:
    space, batch = small_data.sequence(kind, n)
    return space, batch.double()


@pytest.mark.parametrize("shape", [(6,), (3, 2), (2, 2, 3), ()])
def test_a_layout_is_undone(shape):
    space = Space(kind="real", shape=shape)
    layout, x = StepLayout(space), torch.randn(4, *shape)
    assert torch.equal(layout.event(layout.steps(x)), x)
    steps = layout.steps(x)
    assert torch.equal(steps[:, layout.places()], x.reshape(4, -1))


def test_colours_of_a_pixel_follow_each_other():
    layout = StepLayout(Space(kind="levels", shape=(3, 2, 2), size=4))
    image = torch.arange(12).reshape(1, 3, 2, 2)
    assert layout.steps(image)[0, :4].tolist() == [0, 4, 8, 1]


@pytest.mark.parametrize("kind", small_data.SEQUENCES)
def test_the_blocks_of_a_row_sum_to_its_score(kind):
    """Every block of the windowed loss, weighed by its chance, is the loss of whole rows."""
    space, rows = varying(kind)
    whole, cut = build(space), build(space, window=5)
    expected = whole.loss(rows)["nll"]
    count = whole.layout.exist(rows).sum(1)
    blocks = (count / 5).ceil().clamp_min(1).long()
    laid, total = cut.to_steps(rows), 0.0
    for block in range(int(blocks.max())):
        chosen = block < blocks
        first, last = (torch.where(chosen, (block + k) * count // blocks, count) for k in (0, 1))
        total = total - cut.block_log_prob(laid, first, last)
    torch.testing.assert_close(total * len(rows.x) / count.sum(), expected)
    torch.testing.assert_close(
        expected.mean() * count.sum() / len(rows.x), -whole.likelihood(rows).value.mean()
    )


def test_a_windowed_loss_is_unbiased():
    space, rows = varying("levels")
    model = build(space, window=4)
    torch.manual_seed(1)
    losses = torch.stack([model.loss(rows)["nll"].mean().detach() for _ in range(300)])
    expected = build(space).loss(rows)["nll"].mean().item()
    assert abs(losses.mean().item() - expected) < 4 * losses.std().item() / 300**0.5
    assert losses.std() > 0


@pytest.mark.parametrize("kind", ["levels", "real"])
def test_long_rows_are_scored_in_stretches(kind, monkeypatch):
    space, rows = varying(kind)
    model = build(space)
    whole = model.likelihood(rows).value
    monkeypatch.setattr(SequenceModel, "stretch", property(lambda self: 3))
    with torch.no_grad():
        torch.testing.assert_close(model.likelihood(rows).value, whole)


def test_tokens_end_once():
    """Over all sequences that end within three steps, or do not end, probability sums to one."""
    space = Space(kind="tokens", shape=(3,), size=3, varies=True, end=2, rows=10)
    model = build(space)
    sentences = [
        each
        for each in product(range(3), repeat=3)
        if all(after == 2 for at, after in pairwise(each) if at == 2)
    ]
    x = torch.tensor(sentences)
    assert abs(model.likelihood(Batch(x)).value.exp().sum().item() - 1) < 1e-12
    x = model.sample(500, options=model.SamplingConfig(steps=3), generator=make_generator(0))
    assert {tuple(row) for row in x.tolist()} <= set(sentences)
    assert x.dtype == torch.int64


def test_a_condition_of_each_step_is_read_at_its_step():
    space, rows = varying("levels")
    space = replace(space, given={"pitch": LOCAL})
    torch.manual_seed(0)
    pitch = torch.randn(len(rows), 12, 2, dtype=torch.float64)
    model = build(space)
    rows = replace(rows, given={"pitch": Batch(pitch, length=rows.length)})
    before = model.conditionals(rows)
    pitch[:, 4] += 1
    after = model.conditionals(rows)
    moved = (after != before).any(0)
    assert not moved[:4].any()
    assert moved[4:].any()
    windowed = build(space, window=3)
    torch.manual_seed(0)
    assert windowed.loss(rows)["nll"].isfinite().all()
    quick, slow = (
        model.sample(len(rows), rows.given, model.SamplingConfig(cached=cached), make_generator(0))
        for cached in (True, False)
    )
    torch.testing.assert_close(quick, slow)
    assert quick.shape == (len(rows), 12)
    short = {"pitch": Batch(pitch[:, :7], length=rows.length)}
    with pytest.raises(DataError, match=r"'pitch'.*\b7 steps.*\b12\b"):
        model.likelihood(replace(rows, given=short))


def test_places_of_rows_of_one_length_begin_with_their_own_marginal():
    space, batch = small_data.make("binary")
    model = build(space)
    with torch.no_grad():
        model.net.last.weight.zero_()
        model.net.last.bias.zero_()
    model.initialise_from_data(batch.double())
    share = batch.x.double().mean(0)
    expected = (batch.x * share.log() + (1 - batch.x) * (1 - share).log()).sum(1).mean()
    assert abs(model.likelihood(batch.double()).value.mean() - expected) < 1e-3


def test_temperature_sharpens():
    for kind in ("levels", "real"):
        space, rows = varying(kind)
        model = build(space)
        model.initialise_from_data(rows)
        cold, warm, hot = (
            model.sample(
                400,
                options=model.SamplingConfig(steps=3, temperature=t),
                generator=make_generator(0),
            )
            for t in (0.05, 1.0, 20.0)
        )
        plain = model.sample(
            400, options=model.SamplingConfig(steps=3), generator=make_generator(0)
        )
        assert torch.equal(warm, plain)
        assert cold[:, 0].std() < warm[:, 0].std() < hot[:, 0].std()


def test_the_median_length_is_sampled_and_saved(tmp_path):
    space, rows = varying("levels")
    model = build(space)
    model.initialise_from_data(rows)
    other = build(space)
    other.load_state_dict(model.state_dict())
    assert other.sample(2).shape == (2, int(rows.length.median()))
    with pytest.raises(UsageError, match="steps=4"):
        build(small_data.make("binary")[0]).sample(
            1, options=SequenceModel.SamplingConfig(steps=4)
        )


def test_bits_are_counted_over_the_steps_that_exist():
    space, rows = varying("channels")
    model = build(space)
    found = row_likelihoods(model, iter([rows]), space.dims)
    total = model.likelihood(rows).value.sum().item()
    expected = -total / (2 * rows.length.sum().item()) / math.log(2)
    assert found.bits_per_dim == pytest.approx(expected)


def test_measures_leave_out_a_distance_of_unequal_rows():
    space, rows = varying("levels")
    model = build(space)
    split = small_data.Rows(rows)
    found = all_metrics(model, split, split)
    assert "energy_distance" not in found
    assert {"log_likelihood", "bits_per_dim", "samples_per_second"} <= set(found)
    (skipped,) = skipped_metrics(model)
    assert skipped.name == "energy_distance"
    assert "12" in skipped.sentence


@pytest.mark.parametrize("wrong", [4.0, -1.0])
def test_a_level_beyond_the_alphabet_is_refused(wrong):
    space, rows = varying("levels")
    x = rows.x.clone()
    x[3, 0] = wrong
    with pytest.raises(DataError, match=rf"0 to 3\b.* {wrong:.0f}\b"):
        build(space).likelihood(replace(rows, x=x))
