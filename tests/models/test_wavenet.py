"""WaveNet learns what reaches back, and knows its receptive field."""

from __future__ import annotations

import math

import pytest
import small_data
import torch

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive.wavenet import WaveNet
from monge.nn.dilated import TCNStack
from monge.nn.dilated import WaveNetStack as Gated
from monge.train.trainer import Trainer

NETS = [Gated.Config(width=12, layers=3, skip=16), TCNStack.Config(width=12, layers=2)]


@pytest.mark.parametrize("net", NETS, ids=["wavenet", "tcn"])
def test_it_finds_an_echo_within_its_reach(net):
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
    model = WaveNet.Config(net=net, window=0).build(space)
    train_config = WaveNet.defaults(space).train.override("lr=1e-2", "batch_size=64", "warmup=0")
    trainer = Trainer(model, small_data.Rows(Batch(x[:600], length=length[:600])), train_config)
    for _ in range(60):
        trainer.train_step(1.0)
    with torch.no_grad():
        found = -model.eval().likelihood(Batch(x[600:], length=length[600:])).value.mean().item()
    assert best - 1 < found < best + 1.5
    assert 24 * math.log(2) - found > 3  # a model of single steps knows nothing


@pytest.mark.parametrize("net", NETS, ids=["wavenet", "tcn"])
def test_overrides_choose_the_network_and_its_reach(net):
    space = Space(kind="real", shape=(40,), mean=(0.0,), scale=(1.0,))
    config = WaveNet.Config().override(f"net={type(net).tag}", "net.layers=3", "net.kernel=3")
    model = config.build(space).double()
    assert model.net.reach == (1 + 2 * 7 if isinstance(net, Gated.Config) else 1 + 4 * 7)
    x = torch.randn(1, 40, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(model.parameters_of_conditionals(Batch(x))[0, 35].sum(), x)
    support = slope[0].nonzero()[:, 0].tolist()
    assert max(support) <= 34
    assert min(support) >= 35 - model.net.reach


def test_defaults_reach_over_short_rows_and_code_mulaw():
    speech = Space(kind="levels", shape=(9000,), size=256, varies=True, rows=1200)
    config = WaveNet.defaults(speech).config
    assert config.levels == "categorical"
    assert config.net.layers == 10
    assert WaveNet.defaults(Space(kind="real", shape=(2,))).config.net.layers == 1


def test_what_is_no_sequence_is_refused():
    assert "2x2x2x2" in WaveNet.unsupported_reason(Space(kind="real", shape=(2, 2, 2, 2)))
