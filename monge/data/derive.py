"""Words after a plus, found among the functions of `transform` and applied to what they fit."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.error import DataError, WordError, nearest
from . import transform
from .audio import Sound
from .catalogue import listing
from .codec import Codec
from .ragged import Kept
from .raw import Form
from .shaped import Array

PICTURES = ("resize", "grey")
"""Transforms of levels that stand in rows and columns."""


@dataclass(frozen=True)
class Change:
    """One word, such as resize64: a function of `transform` and its number."""

    word: str
    function: str
    numbers: tuple[int, ...]

    def __call__(self, codec: Codec, x: Kept) -> tuple[Codec, Kept]:
        return getattr(transform, self.function)(codec, x, *self.numbers)

    @property
    def takes(self) -> type[Codec]:
        """The codec that the function is about."""
        return typing.get_type_hints(getattr(transform, self.function))["codec"]


def find(words: Sequence[str]) -> list[Change]:
    return [change(word) for word in words]


def change(word: str) -> Change:
    known = [name.replace("_", "-") for name, _ in listing("transform")]
    parts = re.fullmatch(r"(.*?)(\d*)", word)
    name, digits = (parts[1], parts[2]) if parts else (word, "")
    if name not in known:
        raise WordError(f"there is no transform +{word}{nearest(name, known)}")
    function = name.replace("-", "_")
    takes = len(inspect.signature(getattr(transform, function)).parameters) - 2
    numbers = (int(digits),) if digits else ()
    if len(numbers) != takes or 0 in numbers:
        raise WordError(f"+{word} must be written +{name}{'64' * takes}")
    return Change(word, function, numbers)


def form(changes: Sequence[Change]) -> Form:
    """What files that differ are to be brought to as they are read."""
    first = {change.function: change.numbers for change in reversed(changes)}
    (side,), (rate,) = first.get("resize", (None,)), first.get("resample", (None,))
    return Form(side, rate, "mono" in first)


def apply(change: Change, codecs: dict[str, Codec], tensors: dict[str, Kept], name: str) -> None:
    """Every field that the word is about changed."""
    fitting = [field for field, codec in codecs.items() if fits(change, codec)]
    if not fitting:
        raise DataError(f"+{change.word} needs {needs(change)}, which {name} does not hold at "
                        "that point; leave it out, or write it earlier")
    for field in fitting:
        codecs[field], tensors[field] = change(codecs[field], tensors[field])


def fits(change: Change, codec: Codec) -> bool:
    """Whether a function of `transform` takes such a codec, as its annotation says."""
    if not isinstance(codec, change.takes):
        return False
    if isinstance(codec, Array):
        shaped = len(codec.shape) == 3 or change.function not in PICTURES
        return codec.kind == "levels" and shaped
    return not (isinstance(codec, Sound) and codec.mulaw and change.takes is Sound)


def needs(change: Change) -> str:
    if change.takes is Array:
        return "pictures" if change.function in PICTURES else "levels"
    return "sound that is not mu-law yet" if change.takes is Sound else "sequences"
