"""An epoch of a VAE through our trainer beside one through pythae's BaseTrainer.

Both train the same network, 784-512-16-512-784 with ReLU and Bernoulli outputs, on the same rows
in batches of 128 with Adam, in one process on one thread alternately. Ours is an epoch of `fit`
with everything it does beside the steps; theirs is `train_step`, an epoch of their loop without
its saving and logging. Reported are median and spread of CPU time of an epoch and the ratio of
medians, theirs by ours. Before that, both begin from one set of weights, and their losses on one
batch are printed to show that the models agree.

    python -m benchmarks vae
    build/bench/vae/bin/python -m benchmarks.vae [--rows 20000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from monge.core.rng import make_generator
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.models.latent._encoder_decoder import DenseEncoderDecoder
from monge.models.latent.vae import VAE
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.trainer import Trainer

from .clock import alternate, ratios, show
from .results import keep
from .sides import InMemoryRows, installed

DIMS, WIDTH, LATENT, BATCH, RATE = 784, 512, 16, 128, 1e-3


def build(rows: int) -> VAE:
    space = Space(kind="binary", shape=(DIMS,), mean=(0.3,), rows=rows)
    net = DenseEncoderDecoder.Config(width=WIDTH, depth=1, activation="relu")
    return VAE.Config(latent=LATENT, net=net).build(space)


def ours(rows: InMemoryRows) -> Callable[[], object]:
    trainer = Trainer(build(len(rows)), rows, TrainConfig(lr=RATE, batch_size=BATCH, warmup=0))
    trainer.initialise()
    epochs = iter(range(1, 1000))

    def epoch() -> None:
        for _ in fit(trainer, Budget(epochs=next(epochs))):
            pass

    return epoch


def peer() -> Any:
    from pythae.models import VAE as Theirs
    from pythae.models import VAEConfig

    return Theirs(VAEConfig(input_dim=(DIMS,), latent_dim=LATENT, reconstruction_loss="bce"))


def theirs(rows: InMemoryRows, folder: str) -> Callable[[], object]:
    from pythae.data.datasets import BaseDataset
    from pythae.trainers import BaseTrainer, BaseTrainerConfig

    config = BaseTrainerConfig(
        output_dir=folder, learning_rate=RATE, per_device_train_batch_size=BATCH, no_cuda=True
    )
    trainer = BaseTrainer(
        peer(), BaseDataset(rows.x, torch.zeros(len(rows))), training_config=config
    )
    trainer.prepare_training()
    return lambda: trainer.train_step(1)


@torch.no_grad()
def losses(rows: InMemoryRows) -> tuple[float, float]:
    """Losses of both models with the same weights and noise on one batch. Our encoder outputs log
    sigma, theirs log sigma^2, so its weights are halved."""
    own: Any = build(len(rows))
    other, batch = peer(), rows.batch(torch.arange(BATCH))
    encoder, decoder = own.nets.encoder, own.nets.decoder
    last = torch.cat([other.encoder.embedding.weight, other.encoder.log_var.weight / 2])
    bias = torch.cat([other.encoder.embedding.bias, other.encoder.log_var.bias / 2])
    pairs = [
        (encoder.hidden[0].weight, other.encoder.layers[0][0].weight),
        (encoder.hidden[0].bias, other.encoder.layers[0][0].bias),
        (encoder.out.weight, last),
        (encoder.out.bias, bias),
        (decoder.hidden[0].weight, other.decoder.layers[0][0].weight),
        (decoder.hidden[0].bias, other.decoder.layers[0][0].bias),
        (decoder.out.weight, other.decoder.layers[1][0].weight),
        (decoder.out.bias, other.decoder.layers[1][0].bias),
    ]
    for here, there in pairs:
        here.copy_(there)
    # Bits are read as they are by one and as -1 and 1 by the other.
    encoder.hidden[0].bias.add_(encoder.hidden[0].weight.sum(1) / 2)
    encoder.hidden[0].weight.div_(2)
    torch.manual_seed(1)
    mine = sum(term.mean().item() for term in own.loss(batch).values())
    torch.manual_seed(1)
    return mine, other({"data": batch.x}).loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000, help="rows of an epoch")
    parser.add_argument("--rounds", type=int, default=7, help="epochs of each side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not installed("pythae"):
        return
    # Floats, as the peer keeps them.
    rows = InMemoryRows(
        (torch.rand(options.rows, DIMS, generator=make_generator(0)) < 0.3).float()
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        mine, yours = losses(rows)
        times = alternate({"monge": ours(rows), "pythae": theirs(rows, folder)}, options.rounds)
    print(f"epoch of {options.rows} rows; loss of one batch: monge {mine:.4f}, pythae {yours:.4f}")
    show(times)
    keep("vae", {"epoch": ratios(times)["pythae"]}, peers=["pythae"])


if __name__ == "__main__":
    main()
