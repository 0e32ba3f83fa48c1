r"""Differentiable augmentation of what a discriminator sees (Zhao et al. 2020).

Few pictures are soon known by heart: the discriminator then rejects whatever else the generator
makes. Random changes T of real and of generated pictures alike, also of those by which the
generator learns, make it distinguish T(x) from T(G(z)). Where the distributions of x and G(z)
agree, those of T(x) and T(G(z)) do; changes of real pictures alone (`data.augment`) are learned by
the generator. Changes are differentiable in the picture, so that gradients reach the generator.
Values are in the coordinates of networks: 0 is the middle of levels or the mean of reals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Augmentation = Literal["colour", "translation", "cutout"]
SHIFT_SHARE = 1 / 8
"""Largest shift, as a share of the side."""
CUTOUT_SHARE = 1 / 2
"""Side of the square that is cut out, as a share of that of the picture."""


def colour(x: Tensor) -> Tensor:
    """Brightness changed by up to 1/2, saturation by a factor of up to 2, contrast by 1/2 to
    3/2; x: (B, C, H, W)."""
    brightness, saturation, contrast = x.new_empty(3, len(x), 1, 1, 1).uniform_()
    x = x + brightness - 0.5
    grey = x.mean(1, keepdim=True)
    x = grey + 2 * saturation * (x - grey)
    middle = x.mean((1, 2, 3), keepdim=True)
    return middle + (contrast + 0.5) * (x - middle)


def translation(x: Tensor) -> Tensor:
    """A shift by whole pixels, up to an eighth of each side; zeros move in."""
    for axis in (2, 3):
        side = x.shape[axis]
        most = int(side * SHIFT_SHARE + 0.5)
        shift = torch.randint(-most, most + 1, (len(x), 1), device=x.device)
        at = torch.arange(side, device=x.device) + most + shift  # (B, side)
        padded = F.pad(x, [most, most] if axis == 3 else [0, 0, most, most])
        index = at[:, None, :, None] if axis == 2 else at[:, None, None, :]
        shape = list(x.shape)
        x = padded.gather(axis, index.expand(shape))
    return x


def cutout(x: Tensor) -> Tensor:
    """A square of half the side set to zero, its middle anywhere in the picture."""
    outside = []
    for side in x.shape[2:]:
        size = int(side * CUTOUT_SHARE + 0.5)
        start = torch.randint(side + 1 - size % 2, (len(x), 1), device=x.device) - size // 2
        at = torch.arange(side, device=x.device)
        outside.append((at < start) | (at >= start + size))  # (B, side)
    rows, columns = outside
    return x * (rows[:, None, :, None] | columns[:, None, None, :])


CHANGES: dict[Augmentation, Callable[[Tensor], Tensor]] = {
    "colour": colour,
    "translation": translation,
    "cutout": cutout,
}


def augment(x: Tensor, names: Sequence[Augmentation], probability: float) -> Tensor:
    """Pictures (B, C, H, W), each changed in each of these ways with this probability."""
    for name in names:
        chosen = torch.rand(len(x), 1, 1, 1, device=x.device) < probability
        x = torch.where(chosen, CHANGES[name](x), x)
    return x
