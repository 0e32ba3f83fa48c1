r"""Generators of images: networks from noise and conditions to (B, C, H, W).

transposed  noise and conditions are one pixel, which transposed convolutions enlarge (dcgan).
style       A mapping network turns noise and conditions into a style w. The picture starts as a
            learned constant; at each resolution a convolution is modulated by w, noise is added to
            its maps, and an image is added to the enlarged one so far (StyleGAN2: Karras et al.
            2020). Modulation scales the weights of each input map by $s = 1 + A w$, demodulation
            divides those of each output map by their norm,
            $w'_{oik} = s_i w_{oik} / (\sum_{ik} (s_i w_{oik})^2)^{1/2}$, so that maps of unit
            variance stay so whatever the style. Scaling the maps instead of the weights gives the
            same result by one convolution for all rows. The noise of maps is a part of z.

Truncation $\psi$ cuts the noise z of transposed at $\pm 2 \psi$ (`models._generator`); of style
$w' = \bar w + \psi (w - \bar w)$ with the mean style $\bar w$ given the conditions (Karras,
Laine & Aila 2019).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import Configured
from ...core.rng import make_generator
from ...nn.layers.init import Init
from ...nn.layers.linear import Linear
from ...nn.mlp import MLP
from .._generator import truncate
from ._convnets import init_weights, resolutions, upsampler

MEAN_ROWS = 1000
"""Noise vectors of which the mean style is computed."""
NORM_EPSILON = 1e-8
"""Added to squared norms that are divided by."""


class ImageGenerator(Configured, nn.Module, abc.ABC):
    """A network from noise (B, latent + noise) and conditions (B, context) to images."""

    class Config(BaseConfig):
        """The choices of one network."""

        tag = "image_generator/"

    noise = 0
    """Numbers of z beside the latent ones."""

    @abc.abstractmethod
    def forward(self, z: Tensor, context: Tensor, truncation: float = 1.0) -> Tensor:
        """Images (B, C, H, W)."""


class TransposedGenerator(ImageGenerator, nn.Sequential):
    """Transposed convolutions alone (Radford, Metz & Chintala 2016)."""

    class Config(ImageGenerator.Config):
        tag = "image_generator/transposed"

    def __init__(
        self,
        config: Config,
        latent: int,
        context: int,
        shape: Sequence[int],
        width: int,
        depth: int,
        bounded: bool,
        init: Init,
    ) -> None:
        channels, *sides = shape
        layers = upsampler(latent + context, channels, sides, width, depth, bounded, init)
        nn.Sequential.__init__(self, *layers)

    def forward(  # type: ignore[override]
        self, z: Tensor, context: Tensor, truncation: float = 1.0
    ) -> Tensor:
        seed = torch.cat([truncate(z, truncation), context], 1)  # (B, latent + C)
        return nn.Sequential.forward(self, seed[:, :, None, None])


class ModulatedConv(nn.Conv2d):
    """A convolution whose input maps are scaled by a style, and whose output maps by the inverse
    norm of the weights that result."""

    def __init__(self, style: int, inputs: int, outputs: int, kernel: int, demodulate: bool):
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        self.scale = Linear(style, inputs, bias=False)
        self.demodulate = demodulate

    def scales(self, style: Tensor) -> Tensor:
        """The factor of each input map, (B, inputs)."""
        return 1 + self.scale(style)

    def norms(self, scales: Tensor) -> Tensor:
        """The norm of the modulated weights of each output map, (B, outputs)."""
        squares = self.weight.square().sum((2, 3))  # (outputs, inputs)
        return (scales.square() @ squares.T + NORM_EPSILON).sqrt()

    def modulated(self, x: Tensor, style: Tensor) -> Tensor:
        scales = self.scales(style)
        y = F.conv2d(x * scales[:, :, None, None], self.weight, padding=self.padding)
        return y / self.norms(scales)[:, :, None, None] if self.demodulate else y

    def forward(self, x: Tensor, style: Tensor) -> Tensor:  # type: ignore[override]
        y = self.modulated(x, style)
        return y if self.bias is None else y + self.bias[:, None, None]


class StyleGenerator(ImageGenerator):
    """A learned constant, enlarged by convolutions that are modulated by a style."""

    class Config(ImageGenerator.Config):
        tag = "image_generator/style"
        mapping: MLP.Config = MLP.Config(width=64, depth=2, activation="leaky", init="he")
        """Mapping network from noise and conditions to the style, which has its width."""

    def __init__(
        self,
        config: Config,
        latent: int,
        context: int,
        shape: Sequence[int],
        width: int,
        depth: int,
        bounded: bool,
        init: Init,
    ) -> None:
        super().__init__()
        channels, *sides = shape
        style = config.mapping.width
        self.latent, self.bounded = latent, bounded
        self.mapping: MLP = config.mapping.build(latent + context, style)
        self.sides = resolutions(sides, depth)[::-1]  # lowest first
        widths = [max(1, width // 2), *(width * 2**level for level in range(depth))][::-1]
        self.sizes = [height * breadth for height, breadth in self.sides]
        self.noise = sum(self.sizes)
        self.constant = nn.Parameter(torch.randn(widths[0], *self.sides[0]))
        pairs = list(zip([widths[0], *widths], widths, strict=False))
        self.convs = nn.ModuleList(ModulatedConv(style, *pair, 3, True) for pair in pairs)
        self.images = nn.ModuleList(
            ModulatedConv(style, own, channels, 1, False) for own in widths
        )
        self.strength = nn.Parameter(torch.zeros(len(widths)))  # of the noise of each resolution
        init_weights(self.convs, init, "leaky")
        init_weights(self.images, init, "identity")

    def forward(self, z: Tensor, context: Tensor, truncation: float = 1.0) -> Tensor:
        style = self.style(z[:, : self.latent], context)  # (B, style)
        if truncation < 1:
            style = torch.lerp(self.mean_style(context), style, truncation)
        noises = z[:, self.latent :].split(self.sizes, 1)
        x, image = self.constant.expand(len(z), -1, -1, -1), None
        levels = zip(self.sides, noises, self.strength, self.convs, self.images, strict=True)
        for sides, noise, strength, conv, to_image in levels:
            x = conv(enlarge(x, sides), style) + strength * noise.unflatten(1, (1, *sides))
            x = F.leaky_relu(x, 0.2)
            own = to_image(x, style)
            image = own if image is None else enlarge(image, sides) + own
        assert image is not None
        return torch.tanh(image) if self.bounded else image

    def style(self, z: Tensor, context: Tensor) -> Tensor:
        z = z * (z.square().mean(1, keepdim=True) + NORM_EPSILON).rsqrt()
        return self.mapping(torch.cat([z, context], 1))

    def mean_style(self, context: Tensor) -> Tensor:
        """The mean style of each row's conditions, (B, style)."""
        if not context.shape[1]:
            return self.mean_of(context[:1]).expand(len(context), -1)
        rows, place = context.unique(dim=0, return_inverse=True)
        return torch.cat([self.mean_of(row) for row in rows.split(1)])[place]

    def mean_of(self, row: Tensor) -> Tensor:
        """The mean style given conditions (1, C), (1, style)."""
        z = torch.randn(MEAN_ROWS, self.latent, generator=make_generator(0)).to(row)
        return self.style(z, row.expand(MEAN_ROWS, -1)).mean(0, keepdim=True)


def enlarge(x: Tensor, sides: Sequence[int]) -> Tensor:
    """Feature maps (B, C, h, w) at these sides."""
    if x.shape[2:] == tuple(sides):
        return x
    return F.interpolate(x, tuple(sides), mode="bilinear")
