r"""Specs of layers: output shapes, parameter counts and receptive fields before building.

A side of w positions, kernel k, stride s, padding p and dilation d (Dumoulin & Visin 2016):

convolution, pooling  $\lfloor (w + 2p - d(k-1) - 1) / s \rfloor + 1$ positions
transposed            $(w - 1) s - 2p + d(k-1) + o + 1$ with output padding o

A convolution has $C_{in} C_{out} k^n + C_{out}$ parameters, whatever the sides. Its output o reads
the inputs $os - p, ..., os - p + d(k-1)$; through a stack this gives the receptive field $1 +
\sum_l (k_l - 1) d_l \prod_{m<l} s_m$. A spec is a value that builds the layer it describes, so a
network can be counted or refused before any weight exists:

    stack = Stack((Conv(32), Pool(), Conv(64), Flatten(), Dense(10)))
    stack.shape((1, 28, 28)), stack.parameters((1, 28, 28)), field(stack), stack.build((1, 28, 28))
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ...core.errors import UsageError
from .activation import LEAKY_SLOPE, Activation, activation
from .dropout import GaussianNoise, dropout
from .linear import Linear
from .norm import Norm, check_sides, norm
from .pool import CONV, TRANSPOSED, GlobalPool, Pooling, pool

Shape = tuple[int, ...]
"""(channels, *sides) of a map, (width,) of a vector."""
Span = tuple[int, int]
"""The first and the last position on a side."""


class LayerSpec(abc.ABC):
    """The spec of a layer. By default it has no parameters and acts on each position
    separately."""

    @abc.abstractmethod
    def build(self, inputs: Shape) -> nn.Module:
        """The layer for events of this shape."""

    def shape(self, inputs: Shape) -> Shape:
        """The output shape for an input shape; UsageError if it does not fit."""
        return inputs

    def parameters(self, inputs: Shape) -> int:
        return 0

    def reads(self, span: Span) -> Span | None:
        """The inputs that these outputs depend on; None means all of them."""
        return span

    @property
    def period(self) -> int:
        """Outputs after which the pattern of the inputs read repeats."""
        return 1


def receptive_field(layer: LayerSpec) -> float:
    """The receptive field: the most positions of a side that an output reads."""
    spans = [layer.reads((output, output)) for output in range(layer.period)]
    return max(math.inf if span is None else span[1] - span[0] + 1 for span in spans)


@dataclass(frozen=True)
class ConvSpec(LayerSpec):
    """Convolution; by default padded such that stride 1 keeps the sides."""

    width: int
    kernel: int = 3
    stride: int = 1
    padding: int | None = None
    dilation: int = 1
    bias: bool = True

    @property
    def margin(self) -> int:
        return self.dilation * (self.kernel - 1) // 2 if self.padding is None else self.padding

    def shape(self, inputs: Shape) -> Shape:
        return self.width, *window_sides(
            inputs, self.kernel, self.stride, self.margin, self.dilation
        )

    def parameters(self, inputs: Shape) -> int:
        return conv_parameters(self, inputs)

    def build(self, inputs: Shape) -> nn.Module:
        return CONV[len(inputs) - 2](
            inputs[0],
            self.width,
            self.kernel,
            self.stride,
            self.margin,
            self.dilation,
            bias=self.bias,
        )

    def reads(self, span: Span) -> Span:
        first = span[0] * self.stride - self.margin
        return first, first + (span[1] - span[0]) * self.stride + self.dilation * (self.kernel - 1)


@dataclass(frozen=True)
class TransposedConvSpec(LayerSpec):
    """The adjoint of a convolution; by default it multiplies the sides by its stride."""

    width: int
    kernel: int = 4
    stride: int = 2
    padding: int = 1
    dilation: int = 1
    extra: int = 0
    bias: bool = True

    def shape(self, inputs: Shape) -> Shape:
        more = self.dilation * (self.kernel - 1) + self.extra + 1 - 2 * self.padding
        sides = [(side - 1) * self.stride + more for side in sides_of(inputs)]
        if min(sides) < 1:
            raise UsageError(
                f"a padding of {self.padding} leaves nothing of a map of "
                f"{format_shape(inputs[1:])}; use a smaller padding"
            )
        return self.width, *sides

    def parameters(self, inputs: Shape) -> int:
        return conv_parameters(self, inputs)

    def build(self, inputs: Shape) -> nn.Module:
        form = TRANSPOSED[len(inputs) - 2]
        return form(
            inputs[0],
            self.width,
            self.kernel,
            self.stride,
            self.padding,
            self.extra,
            bias=self.bias,
            dilation=self.dilation,
        )

    def reads(self, span: Span) -> Span:
        reach = self.dilation * (self.kernel - 1)
        return (
            -((reach - self.padding - span[0]) // self.stride),
            (span[1] + self.padding) // self.stride,
        )

    @property
    def period(self) -> int:
        return self.stride


@dataclass(frozen=True)
class PoolSpec(LayerSpec):
    """The largest or the mean value of every window."""

    kind: Pooling = "max"
    kernel: int = 2
    stride: int = 2
    padding: int = 0

    def shape(self, inputs: Shape) -> Shape:
        return inputs[0], *window_sides(inputs, self.kernel, self.stride, self.padding)

    def build(self, inputs: Shape) -> nn.Module:
        return pool(self.kind, len(inputs) - 1, self.kernel, self.stride, self.padding)

    def reads(self, span: Span) -> Span:
        return ConvSpec(1, self.kernel, self.stride, self.padding).reads(span)


@dataclass(frozen=True)
class GlobalPoolSpec(LayerSpec):
    """One number of each channel: (C, *sides) -> (C,)."""

    kind: Pooling = "average"

    def shape(self, inputs: Shape) -> Shape:
        return inputs[:1]

    def build(self, inputs: Shape) -> nn.Module:
        return GlobalPool(self.kind)

    def reads(self, span: Span) -> None:
        return None


@dataclass(frozen=True)
class FlattenSpec(LayerSpec):
    """A map as a vector, (C, *sides) -> (C prod sides,)."""

    def shape(self, inputs: Shape) -> Shape:
        return (math.prod(inputs),)

    def build(self, inputs: Shape) -> nn.Module:
        return nn.Flatten()

    def reads(self, span: Span) -> None:
        return None


@dataclass(frozen=True)
class DenseSpec(LayerSpec):
    """A linear map of vectors."""

    width: int
    bias: bool = True

    def shape(self, inputs: Shape) -> Shape:
        if len(inputs) != 1:
            raise UsageError(
                f"a dense layer needs vectors, found a map of {format_shape(inputs)}; flatten or "
                "pool it first"
            )
        return (self.width,)

    def parameters(self, inputs: Shape) -> int:
        return (inputs[0] + self.bias) * self.width

    def build(self, inputs: Shape) -> nn.Module:
        return Linear(inputs[0], self.width, self.bias)


@dataclass(frozen=True)
class NormSpec(LayerSpec):
    kind: Norm = "batch"

    def shape(self, inputs: Shape) -> Shape:
        if self.kind == "instance":
            check_sides(math.prod(inputs[1:]) - 1)
        return inputs

    def parameters(self, inputs: Shape) -> int:
        return 0 if self.kind == "none" else 2 * inputs[0]

    def build(self, inputs: Shape) -> nn.Module:
        return norm(self.kind, inputs[0], len(inputs) - 1)

    def reads(self, span: Span) -> Span | None:
        return span if self.kind in ("none", "batch") else None


@dataclass(frozen=True)
class ActivationSpec(LayerSpec):
    kind: Activation = "relu"
    slope: float = LEAKY_SLOPE

    def build(self, inputs: Shape) -> nn.Module:
        return activation(self.kind, axis=1, slope=self.slope)


@dataclass(frozen=True)
class NoiseSpec(LayerSpec):
    scale: float

    def build(self, inputs: Shape) -> nn.Module:
        return GaussianNoise(self.scale)


@dataclass(frozen=True)
class DropoutSpec(LayerSpec):
    rate: float
    whole: bool = False

    def build(self, inputs: Shape) -> nn.Module:
        return dropout(self.rate, len(inputs) - 1, self.whole)


@dataclass(frozen=True)
class StackSpec(LayerSpec):
    """Layers one after the other."""

    layers: Sequence[LayerSpec]

    def shapes(self, inputs: Shape) -> list[Shape]:
        """The input shape of each layer, and the output shape of the last."""
        found = [inputs]
        for layer in self.layers:
            found.append(layer.shape(found[-1]))
        return found

    def shape(self, inputs: Shape) -> Shape:
        return self.shapes(inputs)[-1]

    def parameters(self, inputs: Shape) -> int:
        pairs = zip(self.layers, self.shapes(inputs), strict=False)
        return sum(layer.parameters(entering) for layer, entering in pairs)

    def build(self, inputs: Shape) -> nn.Sequential:
        pairs = zip(self.layers, self.shapes(inputs), strict=False)
        return nn.Sequential(*(layer.build(entering) for layer, entering in pairs))

    def reads(self, span: Span) -> Span | None:
        seen: Span | None = span
        for layer in reversed(self.layers):
            seen = None if seen is None else layer.reads(seen)
        return seen

    @property
    def period(self) -> int:
        return math.prod(layer.period for layer in self.layers)


@dataclass(frozen=True)
class LayerDescription:
    """What a layer of a stack gives, holds and depends on."""

    layer: str
    shape: Shape
    parameters: int
    field: float  # positions of a side of the input that an output reads; inf is all


def describe_layers(stack: StackSpec, inputs: Shape) -> list[LayerDescription]:
    """The layers of a stack for events of this shape, first to last."""
    found, shapes = [], stack.shapes(inputs)
    for place, layer in enumerate(stack.layers):
        found.append(
            LayerDescription(
                type(layer).__name__.removesuffix("Spec").lower(),
                shapes[place + 1],
                layer.parameters(shapes[place]),
                receptive_field(StackSpec(stack.layers[: place + 1])),
            )
        )
    return found


def format_shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def sides_of(inputs: Shape) -> Shape:
    if len(inputs) not in (2, 3, 4):
        raise UsageError(
            f"a convolution needs maps (channels, *sides), found shape {format_shape(inputs)}; "
            "reshape it or use a dense layer"
        )
    return inputs[1:]


def conv_parameters(layer: ConvSpec | TransposedConvSpec, inputs: Shape) -> int:
    cells = layer.kernel ** len(sides_of(inputs))
    return inputs[0] * layer.width * cells + layer.bias * layer.width


def window_sides(
    inputs: Shape, kernel: int, stride: int, padding: int, dilation: int = 1
) -> Shape:
    """The sides after a window."""
    reach, sides = dilation * (kernel - 1), sides_of(inputs)
    if min(sides) < stride or min(sides) + 2 * padding <= reach:
        raise UsageError(
            f"a map of {format_shape(sides)} is too small for a window of {reach + 1} with "
            f"stride {stride}; use larger images or fewer levels"
        )
    return tuple((side + 2 * padding - reach - 1) // stride + 1 for side in sides)
