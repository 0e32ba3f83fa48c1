"""Worlds that ensembles are tried on, and ensembles after a few steps."""

from dataclasses import replace

import small_data
import torch

from monge import registry
from monge.core.batch import Batch
from monge.core.ensemble import Ensemble
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.train.trainer import Trainer


def regression(n=400):
    """A number given three others: its space and rows."""
    g = make_generator(0)
    x = torch.randn(n, 3, generator=g)
    y = x[:, 0] * x[:, 1] + x[:, 2] + 0.1 * torch.randn(n, generator=g)
    inputs = small_data.fitted(Space(kind="real", shape=(3,), name="inputs"), x)
    space = replace(small_data.fitted(Space(kind="real", name="y"), y), given={"inputs": inputs})
    return space, Batch(y, {"inputs": Batch(x)})


def classes(n=400):
    """One of three names given two numbers."""
    space, rows = small_data.make("real", n)
    label = small_data.conditioned(space, rows)[1].given["label"].x
    return (
        Space(kind="label", size=3, name="y", rows=n, given={"inputs": space}),
        Batch(label, {"inputs": rows}),
    )


def trained(config, space, batch, steps=30, train_config=None, double=True, seed=1):
    torch.manual_seed(0)
    model = config.build(space).double() if double else config.build(space)
    rows = small_data.Rows(batch.double() if double else batch)
    trainer = Trainer(
        model, rows, train_config or TrainConfig(batch_size=64, lr=3e-3, warmup=0), seed
    )
    for _ in range(steps):
        trainer.train_step(1.0)
    return trainer


def mixture(name, kind, members=3, steps=15, **fields):
    owner = registry.find(name)
    space, batch = small_data.make(kind)
    config = Ensemble.Config(member=owner.smallest_config(space), members=members, **fields)
    train_config = config.train_config(
        replace(owner.defaults(space).train, batch_size=64, warmup=0)
    )
    trainer = trained(config, space, batch[:600], steps, train_config)
    return trainer.model.eval(), small_data.Rows(batch.double())
