r"""A network whose output for entry d of an event reads only the entries before d in an order.

Every input, hidden unit and output has a degree: an entry's is its position $m^0(d) \in 1..D$ in
the order, a hidden unit's $m^l(k) \in 1..D-1$ is the last position it may depend on, and a
condition's is 0, so all may depend on it. The masks (Germain et al. 2015)

$M^l_{kj} = 1[m^l(k) \ge m^{l-1}(j)]$ between layers,  $1[m^0(d) > m^L(k)]$ before outputs

leave no path from the entries at positions d..D to output d. Members (an order with an assignment
of degrees) share the weights and differ only in the masks.

If inputs and outputs are sorted by degree, a mask is a staircase below the diagonal and nearly
half of the product is zeros. `StaircaseLinear` skips them, forward and backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...core.config import MAX_LAYERS, Configured, Range
from ...core.config import Config as BaseConfig
from ...core.model import is_exporting
from ...core.rng import keyed_uniform
from ..layers.activation import Pointwise, activation
from ..layers.dropout import Dropout
from ..layers.init import Init, initialise_chain
from ..layers.linear import linear
from .incremental import CachedStepper, EntryStepper, FullPassStepper, SortedNetwork

MAX_STORED_MASK_ENTRIES = 1 << 24
"""Most mask entries of a layer that are stored; larger masks are computed when used."""


STAIR_OUTPUTS = 128
"""Outputs of a stair: fewer make the products thin, more include zeros."""
SIMD_INPUTS = 16
"""Inputs per vector instruction; stairs start and end at multiples of it."""
Stair = tuple[int, int, int, int]
"""(first output, end of outputs, first input, end of inputs): these outputs read only inputs
before the last number, and no earlier output reads inputs from the third number on."""


class StaircaseLinear(torch.autograd.Function):
    """y = (W * M) x + b, stair by stair, for x (B, in).

    Without gradients the layout is by columns, so that a stair of y is contiguous; in training it
    is by rows, which suits the sums over rows in the derivatives.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor,
        stairs: Sequence[Stair],
        trained: bool,
    ) -> Tensor:
        rows, units = len(x), len(weight)
        masked = weight * mask
        y = x.new_empty(rows, units) if trained else x.new_empty(units, rows).T
        for start, end, _, known in stairs:
            torch.mm(x[:, :known], masked[start:end, :known].T, out=y[:, start:end])
        ctx.save_for_backward(x, masked, mask)
        ctx.stairs = stairs
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, masked, mask = ctx.saved_tensors
        to_weight = torch.zeros_like(masked)
        to_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        for start, end, first, known in ctx.stairs:
            torch.mm(slope[:, start:end].T, x[:, :known], out=to_weight[start:end, :known])
            if to_x is not None:  # from the outputs that read these inputs
                torch.mm(slope[:, start:], masked[start:, first:known], out=to_x[:, first:known])
        if to_x is not None:
            to_x[:, ctx.stairs[-1][-1] :] = 0  # inputs that no output reads
        to_bias = slope.sum(0) if ctx.needs_input_grad[2] else None
        return to_x, to_weight.mul_(mask), to_bias, None, None, None


class MaskedLinear(nn.Linear):
    """y = (W * M) x + b with M = 1[output degree >= input degree], or > if `strict`.

    inputs: (K, in) and outputs: (K, out) are the degrees for each of the K members.
    """

    degrees_in: Tensor
    degrees_out: Tensor
    masks: Tensor | None

    def __init__(
        self, inputs: Tensor, outputs: Tensor, strict: bool = False, bias: bool = True
    ) -> None:
        super().__init__(inputs.shape[1], outputs.shape[1], bias)
        self.register_buffer("degrees_in", inputs, persistent=False)
        self.register_buffer("degrees_out", outputs - int(strict), persistent=False)
        store_masks = len(inputs) * self.weight.numel() <= MAX_STORED_MASK_ENTRIES
        masks = torch.stack([self.mask(k) for k in range(len(inputs))]) if store_masks else None
        self.register_buffer("masks", masks, persistent=False)
        self.stairs = [
            stairs(*degrees) for degrees in zip(self.degrees_in, self.degrees_out, strict=True)
        ]

    def mask(self, member: int) -> Tensor:  # (out, in)
        return (self.degrees_out[member][:, None] >= self.degrees_in[member]).to(self.weight.dtype)

    def forward(self, x: Tensor, member: int = 0, plain: bool = False) -> Tensor:
        """plain: with the full masked weight instead of the staircase."""
        mask = self.mask(member) if self.masks is None else self.masks[member]
        stairs = self.stairs[member]
        fits = x.dim() == 2 and x.dtype == self.weight.dtype and x.device.type == "cpu"
        if stairs and fits and not plain:
            trained = torch.is_grad_enabled()
            return cast(
                Tensor, StaircaseLinear.apply(x, self.weight, self.bias, mask, stairs, trained)
            )
        return linear(x, self.weight * mask, self.bias)


def stairs(inputs: Tensor, outputs: Tensor) -> list[Stair]:
    """The stairs between inputs and outputs of these degrees; empty if they are not sorted."""
    if len(outputs) < STAIR_OUTPUTS or bool(
        (inputs.diff() < 0).any() | (outputs.diff() < 0).any()
    ):
        return []
    count = max(len(outputs) // STAIR_OUTPUTS, 2)
    ends = [len(outputs) * (stair + 1) // count for stair in range(count)]
    known = torch.searchsorted(inputs, outputs[[end - 1 for end in ends]], right=True)
    known = (-(-known // SIMD_INPUTS) * SIMD_INPUTS).clamp(max=len(inputs))
    return list(zip([0, *ends], ends, [0, *known.tolist()], known.tolist(), strict=False))


class MaskedMLP(Configured, nn.Module):
    """h_l = a((W_l * M_l) [c; h_{l-1}] + b_l) from h_0 = x, and outputs (V * M) [c; h_L] + b.

    inputs: (F,) and outputs: (P,) are the entries that features and parameters belong to; orders:
    (K, D) the position of each entry in each order; context: the number of conditions c, which
    every layer reads. Members are numbered by order, then by mask.
    """

    class Config(BaseConfig):
        tag = "net/masked"
        width: Annotated[int, Range(1)] = 512
        """Units of a hidden layer."""
        depth: Annotated[int, Range(1, MAX_LAYERS)] = 2
        """Hidden layers."""
        activation: Pointwise = "relu"
        """Function after each hidden layer."""
        residual: bool = True
        """Hidden layers after the first add to their input."""
        direct: bool = True
        """Outputs also read the earlier entries directly, through one linear map."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Share of hidden units dropped in training."""
        init: Init = "auto"
        """Initial weights: by the activation (he, xavier, orthogonal), small, torch's own, or
        auto: torch's, he if deep."""

    def __init__(
        self,
        config: Config,
        inputs: Tensor,
        outputs: Tensor,
        orders: Tensor,
        context: int = 0,
        masks: int = 1,
    ) -> None:
        super().__init__()
        self.config, self.context, self.members = config, context, len(orders) * masks
        places = orders.repeat_interleave(masks, 0) + 1  # (members, D), from 1
        seen = places.new_zeros(self.members, context)
        hidden = hidden_degrees(config, orders.shape[1], context, masks)  # (depth, masks, width)
        hidden = hidden.repeat(1, len(orders), 1)  # (depth, members, width)
        below = [torch.cat([seen, degrees], 1) for degrees in (places[:, inputs], *hidden)]
        last = places[:, outputs]  # (members, P)
        self.layers = nn.ModuleList(map(MaskedLinear, below, hidden))
        self.out = MaskedLinear(below[-1], last, strict=True)
        self.direct = (
            MaskedLinear(below[0], last, strict=True, bias=False) if config.direct else None
        )
        self.act = activation(config.activation, inplace=True)
        self.drop = Dropout(config.dropout)
        initialise_chain(self.maps(), config.init, config.activation, config.residual)

    def forward(
        self, x: Tensor, context: Tensor | None = None, member: int = 0, plain: bool = False
    ) -> Tensor:
        """(B, F) and (B, context) -> (B, P); plain: without staircases."""
        first = h = self.join(context, x)
        for place, layer in enumerate(self.layers):
            new = self.drop(self.act(layer(h, member, plain)))
            sums = place > 0 and self.config.residual
            h = self.join(context, h[:, self.context :] + new if sums else new)
        out = self.out(h, member, plain)
        return out if self.direct is None else out + self.direct(first, member, plain)

    def join(self, context: Tensor | None, h: Tensor) -> Tensor:
        return torch.cat([context, h], 1) if self.context and context is not None else h

    def maps(self) -> list[MaskedLinear]:
        """The masked maps from inputs to outputs, first to last, without `direct`."""
        return [*(cast(MaskedLinear, layer) for layer in self.layers), self.out]

    @torch.no_grad()
    def stepper(self, member: int = 0, cached: bool = True) -> Callable[[Tensor], EntryStepper]:
        """A function that starts a sequential pass over the rows of a context (n, context); the
        cached one sorts the current weights once for all passes."""
        if cached and not is_exporting():
            return functools.partial(CachedStepper, SortedNetwork(self, member))
        return functools.partial(FullPassStepper, self, member)


def hidden_degrees(config: MaskedMLP.Config, dims: int, context: int, masks: int) -> Tensor:
    """Degrees of the hidden units, (depth, masks, width).

    The first assignment is even and ascending, the others are permutations of it; units of degree
    0, which read only conditions, exist if there are conditions or only one entry.
    """
    low = 0 if context or dims == 1 else 1
    even = low + torch.arange(config.width) * (dims - low) // config.width
    layers = 1 if config.residual else config.depth  # residual sums need equal degrees
    shuffle = keyed_uniform(torch.arange(layers * masks), (config.width,), 1).argsort(1)
    degrees = even[shuffle].reshape(layers, masks, config.width)
    degrees[:, 0] = even
    return degrees.expand(config.depth, masks, config.width)
