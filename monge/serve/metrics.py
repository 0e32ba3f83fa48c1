"""Counters of a server in the text format of Prometheus, shared by its worker processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Mapping
from multiprocessing.sharedctypes import RawArray
from threading import RLock
from typing import Any

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper ends of the histogram of seconds."""
STATUS = ("2xx", "4xx", "413", "422", "429", "503", "5xx")
HELP = {
    "monge_requests_total": ("counter", "Requests answered, by status."),
    "monge_request_seconds": ("histogram", "Seconds from a request to its answer."),
    "monge_rows_total": ("counter", "Rows, codes, texts or samples answered."),
    "monge_batches_total": ("counter", "Batches that the model computed."),
    "monge_in_flight": ("gauge", "Requests that are being answered."),
}


class Counters:
    """Numbers of all workers together, in memory that they share if there are several."""

    def __init__(self, tasks: Iterable[tuple[str, str]], shared: bool = False) -> None:
        names: list[tuple[str, tuple[tuple[str, str], ...]]] = []
        for run, task in tasks:
            base = (("run", run), ("task", task))
            names += [("monge_requests_total", (*base, ("status", code))) for code in STATUS]
            ends = [*(f"{end:g}" for end in BUCKETS), "+Inf"]
            names += [("monge_request_seconds_bucket", (*base, ("le", end))) for end in ends]
            names += [
                (name, base)
                for name in (
                    "monge_request_seconds_sum",
                    "monge_request_seconds_count",
                    "monge_rows_total",
                    "monge_batches_total",
                    "monge_in_flight",
                )
            ]
        self.place = {name: number for number, name in enumerate(names)}
        self.lock: Any = multiprocessing.get_context("spawn").RLock() if shared else RLock()
        self.values: Any = RawArray("d", len(names)) if shared else [0.0] * len(names)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        with self.lock:
            self.values[self.place[name, tuple(labels.items())]] += amount

    def answered(self, run: str, task: str, status: int, seconds: float, rows: int) -> None:
        """Count a request that has been answered."""
        code = str(status) if str(status) in STATUS else f"{status // 100}xx"
        code = code if code in STATUS else "5xx"
        base = (("run", run), ("task", task))
        with self.lock:
            self.values[self.place["monge_requests_total", (*base, ("status", code))]] += 1
            self.values[self.place["monge_request_seconds_sum", base]] += seconds
            self.values[self.place["monge_request_seconds_count", base]] += 1
            self.values[self.place["monge_rows_total", base]] += rows
            for end in (*BUCKETS, None):
                if end is None or seconds <= end:
                    label = "+Inf" if end is None else f"{end:g}"
                    key = ("monge_request_seconds_bucket", (*base, ("le", label)))
                    self.values[self.place[key]] += 1

    def text(self) -> str:
        """All counters, each kind after its help."""
        with self.lock:
            values = list(self.values)
        lines = []
        for title, (kind, text) in HELP.items():
            lines += [f"# HELP {title} {text}", f"# TYPE {title} {kind}"]
            for (name, labels), place in self.place.items():
                if name == title or (kind == "histogram" and name.startswith(f"{title}_")):
                    lines.append(f"{name}{written(dict(labels))} {values[place]:g}")
        return "\n".join(lines) + "\n"


def written(labels: Mapping[str, str]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items()) + "}"
