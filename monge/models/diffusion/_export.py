r"""The step of a sampler as one module of tensors, for other runtimes.

    z = noise (B, D)
    for t, s in pairwise(times):                        # falling from 1 to 0
        z, _ = step(z, t, s, 0 * z, *given)
    _, x = step(z, 0, 0, noise, *given)

draws what `sampler=ddim` does with the same noise and times. z is scaled to preserve variance,
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
    from ._sampling import Drawing


ROWS = 2
"""Rows of the example, which any number may replace."""
LENGTH = "_length"
"""What the name of a condition is followed by in that of its lengths."""


class Step(nn.Module):
    """(z, t, s, noise, *given) to z at s < t, and to x ~ p(x | z_t) as that noise has it.

    z and noise are (B, D), t and s (B,), conditions (B, ...) in the order of the run's; one whose
    rows differ in length, such as a text, is followed by how many steps of each exist, (B,).
    """

    def __init__(self, law: Drawing) -> None:
        super().__init__()
        self.law, self.names = law, inputs(law.space)

    def forward(
        self, z: Tensor, t: Tensor, s: Tensor, noise: Tensor, *given: Tensor
    ) -> tuple[Tensor, Tensor]:
        law = self.law
        named = dict(zip(self.names, given, strict=True))
        parts = {
            name: Batch(named[name], length=named.get(name + LENGTH)) for name in law.space.given
        }
        z = law.schedule.spread(t)[:, None] * z
        said = law.predict(z, t, law.tell(parts, z.shape[0]))
        if law.units.whole:
            said = said.changed(law.units.within)
        ahead = law.schedule.alpha(s)[:, None] * said.x0
        ahead = ahead + law.schedule.sigma(s)[:, None] * said.noise
        mean = z / said.alpha if law.units.whole else said.x0
        x = law.units.leave(mean + said.sigma / said.alpha * noise)
        return ahead / law.schedule.spread(s)[:, None], x

    @classmethod
    def of(cls, law: Drawing) -> tuple[Self, tuple[Tensor, ...], Mapping[str, Mapping[int, str]]]:
        """The module of a law, example inputs, and the axis of rows of each."""
        z = law.units.scale.new_zeros(ROWS, law.space.dims)
        t = z.new_full((ROWS,), 0.5)
        given = tuple(each for part in law.space.given.values() for each in examples(part, z))
        names = ("z", "t", "s", "noise", *inputs(law.space))
        return (
            cls(law).eval(),
            (z, t, t / 2, z.clone(), *given),
            {name: {0: "rows"} for name in names},
        )


def inputs(space: Space) -> tuple[str, ...]:
    """The names of what a step is given."""
    return tuple(
        each
        for name, part in space.given.items()
        for each in ([name, name + LENGTH] if part.varies else [name])
    )


def examples(space: Space, like: Tensor) -> list[Tensor]:
    """Rows of a condition, all 0, and their lengths, where they have any."""
    whole = space.kind in ("label", "tokens")
    rows = torch.zeros(
        ROWS, *space.shape, dtype=torch.int64 if whole else like.dtype, device=like.device
    )
    lengths = [torch.full((ROWS,), space.shape[0], device=like.device)] if space.varies else []
    return [rows, *lengths]
