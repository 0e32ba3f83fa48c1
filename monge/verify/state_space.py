r"""Identities of state-space layers: three ways to compute one linear recurrence.

$h_t = \bar A h_{t-1} + \bar B u_t$ solves $h' = A h + B u$ for an input that is constant within
steps, and is a convolution of the input if $\bar A$ is the same at every step. Sequences are long
enough for several chunks and an incomplete one.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import expm
from torch import Tensor

from ..nn.state_space import (
    CHUNK,
    S4D,
    DiagonalStateSpace,
    Mamba,
    S4DBlock,
    StateSpaceNet,
    selective_scan,
)
from ._helpers import gap, most, normal
from .attention import randomised
from .framework import Residual

ROUNDING = 1e-11
ROWS, WIDTH, STATES, HEADS = 2, 6, 8, 2
STEPS = 3 * CHUNK + 5


def built(config: StateSpaceNet.Config) -> StateSpaceNet:
    net = randomised(config.build(WIDTH))
    assert isinstance(net, StateSpaceNet)
    return net


def diagonal() -> DiagonalStateSpace:
    block = built(S4D.Config(width=WIDTH, depth=1, state=STATES)).blocks[0]
    assert isinstance(block, S4DBlock)
    return block.space


def stepped(net: StateSpaceNet, x: Tensor) -> Tensor:
    """Every output (B, T, outputs), one step after the other."""
    state = net.start(len(x), x.shape[1])
    return torch.stack([net.step(state, now) for now in x.unbind(1)], 1)


def complex_a(space: DiagonalStateSpace) -> Tensor:
    """A, (D, M)."""
    return torch.complex(-space.log_rate.exp(), space.turn)


def x126_zero_order_hold_solves_the_equation() -> Residual:
    """A-bar and B-bar are blocks of exp([[A, B], [0, 0]] Delta).

    Examines: nn.state_space.

    Source: Gu et al. 2022, On the Parameterization and Initialization of Diagonal State Space
    Models, sec. 2."""
    space, worst = diagonal(), []
    log_a, b = (torch.complex(*part) for part in space.discretise())  # (D, M)
    for channel, step in enumerate(space.log_step.exp()):
        for mode, a in enumerate(complex_a(space)[channel]):
            rows = [[a.real, -a.imag, 1.0], [a.imag, a.real, 0.0], [0.0, 0.0, 0.0]]
            solved = torch.from_numpy(expm(np.array(rows) * float(step)))  # torch's errs by 1e-10
            kept, held = (torch.complex(*solved[:2, column]) for column in (0, 2))
            at = channel, mode
            worst += [gap(log_a[at].exp(), kept), gap(b[at], held) / float(step)]
    return Residual(most(worst), ROUNDING)


def x126_a_state_space_is_a_convolution() -> Residual:
    """y_t = sum_l K_l u_(t-l) + D u_t, K_l = 2 Re sum_n C_n B-bar_n A-bar_n^l.

    Examines: nn.state_space.

    Source: Gu et al. 2022, On the Parameterization and Initialization of Diagonal State Space
    Models, eq. 2."""
    space, u = diagonal(), normal(ROWS, STEPS, WIDTH)
    a, step = complex_a(space), space.log_step.exp()[:, None]
    weight = 2 * torch.complex(*space.c) * ((a * step).exp() - 1) / a  # (D, M)
    lags = torch.arange(STEPS)
    kernel = (weight[..., None] * (a * step)[..., None].mul(lags).exp()).real.sum(1)  # (D, T)
    due = torch.stack(
        [(kernel[:, : t + 1].flip(1).T * u[:, : t + 1]).sum(1) for t in range(STEPS)], 1
    )
    return Residual(gap(space(u), due + space.skip * u), ROUNDING)


def x126_the_selective_scan_is_its_recurrence() -> Residual:
    """h_t = exp(a_t) h_(t-1) + b_t u_t', y_t = h_t' c_t, in chunks of any size.

    Examines: nn.state_space.

    Source: Gu & Dao 2023, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, eq. 2;
    Dao & Gu 2024, Transformers Are SSMs, sec. 6."""
    u, b, c = normal(ROWS, STEPS, HEADS, 3), normal(ROWS, STEPS, 4), normal(ROWS, STEPS, 4)
    log_decay = -normal(ROWS, STEPS, HEADS).square()
    h, due = torch.zeros(ROWS, HEADS, 4, 3, dtype=torch.float64), []
    for t in range(STEPS):
        new = b[:, t, None, :, None] * u[:, t, :, None]
        h = log_decay[:, t].exp()[..., None, None] * h + new
        due.append((c[:, t, None, :, None] * h).sum(2))
    found = [selective_scan(u, log_decay, b, c, chunk) for chunk in (1, 7, CHUNK, STEPS)]
    return Residual(most([gap(each, torch.stack(due, 1)) for each in found]), ROUNDING)


def x126_steps_equal_the_pass() -> Residual:
    """S4D and Mamba step by step, with a state of constant size, are the pass.

    Examines: nn.state_space.

    Source: Gu & Dao 2023, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, sec.
    3.3."""
    x = normal(ROWS, STEPS, WIDTH)
    configs: list[StateSpaceNet.Config] = [
        S4D.Config(width=WIDTH, depth=2, state=STATES),
        S4D.Config(width=WIDTH, depth=2, state=STATES, spectrum="inv"),
        Mamba.Config(width=WIDTH, depth=2, state=STATES, heads=HEADS),
    ]
    nets = map(built, configs)
    return Residual(most([gap(stepped(net, x), net(x)) for net in nets]), ROUNDING)
