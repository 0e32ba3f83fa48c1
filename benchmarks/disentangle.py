"""Disentanglement: codes of a VAE of a wedge whose position, size and rotation are known.

    python -m benchmarks.disentangle [--budget 60s] [--settings latent=6]
    python -m benchmarks.disentangle --variants beta=1 beta=4 "total_correlation=5"

One fit for each variant, which is one or several settings, with the same seed and budget; the
mutual information gap of each factor in the codes of the test rows (1: a coordinate of its own; 0:
shared), their mean, and the bound.
"""

from __future__ import annotations

import argparse
import tempfile

import torch

import monge
from monge.evaluate.disentangle import mutual_information_gaps

FACTORS = ("across", "down", "size", "rotation")
VARIANTS = (
    "beta=1",
    "beta=4",
    "total_correlation=5",
    "total_correlation=5 tc_estimator=discriminator",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--variants", nargs="*", default=VARIANTS)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--settings", nargs="*", default=["latent=6"], help="other settings")
    chosen = parser.parse_args()
    titles = "".join(f"{name:>10}" for name in (*FACTORS, "mig", "nats", "steps", "seed"))
    print(f"{'variant':>48}{titles}", flush=True)
    for variant in chosen.variants:
        for seed in chosen.seeds:
            measure(variant, chosen.budget, seed, chosen.settings)


def measure(variant: str, budget: str, seed: int, settings: list[str]) -> None:
    """One fit and its line."""
    source = monge.open("shapes")
    words = [*variant.split(), *settings]
    with tempfile.TemporaryDirectory() as folder:
        run = monge.fit("vae", source, *words, budget=budget, seed=seed, out=f"{folder}/run")
        codes = torch.from_numpy(run.encode())
        nats, steps = run.log_likelihood().mean.value, run.result["step"]
    index = source.rows_of("test")
    found = mutual_information_gaps(codes, {name: source.tensors[name][index] for name in FACTORS})
    print(
        f"{variant:>48}"
        + "".join(f"{score.value:10.3f}" for score in found.values())
        + f"{nats:10.2f}{steps:10}{seed:10}",
        flush=True,
    )


if __name__ == "__main__":
    main()
