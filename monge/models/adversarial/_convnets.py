"""Convolutional networks of image GANs, which halve and double feature maps of any size.

A side s becomes ceil(s / 2): a kernel of 4 where it is even, of 3 where it is odd, with stride 2
and one pixel of margin; the transposed convolution of the same kernel takes it back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import UsageError
from ...core.space import Space
from ...nn.inputs.features import Conditions
from ...nn.layers.activation import Activation
from ...nn.layers.init import Init, initialise

Sides = tuple[int, ...]
Net = TypeVar("Net", bound=nn.Module)
INIT_STD = 0.02
"""Standard deviation of initial weights (Radford, Metz & Chintala 2016)."""


def resolutions(sides: Sequence[int], depth: int, field: str = "depth") -> list[Sides]:
    """The sides of the maps from full to lowest resolution, depth + 1 of them."""
    most = (min(sides) - 1).bit_length()
    if depth > most:
        shown = "x".join(map(str, sides))
        raise UsageError(
            f"{field}={depth} halves images of {shown} to less than a pixel; set "
            f"{field}={most} or less, or enlarge the images with +resize64"
        )
    return [tuple(-(-side // 2**level) for side in sides) for level in range(depth + 1)]


def depth_for(sides: Sequence[int]) -> int:
    """Number of halvings: at least two where possible, down to 4 pixels or less."""
    shorter = min(sides)
    return min(max(2, (-(-shorter // 4) - 1).bit_length()), (shorter - 1).bit_length())


def kernel(sides: Sides) -> tuple[int, int]:
    """Of the convolution that halves these sides."""
    height, width = (4 - side % 2 for side in sides)
    return height, width


def halve(inputs: int, outputs: int, sides: Sides, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel(sides), 2, 1, bias=bias)


def double(inputs: int, outputs: int, sides: Sides, bias: bool = True) -> nn.ConvTranspose2d:
    """Maps of half the sides to maps of these."""
    return nn.ConvTranspose2d(inputs, outputs, kernel(sides), 2, 1, bias=bias)


def upsampler(
    latent: int,
    channels: int,
    sides: Sequence[int],
    width: int,
    depth: int,
    bounded: bool,
    init: Init = "auto",
) -> nn.Sequential:
    """(B, latent, 1, 1) to (B, channels, *sides): transposed convolutions alone, batch norm and
    relu after all but the last, which ends in tanh for bounded values."""
    steps = resolutions(sides, depth)
    widths = [channels, *(width * 2**level for level in range(depth))]
    start = nn.ConvTranspose2d(latent, widths[-1], steps[-1], bias=False)  # type: ignore[arg-type]
    layers: list[nn.Module] = [start]
    for level in reversed(range(depth)):
        above = widths[level + 1]
        layers += [
            nn.BatchNorm2d(above),
            nn.ReLU(inplace=True),
            double(above, widths[level], steps[level], bias=not level),
        ]
    net = nn.Sequential(*layers, *([nn.Tanh()] if bounded else []))
    return init_weights(net, init, "relu")


def downsampler(
    channels: int,
    sides: Sequence[int],
    width: int,
    depth: int,
    init: Init = "auto",
    outputs: int = 1,
) -> nn.Sequential:
    """(B, channels, *sides) to (B, outputs, 1, 1): strided convolutions alone, leaky relu of slope
    0.2 after all but the last, batch norm before it but at the input."""
    steps = resolutions(sides, depth)
    widths = [channels, *(width * 2**level for level in range(depth))]
    layers: list[nn.Module] = []
    for level in range(depth):
        layers.append(halve(widths[level], widths[level + 1], steps[level], bias=not level))
        layers += [nn.BatchNorm2d(widths[level + 1])] if level else []
        layers.append(nn.LeakyReLU(0.2, inplace=True))
    last = nn.Conv2d(widths[-1], outputs, steps[-1])  # type: ignore[arg-type]
    return init_weights(nn.Sequential(*layers, last), init, "leaky")


def critic_convnet(
    channels: int, sides: Sequence[int], width: int, depth: int, init: Init = "auto"
) -> tuple[nn.Sequential, list[nn.Conv2d]]:
    """(B, channels, *sides) to (B, 1, 1, 1) by strided convolutions and leaky relu alone, and its
    convolutions: batch norm would let the score of a row depend on others."""
    steps = resolutions(sides, depth)
    widths = [channels, *(width * 2**level for level in range(depth))]
    convs = [halve(widths[level], widths[level + 1], steps[level]) for level in range(depth)]
    convs.append(nn.Conv2d(widths[-1], 1, steps[-1]))  # type: ignore[arg-type]
    between = [layer for conv in convs[:-1] for layer in (conv, nn.LeakyReLU(0.2))]
    net = nn.Sequential(*between, convs[-1])
    initialise(net, init, "leaky")
    return net, convs


def patch_discriminator(
    channels: int, width: int, depth: int, sides: Sequence[int], init: Init = "auto"
) -> nn.Sequential:
    """(B, channels, *sides) to logits (B, 1, h, w), one of each patch: `depth` halvings, then two
    convolutions of stride 1 (Isola et al. 2017), normalised a row and channel at a time."""
    steps, layers, inputs = resolutions(sides, depth, "patch"), list[nn.Module](), channels
    for level in range(depth):
        outputs = width * 2**level
        layers.append(halve(inputs, outputs, steps[level]))
        layers += [nn.GroupNorm(1, outputs)] if level else []
        layers.append(nn.LeakyReLU(0.2, inplace=True))
        inputs = outputs
    layers += [
        nn.Conv2d(inputs, 2 * inputs, 3, padding=1),
        nn.GroupNorm(1, 2 * inputs),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(2 * inputs, 1, 3, padding=1),
    ]
    return init_weights(nn.Sequential(*layers), init, "leaky")


@torch.no_grad()
def init_weights(net: Net, init: Init, activation: Activation) -> Net:
    """As `init` says; auto is N(0, 0.02^2), and N(1, 0.02^2) in norms, with biases 0."""
    if init != "auto":
        initialise(net, init, activation)
        return net
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.BatchNorm2d | nn.GroupNorm):
            centre = 0.0 if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) else 1.0
            layer.weight.normal_(centre, INIT_STD)
            if layer.bias is not None:
                layer.bias.zero_()
    return net


def broken_rules(
    generator: Iterable[nn.Module], discriminator: Iterable[nn.Module], bounded: bool = True
) -> list[str]:
    """Which of the rules of Radford, Metz & Chintala (2016) two stacks of layers break."""
    maker, rival = list(generator), list(discriminator)
    convs = (nn.Conv2d, nn.ConvTranspose2d)
    spatial = [
        layer
        for layer in maker + rival
        if any(True for _ in layer.parameters()) and not isinstance(layer, nn.BatchNorm2d)
    ]
    found = {
        "both networks are convolutions, without pooling or dense layers": all(
            isinstance(layer, convs) for layer in spatial
        )
        and not any(isinstance(layer, POOLS) for layer in maker + rival),
        "the generator grows by transposed convolutions": all(
            isinstance(layer, nn.ConvTranspose2d) for layer in maker if isinstance(layer, convs)
        ),
        "batch norm follows every convolution but the generator's last and the discriminator's "
        "first and last": followed_by_norm(maker)
        == [True] * (len(followed_by_norm(maker)) - 1) + [False]
        and followed_by_norm(rival)
        == [False, *[True] * (len(followed_by_norm(rival)) - 2), False],
        "relu stands inside the generator and tanh at its end": not any(
            isinstance(layer, nn.LeakyReLU) for layer in maker
        )
        and (isinstance(maker[-1], nn.Tanh) or not bounded),
        "leaky relu of slope 0.2 stands inside the discriminator": all(
            isinstance(layer, nn.LeakyReLU) and layer.negative_slope == 0.2
            for layer in rival
            if not isinstance(layer, (*convs, nn.BatchNorm2d))
        ),
    }
    return [rule for rule, holds in found.items() if not holds]


POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample)


def followed_by_norm(stack: Sequence[nn.Module]) -> list[bool]:
    """Of each convolution of a stack, whether batch norm comes next."""
    after = [*stack[1:], nn.Identity()]
    return [
        isinstance(following, nn.BatchNorm2d)
        for layer, following in zip(stack, after, strict=True)
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)
    ]


class ConditionMaps:
    """Conditions as maps beside an image: images at its size, other features constant."""

    def __init__(self, conditions: Conditions, space: Space) -> None:
        self.sides = tuple(space.shape[1:])
        parts = [
            (features.width, part.shape if part.is_image else None)
            for features, part in zip(conditions.parts, space.given.values(), strict=True)
        ]
        self.widths = [width for width, _ in parts]
        self.shapes = [
            shape if shape and width == math.prod(shape) else None for width, shape in parts
        ]
        self.channels = sum(
            shape[0] if shape else width  # type: ignore[misc]
            for width, shape in zip(self.widths, self.shapes, strict=True)
        )

    def beside(self, image: Tensor, context: Tensor) -> Tensor:
        """The image (B, C, *sides) and the maps of the context (B, features), concatenated."""
        if not self.channels:
            return image
        parts = zip(context.split(self.widths, 1), self.shapes, strict=True)
        return torch.cat([image, *(self.maps(part, shape) for part, shape in parts)], 1)

    def maps(self, part: Tensor, shape: Sequence[int] | None) -> Tensor:
        if shape is None:
            return part[:, :, None, None].expand(-1, -1, *self.sides)
        return F.interpolate(part.unflatten(1, tuple(shape)), self.sides, mode="nearest")
