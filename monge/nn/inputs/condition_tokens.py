"""Conditions as token sequences for encoders.

Text has an embedding per symbol; sound is read as log-mel frames, an image by convolutions as the
cells of a grid, each with a learned position vector; a series (T,) or (T, C) as a linear map of
each standardised step; a label is a sequence of one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.space import Space
from ..layers.linear import Linear
from .features import Features
from .sequence import one_step
from .sound import SoundFrames

MAX_CELLS_PER_SIDE = 8
"""Most cells along the longer side of an image."""
GROUP = 8
"""Channels that are normalised together."""


class ConditionTokens(nn.Module):
    """A condition (B, *shape) as (B, S, width), with the length of each row."""

    table: nn.Parameter | None
    reader: SoundFrames | ImageGrid | StepMap

    def __init__(self, space: Space, width: int, shared: bool = False, mask: float = 0.0) -> None:
        """shared: whether the embeddings of symbols are passed at each call; mask: the share of
        the bands and frames of sound that is masked in training."""
        super().__init__()
        self.space, self.table = space, None
        if space.kind == "tokens":
            self.table = None if shared else nn.Parameter(torch.randn(space.size, width))
        elif space.rate:
            self.reader = SoundFrames(space, width, mask)
        elif space.is_image:
            self.reader = ImageGrid(space, width)
        else:
            self.reader = StepMap(space, width)

    @property
    def max_steps(self) -> int:
        """Steps of the longest row."""
        return self.space.shape[0] if self.space.kind == "tokens" else self.reader.max_steps

    def forward(self, batch: Batch, table: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if self.space.kind != "tokens":
            return self.reader(batch)
        known = self.table if table is None else table
        assert known is not None, "symbols have embeddings, own or shared"
        return F.embedding(self.symbols(batch), known), batch.length

    def symbols(self, batch: Batch) -> Tensor:
        """Codes (B, T), 0 beyond the length of a row."""
        if batch.length is None:
            return batch.x.long()
        beyond = torch.arange(batch.x.shape[1], device=batch.x.device) >= batch.length[:, None]
        return batch.x.long().masked_fill(beyond, 0)


class StepMap(nn.Module):
    """A linear map of each step of a series, or of one value."""

    def __init__(self, space: Space, width: int) -> None:
        super().__init__()
        self.shape = space.shape
        self.features = Features(one_step(space) if space.shape else space)
        self.lift = Linear(self.features.width, width)

    @property
    def max_steps(self) -> int:
        return self.shape[0] if self.shape else 1

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        x = batch.x if self.shape else batch.x[:, None]
        steps = self.features(Batch(x.flatten(0, 1))).unflatten(0, x.shape[:2])  # (B, T, F)
        return self.lift(steps), batch.length


class ImageGrid(nn.Module):
    """An image as the cells of a grid, (B, S, width): convolutions, of which some halve the
    resolution until a side has at most 8 cells."""

    def __init__(self, space: Space, width: int) -> None:
        super().__init__()
        self.features = Features(space)
        (before, height, wide), here = space.shape, max(GROUP, width // 4 // GROUP * GROUP)
        layers: list[nn.Module] = [*convolution(before, here, 1)]
        while max(height, wide) > MAX_CELLS_PER_SIDE:
            after = max(here, min(2 * here, width // GROUP * GROUP))
            layers += [*convolution(here, after, 2), *convolution(after, after, 1)]
            here, height, wide = after, -(-height // 2), -(-wide // 2)
        self.layers = nn.Sequential(*layers, nn.Conv2d(here, width, 1))
        self.place = nn.Parameter(0.5 * torch.randn(height * wide, width))

    @property
    def max_steps(self) -> int:
        return len(self.place)

    def forward(self, batch: Batch) -> tuple[Tensor, None]:
        x = self.features(batch).reshape(batch.x.shape)
        return self.layers(x).flatten(2).mT + self.place, None


def convolution(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, 3, stride, 1),
        nn.GroupNorm(outputs // GROUP, outputs),
        nn.GELU(),
    )
