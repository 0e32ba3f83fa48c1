"""The history of a run, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.files import replacing


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
