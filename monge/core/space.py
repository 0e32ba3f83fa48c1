"""Spaces: shape, kind and training statistics of an event and of its conditions.

A `Space` is a tree like a `Batch`: `given` holds one Space for each condition. It is a Config, so
it is stored as JSON with a run. Statistics come from training rows only. What makes tensors
imports torch when it is called, as describing a table makes none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from .config import Config, Range
from .errors import UsageError, shown

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["real", "binary", "levels", "label", "counts", "tokens", "columns"]


MAX_EXACT = 2.0**63
"""Largest statistic of whole numbers; larger ones cannot be turned into codes."""


class Space(Config):
    """The set an event x lives in.

    real: any number; binary: 0 or 1; levels: ordered integers 0..size-1; label: names without
    order, coded 0..size-1; counts: integers without limits; tokens: symbols 0..size-1 in a
    sequence; columns: a table row (D,), each column with a Space of its own.

    Examples
    --------
    >>> import monge
    >>> monge.Space(kind="levels", shape=(1, 8, 8), size=17).dims
    64
    """

    tag = "data/space"
    kind: Kind
    """What the values are."""
    shape: tuple[int, ...] = ()
    """Shape of one event: () a number, (D,) a vector, (C, H, W) an image, (T, ...) a sequence."""
    size: Annotated[int, Range(0)] = 0
    """Number of levels, labels or tokens; 0 for other kinds."""
    varies: bool = False
    """Whether rows differ in length (`Batch.length`); shape[0] is then the largest length."""
    end: int | None = None
    """Tokens: the symbol that ends a sequence; it is scored once."""
    flags: tuple[int, ...] = ()
    """Real sequences (T, C): the channels that are 0 or 1 at every step, such as a lifted pen."""
    rate: Annotated[int, Range(0)] = 0
    """Sound: samples per second, of amplitudes on a linear scale; 0 for other data."""
    name: str = ""
    """The name of the field or column."""
    mean: tuple[float, ...] = (0.0,)
    """Mean over training rows: one value, or one per entry of a vector or image channel."""
    scale: tuple[float, ...] = (1.0,)
    """Standard deviation over training rows, in the layout of `mean`; 1 where it would be 0."""
    low: tuple[float, ...] = (0.0,)
    """Smallest training value, in the layout of `mean`."""
    high: tuple[float, ...] = (1.0,)
    """Largest training value, in the layout of `mean`."""
    rows: Annotated[int, Range(0)] = 0
    """Number of training rows the statistics come from."""
    missing: bool = False
    """Whether some training values are missing."""
    optional: bool = False
    """Whether a cell may be empty, which is a value of its own: NaN for a number, the last code
    for a label."""
    atoms: tuple[float, ...] = ()
    """Real numbers of shape (): values that have a probability instead of a density."""
    lower: float | None = None
    """Numbers of shape (): the natural lower bound; None for none."""
    upper: float | None = None
    """Numbers of shape (): the natural upper bound; None for none."""
    columns: tuple[Space, ...] = ()
    """Columns: the Space of each, all of shape ()."""
    given: Mapping[str, Space] = field(default_factory=dict)
    """The Space of each condition."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mean", "scale", "low", "high"):
            values = getattr(self, name)
            limit = math.inf if self.kind == "real" else MAX_EXACT
            groups = self.shape[:1] if len(self.shape) == 3 else self.shape[-1:]  # or channels
            entries = groups[0] if groups and self.kind != "columns" else 1
            if len(values) not in (1, entries) or not all(abs(value) <= limit for value in values):
                raise UsageError(
                    f"expected one number, or one for each of {entries}, in {name}, found "
                    f"{shown(values)}"
                )
        bounds = [bound for bound in (self.lower, self.upper) if bound is not None]
        if not all(map(math.isfinite, bounds)) or bounds != sorted(bounds):
            raise UsageError(
                f"expected bounds that are numbers, the lower one first, found {shown(bounds)}"
            )
        if self.kind in ("binary", "levels", "label"):
            codes, last = (*self.low, *self.high), max(self.size, 2) - 1
            if not all(0 <= code <= last for code in codes):
                raise UsageError(f"expected low and high from 0 to {last}, found {shown(codes)}")
        if self.kind == "columns" and self.shape != (len(self.columns),):
            raise UsageError(
                f"expected the shape ({len(self.columns)},) of {len(self.columns)} columns, "
                f"found {self.shape}"
            )

    @property
    def dims(self) -> int:
        """Number of entries of an event; bits/dim divides by it."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether values are numbers with channels, lines and columns."""
        shown = self.kind in ("real", "binary", "levels") and not self.varies
        return shown and len(self.shape) == 3

    @property
    def is_plain(self) -> bool:
        """Whether no cell may be empty, and numbers have neither atoms nor bounds."""
        if self.columns:
            return all(column.is_plain for column in self.columns)
        bounded = self.lower is not None or self.upper is not None
        return not (self.optional or self.atoms or bounded)

    def empty(self, x: Tensor) -> Tensor:
        """Which cells of rows x (B, *event) are empty, as opposed to unknown."""
        import torch

        parts = self.columns or (self,)
        if not any(part.optional for part in parts):
            return torch.zeros_like(x, dtype=torch.bool)
        codes = [
            part.size - 1.0 if part.optional and part.kind == "label" else torch.nan
            for part in parts
        ]
        optional = torch.tensor([part.optional for part in parts], device=x.device)
        last = torch.tensor(codes, device=x.device, dtype=torch.float64)
        return (x.isnan() | (x == last)) & optional if self.columns else x.isnan() | (x == last[0])

    @cached_property
    def parts(self) -> tuple[Space, ...]:
        """One scalar Space for each of the `dims` entries, in row-major order."""
        if self.kind == "columns":
            return self.columns
        names = ("mean", "scale", "low", "high")
        # numpy, as a model may be built from shapes alone, where each number of a tensor is slow
        tables = [np.broadcast_to(self.array(name), self.shape).ravel().tolist() for name in names]
        return tuple(
            Space(
                kind=self.kind,
                size=self.size,
                name=self.name,
                rows=self.rows,
                mean=(m,),
                scale=(s,),
                low=(a,),
                high=(b,),
                missing=self.missing,
                optional=self.optional,
                atoms=self.atoms,
                lower=self.lower,
                upper=self.upper,
            )
            for m, s, a, b in zip(*tables, strict=True)
        )

    def statistic(self, name: str) -> Tensor:
        """`mean`, `scale`, `low` or `high` as a tensor that broadcasts against an event."""
        import torch

        if self.kind == "columns":
            return torch.tensor([getattr(column, name)[0] for column in self.columns])
        return torch.tensor(getattr(self, name)).reshape(self.array(name).shape)

    def array(self, name: str) -> NDArray[np.float32]:
        """A statistic that is not one of columns, as an array that broadcasts against an event."""
        with np.errstate(over="ignore"):  # beyond single precision numbers are infinite
            values = np.asarray(getattr(self, name), np.float32)
        if len(values) == 1:
            return values.reshape((1,) * len(self.shape))
        return values.reshape(-1, 1, 1) if len(self.shape) == 3 else values

    def spread(self, name: str) -> Tensor:
        """A statistic in the full shape of an event."""
        return self.statistic(name).expand(self.shape)

    def __str__(self) -> str:
        what = {
            "real": "real numbers",
            "binary": "binary values",
            "counts": "counts",
            "levels": f"{self.size} levels",
            "label": f"{self.size} labels",
            "tokens": f"tokens of {self.size} symbols",
            "columns": "columns",
        }[self.kind]
        shape = "x".join(map(str, self.shape))
        if self.kind == "columns":
            return f"{shape} column{'s' * (shape != '1')}"
        if self.varies:
            return f"{what} of shape {shape} at most"
        single = {"real": "one real number", "binary": "one binary value", "counts": "one count"}
        return f"{what} of shape {shape}" if shape else single.get(self.kind, f"one of {what}")
