"""Incremental sampling from a masked network: every hidden unit is computed once.

Sampling needs an entry's parameters before the next entry is known, which naively takes D full
passes. But a unit of degree t depends only on the first t entries: with units sorted by degree,
step t computes the units of degree t, once, from a leading slice of the known ones, and the D
steps together cost about one pass. `SortedNetwork` holds the weights in that order,
`CachedStepper` uses them; `FullPassStepper` is the reference with D full passes. Both have the
same interface, here to sample x:

    steps = network.stepper(member)(context)     # n rows
    for place, entry in enumerate(order):
        x_i = sample(steps.parameters(place))    # (n, outputs of the entry)
        steps.feed(place, features_of(x_i))      # (n, inputs of the entry)
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..layers.activation import activation

if TYPE_CHECKING:
    from .masked_mlp import MaskedLinear, MaskedMLP


MAX_BLOCK_PLACES = 32
"""Most positions of the order that the cached pass prepares at once."""
MIN_PRODUCT_ROWS = 64
"""Rows of a map from which a product is efficient; a block has no more positions than needed."""


class EntryStepper(abc.ABC):
    """A sequential pass of one member over n rows, one position of the order at a time."""

    @abc.abstractmethod
    def parameters(self, place: int) -> Tensor:
        """The outputs of the entry at `place`, (n, P_i), after all before it have been fed."""

    @abc.abstractmethod
    def feed(self, place: int, features: Tensor) -> None:
        """Feed the features (n, F_i) of the entry at `place`."""

    def take(self, rows: Tensor) -> None:
        """Go on with these rows (n,) in place of all, after an entry was fed."""
        raise NotImplementedError(f"{type(self).__name__} cannot exchange rows")


class FullPassStepper(EntryStepper):
    """The reference: a pass of the whole masked network for every entry."""

    def __init__(self, network: MaskedMLP, member: int, context: Tensor) -> None:
        self.network, self.context, self.member = network, context, member
        first, last = network.maps()[0], network.out
        inputs = first.degrees_in[member][network.context :] - 1  # (F,)
        outputs = last.degrees_out[member]  # (P,)
        self.inputs, self.outputs = by_position(inputs.tolist()), by_position(outputs.tolist())
        self.x = context.new_zeros(len(context), len(inputs), dtype=first.weight.dtype)

    def parameters(self, place: int) -> Tensor:
        out = self.network(self.x, self.context, self.member, plain=True)
        return out[:, self.outputs.get(place, [])]

    def feed(self, place: int, features: Tensor) -> None:
        self.x[:, self.inputs.get(place, [])] = features

    def take(self, rows: Tensor) -> None:
        self.x, self.context = self.x[rows], self.context[rows]


def by_position(positions: Sequence[int]) -> dict[int, list[int]]:
    """The features or outputs of each position."""
    found: dict[int, list[int]] = {}
    for index, position in enumerate(positions):
        found.setdefault(position, []).append(index)
    return found


@dataclass(frozen=True)
class PlaceBlock:
    """A few positions of a map: the contribution of the columns known before the block is one
    product (`ahead`); that of the columns of the block itself is a small product per position.
    """

    ahead: Tensor  # (rows, columns known before)
    bias: Tensor  # (rows, 1)
    own: Sequence[Tensor]  # per position, (its rows, columns of the block)
    rows: slice
    columns: slice
    sizes: list[int]  # rows of each position

    def open(self, below: Tensor) -> tuple[Tensor, ...]:
        """The rows of each position from the columns known before the block."""
        known = below[: self.columns.start]
        return torch.addmm(self.bias, self.ahead, known).split(self.sizes)


class SortedLinear:
    """One masked map, with rows and columns sorted by degree.

    Rows of degree t read all columns up to degree t, so no mask is needed. Columns of a block that
    are not yet known are zero, so all its positions can read all of them.
    """

    def __init__(
        self, layer: MaskedLinear, member: int, dims: int, context: int, block: int
    ) -> None:
        columns, into = layer.degrees_in[member].sort(stable=True)
        rows, out = layer.degrees_out[member].sort(stable=True)
        weight = layer.weight.detach()
        bias = torch.zeros_like(weight[:, 0]) if layer.bias is None else layer.bias
        self.bias = bias[out, None]
        self.weight = permute_axis(permute_axis(weight, 0, out), 1, into)
        degrees = torch.arange(dims, device=rows.device)
        known = torch.searchsorted(columns, degrees, right=True)
        self.known = [context, *known.tolist()]  # columns known at each position
        self.ends = [0, *torch.searchsorted(rows, degrees, right=True).tolist()]
        self.blocks = [
            self.block(place, min(place + block, dims)) for place in range(0, dims, block)
        ]

    def block(self, first: int, last: int) -> PlaceBlock:
        """The positions from `first` to before `last`."""
        rows = slice(self.ends[first], self.ends[last])
        columns = slice(self.known[first], self.known[last])
        sizes = [end - start for start, end in itertools.pairwise(self.ends[first : last + 1])]
        own = self.weight[rows, columns].split(sizes)
        return PlaceBlock(
            self.weight[rows, : columns.start], self.bias[rows], own, rows, columns, sizes
        )


def permute_axis(weight: Tensor, axis: int, order: Tensor) -> Tensor:
    """`weight` permuted along an axis; an identity order returns it unchanged."""
    if bool((order.diff() == 1).all()):
        return weight
    return weight.index_select(axis, order)


class SortedNetwork:
    """The maps of a member sorted by degree, ready to step over any rows."""

    def __init__(self, network: MaskedMLP, member: int) -> None:
        dims = int(network.out.degrees_out[member].max()) + 1
        widest = max(layer.out_features for layer in network.maps())
        self.block = min(MAX_BLOCK_PLACES, max(1, MIN_PRODUCT_ROWS * dims // widest))

        def stage(layer: MaskedLinear) -> SortedLinear:
            return SortedLinear(layer, member, dims, network.context, self.block)

        *self.layers, self.out = map(stage, network.maps())
        self.direct = None if network.direct is None else stage(network.direct)
        self.context, self.residual = network.context, network.config.residual
        self.act = activation(network.config.activation, inplace=True).eval().forward


class _BlockLayer(NamedTuple):
    """A hidden layer in a block, with m rows (m, n) per position."""

    sizes: list[int]  # m
    pending: Sequence[Tensor]  # from the units known before the block
    own: Sequence[Tensor]  # weights (m, k) of the units of the block
    brought: Tensor  # these units, (k, n)
    units: Sequence[Tensor]  # where they are stored
    before: Sequence[Tensor]  # what enters a residual layer; () for others


class CachedStepper(EntryStepper):
    """The cached pass. `known[l]` holds the conditions and the units of layer l, each as a row
    over the n rows of the batch, and zeros for those not yet known."""

    layers: list[_BlockLayer]
    pending: Sequence[Tensor]  # outputs of each position of the block, (P_i, n)
    ends: list[tuple[Sequence[Tensor], Tensor]]  # what is added to them, as in a layer

    def __init__(self, maps: SortedNetwork, context: Tensor) -> None:
        self.maps, self.skip, self.act = maps, maps.context, maps.act
        sizes = [stage.weight.shape[1] for stage in (*maps.layers, maps.out)]
        self.known = [maps.out.weight.new_zeros(size, len(context)) for size in sizes]
        for known in self.known:
            known[: self.skip] = context.T[: self.skip]
        starts = [*maps.layers[0].known[1:], sizes[0]]
        self.slots = self.known[0][self.skip :].split(  # the features of each position
            [end - start for start, end in itertools.pairwise(starts)]
        )

    def parameters(self, place: int) -> Tensor:
        number, within = divmod(place, self.maps.block)
        if within == 0:
            self.open(number)
        for layer in self.layers:
            if layer.sizes[within]:
                here, unit = layer.pending[within], layer.units[within]
                unit.copy_(self.act(here.addmm_(layer.own[within], layer.brought)))
                if layer.before:
                    unit.add_(layer.before[within])
        out = self.pending[within]  # (P_i, n)
        for own, brought in self.ends:
            out.addmm_(own[within], brought)
        return out.T

    def open(self, number: int) -> None:
        """Start a block: compute its rows in every layer from the units known so far."""
        maps, pairs = self.maps, itertools.pairwise(self.known)
        self.layers = []
        for depth, (stage, (below, above)) in enumerate(zip(maps.layers, pairs, strict=True)):
            block = stage.blocks[number]
            before = self.units(below, block) if depth and maps.residual else ()
            self.layers.append(
                _BlockLayer(
                    block.sizes,
                    block.open(below),
                    block.own,
                    below[block.columns],
                    self.units(above, block),
                    before,
                )
            )
        block = maps.out.blocks[number]
        self.pending = block.open(self.known[-1])
        self.ends = [(block.own, self.known[-1][block.columns])]
        if maps.direct is not None:
            block = maps.direct.blocks[number]
            for out, more in zip(self.pending, block.open(self.known[0]), strict=True):
                out.add_(more)
            self.ends.append((block.own, self.known[0][block.columns]))

    def units(self, known: Tensor, block: PlaceBlock) -> tuple[Tensor, ...]:
        """The storage of a layer for the units of each position of a block."""
        return known[self.skip :][block.rows].split(block.sizes)

    def feed(self, place: int, features: Tensor) -> None:
        self.slots[place].copy_(features.T)

    def take(self, rows: Tensor) -> None:
        # In place, since a block reads and writes parts of what is known.
        pending = [part for layer in self.layers for part in layer.pending]
        for part in (*self.known, *self.pending, *pending):
            part.copy_(part[:, rows])
