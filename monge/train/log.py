"""Values noted step by step as tensors and read all at once, since each reading stalls.

The history of a run, one JSON object a line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.files import replacing


def means(
    noted: list[tuple[int, str, Tensor]],
) -> tuple[dict[str, float], tuple[int, str, float] | None]:
    """The mean of what was noted under each name, and the first value that is not finite."""
    values = torch.stack([value.float() for *_, value in noted]).tolist() if noted else []
    sums: dict[str, list[float]] = {}
    for (step, name, _), value in zip(noted, values, strict=True):
        if not math.isfinite(value):
            return {}, (step, name, value)
        sums.setdefault(name, []).append(value)
    return {name: sum(entries) / len(entries) for name, entries in sums.items()}, None


class Log:
    """log.jsonl, appended to while training and cut to the checkpoint's step on resuming."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: Mapping[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def cut(self, step: int) -> None:
        """Forget what came after `step`, half-written last lines included."""
        kept = "".join(json.dumps(r) + "\n" for r in self if r["step"] <= step)
        with replacing(self.path) as fresh:
            fresh.write_text(kept, encoding="utf-8")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return
