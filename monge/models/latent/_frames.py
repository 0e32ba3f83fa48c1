"""Events as steps that stand for themselves: frames of a series, pixels of a picture."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ...core.abilities import Given
from ...core.batch import Batch, conform
from ...core.config import Range
from ...core.model import Model
from ...core.space import Space
from ...nn.context import Context
from ...nn.embed import Features
from ...prob.heads import Head, LevelsLaw
from .._order import Layout, blank, check_codes, check_whole, frame, frames
from ._codes import Frames


class Framed(Model):
    """A law of sequences by their steps: what is read of each, its law, what it is given."""

    events = {"real", "binary", "levels"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}
    lengths = True

    class Config(Model.Config):
        components: Annotated[int, Range(1)] = 3
        """Parts of the mixture that each real or finely levelled entry follows."""
        levels: LevelsLaw = "auto"
        """Law of levels: a probability each, a mixture of logistics, or as their number asks."""

    config: Config
    typical: Tensor
    blank: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.name, self.layout = type(self).__name__.lower(), Layout(space)
        step = frame(space)
        self.features, self.context = Features(step), Context(space, 1)
        self.head = Head(step, config.components, config.levels)
        self.register_buffer("typical", torch.tensor(self.count(space)))
        self.register_buffer("blank", blank(step), persistent=False)  # (C,)

    @staticmethod
    def count(space: Space) -> int:
        """Steps of a row, the longest where they vary."""
        return max(space.dims // max(frame(space).dims, 1), 1)

    def laid(self, batch: Batch) -> Frames:
        """The rows as steps; what is beyond a row's length is put at a value of its kind,
        unread."""
        check_whole(self.name, batch)
        x = frames(self.space, batch.x).to(self.blank.dtype)  # (B, T, C)
        exist = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if batch.length is not None:
            exist = torch.arange(x.shape[1], device=x.device) < batch.length[:, None]
        x = torch.where(exist[..., None], x, self.blank)
        check_codes(self.name, self.space, x.flatten(1))
        return Frames(x, exist, self.told(batch.given, *x.shape[:2]), batch.rows)

    def told(self, given: Given, n: int, steps: int) -> Tensor | None:
        """What the network is given at each of its inputs, the one before the first step
        included; after the last step it is told what that one was."""
        context = self.context(conform(given, self.space, n), n, steps)
        if context is None or context.shape[1] == 1:
            return context
        return torch.cat([context, context[:, -1:]], 1)  # (n, T + 1, K)

    def embed(self, x: Tensor) -> Tensor:
        """The features of steps, (..., C) -> (..., F)."""
        flat = self.features(Batch(x.reshape(-1, x.shape[-1])))
        return flat.reshape(*x.shape[:-1], -1)
