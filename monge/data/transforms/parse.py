"""Parses the transforms after a plus, the functions of `ops` and `pair_ops`, and applies them."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.errors import DataError, UsageError, nearest
from ..builtin.catalogue import listing
from ..codecs.array import Array
from ..codecs.base import Codec
from ..codecs.sound import Sound
from ..packed import FieldRows
from ..readers.base import ReadFormat

PICTURES = ("resize", "grey", "edges", "half", "beside", "low")
"""Transforms of images of levels."""
MODULES = ("ops", "pair_ops")
"""The modules whose functions are transforms."""


@dataclass(frozen=True)
class Change:
    """A transform such as resize64: a function and its argument."""

    text: str
    module: str
    function: str
    numbers: tuple[int, ...]

    def __call__(self, codec: Codec, x: FieldRows) -> tuple[Codec, FieldRows]:
        return self.call(codec, x, *self.numbers)

    def apart(
        self, codec: Codec, x: FieldRows
    ) -> tuple[tuple[Codec, FieldRows], tuple[Codec, FieldRows]]:
        """The two sides that a transform into pairs makes of one field."""
        return self.call(codec, x, *self.numbers)

    @property
    def call(self) -> Callable[..., Any]:
        """The function, imported when a transform is used: it works on tensors."""
        return getattr(importlib.import_module(f".{self.module}", __package__), self.function)

    @property
    def pairs(self) -> bool:
        """Whether it makes pairs of images."""
        return self.module == "pair_ops"

    @property
    def takes(self) -> type[Codec]:
        """The type of codec that the function takes."""
        return typing.get_type_hints(self.call)["codec"]


def find(transforms: Sequence[str]) -> list[Change]:
    return [change(text) for text in transforms]


def change(text: str) -> Change:
    known = {
        name.replace("_", "-"): module
        for module in MODULES
        for name, _ in listing(f"transforms/{module}")
    }
    parts = re.fullmatch(r"(.*?)(\d*)", text)
    name, digits = (parts[1], parts[2]) if parts else (text, "")
    if name not in known:
        raise UsageError(f"there is no transform +{text}{nearest(name, known)}")
    found = Change(text, known[name], name.replace("-", "_"), ())
    takes = len(inspect.signature(found.call).parameters) - 2
    numbers = (int(digits),) if digits else ()
    if len(numbers) != takes or 0 in numbers:
        raise UsageError(f"+{text} must be written +{name}{'64' * takes}")
    return replace(found, numbers=numbers)


def form(changes: Sequence[Change]) -> ReadFormat:
    """The format that files of different formats are converted to when read."""
    first = {change.function: change.numbers for change in reversed(changes)}
    (side,), (rate,) = first.get("resize", (None,)), first.get("resample", (None,))
    return ReadFormat(side, rate, "mono" in first)


def apply(
    change: Change, codecs: dict[str, Codec], tensors: dict[str, FieldRows], name: str
) -> None:
    """Apply the transform to every field it takes."""
    fitting = [field for field, codec in codecs.items() if fits(change, codec)]
    if not fitting:
        raise DataError(
            f"+{change.text} needs {needs(change)}, which {name} does not hold at "
            "that point; remove it, or write it earlier"
        )
    for field in fitting:
        codecs[field], tensors[field] = change(codecs[field], tensors[field])


def fits(change: Change, codec: Codec) -> bool:
    """Whether a transform takes this codec, by the annotation of its function."""
    if not isinstance(codec, change.takes):
        return False
    if isinstance(codec, Array):
        shaped = len(codec.shape) == 3 or change.function not in PICTURES
        return codec.kind == "levels" and shaped
    return not (isinstance(codec, Sound) and codec.mulaw and change.takes is Sound)


def needs(change: Change) -> str:
    if change.takes is Array:
        return "images" if change.function in PICTURES else "levels"
    return "sound that is not mu-law yet" if change.takes is Sound else "sequences"
