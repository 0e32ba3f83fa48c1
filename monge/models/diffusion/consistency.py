r"""Consistency model: noise to data in one step, trained alone or by a fitted diffusion model

The probability flow of a diffusion takes each z_t to one z_0. A consistency function (Song et al.
2023) is that map, $f(z_t, t) = z_0$, the same all along a trajectory. With a network that predicts
$\hat x$ and $\hat\epsilon$ from z_t it is the step of DDIM to t = 0,

$f(z, t) = \alpha_0 \hat x(z, t) + \sigma_0 \hat\epsilon(z, t)$,

so that $f(z_0, 0) = z_0$ whatever the network is, and a diffusion model is where it starts. Two
neighbouring times s < t on a trajectory must agree: the loss is

$E\, \frac{1}{v_t - v_s}\, d(f(z_t, t), f(z_s, s))$, $v = \sigma / \alpha$,
$d(x, y) = \sqrt{|x - y|^2 / D + c^2} - c$,

without a gradient of the second f. Distillation takes z_s from z_t by one step of the probability
flow of a teacher; training alone takes both from one row and one noise, which has the same
gradient as the steps become small. The N times are close where v is small (Karras et al. 2022), v
has a lognormal distribution, and N doubles as training goes on (Song & Dhariwal 2024).

More steps: z_0 is noised to a time in between, and f applied again. A name of a table, or whether
a cell is empty, is drawn at every step with the probability that the network gives it: nearest to
an estimate between two points would always be the more frequent one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import CanSample, CanStream, Given
from ...core.batch import Batch
from ...core.config import MAX_STEPS, Range, RunRef
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses, Model
from ...core.space import Space
from ...prob.noise_schedule import NoiseProcess
from ...prob.row_embedding import TABLE_KINDS
from ._conditioning import Conditioning
from ._guidance import unguided
from ._ode_samplers import level
from ._parameterisation import DenoiserPrediction
from ._samplers import Predict, ddim, noise_like, spaced_times
from ._students import (
    build_student,
    check_teacher,
    data_from,
    default_diffusion,
    names_teacher,
    smallest_diffusion,
)
from ._units import EmbeddedRowUnits

LEVEL_MEAN, LEVEL_DEVIATION = -0.4, 2.0
"""Mean and standard deviation of the log of v in training: those of Song & Dhariwal for data of
standard deviation 1."""


class Consistency(Model, CanSample, CanStream):
    """p(x | given): z_0 = f(z_1, 1) of z_1 ~ N(0, (alpha_1^2 + sigma_1^2) I), and p(x | z_0)."""

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}

    class Config(Model.Config):
        tag = "model/diffusion.consistency"
        teacher: RunRef | None = None
        """Run of a diffusion model on the same data, which is distilled; none: trained alone."""
        diffusion: Model.Config | None = None
        """Noise process and network: those of ddpm, vdm or score_sde; none: those of the teacher,
        or of ddpm with the settings that it has by default."""
        levels: Annotated[int, Range(1, MAX_STEPS)] = 40
        """Steps between noise and data at the start of training."""
        max_levels: Annotated[int, Range(1, MAX_STEPS)] = 160
        """Steps between noise and data at most."""
        double_every: Annotated[int, Range(1)] = 2000
        """Training steps after which the number of steps between noise and data doubles."""
        huber: Annotated[float, Range(0)] = 0.001
        """Error per entry, in standard deviations, below which the loss is quadratic (c). Tables
        have 1 by default: a small c is minimised by a median, which of a name or of an empty cell
        is the most frequent one, while the mean keeps their shares."""

    class SamplingConfig(BaseConfig):
        steps: Annotated[int, Range(1, MAX_STEPS)] = 4
        """Evaluations of the network: 1 is the map from noise to data, and more correct it."""

    config: Config

    def __init__(
        self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        super().__init__(config, space, parts)
        self.diffusion = build_student(config.diffusion, space, self.parts)
        self.schedule, self.units = self.diffusion.schedule, self.diffusion.units

    def initialise_from_data(self, batch: Batch) -> None:
        if "teacher" not in self.parts:
            self.diffusion.initialise_from_data(batch)

    def count_rows(self, batches: Iterable[Batch]) -> None:
        if "teacher" not in self.parts:
            self.diffusion.count_rows(batches)

    def consistency(self, z: Tensor, t: Tensor, conditions: Conditioning) -> Tensor:
        """f(z, t), the z_0 on the trajectory of z (B, D) at times t (B,)."""
        return self.end(self.diffusion.predict(z, t, conditions))

    def end(self, prediction: DenoiserPrediction) -> Tensor:
        """The step of DDIM from a prediction to t = 0."""
        start = prediction.z.new_zeros(())
        return (
            self.schedule.alpha(start) * prediction.x0
            + self.schedule.sigma(start) * prediction.noise
        )

    def loss(self, batch: Batch) -> Losses:
        """f at two neighbouring times of a trajectory, with the same dropout."""
        y, (s, t) = self.diffusion.to_units(batch), self.sample_times(len(batch), batch.step)
        conditions = self.diffusion.row_conditions(batch)
        noise = torch.randn_like(y)
        z_s, z_t = (self.noised(y, noise, each) for each in (s, t))
        with torch.no_grad():
            if "teacher" in self.parts:
                z_s = flow_step(self.teacher_predictor(batch), self.schedule, z_t, s, t)
            with torch.random.fork_rng([y.device] if y.is_cuda else []):
                wanted = self.consistency(z_s, s, conditions)
        error = (self.consistency(z_t, t, conditions) - wanted).square().mean(1)
        c, apart = self.config.huber, level(self.schedule, t) - level(self.schedule, s)
        return {"consistency": ((error + c * c).sqrt() - c) / apart}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z_0 = f(z_1, 1); then for each time between, z_t ~ q(z_t | z_0) and z_0 = f(z_t, t)."""
        for z_0 in self.path(n, given, options, generator):
            z = z_0
        return data_from(self.diffusion, z, generator)

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """The data at z_0 after every step, and the sample at last."""
        for z_0 in self.path(n, given, options, generator):
            z = z_0
            yield self.units.to_data(z / self.schedule.alpha(z.new_zeros(())))
        yield data_from(self.diffusion, z, generator)

    def path(
        self,
        n: int,
        given: Given | None,
        options: BaseConfig | None,
        generator: Generator | None,
    ) -> Iterator[Tensor]:
        """z_0 (n, D) after every evaluation of the network."""
        options = options or self.SamplingConfig()
        assert isinstance(options, self.SamplingConfig), "expected sampling options"
        clusters = self.diffusion.draw_clusters(n, generator)
        conditions = self.diffusion.encode_conditions(given, n, clusters)
        z, noising = self.diffusion.sample_prior(n, generator), self.schedule
        times = spaced_times("middle", noising, z, 1.0, options.steps)  # (steps + 1,)
        for place, t in enumerate(times[:-1]):
            if place:
                variance = noising.step(times[-1], t).forward
                z = noising.alpha(t) / noising.alpha(times[-1]) * z
                z = z + variance.sqrt() * noise_like(z, generator)
            prediction = self.diffusion.predict(z, t.expand(n), conditions)
            z = self.end(prediction)
            if prediction.components is not None:
                assert isinstance(self.units, EmbeddedRowUnits), "rows of a table"
                noise, alpha = noise_like(z, generator), noising.alpha(times[-1])
                z = alpha * self.units.draw(z / alpha, prediction.components, noise)
            yield z

    def noised(self, y: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return self.schedule.alpha(t)[:, None] * y + self.schedule.sigma(t)[:, None] * noise

    def sample_times(self, n: int, step: int) -> tuple[Tensor, Tensor]:
        """Neighbouring times s < t, each (n,), at this training step."""
        config, like = self.config, self.units.like
        doublings = min(step // config.double_every, MAX_STEPS.bit_length())
        count = min(config.levels << doublings, max(config.levels, config.max_levels))
        times = spaced_times("edm", self.schedule, like, 1.0, count)  # falling
        ends = (level(self.schedule, times).log() - LEVEL_MEAN) / LEVEL_DEVIATION
        share = torch.special.ndtr(ends)
        share = (share[0] - share) / (share[0] - share[-1])  # rising from 0 to 1
        place = torch.searchsorted(share[1:-1], self.diffusion.stratified_times(n), right=True)
        return times[place + 1], times[place]

    def teacher_predictor(self, batch: Batch) -> Predict:
        """The predictions of the teacher given the conditions of these rows."""
        teacher = check_teacher(self.parts["teacher"], self.space)
        return unguided(teacher, teacher.row_conditions(batch))

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        diffusion, train_config = default_diffusion(space)
        config = cls.Config(diffusion=diffusion)
        if space.kind in TABLE_KINDS:
            config = replace(config, huber=1.0)
        return Defaults(config, train_config)

    @classmethod
    def defaults_with(cls, space: Space, chosen: Mapping[str, str]) -> Defaults:
        """With a teacher, its network and its noise."""
        proposed = cls.defaults(space)
        if not names_teacher(chosen):
            return proposed
        assert isinstance(proposed.config, cls.Config), "its own configuration"
        return Defaults(replace(proposed.config, diffusion=None), proposed.train)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(diffusion=smallest_diffusion(space))


def flow_step(predict: Predict, noising: NoiseProcess, z: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """z_s (B, D) on the probability flow through z_t, from times t (B,) to s < t, by a step of
    DDIM with the mean of the estimates of x at both of its ends, which is of order two."""
    here, ends = predict(z, t), (s[:, None], t[:, None])
    ahead = predict(ddim(here, noising, *ends, 0, None), s)
    x0 = (here.x0 + ahead.x0) / 2
    return ddim(here.map_x0(lambda _: x0), noising, *ends, 0, None)
