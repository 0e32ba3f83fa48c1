"""What models share that learn from a diffusion model: its copy, its checks, and data from z_0."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Generator, Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import find, name_of
from ...core.errors import UsageError
from ...core.model import Defaults, Model
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._base import Diffusion
from ._ode_samplers import level
from ._samplers import noise_like

DIFFUSION = "model/diffusion.ddpm"
"""The noise process and the network, unless others are chosen or those of a teacher."""


def build_student(chosen: BaseConfig | None, space: Space, parts: nn.ModuleDict) -> Diffusion:
    """The diffusion model that learns: a copy of the teacher, or a new one, by default ddpm; its
    noise schedule is not learned."""
    if "teacher" in parts:
        teacher = check_teacher(parts["teacher"], space)
        if chosen is not None:
            raise UsageError(
                f"expected the network and the noise of the teacher, found "
                f"diffusion={name_of(type(chosen))} too; give one of them"
            )
        student = check_diffusion(teacher.config.build(space))
        student.load_state_dict(teacher.state_dict())
    else:
        student = check_diffusion((chosen or default_diffusion(space)[0]).build(space))
    if isinstance(student.schedule, nn.Module):
        student.schedule.requires_grad_(False)
    return student


def default_diffusion(space: Space) -> tuple[Model.Config, TrainConfig]:
    """The diffusion model for these data and its training config."""
    found: Defaults = find(DIFFUSION).owner.defaults(space)
    assert isinstance(found.config, Model.Config), "a model has the configuration of a model"
    return found.config, found.train


def smallest_diffusion(space: Space) -> Model.Config:
    found: Model.Config = find(DIFFUSION).owner.smallest_config(space)
    return found


def names_teacher(chosen: Mapping[str, str]) -> bool:
    """Whether settings name a teacher, whose network and noise then replace the default ones."""
    return chosen.get("teacher", "None") not in ("None", "none")


def check_diffusion(model: nn.Module) -> Diffusion:
    if not isinstance(model, Diffusion):
        raise UsageError(
            f"expected a diffusion model, found {type(model).__module__.rpartition('.')[2]}; "
            "choose ddpm, vdm or score_sde"
        )
    return model


def check_teacher(model: nn.Module, space: Space) -> Diffusion:
    teacher = check_diffusion(model)
    if teacher.space != space:
        raise UsageError(
            f"expected a teacher of {space}, found one of {teacher.space} or of other rows; "
            "fit one to these data, with the same conditions"
        )
    return teacher


def data_from(model: Diffusion, z: Tensor, generator: Generator | None) -> Tensor:
    """x ~ p(x | z_0), (B, *event), where numbers with a density are those of z_0 (B, D)."""
    start = z.new_zeros(1)
    noise = noise_like(z, generator).masked_fill(model.units.continuous, 0.0)
    deviation = level(model.schedule, start)[:, None].expand(len(z), 1)
    return model.units.sample(z / model.schedule.alpha(start), deviation, noise)
