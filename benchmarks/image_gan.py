"""Options of image GANs at equal processor time: samples by label, few pictures, styles.

    python -m benchmarks.image_gan DATA [SETTING ...] [--given label] [--seconds 180 | --steps N]

fits `dcgan` with these settings for as many steps as take this processor time on one core, found
by a short fit, so that other work on the machine does not count. Printed are, of at most 2000
samples beside as many rows that were not trained on (of digits all of them): the accuracy of a
classifier between the two (C2ST, 0.5 is the best), the share of samples near a row (precision) and
of rows near a sample (coverage) beside that of training rows, each also with truncation. With
labels a `predict.cnn` of 400 steps classifies the samples: the share of those that it takes for
what was asked.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import monge
from monge.core.batch import Batch
from monge.evaluate.c2st import c2st
from monge.evaluate.coverage import prdc

SHORT, LONG = 10, 60
"""Steps of the two fits whose difference gives the time of a step."""
SAMPLES = 2000
"""Samples and rows that are compared."""


def fitted(folder: Path, name: str, data: str, *settings: str, **options: object) -> monge.Run:
    return monge.fit(name, data, *settings, out=folder, progress=False, **options)  # type: ignore


def steps_of(folder: Path, seconds: float, data: str, *settings: str, **options: object) -> int:
    """How many steps take so many seconds of processor time."""
    spent = []
    for steps in (SHORT, LONG):
        start = time.process_time()
        fitted(folder / f"{steps}", "dcgan", data, *settings, budget=f"{steps}steps", **options)
        spent.append(time.process_time() - start)
    return int(seconds * (LONG - SHORT) / (spent[1] - spent[0]))


def held_out(run: monge.Run, data: str) -> tuple[Tensor, Tensor]:
    """Pictures and labels that were not trained on."""
    if data != "digits":
        test = run.split(None, "test").whole()
        label = test.given["label"].x if test.given else torch.zeros(len(test))
        return test.x[:SAMPLES].float(), label[:SAMPLES]
    known = load_digits()
    x = torch.tensor(known.images, dtype=torch.float32)[:, None]
    seen = {row.numpy().tobytes() for row in run.split(None, "train").whole().x.float()}
    new = torch.tensor([row.numpy().tobytes() not in seen for row in x])
    return x[new][:SAMPLES], torch.tensor(known.target)[new][:SAMPLES]


def measured(run: monge.Run, real: Tensor, label: Tensor, truncation: float) -> dict[str, float]:
    given = {"label": Batch(label)} if run.space.given else None
    fake = run.sample_tensor(len(real), given, f"truncation={truncation}").float()
    both = real.flatten(1), fake.flatten(1)
    near = prdc(*both)
    return {
        "c2st": c2st(*both).value,
        "precision": near["precision"].value,
        "coverage": near["coverage"].value,
    }


def share_of_labels(classifier: monge.Run, run: monge.Run, truncation: float) -> float:
    """The share of samples of each label that a classifier takes for it."""
    asked = torch.arange(SAMPLES) % run.space.given["label"].size
    x = run.sample_tensor(SAMPLES, {"label": Batch(asked)}, f"truncation={truncation}")
    (name,) = classifier.space.given
    found = classifier.model.mode({name: Batch(x)})
    return float((found.flatten() == asked).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--given", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--truncation", nargs="*", type=float, default=[])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder, options = Path(name), {"given": asked.given, "seed": asked.seed}
        steps = asked.steps or steps_of(
            folder, asked.seconds, asked.data, *asked.settings, **options
        )
        run = fitted(
            folder / "run", "dcgan", asked.data, *asked.settings, budget=f"{steps}steps", **options
        )
        row = {"data": asked.data, "settings": asked.settings, "seed": asked.seed, "steps": steps}
        real, label = held_out(run, asked.data)
        trained = run.split(None, "train").whole().x[: len(real)].float()
        row["rows"] = len(real)
        of_train = prdc(real.flatten(1), trained.flatten(1))["coverage"].value
        row["coverage of training rows"] = round(of_train, 3)
        classifier = None
        if asked.given:
            classifier = fitted(folder / "cnn", "cnn", asked.data, budget="400steps")
        for truncation in [1.0, *asked.truncation]:
            found = measured(run, real, label, truncation)
            if classifier is not None:
                found["asked label"] = share_of_labels(classifier, run, truncation)
            row[f"truncation {truncation:g}"] = {k: round(v, 3) for k, v in found.items()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
