r"""Neural autoregressive density estimator (NADE): hidden units are running sums over the entries

$a_1 = b,\; h_i = s(\rho_i a_i),\; \theta_i = c_i + V_i h_i,\; a_{i+1} = a_i + W_{:,i} x_i$

(Larochelle and Murray 2011; for reals, with mixtures of Gaussians, Uria, Murray and Larochelle
2013). The weights W are tied, so that all D conditionals cost O(DH) per row with H hidden units,
for likelihoods and for sampling. $\rho_i$ is 1 for sigmoids; for rectified units it is learned,
since nothing else would bound a sum over more and more terms.

Autograd would store D H numbers per row. `RunningSum` stores the sums at about $\sqrt D$ positions
and recomputes those between them in the backward pass, which is O(DH) too: with
$S_i = \sum_{j>i} \partial L / \partial a_j$ as its running sum,
$\partial L / \partial W_{:,i} = S_i x_i$.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.autograd.function import once_differentiable

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.autoregressive.masked_mlp import EntryStepper
from ...nn.layers.linear import Linear
from ._base import AutoregressiveModel, UncachedSteps, use_raw_bits
from ._orders import Orders

SMALL_DATA_ROWS = 1000
"""Rows of numbers below which a wide network overfits within an epoch or two."""


class NADE(AutoregressiveModel):
    r"""$p(x \mid g) = \prod_i p(x_i \mid \theta_i)$ with $\theta_i = c_i + V_i\, s(\rho_i (b + U g
    + \sum_{j<i} W_{:,j} x_j))$: Bernoulli, categorical or mixture conditionals, by the
    kind of the entry; bits are read as 0 and 1.

    Several orders share the weights; the model is their uniform mixture, and a training step takes
    one random order.
    """

    class Config(AutoregressiveModel.Config, Orders):
        tag = "model/autoregressive.nade"
        width: Annotated[int, Range(1)] = 500
        """Hidden units."""
        activation: Literal["sigmoid", "relu"] = "sigmoid"
        """Activation of the running sums; relu also learns a scale for each position."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.places(space))
        use_raw_bits(self.features, space)
        self.net = TiedNetwork(
            config, self.places, self.features.owner, self.head.owner, self.conditions.width
        )
        self.init_output_bias()

    @torch.no_grad()
    def init_output_bias(self) -> None:
        self.net.bias.copy_(self.head.initial_params())

    def loss(self, batch: Batch) -> Losses:
        """-sum_i log p(x_i | theta_i) in one random order."""
        self.check_no_missing(batch)
        member = self.random_member()
        params = self.net(self.features(batch), self.context(batch), member)  # (B, P)
        return {"nll": -self.head.log_prob(params, self.flat(batch.x)).sum(1)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x_i ~ p(x_i | theta_i), one entry after the other; each adds its term to the sum."""
        batch = self.unobserved_rows(n, given)
        with torch.inference_mode():
            for rows in self.row_groups(batch, options, generator):
                for place in range(self.space.dims):
                    params = rows.steps.parameters(place)  # theta_i = c_i + V_i h_i
                    rows.steps.feed(place, rows.sample_entry(place, params))  # a_{i+1}
                batch.x[rows.index] = rows.x.T
        return self.to_event(batch.x)

    def outputs(self, batch: Batch, member: int) -> Tensor:
        return self.net(self.features(batch), self.context(batch), member)

    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], EntryStepper]:
        if cached:
            return self.net.stepper(member)
        return functools.partial(UncachedSteps, self, self.net, member)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        # Rectified units learn faster: 115 nats instead of 174 on 28x28 bits after 18 seconds.
        numbers = any(part.kind in ("real", "counts") for part in space.columns or [space])
        if numbers and space.rows < SMALL_DATA_ROWS:
            config, lr = cls.Config(activation="relu", width=100, components=2), 1e-3
        else:
            config, lr = cls.Config(activation="relu"), 2e-3
        return Defaults(config, TrainConfig(lr=lr, batch_size=100, ema_decay=0.99))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(width=16, components=2)


class TiedNetwork(nn.Module):
    """The network of all orders: (B, F) and (B, context) to (B, P).

    places: (K, D); owner: (F,) and target: (P,), the entry of each feature and parameter.
    """

    columns: Tensor  # (K, F): the features by position
    rows: Tensor  # (K, P): the parameters by position

    def __init__(
        self, config: NADE.Config, places: Tensor, owner: Tensor, target: Tensor, context: int
    ) -> None:
        super().__init__()
        width, fan, dims = config.width, len(owner), places.shape[1]
        self.smooth = config.activation == "sigmoid"
        self.first = nn.Parameter(torch.zeros(width))
        self.given = Linear(context, width, bias=False) if context else None
        self.into = nn.Parameter(torch.randn(fan, width) / math.sqrt(fan))
        self.out = nn.Parameter(torch.randn(len(target), width) * 0.1 / math.sqrt(width))
        self.bias = nn.Parameter(torch.zeros(len(target)))
        even = (fan / torch.arange(1, dims)).log() / 2  # sums of equal scale at first
        self.log_rho = None if self.smooth or dims == 1 else nn.Parameter(even)
        features, params = owner.bincount(), target.bincount()  # (D,): numbers per entry
        self.sizes = [
            PlaceSizes(features[entries].tolist(), params[entries].tolist(), self.smooth)
            for entries in places.argsort(1)
        ]
        for name, entries in (("columns", owner), ("rows", target)):
            order = places[:, entries].argsort(dim=1, stable=True)
            self.register_buffer(name, order, persistent=False)

    def forward(self, features: Tensor, context: Tensor, member: int = 0) -> Tensor:
        by_place = features.index_select(1, self.columns[member])
        with torch.autocast(features.device.type, enabled=False):
            params = RunningSum.apply(
                by_place,
                self.start(context),
                *self.read(member),
                self.sizes[member],
                torch.is_grad_enabled(),
            )
        return params.index_select(0, self.rows[member].argsort()).T

    def start(self, context: Tensor) -> Tensor:
        """a_1, halved for tanh, (B, H)."""
        first = self.first.expand(len(context), -1)
        first = first if self.given is None else first + self.given(context)
        return first / 2 if self.smooth else first

    def read(self, member: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        r"""W (F, H), V (P, H), c (P,) ordered by position, and log rho, all rewritten for tanh:

        $c + V \sigma(a) = (c + V 1 / 2) + (V / 2) \tanh(a / 2)$, and a tanh costs half a sigmoid.
        """
        columns, rows = self.columns[member], self.rows[member]
        into = self.into.index_select(0, columns)
        out, bias = self.out.index_select(0, rows), self.bias[rows]
        if self.smooth:
            into, out, bias = into / 2, out / 2, bias + out.sum(1) / 2
        return into, out, bias, self.log_rho

    @torch.no_grad()
    def stepper(self, member: int) -> Callable[[Tensor], EntryStepper]:
        weights = PlaceWeights(self.sizes[member], *self.read(member))
        return lambda context: RunningSumSteps(weights, self.start(context))


@dataclass(frozen=True)
class PlaceSizes:
    """How many features and parameters each position has, and the activation."""

    inputs: list[int]
    outputs: list[int]
    smooth: bool  # tanh, else relu

    @property
    def stride(self) -> int:
        """Distance between the positions whose sums are stored for the backward pass."""
        return math.isqrt(len(self.inputs) - 1) + 1


class PlaceWeights:
    """The weights that a pass reads at each position."""

    def __init__(
        self, sizes: PlaceSizes, into: Tensor, out: Tensor, bias: Tensor, log_rho: Tensor | None
    ) -> None:
        self.smooth = sizes.smooth
        self.into = into.split(sizes.inputs)  # (F_i, H)
        self.out = out.split(sizes.outputs)  # (P_i, H)
        self.bias = bias[:, None].split(sizes.outputs)  # (P_i, 1)
        rest = [1.0] * len(sizes.inputs[1:]) if log_rho is None else log_rho.exp().tolist()
        self.rho = [1.0, *rest]

    def activate(self, z: Tensor, h: Tensor) -> Tensor:
        """s(z), written into h."""
        return torch.tanh(z, out=h) if self.smooth else torch.clamp_min(z, 0, out=h)

    def derivative(self, grad: Tensor, h: Tensor) -> Tensor:
        """dL/dz from dL/dh, in place."""
        if self.smooth:
            return torch.ops.aten.tanh_backward.grad_input(grad, h, grad_input=grad)
        return torch.ops.aten.threshold_backward.grad_input(grad, h, 0, grad_input=grad)


class RunningSumSteps(EntryStepper):
    """The recurrence over n rows; z = rho_i a_i (n, H) at the current position."""

    def __init__(self, weights: PlaceWeights, z: Tensor) -> None:
        self.weights, self.z = weights, z.clone(memory_format=torch.contiguous_format)
        self.h = torch.empty_like(self.z)

    @torch.no_grad()
    def parameters(self, place: int, to: Tensor | None = None) -> Tensor:
        """to: (P_i, n), where the parameters are written if given."""
        w, h = self.weights, self.weights.activate(self.z, self.h)
        return torch.addmm(w.bias[place], w.out[place], h.T, out=to).T

    @torch.no_grad()
    def feed(self, place: int, features: Tensor) -> None:
        w = self.weights
        if place + 1 < len(w.rho):
            here, there = w.rho[place : place + 2]
            self.z.addmm_(features, w.into[place], beta=there / here, alpha=there)

    def take(self, rows: Tensor) -> None:
        self.z = self.z[rows]


class RunningSum(torch.autograd.Function):
    """Features (B, F), a_1 (B, H) and weights to parameters (P, B), all ordered by position."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        start: Tensor,
        into: Tensor,
        out: Tensor,
        bias: Tensor,
        log_rho: Tensor | None,
        sizes: PlaceSizes,
        keep: bool,
    ) -> Tensor:
        steps, stored = RunningSumSteps(PlaceWeights(sizes, into, out, bias, log_rho), start), []
        params = start.new_empty(len(out), len(start))
        every = zip(features.split(sizes.inputs, 1), params.split(sizes.outputs), strict=True)
        for place, (own, to) in enumerate(every):
            if keep and place % sizes.stride == 0:
                stored.append(steps.z.clone())
            steps.parameters(place, to)
            steps.feed(place, own)
        ctx.sizes = sizes
        ctx.save_for_backward(features, into, out, bias, log_rho, *stored)
        return params

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, into, out, bias, log_rho, *stored = ctx.saved_tensors
        weights, stride = PlaceWeights(ctx.sizes, into, out, bias, log_rho), ctx.sizes.stride
        back = BackwardPass(
            ctx.sizes, weights, features, grad.contiguous(), ctx.needs_input_grad[0]
        )
        places = range(len(ctx.sizes.inputs))
        for first in reversed(places[::stride]):
            back.through(places[first : first + stride], stored.pop())
        rho = None if log_rho is None else back.log_rho[1:]
        moved = torch.cat(back.features[::-1], 1) if back.wanted else None
        into, out = torch.cat(back.into[::-1]), torch.cat(back.out[::-1])
        return moved, back.sums, into, out, grad.sum(1), rho, None, None


class BackwardPass:
    """The backward pass from the last position to the first: the gradients found so far, and
    `sums`, S_i = sum_{j>i} dL/da_j."""

    def __init__(
        self,
        sizes: PlaceSizes,
        weights: PlaceWeights,
        features: Tensor,
        grad: Tensor,
        wanted: bool,
    ) -> None:
        """wanted: whether the gradient of the features is needed."""
        self.weights, self.wanted = weights, wanted
        self.given, self.grad = features.split(sizes.inputs, 1), grad.split(sizes.outputs)
        self.features: list[Tensor] = []
        self.into: list[Tensor] = []
        self.out: list[Tensor] = []
        self.log_rho = grad.new_zeros(len(sizes.inputs))
        self.sums = grad.new_zeros(len(features), weights.into[0].shape[1])
        self.grad_z = torch.empty_like(self.sums)
        self.hidden = grad.new_empty(sizes.stride, *self.sums.shape)

    def through(self, places: range, z: Tensor) -> None:
        """Back through consecutive positions; z is the running sum at the first of them."""
        steps, pairs = (
            RunningSumSteps(self.weights, z),
            list(zip(places, self.hidden, strict=False)),
        )
        for place, h in pairs:
            self.weights.activate(steps.z, h)
            steps.feed(place, self.given[place])
        for place, h in reversed(pairs):
            self.step(place, h)

    def step(self, place: int, h: Tensor) -> None:
        w, grad = self.weights, self.grad[place]  # (P_i, B)
        self.into.append(self.given[place].T @ self.sums)
        self.out.append(grad @ h)
        if self.wanted:
            self.features.append(self.sums @ w.into[place].T)
        grad_z = w.derivative(torch.mm(grad.T, w.out[place], out=self.grad_z), h)
        if not w.smooth:
            # z = h wherever dL/dz is not 0.
            self.log_rho[place] = torch.dot(grad_z.view(-1), h.view(-1))
        self.sums.add_(grad_z, alpha=w.rho[place])
