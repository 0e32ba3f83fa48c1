"""What laws of targets given sources share whose rows nobody paired."""

from __future__ import annotations

from torch import Tensor

from ...core.abilities import CanSample, Given, HasMean
from ...core.batch import broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.model import Model
from ...core.space import Space

TOLERANCE = 1e-3
"""Marginal error of the plans."""


class Unpaired(Model, CanSample, HasMean):
    """p(y | x) between two data sets of one kind.

    Both sides stand around their own mean in units of the targets' scale. The squared distance
    knows no shift: it changes the cost of every plan alike.
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
                f"{title} moves one data set to another and was given {len(space.given)} "
                "conditions; write the two as SOURCE~TARGET"
            )
        ((name, source),) = space.given.items()
        if source.dims != space.dims or source.kind != space.kind:
            return (
                f"{title} needs sources and targets of one kind and one number of dimensions, "
                f"and {name} holds {source} where {space.name} holds {space}; bring both to "
                "one form"
            )
        return None
