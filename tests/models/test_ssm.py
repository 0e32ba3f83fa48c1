"""State-space models learn what lies behind, whichever network is chosen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import small_data
import torch

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.sequence.ssm import SSM
from monge.nn.state_space import S4D, Mamba
from monge.train.trainer import Trainer

NETS = {
    "mamba": Mamba.Config(width=16, depth=2, state=8, heads=2),
    "s4d": S4D.Config(width=16, depth=2, state=32),
}


@pytest.mark.parametrize("name", NETS)
def test_it_finds_an_echo(name):
    """x_t copies x_{t-4} nine times of ten: the entropy rate is known."""
    g = make_generator(0)
    x = torch.randint(0, 2, (800, 24), generator=g).float()
    for t in range(4, 24):
        fresh_bit = torch.rand(800, generator=g) < 0.1
        x[:, t] = torch.where(fresh_bit, 1 - x[:, t - 4], x[:, t - 4])
    rate = -(0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    best = 4 * math.log(2) + 20 * rate
    length = torch.full((800,), 24)
    space = Space(kind="binary", shape=(24,), size=2, varies=True, mean=(0.5,), scale=(0.5,))
    torch.manual_seed(0)
    model = SSM.Config(net=NETS[name]).build(space)
    train_config = SSM.defaults(space).train.override("lr=1e-2", "batch_size=64", "warmup=0")
    trainer = Trainer(model, small_data.Rows(Batch(x[:600], length=length[:600])), train_config)
    for _ in range(60):
        trainer.train_step(1.0)
    with torch.no_grad():
        found = -model.eval().likelihood(Batch(x[600:], length=length[600:])).value.mean().item()
    assert best - 1 < found < best + 1.5
    assert 24 * math.log(2) - found > 3  # a model of single steps knows nothing


@pytest.mark.parametrize("name", NETS)
def test_overrides_choose_the_network(name):
    space = Space(kind="real", shape=(6,), mean=(0.0,), scale=(1.0,))
    config = SSM.Config().override(f"net={name}", "net.width=8", "net.depth=1")
    model = config.build(space).double()
    assert type(model.net.net) is type(NETS[name]).owner
    x = torch.randn(2, 6, dtype=torch.float64)
    options = [model.SamplingConfig(cached=cached) for cached in (True, False)]
    quick, slow = (model.sample(3, None, each, make_generator(0)) for each in options)
    torch.testing.assert_close(quick, slow)
    torch.testing.assert_close(model.conditionals(Batch(x)).sum(1), model.likelihood(x).value)


def test_a_condition_of_another_length_is_refused():
    source = Space(kind="tokens", shape=(9,), size=5, varies=True, name="source")
    fixed = Space(kind="real", shape=(6,), given={"source": source})
    assert "'source'" in SSM.unsupported_reason(fixed)
    assert SSM.unsupported_reason(replace(fixed, given={})) is None


def test_many_symbols_get_a_wider_network():
    few, many = (Space(kind="tokens", shape=(256,), size=65, rows=rows) for rows in (10, 4000))
    assert SSM.defaults(few).config.net.width < SSM.defaults(many).config.net.width
