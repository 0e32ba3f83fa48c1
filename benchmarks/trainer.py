"""What the trainer costs: an epoch of a VAE through `fit` against a bare hand-written loop.

Both sides train a VAE 784-512-256-16 on the same 60000 rows of bytes with the same fused Adam,
the same batches of 128 taken from a seeded permutation and no averaging, in one process and turn
about (A/B/A/B). Reported are median and spread of the CPU time of one thread, and ours / bare.
Before that, one unmeasured round in which the bare loop is given our noise must end at our
weights.

    python -m benchmarks.trainer [--rounds 7]
"""

from __future__ import annotations

import argparse
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

from .clock import show, turns
from .sides import Held

ROWS, BATCH, RATE = 60_000, 128, 1e-3
SPACE = Space(kind="binary", shape=(784,), mean=(0.3,), rows=ROWS)


def build() -> Model:
    torch.manual_seed(0)
    net = DenseEncoderDecoder.Config(widths=(512, 256), activation="relu")
    return VAE.Config(latent=16, net=net).build(SPACE)


def ours(rows: Held) -> Model:
    trainer = Trainer(build(), rows, TrainConfig(lr=RATE, batch_size=BATCH, warmup=0))
    for _ in fit(trainer, Budget(epochs=1)):
        pass
    return trainer.model


def bare(rows: Held, seeded: bool = False) -> Model:
    """What a person would write by hand; `seeded`, each step has the noise that ours has."""
    model = build()
    model.initialise_from_data(rows.batch(torch.arange(min(ROWS, MAX_INIT_ROWS))))
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), RATE, fused=True)
    order = torch.randperm(ROWS, generator=make_generator(derive_seed(0, "epoch", 0)))
    for step in range(ROWS // BATCH):
        if seeded:
            torch.manual_seed(derive_seed(0, "step", step, "model"))
        index = order[step * BATCH : (step + 1) * BATCH]
        batch = Batch(rows.x.index_select(0, index).float())
        losses = model.loss(batch)
        optimiser.zero_grad(set_to_none=True)
        (losses["reconstruction"].mean() + losses["kl"].mean()).backward()
        optimiser.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    rows = Held((torch.rand(ROWS, 784, generator=make_generator(0)) < 0.3).byte())
    models = ours(rows), bare(rows, seeded=True)
    weights = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models]
    apart = (weights[0] - weights[1]).abs().max().item()
    print(f"{ROWS // BATCH} steps each; largest difference of a weight {apart:.1e}")
    show(turns({"bare": partial(bare, rows), "monge": partial(ours, rows)}, rounds, warm=0))


if __name__ == "__main__":
    main()
