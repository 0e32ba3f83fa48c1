r"""Normalisation layers for vectors (B, C) and maps (B, C, *sides).

$y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$ with a learned gamma and beta for each
channel; mu and the biased variance sigma^2 are taken

batch     over the rows and sides of a channel; after training, their running averages
layer     over the channels and sides of a row (Ba, Kiros & Hinton 2016)
group     over the sides and a share of the channels of a row (Wu & He 2018)
instance  over the sides of a channel of a row (Ulyanov, Vedaldi & Lempitsky 2016)

A norm that centres each channel cancels a bias before it, which is then left out (Ioffe & Szegedy
2015).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from ...core.errors import UsageError

Norm = Literal["batch", "layer", "group", "instance", "none"]
MAX_GROUPS, MIN_GROUP_CHANNELS = 8, 4
"""Most groups of channels, and fewest channels of a group."""
BATCH = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def norm(name: Norm, channels: int, dims: int = 0) -> nn.Module:
    """The layer with this name for maps of `dims` sides; 0 means vectors."""
    if name == "batch":
        layer = BATCH[dims](channels)
        layer.register_forward_pre_hook(check_rows)
        return layer
    if name == "group":
        return nn.GroupNorm(group_count(channels), channels)
    if name == "layer":
        return nn.GroupNorm(1, channels) if dims else nn.LayerNorm(channels)
    if name == "instance":
        check_sides(dims)
        return INSTANCE[dims - 1](channels, affine=True)
    return nn.Identity()


def group_count(channels: int) -> int:
    fits = range(2, min(MAX_GROUPS, channels // MIN_GROUP_CHANNELS) + 1)
    return max((count for count in fits if channels % count == 0), default=1)


def centres_channels(name: Norm) -> bool:
    """Whether it centres every channel, so that a bias before it has no effect."""
    return name in ("batch", "instance")


def check_rows(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if layer.training and len(inputs[0]) == 1:
        raise UsageError(
            "norm=batch needs at least 2 rows per training batch, found 1; "
            "choose norm=group, or a larger train.batch_size"
        )


def check_sides(positions: int) -> None:
    if positions < 1:
        raise UsageError(
            "norm=instance needs maps, found vectors; choose norm=layer or norm=batch"
        )
