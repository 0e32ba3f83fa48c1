"""Disentanglement: a beta-VAE on images of a wedge whose position, size and rotation are known.

    python -m benchmarks.disentangle [--budget 60s] [--betas 1 4] [--settings latent=6]

One fit for each beta with the same seed and budget; the mutual information gap of each factor in
the codes of the test rows (1: a coordinate of its own; 0: shared), their mean, and the bound.
"""

from __future__ import annotations

import argparse
import tempfile

import torch

import monge
from monge.evaluate.disentangle import mutual_information_gaps

FACTORS = ("across", "down", "size", "rotation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--betas", type=float, nargs="*", default=[1.0, 4.0])
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="*", default=["latent=6"], help="other settings")
    chosen = parser.parse_args()
    print(f"{'beta':>6}" + "".join(f"{name:>10}" for name in (*FACTORS, "mig", "nats", "steps")))
    for beta in chosen.betas:
        measure(beta, chosen.budget, chosen.seed, chosen.settings)


def measure(beta: float, budget: str, seed: int, settings: list[str]) -> None:
    """One fit and its line."""
    source = monge.open("shapes")
    with tempfile.TemporaryDirectory() as folder:
        run = monge.fit(
            "vae", source, f"beta={beta}", *settings, budget=budget, seed=seed, out=f"{folder}/run"
        )
        codes = torch.from_numpy(run.encode())
        nats, steps = run.log_likelihood().mean.value, run.result["step"]
    index = source.rows_of("test")
    found = mutual_information_gaps(codes, {name: source.tensors[name][index] for name in FACTORS})
    print(
        f"{beta:6g}"
        + "".join(f"{score.value:10.3f}" for score in found.values())
        + f"{nats:10.2f}{steps:10}",
        flush=True,
    )


if __name__ == "__main__":
    main()
