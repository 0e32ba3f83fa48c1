"""Batches: rows of events with their conditions, observation masks and lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .errors import DataError
from .space import Space


@dataclass(frozen=True)
class Batch:
    """Rows of events in the units of the data, each with its conditions.

    Examples
    --------
    >>> import torch
    >>> from monge import Batch
    >>> batch = Batch(torch.zeros(5, 4), given={"label": Batch(torch.arange(5))})
    >>> len(batch[:2]), batch[:2].given["label"].x
    (2, tensor([0, 1]))
    """

    x: Tensor  # (B, *event)
    given: Mapping[str, Batch] = field(default_factory=dict)
    observed: Tensor | None = None  # (B, *event[:k]): false where a value is missing
    length: Tensor | None = None  # (B,): steps of each row; the rest is padding
    row: Tensor | None = None  # (B,): row number in the split
    step: int = 0  # training step, for warm-ups
    weight: Tensor | None = None  # (B,): how much each row counts in a mean over rows; 1 if None

    def __len__(self) -> int:
        return len(self.x)

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to every tensor of the tree."""

        def maybe(value: Tensor | None) -> Tensor | None:
            return None if value is None else change(value)

        given = {name: part.map(change) for name, part in self.given.items()}
        return replace(
            self,
            x=change(self.x),
            given=given,
            observed=maybe(self.observed),
            length=maybe(self.length),
            row=maybe(self.row),
            weight=maybe(self.weight),
        )

    def __getitem__(self, rows: Any) -> Batch:
        return self.map(lambda value: value[rows])

    def to(self, where: Any) -> Batch:
        """Every tensor moved to a device or converted to a dtype, as `Tensor.to` does."""
        return self.map(lambda value: value.to(where))

    def sent_to(self, device: torch.device) -> Batch:
        """The rows on a device of torch. From pinned memory CUDA copies them while the processor
        goes on; other devices copy at once."""
        if device.type != "cuda":
            return self.to(device)
        return self.map(
            lambda v: v if v.device == device else v.pin_memory().to(device, non_blocking=True)
        )

    def double(self) -> Batch:
        """Floating-point values in float64; integers stay."""
        return self.map(lambda v: v.double() if v.is_floating_point() else v)

    def chunk(self, pieces: int) -> list[Batch]:
        """Consecutive pieces of nearly equal size."""
        return [self[part] for part in torch.arange(len(self)).chunk(pieces)]

    def hide(self, hidden: Tensor, space: Space) -> Batch:
        """The same rows with the cells `hidden` (B, *event) unknown, and a value of the support in
        their place."""
        mean = space.spread("mean").to(self.x)
        kinds = [part.kind for part in space.columns] or [space.kind]
        number = torch.tensor([kind in ("real", "counts") for kind in kinds], device=mean.device)
        whole = torch.tensor([kind == "counts" for kind in kinds], device=mean.device)
        filling = torch.where(whole, mean.round(), mean) * number
        x = torch.where(hidden, filling.to(self.x.dtype), self.x)
        return replace(self, x=x, observed=self.observed_mask & ~hidden)

    @property
    def rows(self) -> Tensor:
        """Row numbers that key the noise of a bound; 0, 1, ... by default."""
        return torch.arange(len(self), device=self.x.device) if self.row is None else self.row

    @property
    def observed_mask(self) -> Tensor:
        """`observed` in the full shape of x; all true if nothing is missing."""
        if self.observed is None:
            return torch.ones_like(self.x, dtype=torch.bool)
        extra = (1,) * (self.x.ndim - self.observed.ndim)
        return self.observed.reshape(*self.observed.shape, *extra).expand_as(self.x)


def join_batches(batches: Sequence[Batch]) -> Batch:
    """The rows of several batches of one shape, in order."""

    def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
        there = [part for part in parts if part is not None]
        return torch.cat(there) if there else None

    first = batches[0]
    return replace(
        first,
        x=torch.cat([batch.x for batch in batches]),
        given={
            name: join_batches([batch.given[name] for batch in batches]) for name in first.given
        },
        observed=joined([batch.observed for batch in batches]),
        length=joined([batch.length for batch in batches]),
        row=joined([batch.row for batch in batches]),
    )


def as_batch(question: Batch | Tensor) -> Batch:
    """A bare tensor means `Batch(x)`."""
    return question if isinstance(question, Batch) else Batch(question)


def repeated_row(given: Mapping[str, Batch], n: int) -> dict[str, Batch] | None:
    """The one row of which the conditions of n rows are repetitions without a copy, or that they
    are; None if they are others, or none."""

    def single(value: Tensor | None) -> bool:
        return value is None or len(value) == 1 or (len(value) == n and value.stride(0) == 0)

    tensors = [each for part in given.values() for each in (part.x, part.observed, part.length)]
    if not tensors or not n or not all(map(single, tensors)):
        return None
    return {name: part[:1] for name, part in given.items()}


def broadcast_conditions(given: Mapping[str, Batch], space: Space, n: int) -> dict[str, Batch]:
    """Validate the conditions of `space` and give each `n` rows; a single row is repeated."""
    for name in given:
        if name not in space.given:
            known = ", ".join(space.given) or "none"
            raise DataError(
                f"this model was not conditioned on {name!r} (conditions: {known}); remove it, "
                f"or refit with --given {name}"
            )
    ready = {}
    for name in space.given:
        if name not in given:
            raise DataError(
                f"the model needs a value of {name!r} for each row; give it with "
                f"--given {name}=VALUE, in Python with given={{{name!r}: VALUE}}"
            )
        part = given[name]
        if len(part) == 1 and n != 1:
            part = part.map(lambda value: value.expand(n, *value.shape[1:]))
        if len(part) != n:
            raise DataError(f"expected 1 or {n} rows of {name!r}, found {len(part)}")
        ready[name] = part
    return ready
