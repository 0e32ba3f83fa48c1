"""Completion of cells that hide because of their own value: white wine, as in not-MIWAE.

    MONGE_DATA=path python -m benchmarks.completion_self_masked [--budget 600s] [--models gaussian]

The protocol of Ipsen, Mattei and Frellsen (2021): the 11 columns of white wine without the score,
standardised; in the first five, half of the columns, every cell above the mean is hidden. All rows
are fitted but those that decide when to stop, all hidden cells are completed by their conditional
mean, and the figure is the root mean squared error over the hidden cells in standard deviations.
Published: not-MIWAE 1.035, MICE 1.410. Ours after seven minutes: 0.960; IterativeImputer 1.412,
gaussian 1.513, mixture 1.618, the mean of all cells, which no model knows, 1.241.

The first row is `vae` with missing_mechanism=self; after it come other models of Monge, the means
of 20 completions given that hidden cells are present, and scikit-learn's IterativeImputer.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer
from torch import Tensor

import monge
from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.models.latent.vae import VAE
from monge.run.saved import ComputeConfig

COLUMNS, MASKED = 11, 5
SELF = (
    "missing_mechanism=self",
    "latent=10",
    "net.width=128",
    "samples=5",
    "importance_weighted=true",
    "data.valid=0.05",
    "data.test=0.01",
)
DRAWS, SAMPLES, ROWS_PER_PASS = 20, 256, 500


def masked_wine() -> tuple[Tensor, Tensor]:
    """Standardised values (N, 11) and which cells are hidden."""
    path = Path(os.environ["MONGE_DATA"]) / "wine" / "winequality-white.csv"
    x = np.genfromtxt(path, delimiter=",")[:, :COLUMNS]
    x = (x - x.mean(0)) / x.std(0)
    hidden = np.zeros_like(x, dtype=bool)
    hidden[:, :MASKED] = x[:, :MASKED] > 0
    return torch.tensor(x), torch.tensor(hidden)


@torch.no_grad()
def conditional_mean(model: VAE, batch: Batch) -> Tensor:
    """E[x | the other cells, empty] of rows with cells that hid themselves, (B, D)."""
    assert model.masking is not None, "fit with missing_mechanism=self"
    x, generator = batch.x.clone(), make_generator(0)
    for index in torch.arange(len(batch)).split(ROWS_PER_PASS):
        rows = batch[index]
        z, log_weights, context = model.weigh_codes(rows, rows, SAMPLES, generator)
        share = log_weights.softmax(0)[..., None]
        means = sum(
            (share[k] * model.masking.expected(model.params(z[k], context), -1.0))
            for k in range(SAMPLES)
        )
        mine = model.masking.own
        x[index[:, None], mine] = torch.where(rows.x[:, mine].isnan(), means, rows.x[:, mine])
    return x


def completed(name: str, frame: pd.DataFrame, budget: str, threads: int) -> Tensor:
    """The hidden cells by the conditional mean of a model."""
    masked = name == "vae self"
    with tempfile.TemporaryDirectory() as folder:
        run = monge.fit(
            "vae" if masked else name,
            frame,
            *(SELF if masked else ()),
            budget=budget,
            out=f"{folder}/run",
            compute=ComputeConfig("cpu", threads=threads),
        )
        batch = run.split(frame, "all").batch(torch.arange(len(frame)))
        if masked:
            assert isinstance(run.model, VAE), "vae"
            return conditional_mean(run.model, batch)
        question = replace(batch, observed=~batch.x.isnan())
        return torch.stack([run.complete(question, seed=k) for k in range(DRAWS)]).mean(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", default="600s")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--models", nargs="*", default=["gaussian", "mixture", "vae"])
    chosen = parser.parse_args()
    x, hidden = masked_wine()
    frame = pd.DataFrame(
        torch.where(hidden, torch.nan, x).numpy(), columns=[f"c{i}" for i in range(COLUMNS)]
    )

    def show(name: str, filled: Tensor, seconds: float) -> None:
        error = float((filled.double() - x)[hidden].square().mean().sqrt())
        print(f"{name:20}{error:8.3f}{seconds:8.0f} s", flush=True)

    for name in ["vae self", *chosen.models]:
        start = time.perf_counter()
        filled = completed(name, frame, chosen.budget, chosen.threads)
        show(name, filled, time.perf_counter() - start)
    start = time.perf_counter()
    peer = torch.tensor(IterativeImputer(random_state=0).fit_transform(frame))
    show("IterativeImputer", peer, time.perf_counter() - start)
    show("mean of all", torch.zeros_like(x), 0.0)


if __name__ == "__main__":
    main()
