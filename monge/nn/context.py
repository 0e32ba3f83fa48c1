"""What a sequence is given: what holds for the whole of it, and what each step has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.error import DataError
from ..core.space import Space
from .embed import Conditions, Features


class Context(nn.Module):
    """The features of all conditions, (B, 1, width), or (B, T, width) where some are sequences.

    A condition is read step by step where it varies in length as the event does, or is a
    sequence of vectors (T, C) as long as the event; every other one is read whole at every step.
    A step with C channels of its own is read by each of them.
    """

    def __init__(self, space: Space, channels: int) -> None:
        super().__init__()
        given = space.given.items()
        self.channels = channels
        self.local = tuple(name for name, part in given if is_local(part, space))
        fixed = {name: part for name, part in given if name not in self.local}
        self.fixed = Conditions(replace(space, given=fixed))
        self.each = nn.ModuleList(Features(one_step(space.given[name])) for name in self.local)
        self.width = self.fixed.width + sum(part.width for part in self.each)  # type: ignore[misc]

    def forward(self, given: Mapping[str, Batch], n: int, steps: int) -> Tensor | None:
        """None where nothing is given; `steps` of the event, channels included."""
        if not self.width:
            return None
        whole = self.fixed(given, n)[:, None]  # (n, 1, fixed)
        if not self.local:
            return whole
        parts = [self.along(name, part, given[name].x, steps)  # type: ignore[arg-type]
                 for name, part in zip(self.local, self.each, strict=True)]
        return torch.cat([whole.expand(-1, steps, -1), *parts], 2)

    def along(self, name: str, part: Features, x: Tensor, steps: int) -> Tensor:
        """The features of a condition at every step, (n, steps, F); longer ones are cut."""
        if x.shape[1] * self.channels < steps:
            raise DataError(f"given {name!r} has {x.shape[1]} steps, but the event has "
                            f"{steps // self.channels}; give a value for each step")
        features = part(Batch(x.flatten(0, 1))).unflatten(0, x.shape[:2])  # (n, T, F)
        return features.repeat_interleave(self.channels, 1)[:, :steps]


def is_local(part: Space, space: Space) -> bool:
    """Whether a condition has a value for each step of the event."""
    as_long = len(part.shape) == 2 and part.shape[:1] == space.shape[:1]
    return (part.varies and space.varies) or as_long


def one_step(part: Space) -> Space:
    """The space of a sequence's values at one step, with statistics over all steps."""
    rest = part.shape[1:]

    def over(name: str) -> Tensor:
        return part.spread(name).reshape(part.shape[0], -1)  # (T, channels)

    mean, scale = over("mean"), over("scale")
    scale = (scale.square().mean(0) + mean.var(0, correction=0)).sqrt()
    return replace(part, shape=rest or (1,), varies=False, mean=tuple(mean.mean(0).tolist()),
                   scale=tuple(scale.tolist()))
