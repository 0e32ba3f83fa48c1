"""The settings that a search varies: those of the model and its training, or those that the user
gives as KEY=LOW..HIGH or KEY=A|B."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from ..core.config import Config, Range, as_text, hints, number, part_with
from ..core.errors import UsageError
from ..core.train_config import TrainConfig

WIDER = 4
"""A number is varied from its default divided by this to its default times this."""
WIDER_RATE = 10
"""The same of the learning rate."""
LOG_FROM = 10
"""Positive ranges whose ends differ by this factor or more are searched by their logarithm."""
TO, OR = "..", "|"


@dataclass(frozen=True)
class Dimension:
    """A setting with the range or the choices of its values."""

    name: str
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    choices: tuple[str, ...] = ()  # as they are typed

    @property
    def log(self) -> bool:
        """Whether values are spread evenly by their logarithm."""
        return self.low > 0 and self.high >= LOG_FROM * self.low

    def suggest(self, trial: Any) -> str:
        """The setting that an Optuna trial tries."""
        if self.choices:
            return f"{self.name}={trial.suggest_categorical(self.name, self.choices)}"
        if self.whole:
            value = trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        else:
            value = trial.suggest_float(self.name, self.low, self.high, log=self.log)
        return f"{self.name}={value}"

    def nearest(self, value: Any) -> Any:
        """The value nearest to this one, as Optuna has it; the first choice if it is none."""
        if self.choices:
            text = as_text(value, self.name)
            return text if text in self.choices else self.choices[0]
        if not isinstance(value, int | float):
            return self.low
        return min(max(value, self.low), self.high)

    def __str__(self) -> str:
        if self.choices:
            return f"{self.name}={OR.join(self.choices)}"
        low, high = (int(end) if self.whole else end for end in (self.low, self.high))
        return f"{self.name}={low:g}{TO}{high:g}"


def default_dimensions(config: Config, train_config: TrainConfig, rows: int) -> list[Dimension]:
    """The learning rate, the batch size, and every setting of the model that has a range or
    choices."""
    rate, size = train_config.lr, min(train_config.batch_size, rows)
    batch = Dimension(
        "train.batch_size", max(size // WIDER, 1), min(size * WIDER, rows), whole=True
    )
    found = [Dimension("train.lr", rate / WIDER_RATE, rate * WIDER_RATE), batch]
    return [each for each in [*found, *of_config(config)] if each.choices or each.low < each.high]


def of_config(config: Config, prefix: str = "") -> Iterator[Dimension]:
    """The dimensions of a configuration and of those nested in it."""
    for field, kind in hints(type(config)).items():  # type: ignore[arg-type]
        name, value = f"{prefix}{field}", getattr(config, field)
        if isinstance(value, Config):
            yield from of_config(value, f"{name}.")
        elif isinstance(value, bool):
            yield Dimension(name, choices=("false", "true"))
        elif get_origin(kind) is Literal:
            yield Dimension(name, choices=tuple(map(str, get_args(kind))))
        elif get_origin(kind) is Annotated and isinstance(value, int | float):
            yield from of_number(name, value, get_args(kind))


def of_number(name: str, value: float, hint: Sequence[Any]) -> Iterator[Dimension]:
    """A fraction is varied over its whole range, another number around its default."""
    limits = next((each for each in hint if isinstance(each, Range)), Range())
    low = -math.inf if limits.low is None else limits.low
    high = math.inf if limits.high is None else limits.high
    if hint[0] is float and high <= 1 and low == 0 and not limits.open:
        yield Dimension(name, low, high)
    elif hint[0] in (int, float) and value > 0:
        whole = hint[0] is int
        least = max(value // WIDER, 1) if whole else value / WIDER
        yield Dimension(name, max(least, low), min(value * WIDER, high), whole)


def value_at(config: Config, train_config: TrainConfig, name: str) -> Any:
    """The value of a setting in these configurations."""
    head, _, rest = name.partition(".")
    at: Any = train_config if head == "train" else config
    for part in (rest if head == "train" else name).split("."):
        kind: Any = type(at)
        while part not in hints(kind):  # the name of a nested configuration was left out
            at = getattr(at, part_with(at, part, hints(kind)))
            kind = type(at)
        at = getattr(at, part)
    return at


def split_settings(settings: Sequence[str]) -> tuple[list[str], list[Dimension]]:
    """The settings with one value, and the dimensions of the others."""
    fixed, found = [], []
    for setting in settings:
        name, equals, text = setting.partition("=")
        if equals and OR in text:
            found.append(Dimension(name, choices=tuple(text.split(OR))))
        elif equals and TO in text and not name.startswith("data."):
            found.append(range_of(setting, name, *text.split(TO, 1)))
        else:
            fixed.append(setting)
    return fixed, found


def range_of(setting: str, name: str, low: str, high: str) -> Dimension:
    ends = [number(float, end) for end in (low, high)]
    if not all(isinstance(end, float) and math.isfinite(end) for end in ends) or not (
        ends[0] < ends[1]
    ):
        raise UsageError(
            f"expected two numbers, the smaller one first, found {setting!r}; write it as "
            f"{name}=0.1{TO}10"
        )
    return Dimension(
        name, ends[0], ends[1], all(end.strip("+-").isdecimal() for end in (low, high))
    )
