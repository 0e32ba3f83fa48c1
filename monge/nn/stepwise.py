"""Causal networks that can be evaluated step by step, so that sampling costs one pass.

    state = net.start(n, max_steps)       # n sequences of at most `max_steps` steps, none seen
    for t in range(max_steps):
        y_t = net.step(state, x_t)        # equals net(x)[:, t]; the state now includes x_t

The state holds what a step needs of the past: the last hidden vector of a recurrent network, the
queue of a dilated convolution, the keys and values of attention, the sums of linear attention.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from .layers.linear import Linear


class State(abc.ABC):
    """The cached past of n sequences; `step` changes it in place."""

    @abc.abstractmethod
    def reorder(self, rows: Tensor) -> None:
        """Continue with the sequences numbered `rows` (m,), in this order, repeats allowed: a beam
        keeps some and copies others."""

    def detach(self) -> None:
        """Detach the state. Truncated back-propagation through time (Williams & Peng 1990)
        calls this between windows of a sequence: values continue, gradients stop."""
        for name, value in vars(self).items():
            setattr(self, name, detach_value(value))


def detach_value(value: Any) -> Any:
    """`value` with every tensor in it detached, in place for containers."""
    if isinstance(value, State):
        value.detach()
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return type(value)(detach_value(each) for each in value)
    return value


S = TypeVar("S", bound=State)


class Stepwise(nn.Module, abc.ABC, Generic[S]):
    """A causal map (B, T, inputs) -> (B, T, outputs): the output at t depends on x_0..x_t."""

    inputs: int
    outputs: int

    @abc.abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Every step at once, (B, T, inputs) -> (B, T, outputs)."""

    @abc.abstractmethod
    def start(self, n: int, max_steps: int) -> S:
        """The state of n sequences before their first step; they will have at most `max_steps`."""

    @abc.abstractmethod
    def step(self, state: S, x: Tensor) -> Tensor:
        """The output (n, outputs) at the next step, whose input is x (n, inputs)."""


class ConditionedStepwise(Stepwise[S]):
    """A causal map with a context: (B, S, context) with S = 1 for a constant context, or S = T for
    one per step. None if `context` is 0."""

    context: int

    @abc.abstractmethod
    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Every step at once, (B, T, inputs) -> (B, T, outputs)."""

    @abc.abstractmethod
    def start(self, n: int, max_steps: int, context: Tensor | None = None) -> S:
        """The state before the first step; the context of every step is known from the start."""


class WindowedStepwise(ConditionedStepwise[S]):
    """A causal map whose output depends on at most the last `reach` inputs. The inputs before the
    first step are `before`, repeated, so a window of a sequence needs no special case."""

    reach: int
    before: Tensor  # (inputs,)

    @abc.abstractmethod
    def window(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The last T outputs (B, T, outputs) of inputs x (B, reach - 1 + T, inputs)."""


@dataclass
class ContextAddedState(State):
    """The state of a network, and the term that its context adds to its inputs."""

    inner: State
    context: Tensor | None  # (n, S, inputs)
    place: int = 0

    def reorder(self, rows: Tensor) -> None:
        self.inner.reorder(rows)
        self.context = None if self.context is None else self.context[rows]


class ContextAdded(ConditionedStepwise[ContextAddedState]):
    """Any causal map, with a linear map of the context added to its input."""

    def __init__(self, net: Stepwise[Any], context: int) -> None:
        super().__init__()
        self.net, self.context = net, context
        self.inputs, self.outputs = net.inputs, net.outputs
        self.lift = Linear(context, net.inputs, bias=False) if context else None

    def project_context(self, context: Tensor | None) -> Tensor | None:
        return None if self.lift is None or context is None else self.lift(context)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        added = self.project_context(context)
        return self.net(x if added is None else x + added)

    def start(self, n: int, max_steps: int, context: Tensor | None = None) -> ContextAddedState:
        return ContextAddedState(self.net.start(n, max_steps), self.project_context(context))

    def step(self, state: ContextAddedState, x: Tensor) -> Tensor:
        if state.context is not None:
            x = x + state.context[:, state.place if state.context.shape[1] > 1 else 0]
        state.place += 1
        return self.net.step(state.inner, x)
