"""Why a classifier that guides a diffusion model must know noise: one that does beside one that
does not (Dhariwal & Nichol 2021).

Guidance adds the gradient of log p(y | z_t) at noisy z_t. Two classifiers of digits are fitted,
one at all noise levels and one on clean digits alone, and each guides the same diffusion model
without labels. Printed are the accuracy of both at each noise level, and of the digits that they
guide, in the eyes of a third classifier.

    python -m examples.guidance [--steps 800] [--each 10] [--gamma 3]
"""

from __future__ import annotations

import argparse
import tempfile

import pandas as pd
import torch

import monge
from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.prob.noise_schedule import alpha_sigma

LOG_SNRS = (14.0, 4.0, 2.0, 0.0, -2.0, -4.0)
"""Noise levels at which the classifiers are compared, from clean to noise."""
KINDS = {"noise-aware": (), "clean": ("clean=true",)}
"""Settings of either classifier."""


def noisy_accuracy(run: monge.Run, log_snr: float) -> float:
    """The accuracy of a classifier of noisy inputs at one log-SNR, on test rows."""
    rows, model = run.split(None, "test").whole(), run.model
    y = model.to_units(rows.given)
    levels = torch.full((len(y),), log_snr)
    alpha, sigma = (part[:, None] for part in alpha_sigma("preserving", levels))
    z = alpha * y + sigma * torch.randn(y.shape, generator=make_generator(0))
    with torch.no_grad():
        every = [
            model.log_prob_noisy(z, levels, torch.full((len(z),), label))
            for label in range(run.space.size)
        ]
    return float((torch.stack(every).argmax(0) == rows.x).double().mean())


def contrast(folder: str, steps: int, each: int, gamma: float) -> tuple[pd.DataFrame, pd.Series]:
    """Accuracy of both classifiers by log-SNR, and of the digits that each guides."""

    def fitted(name: str, model: str, *own: str, part: int = 1) -> monge.Run:
        return monge.fit(
            model,
            "digits",
            *own,
            budget=f"{max(steps // part, 1)}steps",
            out=f"{folder}/{name}",
            progress=False,
        )

    diffusion = fitted("diffusion", "ddpm")
    third = fitted("third", "predict.cnn", part=2)
    label = torch.arange(third.space.size).repeat_interleave(each)
    levels, guided = {}, {}
    for name, own in KINDS.items():
        guide = fitted(name, "diffusion.noisy_classifier", *own, part=2)
        levels[name] = [noisy_accuracy(guide, log_snr) for log_snr in LOG_SNRS]
        x = diffusion.sample_tensor(
            len(label), {"label": Batch(label)}, f"guide={guide.folder}", f"gamma={gamma}"
        )
        guided[name] = float((third.model.mode({"image": Batch(x)}) == label).double().mean())
    index = pd.Index(LOG_SNRS, name="log-SNR")
    return pd.DataFrame(levels, index=index), pd.Series(guided)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=800, help="of the diffusion model")
    parser.add_argument("--each", type=int, default=10, help="samples of each label")
    parser.add_argument("--gamma", type=float, default=3.0, help="weight of the classifier")
    own = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        levels, guided = contrast(folder, own.steps, own.each, own.gamma)
    shown = "{:.3f}".format
    print("accuracy at noisy test digits")
    print(levels.to_string(float_format=shown))
    print("\naccuracy of guided samples")
    print(guided.to_string(float_format=shown))


if __name__ == "__main__":
    main()
