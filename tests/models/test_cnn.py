"""Predictors from images: what they read, refuse and choose for themselves."""

from dataclasses import replace

import pytest
import small_data
import torch

from monge import registry
from monge.core.batch import Batch, broadcast_conditions
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.predict.cnn import CNN, plan_layers
from monge.models.predict.resnet import ResNetPredictor
from monge.nn.layers.specs import StackSpec, receptive_field
from monge.train.trainer import Trainer

BOTH = pytest.mark.parametrize("name", ["predict.cnn", "predict.resnet"])


def image(*shape, rows=54_000, kind="levels"):
    return Space(
        kind=kind, shape=shape, size=256, mean=(33.0,), scale=(79.0,), rows=rows, name="image"
    )


def digits(*shape, rows=54_000, **given):
    given = {"image": image(*shape, rows=rows), **given}
    return Space(kind="label", size=10, name="label", rows=rows, given=given)


def question(space, n, seed=0):
    """Random rows of a label given an image, and perhaps given columns."""
    g = make_generator(seed)
    given = {
        name: Batch(
            torch.randint(0, 256, (n, *part.shape), generator=g).float()
            if part.is_image
            else torch.randn(n, *part.shape, generator=g)
        )
        for name, part in space.given.items()
    }
    return Batch(torch.randint(0, space.size, (n,), generator=g), given)


def built(name, space, **fields):
    torch.manual_seed(0)
    owner = registry.find(name)
    return replace(owner.smallest_config(space), **fields).build(space)


@BOTH
@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 64, 64), (3, 9, 30)])
def test_defaults_can_be_built_and_are_not_huge(name, shape):
    space = digits(*shape)
    defaults = registry.find(name).defaults(space)
    model = defaults.config.build(space)
    assert sum(p.numel() for p in model.parameters()) < 3_000_000
    assert defaults.train.max_steps == 8 * 54_000 // 128
    assert bool(defaults.data) == (min(shape[1:]) >= 16)
    model.eval()
    assert model.likelihood(question(space, 2)).value.shape == (2,)


@pytest.mark.parametrize("name", ["predict.cnn", "predict.resnet", "diffusion.noisy_classifier"])
def test_an_image_that_is_repeated_is_read_once(name):
    """Copies of it are rows like any others, and give the same."""
    space = digits(1, 8, 8)
    model, two = built(name, space).eval(), question(space, 2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    labels, sizes = torch.arange(20) % 10, []
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            layer.register_forward_hook(lambda _, entered, out: sizes.append(len(out)))
    found = []
    for row in (two[:1], two[1:]):
        given = broadcast_conditions(row.given, space, 20)
        found.append(model.likelihood(Batch(labels, given)).value)
        model.sample(20, row.given)
        assert set(sizes) == {1}
        copies = {name: part.map(torch.Tensor.contiguous) for name, part in given.items()}
        torch.testing.assert_close(model.likelihood(Batch(labels, copies)).value, found[-1])
        assert 20 in sizes
        sizes.clear()
    assert not torch.allclose(*found)


@BOTH
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 3), (1, 2, 2)])
def test_the_smallest_images_are_refused_or_built(name, shape):
    owner, space = registry.find(name), digits(*shape)
    if why := owner.unsupported_reason(space):
        assert (name, min(shape[1:])) == ("predict.cnn", 1)
        assert "predict.resnet" in why
        return
    for config in (owner.smallest_config(space), owner.defaults(space).config):
        assert config.build(space).eval().likelihood(question(space, 2)).value.isfinite().all()


def test_a_number_is_not_augmented_and_few_rows_are_seen_often():
    space = replace(digits(1, 28, 28, rows=1000), kind="real", size=0, rows=1000)
    defaults = CNN.defaults(space)
    assert defaults.data == ()
    assert (defaults.train.max_steps, defaults.train.batch_size) == (1500, 64)


@BOTH
def test_other_conditions_are_read_beside_the_image(name):
    space = digits(1, 8, 8, side=Space(kind="real", shape=(2,), name="side"))
    model, rows = built(name, space).double().eval(), question(space, 6).double()
    torch.nn.init.normal_(model.out.weight)
    before = model.likelihood(rows).value
    for part in space.given:
        other = replace(
            rows, given={**rows.given, part: question(space, 6, 1).double().given[part]}
        )
        assert not torch.isclose(model.likelihood(other).value, before).any(), part


@BOTH
def test_it_learns_to_classify_images(name):
    space, batch = small_data.conditioned(*small_data.make("label"), "picture")
    model, owner = built(name, space), registry.find(name)
    train_config = replace(owner.defaults(space).train, max_steps=60, warmup=10)
    trainer = Trainer(model, small_data.Rows(batch), train_config)
    for _ in range(60):
        trainer.train_step(1.0)
    model.eval()
    found = float(model.likelihood(batch).value.detach().mean())
    codes = batch.given["picture"].x[:, 0, :, 0].argmax(1)
    counts = torch.zeros(3, 3).index_put_((codes, batch.x), torch.ones(len(batch)), True)
    shares = counts / counts.sum(1, keepdim=True)
    best = float((counts * shares.clamp_min(1e-9).log()).sum() / len(batch))
    assert found == pytest.approx(best, abs=0.05)


@BOTH
def test_what_is_no_image_is_refused(name):
    owner = registry.find(name)
    lone = Space(kind="label", size=3, given={"x": Space(kind="real", shape=(5,), name="x")})
    assert "predict.mlp" in owner.unsupported_reason(lone)
    two = digits(1, 8, 8, other=image(1, 8, 8))
    assert "predict.mlp" in owner.unsupported_reason(two)
    assert "--target" in owner.unsupported_reason(Space(kind="label", size=3))
    assert owner.unsupported_reason(digits(1, 8, 8)) is None


def test_codes_are_no_images():
    space = digits(1, 8, 8)
    own = replace(space.given["image"], high=(255.0,))
    encoder = registry.find("latent.vae").smallest_config(own).build(own)
    with pytest.raises(UsageError, match=r"encoder.*predict\.mlp"):
        CNN(CNN.smallest_config(space), space, {"encoder": encoder})


def test_images_that_are_too_small_are_refused():
    space = digits(1, 4, 4)
    for config in (CNN.Config(widths=(4, 4, 4)), CNN.Config(widths=(4,) * 3, halving="max")):
        with pytest.raises(UsageError, match="1x1"):
            config.build(space)
    with pytest.raises(UsageError, match="widths=32,64"):
        CNN.Config(widths=()).build(space)


@BOTH
def test_a_batch_of_one_is_refused_with_batch_norm(name):
    space = digits(1, 8, 8)
    with pytest.raises(UsageError, match=r"norm=batch.*train\.batch_size"):
        built(name, space).train().loss(question(space, 1))
    net = (
        {"norm": "group"}
        if name == "predict.cnn"
        else {"net": replace(ResNetPredictor.smallest_config(space).net, norm="group")}
    )
    model = built(name, space, **net).train()
    assert model.loss(question(space, 1))["nll"].shape == (1,)


@pytest.mark.parametrize("norm", ["batch", "layer", "group", "instance", "none"])
@pytest.mark.parametrize("halving", ["stride", "max", "average"])
def test_a_plan_is_what_is_built(norm, halving):
    config = CNN.Config(widths=(4, 8), norm=norm, halving=halving, features=8)
    model, plan = config.build(digits(1, 12, 13)), plan_layers(config)
    assert plan.parameters((1, 12, 13)) == sum(p.numel() for p in model.trunk.net.parameters())
    assert plan.shape((1, 12, 13)) == (model.trunk.width,) == (8,)
    assert model.loss(question(digits(1, 12, 13), 3))["nll"].isfinite().all()


def test_the_receptive_field_of_the_default_covers_a_digit():
    maps = StackSpec(plan_layers(CNN.Config()).layers[:12])
    assert receptive_field(maps) == 1 + 2 + 4 + 4 + 8


def test_thinned_networks_are_an_estimate_and_differ():
    space = digits(1, 8, 8)
    model, rows = built("predict.cnn", space, dropout=0.5).eval(), question(space, 4)
    torch.nn.init.normal_(model.out.weight)
    options = model.LikelihoodConfig(passes=20)
    found = model.likelihood(rows, options, make_generator(1))
    assert found.kind == "estimate"
    assert (found.stderr > 0).all()
    again = model.likelihood(rows[1:], options, make_generator(1))
    torch.testing.assert_close(found.value[1:], again.value)
