"""Samples of models of pictures, as many of each: beside held-out rows, and as a classifier sees
them.

    monge fit ddpm cifar --budget 12m --out a
    monge fit latent_diffusion cifar --budget 12m --out b
    python -m benchmarks.pictures a b --keep pictures-colour
    monge fit predict.cnn mnist --budget 100s --out cnn
    python -m benchmarks.pictures c --classifier cnn --samples 1000
    python -m benchmarks.pictures c --classifier cnn --samples 1000 --sampling guidance.gamma=2.5

Of each run are printed: the accuracy of a classifier between samples and rows (C2ST, 0.5 is the
best), the share of rows near a sample (coverage) and of samples near a row (precision), each with
what training rows reach in place of samples, the energy distance, and bits per dimension if the
model has a likelihood. `monge evaluate` has the same metrics, but draws as many samples as a model
makes in 40 seconds, which differ between models. With --classifier: the share of samples that it
gives to one class with a probability of at least 0.9, and that of as many rows. With --sampling:
settings of the sampler, the same for all runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor

import monge
from benchmarks import results
from monge.core.abilities import HasLikelihood, HasMarginals
from monge.core.batch import Batch
from monge.evaluate.energy_distance import energy
from monge.evaluate.likelihood import row_subset
from monge.evaluate.samples import COPIED_FROM, REAL, SampleComparison, sample_metrics

CONFIDENT = 0.9
"""Probability of the most probable class from which a picture counts as recognised."""
CHUNK = 250
"""Samples that are drawn at once."""
SHOWN = ("c2st", "coverage", "precision")


def samples_of(run: monge.Run, n: int, settings: Sequence[str] = ()) -> Tensor:
    """n samples of the model's distribution, or as the settings change it."""
    parts = [
        run.sample_tensor(min(CHUNK, n - start), None, *settings, seed=start)
        for start in range(0, n, CHUNK)
    ]
    return torch.cat(parts)


def recognised(classifier: monge.Run, x: Tensor) -> float:
    """The share of pictures whose most probable class has a probability of at least 0.9."""
    (name,), model = classifier.space.given, classifier.require(HasMarginals)
    with torch.no_grad():
        parts = [model.marginals({name: Batch(part)}) for part in x.split(CHUNK)]
    most = torch.cat([each.probabilities[0].amax(1) for each in parts])
    return float((most >= CONFIDENT).double().mean())


def measured(run: monge.Run, x: Tensor, split: str, scored: int) -> dict[str, float]:
    """Metrics of samples x beside rows of this split."""
    rows, train = run.split(None, split), run.split(None, "train")
    real, seen = row_subset(rows), row_subset(train, COPIED_FROM)
    compared = SampleComparison.at(run.model, x, real, seen)
    every = sample_metrics(compared, None)
    names = [name + suffix for name in SHOWN for suffix in ("", REAL)]
    found = {name: every[name].value for name in names}
    found["energy"] = energy(compared.fake, compared.real).value
    if scored and isinstance(run.model, HasLikelihood):
        some = real[:scored].to(next(run.model.parameters()).device)
        with torch.no_grad():
            nats = run.model.likelihood(some, generator=torch.Generator().manual_seed(0)).value
        found["bits_per_dim"] = -float(nats.mean()) / run.space.dims / math.log(2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--split", default="test", choices=["valid", "test"])
    parser.add_argument("--scored", type=int, default=200, help="rows that are scored")
    parser.add_argument("--sampling", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--classifier", help="run of predict.cnn on the same pictures")
    parser.add_argument("--keep", metavar="NAME", help="write results/NAME.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    values: dict[str, float] = {}
    for name in asked.runs:
        run = monge.load(name)
        x = samples_of(run, asked.samples, asked.sampling)
        found = measured(run, x, asked.split, asked.scored)
        if asked.classifier:
            classifier = monge.load(asked.classifier)
            rows = row_subset(run.split(None, asked.split), asked.samples)
            found["recognised"] = recognised(classifier, x)
            found["recognised" + REAL] = recognised(classifier, rows.x)
        title = type(run.model).Config.tag.rpartition(".")[2]
        print(title, {key: round(value, 4) for key, value in found.items()}, flush=True)
        values |= {f"{title}_{key}": value for key, value in found.items()}
    if asked.keep:
        results.keep(
            asked.keep, values, note=f"{asked.samples} samples of each, {asked.split} rows"
        )


if __name__ == "__main__":
    main()
