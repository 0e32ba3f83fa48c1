"""Settings given as `key=value`, sorted by what they concern: `width=64 train.lr=1e-3`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .config import Config

PREFIXES = ("train", "data", "sample", "score")


@dataclass(frozen=True)
class Overrides:
    """Settings by prefix, the prefix removed: none for the model, `train.` for training, `data.`
    for the dataset, `sample.` for sampling, `score.` for log-likelihoods."""

    model: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    sample: tuple[str, ...] = ()
    score: tuple[str, ...] = ()

    @classmethod
    def parse(cls, settings: Sequence[str]) -> Overrides:
        found: dict[str, list[str]] = {name: [] for name in ("model", *PREFIXES)}
        for setting in settings:
            prefix, dot, rest = setting.partition(".")
            if dot and prefix in PREFIXES:
                found[prefix].append(rest)
            else:
                found["model"].append(setting)
        return cls(**{name: tuple(each) for name, each in found.items()})


def apply_overrides(options: Config, settings: Sequence[str], prefix: str) -> Config:
    """Options of sampling or scoring with settings applied; `prefix` may stand before each."""
    return options.override(*(setting.removeprefix(f"{prefix}.") for setting in settings))
