"""Generators on tables: chosen names, counts, numbers with atoms and bounds, and empty cells."""

from __future__ import annotations

import pytest
import torch
from test_tables_diffusion import AMOUNT, COUNT, FLAG, NAME, holes, table

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.models.adversarial.gan import GAN
from monge.models.adversarial.wgan import WGAN
from monge.models.transport.sinkhorn_generator import SinkhornGenerator
from monge.nn.mlp import MLP
from monge.train.trainer import Trainer

MODELS = (GAN, WGAN, SinkhornGenerator)


class Rows:
    """A split of a dataset, as the trainer reads it."""

    lengths = None
    row_bytes = 0

    def __init__(self, batch: Batch) -> None:
        self.all = batch

    def __len__(self) -> int:
        return len(self.all)

    def batch(self, index: torch.Tensor, train: bool = False) -> Batch:
        return self.all[index]


def build(model_class, space, batch):
    torch.manual_seed(0)
    model = model_class.smallest_config(space).build(space).double()
    model.initialise_from_data(batch)
    return model.eval()


@pytest.mark.parametrize("model_class", MODELS)
def test_samples_lie_in_the_support(model_class):
    space, batch = table()
    model = build(model_class, space, batch)
    x = model.sample(600, generator=make_generator(0))
    assert set(x[:, NAME].tolist()) == {0, 1, 2}
    assert set(x[:, FLAG].tolist()) == {0, 1}
    counts = x[:, COUNT][~x[:, COUNT].isnan()]
    assert torch.equal(counts, counts.round())
    assert x[~x.isnan()].min() >= 0
    # Untrained logits are near 0, so that the components keep their shares of training rows.
    assert (holes(x).double().mean(0) - holes(batch.x).double().mean(0)).abs().max() < 0.12
    assert ((x == 0).double().mean(0) - (batch.x == 0).double().mean(0)).abs().max() < 0.12


@pytest.mark.parametrize("model_class", MODELS)
def test_both_sides_are_blank_where_there_is_no_number(model_class):
    space, batch = table()
    model = build(model_class, space, batch)
    rows = model.coordinates.rows
    fake = model.generate(model.noise(400, make_generator(1)), model.context({}, 400))
    for y in (model.real(batch), fake):
        absent = rows.nearest(y)[:, AMOUNT] != rows.start[AMOUNT]
        assert 0.3 < absent.double().mean() < 0.7
        assert not y[absent][:, rows.number_axes].any()
        assert (y[~absent][:, rows.number_axes] != 0).double().mean() > 0.99
    # Generated points are points of components: nothing tells them from rows.
    again = model.coordinates.to_network(model.to_event(fake), dequantise=True)
    torch.testing.assert_close(again, fake)


def test_gradients_reach_the_logits_of_names_and_the_numbers():
    space, batch = table()
    model = build(GAN, space, batch)
    out = torch.zeros(50, model.coordinates.outputs).double().requires_grad_()
    noise = torch.randn(50, model.coordinates.choices, generator=make_generator(0)).double()
    y = model.coordinates.from_network(out, noise)
    weight = torch.arange(1.0, y.shape[1] + 1).double()
    (gradient,) = torch.autograd.grad((y * weight).sum(), out)
    rows = model.coordinates.rows
    live = rows.log_share > -torch.inf
    logits, numbers, _ = gradient.split([rows.components, *[len(rows.reals)] * 2], 1)
    assert (logits.abs().sum(0)[live] > 0).all()
    assert not logits[:, ~live].any()
    present = rows.nearest(y)[:, AMOUNT] == rows.start[AMOUNT]
    assert torch.equal(numbers[:, 0] != 0, present)


def test_decoding_is_a_function_of_z():
    space, batch = table()
    model = build(WGAN, space, batch)
    z = model.noise(30, make_generator(2))
    assert z.shape == (30, *model.latent.shape)
    once, twice = (model.decode(z).nan_to_num(-1) for _ in range(2))
    assert torch.equal(once, twice)


def test_what_is_learned_before_the_first_step_is_saved():
    space, batch = table()
    model = build(GAN, space, batch)
    again = GAN.smallest_config(space).build(space).double()
    again.load_state_dict(model.state_dict())
    again.eval()
    ours, theirs = (
        m.sample(50, generator=make_generator(1)).nan_to_num(-1) for m in (model, again)
    )
    assert torch.equal(ours, theirs)


def test_training_finds_the_company_of_holes():
    config = WGAN.Config(
        latent=8,
        generator=MLP.Config(width=64, depth=2),
        critic=MLP.Config(width=64, depth=2, activation="leaky"),
        critic_steps=2,
    )
    space, batch = table(dependent=True)
    torch.manual_seed(0)
    model = config.build(space).double()
    train_config = type(model).defaults(space).train
    train_config = train_config.override("batch_size=128", "lr=3e-3", "ema_decay=0")
    trainer = Trainer(model, Rows(batch), train_config, seed=1)

    def apart() -> float:
        """How often one of two cells is empty that are only empty together."""
        x = model.eval().sample(1000, generator=make_generator(0))
        return (x[:, COUNT].isnan() != x[:, AMOUNT].isnan()).double().mean().item()

    trainer.initialise()
    before = apart()
    for _ in range(150):
        trainer.train_step(1.0)
    assert apart() < 0.6 * before
