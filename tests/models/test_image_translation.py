"""Images translated to images: pix2pix from pairs, cyclegan without."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import small_data
import torch
from PIL import Image
from torch import Tensor

import monge
from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.image_to_image import is_translation, translation_metrics
from monge.models.adversarial.cyclegan import CycleGAN
from monge.models.adversarial.pix2pix import Pix2Pix
from monge.plot.image_grid import write_beside
from monge.run.figures import write_figures
from monge.train.trainer import Trainer

SOURCE = Space(
    kind="levels", shape=(1, 6, 7), size=5, mean=(2.0,), scale=(1.4,), name="source", rows=200
)
SPACE = replace(SOURCE, name="target", given={"source": SOURCE})


def pairs(n: int = 64) -> Batch:
    """The target is the source upside down in brightness."""
    x = torch.randint(0, 5, (n, 1, 6, 7), generator=make_generator(1)).float()
    return Batch(4 - x, {"source": Batch(x)})


def built(owner, **settings: object):
    torch.manual_seed(0)
    return replace(owner.smallest_config(SPACE), **settings).build(SPACE)


def trainer(owner, **settings: object) -> Trainer:
    train_config = replace(
        owner.defaults(SPACE).train, batch_size=16, warmup=0, lr=3e-3, ema_decay=0.0
    )
    return Trainer(built(owner, **settings), small_data.Rows(pairs()), train_config, seed=1)


@pytest.mark.parametrize("owner", [Pix2Pix, CycleGAN])
def test_samples_are_images_of_the_targets_kind(owner):
    model, given = built(owner).eval(), pairs(9).given
    x = model.sample(9, given, generator=make_generator(0))
    assert x.shape == (9, 1, 6, 7)
    assert set(x.unique().tolist()) <= set(range(5))
    assert torch.equal(x, model.sample(9, given, generator=make_generator(0)))


def loss_of(model: Pix2Pix, batch: Batch) -> Tensor:
    return (
        (model.sample(len(batch), batch.given, generator=make_generator(0)) - batch.x).abs().mean()
    )


def test_pix2pix_learns_the_pairs_and_its_dropout_is_noise():
    game = trainer(Pix2Pix)
    model, batch = game.model, pairs()
    model.eval()
    before = loss_of(model, batch)
    for _ in range(50):
        game.train_step(1.0)
    model.eval()
    assert loss_of(model, batch) < 0.85 * before
    x, y = (model.sample(64, batch.given, generator=make_generator(seed)) for seed in (0, 1))
    assert not torch.equal(x, y)
    one = {"source": Batch(batch.given["source"].x[:1])}
    assert len(model.sample(20, one, generator=make_generator(0)).unique(dim=0)) > 1
    metrics = translation_metrics(x, batch, batch)
    assert metrics["l1"].value < min(metrics["l1_of_source"].value, metrics["l1_of_mean"].value)
    assert metrics["ssim"].value > metrics["ssim_of_mean"].value
    same, real = (translation_metrics(batch.x + shift, batch, batch) for shift in (0, 3))
    assert (same["l1"].value, same["ssim"].value) == (0, pytest.approx(1))
    assert abs(same["patch_c2st"].value - 0.5) < 0.2 < real["patch_c2st"].value - 0.5
    assert is_translation(model)
    assert model.log_ratio(batch).shape == (64,)


def test_cyclegan_begins_as_the_identity_in_both_directions():
    model, batch = built(CycleGAN).eval(), pairs(7)
    x = batch.given["source"].x
    for options in (None, model.SamplingConfig(reverse=True)):
        assert torch.equal(model.sample(7, batch.given, options), x)
    terms = model.generator_loss(batch)
    assert terms["cycle_a"].max() < 0.5
    assert terms["identity_b"].max() < 0.3
    assert not is_translation(model)


def test_the_two_directions_are_two_networks():
    model, batch = built(CycleGAN).eval(), pairs(7)
    with torch.no_grad():
        model.generators[1].net.out.bias += 50
    assert (model.sample(7, batch.given) == 4).all()
    back = model.sample(7, batch.given, model.SamplingConfig(reverse=True))
    assert torch.equal(back, batch.given["source"].x)


@pytest.mark.parametrize("owner", [Pix2Pix, CycleGAN])
def test_what_is_no_pair_of_images_is_refused(owner):
    assert owner.unsupported_reason(SPACE) is None
    name = owner.__name__.lower()
    alone = owner.unsupported_reason(replace(SPACE, given={}))
    assert re.search(rf"^{name}\b.*5 levels of shape 1x6x7", alone)
    sized = owner.unsupported_reason(
        replace(SPACE, given={"source": replace(SOURCE, shape=(1, 6, 8))})
    )
    assert re.search("6x8.*6x7|6x7.*6x8", sized)
    colour = replace(SPACE, given={"source": replace(SOURCE, shape=(3, 6, 7))})
    assert (owner.unsupported_reason(colour) is None) is (owner is Pix2Pix)
    model = built(owner).train()
    with pytest.raises(UsageError, match=r"\b1\b.*train\.batch_size"):
        model.discriminator_loss(pairs(1))


def test_a_patch_deeper_than_the_image_is_refused():
    with pytest.raises(UsageError, match=r"patch=7.*6x7.*patch=3"):
        built(Pix2Pix, patch=7)


def test_a_run_shows_its_translations_and_measures_them():
    run = monge.fit(
        "pix2pix", "digits+half", "data.rows=90", "net.width=4", "width=4", budget="2steps"
    )
    write_figures(run)
    assert (run.folder / "figures" / "translations.png").exists()
    assert {"l1", "l1_of_source", "l1_of_mean"} <= set(run.evaluate())


def test_grey_images_stand_beside_coloured_ones(tmp_path):
    grey, colour = np.zeros((5, 4, 6), np.uint8), np.full((5, 4, 6, 3), 9, np.uint8)
    write_beside(tmp_path / "p.png", [grey, colour])
    assert Image.open(tmp_path / "p.png").mode == "RGB"
