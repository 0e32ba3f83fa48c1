"""What the references share: rows laid out flat, a fit without gradients, exact marginals.

A reference keeps its whole state in buffers and rewrites them in one `whole` turn (counting, or a
pass of EM). Its laws are closed under marginalisation, so an entry that was not seen is summed or
integrated out, in fitting and in scoring alike, and is drawn exactly given the others.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import CanComplete, CanSample, Given, HasLikelihood, Likelihood
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config
from ...core.errors import DataError
from ...core.model import Losses, Model, Update
from ...core.space import Space

CHUNK = 2**22
"""Numbers a temporary tensor may hold; longer tables are worked through in pieces."""
GROUPS = 1024
"""Combinations of labels a law may be given."""


@dataclass(frozen=True)
class Rows:
    """A batch laid out flat; where an entry was not seen, x is 0."""

    x: Tensor  # (B, D)
    seen: Tensor  # (B, D)
    group: Tensor  # (B,): which combination of labels is given

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor) -> Rows:
        return Rows(self.x[index], self.seen[index], self.group[index])

    def only(self, entries: Tensor) -> Rows:
        return Rows(self.x[:, entries], self.seen[:, entries], self.group)

    def split(self, width: int) -> Iterator[Rows]:
        """Pieces of which `width` numbers a row may be held at once."""
        size = max(CHUNK // max(width, 1), 1)
        parts = (value.split(size) for value in (self.x, self.seen, self.group))
        return (Rows(*piece) for piece in zip(*parts, strict=True))


Sums = tuple[Tensor, ...]
"""Sums over rows from which laws are made anew."""


def add(some: Sums, more: Sums) -> Sums:
    return tuple(a + b for a, b in zip(some, more, strict=True))


class Laws(nn.Module, abc.ABC):
    """K laws of the same D entries, of which any may be hidden, fitted to rows with weights."""

    width: int
    """Numbers held for each row while it is scored."""

    @abc.abstractmethod
    def log_prob(self, x: Tensor, seen: Tensor) -> Tensor:
        """log p of what was seen of x (B, D) under each law, (B, K)."""

    @abc.abstractmethod
    def sums(self, x: Tensor, seen: Tensor, weight: Tensor) -> Sums:
        """E-step: expected sums over rows with weights (B, K)."""

    @abc.abstractmethod
    def update(self, sums: Sums) -> None:
        """M-step: the laws that the sums and the prior make most probable."""

    @abc.abstractmethod
    def penalty(self) -> Tensor:
        """- log prior of the laws, up to a constant."""

    @abc.abstractmethod
    def draw(self, x: Tensor, seen: Tensor, which: Tensor, generator: Generator | None) -> Tensor:
        """x (B, D) with what is hidden drawn from law `which` (B,) given what was seen."""

    @abc.abstractmethod
    def features(self, x: Tensor, seen: Tensor) -> Tensor:
        """Rows as vectors whose distance means something, (B, F)."""


class Reference(Model, HasLikelihood, CanSample, CanComplete):
    """A law without parameters, counted from all training rows at once."""

    supports_missing = True
    width: int
    """Numbers held for each row while it is scored."""

    @abc.abstractmethod
    def count(self, batch: Batch) -> Losses:
        """Fit the buffers to all training rows; the terms say how well."""

    @abc.abstractmethod
    def density(self, rows: Rows) -> Tensor:
        """log p of what was seen of each row, (B,)."""

    @abc.abstractmethod
    def draw(self, rows: Rows, options: Config | None, generator: Generator | None) -> Tensor:
        """Every entry of each row given what was seen of it, (B, D)."""

    def loss(self, batch: Batch) -> Losses:
        return {"nll": -self.log_prob(batch)}

    def updates(self) -> Sequence[Update]:
        return [Update("count", self.count, whole=True)]

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        return Likelihood(self.densities(self.rows(as_batch(batch))), "exact")

    def densities(self, rows: Rows) -> Tensor:
        return torch.cat([self.density(piece) for piece in rows.split(self.width)])

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        group = group_of(broadcast_conditions(given or {}, self.space, n), self.space, n).to(
            self.like.device
        )
        x = self.like.new_zeros(n, self.space.dims)
        rows = Rows(x, torch.zeros_like(x, dtype=torch.bool), group)
        drawn = self.draw(rows, options, generator).reshape(n, *self.space.shape)
        return drawn.long() if self.space.kind == "label" else drawn

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: Config | None = None, generator: Generator | None = None
    ) -> Tensor:
        drawn = self.draw(self.rows(batch), options, generator).reshape(batch.x.shape)
        return torch.where(batch.observed_mask, batch.x, drawn.to(batch.x.dtype))

    @property
    def like(self) -> Tensor:
        """A buffer whose dtype and device are the model's."""
        return next(buffer for buffer in self.buffers() if buffer.is_floating_point())

    def rows(self, batch: Batch) -> Rows:
        n, like = len(batch), self.like
        group = group_of(broadcast_conditions(batch.given, self.space, n), self.space, n)
        seen = within(batch).reshape(n, -1)
        x = batch.x.reshape(n, -1).to(like)
        return Rows(torch.where(seen, x, 0), seen, group.to(like.device))

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if groups_of(space) > GROUPS:
            return (
                f"{', '.join(space.given)} have {groups_of(space)} combinations of labels, "
                f"more than the {GROUPS} that can be counted apart; give fewer"
            )
        return None


def within(batch: Batch) -> Tensor:
    """What was seen and is no padding, in the shape of x."""
    if batch.length is None:
        return batch.observed_mask
    steps = torch.arange(batch.x.shape[1], device=batch.x.device)
    inside = steps < batch.length[:, None]  # (B, T)
    return batch.observed_mask & inside.reshape(*inside.shape, *(1,) * (batch.x.ndim - 2))


def kinds_of(space: Space) -> list[str]:
    """The kind of each entry."""
    return [c.kind for c in space.columns] if space.columns else [space.kind] * space.dims


def groups_of(space: Space) -> int:
    """How many combinations of labels the conditions can take."""
    return math.prod(part.size**part.dims for part in space.given.values())


def group_of(given: Given, space: Space, n: int) -> Tensor:
    """The combination of labels of each row, (n,)."""
    group = torch.zeros(n, dtype=torch.long)
    for name, part in given.items():
        if not bool(part.observed_mask.all()):
            raise DataError(f"given {name!r} has missing values; fill them or drop their rows")
        size = space.given[name].size
        for label in part.x.reshape(n, -1).long().unbind(1):
            if bool(((label < 0) | (label >= size)).any()):
                raise DataError(f"given {name!r} must be a code from 0 to {size - 1}")
            group = group.to(label.device) * size + label
    return group
