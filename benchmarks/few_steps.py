"""Samplers of few steps: quality at 1, 2 and 4 evaluations of a network beside many of a teacher.

    python -m benchmarks.few_steps                       # pinwheel and digits, 2 minutes a fit
    python -m benchmarks.few_steps digits --budget 5m --images grids --runs few

Of each dataset ddpm is fitted, diffusion.consistency alone and by distillation of that ddpm, and
diffusion.distilled to four steps, in 1200 steps of training; cnf, and its reflow. A teacher is
sampled with 1, 2, 4 and 25 steps (dpm; euler for cnf, and the adaptive dopri5), a student with 1,
2 and 4. energy: the energy distance of samples and test rows in standardised features, times 1000,
with its standard error; it is unbiased, so it may be below 0. c2st: how often a classifier tells
samples from test rows, 0.5 if it cannot. With --runs fits are kept in a folder and those that are
there are not repeated.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import monge
from monge.core.batch import Batch
from monge.evaluate.c2st import c2st
from monge.evaluate.energy_distance import SAMPLES, FeatureMap, energy
from monge.evaluate.likelihood import row_subset
from monge.plot import image_grid
from monge.run.run import Run

from .clock import measured, record
from .results import keep

FEW = (1, 2, 4)
MANY = 25
SHOWN = 64
"""Images of a grid."""


@dataclass(frozen=True)
class Way:
    """A model, what it learns from, and how it is sampled with so many steps."""

    model: str
    settings: tuple[str, ...] = ()
    teacher: str = ""  # another way, which the setting that ends the settings names
    sampling: tuple[str, ...] = ()
    steps: tuple[int, ...] = FEW
    others: tuple[tuple[str, ...], ...] = ()  # sampling settings besides those of few steps


WAYS = {
    "ddpm": Way("ddpm", others=((f"steps={MANY}",),)),
    "consistency": Way("consistency"),
    "consistency of ddpm": Way("consistency", ("teacher=",), "ddpm"),
    "distilled to 4": Way("distilled", ("stage_steps=300", "teacher="), "ddpm", steps=(4,)),
    "cnf": Way("cnf", sampling=("solver=euler",), others=((f"steps={MANY}",), ("solver=dopri5",))),
    "reflow of cnf": Way("cnf", ("coupling=reflow", "start="), "cnf", ("solver=euler",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="*", default=["pinwheel", "digits"], help="datasets")
    parser.add_argument("--budget", default="2m", help="budget of each fit")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), help=f"some of {list(WAYS)}")
    parser.add_argument("--images", type=Path, help="folder for the grids")
    parser.add_argument("--runs", type=Path, help="folder that keeps the fits")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for data in chosen.data:
            print(f"\n{data}, {chosen.budget} a fit")
            print(f"{'model':22}{'sampling':28}{'energy':>9}{'±':>7}{'c2st':>7}{'s':>7}")
            for name in chosen.ways:
                run = fitted(name, data, chosen.budget, chosen.runs or Path(folder))
                report(name, run, data, chosen.images)
    keep("few_steps", measured)


def fitted(name: str, data: str, budget: str, folder: Path) -> Run:
    """The run of a way, which is fitted if it is not there; its teacher too."""
    way, out = WAYS[name], folder / f"{name.replace(' ', '-')}-{data}"
    if out.exists():
        return monge.load(out)
    settings = list(way.settings)
    if way.teacher:
        settings[-1] += str(fitted(way.teacher, data, budget, folder).folder)
    return monge.fit(way.model, data, *settings, budget=budget, out=out, progress=False)


def report(name: str, run: Run, data: str, images: Path | None) -> None:
    way, rows = WAYS[name], row_subset(run.split(None, "test"))
    feature_map = FeatureMap.of(run.model, run.space)
    truth = feature_map(rows)
    for settings in (*((f"steps={steps}",) for steps in way.steps), *way.others):
        settings = (*way.sampling, *settings)
        started = time.perf_counter()
        x = run.sample_tensor(SAMPLES, None, *settings)
        seconds = time.perf_counter() - started
        points = feature_map(Batch(x))
        distance, told = energy(points, truth), c2st(points, truth)
        print(
            f"{name:22}{' '.join(settings):28}{1000 * distance.value:9.2f}"
            f"{1000 * distance.stderr:7.2f}{told.value:7.3f}{seconds:7.2f}",
            flush=True,
        )
        record(f"{data} {name} {' '.join(settings)} energy", 1000 * distance.value)
        record(f"{data} {name} {' '.join(settings)} c2st", told.value)
        if images and run.space.is_image:
            images.mkdir(parents=True, exist_ok=True)
            title = "-".join([*name.split(), data, *settings]).replace("=", "")
            image_grid.write_grid(images / f"{title}.png", x[:SHOWN].numpy(), run.space)


if __name__ == "__main__":
    main()
