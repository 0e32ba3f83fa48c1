"""Cost of the trainer: an epoch of a VAE through `fit` against a bare hand-written loop.

Both sides train a VAE 784-512-256-16 on the same rows of bytes with the same fused Adam, the same
batches of 128 from a seeded permutation and no EMA, alternately (A/B/A/B) in one process. Reported
are the median and the range of the CPU time of one thread, and the ratio monge / bare. Before the
measurement, one epoch in which the bare loop uses the trainer's seeds must reach the same weights.

    python -m benchmarks.trainer [--rounds 7] [--rows 60000]
"""

from __future__ import annotations

import argparse
import math
from functools import partial

import torch

from monge.core.batch import Batch
from monge.core.model import Model
from monge.core.rng import derive_seed, make_generator
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.models.latent._encoder_decoder import DenseEncoderDecoder
from monge.models.latent.vae import VAE
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.trainer import MAX_INIT_ROWS, Trainer

from .clock import alternate, ratios, show
from .results import keep
from .sides import InMemoryRows

BATCH, LEARNING_RATE = 128, 1e-3


def build(rows: InMemoryRows) -> Model:
    torch.manual_seed(0)
    space = Space(kind="binary", shape=(784,), mean=(0.3,), rows=len(rows))
    net = DenseEncoderDecoder.Config(widths=(512, 256), activation="relu")
    return VAE.Config(latent=16, net=net).build(space)


def ours(rows: InMemoryRows) -> Model:
    trainer = Trainer(build(rows), rows, TrainConfig(lr=LEARNING_RATE, batch_size=BATCH, warmup=0))
    for _ in fit(trainer, Budget(epochs=1)):
        pass
    return trainer.model


def bare(rows: InMemoryRows, seeded: bool = False) -> Model:
    """A hand-written loop; with `seeded`, every step has the random numbers of the trainer."""
    model, count = build(rows), min(len(rows), MAX_INIT_ROWS)
    if seeded:
        torch.manual_seed(derive_seed(0, "begin"))
    # the same rows as the trainer: evenly spaced over the data
    model.initialise_from_data(rows.batch(torch.arange(count) * len(rows) // count))
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=True)
    order = torch.randperm(len(rows), generator=make_generator(derive_seed(0, "epoch", 0)))
    for step, index in enumerate(order.split(BATCH)):
        if seeded:
            torch.manual_seed(derive_seed(0, "step", step, "model"))
        batch = Batch(rows.x.index_select(0, index).float())
        losses = model.loss(batch)
        optimiser.zero_grad(set_to_none=True)
        (losses["reconstruction"].mean() + losses["kl"].mean()).backward()
        optimiser.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="epochs of each side")
    parser.add_argument("--rows", type=int, default=60_000, help="rows per epoch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = InMemoryRows((torch.rand(options.rows, 784, generator=make_generator(0)) < 0.3).byte())
    models = ours(rows), bare(rows, seeded=True)
    weights = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models]
    difference = (weights[0] - weights[1]).abs().max().item()
    steps = math.ceil(options.rows / BATCH)
    print(f"{steps} steps each; largest weight difference {difference:.1e}")
    if difference:
        raise SystemExit("the two sides do different work; no ratio is kept")
    works = {"bare": partial(bare, rows), "monge": partial(ours, rows)}
    times = alternate(works, options.rounds, warm=0)
    show(times)
    keep("trainer", {"epoch": ratios(times)["monge"]})


if __name__ == "__main__":
    main()
