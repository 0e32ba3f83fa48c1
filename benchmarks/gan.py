"""A step of adversarial training through our trainer against a bare loop with two optimisers.

Both sides train the same networks (perceptrons of 3 x 256, or the convolutions of dcgan) on the
same batches of the same rows of bytes with the same fused Adams and no averaging, in one process
alternately (A/B/A/B). Reported are median and spread of CPU time, and ours / bare; before that,
three unmeasured steps in which the bare loop has our noise must end at our weights. Ours also
monitors every fiftieth step.

    python -m benchmarks.gan [--rounds 7] [--steps 50]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from monge.core.config import Config
from monge.core.rng import derive_seed, make_generator
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.models.adversarial._base import AdversarialModel
from monge.models.adversarial.dcgan import DCGAN
from monge.models.adversarial.gan import GAN
from monge.train.trainer import Trainer

from .clock import alternate, measured, show
from .results import keep
from .sides import InMemoryRows

ROWS, BATCH, RATE, BETAS = 8192, 64, 2e-4, (0.5, 0.999)
SPACE = Space(kind="levels", shape=(1, 16, 16), size=256, rows=ROWS)


def build(config: Config) -> AdversarialModel:
    torch.manual_seed(0)
    return config.build(SPACE)


def ours(config: Config, rows: InMemoryRows) -> tuple[AdversarialModel, Callable[[], None]]:
    """A model and a function that trains it for one step."""
    model = build(config)
    trainer = Trainer(model, rows, TrainConfig(lr=RATE, betas=BETAS, batch_size=BATCH, warmup=0))

    def step() -> None:
        trainer.train_step(1.0)

    return model, step


def bare(
    config: Config, rows: InMemoryRows, seeded: bool = False
) -> tuple[AdversarialModel, Callable[[], None]]:
    """A hand-written loop; with `seeded`, every update has the random numbers of the trainer."""
    model = build(config).train()
    networks = model.discriminator, model.generator
    optimisers = [torch.optim.Adam(p.parameters(), RATE, BETAS, fused=True) for p in networks]
    none, count = torch.zeros(BATCH, 0), itertools.count()
    orders: list[tuple[Tensor, ...]] = [(), ()]  # of the rows, each update its own as in ours

    def make() -> Tensor:
        return model.generate(torch.randn(BATCH, *model.latent.shape), none)

    def step() -> None:
        number = next(count)
        for place, name in enumerate(("discriminator", "generator")):
            if seeded:
                torch.manual_seed(derive_seed(0, "step", number, name))
            epoch, within = divmod(number, ROWS // BATCH)
            if not within:
                keys = ("epoch", epoch, place) if place else ("epoch", epoch)
                generator = make_generator(derive_seed(0, *keys))
                orders[place] = torch.randperm(ROWS, generator=generator).split(BATCH)
            x = rows.x.index_select(0, orders[place][within]).float()
            optimisers[place].zero_grad(set_to_none=True)
            if name == "discriminator":
                fake = make().detach()
                real = (x.flatten(1) + torch.rand(BATCH, SPACE.dims) - 128) / 128
                loss = (F.softplus(-model.discriminate(real, none)) / 2).mean() + (
                    F.softplus(model.discriminate(fake, none)) / 2
                ).mean()
            else:
                loss = (F.softplus(-model.discriminate(make(), none)) / 2).mean()
            loss.backward()
            optimisers[place].step()

    return model, step


def repeat(step: Callable[[], None], steps: int) -> None:
    for _ in range(steps):
        step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = InMemoryRows(
        torch.randint(0, 256, (ROWS, *SPACE.shape), generator=make_generator(0)).byte()
    )
    for title, config in (("gan", GAN.Config()), ("dcgan", DCGAN.Config())):
        sides = {"bare": bare(config, rows, seeded=True), "monge": ours(config, rows)}
        for _, step in sides.values():
            repeat(step, 3)
        difference = max(
            (a - b).abs().max().item()
            for a, b in zip(*(m.parameters() for m, _ in sides.values()), strict=True)
        )
        print(f"{title}, {arguments.steps} steps; largest weight difference {difference:.1e}")
        if difference > 0.01 * RATE:  # a step moves a weight by about the rate; sums are rounded
            raise SystemExit("the two sides do different work; no ratio is kept")
        sides["bare"] = bare(config, rows)
        show(
            alternate(
                {
                    name: partial(repeat, step, arguments.steps)
                    for name, (_, step) in sides.items()
                },
                arguments.rounds,
            ),
            name=title,
        )
    keep("gan", measured)


if __name__ == "__main__":
    main()
