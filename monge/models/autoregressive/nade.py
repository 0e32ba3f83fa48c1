r"""Neural autoregressive density estimator: hidden units are a running sum over the entries

$a_1 = b,\; h_i = s(\rho_i a_i),\; \theta_i = c_i + V_i h_i,\; a_{i+1} = a_i + W_{:,i} x_i$

(Larochelle and Murray 2011; for reals, with mixtures of Gaussians, Uria, Murray and Larochelle
2013). The weights W are tied, so that all D conditionals cost O(DH) a row with H hidden units, in
scoring and in drawing alike. $\rho_i$ is 1 for sigmoids; for rectified units it is learned, since
nothing else would bound a sum of ever more terms.

To differentiate every place at once would hold D H numbers a row. `Recurrence` keeps the sums at
about $\sqrt D$ places and comes back through them, computing what lies between once more, so that
the way back is O(DH) too: with $S_i = \sum_{j>i} \partial L / \partial a_j$ as its running sum,
$\partial L / \partial W_{:,i} = S_i x_i$.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...core.batch import Batch
from ...core.config import Range
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.autoregressive.masked_mlp import Stepping
from ._base import Again, Ordered, unshift_bits
from ._orders import Orders

FEW = 1000
"""Rows of numbers below which a wide network learns them by heart within an epoch or two."""


class NADE(Ordered):
    r"""$p(x \mid g) = \prod_i p(x_i \mid \theta_i)$ with $\theta_i = c_i + V_i\, s(\rho_i (b + U g
    + \sum_{j<i} W_{:,j} x_j))$: Bernoulli, categorical or mixtures, as the entry is; bits are read
    as 0 and 1.

    Several orders share the weights; the law is the mean over them, and a step of training takes
    one, drawn at random.
    """

    class Config(Ordered.Config, Orders):
        tag = "model/autoregressive.nade"
        width: Annotated[int, Range(1)] = 500
        """Hidden units."""
        activation: Literal["sigmoid", "relu"] = "sigmoid"
        """Function of the running sums; relu also learns a factor for the sums of each place."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.places(space))
        unshift_bits(self.features, space)
        self.net = Tied(
            config, self.places, self.features.owner, self.head.owner, self.conditions.width
        )
        self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        self.net.bias.copy_(self.head.start())

    def outputs(self, batch: Batch, member: int) -> Tensor:
        return self.net(self.features(batch), self.context(batch), member)

    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], Stepping]:
        if cached:
            return self.net.stepper(member)
        return functools.partial(Again, self, self.net, member)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        # Rectified units learn faster: 115 nats against 174 on bits of 28x28 after 18 seconds.
        numbers = any(part.kind in ("real", "counts") for part in space.columns or [space])
        if numbers and space.rows < FEW:
            config, rate = cls.Config(activation="relu", width=100, components=2), 1e-3
        else:
            config, rate = cls.Config(activation="relu"), 2e-3
        return Defaults(config, TrainConfig(lr=rate, batch_size=100, ema_decay=0.99))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(width=16, components=2)


class Tied(nn.Module):
    """The network of every order: (B, F) and (B, context) to (B, P).

    places: (K, D); owner: (F,) and target: (P,), the entries of features and parameters.
    """

    columns: Tensor  # (K, F): the features by place
    rows: Tensor  # (K, P): the parameters by place

    def __init__(
        self, config: NADE.Config, places: Tensor, owner: Tensor, target: Tensor, context: int
    ) -> None:
        super().__init__()
        width, fan, dims = config.width, len(owner), places.shape[1]
        self.smooth = config.activation == "sigmoid"
        self.first = nn.Parameter(torch.zeros(width))
        self.given = nn.Linear(context, width, bias=False) if context else None
        self.into = nn.Parameter(torch.randn(fan, width) / math.sqrt(fan))
        self.out = nn.Parameter(torch.randn(len(target), width) * 0.1 / math.sqrt(width))
        self.bias = nn.Parameter(torch.zeros(len(target)))
        even = (fan / torch.arange(1, dims)).log() / 2  # sums of a common size to begin with
        self.log_rho = None if self.smooth or dims == 1 else nn.Parameter(even)
        features, params = owner.bincount(), target.bincount()  # (D,): how many an entry has
        self.walks = [
            Walk(features[entries].tolist(), params[entries].tolist(), self.smooth)
            for entries in places.argsort(1)
        ]
        for name, entries in (("columns", owner), ("rows", target)):
            order = places[:, entries].argsort(dim=1, stable=True)
            self.register_buffer(name, order, persistent=False)

    def forward(self, features: Tensor, context: Tensor, member: int = 0) -> Tensor:
        by_place = features.index_select(1, self.columns[member])
        with torch.autocast(features.device.type, enabled=False):
            params = Recurrence.apply(
                by_place,
                self.start(context),
                *self.read(member),
                self.walks[member],
                torch.is_grad_enabled(),
            )
        return params.index_select(0, self.rows[member].argsort()).T

    def start(self, context: Tensor) -> Tensor:
        """a_1 as it is computed with, (B, H)."""
        first = self.first.expand(len(context), -1)
        first = first if self.given is None else first + self.given(context)
        return first / 2 if self.smooth else first

    def read(self, member: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        r"""W (F, H), V (P, H) and c (P,) by place as they are computed with, and log rho.

        $c + V \sigma(a) = (c + V 1 / 2) + (V / 2) \tanh(a / 2)$, and a tanh costs half a sigmoid.
        """
        columns, rows = self.columns[member], self.rows[member]
        into = self.into.index_select(0, columns)
        out, bias = self.out.index_select(0, rows), self.bias[rows]
        if self.smooth:
            into, out, bias = into / 2, out / 2, bias + out.sum(1) / 2
        return into, out, bias, self.log_rho

    @torch.no_grad()
    def stepper(self, member: int) -> Callable[[Tensor], Stepping]:
        weights = Weights(self.walks[member], *self.read(member))
        return lambda context: Running(weights, self.start(context))


@dataclass(frozen=True)
class Walk:
    """How many features and parameters each place has, and what is made of the sums."""

    inputs: list[int]
    outputs: list[int]
    smooth: bool  # tanh, else relu

    @property
    def stride(self) -> int:
        """From one place that is kept for the way back to the next."""
        return math.isqrt(len(self.inputs) - 1) + 1


class Weights:
    """What a pass reads at each place."""

    def __init__(
        self, walk: Walk, into: Tensor, out: Tensor, bias: Tensor, log_rho: Tensor | None
    ) -> None:
        self.smooth = walk.smooth
        self.into = into.split(walk.inputs)  # (F_i, H)
        self.out = out.split(walk.outputs)  # (P_i, H)
        self.bias = bias[:, None].split(walk.outputs)  # (P_i, 1)
        rest = [1.0] * len(walk.inputs[1:]) if log_rho is None else log_rho.exp().tolist()
        self.rho = [1.0, *rest]

    def squash(self, z: Tensor, h: Tensor) -> Tensor:
        """s(z), put into h."""
        return torch.tanh(z, out=h) if self.smooth else torch.clamp_min(z, 0, out=h)

    def slope(self, grad: Tensor, h: Tensor) -> Tensor:
        """dL/dz from dL/dh, in its place."""
        if self.smooth:
            return torch.ops.aten.tanh_backward.grad_input(grad, h, grad_input=grad)
        return torch.ops.aten.threshold_backward.grad_input(grad, h, 0, grad_input=grad)


class Running(Stepping):
    """The recurrence over n rows; z = rho_i a_i (n, H) at the place it has come to."""

    def __init__(self, weights: Weights, z: Tensor) -> None:
        self.weights, self.z = weights, z.clone(memory_format=torch.contiguous_format)
        self.h = torch.empty_like(self.z)

    @torch.no_grad()
    def parameters(self, place: int, to: Tensor | None = None) -> Tensor:
        """to: (P_i, n), where they may be put."""
        w, h = self.weights, self.weights.squash(self.z, self.h)
        return torch.addmm(w.bias[place], w.out[place], h.T, out=to).T

    @torch.no_grad()
    def feed(self, place: int, features: Tensor) -> None:
        w = self.weights
        if place + 1 < len(w.rho):
            here, there = w.rho[place : place + 2]
            self.z.addmm_(features, w.into[place], beta=there / here, alpha=there)


class Recurrence(torch.autograd.Function):
    """Features (B, F), a_1 (B, H) and weights to parameters (P, B), all by place."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        start: Tensor,
        into: Tensor,
        out: Tensor,
        bias: Tensor,
        log_rho: Tensor | None,
        walk: Walk,
        keep: bool,
    ) -> Tensor:
        steps, kept = Running(Weights(walk, into, out, bias, log_rho), start), []
        params = start.new_empty(len(out), len(start))
        every = zip(features.split(walk.inputs, 1), params.split(walk.outputs), strict=True)
        for place, (own, to) in enumerate(every):
            if keep and place % walk.stride == 0:
                kept.append(steps.z.clone())
            steps.parameters(place, to)
            steps.feed(place, own)
        ctx.walk = walk
        ctx.save_for_backward(features, into, out, bias, log_rho, *kept)
        return params

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, into, out, bias, log_rho, *kept = ctx.saved_tensors
        weights, stride = Weights(ctx.walk, into, out, bias, log_rho), ctx.walk.stride
        back = Return(ctx.walk, weights, features, grad.contiguous(), ctx.needs_input_grad[0])
        places = range(len(ctx.walk.inputs))
        for first in reversed(places[::stride]):
            back.through(places[first : first + stride], kept.pop())
        rho = None if log_rho is None else back.log_rho[1:]
        moved = torch.cat(back.features[::-1], 1) if back.wanted else None
        into, out = torch.cat(back.into[::-1]), torch.cat(back.out[::-1])
        return moved, back.sums, into, out, grad.sum(1), rho, None, None


class Return:
    """The way back, from the last place to the first: gradients as they are found, and `sums`,
    the S that all places behind make of the gradient of a_i."""

    def __init__(
        self, walk: Walk, weights: Weights, features: Tensor, grad: Tensor, wanted: bool
    ) -> None:
        """wanted: whether the gradient of the features is."""
        self.weights, self.wanted = weights, wanted
        self.given, self.grad = features.split(walk.inputs, 1), grad.split(walk.outputs)
        self.features: list[Tensor] = []
        self.into: list[Tensor] = []
        self.out: list[Tensor] = []
        self.log_rho = grad.new_zeros(len(walk.inputs))
        self.sums = grad.new_zeros(len(features), weights.into[0].shape[1])
        self.slope = torch.empty_like(self.sums)
        self.room = grad.new_empty(walk.stride, *self.sums.shape)

    def through(self, places: range, z: Tensor) -> None:
        """Back through a stretch of places at whose first the running sum was z."""
        steps, pairs = Running(self.weights, z), list(zip(places, self.room, strict=False))
        for place, h in pairs:
            self.weights.squash(steps.z, h)
            steps.feed(place, self.given[place])
        for place, h in reversed(pairs):
            self.step(place, h)

    def step(self, place: int, h: Tensor) -> None:
        w, grad = self.weights, self.grad[place]  # (P_i, B)
        self.into.append(self.given[place].T @ self.sums)
        self.out.append(grad @ h)
        if self.wanted:
            self.features.append(self.sums @ w.into[place].T)
        slope = w.slope(torch.mm(grad.T, w.out[place], out=self.slope), h)  # dL/dz
        if not w.smooth:
            # z = h wherever the slope is not 0.
            self.log_rho[place] = torch.dot(slope.view(-1), h.view(-1))
        self.sums.add_(slope, alpha=w.rho[place])
