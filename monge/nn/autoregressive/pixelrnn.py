r"""The two recurrent networks of PixelRNN: Row LSTM and Diagonal BiLSTM.

The input-to-state map of a layer is one masked convolution over the whole image; the
state-to-state recurrence is computed line by line (van den Oord, Kalchbrenner & Kavukcuoglu 2016).

Row LSTM: a line is a row, which convolves the outputs of the row above; the receptive field is a
triangle. Diagonal BiLSTM: row r is shifted r columns to the right, so that a line is a diagonal
and a cell reads those to the left and above. A mirrored network runs to the left, and its outputs
are read one row lower, so that no pixel reads pixels to its right. Together they cover all pixels
before.

In a scan the row above is known when a row starts: its contribution is one product per row, and
the mirrored network runs over it then. Each pixel adds one or two small products.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.config import MAX_LAYERS, Range
from ...core.model import is_exporting
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
from .pixelcnn import MaskedLayerStepper, add_channel_bias
from .pixelrnn_kernel import GridLSTM, Neighbourhood, lstm_cell, run_lines


class PixelRNNStack(RasterNet):
    r"""$h_0 = A x$ and $h_{l+1} = h_l + R_l y_l$, with $y_l$ the outputs of the cells of layer
    l for $h_l$."""

    class Config(RasterNet.Config):
        depth: Annotated[int, Range(1, MAX_LAYERS)] = 3
        """Layers of cells, after a first convolution."""

    config: Config

    def __init__(
        self, config: Config, shape: tuple[int, int, int], outputs: int, gates: int, context: int
    ) -> None:
        super().__init__(config, shape, outputs, gates * config.width, context)
        reach = config.first // 2
        self.first = masked_conv(self.inputs, self.colours, reach, reach, reach, strict=True)
        layers = [self.cells() for _ in range(config.depth)]
        self.layers = nn.ModuleList(layers)
        self.init_weights("tanh", [layer.mix for layer in layers])
        for layer in layers:
            layer.open_forget_gates()

    @abc.abstractmethod
    def cells(self) -> CellLayer:
        """A new layer of cells."""

    def features(self, x: Tensor, biases: Sequence[Tensor | None]) -> Tensor:
        h = self.first(x)
        for layer, bias in zip(self.layers, biases, strict=True):
            h = h + layer(h, x, bias, self.drop)
        return h

    def scan(self, context: Tensor) -> RasterStepper:
        return _CellStepper(self, context)


class RowLSTM(PixelRNNStack):
    """Cells that run down the rows; a pixel depends only on the triangle above it."""

    class Config(PixelRNNStack.Config):
        """The Row LSTM."""

        tag = "pixel/row"
        kernel: OddKernel = 3
        """Pixels of the row above, and about half as many of its own, that a cell reads."""

    config: Config

    def __init__(
        self, config: Config, shape: tuple[int, int, int], outputs: int, context: int = 0
    ) -> None:
        super().__init__(config, shape, outputs, 4, context)

    def cells(self) -> CellLayer:
        return RowCellLayer(self.colours, self.config.kernel // 2)


class DiagonalBiLSTM(PixelRNNStack):
    """Cells that run along both diagonals; a pixel depends on all pixels before it."""

    class Config(PixelRNNStack.Config):
        """The Diagonal BiLSTM."""

        tag = "pixel/diagonal"

    def __init__(
        self, config: Config, shape: tuple[int, int, int], outputs: int, context: int = 0
    ) -> None:
        super().__init__(config, shape, outputs, 8, context)

    def cells(self) -> CellLayer:
        return DiagonalCellLayer(self.colours, len(self.inputs))


class CellLayer(nn.Module, abc.ABC):
    """A layer of cells: `read` computes gates from the map below, `carry` (networks, taps, width,
    4 width) from neighbouring outputs, and `mix` adds the outputs to the map."""

    reach: int
    """Pixels to the left that `read` reads."""

    def __init__(
        self, colours: Tensor, reach: int, networks: int, neighbours: Neighbourhood
    ) -> None:
        super().__init__()
        self.reach, self.neighbours = reach, neighbours
        taps, width = len(neighbours.taps), len(colours)
        self.read = masked_conv(colours, colours.repeat(4), left=reach)
        self.mix = masked_conv(colours, colours, bias=False)
        size = (networks, taps, width, 4 * width)
        self.carry = nn.Parameter(torch.randn(size) / math.sqrt(taps * width))

    def open_forget_gates(self) -> None:
        """Initialise the forget gates to be mostly open."""
        open_forget_gate(self.read)

    def forward(self, h: Tensor, x: Tensor, bias: Tensor | None, drop: nn.Module) -> Tensor:
        return self.mix(drop(self.run_cells(h, x, bias)))

    def outputs_of_cells(self, *maps: Tensor) -> Tensor:
        """Of each network, (G, H, W, B, width), from maps (H, W, B, 4 width)."""
        run = run_lines if is_exporting() else GridLSTM.apply
        return run(self.neighbours, self.carry, *maps)

    @abc.abstractmethod
    def run_cells(self, h: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """The outputs of the cells for a map h (B, width, H, W) and the image x, (B, width, H,
        W)."""

    @abc.abstractmethod
    def stepper(
        self, lines: LayerRows, given: Tensor | None, spans: Sequence[slice]
    ) -> _CellLayerStepper:
        """The layer in a scan."""


def open_forget_gate(read: WindowConv2d) -> None:
    assert read.bias is not None
    nn.init.ones_(read.bias.detach().chunk(4)[1])


class RowCellLayer(CellLayer):
    def __init__(self, colours: Tensor, reach: int) -> None:
        taps = tuple((-1, column) for column in range(-reach, reach + 1))
        super().__init__(colours, reach, 1, Neighbourhood(taps, memory=reach, diagonal=False))

    def run_cells(self, h: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        a = add_channel_bias(self.read(h), bias).permute(2, 3, 0, 1)  # (H, W, B, 4 width)
        return self.outputs_of_cells(a)[0].permute(2, 3, 0, 1)

    def stepper(
        self, lines: LayerRows, given: Tensor | None, spans: Sequence[slice]
    ) -> _CellLayerStepper:
        return _RowLayerStepper(self, lines, given, spans)


class DiagonalCellLayer(CellLayer):
    """The first network runs to the right, the second is its mirror image.

    As the mirror image is read one row lower, it may read its own pixel, and must, as the last
    pixel of a row has not been read otherwise.
    """

    def __init__(self, colours: Tensor, inputs: int) -> None:
        neighbours = Neighbourhood(((-1, 0), (0, -1)), memory=1, diagonal=True)
        super().__init__(colours, 0, 2, neighbours)
        self.mirror = WindowConv2d(len(colours) + inputs, 4 * len(colours))

    def open_forget_gates(self) -> None:
        super().open_forget_gates()
        open_forget_gate(self.mirror)

    def run_cells(self, h: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        biases = (None, None) if bias is None else bias.chunk(2, 1)
        a = add_channel_bias(self.read(h), biases[0])
        b = add_channel_bias(self.mirror(torch.cat([h, x], 1).flip(-1)), biases[1])
        maps = (a.permute(2, 3, 0, 1), b.permute(2, 3, 0, 1))  # (H, W, B, 4 width)
        right, left = self.outputs_of_cells(*maps).permute(0, 3, 4, 1, 2)
        return right + F.pad(left.flip(-1), (0, 0, 1, -1))

    def stepper(
        self, lines: LayerRows, given: Tensor | None, spans: Sequence[slice]
    ) -> _CellLayerStepper:
        return _DiagonalLayerStepper(self, lines, given, spans)


class LayerRows(NamedTuple):
    """The row of a scan: the pixels, and the maps below and above a layer."""

    known: PixelRow
    below: PixelRow
    above: PixelRow


class _CellStepper(RasterStepper):
    """A row starts with the contribution of the rows above; then layers advance by pixels."""

    def __init__(self, network: PixelRNNStack, context: Tensor) -> None:
        super().__init__(network, context)
        layers = [cast(CellLayer, layer) for layer in network.layers]
        self.lines = [
            PixelRow(self.features, self.columns, reach, self.spans)
            for reach in [*(layer.reach for layer in layers), 0]
        ]
        self.first = MaskedLayerStepper(network.first, self.known, None, self.columns, self.spans)
        self.layers = [
            layer.stepper(LayerRows(self.known, *pair), given, self.spans)
            for layer, pair, given in zip(
                layers, itertools.pairwise(self.lines), network.biases(context), strict=True
            )
        ]

    def start_row(self, top: bool) -> None:
        self.first.start_row(top)
        for layer in self.layers:
            layer.start_row(top)

    def advance(self, x: int, colour: int, features: Tensor) -> None:
        self.lines[0].own[colour][x].copy_(self.first.at(x, colour))
        for layer in self.layers:
            layer.step(x, colour)
        features.copy_(self.lines[-1].own[colour][x])


class _CellLayerStepper(abc.ABC):
    """One layer of cells in a scan. The four gates are ordered by colour, so that those of one
    colour are adjacent; `link` is the contribution of the rows above."""

    def __init__(
        self, layer: CellLayer, lines: LayerRows, given: Tensor | None, spans: Sequence[slice]
    ) -> None:
        self.known, self.below, self.above = lines
        n, columns, width = self.below.row.shape
        like = self.below.row[:, 0]
        gates = torch.arange(4 * width).reshape(4, width)
        self.order = [gates[:, own].flatten() for own in spans]
        self.whole = torch.cat(self.order)
        self.shift = layer_bias(layer.read, given)[..., self.whole]
        self.along, self.mix = row_weights(layer.read, self.order), row_weights(layer.mix, spans)
        self.link = PixelRow(
            like.new_zeros(n, 4 * width),
            columns,
            0,
            [slice(4 * own.start, 4 * own.stop) for own in spans],
        )
        self.gates = [like.new_zeros(n, len(own)) for own in self.order]

    @abc.abstractmethod
    def start_row(self, top: bool) -> None:
        """Add the completed row, unless the next one is the `top` row."""

    @abc.abstractmethod
    def run_cells(self, x: int, colour: int) -> Tensor:
        """Outputs of the cells at column x, (n, width), up to this colour."""

    def step(self, x: int, colour: int) -> None:
        torch.addmm(
            self.link.own[colour][x],
            self.below.windows[x],
            self.along[colour],
            out=self.gates[colour],
        )
        torch.addmm(
            self.below.own[colour][x],
            self.run_cells(x, colour),
            self.mix[colour],
            out=self.above.own[colour][x],
        )


class _RowLayerStepper(_CellLayerStepper):
    def __init__(
        self, layer: RowCellLayer, lines: LayerRows, given: Tensor | None, spans: Sequence[slice]
    ) -> None:
        super().__init__(layer, lines, given, spans)
        like, columns = self.below.row[:, 0], self.below.row.shape[1]
        carry = layer.carry.detach()[0].permute(2, 1, 0)[self.whole]  # (4 width, width, taps)
        self.carry = carry[:, :, None].contiguous()
        self.strip = RowBuffer(
            like, 1, columns, layer.reach
        )  # outputs of the row above, then of this one
        self.state = PixelRow(like, columns, 0, spans)
        self.outputs = self.strip.newest.unbind(1)
        self.own = [[output[:, span] for output in self.outputs] for span in spans]

    def start_row(self, top: bool) -> None:
        torch.add(self.strip.convolve(self.carry), self.shift, out=self.link.row)

    def run_cells(self, x: int, colour: int) -> Tensor:
        state = self.state.own[colour][x]
        lstm_cell(self.gates[colour], state, state, self.own[colour][x])
        return self.outputs[x]


class _DiagonalLayerStepper(_CellLayerStepper):
    """The mirror image runs over a row when it is complete, and the row below reads it."""

    def __init__(
        self,
        layer: DiagonalCellLayer,
        lines: LayerRows,
        given: Tensor | None,
        spans: Sequence[slice],
    ) -> None:
        halves = (None, None) if given is None else given.chunk(2, 1)
        super().__init__(layer, lines, halves[0], spans)
        n, columns, width = self.below.row.shape
        carry = layer.carry.detach()  # (2, 2, width, 4 width): above, beside
        self.up, self.left = carry[0, 0][:, self.whole], [carry[0, 1][:, o] for o in self.order]
        self.up_back, self.right = carry[1]
        (self.read_back,) = row_weights(layer.mirror, [slice(None)])
        self.shift_back = layer_bias(layer.mirror, halves[1])
        self.row = carry.new_zeros(n, columns, width)  # outputs of the row above, then of this one
        self.back = carry.new_zeros(columns, n, width)  # outputs of the mirror image a row above
        self.state, self.y = carry.new_zeros(2, n, width)
        self.outputs = [
            self.y.new_zeros(n, width),
            *self.row.unbind(1),
        ]  # first of the pixel before
        self.parts = [
            (
                self.state[:, span],
                self.y[:, span],
                [
                    (output[:, span], back[:, span])
                    for output, back in zip(self.outputs[1:], self.back, strict=True)
                ],
            )
            for span in spans
        ]

    def start_row(self, top: bool) -> None:
        if not top:
            self.run_mirror()
        torch.add(self.row @ self.up, self.shift, out=self.link.row)
        self.state.zero_()

    def run_mirror(self) -> None:
        seen = torch.cat([self.below.row, self.known.row], 2)
        read = seen @ self.read_back + self.shift_back  # (n, columns, 4 width)
        a = read.transpose(0, 1) + self.back @ self.up_back  # (columns, n, 4 width)
        state, output = torch.zeros_like(self.state), torch.zeros_like(self.state)
        for gates, back in zip(reversed(a.unbind()), reversed(self.back.unbind()), strict=True):
            lstm_cell(gates.addmm_(output, self.right), state, state, back)
            output = back

    def run_cells(self, x: int, colour: int) -> Tensor:
        state, y, pixels = self.parts[colour]
        output, back = pixels[x]
        gates = self.gates[colour].addmm_(self.outputs[x], self.left[colour])
        lstm_cell(gates, state, state, output)
        torch.add(output, back, out=y)
        return self.y
