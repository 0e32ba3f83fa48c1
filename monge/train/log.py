"""The training log of a run (log.jsonl), and means of losses logged as tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.files import replacing


def mean_values(
    logged: list[tuple[int, str, Tensor]],
) -> tuple[dict[str, float], tuple[int, str, float] | None]:
    """The mean of the values (step, name, value) of each name, and the first that is not finite.
    All are converted at once, since every conversion waits for the device."""
    values = torch.stack([value.float() for *_, value in logged]).tolist() if logged else []
    by_name: dict[str, list[float]] = {}
    for (step, name, _), value in zip(logged, values, strict=True):
        if not math.isfinite(value):
            return {}, (step, name, value)
        by_name.setdefault(name, []).append(value)
    return {name: sum(entries) / len(entries) for name, entries in by_name.items()}, None


class Log:
    """log.jsonl: one JSON object per line, truncated to the step of the checkpoint on resuming."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: Mapping[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def cut(self, step: int) -> None:
        """Remove the records after `step` and a half-written last line."""
        text = "".join(json.dumps(r) + "\n" for r in self if r["step"] <= step)
        with replacing(self.path) as fresh:
            fresh.write_text(text, encoding="utf-8")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return
