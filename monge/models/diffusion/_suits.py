"""Networks and recipes of diffusion laws that suit data of a kind and size."""

from __future__ import annotations

from ...core.recipe import Recipe
from ...core.space import Space
from ...nn.unet import suited
from ._alone import LEVELS
from ._base import Aim
from ._nets import MLP, TimeNet, UNet

SMALL = 5000
"""Rows below which a network is kept small."""


def network(space: Space, waves: int = 0) -> TimeNet.Config:
    """A U-Net for pictures and long sequences, a perceptron for the rest."""
    if space.is_picture and min(space.shape[1:]) >= 6:
        dropout = 0.1 if 0 < space.rows < SMALL else 0.0
        return suited(UNet.Config(attention=1, dropout=dropout, waves=waves), space.shape[1:])
    if len(space.shape) == 2 and space.shape[0] >= 16:
        return UNet.Config(width=32, multipliers=(1, 2, 2), blocks=1, attention=1, waves=waves)
    few = 0 < space.rows < 2000
    if space.dims <= 4:
        waves = waves or (0 if few else 3)
        return MLP.Config(width=128, depth=3, waves=waves)
    return MLP.Config(width=256 if few else 512, depth=3, waves=waves)


def aim(space: Space) -> Aim:
    """The rest of x where levels are few enough to be gone through, else its velocity."""
    return "rest" if space.kind == "binary" or 0 < space.size <= LEVELS else "velocity"


def recipe(space: Space) -> Recipe:
    """Averages of weights reach back a ninth of the steps, ten thousand at most."""
    few = 0 < space.rows < SMALL
    pictures = space.is_picture or len(space.shape) == 2
    if not pictures and space.dims <= 4:
        return Recipe(rate=2e-3, batch=512, average=0.9999, check=500, clip=1.0)
    return Recipe(rate=1e-3, batch=64 if pictures or few else 256,
                  average=0.9999, check=300 if few else 2000, clip=1.0)
