r"""Identities of recurrent networks: forms that are the same, one that is not, and gradients.

$\partial h_T / \partial h_0 = \prod_t \mathrm{diag}(\phi'_t) U$ vanishes or explodes with the norm
of U; the cell of an LSTM carries $\prod_t f_t$ instead, which its gates can set to 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..nn.recurrent import GRU, LSTM, RNN, Recurrent
from .attention import shaken
from .gaps import gap, most, normal
from .identity import Residual

ROUNDING = 1e-13
INPUTS, WIDTH, STEPS = 3, 5, 6


def built(config: Recurrent.Config) -> Recurrent:
    net = shaken(config.build(INPUTS))
    assert isinstance(net, Recurrent)
    return net


def split_lstm(net: Recurrent, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step, each gate with matrices of its own for x and for h."""
    w, u, b, other = (part.chunk(4) for part in net.layer(0))
    i, f, new, o = (x @ w[k].T + b[k] + h @ u[k].T + other[k] for k in range(4))
    c = f.sigmoid() * c + i.sigmoid() * new.tanh()
    return o.sigmoid() * c.tanh(), c


def joined_lstm(net: Recurrent, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step, all gates from one matrix of [h, x]."""
    w, u, b, other = net.layer(0)
    i, f, new, o = (torch.cat([h, x], 1) @ torch.cat([u, w], 1).T + b + other).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * new.tanh()
    return o.sigmoid() * c.tanh(), c


def x39_forms_of_the_lstm_agree() -> Residual:
    """Split gates, one matrix of [h, x], cell and sequence give the same LSTM.

    Source: Hochreiter & Schmidhuber 1997, Long Short-Term Memory; Gers, Schmidhuber & Cummins
    2000, Learning to Forget."""
    net, x = built(LSTM.Config(width=WIDTH)), normal(2, STEPS, INPUTS)
    whole, state, worst = net(x), net.start(2, STEPS), 0.0
    h = c = one = two = torch.zeros(2, WIDTH, dtype=torch.float64)
    for t in range(STEPS):
        h, c = split_lstm(net, x[:, t], h, c)
        one, two = joined_lstm(net, x[:, t], one, two)
        step = net.step(state, x[:, t])
        worst = most(worst, gap(h, whole[:, t]), gap(one, whole[:, t]), gap(step, whole[:, t]))
    return Residual(worst, ROUNDING)


def x39_reset_after_is_torchs_gru() -> Residual:
    """A GRU whose reset gate acts after the product is torch.nn.GRU.

    Source: Paszke et al. 2019, PyTorch (documentation of torch.nn.GRU)."""
    net, x = built(GRU.Config(width=WIDTH)), normal(2, STEPS, INPUTS)
    peer = torch.nn.GRU(INPUTS, WIDTH, batch_first=True).double()
    peer.load_state_dict(net.core.state_dict())
    state = net.start(2, STEPS)
    steps = torch.stack([net.step(state, x[:, t]) for t in range(STEPS)], 1)
    return Residual(most(gap(net(x), peer(x)[0]), gap(steps, peer(x)[0])), ROUNDING)


def x39_reset_before_is_another_function() -> Residual:
    """With the same weights, a GRU whose reset gate acts before it differs.

    Source: Cho et al. 2014, Learning Phrase Representations Using RNN Encoder-Decoder; Paszke et
    al. 2019, PyTorch (documentation of torch.nn.GRU)."""
    net, x = built(GRU.Config(width=WIDTH, reset="before")), normal(2, STEPS, INPUTS)
    return Residual(1e-2 / gap(net(x), net.core(x)[0]), 1.0)


@torch.enable_grad()
def x40_gradients_of_an_rnn_are_products() -> Residual:
    """d h_T / d h_0 = prod_t diag(phi'_t) U, of norm at most |U|^T.

    Source: Pascanu, Mikolov & Bengio 2013, On the Difficulty of Training Recurrent Neural
    Networks, sec. 2."""
    net, x = built(RNN.Config(width=WIDTH)), normal(STEPS, INPUTS)
    u = net.layer(0)[1].detach()

    def last(h: Tensor) -> Tensor:
        return scanned(net, x, h)[-1]

    h = 0.5 * normal(WIDTH)
    slopes = torch.autograd.functional.jacobian(last, h)
    product = torch.eye(WIDTH, dtype=torch.float64)
    for now in scanned(net, x, h):
        product = (1 - now.detach().square())[:, None] * u @ product
    bound = torch.linalg.matrix_norm(u, 2) ** STEPS
    excess = float((torch.linalg.matrix_norm(slopes, 2) / bound - 1).clamp(min=0))
    size = float(product.abs().amax())
    return Residual(most(gap(slopes, product) / size, excess), 1e-10)


def scanned(net: Recurrent, x: Tensor, h: Tensor) -> Tensor:
    """Every hidden vector (T, width) from the first one, (width,)."""
    state = net.start(1, len(x))
    state.layers[0] = (h[None], *state.layers[0][1:])
    return torch.cat([net.step(state, now[None]) for now in x])


@torch.enable_grad()
def x40_the_cell_carries_the_product_of_forget_gates() -> Residual:
    """With gates independent of h, d c_T / d c_0 = prod_t f_t.

    Source: Gers, Schmidhuber & Cummins 2000, Learning to Forget."""
    net, x = built(LSTM.Config(width=WIDTH)), normal(STEPS, INPUTS)
    w, u, b, other = net.layer(0)
    u.data.zero_()
    own = slice(WIDTH, 2 * WIDTH)
    forget = (x @ w[own].T + b[own] + other[own]).sigmoid()  # (T, width)

    def last(c: Tensor) -> Tensor:
        state = net.start(1, STEPS)
        state.layers[0] = (state.layers[0][0], c[None])
        for now in x:
            net.step(state, now[None])
        return state.layers[0][1][0]

    slopes = torch.autograd.functional.jacobian(last, normal(WIDTH))
    product = torch.diag(forget.prod(0)).detach()
    return Residual(gap(slopes, product) / float(product.amax()), 1e-10)
