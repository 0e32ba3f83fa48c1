"""Laws known by their samples alone: noise pushed through a network, x = G(z, given).

What generators share, whoever judges them: a critic, a transport cost. Both sides meet in
coordinates near one (`nn.coordinates`), whose inverse ends the generator, so that samples are
events again.
"""

from __future__ import annotations

import abc
from typing import Annotated

import torch
from torch import Generator, Tensor

from ..core.abilities import CanDecode, CanSample, Given
from ..core.batch import Batch, broadcast_conditions
from ..core.config import Config as BaseConfig
from ..core.config import Range
from ..core.model import Model
from ..core.space import Space
from ..nn.inputs.features import Conditions
from ..nn.inputs.standardise import Coordinates
from ..nn.mlp import MLP


class Pushforward(Model, CanSample, CanDecode):
    """x = G(z, given) with z ~ N(0, I): a law without a density."""

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
        """Points (n, D) in the coordinates where both sides meet."""

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        return self.decode(self.noise(n, generator), given)

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        return self.events_of(self.generate(z, self.context(given or {}, len(z))))

    def events_of(self, y: Tensor) -> Tensor:
        """Points (n, D) in the units and the shape of the data."""
        return self.coordinates.leave(y).reshape(len(y), *self.space.shape)

    def noise(self, n: int, generator: Generator | None = None) -> Tensor:
        like = self.coordinates.shift
        return torch.randn(
            n, *self.latent.shape, generator=generator, dtype=like.dtype, device=like.device
        )

    def context(self, given: Given, n: int) -> Tensor:
        return self.conditions(broadcast_conditions(given, self.space, n), n)  # (n, C)

    def real(self, batch: Batch) -> Tensor:
        """The rows where they meet what is generated, whole numbers spread over their step."""
        x = batch.x.to(self.coordinates.shift.dtype)
        return self.coordinates.enter(x, dequantise=True)  # (B, D)


class Dense(Pushforward):
    """The same of a perceptron G: every entry of an event is one of its outputs."""

    class Config(Pushforward.Config):
        generator: MLP.Config = MLP.Config(width=256, depth=3, activation="relu")
        """Network from noise to an event."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        inputs = config.latent + self.conditions.width
        self.generator: MLP = config.generator.build(inputs, space.dims)

    def generate(self, z: Tensor, context: Tensor) -> Tensor:
        return self.coordinates.bound(self.generator(torch.cat([z, context], 1)))  # (n, D)
