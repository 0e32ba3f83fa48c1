"""What the trainer costs: an epoch of a VAE through `fit` against a bare hand-written loop.

Both sides train a VAE 784-512-256-16 on the same 60000 rows of bytes with the same fused Adam,
the same batches of 128 taken from a seeded permutation and no averaging, in one process and turn
about (A/B/A/B). Reported are median and spread of the CPU time of one thread and of wall time, and
their ratios. Before that, one unmeasured round in which the bare loop is given our noise must end
at our weights.

    python -m benchmarks.trainer [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.model import Model
from monge.core.noise import fold, fresh
from monge.core.recipe import Recipe
from monge.core.space import Space
from monge.models.latent._nets import Dense
from monge.models.latent.vae import VAE
from monge.train.budget import Budget
from monge.train.fit import fit
from monge.train.trainer import BEGINNING, Trainer

ROWS, BATCH, RATE = 60_000, 128, 1e-3
SPACE = Space(kind="binary", shape=(784,), mean=(0.3,), rows=ROWS)


class Bytes:
    """Rows kept as bytes, made floats in the batch."""

    lengths = None

    def __init__(self) -> None:
        self.x = (torch.rand(ROWS, 784, generator=fresh(0)) < 0.3).byte()

    def __len__(self) -> int:
        return ROWS

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        return Batch(self.x.index_select(0, index).float(), row=index)

    def whole(self) -> Batch:
        return self.batch(torch.arange(ROWS))


def build() -> Model:
    torch.manual_seed(0)
    net = Dense.Config(widths=(512, 256), activation="relu")
    return VAE.Config(latent=16, net=net).build(SPACE)


def ours(rows: Bytes) -> Model:
    trainer = Trainer(build(), rows, Recipe(rate=RATE, batch=BATCH, warmup=0))
    for _ in fit(trainer, Budget(epochs=1)):
        pass
    return trainer.model


def bare(rows: Bytes, seeded: bool = False) -> Model:
    """What a person would write by hand; `seeded`, each step has the noise that ours has."""
    model = build()
    model.begin(rows.batch(torch.arange(min(ROWS, BEGINNING))))
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), RATE, fused=True)
    order = torch.randperm(ROWS, generator=fresh(fold(0, "epoch", 0)))
    for step in range(ROWS // BATCH):
        if seeded:
            torch.manual_seed(fold(0, "step", step, "model"))
        index = order[step * BATCH:(step + 1) * BATCH]
        batch = Batch(rows.x.index_select(0, index).float())
        losses = model.loss(batch)
        optimiser.zero_grad(set_to_none=True)
        (losses["distortion"].mean() + losses["rate"].mean()).backward()
        optimiser.step()
    return model


def timed(work: Callable[[Bytes], Model], rows: Bytes) -> tuple[float, float]:
    """Seconds of CPU and of wall time."""
    cpu, wall = time.process_time(), time.perf_counter()
    work(rows)
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    rows, times = Bytes(), {ours: [], bare: []}  # type: dict, dict
    models = ours(rows), bare(rows, seeded=True)
    weights = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models]
    apart = (weights[0] - weights[1]).abs().max().item()
    for _ in range(rounds):
        for side, each in times.items():
            each.append(timed(side, rows))
    for place, what in enumerate(("CPU", "wall")):
        medians = []
        for side, each in times.items():
            seconds = [entry[place] for entry in each]
            medians.append(statistics.median(seconds))
            print(f"{what:5}{side.__name__:6}{medians[-1]:8.3f} s  "
                  f"({min(seconds):.3f} to {max(seconds):.3f})")
        print(f"{what:5}ours / bare {medians[0] / medians[1]:.3f}")
    print(f"{ROWS // BATCH} steps each; largest difference of a weight {apart:.1e}")


if __name__ == "__main__":
    main()
