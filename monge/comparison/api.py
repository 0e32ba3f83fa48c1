"""`monge.compare`: fit several models to the same data, rank them and write the report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DataError
from ..core.files import replacing
from ..data.readers.tables import is_frame
from ..report.run import report
from ..run import storage
from . import ray_backend
from .leaderboard import Leaderboard
from .plan import make_plan
from .runner import BUDGET, Comparison, JobStarted, Outcome


def compare(
    what: Any,
    *models: str,
    budget: str = BUDGET,
    seeds: int = 1,
    jobs: int = 1,
    one: bool = False,
    given: Sequence[str] = (),
    target: str | Sequence[str] = (),
    out: str | Path | None = None,
    ray: str | None = None,
    on_event: Callable[[Comparison | JobStarted | Outcome], None] = lambda _: None,
) -> Leaderboard:
    """Fit the models named, or every model that supports the data, with the same budget on the
    same rows, and rank them on test rows. `models` may hold data options such as data.seed=1 too.
    `on_event` is called with the comparison before the first fit, and as each fit starts and
    ends."""
    names = [name for name in models if "=" not in name]
    settings = [setting for setting in models if "=" in setting]
    targets = [target] if isinstance(target, str) else target
    where = None if out is None else Path(out)
    if not isinstance(what, str | Path):
        what, where = save_arrays(what, where)
    comparison = Comparison.create(
        make_plan(str(what), names, settings, budget, seeds, given, targets, one), where
    )
    on_event(comparison)
    outcomes = []
    events: Generator[JobStarted | Outcome, None, None] = (
        ray_backend.run(comparison, ray) if ray else comparison.run(jobs)
    )
    with closing(events):
        for event in events:
            on_event(event)
            if isinstance(event, Outcome):
                outcomes.append(event)
    found = Leaderboard.of(comparison, outcomes)
    return replace(found, report=report(comparison.folder, outcomes))


def save_arrays(what: Any, where: Path | None) -> tuple[str, Path]:
    """Save a frame or arrays as a file in the comparison's folder, for its processes."""
    where = where or storage.home() / "compare-arrays"
    where.mkdir(parents=True, exist_ok=True)
    if is_frame(what):
        text = what.to_csv(index=False)
        path = where / f"data-{digest(text.encode())}.csv"
        storage.write(path, text)
        return str(path), where
    pair = isinstance(what, tuple) and len(what) == 2
    arrays = (
        dict(zip("xy", map(np.asarray, what), strict=True)) if pair else {"x": np.asarray(what)}
    )
    if any(array.dtype == object for array in arrays.values()):
        raise DataError(
            f"expected a name, a path, a frame, a numeric array or an (x, y) pair, found a "
            f"{type(what).__name__}; convert it to one of these"
        )
    path = where / f"data-{digest(*(array.tobytes() for array in arrays.values()))}.npz"
    with replacing(path) as fresh, open(fresh, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return str(path), where


def digest(*content: bytes) -> str:
    found = hashlib.sha256()
    for each in content:
        found.update(each)
    return found.hexdigest()[:12]
