"""The whole of `monge compare` in one call: who takes part, the fits, the order, the page."""

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
from .plan import plan
from .runner import BUDGET, Comparison, Outcome, Started


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
    tell: Callable[[Comparison | Started | Outcome], None] = lambda _: None,
) -> Leaderboard:
    """Fit the models named, or every one that takes the data, with the same budget on the same
    rows, and rank them on test rows; `models` may hold words of data.* too. `tell` hears of the
    comparison before it begins, and of each entrant as it begins and ends."""
    names = [word for word in models if "=" not in word]
    words = [word for word in models if "=" in word]
    aims = [target] if isinstance(target, str) else target
    where = None if out is None else Path(out)
    if not isinstance(what, str | Path):
        what, where = kept(what, where)
    comparison = Comparison.begin(
        plan(str(what), names, words, budget, seeds, given, aims, one), where
    )
    tell(comparison)
    outcomes = []
    entrants: Generator[Started | Outcome, None, None] = (
        ray_backend.run(comparison, ray) if ray else comparison.run(jobs)
    )
    with closing(entrants):
        for event in entrants:
            tell(event)
            if isinstance(event, Outcome):
                outcomes.append(event)
    found = Leaderboard.of(comparison, outcomes)
    return replace(found, report=report(comparison.folder, outcomes))


def kept(what: Any, where: Path | None) -> tuple[str, Path]:
    """A frame or arrays as a file in the comparison's folder, which entrants can open."""
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
            f"a {type(what).__name__} cannot be handed to the entrants; give compare "
            "a name, a path, a frame, an array or an (x, y) pair"
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
