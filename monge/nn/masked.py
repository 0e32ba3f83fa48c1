r"""A network whose output for entry d of an event reads only the entries before d in an order.

Every input, hidden unit and output has a degree: an entry's is its place $m^0(d) \in 1..D$ in the
order, a hidden unit's $m^l(k) \in 1..D-1$ is the last place it may see, and a condition's is 0, so
that all may see it. The masks (Germain et al. 2015)

$M^l_{kj} = 1[m^l(k) \ge m^{l-1}(j)]$ between layers,  $1[m^0(d) > m^L(k)]$ before outputs

leave no path from the entries at places d..D to output d. Members (an order and an assignment of
degrees each) share the weights and differ in the masks alone.

Drawing needs an entry's parameters before the next entry is known, which is D full passes. But a
unit of degree t is settled as soon as t entries are: with units sorted by degree, step t computes
the units of degree t, once, from a leading slice of what is known, and the D steps together cost
about one pass. `Sorted` holds the weights in that order, `Steps` walks it, `Passes` is the D full
passes that it must equal. Both are driven alike, here to draw x from a law of its entries:

    steps = network.stepper(member)(context)     # n rows
    for place, entry in enumerate(order):
        x_i = draw(steps.parameters(place))      # (n, outputs of the entry)
        steps.feed(place, features_of(x_i))      # (n, inputs of the entry)
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable
from typing import Annotated, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.config import Config as BaseConfig
from ..core.config import Configured, Range
from ..core.noise import row_uniform
from .activation import Activation, activation

BLOCK = 16
"""Places of the order that the cached pass prepares at once."""
ROOM = 1 << 24
"""Entries of the masks of one layer that are kept; larger ones are made when they are used."""


class MaskedLinear(nn.Linear):
    """y = (W * M) x + b with M = 1[output degree >= input degree], or > where `strict`.

    inputs: (K, in) and outputs: (K, out) are the degrees for each of the K members.
    """

    degrees_in: Tensor
    degrees_out: Tensor
    masks: Tensor | None

    def __init__(self, inputs: Tensor, outputs: Tensor, strict: bool = False,
                 bias: bool = True) -> None:
        super().__init__(inputs.shape[1], outputs.shape[1], bias)
        self.register_buffer("degrees_in", inputs, persistent=False)
        self.register_buffer("degrees_out", outputs - int(strict), persistent=False)
        kept = len(inputs) * self.weight.numel() <= ROOM
        masks = torch.stack([self.mask(k) for k in range(len(inputs))]) if kept else None
        self.register_buffer("masks", masks, persistent=False)

    def mask(self, member: int) -> Tensor:  # (out, in)
        return (self.degrees_out[member][:, None] >= self.degrees_in[member]).to(self.weight.dtype)

    def forward(self, x: Tensor, member: int = 0) -> Tensor:
        mask = self.mask(member) if self.masks is None else self.masks[member]
        return F.linear(x, self.weight * mask, self.bias)


class Masked(Configured, nn.Module):
    """h_l = a((W_l * M_l) [c; h_{l-1}] + b_l) from h_0 = x, and outputs (V * M) [c; h_L] + b.

    inputs: (F,) and outputs: (P,) are the entries that features and parameters belong to; orders:
    (K, D) the place of each entry in each order; context: how many conditions c there are, which
    every layer sees. Members are numbered mask by mask within order by order.
    """

    class Config(BaseConfig):
        width: Annotated[int, Range(1)] = 512
        """Units of a hidden layer."""
        depth: Annotated[int, Range(1)] = 2
        """Hidden layers."""
        activation: Activation = "relu"
        """Function after each hidden layer."""
        residual: bool = True
        """Hidden layers after the first add to what enters them."""
        direct: bool = True
        """Outputs also read the earlier entries directly, through one linear map."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Share of hidden units that training hides at random."""

    def __init__(self, config: Config, inputs: Tensor, outputs: Tensor, orders: Tensor,
                 context: int = 0, masks: int = 1) -> None:
        super().__init__()
        self.config, self.context, self.members = config, context, len(orders) * masks
        places = orders.repeat_interleave(masks, 0) + 1  # (members, D), from 1
        seen = places.new_zeros(self.members, context)
        hidden = spread(config, orders.shape[1], context, masks)  # (depth, masks, width)
        hidden = hidden.repeat(1, len(orders), 1)  # (depth, members, width)
        below = [torch.cat([seen, degrees], 1) for degrees in (places[:, inputs], *hidden)]
        last = places[:, outputs]  # (members, P)
        self.layers = nn.ModuleList(map(MaskedLinear, below, hidden))
        self.out = MaskedLinear(below[-1], last, strict=True)
        self.direct = (MaskedLinear(below[0], last, strict=True, bias=False)
                       if config.direct else None)
        self.act, self.drop = activation(config.activation), nn.Dropout(config.dropout)

    def forward(self, x: Tensor, context: Tensor | None = None, member: int = 0) -> Tensor:
        """(B, F) and (B, context) -> (B, P)."""
        first = h = self.join(context, x)
        for place, layer in enumerate(self.layers):
            new = self.drop(self.act(layer(h, member)))
            plain = new if place == 0 or not self.config.residual else h[:, self.context:] + new
            h = self.join(context, plain)
        out = self.out(h, member)
        return out if self.direct is None else out + self.direct(first, member)

    def join(self, context: Tensor | None, h: Tensor) -> Tensor:
        return torch.cat([context, h], 1) if self.context and context is not None else h

    def maps(self) -> list[MaskedLinear]:
        """The masked maps from inputs to outputs, first to last; `direct` stands beside them."""
        return [*(cast(MaskedLinear, layer) for layer in self.layers), self.out]

    @torch.no_grad()
    def stepper(self, member: int = 0, cached: bool = True) -> Callable[[Tensor], Stepping]:
        """What starts a pass, one entry at a time, over the rows of a context (n, context); the
        cached one sorts the weights as they are now, once for all the passes it starts."""
        if cached:
            return functools.partial(Steps, Sorted(self, member))
        return functools.partial(Passes, self, member)


def spread(config: Masked.Config, dims: int, context: int, masks: int) -> Tensor:
    """Degrees of the hidden units, (depth, masks, width).

    The first assignment is even and ascending, the others are shuffles of it; units that see
    conditions alone (degree 0) exist where there are conditions, or nothing else to see.
    """
    low = 0 if context or dims == 1 else 1
    even = low + torch.arange(config.width) * (dims - low) // config.width
    layers = 1 if config.residual else config.depth  # a sum joins units of equal degree
    shuffle = row_uniform(torch.arange(layers * masks), (config.width,), 1).argsort(1)
    degrees = even[shuffle].reshape(layers, masks, config.width)
    degrees[:, 0] = even
    return degrees.expand(config.depth, masks, config.width)


class Stepping(abc.ABC):
    """A pass of one member over n rows, one place of the order after the other from 0."""

    @abc.abstractmethod
    def parameters(self, place: int) -> Tensor:
        """The outputs of the entry at `place`, (n, P_i), once all before it were fed."""

    @abc.abstractmethod
    def feed(self, place: int, features: Tensor) -> None:
        """The features (n, F_i) of the entry at `place`."""


class Passes(Stepping):
    """The plain way: the whole network again for every entry."""

    def __init__(self, network: Masked, member: int, context: Tensor) -> None:
        self.network, self.context, self.member = network, context, member
        first, last = network.maps()[0], network.out
        self.inputs = first.degrees_in[member][network.context:] - 1  # (F,): place of each feature
        self.outputs = last.degrees_out[member]  # (P,): place of each output
        self.x = context.new_zeros(len(context), len(self.inputs), dtype=first.weight.dtype)

    def parameters(self, place: int) -> Tensor:
        return self.network(self.x, self.context, self.member)[:, self.outputs == place]

    def feed(self, place: int, features: Tensor) -> None:
        self.x[:, self.inputs == place] = features


class Stage:
    """One masked map, its bias a first column, with rows and columns sorted by degree.

    Rows of degree t are `spans[t]` and read the first `known[t]` columns, all of them: no mask is
    left. Places come in blocks: what a block's rows read of columns known before it is one
    product with many rows (`ahead`), and each step adds what the block itself has brought
    (`finish`), so that a step reads little memory.
    """

    def __init__(self, layer: MaskedLinear, member: int, dims: int, context: int) -> None:
        columns, into = layer.degrees_in[member].sort(stable=True)
        rows, out = layer.degrees_out[member].sort(stable=True)
        bias = torch.zeros_like(layer.weight[:, 0]) if layer.bias is None else layer.bias
        weight = arranged(arranged(layer.weight, 0, out), 1, into)
        self.weight = torch.cat([bias[out, None], weight], 1)
        degrees = torch.arange(dims, device=rows.device)
        known = torch.searchsorted(columns, degrees, right=True).tolist()
        self.known = [1 + count for count in known]
        self.before = [1 + context, *self.known]  # columns known when a place is reached
        ends = torch.searchsorted(rows, degrees, right=True).tolist()
        self.spans = list(itertools.pairwise([0, *ends]))

    def ahead(self, place: int, below: Tensor, out: Tensor | None = None) -> Tensor:
        """The block's rows from what is known as its first place is reached, (rows, n)."""
        start, end = self.block(place)
        known = self.before[place]
        return torch.mm(self.weight[start:end, :known], below[:known], out=out)

    def finish(self, place: int, below: Tensor, rows: Tensor) -> None:
        """Add to the rows of one degree what its block has brought so far."""
        (start, end), known = self.spans[place], self.known[place]
        before = self.before[place - place % BLOCK]
        if before < known:
            rows.addmm_(self.weight[start:end, before:known], below[before:known])

    def block(self, place: int) -> tuple[int, int]:
        """The rows of the block that begins at `place`."""
        last = min(place + BLOCK, len(self.spans)) - 1
        return self.spans[place][0], self.spans[last][1]


def arranged(weight: Tensor, axis: int, order: Tensor) -> Tensor:
    """`weight` in an order along an axis; the even assignment is in order and costs nothing."""
    if bool((order.diff() == 1).all()):
        return weight
    return weight.index_select(axis, order)


class Sorted:
    """The maps of a member sorted by degree, ready to step over any rows."""

    def __init__(self, network: Masked, member: int) -> None:
        dims = int(network.out.degrees_out[member].max()) + 1
        stages = (Stage(layer, member, dims, network.context) for layer in network.maps())
        *self.layers, self.out = stages
        self.direct = (None if network.direct is None
                       else Stage(network.direct, member, dims, network.context))
        self.context, self.residual = network.context, network.config.residual
        self.act = activation(network.config.activation, inplace=True)


class Steps(Stepping):
    """The cached pass. `known[l]` holds a row of ones, the conditions and the units of layer l,
    each a row over the n rows of the batch, so that a step reads one contiguous slice."""

    def __init__(self, maps: Sorted, context: Tensor) -> None:
        self.maps, self.skip = maps, 1 + maps.context
        sizes = [stage.weight.shape[1] for stage in (*maps.layers, maps.out)]
        self.known = [maps.out.weight.new_empty(size, len(context)) for size in sizes]
        self.pending = self.known[0]  # outputs of the block, (rows, n)
        for known in self.known:
            known[0] = 1.0
            known[1:self.skip] = context.T[:maps.context]

    @torch.no_grad()
    def parameters(self, place: int) -> Tensor:
        if place % BLOCK == 0:
            self.open(place)
        maps, below = self.maps, self.known[0]
        for depth, (stage, above) in enumerate(zip(maps.layers, self.known[1:], strict=True)):
            start, end = stage.spans[place]
            if start < end:
                here = above[self.skip + start:self.skip + end]
                stage.finish(place, below, here)
                here.copy_(maps.act(here))
                if depth and maps.residual:
                    here += below[self.skip + start:self.skip + end]
            below = above
        first, (start, end) = maps.out.spans[place - place % BLOCK][0], maps.out.spans[place]
        out = self.pending[start - first:end - first]  # (P_i, n)
        maps.out.finish(place, below, out)
        if maps.direct is not None:
            maps.direct.finish(place, self.known[0], out)
        return out.T

    def open(self, place: int) -> None:
        """Begin a block: its rows in every layer, from what is known so far."""
        maps = self.maps
        for stage, (below, above) in zip(maps.layers, itertools.pairwise(self.known), strict=True):
            start, end = stage.block(place)
            stage.ahead(place, below, above[self.skip + start:self.skip + end])
        self.pending = maps.out.ahead(place, self.known[-1])
        if maps.direct is not None:
            self.pending += maps.direct.ahead(place, self.known[0])

    @torch.no_grad()
    def feed(self, place: int, features: Tensor) -> None:
        start = self.maps.layers[0].known[place]  # the columns of this entry follow those known
        self.known[0][start:start + features.shape[1]] = features.T
