"""Cutting a state stops gradients and changes no value."""

from dataclasses import dataclass

import torch
from torch import Tensor

from monge.nn.stepwise import State


@dataclass
class Inner(State):
    h: Tensor

    def reorder(self, rows: Tensor) -> None:
        self.h = self.h[rows]


@dataclass
class Outer(State):
    inner: Inner
    queue: list[Tensor]
    pair: tuple[Tensor, Tensor]
    compute: int = 3

    def reorder(self, rows: Tensor) -> None:
        self.inner.reorder(rows)


def test_every_tensor_inside_is_cut():
    leaf = torch.ones(2, requires_grad=True)
    inner = Inner(2 * leaf)
    state = Outer(inner, [3 * leaf], (4 * leaf, leaf))
    state.detach()
    assert state.inner is inner
    assert state.compute == 3
    held = [state.inner.h, *state.queue, *state.pair]
    assert not any(value.requires_grad for value in held)
    assert [value.tolist() for value in held] == [[2, 2], [3, 3], [4, 4], [1, 1]]


def test_truncated_back_propagation_is_the_gradient_of_the_last_window():
    """h_t = w h_{t-1} + x_t: with the state cut after two of four steps, dh_4/dw forgets h_2."""
    w = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    x = torch.arange(1.0, 5, dtype=torch.float64)
    state = Inner(torch.zeros((), dtype=torch.float64))
    for t in range(4):
        if t == 2:
            state.detach()
        state.h = w * state.h + x[t]
    (slope,) = torch.autograd.grad(state.h, w)
    before = 0.5 * x[0] + x[1]
    torch.testing.assert_close(slope, 0.5 * before + (0.5 * before + x[2]))
