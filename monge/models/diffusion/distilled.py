r"""Progressive distillation: a diffusion model that takes half as many steps, again and again

One step of DDIM of a student, from z_t to z_s, learns to do what two steps of its teacher do
(Salimans & Ho 2022). With z_s where these two end, it must predict

$\tilde x = \frac{z_s - (\sigma_s / \sigma_t) z_t}{\alpha_s - (\sigma_s / \sigma_t) \alpha_t}$,

so that the loss is $E \max(SNR_t, 1)\, |\tilde x - \hat x(z_t, t)|^2$ over the N steps of the
student. Then the student is the teacher of the next, which takes N / 2 steps. The first teacher is
a fitted run, or is trained in the first steps of the fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import CanSample, CanStream, Given
from ...core.batch import Batch
from ...core.config import MAX_STEPS, Range, RunRef
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Model, Update
from ...core.space import Space
from ...prob.noise_schedule import NoiseProcess
from ._guidance import unguided
from ._samplers import DDIM, Path, Predict, ddim
from ._students import (
    build_student,
    check_diffusion,
    data_from,
    default_diffusion,
    names_teacher,
    smallest_diffusion,
)


class Distilled(Model, CanSample, CanStream):
    """p(x | given): z_0 by N steps of DDIM from z_1 ~ N(0, (alpha_1^2 + sigma_1^2) I), and
    p(x | z_0)."""

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}

    class Config(Model.Config):
        tag = "model/diffusion.distilled"
        teacher: RunRef | None = None
        """Run of a diffusion model on the same data; none: one is trained in this fit."""
        diffusion: Model.Config | None = None
        """Noise process and network: those of ddpm, vdm or score_sde; none: those of the teacher,
        or of ddpm with the settings that it has by default."""
        steps: Annotated[int, Range(1, MAX_STEPS)] = 4
        """Steps from noise to data of the last student."""
        halvings: Annotated[int, Range(1, 20)] = 4
        """How often the number of steps is halved until then."""
        stage_steps: Annotated[int, Range(1)] = 1000
        """Training steps after which a student becomes the teacher of the next."""
        teacher_steps: Annotated[int, Range(1)] = 4000
        """Without a teacher: training steps in which the first one is trained."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.steps << self.halvings > MAX_STEPS:
                raise UsageError(
                    f"expected a first teacher of at most {MAX_STEPS} steps, found "
                    f"{self.steps << self.halvings}, {self.halvings} times doubled; use fewer "
                    "halvings"
                )

    class SamplingConfig(BaseConfig):
        steps: Annotated[int, Range(1, MAX_STEPS)] | None = None
        """Steps of DDIM; by default those for which the network was trained: those of the last
        student, or of the stage in which the fit ended."""

    config: Config
    trained_steps: Tensor  # (): the steps from noise to data of the present network

    def __init__(
        self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        super().__init__(config, space, parts)
        self.register_buffer("trained_steps", torch.tensor(config.steps))
        self.register_load_state_dict_pre_hook(add_trained_steps)
        self.diffusion = build_student(config.diffusion, space, self.parts)
        self.reference = check_diffusion(self.diffusion.config.build(space))
        self.reference.requires_grad_(False)
        self.schedule, self.units = self.diffusion.schedule, self.diffusion.units
        self.first = 0 if "teacher" in self.parts else config.teacher_steps

    def initialise_from_data(self, batch: Batch) -> None:
        if "teacher" not in self.parts:
            self.diffusion.initialise_from_data(batch)

    def count_rows(self, batches: Iterable[Batch]) -> None:
        if "teacher" not in self.parts:
            self.diffusion.count_rows(batches)

    def updates(self) -> Sequence[Update]:
        learned = [param for param in self.diffusion.parameters() if param.requires_grad]
        return [Update("stage", self.renew_teacher), Update("student", self.loss, learned)]

    def loss(self, batch: Batch) -> Losses:
        """That of the diffusion while the first teacher is trained; then the error of the
        prediction with which one step of the student ends where two of its teacher do."""
        if batch.step < self.first:
            return self.diffusion.loss(batch)
        y, count = self.diffusion.to_units(batch), self.student_steps(batch.step)
        conditions = self.diffusion.row_conditions(batch)
        place = (self.diffusion.stratified_times(len(y)) * count).floor().clamp(max=count - 1)
        s, middle, t = (((place + share) / count)[:, None] for share in (0, 0.5, 1))
        z = self.schedule.alpha(t) * y + self.schedule.sigma(t) * torch.randn_like(y)
        with torch.no_grad():
            teacher = unguided(self.reference.eval(), conditions)
            wanted = two_step_target(teacher, self.schedule, z, s, middle, t)
        error = (self.diffusion.predict(z, t[:, 0], conditions).x0 - wanted).square().mean(1)
        return {"distillation": self.schedule.snr(t[:, 0]).clamp_min(1) * error}

    @torch.no_grad()
    def renew_teacher(self, batch: Batch) -> Losses:
        """At the start of a stage the student becomes the teacher."""
        stage, since = divmod(batch.step - self.first, self.config.stage_steps)
        if since == 0 and 0 <= stage < self.config.halvings:
            self.reference.load_state_dict(self.diffusion.state_dict())
        self.trained_steps.fill_(self.student_steps(batch.step) << (batch.step < self.first))
        return {"steps": self.units.like.new_tensor(float(self.trained_steps))}

    def student_steps(self, step: int) -> int:
        """The steps from noise to data of the student at this training step."""
        stage = max(step - self.first, 0) // self.config.stage_steps
        return self.config.steps << max(self.config.halvings - 1 - stage, 0)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z_s from z_t by steps of DDIM, and x ~ p(x | z_0)."""
        for z_s, _ in self.path(n, given, options, generator):
            z = z_s
        return data_from(self.diffusion, z, generator)

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """The estimate of x at every step, and the sample at last."""
        for z_s, x0 in self.path(n, given, options, generator):
            z = z_s
            yield self.units.to_data(x0)
        yield data_from(self.diffusion, z, generator)

    def path(
        self,
        n: int,
        given: Given | None,
        options: BaseConfig | None,
        generator: Generator | None,
    ) -> Path:
        """z and the estimate of x (n, D) after every step."""
        options = options or self.SamplingConfig()
        assert isinstance(options, self.SamplingConfig), "expected sampling options"
        clusters = self.diffusion.draw_clusters(n, generator)
        predict = unguided(self.diffusion, self.diffusion.encode_conditions(given, n, clusters))
        sampler = DDIM.Config(steps=options.steps or int(self.trained_steps)).build()
        z = self.diffusion.sample_prior(n, generator)
        return sampler.sample(predict, self.schedule, z, generator)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        diffusion, train_config = default_diffusion(space)
        return Defaults(cls.Config(diffusion=diffusion), train_config)

    @classmethod
    def defaults_with(cls, space: Space, chosen: Mapping[str, str]) -> Defaults:
        """With a teacher, its network and its noise."""
        proposed = cls.defaults(space)
        return Defaults(cls.Config(), proposed.train) if names_teacher(chosen) else proposed

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            diffusion=smallest_diffusion(space),
            steps=8,
            halvings=1,
            stage_steps=20,
            teacher_steps=70,
        )


def add_trained_steps(model: Distilled, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Runs that did not save the number of steps take those of the last student."""
    state.setdefault(f"{prefix}trained_steps", torch.tensor(model.config.steps))


def two_step_target(
    predict: Predict, noising: NoiseProcess, z: Tensor, s: Tensor, middle: Tensor, t: Tensor
) -> Tensor:
    """The x (B, D) with which one step of DDIM from z at times t to s, each (B, 1), ends where two
    steps of a teacher by way of `middle` do."""
    half = ddim(predict(z, t[:, 0]), noising, middle, t, 0, None)
    end = ddim(predict(half, middle[:, 0]), noising, s, middle, 0, None)
    kept = noising.sigma(s) / noising.sigma(t)
    return (end - kept * z) / (noising.alpha(s) - kept * noising.alpha(t))
