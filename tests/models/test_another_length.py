"""Real targets whose steps are not those of the source: rnn reads it by attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.data import loading as data
from monge.models.sequence.rnn import RNN
from monge.nn.recurrent import GRU

NOISE = 0.1


def pairs(rows: int, longest: int):
    """A source of any length, and each of its values twice, with noise."""
    random = np.random.default_rng(0)
    x = [random.normal(size=(random.integers(3, longest + 1), 1)) for _ in range(rows)]
    y = [np.repeat(each, 2, 0) + NOISE * random.normal(size=(2 * len(each), 1)) for each in x]
    return data.open((x, y)).view("y", ["x"])


def built(view, alignment="line"):
    torch.manual_seed(0)
    config = replace(RNN.smallest_config(view.space), alignment=alignment)
    model = config.build(view.space).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval(), view.split("train").whole()


@pytest.mark.parametrize("alignment", ["line", "free"])
def test_steps_equal_the_whole_pass(alignment):
    model, batch = built(pairs(40, 6), alignment)
    chosen = [model.SamplingConfig(steps=9, cached=cached) for cached in (True, False)]
    one, other = (
        model.sample(8, batch[:8].given, options, make_generator(1)) for options in chosen
    )
    assert one.shape == (8, 9, 1)
    torch.testing.assert_close(one, other)


def test_padding_of_the_source_is_not_read_and_its_steps_are():
    model, batch = built(pairs(40, 6))
    source = batch.given["x"]
    short = int(source.length.argmin())
    padded, changed = source.x.clone(), source.x.clone()
    padded[short, int(source.length[short]) :] += 3
    changed[short, 0] += 3
    before, same, other = (
        model.conditionals(replace(batch, given={"x": replace(source, x=x)}))[short]
        for x in (source.x, padded, changed)
    )
    torch.testing.assert_close(same, before)
    assert not torch.allclose(other, before)


def test_a_value_for_each_step_beside_such_a_source_is_refused():
    view = pairs(40, 6)
    along = replace(view.space, given={}, name="pitch")
    space = replace(view.space, given={**view.space.given, "pitch": along})
    with pytest.raises(UsageError, match="pitch"):
        RNN.smallest_config(space).build(space)


def trained(alignment, steps):
    """The loss after some steps. Without the source every first value of two costs 1.42 nats, the
    mean at least 0.43."""
    view = pairs(200, 4)
    torch.manual_seed(0)
    config = RNN.Config(net=GRU.Config(width=24), components=1, alignment=alignment)
    model, batch = config.build(view.space), view.split("train").whole()
    model.initialise_from_data(batch)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = model.loss(batch)["nll"].mean()
        loss.backward()
        optimiser.step()
    return float(loss.detach())


def test_a_source_in_the_same_order_is_soon_read():
    assert trained("line", 25) < 0.3


@pytest.mark.slow
def test_attention_learns_where_to_read():
    assert trained("free", 150) < 0.3


def test_the_ends_of_source_and_event_stand_beside_each_other():
    view = pairs(200, 6)
    model, batch = built(view)
    model.initialise_from_data(batch)
    source = model.context.split(model.context(batch.given, len(batch), 12))[1]
    rows = torch.arange(len(batch))
    last = source.beside[rows, 0, batch.given["x"].length - 1]  # half a step before the end
    torch.testing.assert_close(last + 1, batch.length.to(last), atol=0.1, rtol=0)
