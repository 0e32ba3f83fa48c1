r"""The U-Net: an encoder and a decoder with a skip connection at every resolution.

$d_0 = A x$, $d_l = B_l(\downarrow d_{l-1})$, $u_L = d_L$,
$u_l = B'_l([\uparrow u_{l+1}; d_l])$ (Ronneberger, Fischer & Brox 2015), where B are residual
blocks that a context scales and shifts, channel by channel (Perez et al. 2018; Dhariwal & Nichol
2021):

$h + C_2\, a((1 + s) \odot N(C_1 a(N h)) + t)$ with (s, t) a linear map of a(context).

Full resolution costs most and matters least: with `patch` above 1, A reads squares of pixels at
once and the last convolution writes them, so that no block works at full resolution (Shi et al.
2016). Levels with attention also read a token sequence, if given (Rombach et al. 2022).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..core.config import MAX_LAYERS, Configured, Range
from ..core.config import Config as BaseConfig
from ..core.errors import UsageError
from .attention.softmax import CrossAttention
from .layers.activation import Activation, activation
from .layers.conv import NonLocal, Pairing
from .layers.dropout import dropout
from .layers.init import Init, initialise
from .layers.linear import Linear
from .layers.norm import Norm, norm
from .layers.pool import CONV, Doubling, halve_by_max, unpool, upsample
from .layers.specs import Shape, format_shape

CROSS_ATTENTION_HEADS = 4
"""Most heads of the cross-attention to a sequence; fewer if they must divide the channels."""
LARGE_IMAGE_SIDE = 24
"""Side from which an image counts as large."""


class TokenSequence(NamedTuple):
    """A sequence for each row, of which the first `length` steps exist; all by default."""

    steps: Tensor  # (B, S, width)
    length: Tensor | None = None  # (B,)


class UNet(Configured, nn.Module):
    """Maps (B, channels, *sides) to maps (B, outputs, *sides) of one or two sides.

    shape is that of an event, (channels, *sides); `context` the width of the conditioning vector,
    a time or a condition, and `tokens` that of the steps of a sequence, such as a text.
    The last convolutions are initialised to 0, so the initial output is 0.
    """

    class Config(BaseConfig):
        tag = "net/unet"
        width: Annotated[int, Range(1)] = 32
        """Channels of the first level."""
        multipliers: tuple[Annotated[int, Range(1)], ...] = (1, 2, 4)
        """Channels of each level in units of `width`; each level halves the sides of the one
        before."""
        patch: Annotated[int, Range(1)] = 1
        """Side of the squares of positions that the first level reads and writes as one."""
        blocks: Annotated[int, Range(1, MAX_LAYERS)] = 2
        """Residual blocks per level, on the way down and again on the way up."""
        middle: Annotated[int, Range(0, MAX_LAYERS)] = 0
        """Additional residual blocks at the lowest level, where they are cheap."""
        attention: Annotated[int, Range(0)] = 1
        """Levels, counted from the lowest, where every position also reads all others."""
        pairing: Pairing = "embedded"
        """How positions are weighed there: softmax of dot products of the positions themselves
        (gaussian) or of linear maps of them (embedded), dot products (dot), or a sum (concat)."""
        norm: Norm = "group"
        """Normalisation before each convolution."""
        activation: Activation = "silu"
        """Function before each convolution."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Share of the numbers inside a block dropped in training."""
        doubling: Literal[Doubling, "unpool"] = "nearest"
        """How maps are doubled: nearest or linear with a convolution, or transposed; unpool puts
        values where the maxima were that max pooling took on the way down."""
        init: Init = "auto"
        """Initial weights: by the activation (he, xavier, orthogonal), small, or torch's own
        (auto, torch); the last convolution of each block is 0 at first whatever is chosen."""

        @property
        def factor(self) -> int:
            """The sides of a map must be multiples of this."""
            return self.patch * 2 ** (len(self.multipliers) - 1)

    def __init__(
        self, config: Config, shape: Shape, outputs: int, context: int = 0, tokens: int = 0
    ) -> None:
        super().__init__()
        check_divisible(shape[1:], config)
        self.config, self.context, dims = config, context, len(shape) - 1
        levels, patch = len(config.multipliers), config.patch
        widths = [config.width * times for times in config.multipliers]
        attends = [levels - level <= config.attention for level in range(levels)]
        conv = CONV[dims - 1]

        def tier(inputs: int, level: int) -> UNetLevel:
            count = config.blocks + config.middle * (level == levels - 1)
            return UNetLevel(
                config, inputs, widths[level], context, dims, count, attends[level], tokens
            )

        pairs = list(itertools.pairwise(widths))
        self.first = conv(shape[0], widths[0], 3 * patch, patch, patch)
        self.down = nn.ModuleList(tier(width, level) for level, width in enumerate(widths))
        doubling = config.doubling
        stride = 1 if doubling == "unpool" else 2  # maps are halved by pooling then
        self.shrink = nn.ModuleList(conv(above, below, 3, stride, 1) for above, below in pairs)
        self.grow = nn.ModuleList(
            conv(below, above, 3, padding=1)
            if doubling == "unpool"
            else upsample(doubling, dims, below, above)
            for above, below in pairs
        )
        self.up = nn.ModuleList(tier(2 * width, level) for level, width in enumerate(widths[:-1]))
        self.norm = norm(config.norm, widths[0], dims)
        self.act = activation(config.activation, axis=1)
        self.out = zero_init(conv(widths[0], outputs * patch**dims, 3, padding=1))
        initialise(self, config.init, config.activation)

    def forward(
        self, x: Tensor, context: Tensor | None = None, tokens: TokenSequence | None = None
    ) -> Tensor:
        check_divisible(x.shape[2:], self.config)
        width = 0 if context is None else context.shape[1]
        if width != self.context:
            raise UsageError(
                f"expected a context of {self.context} numbers per row, found "
                f"{width}; give {self.context}"
            )
        if x.ndim == 4:  # channels last: convolutions of few channels are a sixth faster
            x = x.contiguous(memory_format=torch.channels_last)
        h, bridges, maxima = self.down[0](self.first(x), context, tokens), [], []
        for shrink, tier in zip(self.shrink, self.down[1:], strict=True):
            bridges.append(h)
            if self.config.doubling == "unpool":
                h, places = halve_by_max(h)
                maxima.append(places)
            h = tier(shrink(h), context, tokens)
        for grow, tier in zip(reversed(self.grow), reversed(self.up), strict=True):
            h = unpool(grow(h), maxima.pop()) if maxima else grow(h)
            h = tier(torch.cat([h, bridges.pop()], 1), context, tokens)
        return unpatch(self.out(self.act(self.norm(h))), self.config.patch)


class UNetLevel(nn.Module):
    """The blocks of one level; with attention, each is followed by a non-local layer and by
    cross-attention to the given sequence."""

    def __init__(
        self,
        config: UNet.Config,
        inputs: int,
        width: int,
        context: int,
        dims: int,
        count: int,
        attends: bool,
        tokens: int,
    ) -> None:
        super().__init__()
        befores = [inputs] + [width] * (count - 1)
        self.blocks = nn.ModuleList(
            UNetBlock(config, before, width, context, dims) for before in befores
        )
        self.attends = nn.ModuleList(
            NonLocal(width, config.pairing, width, config.norm) if attends else nn.Identity()
            for _ in befores
        )
        self.token_attention = nn.ModuleList(
            TokenAttention(width, tokens, config.norm) for _ in befores if attends and tokens
        )

    def forward(self, x: Tensor, context: Tensor | None, tokens: TokenSequence | None) -> Tensor:
        for block, attend, look in itertools.zip_longest(
            self.blocks, self.attends, self.token_attention
        ):
            x = attend(block(x, context))
            x = x if look is None or tokens is None else look(x, tokens)
        return x


class TokenAttention(nn.Module):
    """h + W A(N h, tokens): every position reads a sequence. W is initialised to 0."""

    def __init__(self, channels: int, tokens: int, before: Norm) -> None:
        super().__init__()
        self.norm = norm(before, channels, 1)
        self.cross = CrossAttention(channels, math.gcd(channels, CROSS_ATTENTION_HEADS), tokens)
        zero_init(self.cross.leave)

    def forward(
        self, x: Tensor, tokens: TokenSequence
    ) -> Tensor:  # (B, C, *sides) -> (B, C, *sides)
        rows = self.norm(x.flatten(2)).mT  # (B, n, C)
        seen = self.cross(rows, self.cross.encode_memory(tokens.steps, tokens.length))
        return x + seen.mT.reshape(x.shape)


class UNetBlock(nn.Module):
    """h + C2 a((1 + s) N(C1 a(N h)) + t), where s and t come from the context."""

    def __init__(
        self, config: UNet.Config, inputs: int, width: int, context: int, dims: int
    ) -> None:
        super().__init__()
        conv = CONV[dims - 1]
        self.act = activation(config.activation, axis=1)
        self.first = nn.Sequential(
            norm(config.norm, inputs, dims), self.act, conv(inputs, width, 3, padding=1)
        )
        self.norm = norm(config.norm, width, dims)
        self.film = Linear(context, 2 * width) if context else None
        self.second = nn.Sequential(
            self.act, dropout(config.dropout), zero_init(conv(width, width, 3, padding=1))
        )
        self.around = nn.Identity() if inputs == width else conv(inputs, width, 1)

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        h = self.norm(self.first(x))
        if self.film is not None and context is not None:
            film = self.film(self.act(context))
            scale, shift = film.reshape(*film.shape, *[1] * (x.ndim - 2)).chunk(2, 1)
            h = torch.addcmul(shift, h, 1 + scale)
        return self.around(x) + self.second(h)


def zero_init(layer: nn.Module) -> nn.Module:
    """The layer with all its parameters set to 0."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def unpatch(maps: Tensor, patch: int) -> Tensor:
    """(B, C patch^d, *sides) -> (B, C, *patch sides), with each position becoming a square."""
    if patch == 1:
        return maps
    dims, sides = maps.ndim - 2, maps.shape[2:]
    cells = maps.unflatten(1, (-1, *[patch] * dims))  # (B, C, *patches, *sides)
    order = [place for d in range(2, 2 + dims) for place in (d + dims, d)]
    return cells.permute(0, 1, *order).reshape(len(maps), -1, *(patch * side for side in sides))


ConfigT = TypeVar("ConfigT", bound=UNet.Config)


def with_levels_for(config: ConfigT, sides: Sequence[int]) -> ConfigT:
    """The config with levels for images of these sides. Large images are read in 2x2 patches,
    which takes a fourth of the work, and maps are halved while a side is above 7."""
    side, levels = min(sides), 1
    if side < LARGE_IMAGE_SIDE:
        return replace(config, width=32, multipliers=(1, 2), blocks=1)
    while side >= 28 and levels < 4:
        side, levels = side // 2, levels + 1
    return replace(
        config,
        width=32,
        multipliers=(1, 3, 3, 4)[:levels],
        patch=2,
        blocks=1,
        middle=2,
        doubling="transposed",
    )


def check_divisible(sides: Sequence[int], config: UNet.Config) -> None:
    """UsageError unless the sides can be cut into patches and halved between levels."""
    levels, patch, factor = len(config.multipliers), config.patch, config.factor
    if len(sides) not in (1, 2):
        raise UsageError(f"a U-Net needs maps of 1 or 2 sides, found {len(sides)}; reshape them")
    if levels < 1:
        raise UsageError("expected at least one multiplier, found none; give multipliers=1,2,4")
    if any(side % factor for side in sides):
        padded = format_shape([-(-side // factor) * factor for side in sides])
        raise UsageError(
            f"a U-Net of {levels} levels{f' and patch={patch}' * (patch > 1)} needs "
            f"sides that are multiples of {factor}, found {format_shape(sides)}; "
            f"{divisibility_hint(sides, patch)}, or pad to {padded}"
        )


def divisibility_hint(sides: Sequence[int], patch: int) -> str:
    if any(side % patch for side in sides):
        return "give patch=1"
    most = min((side // patch & -(side // patch)).bit_length() for side in sides)
    return f"give at most {most} multipliers"
