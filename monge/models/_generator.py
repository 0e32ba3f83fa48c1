"""Base of generators x = G(z, given): implicit models, known only by their samples.

Data and samples are compared in standardised coordinates, by a discriminator, a critic or a
transport cost; the inverse of the coordinates ends the generator.
"""

from __future__ import annotations

import abc
from typing import Annotated

import torch
from torch import Generator, Tensor

from ..core.abilities import CanDecode, CanSample, Given
from ..core.batch import Batch, broadcast_conditions
from ..core.config import Range
from ..core.model import Model
from ..core.space import Space
from ..nn.inputs.features import Conditions
from ..nn.inputs.standardise import Coordinates
from ..nn.mlp import MLP


class GeneratorModel(Model, CanSample, CanDecode):
    """x = G(z, given) with z ~ N(0, I): a distribution without a tractable density."""

    events = {"real", "levels"}
    givens = {"label"}

    class Config(Model.Config):
        latent: Annotated[int, Range(1)] = 64
        """Dimension of the noise z."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.latent = Space(kind="real", shape=(config.latent,))
        self.coordinates, self.conditions = Coordinates(space), Conditions(space)

    @abc.abstractmethod
    def generate(self, z: Tensor, context: Tensor) -> Tensor:
        """Points (n, D) in standardised coordinates."""

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        return self.to_event(self.generate(z, self.context(given or {}, len(z))))

    def to_event(self, y: Tensor) -> Tensor:
        """Points (n, D) in the units and the shape of the data."""
        return self.coordinates.to_data(y).reshape(len(y), *self.space.shape)

    def noise(self, n: int, generator: Generator | None = None) -> Tensor:
        like = self.coordinates.shift
        return torch.randn(
            n, *self.latent.shape, generator=generator, dtype=like.dtype, device=like.device
        )

    def context(self, given: Given, n: int) -> Tensor:
        return self.conditions(broadcast_conditions(given, self.space, n), n)  # (n, C)

    def real(self, batch: Batch) -> Tensor:
        """The rows in standardised coordinates; levels are dequantised with uniform noise."""
        x = batch.x.to(self.coordinates.shift.dtype)
        return self.coordinates.to_network(x, dequantise=True)  # (B, D)


class MLPGeneratorModel(GeneratorModel):
    """A generator whose network is an MLP: every entry of an event is one of its outputs."""

    class Config(GeneratorModel.Config):
        generator: MLP.Config = MLP.Config(width=256, depth=3, activation="relu")
        """Network from the noise z to an event."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        inputs = config.latent + self.conditions.width
        self.generator: MLP = config.generator.build(inputs, space.dims)

    def generate(self, z: Tensor, context: Tensor) -> Tensor:
        return self.coordinates.bound(self.generator(torch.cat([z, context], 1)))  # (n, D)
