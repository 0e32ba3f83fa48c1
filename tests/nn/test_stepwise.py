"""Every map that can be stepped: steps equal the parallel pass, and the future has no influence.

A new one is a line in `NETS`.
"""

import pytest
import torch

from monge.nn.attention.linear import CausalLinearAttention
from monge.nn.attention.softmax import CausalAttention
from monge.nn.attention.transformer import CausalTransformer
from monge.nn.recurrent import GRU, LSTM, ElmanRNN
from monge.nn.state_space import S4D, Mamba
from monge.nn.stepwise import ContextAdded

STEPS = 11
KINDS = ("none", "sinusoidal", "learned", "rotary", "table", "buckets", "alibi")


def causal(**fields):
    return CausalTransformer.Config(width=8, depth=2, heads=2, **fields).build(8, 5, STEPS)


NETS = {
    "rnn": lambda: ElmanRNN.Config(width=6, depth=2).build(4),
    "rnn relu": lambda: ElmanRNN.Config(width=6, activation="relu").build(4),
    "lstm": lambda: LSTM.Config(width=6, depth=2).build(4),
    "gru": lambda: GRU.Config(width=6, depth=2).build(4),
    "gru, reset before": lambda: GRU.Config(width=6, depth=2, reset="before").build(4),
    **{
        f"attention, {kind}": lambda kind=kind: CausalAttention(8, 2, kind)
        for kind in KINDS
        if kind not in ("sinusoidal", "learned")
    },
    "linear attention": lambda: CausalLinearAttention(8, 2),
    **{f"transformer, {kind}": lambda kind=kind: causal(positions=kind) for kind in KINDS},
    "transformer, post-norm": lambda: causal(norm="post"),
    "transformer, places beside": lambda: causal(join="concatenate"),
    "transformer, other inputs": lambda: CausalTransformer.Config(width=8, depth=1, heads=2).build(
        3, 5, 11
    ),
    "transformer, linear": lambda: causal(attention="linear"),
    "s4d": lambda: S4D.Config(width=6, depth=2, state=4).build(5),
    "mamba": lambda: Mamba.Config(width=6, depth=2, state=3, heads=2).build(5),
    "with a context": lambda: ContextAdded(GRU.Config(width=6).build(4), 0),
}


@pytest.fixture(params=NETS)
def net(request):
    """In float64, with weights far from any symmetric start."""
    torch.manual_seed(0)
    built = NETS[request.param]().double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def sequences(net, n=3):
    return torch.randn(n, STEPS, net.inputs, dtype=torch.float64)


@torch.no_grad()
def walk(net, x, state=None):
    state = net.start(len(x), x.shape[1]) if state is None else state
    return torch.stack([net.step(state, x[:, t]) for t in range(x.shape[1])], 1)


@torch.no_grad()
def test_steps_equal_the_pass(net):
    x = sequences(net)
    y = net(x)
    assert y.shape == (3, STEPS, net.outputs)
    torch.testing.assert_close(walk(net, x), y, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_the_future_has_no_influence_and_the_past_has(net):
    x = sequences(net)
    y, other = net(x), sequences(net)
    z = net(torch.cat([x[:, :6], other[:, 6:]], 1))
    assert torch.equal(z[:, :6], y[:, :6])
    assert float((z - y)[:, 6:].abs().amax((0, 2)).amin()) > 1e-9
    z = net(torch.cat([other[:, :1], x[:, 1:]], 1))
    assert float((z - y)[:, -1].abs().amax()) > 1e-9


@torch.no_grad()
def test_a_state_goes_on_with_the_rows_that_are_taken(net):
    x = sequences(net)
    state = net.start(3, STEPS)
    walk(net, x[:, :4], state)
    rows = torch.tensor([2, 0, 2, 1])
    state.reorder(rows)
    rest = walk(net, x[rows, 4:], state)
    torch.testing.assert_close(rest, net(x)[rows, 4:], rtol=1e-12, atol=1e-12)
