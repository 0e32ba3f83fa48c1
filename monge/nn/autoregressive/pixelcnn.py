r"""The two networks of PixelCNN: one masked stack, and a vertical stack beside a horizontal one.

A stack of masked convolutions with kernel 3 reaches at most one column to the right per row above:
the pixels beyond are a blind spot at any depth. Two stacks have none: the vertical one reads every
column of the rows above, the horizontal one the row up to the pixel and, at every layer, the
vertical one; the opposite connection would break the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .pixel import (
    OddKernel,
    PixelRow,
    RasterNet,
    RasterStepper,
    RowBuffer,
    WindowConv2d,
    layer_bias,
    masked_conv,
    row_weights,
)


class PixelCNNStack(RasterNet):
    """Base of the stacks of masked convolutions."""

    class Config(RasterNet.Config):
        kernel: OddKernel = 3
        """Side of the kernels after the first."""

    config: Config

    def reaches(self) -> list[int]:
        """The reach of the kernel of each layer."""
        rest = [self.config.kernel // 2] * (self.config.depth - 1)
        return [self.config.first // 2, *rest]


class PlainPixelCNN(PixelCNNStack):
    r"""$h_1 = A x$ and $h_{l+1} = h_l + B_l\,\mathrm{relu}(h_l) + V_l c$ (van den Oord,
    Kalchbrenner & Kavukcuoglu 2016), which has the blind spot."""

    class Config(PixelCNNStack.Config):
        """A masked stack."""

        tag = "pixel/plain"

    def __init__(
        self, config: Config, shape: tuple[int, int, int], outputs: int, context: int = 0
    ) -> None:
        super().__init__(config, shape, outputs, config.width, context)
        below = [self.inputs, *[self.colours] * (config.depth - 1)]
        self.layers = nn.ModuleList(
            masked_conv(inputs, self.colours, reach, reach, reach, strict=number == 0)
            for number, (inputs, reach) in enumerate(zip(below, self.reaches(), strict=True))
        )
        self.init_weights("relu", list(self.layers[1:]))

    def features(self, x: Tensor, biases: Sequence[Tensor | None]) -> Tensor:
        h = add_channel_bias(self.layers[0](x), biases[0])
        for layer, bias in zip(self.layers[1:], biases[1:], strict=True):
            h = h + self.drop(add_channel_bias(layer(F.relu(h)), bias))
        return h

    def scan(self, context: Tensor) -> RasterStepper:
        return _PlainStepper(self, context)


class GatedPixelCNN(PixelCNNStack):
    r"""Vertical features v, horizontal features h, and the gate
    $g(a, b) = \tanh(a) \odot \sigma(b)$:

    $v_{l+1} = v_l + g(W_l * v_l + V_l c)$ from the image moved down by one row,
    $y_l = g(U_l * h_l + L_l v_{l+1} + V'_l c)$, $h_{l+1} = h_l + R_l y_l$, and features
    $\sum_l S_l y_l$ (van den Oord et al. 2016, Conditional Image Generation with PixelCNN
    Decoders)."""

    class Config(PixelCNNStack.Config):
        """A vertical and a horizontal stack of gates."""

        tag = "pixel/gated"

    def __init__(
        self, config: Config, shape: tuple[int, int, int], outputs: int, context: int = 0
    ) -> None:
        super().__init__(config, shape, outputs, 4 * config.width, context)
        below = [self.inputs, *[self.colours] * (config.depth - 1)]
        layers = [
            GatedPixelLayer(
                inputs, self.colours, reach, first=number == 0, last=number == config.depth - 1
            )
            for number, (inputs, reach) in enumerate(zip(below, self.reaches(), strict=True))
        ]
        self.layers = nn.ModuleList(layers)
        self.skip = masked_conv(self.colours.repeat(config.depth), self.colours)
        self.init_weights("tanh", [layer.mix for layer in layers if layer.mix is not None])

    def features(self, x: Tensor, biases: Sequence[Tensor | None]) -> Tensor:
        v, h, gated = F.pad(x, (0, 0, 1, -1)), x, []
        for layer, bias in zip(self.layers, biases, strict=True):
            v, h, y = layer(v, h, bias, self.drop)
            gated.append(y)
        return self.skip(torch.cat(gated, 1))

    def scan(self, context: Tensor) -> RasterStepper:
        return _GatedStepper(self, context)


class GatedPixelLayer(nn.Module):
    """One layer of both stacks."""

    def __init__(
        self, inputs: Tensor, colours: Tensor, reach: int, first: bool, last: bool
    ) -> None:
        super().__init__()
        width, both = len(colours), colours.repeat(2)
        self.first = first
        self.down = WindowConv2d(len(inputs), 2 * width, reach, reach, reach)
        self.link = WindowConv2d(width, 2 * width)
        self.across = masked_conv(inputs, both, left=reach, strict=first, bias=False)
        self.mix = None if last else masked_conv(colours, colours, bias=False)

    def forward(
        self, v: Tensor, h: Tensor, bias: Tensor | None, drop: nn.Module
    ) -> tuple[Tensor, Tensor, Tensor]:
        to_v, to_h = (None, None) if bias is None else bias.chunk(2, 1)
        new = drop(gated_activation(add_channel_bias(self.down(v), to_v), 1))
        v = new if self.first else v + new
        y = drop(gated_activation(add_channel_bias(self.link(v) + self.across(h), to_h), 1))
        if self.mix is not None:
            h = self.mix(y) if self.first else h + self.mix(y)
        return v, h, y


def add_channel_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias[:, :, None, None]


def gated_activation(x: Tensor, axis: int) -> Tensor:
    a, b = x.chunk(2, axis)
    return a.tanh() * b.sigmoid()


class _PlainStepper(RasterStepper):
    """One convolution per layer and row for the rows above, one product per pixel for its row."""

    def __init__(self, network: PlainPixelCNN, context: Tensor) -> None:
        super().__init__(network, context)
        lines = [
            PixelRow(self.features, self.columns, reach, self.spans)
            for reach in network.reaches()[1:]
        ]
        self.layers = [
            MaskedLayerStepper(cast(WindowConv2d, layer), line, given, self.columns, self.spans)
            for layer, line, given in zip(
                network.layers, [self.known, *lines], network.biases(context), strict=True
            )
        ]

    def start_row(self, top: bool) -> None:
        for layer in self.layers:
            layer.start_row(top)

    def advance(self, x: int, colour: int, features: Tensor) -> None:
        first, *rest = self.layers
        features.copy_(first.at(x, colour))
        for layer in rest:
            torch.clamp_min(features, 0.0, out=layer.line.own[colour][x])
            features += layer.at(x, colour)


class MaskedLayerStepper:
    """One masked layer in a scan; `line` holds its inputs."""

    def __init__(
        self,
        layer: WindowConv2d,
        line: PixelRow,
        given: Tensor | None,
        columns: int,
        spans: Sequence[slice],
    ) -> None:
        like, reach = line.row[:, 0], layer.margins[0]
        self.line, self.shift = line, layer_bias(layer, given)
        self.above = layer.kernel().detach()[:, :, :-1]  # (width, inputs, reach, columns)
        self.along = row_weights(layer, spans)
        self.strip = RowBuffer(like, reach, columns, reach)
        self.link = PixelRow(like.new_zeros(len(like), layer.out_channels), columns, 0, spans)

    def start_row(self, top: bool) -> None:
        if not top:
            self.strip.push(self.line.row)
        torch.add(self.strip.convolve(self.above), self.shift, out=self.link.row)

    def at(self, x: int, colour: int) -> Tensor:
        return torch.addmm(self.link.own[colour][x], self.line.windows[x], self.along[colour])


class _GatedStepper(RasterStepper):
    """The vertical stack advances by rows, the horizontal one by pixels."""

    def __init__(self, network: GatedPixelCNN, context: Tensor) -> None:
        super().__init__(network, context)
        n, width = self.features.shape
        lines = [
            PixelRow(self.features, self.columns, reach, self.spans)
            for reach in network.reaches()[1:]
        ]
        outputs = self.features.new_zeros(n, network.config.depth, width)
        self.gated = outputs.flatten(1)  # (n, depth width)
        self.layers = [
            _GatedLayerStepper(
                cast(GatedPixelLayer, layer), below, above, given, y, self.columns, self.spans
            )
            for layer, below, above, given, y in zip(
                network.layers,
                [self.known, *lines],
                [*lines, None],
                network.biases(context),
                outputs.unbind(1),
                strict=True,
            )
        ]
        self.skip = row_weights(network.skip, self.spans)
        self.shift = [layer_bias(network.skip)[own] for own in self.spans]

    def start_row(self, top: bool) -> None:
        row = None if top else self.known.row
        for layer in self.layers:
            row = layer.descend(row)

    def advance(self, x: int, colour: int, features: Tensor) -> None:
        for layer in self.layers:
            layer.step(x, colour)
        torch.addmm(self.shift[colour], self.gated, self.skip[colour], out=features)


class _GatedLayerStepper:
    """One layer of both stacks in a scan. The halves a, b of the gates are ordered by colour, so
    that those of one colour are adjacent."""

    def __init__(
        self,
        layer: GatedPixelLayer,
        below: PixelRow,
        above: PixelRow | None,
        given: Tensor | None,
        y: Tensor,
        columns: int,
        spans: Sequence[slice],
    ) -> None:
        (n, width), reach = y.shape, layer.down.margins[0]
        halves = torch.arange(2 * width).reshape(2, width)
        order = [halves[:, own].flatten() for own in spans]  # gates of each colour
        ends = [slice(2 * own.start, 2 * own.stop) for own in spans]
        to_v, to_h = (None, None) if given is None else given.chunk(2, 1)
        self.below, self.above, self.y, self.first = below, above, y, layer.first
        self.down, self.to_v = layer.down.kernel().detach(), layer_bias(layer.down, to_v)
        self.strip = RowBuffer(below.row[:, 0], reach + 1, columns, reach)
        (self.link_weight,) = row_weights(layer.link, [torch.cat(order)])
        self.to_h = layer_bias(layer.link, to_h)[..., torch.cat(order)]
        self.link = PixelRow(y.new_zeros(n, 2 * width), columns, 0, ends)
        self.across = row_weights(layer.across, order)
        self.mix = None if layer.mix is None else row_weights(layer.mix, spans)
        self.gates = [y.new_zeros(n, len(own)) for own in order]
        self.halves = [gates.chunk(2, 1) for gates in self.gates]
        self.own = [y[:, span] for span in spans]

    def descend(self, row: Tensor | None) -> Tensor:
        """The vertical features (n, columns, width) of the next row, after those of the layer
        below."""
        if row is not None:
            self.strip.push(row)
        v = gated_activation(self.strip.convolve(self.down) + self.to_v, -1)
        if not self.first:
            v += self.strip.newest
        torch.mm(v.flatten(0, 1), self.link_weight, out=self.link.row.flatten(0, 1))
        self.link.row.add_(self.to_h)
        return v

    def step(self, x: int, colour: int) -> None:
        """The horizontal features of one colour of the pixel in column x."""
        a, b = self.halves[colour]
        torch.addmm(
            self.link.own[colour][x],
            self.below.windows[x],
            self.across[colour],
            out=self.gates[colour],
        )
        torch.mul(a.tanh_(), b.sigmoid_(), out=self.own[colour])
        if self.above is None or self.mix is None:
            return
        if self.first:
            torch.mm(self.y, self.mix[colour], out=self.above.own[colour][x])
        else:
            torch.addmm(
                self.below.own[colour][x], self.y, self.mix[colour], out=self.above.own[colour][x]
            )
