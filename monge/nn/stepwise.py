"""Maps of sequences that can be taken one step at a time, so that drawing costs one pass.

    state = net.start(n, most)            # n sequences of at most `most` steps, nothing seen yet
    for t in range(most):
        y_t = net.step(state, x_t)        # equals net(x)[:, t], and the state now knows x_t

What a step needs of the past is its state: the last hidden vector of a recurrent network, the
queue of a dilated convolution, the keys and values of attention, the sums of linear attention.
"""

from __future__ import annotations

import abc
from typing import Generic, TypeVar

from torch import Tensor, nn


class State(abc.ABC):
    """What n sequences have left behind; `step` changes it in place."""

    @abc.abstractmethod
    def take(self, rows: Tensor) -> None:
        """Go on with the sequences numbered `rows` (m,), in this order, repeats allowed: a beam
        keeps some and copies others."""


S = TypeVar("S", bound=State)


class Stepwise(nn.Module, abc.ABC, Generic[S]):
    """A causal map (B, T, inputs) -> (B, T, outputs): what it puts out at t reads x_0..x_t."""

    inputs: int
    outputs: int

    @abc.abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Every step at once, (B, T, inputs) -> (B, T, outputs)."""

    @abc.abstractmethod
    def start(self, n: int, most: int) -> S:
        """The state of n sequences before their first step; they will have at most `most`."""

    @abc.abstractmethod
    def step(self, state: S, x: Tensor) -> Tensor:
        """The output (n, outputs) at the next step, whose input is x (n, inputs)."""
