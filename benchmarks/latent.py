"""Latent-variable models at equal steps: the effect of posteriors and of levels of codes.

    MONGE_DATA=path python -m benchmarks.latent [--steps 4000] [--only vae iaf] [--settings beta=1]

Every model is fitted with its default settings to the same batches from the same seed, in one
process on one thread. Printed are, on the same test rows and in nats, the evidence lower bound,
the importance-weighted bound with its standard error and what that lies above the factorised
posterior's on the same rows, with the error of that difference; then CPU seconds of the fit, and
its step as a multiple of the factorised one's, by which steps at equal time may be chosen.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np
import torch

import monge
from monge.evaluate.likelihood import row_likelihoods
from monge.run.run import Run
from monge.run.saved import ComputeConfig

MODELS = {
    "vae": ("vae", ()),
    "iaf": ("vae", ("posterior=iaf",)),
    "full": ("vae", ("posterior=full",)),
    "hvae": ("hvae", ()),
    "mhvae": ("mhvae", ()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="mnist+binarise")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=1000, help="test rows that are scored")
    parser.add_argument("--samples", type=int, default=100, help="importance samples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--settings", nargs="*", default=[], help="settings of every model")
    chosen = parser.parse_args()
    print(
        f"{'':8}{'elbo':>9}{f'iw({chosen.samples})':>10}{'±':>6}{'gain':>8}{'±':>6}"
        f"{'seconds':>9}{'step':>6}"
    )
    first: tuple[np.ndarray, float] | None = None
    for name in chosen.only:
        found = measure(name, chosen)
        first = first or found[1:]
        print_row(name, *found, *first)


def measure(name: str, chosen: argparse.Namespace) -> tuple[float, np.ndarray, float]:
    """One fit: its lower bound, the tighter one of each row, and CPU seconds."""
    model, settings = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        run = monge.fit(
            model,
            chosen.data,
            *settings,
            *chosen.settings,
            seed=chosen.seed,
            budget=f"{chosen.steps}steps",
            out=f"{folder}/run",
            compute=ComputeConfig("cpu", threads=1),
        )
        seconds = time.process_time() - started
        loose, tight = (scored(run, chosen.rows, k) for k in (1, chosen.samples))
    return float(loose.mean()), tight, seconds


def scored(run: Run, count: int, samples: int) -> np.ndarray:
    """The bound of the first test rows, (count,)."""
    rows = run.split(None, "test")
    batch = rows.batch(torch.arange(min(count, len(rows))))
    options = run.model.LikelihoodConfig(samples=samples)
    return row_likelihoods(run.model, iter([batch]), run.space.dims, options).value


def print_row(
    name: str, elbo: float, tight: np.ndarray, seconds: float, base: np.ndarray, spent: float
) -> None:
    gain, share = tight - base, len(tight) ** -0.5
    print(
        f"{name:8}{elbo:9.2f}{tight.mean():10.2f}{share * tight.std():6.2f}{gain.mean():8.2f}"
        f"{share * gain.std():6.2f}{seconds:9.1f}{seconds / spent:6.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
