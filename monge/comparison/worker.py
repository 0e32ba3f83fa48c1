"""One entrant of a comparison, as a process: fitted, judged, and told of in its run folder.

    python -m monge.comparison.worker FOLDER MODEL SEED THREADS

It writes its cost as a line of JSON before it trains, and stops when its standard input ends.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO

import numpy as np

from .. import registry
from ..core.abilities import HasLikelihood
from ..core.errors import MongeError, RunError
from ..core.files import replacing
from ..run import storage
from ..run.figures import write_figures
from ..run.run import Run, load, start
from ..train.device import ComputeConfig
from .runner import RESULTS, Comparison

ROWS = "rows.npy"
"""log p of every test row, so that laws can be compared row by row."""


def run_job(where: Path, model: str, seed: int, threads: int, out: IO[str]) -> None:
    """Go on from wherever this entrant stands."""
    plan = Comparison.read(where).plan
    place, there = ComputeConfig(threads=threads), where / plan.title(model, seed)
    registry.find(model)  # a file of the user's own is named anew, so that its run may be loaded
    if (there / "run.json").exists():
        run = load(there, place)
    else:
        run = start(
            model,
            plan.data,
            *plan.words,
            given=plan.given,
            target=plan.target or None,
            seed=seed,
            out=there,
            compute=place,
            budget=plan.budget,
        )
    out.write(json.dumps(run.cost.to_dict()) + "\n")
    out.flush()
    for _ in run.train(plan.budget):
        pass
    if run.result["stopped"] == "asked":
        raise RunError(f"stopped after {run.result['step']} steps; compare again and it goes on")
    judge(run)


def judge(run: Run) -> None:
    """Every measure on test rows, the score of each row, the pictures, the findings."""
    begun = time.monotonic()
    write_figures(run)
    run.diagnose()
    scored = run.score() if isinstance(run.model, HasLikelihood) else None
    if scored:
        with replacing(run.folder / ROWS) as fresh:
            np.save(fresh, scored.value)
    measures = run.evaluate(scored=scored)
    told = {
        "measures": {name: score.to_dict() for name, score in measures.items()},
        "seconds": run.result["seconds"],
        "steps": run.result["step"],
        "cost": run.cost.to_dict(),
        "judging": time.monotonic() - begun,
    }
    storage.write(run.folder / RESULTS, json.dumps(storage.stamped(told), indent=1) + "\n")


def watch_parent(parent: IO[str]) -> None:
    """Ask this process to stop once whoever started it is gone, or wants it to."""
    parent.read()
    signal.raise_signal(signal.SIGTERM)


def main(words: list[str]) -> int:
    where, model, seed, threads = words
    threading.Thread(target=watch_parent, args=(sys.stdin,), daemon=True).start()
    try:
        run_job(Path(where), model, int(seed), int(threads), sys.stdout)
    except MongeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
