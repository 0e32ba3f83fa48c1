r"""Networks over images whose output for an entry reads only the entries before it.

Pixels are in raster order, and the colours of a pixel in the order R, G, B. A channel has a
degree, the colour it belongs to. The masked convolution (van den Oord et al. 2016)

$M = 1$ above the pixel's row and left of the pixel, $0$ right of it and below, and at the pixel
itself $1[d_{out} > d_{in}]$ (type A, the first layer) or $1[d_{out} \ge d_{in}]$ (type B)

leaves no path to an output from its own entry or a later one. Kernel rows below the pixel are not
stored: a kernel of reach p has p + 1 rows, and `WindowConv2d` pads the image on the sides it
reads.

Sampling needs an entry's parameters before the next entry is known, which naively takes a full
pass for each. But the features of known pixels never change, so a `RasterStepper` caches them: the
contribution of the rows above is computed for a whole row at its start, by one thin convolution
per layer over a `RowBuffer` of the last rows; the contribution of the same row is a small product
over a `PixelRow`. Together this costs about one pass. `FullPassRasterStepper` is the reference
with D full passes.
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.config import MAX_LAYERS, Configured, Range
from ...core.config import Config as BaseConfig
from ...core.rng import make_generator
from ..layers.activation import Activation
from ..layers.dropout import Dropout
from ..layers.init import GAIN_SQUARED, Init, init_weight, initialise
from ..layers.linear import Linear
from .masked_mlp import EntryStepper

OddKernel = Literal[3, 5, 7, 9, 11, 13, 15]
"""Odd sides of a kernel."""


class WindowConv2d(nn.Conv2d):
    """A convolution over the pixel's row and `above` rows before it, from `left` columns before to
    `right` columns after it; zero padding preserves the size of the image."""

    mask: Tensor | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        above: int = 0,
        left: int = 0,
        right: int = 0,
        mask: Tensor | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__(inputs, outputs, (above + 1, left + 1 + right), bias=bias)
        self.margins = (left, right, above, 0)
        self.register_buffer("mask", mask, persistent=False)

    def reset_parameters(self) -> None:
        """Preserve the variance, so that gates start with inputs near one."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def kernel(self) -> Tensor:  # (outputs, inputs, above + 1, left + 1 + right)
        return self.weight if self.mask is None else self.weight * self.mask

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, self.margins) if any(self.margins) else x
        return F.conv2d(padded, self.kernel(), self.bias)


def masked_conv(
    inputs: Tensor,
    outputs: Tensor,
    above: int = 0,
    left: int = 0,
    right: int = 0,
    strict: bool = False,
    bias: bool = True,
) -> WindowConv2d:
    """The masked convolution between channels of these degrees, of type A if `strict`."""
    mask = torch.ones(len(outputs), len(inputs), above + 1, left + 1 + right)
    mask[:, :, -1, left] = (outputs[:, None] - int(strict) >= inputs).to(mask.dtype)
    mask[:, :, -1, left + 1 :] = 0.0
    entry_mask = None if bool(mask.all()) else mask
    return WindowConv2d(len(inputs), len(outputs), above, left, right, entry_mask, bias)


class RasterNet(Configured, nn.Module, abc.ABC):
    """From images (B, C, H, W) and conditions to `outputs` numbers for each entry.

    The features of a pixel pass through two pointwise layers, and each entry has its own bias. A
    channel of ones distinguishes the image from its zero padding.
    """

    class Config(BaseConfig):
        tag = "pixel/"
        width: Annotated[int, Range(1)] = 64
        """Channels of a layer."""
        depth: Annotated[int, Range(1, MAX_LAYERS)] = 7
        """Layers that read beyond the pixel."""
        first: OddKernel = 7
        """Side of the first layer's kernel, which is cheap."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Share of each layer's outputs dropped in training."""
        init: Init = "auto"
        """Initial weights of the convolutions: by the function before them (he, xavier,
        orthogonal), small, torch's own, or auto: he as if it were linear."""

    config: Config

    def __init__(
        self,
        config: Config,
        shape: tuple[int, int, int],
        outputs: int,
        biases: int,
        context: int = 0,
    ) -> None:
        """biases: size of the bias that the conditions add to each layer."""
        super().__init__()
        self.config, self.shape, self.context = config, shape, context
        colours = shape[0]
        self.colours = torch.arange(config.width) * colours // config.width  # of hidden channels
        self.inputs = torch.cat(
            [torch.arange(colours), torch.tensor([-1])]
        )  # all may read the ones
        entries = torch.arange(colours).repeat_interleave(outputs)
        self.blend = masked_conv(self.colours, self.colours)
        self.out = masked_conv(self.colours, entries, bias=False)
        self.offset = nn.Parameter(torch.zeros(len(entries), *shape[1:]))
        self.given = Linear(context, config.depth * biases, bias=False) if context else None
        self.drop = Dropout(config.dropout)
        nn.init.zeros_(self.out.weight)

    def init_weights(self, before: Activation, added: Sequence[nn.Module] = ()) -> None:
        """Sample the weights of the convolutions, which read values of the function `before`, as
        the setting `init` says; those that are 0 stay so, and masked entries do not count. The
        outputs of those in `added` are added up, so that each has only its part of the
        variance."""
        how = self.config.init
        if how == "auto":
            return
        for conv in self.modules():
            if not isinstance(conv, WindowConv2d) or not bool(conv.weight.any()):
                continue
            if how == "torch":
                nn.Conv2d.reset_parameters(conv)
                continue
            alpha = GAIN_SQUARED["relu" if conv is self.blend else before]
            read = 1.0 if conv.mask is None else float(conv.mask.mean())
            share = sum(conv is layer for layer in added) / max(len(added), 1) or 1.0
            init_weight(conv, how, alpha * share / read)
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
        if self.given is not None:
            initialise(self.given, how, "identity")

    @torch.no_grad()
    def init_output_bias(self, start: Tensor) -> None:
        """Set the output bias to `start` (C, H, W, outputs)."""
        self.offset.copy_(start.permute(0, 3, 1, 2).reshape(self.offset.shape))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """(B, C, H, W) and (B, context) -> (B, C outputs, H, W), colour by colour."""
        x = F.pad(x, (0, 0, 0, 0, 0, 1), value=1.0).contiguous(memory_format=torch.channels_last)
        h = self.features(x, self.biases(context))
        return self.out(F.relu(self.blend(F.relu(h)))) + self.offset

    @abc.abstractmethod
    def features(self, x: Tensor, biases: Sequence[Tensor | None]) -> Tensor:
        """The last features of every pixel, (B, width, H, W), with one bias (B, biases) per layer
        from the conditions."""

    def biases(self, context: Tensor | None) -> Sequence[Tensor | None]:
        if self.given is None:
            return [None] * self.config.depth
        return self.given(context).chunk(self.config.depth, 1)

    @abc.abstractmethod
    def scan(self, context: Tensor) -> RasterStepper:
        """A cached pass over the rows of a context (n, context)."""

    def stepper(self, cached: bool) -> Callable[[Tensor], EntryStepper]:
        """A function that starts a sequential pass over the rows of a context (n, context)."""
        return self.scan if cached else functools.partial(FullPassRasterStepper, self)

    @torch.enable_grad()
    def support(self, row: int, column: int, colour: int = 0) -> Tensor:
        """Which entries (C, H, W) the outputs of one entry depend on: those with a gradient."""
        x = (
            torch.randn(8, *self.shape, generator=make_generator(0))
            .to(self.offset)
            .requires_grad_()
        )
        out = self(x, x.new_zeros(8, self.context)).unflatten(1, (self.shape[0], -1))
        own = out[:, colour, :, row, column]  # (8, outputs)
        weights = torch.randn(own.shape, generator=make_generator(1)).to(own)
        (slopes,) = torch.autograd.grad((own * weights).sum(), x)
        return (slopes != 0).any(0)


class FullPassRasterStepper(EntryStepper):
    """The reference: a pass of the whole network for every entry."""

    def __init__(self, network: RasterNet, context: Tensor) -> None:
        self.network, self.context = network, context
        self.x = network.offset.new_zeros(len(context), *network.shape)

    def at(self, place: int) -> tuple[int, int, int]:
        """The colour, row and column of a position."""
        colours, _, columns = self.network.shape
        return place % colours, place // colours // columns, place // colours % columns

    @torch.no_grad()
    def parameters(self, place: int) -> Tensor:
        colour, row, column = self.at(place)
        out = self.network(self.x, self.context).unflatten(1, (self.network.shape[0], -1))
        return out[:, colour, :, row, column]

    @torch.no_grad()
    def feed(self, place: int, features: Tensor) -> None:
        colour, row, column = self.at(place)
        self.x[:, colour, row, column] = features[:, 0]


class RowBuffer:
    """The last rows of a map of n images with zero padding, as a convolution reads them: (n, rows,
    margin + columns + margin, channels)."""

    def __init__(self, like: Tensor, rows: int, columns: int, margin: int) -> None:
        n, channels = like.shape
        self.whole = like.new_zeros(n, rows, columns + 2 * margin, channels)
        self.newest = self.whole[:, -1, margin : margin + columns]  # (n, columns, channels)

    def push(self, row: Tensor) -> None:
        """Add the next row, (n, columns, channels)."""
        for above, below in itertools.pairwise(self.whole.unbind(1)):
            above.copy_(below)
        self.newest.copy_(row)

    def convolve(self, kernel: Tensor) -> Tensor:
        """The convolution of the buffered rows, (n, columns, outputs)."""
        return F.conv2d(self.whole.permute(0, 3, 1, 2), kernel)[:, :, 0].transpose(1, 2)


class PixelRow:
    """One row of a map of n images, with `left` zero pixels before it."""

    def __init__(self, like: Tensor, columns: int, left: int, spans: Sequence[slice]) -> None:
        """like: (n, channels), `spans` the channels of each colour."""
        n, channels = like.shape
        whole = like.new_zeros(n, left + columns, channels)
        flat, width = whole.flatten(1), (left + 1) * channels
        self.row = whole[:, left:]  # (n, columns, channels)
        self.windows = [flat[:, x * channels : x * channels + width] for x in range(columns)]
        self.own = [[self.row[:, x, span] for x in range(columns)] for span in spans]


class RasterStepper(EntryStepper, abc.ABC):
    """The cached pass over n images; a network defines how rows start and pixels advance."""

    def __init__(self, network: RasterNet, context: Tensor) -> None:
        (colours, _, self.columns), n = network.shape, len(context)
        self.count, self.spans = colours, colour_slices(network.colours, colours)
        seen = network.offset.new_zeros(n, colours + 1)
        self.known = PixelRow(
            seen,
            self.columns,
            network.config.first // 2,
            [slice(c, c + 1) for c in range(colours)],
        )
        self.known.row[:, :, -1] = 1.0
        self.features, self.mixed = network.offset.new_zeros(2, n, network.config.width)
        self.parts = [(self.features[:, own], self.mixed[:, own]) for own in self.spans]
        self.blend = row_weights(network.blend, self.spans)
        outputs = len(network.offset) // colours
        self.out = row_weights(
            network.out, [slice(c * outputs, (c + 1) * outputs) for c in range(colours)]
        )
        self.bias = [layer_bias(network.blend)[own] for own in self.spans]
        self.offset = network.offset.detach().permute(1, 2, 0).reshape(-1, outputs)  # (D, outputs)

    @abc.abstractmethod
    def start_row(self, top: bool) -> None:
        """Add the completed row, unless the next one is the `top` row."""

    @abc.abstractmethod
    def advance(self, x: int, colour: int, features: Tensor) -> None:
        """Write the features (n, channels) of one colour of the pixel in column x."""

    @torch.no_grad()
    def parameters(self, place: int) -> Tensor:
        pixel, colour = divmod(place, self.count)
        x = pixel % self.columns
        if x == 0 and colour == 0:
            self.start_row(top=pixel == 0)
        features, mixed = self.parts[colour]
        self.advance(x, colour, features)
        features.relu_()
        torch.addmm(self.bias[colour], self.features, self.blend[colour], out=mixed).relu_()
        return torch.addmm(self.offset[place], self.mixed, self.out[colour])

    @torch.no_grad()
    def feed(self, place: int, features: Tensor) -> None:
        pixel, colour = divmod(place, self.count)
        self.known.own[colour][pixel % self.columns].copy_(features)


def colour_slices(degrees: Tensor, colours: int) -> list[slice]:
    """The slice of each colour among channels sorted by colour."""
    ends = torch.bincount(degrees, minlength=colours).cumsum(0).tolist()
    return list(map(slice, [0, *ends], ends))


def row_weights(layer: WindowConv2d, outputs: Sequence[slice | Tensor]) -> list[Tensor]:
    """The weights of a layer for the pixel's row up to the pixel, (pixels inputs, outputs), for
    each of these selections of outputs."""
    row = layer.kernel().detach()[:, :, -1, : layer.margins[0] + 1]  # (outputs, inputs, pixels)
    weight = row.permute(2, 1, 0).flatten(0, 1)
    return [weight[:, own].contiguous() for own in outputs]


def layer_bias(layer: WindowConv2d, given: Tensor | None = None) -> Tensor:
    """The bias of a layer, (outputs,), or plus that of the conditions (n, outputs),
    (n, 1, outputs)."""
    assert layer.bias is not None
    bias = layer.bias.detach()
    return bias if given is None else bias + given.detach()[:, None]
