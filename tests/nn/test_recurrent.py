"""Recurrent networks: torch's own if the form is torch's, and the GRU of Cho et al. 2014."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from monge.core.errors import DataError
from monge.nn.recurrent import GRU, LSTM, Bidirectional, ElmanRNN

CONFIGS = [
    ElmanRNN.Config(width=5, depth=2),
    LSTM.Config(width=5, depth=2),
    GRU.Config(width=5, depth=2),
    GRU.Config(width=5, depth=2, reset="before"),
]
TORCH = {ElmanRNN: nn.RNN, LSTM: nn.LSTM, GRU: nn.GRU}


def named(config):
    return f"{type(config).owner.__name__} {getattr(config, 'reset', '')}".strip()


pytestmark = pytest.mark.usefixtures("doubles")


@torch.no_grad()
def test_gru_of_the_notes_is_its_equations_and_not_torchs():
    net = GRU.Config(width=4, reset="before").build(3)
    w, u, b, c = net.layer(0)
    x, h = torch.randn(2, 5, 3), torch.zeros(2, 4)
    for t in range(5):
        r, z = (
            (x[:, t] @ w[own].T + b[own] + h @ u[own].T + c[own]).sigmoid()
            for own in (slice(0, 4), slice(4, 8))
        )
        new = (x[:, t] @ w[8:].T + b[8:] + (r * h) @ u[8:].T + c[8:]).tanh()
        h = z * h + (1 - z) * new
    y, last = net.scan(x)
    torch.testing.assert_close(y[:, -1], h)
    torch.testing.assert_close(last.layers[0][0], h)
    assert float((net.core(x)[0] - y).abs().amax()) > 1e-2
    same = GRU.Config(width=4).build(3)
    same.load_state_dict(net.state_dict())
    torch.testing.assert_close(same(x), net.core(x)[0])


@pytest.mark.parametrize("config", CONFIGS, ids=named)
def test_padding_changes_nothing_and_the_state_is_that_of_the_last_step(config):
    net, x, length = config.build(3), torch.randn(3, 6, 3), torch.tensor([2, 6, 1])
    y, state = net.scan(x, None, length)
    for row, steps in enumerate(length.tolist()):
        alone, own = net.scan(x[row : row + 1, :steps])
        torch.testing.assert_close(y[row : row + 1, :steps], alone)
        assert not y[row, steps:].any()
        for there, here in zip(state.layers, own.layers, strict=True):
            for a, b in zip(there, here, strict=True):
                torch.testing.assert_close(a[row : row + 1], b)


@pytest.mark.parametrize("config", CONFIGS, ids=named)
def test_a_pass_goes_on_from_a_state(config):
    net, x = config.build(3), torch.randn(2, 6, 3)
    first, state = net.scan(x[:, :4])
    rest, _ = net.scan(x[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), net(x))


@pytest.mark.parametrize("config", CONFIGS, ids=named)
def test_an_empty_sequence_is_refused(config):
    with pytest.raises(DataError, match=r"sequence 1\b.*length 0"):
        config.build(3)(torch.randn(2, 4, 3), torch.tensor([4, 0]))


@pytest.mark.parametrize("config", CONFIGS[:3], ids=named)
@pytest.mark.parametrize("lengths", [None, [4, 1, 3]])
def test_both_directions_equal_torchs(config, lengths):
    net = Bidirectional.Config(net=config).build(3)
    peer = TORCH[type(config).owner](3, 5, 2, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for depth in range(2):
            for side, tail in ((net.there, ""), (net.back, "_reverse")):
                names = [
                    f"{kind}_l{depth}{tail}"
                    for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                ]
                for name, value in zip(names, side[depth].layer(0), strict=True):
                    getattr(peer, name).copy_(value)
    x = torch.randn(3, 4, 3)
    if lengths is None:
        torch.testing.assert_close(net(x), peer(x)[0])
        return
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), True, False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(peer(packed)[0], True)
    torch.testing.assert_close(net(x, torch.tensor(lengths)), expected)


def test_forget_gates_begin_open():
    net = LSTM.Config(width=4, depth=2, forget=3.0).build(2)
    for depth in range(2):
        _, _, bias, other = net.layer(depth)
        assert torch.equal((bias + other)[4:8], torch.full((4,), 3.0))
        assert (bias + other)[:4].abs().amax() < 2


@pytest.mark.parametrize("config", CONFIGS, ids=named)
def test_dropout_hides_between_layers_while_training_alone(config):
    net, x = type(config)(width=5, depth=2, dropout=0.5).build(3), torch.randn(2, 4, 3)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


@pytest.mark.parametrize("config", CONFIGS, ids=named)
@pytest.mark.parametrize("length", [None, torch.tensor([2, 7, 4])])
def test_truncation_keeps_values_and_cuts_gradients_between_segments(config, length):
    whole = config.build(3)
    cut = replace(config, truncate=3).build(3)
    cut.load_state_dict(whole.state_dict())
    x = torch.randn(3, 7, 3, requires_grad=True)
    (y, state), (z, other) = whole.scan(x, None, length), cut.scan(x, None, length)
    torch.testing.assert_close(y, z)
    for a, b in zip(state.layers, other.layers, strict=True):
        torch.testing.assert_close(a, b)
    (full,) = torch.autograd.grad(y[1, 5].sum(), x, retain_graph=True)
    (part,) = torch.autograd.grad(z[1, 5].sum(), x)
    torch.testing.assert_close(part[1, 3:], full[1, 3:])
    assert float(full[1, :3].abs().min()) > 0
    assert float(part[1, :3].abs().max()) == 0
    first = whole.start(3, 7)
    first.layers[0][0].requires_grad_()
    z, _ = cut.scan(x, first, length)
    (slope,) = torch.autograd.grad(z[:, 1].sum(), first.layers[0][0])
    assert float(slope.abs().min()) > 0  # what the sequence starts from is still trained
    torch.testing.assert_close(cut.eval()(x, length), y)
