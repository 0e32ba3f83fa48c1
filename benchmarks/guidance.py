"""Conditional digits: how often a classifier trained on data agrees with the requested label.

    python -m benchmarks.guidance                        # four minutes of ddpm, one of cnn
    python -m benchmarks.guidance --model vdm --budget 60s --images grids

A model of digits given their label is sampled at several gamma (0 ignores the label, 1 is the
model), one without a label is guided by diffusion.noisy_classifier, and predict.cnn classifies all
samples. With --images a grid of each is written, one row per label. `python -m examples.guidance`
compares that classifier with one that does not know noise.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

import monge
from monge.core.batch import Batch
from monge.plot import image_grid
from monge.run.run import Run

GAMMAS = (0.0, 1.0, 2.0, 3.0)
CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="ddpm", help="diffusion model: ddpm or vdm")
    parser.add_argument("--budget", default="4m", help="budget of each diffusion model")
    parser.add_argument("--classifier-budget", default="1m", help="budget of either classifier")
    parser.add_argument("--each", type=int, default=100, help="samples of a label and a gamma")
    parser.add_argument("--settings", nargs="*", default=[], help="sampling options: steps=10")
    parser.add_argument("--images", type=Path, help="folder for the grids")
    parser.add_argument("--unguided", action="store_true", help="leave out the classifier's half")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        classifier = monge.fit(
            "predict.cnn", "digits", budget=chosen.classifier_budget, out=f"{folder}/classifier"
        )
        truth = classifier.evaluate()["accuracy"].value
        print(f"predict.cnn on test digits: {truth:.4f}\n")
        print(f"{'model':26}{'gamma':>6}{'accuracy':>10}{'spread':>8}{'s':>7}")
        conditional = monge.fit(
            chosen.model,
            "digits",
            given=["label"],
            budget=chosen.budget,
            out=f"{folder}/conditional",
        )
        report(f"{chosen.model} given label", conditional, classifier, chosen, ())
        if chosen.unguided:
            return
        plain = monge.fit(chosen.model, "digits", budget=chosen.budget, out=f"{folder}/plain")
        guide = monge.fit(
            "diffusion.noisy_classifier",
            "digits",
            budget=chosen.classifier_budget,
            out=f"{folder}/guide",
        )
        report(f"{chosen.model} guided", plain, classifier, chosen, (f"guide={guide.folder}",))


def report(
    title: str, run: Run, classifier: Run, chosen: argparse.Namespace, settings: tuple[str, ...]
) -> None:
    """Accuracy at every gamma; spread is the mean deviation of a pixel within a label, as a share
    of that of data."""
    label = torch.arange(CLASSES).repeat_interleave(chosen.each)
    data = run.split(None, "train").whole()
    shown = label_of(data, run)
    real = spread(data.x, shown)
    for gamma in GAMMAS:
        started = time.perf_counter()
        x = run.sample_tensor(
            len(label), {"label": Batch(label)}, *settings, *chosen.settings, f"gamma={gamma}"
        )
        seconds = time.perf_counter() - started
        predicted = classifier.model.mode({"image": Batch(x)})
        accuracy = (predicted == label).double().mean()
        print(
            f"{title:26}{gamma:6g}{accuracy:10.4f}{spread(x, label) / real:8.3f}{seconds:7.1f}",
            flush=True,
        )
        if chosen.images:
            chosen.images.mkdir(parents=True, exist_ok=True)
            few = x.unflatten(0, (CLASSES, -1))[:, :CLASSES].flatten(0, 1)
            name = f"{title.replace(' ', '-')}-{gamma:g}.png"
            image_grid.write_grid(chosen.images / name, few.numpy(), run.space)


def label_of(data: Batch, run: Run) -> torch.Tensor:
    """The label of every training row, which a model without conditions does not read."""
    if "label" in data.given:
        return data.given["label"].x
    view = run.source().view(None, ["label"], None)
    return view.split("train").whole().given["label"].x


def spread(x: torch.Tensor, label: torch.Tensor) -> float:
    return float(torch.stack([x[label == k].std(0).mean() for k in range(CLASSES)]).mean())


if __name__ == "__main__":
    main()
