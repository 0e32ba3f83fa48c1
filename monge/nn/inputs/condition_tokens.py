"""Conditions as token sequences for encoders.

Text has an embedding per symbol; a series (T,) or (T, C) a linear map of each standardised step;
an image a linear map of each patch, with a learned position vector; a label is a sequence of one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.space import Space
from .features import Features
from .sequence import one_step

MAX_PATCHES_PER_SIDE = 8
"""Most patches along the longer side of an image."""


class ConditionTokens(nn.Module):
    """A condition (B, *shape) as (B, S, width), with the length of each row."""

    table: nn.Parameter | None

    def __init__(self, space: Space, width: int, shared: bool = False) -> None:
        """shared: whether the embeddings of symbols are passed at each call."""
        super().__init__()
        self.space, self.width, self.table = space, width, None
        self.patch = (
            -(-max(space.shape[1:], default=1) // MAX_PATCHES_PER_SIDE) if space.is_image else 0
        )
        if space.kind == "tokens":
            self.table = None if shared else nn.Parameter(torch.randn(space.size, width))
            return
        self.features = Features(space if space.is_image or not space.shape else one_step(space))
        entries = self.features.width
        if space.is_image:
            entries = space.shape[0] * self.patch**2
            self.place = nn.Parameter(0.5 * torch.randn(self.patches, width))
        self.lift = nn.Linear(entries, width)

    @property
    def patches(self) -> int:
        height, width = (-(-side // self.patch) for side in self.space.shape[1:])
        return height * width

    @property
    def max_steps(self) -> int:
        """Steps of the longest row."""
        if self.space.is_image:
            return self.patches
        return self.space.shape[0] if self.space.shape else 1

    def forward(self, batch: Batch, table: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if self.space.kind == "tokens":
            known = self.table if table is None else table
            assert known is not None, "symbols have embeddings, own or shared"
            return F.embedding(self.symbols(batch), known), batch.length
        if self.space.is_image:
            return self.lift(self.cut(batch)) + self.place, None
        x = batch.x if self.space.shape else batch.x[:, None]
        steps = self.features(Batch(x.flatten(0, 1))).unflatten(0, x.shape[:2])  # (B, T, F)
        return self.lift(steps), batch.length

    def symbols(self, batch: Batch) -> Tensor:
        """Codes (B, T), 0 beyond the length of a row."""
        if batch.length is None:
            return batch.x.long()
        beyond = torch.arange(batch.x.shape[1], device=batch.x.device) >= batch.length[:, None]
        return batch.x.long().masked_fill(beyond, 0)

    def cut(self, batch: Batch) -> Tensor:
        """An image as patches of standardised pixels, (B, S, C p p)."""
        x = self.features(batch).reshape(batch.x.shape)
        height, width = (-side % self.patch for side in x.shape[2:])
        return F.unfold(F.pad(x, (0, width, 0, height)), self.patch, stride=self.patch).mT
