r"""One sampling step as a module of tensors, for other runtimes.

    z = noise (B, D)
    for t, s in pairwise(times):                        # falling from 1 to 0
        z, _ = step(z, t, s, 0 * z, *given)
    _, x = step(z, 0, 0, noise, *given)

samples what `sampler=ddim` does with the same noise and times. z is scaled to preserve variance,
whatever the family of the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.space import Space

if TYPE_CHECKING:
    from ._sampling import DiffusionSampling


EXAMPLE_ROWS = 2
"""Rows of the example inputs; the exported step takes any number."""
LENGTH_SUFFIX = "_length"
"""Suffix of a condition's name in the name of its lengths."""


class ExportedStep(nn.Module):
    """(z, t, s, noise, *given) to z at s < t, and to a sample x ~ p(x | z_t) made with the noise.

    z and noise are (B, D), t and s (B,), conditions (B, ...) in the order of the run's. A
    condition of variable length, such as a text, is followed by its lengths, (B,).
    """

    def __init__(self, model: DiffusionSampling) -> None:
        super().__init__()
        self.model, self.names = model, condition_inputs(model.space)

    def forward(
        self, z: Tensor, t: Tensor, s: Tensor, noise: Tensor, *given: Tensor
    ) -> tuple[Tensor, Tensor]:
        model, schedule, units = self.model, self.model.schedule, self.model.units
        named = dict(zip(self.names, given, strict=True))
        parts = {
            name: Batch(named[name], length=named.get(name + LENGTH_SUFFIX))
            for name in model.space.given
        }
        z = schedule.spread(t)[:, None] * z
        prediction = model.predict(z, t, model.encode_conditions(parts, z.shape[0]))
        if units.discrete:
            prediction = prediction.map_x0(units.clamp)
        z_s = schedule.alpha(s)[:, None] * prediction.x0
        z_s = z_s + schedule.sigma(s)[:, None] * prediction.noise
        mean = torch.where(units.continuous, prediction.x0, z / prediction.alpha)
        x = units.sample(mean, prediction.sigma / prediction.alpha, noise)
        return z_s / schedule.spread(s)[:, None], x

    @classmethod
    def with_examples(
        cls, model: DiffusionSampling
    ) -> tuple[Self, tuple[Tensor, ...], Mapping[str, Mapping[int, str]]]:
        """The step of a model, example inputs, and the name of the row axis of each input."""
        z = model.units.like.new_zeros(EXAMPLE_ROWS, model.units.width)
        t = z.new_full((EXAMPLE_ROWS,), 0.5)
        conditions = model.space.given.values()
        given = tuple(each for part in conditions for each in example_conditions(part, z))
        names = ("z", "t", "s", "noise", *condition_inputs(model.space))
        return (
            cls(model).eval(),
            (z, t, t / 2, z.clone(), *given),
            {name: {0: "rows"} for name in names},
        )


def condition_inputs(space: Space) -> tuple[str, ...]:
    """The names of a step's condition inputs."""
    return tuple(
        each
        for name, part in space.given.items()
        for each in ([name, name + LENGTH_SUFFIX] if part.varies else [name])
    )


def example_conditions(space: Space, like: Tensor) -> list[Tensor]:
    """Rows of a condition, all 0, and their lengths if it has variable length."""
    integer = space.kind in ("label", "tokens")
    rows = torch.zeros(
        EXAMPLE_ROWS,
        *space.shape,
        dtype=torch.int64 if integer else like.dtype,
        device=like.device,
    )
    length = (
        torch.full((EXAMPLE_ROWS,), space.shape[0], device=like.device) if space.varies else None
    )
    return [rows] if length is None else [rows, length]
