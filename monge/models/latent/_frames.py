"""Rows as frames (consecutive steps of a series, pixels of an image) and their Gaussian codes.

A frame is one step with its channels, or several together: the last of a row may be incomplete,
and entries beyond the length of the row are neither modelled nor penalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch, broadcast_conditions
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Model
from ...core.space import Space
from ...nn.inputs.features import Features
from ...nn.inputs.sequence import SequenceContext
from ...nn.mlp import MLP
from ...prob.distributions import normal_log_prob
from ...prob.heads import Head, LevelsDistribution
from .._ordering import (
    STATISTICS,
    StepLayout,
    check_codes,
    check_no_missing,
    frame,
    frames,
    placeholder_values,
    vector,
)
from ._posterior import bound_log_scale, kl_to_standard_normal


class FrameModel(Model):
    """Base of models that read and predict rows frame by frame."""

    events = {"real", "binary", "levels"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}
    supports_variable_length = True
    supports_flags = True

    class Config(Model.Config):
        frame: Annotated[int, Range(1)] = 1
        """Consecutive steps (samples of sound, pixels) that share a code and are independent given
        it and the past."""
        components: Annotated[int, Range(1)] = 3
        """Components of the mixture that models a real or finely levelled entry."""
        levels: LevelsDistribution = "auto"
        """Distribution of levels: categorical, a mixture of logistics, or auto by their number."""

    config: Config
    typical: Tensor
    blank: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.name, self.layout = type(self).__name__.lower(), StepLayout(space)
        steps = self.count(space)
        if config.frame > steps:
            raise UsageError(
                f"expected a frame of at most the {steps} steps of a row, found "
                f"frame={config.frame}; choose frame={steps} or less"
            )
        step = with_flags(frame(space), space.flags)
        whole = repeat_entries(step, config.frame)
        self.features, self.context = Features(whole), SequenceContext(space, 1)
        self.head = Head(whole, config.components, config.levels)
        self.register_buffer("typical", torch.tensor(steps))
        self.register_buffer("blank", placeholder_values(step), persistent=False)  # (C,)

    @staticmethod
    def count(space: Space) -> int:
        """Steps of a row, the maximum if rows vary in length."""
        return max(space.dims // max(frame(space).dims, 1), 1)

    @property
    def context_width(self) -> int:
        """Size of the conditions at each input of the network."""
        return self.context.width * (self.config.frame if self.context.local else 1)

    def to_frames(self, batch: Batch) -> Frames:
        """The rows as frames; padding is replaced by a valid value that is not read."""
        check_no_missing(self.name, batch)
        x = frames(self.space, batch.x).to(self.blank.dtype)  # (B, L, C)
        within = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if batch.length is not None:
            within = torch.arange(x.shape[1], device=x.device) < batch.length[:, None]
        return self.join_steps(x, within, batch.given, batch.rows)

    def join_steps(self, x: Tensor, known: Tensor, given: Given, row: Tensor) -> Frames:
        """Steps (B, L, C) as frames, of which those `known` (B, L) are read."""
        x = torch.where(known[..., None], x, self.blank)
        check_codes(self.name, self.space, x.flatten(1))
        size, steps = self.config.frame, x.shape[1]
        present = known[..., None].expand_as(x)
        if short := -steps % size:  # an incomplete frame at the end
            x = torch.cat([x, self.blank.expand(len(x), short, -1)], 1)
            present = F.pad(present, (0, 0, 0, short))
        x, present = (part.reshape(len(x), -1, size * part.shape[-1]) for part in (x, present))
        return Frames(x, present, self.frame_conditions(given, len(x), steps), row, steps)

    def from_frames(self, rows: Frames) -> Tensor:
        """The event of each row, (B, *event)."""
        return self.layout.event(rows.x.flatten(1)[:, : rows.steps * len(self.blank)])

    def frame_conditions(self, given: Given, n: int, steps: int) -> Tensor | None:
        """Encoded conditions at each input of the network, which has one more than there are
        frames; the last repeats the conditions of the last step."""
        context = self.context(broadcast_conditions(given, self.space, n), n, steps)
        if context is None or context.shape[1] == 1:
            return context
        size = self.config.frame
        after = context[:, -1:].expand(-1, -steps % size + size, -1)
        return torch.cat([context, after], 1).reshape(n, -1, self.context_width)  # (n, T + 1, K)

    def embed(self, x: Tensor) -> Tensor:
        """The features of frames, (..., D) -> (..., F)."""
        flat = self.features(Batch(x.reshape(-1, x.shape[-1])))
        return flat.reshape(*x.shape[:-1], -1)


def with_flags(step: Space, flags: Sequence[int]) -> Space:
    """The space of a frame of which the channels `flags` are 0 or 1: a row of columns."""
    if not flags:
        return step
    columns = tuple(
        replace(part, kind="binary", mean=(0.5,), scale=(0.5,)) if channel in flags else part
        for channel, part in enumerate(replace(step, flags=()).parts)
    )
    return Space(kind="columns", shape=(len(columns),), rows=step.rows, columns=columns)


def repeat_entries(step: Space, times: int) -> Space:
    """The space of consecutive steps as one vector."""
    if step.columns:
        every = step.columns * times
        return Space(kind="columns", shape=(len(every),), rows=step.rows, columns=every)
    tables = (step.spread(name).repeat(times) for name in STATISTICS)
    return vector(step, *tables)


@dataclass(frozen=True)
class Frames:
    """Rows as T frames of D entries."""

    x: Tensor  # (B, T, D)
    present: Tensor  # (B, T, D): which entries are within the length of the row
    context: Tensor | None  # (B, 1 or T + 1, K)
    row: Tensor  # (B,): keys of the noise of a likelihood
    steps: int  # the steps of the rows, before they were joined to frames

    @property
    def exist(self) -> Tensor:
        """Which frames are within the length of the row, if only its first steps, (B, T)."""
        return self.present[..., 0]

    def take(self, rows: Tensor) -> Frames:
        """Some of the rows."""
        context = None if self.context is None else self.context[rows]
        return Frames(self.x[rows], self.present[rows], context, self.row[rows], self.steps)


@dataclass(frozen=True)
class StepCodes:
    """Codes of frames, their prior N(mean, scale^2) and the posterior relative to it."""

    z: Tensor  # (..., Z), as are the others
    mean: Tensor
    log_scale: Tensor
    shift: Tensor  # delta
    stretch: Tensor  # log rho

    @property
    def whitened(self) -> Tensor:
        return (self.z - self.mean) * (-self.log_scale).exp()

    @property
    def log_prior(self) -> Tensor:
        return (normal_log_prob(self.whitened) - self.log_scale).sum(-1)

    @property
    def log_posterior(self) -> Tensor:
        noise = (self.whitened - self.shift) * (-self.stretch).exp()
        return (normal_log_prob(noise) - self.log_scale - self.stretch).sum(-1)

    @property
    def kl(self) -> Tensor:
        return kl_to_standard_normal(self.shift, self.stretch)  # (..., Z)

    def unflatten(self, shape: tuple[int, int]) -> StepCodes:
        """With the first axis unflattened to this shape."""
        return StepCodes(*(part.unflatten(0, shape) for part in self.tensors()))

    def tensors(self) -> tuple[Tensor, ...]:
        return self.z, self.mean, self.log_scale, self.shift, self.stretch

    @classmethod
    def concat(cls, parts: Sequence[StepCodes], axis: int) -> StepCodes:
        """Levels side by side along the last axis, or steps along a new one."""
        each = zip(*(part.tensors() for part in parts), strict=True)
        if axis == -1:
            return cls(*(torch.cat(one, -1) for one in each))
        return cls(*(torch.stack(one, axis) for one in each))


class GaussianNet(nn.Module):
    """Mean and log-scale of a Gaussian from a vector; near N(0, 1) at initialisation."""

    def __init__(self, config: MLP.Config, inputs: int, outputs: int) -> None:
        super().__init__()
        self.net: MLP = config.build(inputs, 2 * outputs)
        with torch.no_grad():
            self.net.out.weight.mul_(0.1)
            self.net.out.bias.zero_()

    def forward(self, *parts: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.net(torch.cat(parts, -1)).chunk(2, -1)
        return mean, bound_log_scale(raw)
