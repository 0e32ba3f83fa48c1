r"""Networks that read any subset S of the entries of an event and output parameters for all of
them.

Input is $[f(x) \odot m;\ m;\ c]$: features with those of hidden entries at 0, m_i = 1 if entry i
is in S, so that a hidden entry is not mistaken for a 0, and the conditions c.

Sampling in an order reveals one more entry at every step. Each unit above the first layer depends
on the new mask, so nothing above can be cached; but the first layer is a sum over the entries of
S,

$a(S) = b + U c + \sum_{i \in S} (W_i f_i + v_i)$,

to which a step adds one term, and only the rows of one entry are needed of the last layer. With H
units per layer and D entries, a step costs H^2 per further layer instead of H^2 + 3DH.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.config import MAX_LAYERS, Configured, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import is_exporting
from ..layers.activation import Activation, activation
from ..layers.init import Init, initialise
from ..layers.linear import Linear
from ..mlp import MLP
from .masked_mlp import EntryStepper

MAX_BATCH_ELEMENTS = 1 << 22
"""Numbers of a hidden layer that are computed at once if no gradient is needed."""


@dataclass(frozen=True)
class ObservedRows:
    """The observed part of n rows."""

    features: Tensor  # (n, F), those of hidden entries at 0
    seen: Tensor  # (n, D), true where an entry is known
    context: Tensor  # (n, C), the conditions

    def __getitem__(self, rows: Tensor) -> ObservedRows:
        return ObservedRows(self.features[rows], self.seen[rows], self.context[rows])


@dataclass(frozen=True)
class RevealOrder:
    """The order in which entries are revealed, and the rows in which each is new."""

    entries: Sequence[int]  # the entry at each position
    news: Tensor  # (n, D)


class SubsetNet(Configured, nn.Module, abc.ABC):
    """A map from the observed entries of a row to the parameters of all entries.

    shape is the event's; inputs (F,) and outputs (P,) are the entries that features and parameters
    belong to, ascending; context is the number of conditions.
    """

    class Config(BaseConfig):
        """Network over observed subsets."""

        tag = "any_order/"

    def __init__(self, inputs: Tensor, outputs: Tensor) -> None:
        super().__init__()
        self.inputs, self.outputs = entry_slices(inputs), entry_slices(outputs)

    @abc.abstractmethod
    def forward(self, known: ObservedRows) -> Tensor:
        """(n, P)."""

    @abc.abstractmethod
    def init_output_bias(self, start: Tensor) -> None:
        """Set the output bias to `start` (P,)."""

    @property
    @abc.abstractmethod
    def work(self) -> int:
        """Approximate number of products for the parameters of one entry of a row."""

    def stepper(self, known: ObservedRows, walk: RevealOrder, cached: bool = True) -> EntryStepper:
        """A sequential pass over partly observed rows, one entry at a time."""
        return FullPassSubsetStepper(self, known, walk)


def entry_slices(owner: Tensor) -> list[slice]:
    """The indices that belong to each entry."""
    ends = torch.bincount(owner).cumsum(0).tolist()
    return list(itertools.starmap(slice, itertools.pairwise([0, *ends])))


class SubsetStepper(EntryStepper):
    """Base of the steppers: an entry that is new in no row is neither computed nor fed."""

    def __init__(self, net: SubsetNet, known: ObservedRows, walk: RevealOrder) -> None:
        self.net, self.known, self.walk = net, known, walk
        self.needed: list[bool] = walk.news.any(0).tolist()

    def parameters(self, place: int) -> Tensor:
        entry = self.walk.entries[place]
        own = self.net.outputs[entry]
        if not self.needed[entry]:
            return self.known.features.new_zeros(len(self.known.seen), own.stop - own.start)
        return self.compute(own)

    def feed(self, place: int, features: Tensor) -> None:
        entry = self.walk.entries[place]
        if self.needed[entry]:
            self.reveal(entry, features, self.walk.news[:, entry, None])

    def take(self, rows: Tensor) -> None:
        self.known, self.walk = self.known[rows], replace(self.walk, news=self.walk.news[rows])

    @abc.abstractmethod
    def compute(self, own: slice) -> Tensor:
        """The outputs `own` of the network, (n, P_i)."""

    @abc.abstractmethod
    def reveal(self, entry: int, features: Tensor, new: Tensor) -> None:
        """Feed the entry's features (n, F_i) to the rows in which it is `new` (n, 1)."""


class FullPassSubsetStepper(SubsetStepper):
    """The reference: a pass of the whole network for every entry."""

    def compute(self, own: slice) -> Tensor:
        return self.net(self.known)[:, own]

    def reveal(self, entry: int, features: Tensor, new: Tensor) -> None:
        known, own = self.known, self.net.inputs[entry]
        shown = torch.where(new, features, known.features[:, own])
        place = torch.arange(own.start, own.stop, device=new.device)
        seen = known.seen.clone()
        seen[:, entry] |= new[:, 0]
        # A copy, as a gradient may still need the previous pass.
        self.known = replace(known, features=known.features.index_copy(1, place, shown), seen=seen)


class DenseSubsetNet(SubsetNet):
    """An MLP over all entries."""

    class Config(SubsetNet.Config):
        tag = "any_order/dense"
        width: Annotated[int, Range(1)] = 500
        """Units of a hidden layer."""
        depth: Annotated[int, Range(1, MAX_LAYERS)] = 2
        """Hidden layers."""
        activation: Activation = "relu"
        """Function after each hidden layer."""
        residual: bool = True
        """Hidden layers after the first add to their input."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Share of hidden units dropped in training."""
        init: Init = "auto"
        """Initial weights: by the activation (he, xavier, orthogonal), small, torch's own, or
        auto: torch's, he if deep."""

    def __init__(
        self, config: Config, shape: Sequence[int], inputs: Tensor, outputs: Tensor, context: int
    ) -> None:
        super().__init__(inputs, outputs)
        form = MLP.Config(
            width=config.width,
            depth=config.depth,
            activation=config.activation,
            residual=config.residual,
            dropout=config.dropout,
            init=config.init,
        )
        self.mlp: MLP = form.build(len(inputs) + len(self.inputs) + context, len(outputs))

    def forward(self, known: ObservedRows) -> Tensor:
        return self.mlp(dense_input(known))

    @torch.no_grad()
    def init_output_bias(self, start: Tensor) -> None:
        self.mlp.out.bias.copy_(start)

    @property
    def work(self) -> int:
        *hidden, out = self.mlp.linears
        ends = (hidden[0].weight.numel() + out.weight.numel()) // len(self.inputs)
        return ends + sum(layer.weight.numel() for layer in hidden[1:])

    def stepper(self, known: ObservedRows, walk: RevealOrder, cached: bool = True) -> EntryStepper:
        return (
            CachedSubsetStepper(self, known, walk)
            if cached
            else FullPassSubsetStepper(self, known, walk)
        )


def dense_input(known: ObservedRows) -> Tensor:
    return torch.cat([known.features, known.seen.to(known.features), known.context], 1)


class CachedSubsetStepper(SubsetStepper):
    """Caches the sums a(S) of the first layer; dropout is off in a pass."""

    def __init__(self, net: DenseSubsetNet, known: ObservedRows, walk: RevealOrder) -> None:
        super().__init__(net, known, walk)
        self.mlp = net.mlp
        first, *self.rest = self.mlp.linears[:-1]
        self.sums = first(dense_input(known))  # (n, H)
        count = known.features.shape[1]
        by_entry = [
            [*range(own.start, own.stop), count + entry] for entry, own in enumerate(net.inputs)
        ]
        self.terms = [first.weight.T[columns] for columns in by_entry]  # (F_i + 1, H): W_i and v_i

    def compute(self, own: slice) -> Tensor:
        h = self.mlp.act(self.sums.clone())
        for layer in self.rest:
            new = self.mlp.act(layer(h))
            h = h + new if self.mlp.config.residual else new
        return F.linear(h, self.mlp.out.weight[own], self.mlp.out.bias[own])

    def reveal(self, entry: int, features: Tensor, new: Tensor) -> None:
        shown = torch.where(new, F.pad(features, (0, 1), value=1.0), 0.0)  # (n, F_i + 1)
        self.sums = torch.addmm(self.sums, shown, self.terms[entry])

    def take(self, rows: Tensor) -> None:
        super().take(rows)
        self.sums = self.sums[rows]


class ConvSubsetNet(SubsetNet):
    """A residual stack of convolutions over the image and its mask, all of one spatial size.

    h_0 = A * [f(x) m; m] + U c, h_l = h_{l-1} + B_l * a(C_l * a(h_{l-1})), and a map of each pixel
    to its parameters, with a bias for each. The C_l have dilations 1, 2, 4, 1, ..., so that
    distant pixels interact within a few layers.
    """

    class Config(SubsetNet.Config):
        tag = "any_order/conv"
        width: Annotated[int, Range(1)] = 32
        """Channels of a hidden layer."""
        depth: Annotated[int, Range(0, MAX_LAYERS)] = 4
        """Residual blocks, of two convolutions each."""
        kernel: Literal[3, 5, 7] = 3
        """Pixels on a side that a convolution reads."""
        activation: Activation = "relu"
        """Function before each convolution but the first."""
        init: Init = "auto"
        """Initial weights: by the activation (he, xavier, orthogonal), small, or torch's own
        (auto, torch); blocks start as the identity in any case."""

    def __init__(
        self, config: Config, shape: Sequence[int], inputs: Tensor, outputs: Tensor, context: int
    ) -> None:
        super().__init__(inputs, outputs)
        if len(shape) != 3 or len(inputs) != len(self.inputs):
            raise UsageError(
                "net=conv reads images (channels, height, width), but the event has "
                f"shape {tuple(shape)}; choose net=dense"
            )
        self.shape, width = tuple(shape), config.width

        def conv(into: int, dilation: int = 1) -> nn.Conv2d:
            return nn.Conv2d(into, width, config.kernel, padding="same", dilation=dilation)

        self.first = conv(2 * shape[0])
        self.condition = Linear(context, width, bias=False) if context else None
        self.wide = nn.ModuleList(conv(width, 1 << place % 3) for place in range(config.depth))
        self.near = nn.ModuleList(conv(width) for _ in range(config.depth))
        for layer in self.near:
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
        count = len(outputs) // len(self.outputs)
        self.out = nn.Conv2d(width, shape[0] * count, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(len(outputs)))
        self.act = activation(config.activation)
        initialise(self, config.init, config.activation)

    def forward(self, known: ObservedRows) -> Tensor:
        if torch.is_grad_enabled() or is_exporting():  # of any number of rows
            return self.whole(known.features, known.seen, known.context)
        size = max(
            MAX_BATCH_ELEMENTS // (self.first.out_channels * self.shape[1] * self.shape[2]), 1
        )
        parts = zip(
            known.features.split(size),
            known.seen.split(size),
            known.context.split(size),
            strict=True,
        )
        return torch.cat([self.whole(*part) for part in parts])

    def whole(self, features: Tensor, seen: Tensor, context: Tensor) -> Tensor:
        pair = torch.stack([features, seen.to(features)], 1)  # (n, 2, D)
        x = pair.reshape(len(pair), -1, *self.shape[1:])  # (n, 2C, H, W)
        h = self.first(x.contiguous(memory_format=torch.channels_last))
        if self.condition is not None:
            h = h + self.condition(context)[:, :, None, None]
        for wide, near in zip(self.wide, self.near, strict=True):
            h = h + near(self.act(wide(self.act(h))))
        out = self.out(self.act(h)).unflatten(1, (self.shape[0], -1))  # (n, C, P_i, H, W)
        return out.movedim(2, -1).flatten(1) + self.bias

    @torch.no_grad()
    def init_output_bias(self, start: Tensor) -> None:
        self.bias.copy_(start)

    @property
    def work(self) -> int:
        weights = sum(p.numel() for p in self.parameters() if p.ndim == 4)
        return weights * self.shape[1] * self.shape[2]
