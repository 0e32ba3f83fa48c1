"""Base of predictors from images: a network over the image, other inputs concatenated."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...core.abilities import Given
from ...core.config import Config
from ...core.errors import UsageError
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.inputs.features import Conditions, Features
from ...nn.layers.specs import Shape, StackSpec
from ._base import Predictor
from ._trunk import Trunk, model_name

EPOCHS, MIN_STEPS = 8, 1500
"""How often every row is seen, and steps that few rows are seen at least."""
SMALL_DATA_ROWS = 10_000
"""Rows below which batches are half as large."""
SMALL_SIDE = 16
"""Pixels on a side below which a image is not moved, and a network has fewer levels."""


class ImageTrunk(Trunk):
    """Features of the one image given, with whatever else is given standardised beside them.

    build: from the shape (channels, rows, columns) to a network (B, *shape) -> (B, width) and its
    width.
    """

    def __init__(self, inputs: Space, build: Callable[[Shape], tuple[nn.Module, int]]) -> None:
        super().__init__()
        self.name, image = find_image(inputs)
        self.shape, self.features = image.shape, Features(image)
        rest = {name: part for name, part in inputs.given.items() if name != self.name}
        self.conditions = Conditions(replace(inputs, given=rest))
        self.net, width = build(self.shape)
        self.width = width + self.conditions.width
        grouped = any(isinstance(layer, nn.GroupNorm) for layer in self.net.modules())
        self.order = torch.contiguous_format if grouped else torch.channels_last  # the faster one

    def forward(self, given: Given) -> Tensor:  # (B, width)
        x = self.features(given[self.name]).reshape(-1, *self.shape)
        # A copy, since `contiguous` would leave the strides of a single channel as they are.
        h = self.net(torch.empty_like(x, memory_format=self.order).copy_(x))
        return torch.cat([h, self.conditions(given, len(h))], 1) if self.conditions.width else h


class ImagePredictor(Predictor):
    """p(y | image, whatever else is given)."""

    @classmethod
    @abc.abstractmethod
    def layer_spec(cls, config: Any) -> StackSpec:
        """The layers from the image to its features, before they are built."""

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        count = sum(part.is_image for part in space.given.values())
        if count == 1 or not space.given:
            return super().unsupported_reason(space)
        found = ", ".join(map(str, space.given.values()))
        return (
            f"{model_name(cls)} expects one image (channels, rows, columns), found {found};"
            " use predict.mlp"
        )


def find_image(inputs: Space) -> tuple[str, Space]:
    """The image among the conditions, with its name."""
    for name, part in inputs.given.items():
        if part.is_image:
            return name, part
    raise UsageError(
        f"encoder turns the image into codes of {next(iter(inputs.given.values()))}, "
        "which convolutions cannot read; use predict.mlp"
    )


def image_side(space: Space) -> int:
    """The shorter side of the image that is given."""
    return min(next((part.shape[1:] for part in space.given.values() if part.is_image), (1,)))


def with_training_defaults(config: Config, space: Space) -> Defaults:
    """A config with its training config. Small shifts do not change the class of an image, unless
    a pixel is a large part of it; what they do to a number is unknown."""
    batch = 64 if space.rows < SMALL_DATA_ROWS else 128
    steps = max(EPOCHS * space.rows // batch, MIN_STEPS)
    train_config = TrainConfig(
        optimiser="adamw",
        lr=3e-3,
        weight_decay=0.01,
        batch_size=batch,
        schedule="cosine",
        max_steps=steps,
        patience=0,
    )
    moved = space.kind in ("label", "binary") and image_side(space) >= SMALL_SIDE
    moves = f"augment=shift{image_side(space) // 14},rotate10,scale10"
    return Defaults(config, train_config, (moves,) if moved else ())
