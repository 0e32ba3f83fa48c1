r"""Increasing functions of one number with a few unbounded parameters; zeros give the identity.

A map acts on each entry, x = h(z; parameters), with h' > 0 for all parameters, so each can be used
in couplings and in autoregressive maps:

additive  $x = z + t$ (Dinh, Krueger & Bengio 2015)
affine    $x = t + e^s z$ with s within a bound (Dinh, Sohl-Dickstein & Bengio 2017)
spline    rational quadratic (`spline.py`; Durkan et al. 2019)
"""

from __future__ import annotations

import abc

import torch
from torch import Tensor, nn

from .base import Mapped

MAX_LOG_SCALE = 5.0
"""Bound of |s|, so that no parameters overflow."""


class UnivariateMap(nn.Module, abc.ABC):
    """x = h(z; parameters) with `count` parameters for each number."""

    count: int

    @abc.abstractmethod
    def forward(self, params: Tensor, z: Tensor) -> Mapped:
        """x and log dx/dz (*S,) for parameters (*S, count) and z (*S,)."""

    @abc.abstractmethod
    def inverse(self, params: Tensor, x: Tensor) -> Mapped:
        """z and log dz/dx, each (*S,)."""


class AdditiveMap(UnivariateMap):
    """x = z + t."""

    count = 1

    def forward(self, params: Tensor, z: Tensor) -> Mapped:
        return z + params[..., 0], torch.zeros_like(z)

    def inverse(self, params: Tensor, x: Tensor) -> Mapped:
        return x - params[..., 0], torch.zeros_like(x)


class AffineMap(UnivariateMap):
    """x = t + e^s z with s = w tanh(r / w), parameters t and r."""

    count = 2

    def forward(self, params: Tensor, z: Tensor) -> Mapped:
        shift, log_scale = shift_and_log_scale(params)
        return torch.addcmul(shift, log_scale.exp(), z), log_scale

    def inverse(self, params: Tensor, x: Tensor) -> Mapped:
        shift, raw = unbind_params(params)
        log_slope = bounded_log_scale(raw, -1.0)
        return (x - shift) * log_slope.exp(), log_slope


def shift_and_log_scale(params: Tensor) -> tuple[Tensor, Tensor]:
    """Shift and log-scale of parameters (*S, 2)."""
    shift, raw = unbind_params(params)
    return shift, bounded_log_scale(raw, 1.0)


def unbind_params(params: Tensor) -> tuple[Tensor, ...]:
    """The parameters (*S, count) one by one, (*S,), split along their memory layout, which saves a
    copy when their gradients are joined."""
    if params.stride(-1) > params.stride(1):  # the layout of couplings
        return params.movedim(-1, 1).unbind(1)
    return params.unbind(-1)


def bounded_log_scale(raw: Tensor, sign: float) -> Tensor:
    """w tanh(sign r / w) by the logistic function, which is several times faster, with few
    temporaries, which dominate the cost for a few numbers per row."""
    share = torch.sigmoid_(raw * (sign * 2 / MAX_LOG_SCALE))
    return (share * (2 * MAX_LOG_SCALE)).sub_(MAX_LOG_SCALE)
