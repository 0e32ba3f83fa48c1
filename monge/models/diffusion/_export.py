r"""One sampling step as a module of tensors, for other runtimes.

    z = noise (B, D)
    for t, s in pairwise(times):                        # falling from 1 to 0
        z, _ = step(z, t, s, 0 * z, *given)
    _, x = step(z, 0, 0, noise, *given)

samples what `sampler=ddim` does with the same noise and times. z is scaled to preserve variance,
whatever the family of the schedule. A model with clusters has no conditions, but a uniform number
per row, from which the cluster of the row follows and which is drawn before the noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from ...core.positional import EXAMPLE_ROWS, batches, example_inputs, input_names

if TYPE_CHECKING:
    from ._sampling import DiffusionSampling


class ExportedStep(nn.Module):
    """(z, t, s, noise, *given) to z at s < t, and to a sample x ~ p(x | z_t) made with the noise.

    z and noise are (B, D), t and s (B,), conditions (B, ...) in the order of the run's. A
    condition of variable length, such as a text, is followed by its lengths, (B,). With clusters
    a uniform number (B,) stands for the conditions.
    """

    def __init__(self, model: DiffusionSampling) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, z: Tensor, t: Tensor, s: Tensor, noise: Tensor, *given: Tensor
    ) -> tuple[Tensor, Tensor]:
        model, schedule, units = self.model, self.model.schedule, self.model.units
        parts, cluster = {}, None
        if model.clusters is None:
            parts = batches(model.space.given, given)
        else:
            cluster = model.clusters.draw(*given)
        z = schedule.spread(t)[:, None] * z
        prediction = model.predict(z, t, model.encode_conditions(parts, z.shape[0], cluster))
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
        given = example_inputs(model.space.given, z)
        names = ("z", "t", "s", "noise", *input_names(model.space.given))
        if model.clusters is not None:
            given, names = (t.clone(),), (*names, "uniform")
        return (
            cls(model).eval(),
            (z, t, t / 2, z.clone(), *given),
            {name: {0: "rows"} for name in names},
        )
