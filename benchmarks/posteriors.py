"""Posteriors: of parameters by simulations, of weights, and of codes by annealing.

    MONGE_DATA=path python -m benchmarks.posteriors [simulations weights codes] [--budget 60s]

simulations: `maf` and `coupling` are fitted to pairs of `linear_gaussian` and `two_moons`, and the
mean of log p(theta | x) over test pairs is printed beside the truth, which both simulators
have. The difference is the divergence of the posterior found from the true one, averaged over x.
`rank_p` is the p-value that the ranks of true parameters among samples are uniform.

weights: of two UCI tables, over the first five of their splits, `predict.bayes` by its three ways
to a posterior beside one network (`predict.mlp`), all by default settings: test log-likelihood and
error.

codes: a `vae` of binarised MNIST; on the same test rows the evidence lower bound, the bound of
importance samples and that of annealed importance sampling.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy.stats import truncnorm

import monge
from monge.evaluate.likelihood import row_likelihoods, row_subset
from monge.evaluate.ranks import rank_metrics, rank_statistics

from .clock import measured, record
from .results import keep

MODELS = ("maf", "coupling")
TABLES, SPLITS = ("boston", "yacht"), 5
WAYS = {
    "predict.mlp": ("predict.mlp",),
    "laplace": ("predict.bayes",),
    "hmc": ("predict.bayes", "inference=hmc"),
    "svgd": ("predict.bayes", "inference=svgd"),
}
ROWS = 100
"""Test pictures whose codes are annealed."""
BOUNDS: dict[str, dict[str, Any]] = {
    "elbo": {"samples": 1},
    "importance 100": {"samples": 100},
    "importance 3000": {"samples": 3000},
    "ais 4 chains": {"method": "ais", "samples": 4, "temperatures": 100, "leaps": 3},
}
"""Each of the 1200 leapfrog steps of the chains has a gradient, so that ais takes about as long as
3000 importance samples."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["simulations", "weights", "codes"])
    parser.add_argument("--budget", default="60s", help="of each fit")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in asked.parts:
            measured.clear()
            {"simulations": simulations, "weights": weights, "codes": codes}[part](
                Path(folder), asked.budget
            )
            keep(f"posteriors-{part}", measured)


def simulations(folder: Path, budget: str) -> None:
    for data, truth in (("linear_gaussian", box_posterior), ("two_moons", moons_posterior)):
        for model in MODELS:
            run = monge.fit(
                model, data, target="theta", budget=budget, out=folder / f"{model}-{data}"
            )
            found = run.log_likelihood()
            test = run.split(None, "test").whole()
            theta = test.x.double().numpy()
            x = test.given["x"].x.double().numpy()
            true = truth(theta, x)
            gap = true - found.value
            ranks = rank_metrics(rank_statistics(run.model, run.split(None, "test")))[
                "rank_p"
            ].value
            error = gap.std(ddof=1) / math.sqrt(len(gap))
            print(
                f"{data:16}{model:10} log p {found.value.mean():7.3f}  truth {true.mean():7.3f}  "
                f"divergence {gap.mean():6.3f} ± {error:.3f}  rank_p {ranks:.2f}",
                flush=True,
            )
            record(f"{data} {model} divergence", float(gap.mean()))
            record(f"{data} {model} divergence error", float(error))
            record(f"{data} {model} rank p", ranks)


def box_posterior(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """log p(theta | x) of `linear_gaussian`: Gaussians cut off at the ends of the prior."""
    centre, scale = x - 1, 0.1
    low, high = (-2 - centre) / scale, (2 - centre) / scale
    return truncnorm.logpdf(theta, low, high, centre, scale).sum(1)


def moons_posterior(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """log p(theta | x) of `two_moons`: the likelihood of x over its integral over the prior.

    The likelihood depends on theta through u = |theta_1 + theta_2| / sqrt 2 and v = (theta_2 -
    theta_1) / sqrt 2, which turn the square, so the integral is twice that over the half u >= 0 of
    a square on its corner, |u| + |v| <= sqrt 2, taken near x in polar coordinates."""

    def log_likelihood(u: np.ndarray, v: np.ndarray) -> np.ndarray:
        a, b = x[:, :1] - 0.25 + u, x[:, 1:] - v  # r (cos, sin) of the noise
        radius = np.hypot(a, b)
        density = -0.5 * ((radius - 0.1) / 0.01) ** 2 - math.log(0.01 * math.sqrt(2 * math.pi))
        with np.errstate(divide="ignore"):
            return np.where(a > 0, density - np.log(math.pi * radius), -np.inf)

    own = log_likelihood(
        np.abs(theta.sum(1, keepdims=True)) / math.sqrt(2),
        (theta[:, 1:] - theta[:, :1]) / math.sqrt(2),
    )[:, 0]
    # r (cos a, sin a) = (x_1 - 1/4 + u, x_2 - v) over a grid of r and a gives u and v
    angle = (np.arange(2000) + 0.5) / 2000 - 0.5
    radius = 0.1 + 0.01 * (16 * (np.arange(200) + 0.5) / 200 - 8)
    r, a = (each.reshape(1, -1) for each in np.meshgrid(radius, math.pi * angle, indexing="ij"))
    weight = np.exp(-0.5 * ((r - 0.1) / 0.01) ** 2)
    weight /= weight.sum()
    inside = np.empty(len(x))
    for row, (first, second) in enumerate(x):
        u, v = r * np.cos(a) - first + 0.25, second - r * np.sin(a)
        inside[row] = (weight * ((u >= 0) & (np.abs(u) + np.abs(v) <= math.sqrt(2)))).sum()
    return own - np.log(2 * inside)


def weights(folder: Path, budget: str) -> None:
    for table in TABLES:
        for name, (model, *settings) in WAYS.items():
            found, errors, started = [], [], time.process_time()
            for split in range(SPLITS):
                run = monge.fit(
                    model,
                    f"uci/{table}",
                    f"data.split={split}",
                    *settings,
                    budget=budget,
                    out=folder / f"{table}-{name}-{split}",
                    progress=False,
                )
                metrics = run.evaluate()
                found.append(float(run.log_likelihood().value.mean()))
                errors.append(metrics["rmse"].value)
            seconds = (time.process_time() - started) / SPLITS
            error = stdev(found) / math.sqrt(SPLITS)
            print(
                f"{table:10}{name:14} log p {mean(found):7.3f} ± {error:.3f}  "
                f"rmse {mean(errors):6.3f}  {seconds:.0f} s",
                flush=True,
            )
            record(f"{table} {name} log likelihood", mean(found))
            record(f"{table} {name} rmse", mean(errors))


def codes(folder: Path, budget: str) -> None:
    run = monge.fit("vae", "mnist+binarise", budget=budget, out=folder / "vae")
    rows = row_subset(run.split(None, "test"), ROWS)
    base: np.ndarray | None = None
    for name, options in BOUNDS.items():
        started = time.process_time()
        scoring = run.model.LikelihoodConfig(**options)
        found = row_likelihoods(run.model, iter([rows]), run.space.dims, scoring).value
        seconds = time.process_time() - started
        base = found if base is None else base
        gain = found - base
        print(
            f"{name:40} {found.mean():8.2f}  above the ELBO {gain.mean():5.2f} ± "
            f"{gain.std(ddof=1) / math.sqrt(len(gain)):.2f}  {seconds:.0f} s",
            flush=True,
        )
        record(f"vae {name}", float(found.mean()))
        record(f"vae {name} seconds", seconds)


if __name__ == "__main__":
    main()
