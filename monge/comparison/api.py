"""`monge.compare`: fit several models to the same data, rank them and write the report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DataError, UsageError, shown
from ..core.files import replacing
from ..data.frames import as_pandas, is_frame
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
    threads: int = 0,
    workers: int = 1,
    on_event: Callable[[Comparison | JobStarted | Outcome], None] = lambda _: None,
) -> Leaderboard:
    """Fit several models to the same data with the same budget, and rank them on test rows.

    Parameters
    ----------
    what : str, Path, frame, array or (x, y) pair
        The data: a built-in name, a path, or a Python object.
    *models : str
        Names of models, by default every model that supports the data, and data options such as
        "data.seed=1". A model that does not support the data is skipped; `refused` says why.
    budget : str
        Budget of each model: "90s", "5m", "500steps" or "3epochs".
    seeds, jobs, threads : int
        Fits per model, fits at a time, and CPU threads of each process (0: they share the cores).
    workers : int
        Processes that train each model together.
    one : bool
        One model per family instead of all.
    given, target : list of str
        Fields that the models are conditioned on, or columns that they predict.
    out : str or Path, optional
        The folder of the comparison; an interrupted one is continued. By default it is named
        after the data, and a second comparison with other settings gets a number.
    ray : str, optional
        The address of a Ray cluster to fit on.
    on_event : callable
        Called with the comparison before the first fit, and as each fit starts and ends.

    Returns
    -------
    Leaderboard
        One row per model, the best first; `frame` is a table of them.

    Examples
    --------
    >>> import monge
    >>> board = monge.compare("iris", "mixture", budget="3epochs")
    >>> set(board.frame["model"]) >= {"baseline.mixture", "baseline.independent"}
    True
    """
    for name in models:
        if not isinstance(name, str):
            raise UsageError(
                f"expected names of models, found {shown(name)}; write compare(data, 'made', "
                "'gaussian')"
            )
    names = [name for name in models if "=" not in name]
    settings = [setting for setting in models if "=" in setting]
    targets = [target] if isinstance(target, str) else target
    where, wanted = None if out is None else Path(out), None
    if not isinstance(what, str | Path):
        what, wanted = save_arrays(what, where)
    plan = make_plan(str(what), names, settings, budget, seeds, given, targets, one)
    comparison = Comparison.create(plan, where, wanted)
    outcomes = []
    events: Generator[JobStarted | Outcome, None, None] = (
        ray_backend.run(comparison, ray, threads or 1, workers)
        if ray
        else comparison.run(jobs, threads, workers)
    )
    with storage.locked(comparison.folder), closing(events):
        on_event(comparison)
        for event in events:
            on_event(event)
            if isinstance(event, Outcome):
                outcomes.append(event)
        found = Leaderboard.of(comparison, outcomes)
        return replace(found, report=report(comparison.folder, outcomes))


def save_arrays(what: Any, where: Path | None) -> tuple[str, Path]:
    """Save a frame or arrays as a file in the comparison's folder, for its processes; the file and
    the folder."""
    what = as_pandas(what)
    if is_frame(what):
        text = what.to_csv(index=False)
        name = digest(text.encode())
        where = where or storage.home() / f"compare-frame-{name}"
        path = where / f"data-{name}.csv"
        where.mkdir(parents=True, exist_ok=True)
        storage.write(path, text)
        return str(path), where
    pair = isinstance(what, tuple) and len(what) == 2
    if pair and is_frame(what[0]):
        raise DataError(
            "expected a frame with the target as one of its columns, found a frame and a target; "
            "join them, and name the column by target="
        )
    arrays = (
        dict(zip("xy", map(np.asarray, what), strict=True)) if pair else {"x": np.asarray(what)}
    )
    if any(array.dtype == object for array in arrays.values()):
        raise DataError(
            f"expected a name, a path, a frame, a numeric array or an (x, y) pair, found a "
            f"{type(what).__name__}; convert it to one of these"
        )
    name = digest(*(array.tobytes() for array in arrays.values()))
    where = where or storage.home() / f"compare-arrays-{name}"
    path = where / f"data-{name}.npz"
    where.mkdir(parents=True, exist_ok=True)
    with replacing(path) as fresh, open(fresh, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return str(path), where


def digest(*content: bytes) -> str:
    found = hashlib.sha256()
    for each in content:
        found.update(each)
    return found.hexdigest()[:12]
