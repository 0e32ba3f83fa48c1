"""Diffusion where the truth is known: bounds, flows and samplers beside log p(x) itself.

    python -m benchmarks.noised                          # a Gaussian, a mixture, three toys
    python -m benchmarks.noised --model ddpm --budget 20s --densities gaussian --toys

Densities: the mean over test rows of the bound and of the likelihood by the flow, less log p of
the same rows, with the standard error of that mean; beside them the gap that T steps add to the
bound. Toys: the sliced W_2 distance to fresh data of samples by few steps of DPM-Solver++ and by
many ancestral ones, and that of as many other data: what chance alone leaves. It is given for 2000
samples at a time and for all 40000, which show how far a deterministic flow carries the errors of
a network that ancestral steps forget. The distances of all of them are kept.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import monge
from monge.core.abilities import Likelihood
from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.data import loading as data
from monge.models.diffusion._base import Diffusion
from monge.run.run import Run
from monge.solve.transport.exact import sliced

from .results import keep

Density = Callable[[Tensor], Tensor]
ROWS, SAMPLES, TRUTH, FEW = 20_000, 40_000, 160_000, 2000
"""Rows of the Gaussian, samples of a toy, data they are held against, samples at a time."""
TOY_ROWS = 200_000
"""Rows that a toy is fitted to: of 8000 the shares of its parts differ from the truth by more than
those of samples differ from the rows'."""
STEPS = (50, 1000)
"""Numbers of steps T of the bound."""
SAMPLERS = {
    "dpm, 10 steps": ("sampler=dpm", "steps=10"),
    "dpm, 25 steps": ("sampler=dpm", "steps=25"),
    "dpm, 60 steps": ("sampler=dpm", "steps=60"),
    "ancestral, 250 steps": ("sampler=ancestral", "steps=250"),
}


@dataclass(frozen=True)
class KnownDensity:
    """Data and the log p(x) they have."""

    data: str | np.ndarray
    density: Density


def gaussian() -> KnownDensity:
    """Two correlated entries of unequal scale."""
    normal = MultivariateNormal(
        torch.tensor([1.0, -2.0]).double(), torch.tensor([[2.0, 0.6], [0.6, 0.5]]).double()
    )
    noise = torch.randn(ROWS, 2, generator=make_generator(0), dtype=torch.float64)
    return KnownDensity((normal.mean + noise @ normal.scale_tril.mT).numpy(), normal.log_prob)


def mixture() -> KnownDensity:
    density = data.open("eight_gaussians").view("x").split("test").density
    assert density is not None
    return KnownDensity("eight_gaussians", density)


DENSITIES = {"gaussian": gaussian, "mixture": mixture}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="vdm", help="diffusion model: ddpm or vdm")
    parser.add_argument("--budget", default="40s", help="of each fit")
    parser.add_argument("--densities", nargs="*", default=list(DENSITIES), choices=DENSITIES)
    parser.add_argument("--toys", nargs="*", default=["moons", "pinwheel", "eight_gaussians"])
    parser.add_argument("--rows", type=int, default=1000, help="test rows that are scored")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.densities:
            known = DENSITIES[name]()
            run = monge.fit(chosen.model, known.data, budget=chosen.budget, out=f"{folder}/{name}")
            print_likelihoods(name, known, run, chosen.rows)
        distances: dict[str, float] = {}
        for name in chosen.toys:
            out, rows = f"{folder}/{name} samples", f"data.rows={TOY_ROWS}"
            run = monge.fit("ddpm", name, rows, budget=chosen.budget, out=out)
            distances |= print_toy(name, run)
    if distances:
        keep("noised", distances, note=f"sliced W_2 of {SAMPLES} samples to {TRUTH} rows")


def print_likelihoods(name: str, known: KnownDensity, run: Run, most: int) -> None:
    """Differences from the truth, row by row."""
    batch = run.split(None, "test").whole()[torch.arange(most)]
    model, truth = run.model, known.density(batch.x.double())
    assert isinstance(model, Diffusion)
    print(f"{name}: log p {truth.mean():.4f} nats per row, after {run.result['step']} steps")
    print_difference("bound", model.likelihood(batch), truth)
    print_difference(
        "flow",
        model.likelihood(batch, model.LikelihoodConfig(method="ode", tolerance=1e-5)),
        truth,
    )
    flowing = model.bound_terms(batch, continuous_time=True).diffusion
    for steps in STEPS:
        gap = (steps_of(model, batch, steps) - flowing).mean()
        print(f"  {f'gap of {steps} steps':20}{gap:+9.4f}", flush=True)


def steps_of(model: Diffusion, batch: Batch, steps: int) -> Tensor:
    """The diffusion term over T steps of the same network, (B,)."""
    before, model.steps = model.steps, steps
    found = model.bound_terms(batch).diffusion
    model.steps = before
    return found


def print_difference(name: str, found: Likelihood, truth: Tensor) -> None:
    difference = found.value.double() - truth
    error = difference.std() / len(difference) ** 0.5
    print(f"  {name:20}{difference.mean():+9.4f} ± {error:.4f}", flush=True)


def print_toy(name: str, run: Run) -> dict[str, float]:
    """Distances of samples to data that no fit has seen, by sampler."""
    truth = made(name, TRUTH, seed=1)
    print(
        f"{name}: sliced W_2 to data of {FEW} and of {SAMPLES} rows, after "
        f"{run.result['step']} steps"
    )
    found = {"other data": print_distances("other data", made(name, SAMPLES, seed=2), truth)}
    for title, settings in SAMPLERS.items():
        started = time.process_time()
        x = run.sample_tensor(SAMPLES, None, *settings)
        spent = time.process_time() - started
        found[title] = print_distances(title, x.double(), truth, f"  {spent:.2f} s of CPU time")
    return {f"{name}_{value_name(title)}": value for title, value in found.items()}


def value_name(title: str) -> str:
    return title.replace(",", "").replace(" ", "_")


def print_distances(title: str, x: Tensor, truth: Tensor, note: str = "") -> float:
    """The distance of all samples x, printed beside the mean over few at a time."""
    pairs = zip(x.split(FEW), truth.split(FEW), strict=False)
    few = statistics.mean(distance(*pair) for pair in pairs)
    every = distance(x, truth)
    print(f"  {title:22}{few:.4f}  {every:.4f}{note}", flush=True)
    return every


def made(name: str, rows: int, seed: int) -> Tensor:
    """Rows of a toy that a fit has not seen."""
    return (
        data.open(name, f"seed={seed}", f"rows={rows}").view("x").split("all").whole().x.double()
    )


def distance(x: Tensor, y: Tensor) -> float:
    return float(sliced(x, y, generator=make_generator(0)))


if __name__ == "__main__":
    main()
