"""Diffusion where the truth is known: bounds, flows and samplers beside log p(x) itself.

    python -m benchmarks.noised                          # a Gaussian, a mixture, three toys
    python -m benchmarks.noised --model ddpm --budget 20s --laws gaussian --toys

Laws: the mean over test rows of the bound and of the likelihood by the flow, less log p of the
same rows, with the standard error of that mean; beside them the gap that T steps add to the bound.
Toys: the sliced W_2 distance to fresh data of samples by few steps of DPM-Solver++ and by many
ancestral ones, and that of as many other data: what chance alone leaves. It is told of 2000
samples at a time, as many as one looks at, and of all 40000, which show how far a flow that draws
no noise carries the errors of a network that ancestral steps forget.
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
from monge import data
from monge.core.abilities import Likelihood
from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.models.diffusion._base import Diffusion
from monge.run.run import Run
from monge.solve.transport.exact import sliced

Density = Callable[[Tensor], Tensor]
ROWS, DRAWS, TRUTH, FEW = 20_000, 40_000, 160_000, 2000
"""Rows of the Gaussian, samples of a toy, data they are held against, samples at a time."""
STEPS = (50, 1000)
"""T of the laws over steps."""
SAMPLERS = {
    "dpm, 10 steps": ("sampler=dpm", "steps=10"),
    "ancestral, 250 steps": ("sampler=ancestral", "steps=250"),
}


@dataclass(frozen=True)
class Law:
    """Data and the log p(x) they have."""

    data: str | np.ndarray
    density: Density


def gaussian() -> Law:
    """Two entries of unequal scale that go together."""
    law = MultivariateNormal(
        torch.tensor([1.0, -2.0]).double(), torch.tensor([[2.0, 0.6], [0.6, 0.5]]).double()
    )
    noise = torch.randn(ROWS, 2, generator=make_generator(0), dtype=torch.float64)
    return Law((law.mean + noise @ law.scale_tril.mT).numpy(), law.log_prob)


def mixture() -> Law:
    density = data.open("eight_gaussians").view("x").rows("test").density
    assert density is not None
    return Law("eight_gaussians", density)


LAWS = {"gaussian": gaussian, "mixture": mixture}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="vdm", help="diffusion law: ddpm or vdm")
    parser.add_argument("--budget", default="40s", help="of each fit")
    parser.add_argument("--laws", nargs="*", default=list(LAWS), choices=LAWS)
    parser.add_argument("--toys", nargs="*", default=["moons", "pinwheel", "eight_gaussians"])
    parser.add_argument("--most", type=int, default=1000, help="test rows that are scored")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for name in chosen.laws:
            law = LAWS[name]()
            run = monge.fit(chosen.model, law.data, budget=chosen.budget, out=f"{place}/{name}")
            tell_law(name, law, run, chosen.most)
        for name in chosen.toys:
            run = monge.fit("ddpm", name, budget=chosen.budget, out=f"{place}/{name} drawn")
            tell_toy(name, run)


def tell_law(name: str, law: Law, run: Run, most: int) -> None:
    """Differences from the truth, row by row."""
    batch = run.rows(None, "test").whole()[torch.arange(most)]
    model, truth = run.model, law.density(batch.x.double())
    assert isinstance(model, Diffusion)
    print(f"{name}: log p {truth.mean():.4f} nats a row, after {run.result['step']} steps")
    told("bound", model.likelihood(batch), truth)
    told(
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
    kept, model.steps = model.steps, steps
    found = model.bound_terms(batch).diffusion
    model.steps = kept
    return found


def told(name: str, found: Likelihood, truth: Tensor) -> None:
    apart = found.value.double() - truth
    error = apart.std() / len(apart) ** 0.5
    print(f"  {name:20}{apart.mean():+9.4f} ± {error:.4f}", flush=True)


def tell_toy(name: str, run: Run) -> None:
    """Distances of samples to data that no fit has seen."""
    truth = made(name, TRUTH, seed=1)
    print(
        f"{name}: sliced W_2 to data of {FEW} and of {DRAWS} rows, after "
        f"{run.result['step']} steps"
    )
    tell_distances("other data", made(name, DRAWS, seed=2), truth)
    for title, words in SAMPLERS.items():
        begun = time.process_time()
        x = run.sample_tensor(DRAWS, None, *words)
        spent = time.process_time() - begun
        tell_distances(title, x.double(), truth, f"  {spent:.2f} s of CPU time")


def tell_distances(title: str, x: Tensor, truth: Tensor, note: str = "") -> None:
    pairs = zip(x.split(FEW), truth.split(FEW), strict=False)
    few = statistics.mean(distance(*pair) for pair in pairs)
    print(f"  {title:22}{few:.4f}  {distance(x, truth):.4f}{note}", flush=True)


def made(name: str, rows: int, seed: int) -> Tensor:
    """Rows of a toy that a fit has not seen."""
    return data.open(name, f"seed={seed}", f"rows={rows}").view("x").rows("all").whole().x.double()


def distance(x: Tensor, y: Tensor) -> float:
    return float(sliced(x, y, generator=make_generator(0)))


if __name__ == "__main__":
    main()
