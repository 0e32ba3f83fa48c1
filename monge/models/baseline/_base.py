"""Base of closed-form baselines: flat rows, a fit without gradients, exact marginals.

A baseline keeps its state in buffers and rewrites them in one update over all training rows
(counting, or a pass of EM). Missing entries are summed or integrated out, in fitting and in
scoring, and are sampled exactly given the others.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import CanComplete, CanSample, Given, HasLikelihood, Likelihood
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config
from ...core.errors import DataError
from ...core.model import Losses, Model, Update, is_exporting
from ...core.space import Space

MAX_BATCH_ELEMENTS = 2**22
"""Elements of a temporary tensor; more rows are processed in chunks."""
MAX_LABEL_COMBINATIONS = 1024
"""Combinations of labels that a model may be conditioned on."""


@dataclass(frozen=True)
class FlatRows:
    """A batch of flat rows; missing entries of x are 0.

    A missing entry may be an empty cell, unless the rows are to be completed.
    """

    x: Tensor  # (B, D)
    seen: Tensor  # (B, D)
    group: Tensor  # (B,): which combination of labels is given
    present: bool = False  # whether no missing entry is an empty cell

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor) -> FlatRows:
        return FlatRows(self.x[index], self.seen[index], self.group[index], self.present)

    def only(self, entries: Tensor) -> FlatRows:
        return FlatRows(self.x[:, entries], self.seen[:, entries], self.group, self.present)

    def split(self, width: int) -> Iterator[FlatRows]:
        """Chunks small enough to hold `width` numbers per row."""
        size = max(MAX_BATCH_ELEMENTS // max(width, 1), 1)
        parts = (value.split(size) for value in (self.x, self.seen, self.group))
        return (
            FlatRows(x, seen, group, self.present) for x, seen, group in zip(*parts, strict=True)
        )


Statistics = tuple[Tensor, ...]
"""Sufficient statistics: weighted sums over rows from which distributions are fitted."""


def add_statistics(some: Statistics, more: Statistics) -> Statistics:
    return tuple(a + b for a, b in zip(some, more, strict=True))


class DistributionSet(nn.Module, abc.ABC):
    """K distributions of the same D entries, any of them missing, fitted to weighted rows."""

    width: int
    """Numbers held per row while it is scored."""

    def fit(self, rows: FlatRows) -> None:
        """Fit what all distributions share to all rows."""

    @abc.abstractmethod
    def log_prob(self, x: Tensor, seen: Tensor, present: bool = False) -> Tensor:
        """log p of the observed entries of x (B, D) under each distribution, and if `present` of
        no missing entry being an empty cell, (B, K)."""

    @abc.abstractmethod
    def statistics(self, x: Tensor, seen: Tensor, weight: Tensor) -> Statistics:
        """E-step: expected statistics over rows with weights (B, K)."""

    @abc.abstractmethod
    def update(self, statistics: Statistics) -> None:
        """M-step: the most probable distributions given the statistics and the prior."""

    @abc.abstractmethod
    def penalty(self) -> Tensor:
        """Negative log prior of the distributions, up to a constant."""

    @abc.abstractmethod
    def sample(self, rows: FlatRows, which: Tensor, generator: Generator | None) -> Tensor:
        """x (B, D) with missing entries sampled from distribution `which` (B,) given the rest."""

    @abc.abstractmethod
    def features(self, x: Tensor, seen: Tensor) -> Tensor:
        """Rows as vectors with a meaningful Euclidean distance, (B, F)."""


class ClosedFormModel(Model, HasLikelihood, CanSample, CanComplete):
    """A model without trained parameters, fitted to all training rows at once."""

    supports_missing = True
    completion = "sampled given the observed values, which is exact"
    width: int
    """Numbers held per row while it is scored."""

    @abc.abstractmethod
    def fit_rows(self, batch: Batch) -> Losses:
        """Fit the buffers to all training rows; returns the terms to log."""

    @abc.abstractmethod
    def log_density(self, rows: FlatRows) -> Tensor:
        """log p of the observed entries of each row, (B,)."""

    @abc.abstractmethod
    def sample_missing(
        self, rows: FlatRows, options: Config | None, generator: Generator | None
    ) -> Tensor:
        """Rows with missing entries sampled given the observed ones, (B, D)."""

    def updates(self) -> Sequence[Update]:
        return [Update("count", self.fit_rows, whole=True)]

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        return Likelihood(self.log_densities(self.to_rows(as_batch(batch))), "exact")

    def log_densities(self, rows: FlatRows) -> Tensor:
        pieces = [rows] if is_exporting() else rows.split(self.width)
        return torch.cat([self.log_density(piece) for piece in pieces])

    def unobserved_rows(self, n: int, given: Given | None) -> FlatRows:
        """n rows of which every entry is missing, with their conditions."""
        conditions = broadcast_conditions(given or {}, self.space, n)
        group = combination_of(conditions, self.space, n).to(self.like.device)
        x = self.like.new_zeros(n, self.space.dims)
        return FlatRows(x, torch.zeros_like(x, dtype=torch.bool), group)

    def to_events(self, x: Tensor) -> Tensor:  # (n, D) -> (n, *event)
        x = x.reshape(len(x), *self.space.shape)
        return x.long() if self.space.kind == "label" else x

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: Config | None = None, generator: Generator | None = None
    ) -> Tensor:
        """x_missing ~ p(x_missing | x_observed, no missing entry is an empty cell), exactly."""
        rows = replace(self.to_rows(batch), present=True)
        x = self.sample_missing(rows, options, generator).reshape(batch.x.shape)
        return torch.where(batch.observed_mask, batch.x, x.to(batch.x.dtype))

    @property
    def like(self) -> Tensor:
        """A buffer with the dtype and device of the model."""
        return next(buffer for buffer in self.buffers() if buffer.is_floating_point())

    def to_rows(self, batch: Batch) -> FlatRows:
        n, like = len(batch), self.like
        group = combination_of(broadcast_conditions(batch.given, self.space, n), self.space, n)
        seen = observed_within_length(batch).reshape(n, -1)
        x = batch.x.reshape(n, -1).to(like)
        return FlatRows(torch.where(seen, x, 0), seen, group.to(like.device))

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if label_combinations(space) > MAX_LABEL_COMBINATIONS:
            return (
                f"expected at most {MAX_LABEL_COMBINATIONS} combinations of labels, found "
                f"{label_combinations(space)} of {', '.join(space.given)}; give fewer"
            )
        return None


def observed_within_length(batch: Batch) -> Tensor:
    """Which entries are observed and not padding, in the shape of x."""
    if batch.length is None:
        return batch.observed_mask
    steps = torch.arange(batch.x.shape[1], device=batch.x.device)
    inside = steps < batch.length[:, None]  # (B, T)
    return batch.observed_mask & inside.reshape(*inside.shape, *(1,) * (batch.x.ndim - 2))


def kinds_of(space: Space) -> list[str]:
    """The kind of each entry."""
    return [c.kind for c in space.columns] if space.columns else [space.kind] * space.dims


def label_combinations(space: Space) -> int:
    """How many combinations of labels the conditions can take."""
    return math.prod(part.size**part.dims for part in space.given.values())


def combination_of(given: Given, space: Space, n: int) -> Tensor:
    """The combination of labels of each row, (n,)."""
    group = torch.zeros(n, dtype=torch.long)
    for name, part in given.items():
        if not bool(part.observed_mask.all()):
            raise DataError(f"given {name!r} has missing values; fill them or drop their rows")
        size = space.given[name].size
        for label in part.x.reshape(n, -1).long().unbind(1):
            wrong = (label < 0) | (label >= size)
            if not is_exporting() and bool(wrong.any()):
                raise DataError(
                    f"given {name!r} must be a code from 0 to {size - 1} in every row; correct or "
                    "drop the other rows"
                )
            group = group.to(label.device) * size + label
    return group
