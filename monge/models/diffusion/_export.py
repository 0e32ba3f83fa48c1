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
    from ._drawing import Drawing

ROWS = 2
"""Rows of the example, which any number may replace."""


class Step(nn.Module):
    """(z, t, s, noise, *given) to z at s < t, and to x ~ p(x | z_t) as that noise has it.

    z and noise are (B, D), t and s (B,), conditions (B, ...) in the order of the run's.
    """

    def __init__(self, law: Drawing) -> None:
        super().__init__()
        self.law, self.names = law, tuple(law.space.given)

    def forward(self, z: Tensor, t: Tensor, s: Tensor, noise: Tensor, *given: Tensor
                ) -> tuple[Tensor, Tensor]:
        law = self.law
        parts = {name: Batch(x) for name, x in zip(self.names, given, strict=True)}
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
        given = tuple(example(part, z) for part in law.space.given.values())
        names = ("z", "t", "s", "noise", *law.space.given)
        return cls(law).eval(), (z, t, t / 2, z.clone(), *given), {
            name: {0: "rows"} for name in names}


def example(space: Space, like: Tensor) -> Tensor:
    """Rows of a condition, all 0."""
    whole = space.kind in ("label", "tokens")
    return torch.zeros(ROWS, *space.shape, dtype=torch.int64 if whole else like.dtype,
                       device=like.device)
