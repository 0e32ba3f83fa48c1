"""Base of maps between two unpaired data sets."""

from __future__ import annotations

from torch import Tensor

from ...core.abilities import CanSample, Given, HasMean
from ...core.batch import broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.model import Model
from ...core.space import Space

TOLERANCE = 1e-3
"""Marginal error of the plans."""


class UnpairedMap(Model, CanSample, HasMean):
    """p(y | x) between two data sets of one kind.

    Both sides are centred at their own mean and scaled by the targets' scale. A shift changes the
    squared-distance cost of every plan by the same amount. Sides are reals or levels: the mean of
    the targets of a source, which a map returns, would be no name, and no row with empty cells.
    """

    events = {"real", "levels"}
    givens = {"real", "levels"}
    is_predictor = True
    is_unpaired = True

    shift: Tensor
    origin: Tensor
    scale: Tensor

    def __init__(self, config: BaseConfig, space: Space) -> None:
        super().__init__(config, space)
        self.name, source = next(iter(space.given.items()))
        fixed = {
            "shift": space.spread("mean"),
            "origin": source.spread("mean"),
            "scale": space.spread("scale"),
        }
        for name, value in fixed.items():
            self.register_buffer(name, value.flatten().clone(), persistent=False)

    def sources(self, given: Given, n: int) -> Tensor:  # (n, D)
        x = broadcast_conditions(given, self.space, n)[self.name].x.to(self.scale)
        return (x.flatten(1) - self.origin) / self.scale

    def targets(self, y: Tensor) -> Tensor:  # (B, *event) -> (B, D)
        return (y.flatten(1).to(self.scale) - self.shift) / self.scale

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        title = cls.__module__.rpartition(".")[2]
        if len(space.given) != 1:
            return (
                f"{title} expected 1 source data set, found {len(space.given)} "
                "conditions; write the two as SOURCE~TARGET"
            )
        ((name, source),) = space.given.items()
        if source.dims != space.dims or source.kind != space.kind:
            return (
                f"{title} expected sources and targets of one kind and dimension, found {source} "
                f"in {name} and {space} in {space.name}; convert them to one form"
            )
        return None
