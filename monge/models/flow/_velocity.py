r"""The velocity network of a continuous flow, around the flow of a Gaussian, with its trace.

If data were N(0, I), the marginal of $(1 - t) x + t z$ would be $N(0, r^2 I)$ with $r^2 = t^2 +
(1 - t)^2$, moved by the velocity $(r'/r)\, x = (2t - 1) x / r^2$. The network adds the difference,
with inputs and outputs of order one at every time:

$v(x, t, c) = \frac1r (n(\psi(u), \phi(t), c) + (2t - 1) u)$ at $u = x / r$,

with Fourier features $\phi$ and $\psi$, without which a network learns sharp edges late (Tancik et
al. 2020). Its output is 0 at initialisation, and so the flow starts as N(0, I).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ...nn.layers.linear import Linear
from ...nn.mlp import MLP
from ...nn.unet import UNet
from ...solve.jacobian_trace import exact_trace

TIME_OCTAVES = 4
"""Fourier features of time: sine and cosine of pi/2, pi, 2 pi, 4 pi times t."""


def silu_derivative(z: Tensor) -> tuple[Tensor, Tensor]:
    s = z.sigmoid()
    a = z * s
    return a, torch.addcmul(s, a, 1 - s)


def tanh_derivative(z: Tensor) -> tuple[Tensor, Tensor]:
    a = z.tanh()
    return a, 1 - a.square()


def softplus_derivative(z: Tensor) -> tuple[Tensor, Tensor]:
    return nn.functional.softplus(z), z.sigmoid()


ACTIVATION_DERIVATIVES: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "silu": silu_derivative,
    "tanh": tanh_derivative,
    "softplus": softplus_derivative,
}
"""Activations with their derivatives, for which the trace of an MLP is computed analytically."""


class Velocity(nn.Module):
    """v (B, D) at x (B, D) and t (), (B,) or (B, 1), given c (B, C)."""

    middle: Tensor
    frequencies: Tensor
    phases: Tensor
    entry_frequencies: Tensor

    def __init__(
        self, config: MLP.Config | UNet.Config, shape: Sequence[int], context: int, waves: int = 0
    ) -> None:
        super().__init__()
        self.shape, self.waves, dims = tuple(shape), waves, math.prod(shape)
        features = 2 * TIME_OCTAVES + context
        frequencies = math.pi / 2 * 2.0 ** torch.arange(TIME_OCTAVES).repeat(2)
        phases = (
            math.pi / 2 * torch.arange(2.0).repeat_interleave(TIME_OCTAVES)
        )  # cosines are sines
        self.register_buffer("middle", torch.tensor(0.5), persistent=False)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("phases", phases, persistent=False)
        self.register_buffer("entry_frequencies", 2.0 ** torch.arange(waves), persistent=False)
        self.net: MLP | UNet
        if isinstance(config, UNet.Config):
            width = 4 * config.width
            self.embed_condition = nn.Sequential(
                Linear(features, width), nn.SiLU(), Linear(width, width)
            )
            self.net = config.build(self.shape, self.shape[0], width)
        else:
            self.net = MLP(config, (1 + 2 * waves) * dims + features, dims)
            nn.init.zeros_(self.net.out.weight)
            nn.init.zeros_(self.net.out.bias)

    @property
    def has_analytic_trace(self) -> bool:
        """Whether the trace is analytic: an MLP whose activation has a known derivative."""
        net = self.net
        return (
            isinstance(net, MLP)
            and net.config.activation in ACTIVATION_DERIVATIVES
            and not ((net.config.dropout or net.config.noise) and self.training)
        )

    def forward(self, x: Tensor, t: Tensor, context: Tensor | None) -> Tensor:
        net, t = self.net, t if t.ndim == 2 else t.reshape(-1, 1)
        late, inside = self.frame(t)
        u, features = x * inside, self.time_features(t, context, len(x))
        if isinstance(net, MLP):
            out = net(torch.cat([self.fourier_features(u), features], 1))
        else:
            out = net(u.reshape(-1, *self.shape), self.embed_condition(features)).flatten(1)
        return inside * torch.addcmul(out, late, u, value=2)

    def traced(self, x: Tensor, t: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """v and the trace of dv/dx, (B,)."""
        if not self.has_analytic_trace:
            return exact_trace(lambda y: self(y, t, context), x)
        net, t = cast(MLP, self.net), t.reshape(-1, 1)
        late, inside = self.frame(t)
        u = x * inside
        entering = torch.cat([self.fourier_features(u), self.time_features(t, context, len(x))], 1)
        out, trace = mlp_trace(net, entering, self.feature_derivatives(u))
        trace = torch.add(trace, late[:, 0], alpha=2 * x.shape[1])
        return inside * torch.addcmul(out, late, u, value=2), inside[:, 0].square() * trace

    def frame(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """t - 1/2 and 1 / r at t (B, 1) or (1, 1), each of its shape."""
        middle = self.middle
        late = t - middle
        return late, torch.addcmul(middle, late, late, value=2).rsqrt()  # r^2 = 1/2 + 2 late^2

    def fourier_features(self, u: Tensor) -> Tensor:
        """u (B, D) with the sine and cosine of its multiples, (B, F D)."""
        if not self.waves:
            return u
        angles = (self.entry_frequencies[:, None] * u[:, None]).flatten(1)  # (B, waves D)
        return torch.cat([u, angles.sin(), angles.cos()], 1)

    def feature_derivatives(self, u: Tensor) -> Tensor:
        """The derivative of each of its F features by an entry, (D, B, F)."""
        angles = u.T[..., None] * self.entry_frequencies  # (D, B, waves)
        return torch.cat(
            [
                torch.ones_like(u.T[..., None]),
                self.entry_frequencies * angles.cos(),
                -self.entry_frequencies * angles.sin(),
            ],
            -1,
        )

    def time_features(self, t: Tensor, context: Tensor | None, rows: int) -> Tensor:
        """Features of the time beside the conditions, (B, C), at t (B, 1) or (1, 1)."""
        waves = torch.addcmul(self.phases, t, self.frequencies).sin()  # (B, 2 OCTAVES)
        waves = waves if len(waves) == rows else waves.expand(rows, -1)
        return waves if context is None else torch.cat([waves, context], 1)


def mlp_trace(net: MLP, x: Tensor, lifts: Tensor) -> tuple[Tensor, Tensor]:
    """n(x) and the trace of its derivative by D numbers, (B,), where the first inputs are F
    features with derivatives (D, B, F); derivatives of all units are propagated forward."""
    dims, _, count = lifts.shape

    def first(layer: nn.Linear) -> Tensor:  # (D, B, width)
        weight = layer.weight[:, : count * dims].unflatten(1, (count, dims))  # (width, F, D)
        return lifts @ weight.permute(2, 1, 0)

    activation, layers = (
        ACTIVATION_DERIVATIVES[net.config.activation],
        cast(list[nn.Linear], list(net.hidden)),
    )
    if not layers:
        return net.out(x), first(net.out).diagonal(dim1=0, dim2=2).sum(1)
    a, rise = activation(layers[0](x))
    tangents, x = rise * first(layers[0]), a
    for layer in layers[1:]:
        a, rise = activation(layer(x))
        moved = rise * (tangents @ layer.weight.T)
        joins = net.config.residual and x.shape == a.shape
        tangents, x = (tangents + moved, x + a) if joins else (moved, a)
    return net.out(x), (tangents * net.out.weight[:, None]).sum((0, 2))
