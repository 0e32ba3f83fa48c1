"""One entrant of a comparison, as a process: fitted, judged, and told of in its run folder.

    python -m monge.entrant FOLDER MODEL SEED THREADS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from . import folder, registry
from .compare import JUDGED, Comparison
from .core.abilities import HasLikelihood
from .core.error import MongeError
from .drawing import draw
from .run import Run, load, start
from .train.place import Place

ROWS = "rows.npy"
"""log p of every test row, so that laws can be compared row by row."""


def enter(where: Path, model: str, seed: int, threads: int) -> None:
    """Go on from wherever this entrant stands."""
    plan = Comparison.read(where).plan
    out, place = where / plan.title(model, seed), Place(threads=threads)
    registry.find(model)  # a file of the user's own is named anew, so that its run may be loaded
    if (out / "run.json").exists():
        run = load(out, place)
    else:
        run = start(model, plan.data, *plan.words, given=plan.given, target=plan.target or None,
                    seed=seed, out=out, place=place)
    for _ in run.train(plan.budget):
        pass
    judge(run)


def judge(run: Run) -> None:
    """Every measure on test rows, the score of each row, the pictures, the findings."""
    draw(run)
    run.diagnose()
    told = {"measures": {name: score.to_dict() for name, score in run.evaluate().items()},
            "seconds": run.result["seconds"], "steps": run.result["step"]}
    if isinstance(run.model, HasLikelihood):
        np.save(run.folder / ROWS, run.score().value)
    folder.write(run.folder / JUDGED, json.dumps(told, indent=1) + "\n")


def main(words: list[str]) -> int:
    where, model, seed, threads = words
    try:
        enter(Path(where), model, int(seed), int(threads))
    except MongeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
