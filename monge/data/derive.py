"""Words after a plus, found among the functions of `transform` and applied to what they fit."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..core.error import DataError, WordError, nearest
from . import transform
from .catalogue import listing
from .codec import Codec
from .shaped import Array


@dataclass(frozen=True)
class Change:
    """One word, such as resize64: a function of `transform` and its number."""

    word: str
    function: str
    numbers: tuple[int, ...]

    def __call__(self, codec: Array, x: Tensor) -> tuple[Array, Tensor]:
        return getattr(transform, self.function)(codec, x, *self.numbers)


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


def side(changes: Sequence[Change]) -> int | None:
    """What pictures of mixed sizes are to be brought to as they are read."""
    return next((c.numbers[0] for c in changes if c.function == "resize"), None)


def apply(change: Change, codecs: dict[str, Codec], tensors: dict[str, Tensor], name: str) -> None:
    """Every field of levels changed; pictures where the word is about pictures."""
    pictures = change.function in ("resize", "grey")
    fitting = {field: codec for field, codec in codecs.items() if isinstance(codec, Array)
               and codec.kind == "levels" and (not pictures or len(codec.shape) == 3)}
    if not fitting:
        raise DataError(f"+{change.word} needs {'pictures' if pictures else 'levels'}, which "
                        f"{name} does not hold at that point; leave it out, or write it earlier")
    for field, codec in fitting.items():
        codecs[field], tensors[field] = change(codec, tensors[field])
