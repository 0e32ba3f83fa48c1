"""The user's words sorted by whom they concern: `width=64 train.rate=1e-3 data.rows=500`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .config import Config

HEADS = ("train", "data", "how")


@dataclass(frozen=True)
class Words:
    """Bare names are fields of the model; `train.` the recipe's, `data.` the source's, `how.` of
    sampling and scoring. Heads are taken off."""

    model: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    how: tuple[str, ...] = ()

    @classmethod
    def sort(cls, words: Sequence[str]) -> Words:
        sorted_words: dict[str, list[str]] = {head: [] for head in ("model", *HEADS)}
        for word in words:
            head, dot, rest = word.partition(".")
            if dot and head in HEADS:
                sorted_words[head].append(rest)
            else:
                sorted_words["model"].append(word)
        return cls(**{head: tuple(found) for head, found in sorted_words.items()})


def said(how: Config, words: Sequence[str]) -> Config:
    """How to sample or score, as words say; `how=ode` is said of the first choice there is, such
    as the method."""
    first = next(iter(how.__dataclass_fields__), "how")
    return how.override(*(f"{first}={word[4:]}" if word.startswith("how=") else word
                          for word in words))
