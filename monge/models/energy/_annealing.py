r"""Annealed importance sampling of a normaliser, and its value for the weights of the moment.

A path of distributions $p_k(x) \propto f_{\beta_k}(x)$ leads from a base whose Z is known to the
model. Chains start at exact samples of the base; from one temperature to the next a chain is
weighted by $f_{\beta_k}(x) / f_{\beta_{k-1}}(x)$ and moves by a step that leaves $p_k$ as it is.
The mean weight is an unbiased estimate of $Z / Z_{base}$ for any number of temperatures (Neal
2001), and chains drawn in proportion to their weights follow the model as they become many.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...prob.distributions import log_mean_exp

State = TypeVar("State")
LogZ = tuple[Tensor, Tensor]
"""log Z and its standard error, each ()."""


def anneal(
    state: State,
    step: Callable[[State, float, float], tuple[State, Tensor]],
    temperatures: int,
) -> tuple[State, Tensor]:
    """The states at the end of the path, and their log-weights (N,). `step` leads from one inverse
    temperature to the next and gives the change of the log-weights."""
    ladder, log_weight = torch.linspace(0, 1, temperatures + 1).tolist(), None
    for low, high in itertools.pairwise(ladder):
        state, gain = step(state, low, high)
        log_weight = gain if log_weight is None else log_weight + gain
    assert log_weight is not None, "expected one temperature or more"
    return state, log_weight


def log_mean(log_weight: Tensor) -> LogZ:
    """The logarithm of the mean weight (N,), and its standard error."""
    value, error = log_mean_exp(log_weight[:, None])
    return value[0], error[0]


class NormaliserCache:
    """The last log Z that was estimated: it holds until the weights or the options change."""

    def __init__(self) -> None:
        self.last: tuple[object, LogZ] | None = None

    def find(self, model: nn.Module, options: Hashable, estimate: Callable[[], LogZ]) -> LogZ:
        tensors = [*model.parameters(), *model.buffers()]
        key = (options, *((id(t), t.data_ptr(), t._version) for t in tensors))
        if self.last is None or self.last[0] != key:
            self.last = key, estimate()
        return self.last[1]
