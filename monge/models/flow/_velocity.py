r"""The velocity of a continuous flow: a network told the time, around the flow of a Gaussian.

If data were N(0, I), the marginal of $(1 - t) x + t z$ would be $N(0, r^2 I)$ with $r^2 = t^2 +
(1 - t)^2$, moved by the velocity $(r'/r)\, x = (2t - 1) x / r^2$. The network adds what data are
besides, and reads and writes numbers near one at every time:

$v(x, t, c) = \frac{2t - 1}{r^2} x + \frac1r\, n(\psi(x / r), \phi(t), c)$,

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
from ...solve.trace import exact_trace

OCTAVES = 4
"""Fourier features of time: sine and cosine of pi/2, pi, 2 pi, 4 pi times t."""


def silu(z: Tensor) -> tuple[Tensor, Tensor]:
    s = z.sigmoid()
    a = z * s
    return a, torch.addcmul(s, a, 1 - s)


def tanh(z: Tensor) -> tuple[Tensor, Tensor]:
    a = z.tanh()
    return a, 1 - a.square()


def softplus(z: Tensor) -> tuple[Tensor, Tensor]:
    return nn.functional.softplus(z), z.sigmoid()


SLOPES: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "silu": silu, "tanh": tanh, "softplus": softplus}
"""Functions with their derivatives, for which the trace of a perceptron is written out."""


class Velocity(nn.Module):
    """v (B, D) at x (B, D) and t () or (B,), given c (B, C)."""

    tones: Tensor
    phases: Tensor
    pitches: Tensor

    def __init__(self, config: MLP.Config | UNet.Config, shape: Sequence[int], context: int,
                 waves: int = 0) -> None:
        super().__init__()
        self.shape, dims = tuple(shape), math.prod(shape)
        told = 2 * OCTAVES + context
        tones = math.pi / 2 * 2.0 ** torch.arange(OCTAVES).repeat(2)
        phases = math.pi / 2 * torch.arange(2.0).repeat_interleave(OCTAVES)  # cosines are sines
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
        return (isinstance(net, MLP) and net.config.activation in SLOPES
                and not (net.config.dropout and self.training))

    def forward(self, x: Tensor, t: Tensor, context: Tensor) -> Tensor:
        skip, inside = frame(t)
        told = self.tell(t, context)
        if isinstance(self.net, MLP):
            out = self.net(torch.cat([self.lift(x * inside), told], 1))
        else:
            out = self.net((x * inside).reshape(-1, *self.shape), self.told(told)).flatten(1)
        return torch.addcmul(skip * x, inside, out)

    def traced(self, x: Tensor, t: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """v and the trace of dv/dx, (B,)."""
        if not self.written_out:
            return exact_trace(lambda y: self(y, t, context), x)
        skip, inside = frame(t)
        u, net = x * inside, cast(MLP, self.net)
        entering = torch.cat([self.lift(u), self.tell(t, context)], 1)
        out, trace = perceptron_trace(net, entering, self.lift_slopes(u))
        total = torch.addcmul(x.shape[1] * skip[:, 0], inside[:, 0].square(), trace)
        return torch.addcmul(skip * x, inside, out), total

    def lift(self, u: Tensor) -> Tensor:
        """u (B, D) with the sine and cosine of its multiples, (B, F D)."""
        if not len(self.pitches):
            return u
        angles = (self.pitches[:, None] * u[:, None]).flatten(1)  # (B, waves D)
        return torch.cat([u, angles.sin(), angles.cos()], 1)

    def lift_slopes(self, u: Tensor) -> Tensor:
        """The derivative of each of its F features by an entry, (D, B, F)."""
        angles = u.T[..., None] * self.pitches  # (D, B, waves)
        return torch.cat([torch.ones_like(u.T[..., None]),
                          self.pitches * angles.cos(), -self.pitches * angles.sin()], -1)

    def tell(self, t: Tensor, context: Tensor) -> Tensor:
        """What the network is told besides x, (B, C)."""
        angles = torch.addcmul(self.phases, t.reshape(-1, 1), self.tones)
        waves = angles.sin().expand(len(context), -1)  # (B, 2 OCTAVES)
        return torch.cat([waves, context], 1) if context.shape[1] else waves


def frame(t: Tensor) -> tuple[Tensor, Tensor]:
    """(2t - 1) / r^2 and 1 / r, each (B, 1) or (1, 1)."""
    t = t.reshape(-1, 1)
    twice = 2 * t - 1
    square = (1 + twice.square()) / 2  # t^2 + (1 - t)^2
    return twice / square, square.rsqrt()


def perceptron_trace(net: MLP, x: Tensor, lifts: Tensor) -> tuple[Tensor, Tensor]:
    """n(x) and the trace of its derivative by D numbers, (B,), of which the first inputs are F
    features with derivatives (D, B, F): those of all units by each number go along with them."""
    dims, _, count = lifts.shape

    def first(layer: nn.Linear) -> Tensor:  # (D, B, width)
        weight = layer.weight[:, :count * dims].unflatten(1, (count, dims))  # (width, F, D)
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
