"""Networks that map an image to an image, for images of any size."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ...core.space import Space
from ...nn.unet import UNet


class ImageTranslator(nn.Module):
    """A U-Net over an image that is padded to sides it can halve, and cropped again."""

    def __init__(
        self, config: UNet.Config, inputs: int, outputs: int, sides: tuple[int, ...]
    ) -> None:
        super().__init__()
        step = 2 ** (len(config.multipliers) - 1)
        self.sides = sides
        self.missing = tuple(-side % step for side in sides)
        padded = [side + more for side, more in zip(sides, self.missing, strict=True)]
        self.net: UNet = config.build((inputs, *padded), outputs)

    def forward(self, x: Tensor) -> Tensor:  # (B, inputs, *sides) -> (B, outputs, *sides)
        below, right = self.missing
        if below or right:
            x = F.pad(x, (0, right, 0, below), mode="replicate")
        return self.net(x)[..., : self.sides[0], : self.sides[1]]


def unet_config(space: Space, width: int) -> UNet.Config:
    """A U-Net for images of this size: down to about 4 pixels, four levels at most."""
    levels = min(4, max(1, (min(space.shape[1:]) // 4).bit_length()))
    return UNet.Config(
        width=width,
        multipliers=tuple(min(2**level, 4) for level in range(levels)),
        blocks=1,
        attention=0,
    )


def unsupported_pair(name: str, space: Space) -> str | None:
    """Why the data are not pairs of images of one size; None if they are."""
    images = [part for part in space.given.values() if part.is_image]
    if not space.is_image or len(images) != 1 or len(space.given) != 1:
        found = ", ".join(map(str, space.given.values())) or "nothing"
        return (
            f"{name} expected an image given one image, found {space} given {found}; use pairs "
            "such as digits+edges, a folder with a/ and b/, or (for cyclegan) A~B"
        )
    if images[0].shape[1:] != space.shape[1:]:
        return (
            f"{name} expected source and target images of one size, found "
            f"{size_text(images[0])} and {size_text(space)}; resize both with +resize64"
        )
    return None


def size_text(space: Space) -> str:
    return "x".join(map(str, space.shape[1:]))
