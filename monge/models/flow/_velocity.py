r"""The velocity of a continuous flow: a network told the time, around the flow of a Gaussian.

If data were N(0, I), the marginal of $(1 - t) x + t z$ would be $N(0, r^2 I)$ with $r^2 = t^2 +
(1 - t)^2$, moved by the velocity $(r'/r)\, x = (2t - 1) x / r^2$. The network adds what data are
besides, and reads and writes numbers near one at every time:

$v(x, t, c) = \frac1r (n(\psi(u), \phi(t), c) + (2t - 1) u)$ at $u = x / r$,

with $\phi$ and $\psi$ sines and cosines, without which a network learns what is smooth first and
edges late (Tancik et al. 2020).

Its output begins at 0, and so the law begins as N(0, I).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

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


SLOPES: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "silu": silu_derivative,
    "tanh": tanh_derivative,
    "softplus": softplus_derivative,
}
"""Functions with their derivatives, for which the trace of a perceptron is written out."""


class Velocity(nn.Module):
    """v (B, D) at x (B, D) and t (), (B,) or (B, 1), given c (B, C)."""

    middle: Tensor
    tones: Tensor
    phases: Tensor
    pitches: Tensor

    def __init__(
        self, config: MLP.Config | UNet.Config, shape: Sequence[int], context: int, waves: int = 0
    ) -> None:
        super().__init__()
        self.shape, self.waves, dims = tuple(shape), waves, math.prod(shape)
        told = 2 * TIME_OCTAVES + context
        tones = math.pi / 2 * 2.0 ** torch.arange(TIME_OCTAVES).repeat(2)
        phases = math.pi / 2 * torch.arange(2.0).repeat_interleave(TIME_OCTAVES)  # cosines are sines
        self.register_buffer("middle", torch.tensor(0.5), persistent=False)
        self.register_buffer("tones", tones, persistent=False)
        self.register_buffer("phases", phases, persistent=False)
        self.register_buffer("pitches", 2.0 ** torch.arange(waves), persistent=False)
        self.net: MLP | UNet
        if isinstance(config, UNet.Config):
            width = 4 * config.width
            self.told = nn.Sequential(nn.Linear(told, width), nn.SiLU(), nn.Linear(width, width))
            self.net = config.build(self.shape, self.shape[0], width)
        else:
            self.net = MLP(config, (1 + 2 * waves) * dims + told, dims)
            nn.init.zeros_(self.net.out.weight)
            nn.init.zeros_(self.net.out.bias)

    @property
    def written_out(self) -> bool:
        """Whether the trace is known in closed form: a perceptron of known slopes."""
        net = self.net
        return (
            isinstance(net, MLP)
            and net.config.activation in SLOPES
            and not (net.config.dropout and self.training)
        )

    def forward(self, x: Tensor, t: Tensor, context: Tensor | None) -> Tensor:
        net, t = self.net, t if t.ndim == 2 else t.reshape(-1, 1)
        late, inside = self.frame(t)
        u, told = x * inside, self.tell(t, context, len(x))
        if isinstance(net, MLP):
            out = net(torch.cat([self.lift(u), told], 1))
        else:
            out = net(u.reshape(-1, *self.shape), self.told(told)).flatten(1)
        return inside * torch.addcmul(out, late, u, value=2)

    def traced(self, x: Tensor, t: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """v and the trace of dv/dx, (B,)."""
        if not self.written_out:
            return exact_trace(lambda y: self(y, t, context), x)
        net, t = cast(MLP, self.net), t.reshape(-1, 1)
        late, inside = self.frame(t)
        u = x * inside
        entering = torch.cat([self.lift(u), self.tell(t, context, len(x))], 1)
        out, trace = mlp_trace(net, entering, self.lift_slopes(u))
        trace = torch.add(trace, late[:, 0], alpha=2 * x.shape[1])
        return inside * torch.addcmul(out, late, u, value=2), inside[:, 0].square() * trace

    def frame(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """t - 1/2 and 1 / r at t (B, 1) or (1, 1), each of its shape."""
        middle = self.middle
        late = t - middle
        return late, torch.addcmul(middle, late, late, value=2).rsqrt()  # r^2 = 1/2 + 2 late^2

    def lift(self, u: Tensor) -> Tensor:
        """u (B, D) with the sine and cosine of its multiples, (B, F D)."""
        if not self.waves:
            return u
        angles = (self.pitches[:, None] * u[:, None]).flatten(1)  # (B, waves D)
        return torch.cat([u, angles.sin(), angles.cos()], 1)

    def lift_slopes(self, u: Tensor) -> Tensor:
        """The derivative of each of its F features by an entry, (D, B, F)."""
        angles = u.T[..., None] * self.pitches  # (D, B, waves)
        return torch.cat(
            [
                torch.ones_like(u.T[..., None]),
                self.pitches * angles.cos(),
                -self.pitches * angles.sin(),
            ],
            -1,
        )

    def tell(self, t: Tensor, context: Tensor | None, rows: int) -> Tensor:
        """What the network is told besides x, (B, C), at t (B, 1) or (1, 1)."""
        waves = torch.addcmul(self.phases, t, self.tones).sin()  # (B, 2 OCTAVES)
        waves = waves if len(waves) == rows else waves.expand(rows, -1)
        return waves if context is None else torch.cat([waves, context], 1)


def mlp_trace(net: MLP, x: Tensor, lifts: Tensor) -> tuple[Tensor, Tensor]:
    """n(x) and the trace of its derivative by D numbers, (B,), of which the first inputs are F
    features with derivatives (D, B, F): those of all units by each number go along with them."""
    dims, _, count = lifts.shape

    def first(layer: nn.Linear) -> Tensor:  # (D, B, width)
        weight = layer.weight[:, : count * dims].unflatten(1, (count, dims))  # (width, F, D)
        return lifts @ weight.permute(2, 1, 0)

    slope, layers = SLOPES[net.config.activation], cast(list[nn.Linear], list(net.hidden))
    if not layers:
        return net.out(x), first(net.out).diagonal(dim1=0, dim2=2).sum(1)
    a, rise = slope(layers[0](x))
    tangents, x = rise * first(layers[0]), a
    for layer in layers[1:]:
        a, rise = slope(layer(x))
        moved = rise * (tangents @ layer.weight.T)
        joins = net.config.residual and x.shape == a.shape
        tangents, x = (tangents + moved, x + a) if joins else (moved, a)
    return net.out(x), (tangents * net.out.weight[:, None]).sum((0, 2))
