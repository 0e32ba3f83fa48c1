"""Ten tables and series end to end, as a new user would: describe, fit, sample, score, complete or
forecast, evaluate, compare, report.

    python -m benchmarks.first_hour [--budget 10s] [--compare 5s] [NAME]...

The data are found by MONGE_DATA. Prints a line for each data set: what was refused, the seconds of
each step, and how far new rows leave the natural bounds of the data, lose its atoms, or differ in
their empty cells.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import monge

TABLES = {
    "titanic": "tables/titanic.csv",
    "penguins": "tables/penguins.csv",
    "diamonds": "tables/diamonds.csv",
    "SLID": "tables/SLID.csv",
    "airquality": "tables/airquality.csv",
    "adult": "adult/adult-train.csv.gz",
    "wine": "wine/winequality-white.csv",
}
SERIES = {
    "sunspots": "series/monthly-sunspots.csv",
    "airline": "series/airline-passengers.csv",
    "ETTh1": "ett/ETTh1.csv.gz",
}
MODEL = {"table": "chow_liu", "series": "direct_forecast"}
"""The model to start with, if none is recommended."""
RIVALS = {"table": ("made",), "series": ("linear_ar",)}
"""Models that it is compared with, besides the baselines."""
HIDDEN = 0.1
"""Share of the cells that are emptied to be completed."""
ROWS = 500
"""Rows that are sampled, scored and completed."""


@dataclass
class Outcome:
    """What happened with one data set."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    def step(self, name: str, act: Callable[[], Any]) -> Any:
        """The result of a step; None if it was refused."""
        started = time.monotonic()
        try:
            return act()
        except monge.MongeError as error:
            self.refusals[name] = str(error)
            return None
        finally:
            self.seconds[name] = time.monotonic() - started


def found(path: str) -> Path | None:
    """The file in one of the folders of MONGE_DATA."""
    folders = os.environ.get("MONGE_DATA", "").split(os.pathsep)
    return next((f for folder in folders if (f := Path(folder) / path).is_file()), None)


def support_figures(run: monge.Run, new: Any, real: Any) -> dict[str, float]:
    """Percentages: numbers beyond natural bounds, the largest loss of an atom, and the largest
    difference of the rates of empty cells."""
    outside, lost = [0.0], [0.0]
    for part in run.view.space.parts:
        if part.name not in new or part.kind not in ("real", "counts"):
            continue
        values = new[part.name].dropna()
        if not np.issubdtype(values.to_numpy().dtype, np.number):
            continue
        numbers = values.to_numpy(float)
        low, high = (np.inf if end is None else end for end in (part.lower, part.upper))
        beyond = (numbers < (-np.inf if part.lower is None else low)) | (numbers > high)
        outside.append(float(beyond.mean()))
        for atom in part.atoms:
            lost.append(float((real[part.name] == atom).mean() - (new[part.name] == atom).mean()))
    empty = max(abs(float(new[c].isna().mean() - real[c].isna().mean())) for c in new)
    return {
        "outside bounds %": 100 * max(outside),
        "atom lost, points": 100 * max(lost),
        "empty, points": 100 * empty,
    }


def table(name: str, path: Path, budget: str, compare: str, folder: Path) -> Outcome:
    outcome, kind = Outcome(name), "table"
    settings = ("data.time=none",) if name == "airquality" else ()
    advice = outcome.step("describe", lambda: monge.describe(str(path), *settings))
    model = advice.recommended[0].models[0] if advice else MODEL[kind]
    run = outcome.step(
        "fit",
        lambda: monge.fit(model, str(path), *settings, budget=budget, out=folder / name),
    )
    if run is None:
        return outcome
    new = outcome.step("sample", lambda: run.sample(ROWS, seed=0))
    scored = outcome.step("score", lambda: run.log_likelihood())
    real = run.view.decode(run.split(None, "train").batch(first(len(run.split(None, "train")))).x)
    if new is not None:
        outcome.figures |= support_figures(run, new, real)
    if scored is not None:
        outcome.figures["nats"] = scored.mean.value
    rng = np.random.default_rng(0)
    holed = real.astype(object).mask(rng.random(real.shape) < HIDDEN)
    for each in run.view.restored.derived:  # what a hidden name does not determine is hidden too
        if len(each.sources) == 1 and not getattr(each, "inverse", False):
            holed.loc[holed[each.sources[0]].isna(), each.name] = None
    kinds = {
        name: kind for name, kind in real.dtypes.items() if kind.kind != "b"
    }  # empty is not False
    holed = holed.astype(kinds, errors="ignore").head(ROWS)
    full = outcome.step("complete", lambda: run.complete(holed))
    if full is not None:
        filled = full[[name for name in full if name in run.view.columns]]  # keys stay empty
        outcome.figures["still empty %"] = 100 * float(filled.isna().to_numpy().mean())
    return finish(outcome, run, path, settings, kind, compare, folder)


def first(rows: int) -> Any:
    import torch

    return torch.arange(min(rows, 20 * ROWS))


def series(name: str, path: Path, budget: str, compare: str, folder: Path) -> Outcome:
    outcome, kind = Outcome(name), "series"
    advice = outcome.step("describe", lambda: monge.describe(str(path)))
    model = advice.recommended[0].models[0] if advice else MODEL[kind]
    run = outcome.step(
        "fit", lambda: monge.fit(model, str(path), budget=budget, out=folder / name)
    )
    if run is None:
        return outcome
    scored = outcome.step("score", lambda: run.log_likelihood())
    if scored is not None:
        outcome.figures["nats"] = scored.mean.value
    ahead = outcome.step("forecast", lambda: run.forecast(n=200))
    if ahead is not None:
        history = run.split(None, "train").whole().x
        numbers = ahead.select_dtypes("number").to_numpy()
        below = float((numbers < 0).mean()) if float(history.min()) >= 0 else 0.0
        outcome.figures["outside bounds %"] = 100 * below
    outcome.step("forecast observed", lambda: run.forecast(n=50, range="observed"))
    return finish(outcome, run, path, (), kind, compare, folder)


def finish(
    outcome: Outcome,
    run: monge.Run,
    path: Path,
    settings: tuple[str, ...],
    kind: str,
    compare: str,
    folder: Path,
) -> Outcome:
    """Evaluate, compare and report."""
    outcome.step("evaluate", run.evaluate)
    if compare != "none":
        where = folder / f"compare-{outcome.name}"
        board = outcome.step(
            "compare",
            lambda: monge.compare(
                str(path), *RIVALS[kind], *settings, budget=compare, out=where, threads=1
            ),
        )
        if board is not None and board.failures:
            outcome.refusals["compare"] = "; ".join(
                f"{model}: {why}" for model, why in board.failures.items()
            )
    outcome.step("report", lambda: monge.write_report(run))
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="data sets; by default all")
    parser.add_argument("--budget", default="10s", help="budget of the fit")
    parser.add_argument("--compare", default="5s", help="budget of each model compared, or none")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name, file in {**TABLES, **SERIES}.items():
            if args.names and name not in args.names:
                continue
            path = found(file)
            if path is None:
                print(f"{name}: not found in MONGE_DATA", flush=True)
                continue
            act = table if name in TABLES else series
            outcome = act(name, path, args.budget, args.compare, Path(scratch))
            figures = ", ".join(f"{key} {value:.3g}" for key, value in outcome.figures.items())
            seconds = ", ".join(f"{key} {value:.1f}" for key, value in outcome.seconds.items())
            print(f"{name}: {len(outcome.refusals)} refusals; {figures}; seconds: {seconds}")
            for step, why in outcome.refusals.items():
                print(f"  {step} refused: {why}")
            print(end="", flush=True)


if __name__ == "__main__":
    main()
