"""Options of image GANs: how conditions are read, augmentation, truncation, style."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import monge
from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models._generator import truncate
from monge.models.adversarial._augmentation import CHANGES, augment
from monge.models.adversarial._image_generators import ModulatedConv
from monge.models.adversarial.dcgan import DCGAN
from monge.models.adversarial.gan import GAN
from monge.models.adversarial.wgan import WGAN
from monge.models.transport.sinkhorn_generator import SinkhornGenerator

IMAGE = Space(kind="levels", shape=(1, 8, 8), size=17, rows=1000)
LABEL = Space(kind="label", size=3, name="label")
GIVEN = replace(IMAGE, given={"label": LABEL})
WAYS = ("concat", "projection", "auxiliary")


def built(*settings: str, space: Space = GIVEN) -> DCGAN:
    torch.manual_seed(0)
    config = DCGAN.Config(latent=4, width=8).override(*settings)
    return config.build(space).double()


def rows(space: Space = GIVEN, n: int = 12) -> Batch:
    x = torch.randint(17, (n, *space.shape), generator=make_generator(1)).double()
    return Batch(x, {name: Batch(torch.arange(n) % 3) for name in space.given})


def gradients(model: DCGAN, name: str, batch: Batch) -> list[torch.Tensor | None]:
    (update,) = [each for each in model.updates() if each.name == name]
    total = torch.stack([term.mean() for term in update.loss(batch).values()]).sum()
    return list(torch.autograd.grad(total, list(update.params), allow_unused=True))


@pytest.mark.parametrize("generator", ["transposed", "style"])
@pytest.mark.parametrize("way", WAYS)
def test_every_parameter_is_moved_by_its_player(way, generator):
    model = built(f"conditioning={way}", f"generator={generator}", "augment=colour,cutout")
    batch = rows()
    with torch.no_grad():  # the noise of maps reaches what follows only once its strength is not 0
        for name, weights in model.generator.named_parameters():
            if name == "strength":
                weights.fill_(0.1)
    for name in ("discriminator", "generator"):
        assert all(g is not None and bool((g != 0).any()) for g in gradients(model, name, batch))
    moved = [id(p) for update in model.updates() for p in update.params]
    assert sorted(moved) == sorted(id(p) for p in model.parameters())


def test_a_projection_is_linear_in_the_condition_and_the_last_map():
    model = built("conditioning=projection").eval()
    batch = rows()
    y, context = model.real(batch), model.context(batch.given, len(batch))
    h = model.discriminator[:-1](y.unflatten(1, IMAGE.shape)).flatten(1)
    last = model.discriminator[-1]
    weight, bias = last.weight.flatten(1), last.bias
    psi = h @ weight[0] + bias[0]
    product = ((context @ weight[1:]) * h).sum(1) + context @ bias[1:]
    torch.testing.assert_close(model.discriminate(y, context), psi + product)


def test_an_auxiliary_head_is_charged_for_labels_and_reads_none():
    model = built("conditioning=auxiliary", "conditioning.weight=3").eval()
    batch = rows()
    y, context = model.real(batch), model.context(batch.given, len(batch))
    assert torch.equal(model.discriminate(y, context), model.discriminate(y, context.flip(0)))
    out = model.discriminator_outputs(y, context)
    loss = F.cross_entropy(out[:, 1:], batch.given["label"].x, reduction="none")
    torch.testing.assert_close(model.conditioning.class_loss(out, context), 3 / 2 * loss)
    assert {"real_class", "fake_class"} <= set(model.discriminator_loss(batch))
    unknown = torch.zeros_like(context)
    assert not model.conditioning.class_loss(out, unknown).any()


def test_the_class_loss_alone_moves_the_generator():
    model = built("conditioning=auxiliary")
    loss = model.generator_loss(rows())["class_loss"].mean()
    slopes = torch.autograd.grad(loss, list(model.generator.parameters()))
    assert all(bool((slope != 0).any()) for slope in slopes)


def test_two_labels_have_a_head_each():
    space = replace(IMAGE, given={"label": LABEL, "side": replace(LABEL, size=2, name="side")})
    model = built("conditioning=auxiliary", space=space).eval()
    given = {"label": Batch(torch.arange(12) % 3), "side": Batch(torch.arange(12) % 2)}
    batch = replace(rows(IMAGE), given=given)
    y, context = model.real(batch), model.context(given, 12)
    out = model.discriminator_outputs(y, context)
    known = F.cross_entropy(out[:, 1:4], given["label"].x, reduction="none")
    known = known + F.cross_entropy(out[:, 4:], given["side"].x, reduction="none")
    torch.testing.assert_close(model.conditioning.class_loss(out, context), known / 2)


def test_conditions_that_cannot_be_read_are_refused():
    for way in WAYS[1:]:
        with pytest.raises(UsageError, match=f"conditioning={way}.*--given"):
            built(f"conditioning={way}", space=IMAGE)
    number = replace(IMAGE, given={"size": Space(kind="real", name="size")})
    with pytest.raises(UsageError, match=r"auxiliary.*size.*projection"):
        built("conditioning=auxiliary", space=number)
    built("conditioning=projection", space=number)
    picture = replace(IMAGE, given={"source": replace(IMAGE, name="source")})
    with pytest.raises(UsageError, match=r"projection.*source.*concat"):
        built("conditioning=projection", space=picture)
    with pytest.raises(UsageError, match=r"augment=cutout.*source"):
        built("augment=cutout", space=picture)
    with pytest.raises(UsageError, match=r"augment.*colour"):
        built("augment=color")


PICTURES = torch.rand(64, 3, 9, 16, generator=make_generator(3), dtype=torch.float64) + 0.1


def test_augmentation_with_probability_zero_is_the_identity():
    assert torch.equal(augment(PICTURES, tuple(CHANGES), 0.0), PICTURES)
    half = augment(PICTURES, ["cutout"], 0.5)
    left = (half == PICTURES).flatten(1).all(1).double().mean()
    assert 0.2 < left < 0.8


def test_translation_moves_pictures_by_whole_pixels_and_leaves_zeros():
    shifts, pictures = set(), PICTURES.repeat(4, 1, 1, 1)
    torch.manual_seed(0)
    for old, new in zip(pictures, CHANGES["translation"](pictures), strict=True):
        found = [
            (down, right)
            for down in range(-1, 2)
            for right in range(-2, 3)
            if torch.equal(new, shifted(old, down, right))
        ]
        assert len(found) == 1
        shifts.update(found)
    assert len(shifts) == 15


def shifted(x: torch.Tensor, down: int, right: int) -> torch.Tensor:
    padded = F.pad(x, [2, 2, 1, 1])
    return padded[:, 1 - down : 10 - down, 2 - right : 18 - right]


def test_cutout_leaves_a_square_of_zeros():
    torch.manual_seed(0)
    changed = CHANGES["cutout"](PICTURES)
    gone = changed == 0
    assert torch.equal(changed[~gone], PICTURES[~gone])
    assert torch.equal(gone, gone.any(1, keepdim=True).expand_as(gone))
    tall, wide = (gone[:, 0].any(axis).sum(1) for axis in (2, 1))
    assert tall.max() == 5  # of 9, rounded
    assert wide.max() == 8
    assert torch.equal(gone[:, 0].sum((1, 2)), tall * wide)
    assert gone.any(0).all()


def test_colour_changes_values_affinely():
    """Grey values a x + b, differences of channels by a factor of their own."""
    torch.manual_seed(0)
    changed = CHANGES["colour"](PICTURES)
    grey, was = (x.mean(1).flatten(1) for x in (changed, PICTURES))
    centred, old = grey - grey.mean(1, keepdim=True), was - was.mean(1, keepdim=True)
    contrast = (centred * old).sum(1) / old.square().sum(1)
    torch.testing.assert_close(centred, contrast[:, None] * old)
    assert 0.5 < contrast.min() < 0.7
    assert 1.3 < contrast.max() < 1.5
    brightness = (grey - was).mean(1)
    assert brightness.abs().max() < 0.5
    apart, before = (x - x.mean(1, keepdim=True) for x in (changed, PICTURES))
    factor = (apart / before).flatten(1)
    torch.testing.assert_close(factor, factor[:, :1].expand_as(factor), rtol=1e-6, atol=1e-9)


def test_real_and_generated_pictures_are_changed_alike():
    model = built("augment=translation,cutout", "conditioning=concat", space=IMAGE)
    seen = []
    model.discriminator.register_forward_hook(lambda net, inputs, out: seen.append(inputs[0]))
    fixed = torch.full((256, 64), 0.5, dtype=torch.float64)
    model.generate = lambda z, context, truncation=1.0: fixed
    model.real = lambda batch: fixed
    batch = rows(IMAGE, 256)
    model.discriminator_loss(batch)
    model.generator_loss(batch)
    zeros = torch.stack([(x == 0).flatten(1).double().mean(1) for x in seen])  # (3, 256)
    assert len(zeros) == 3
    assert bool((zeros.std(1) > 0).all())
    assert stats.ks_2samp(zeros[0], zeros[1]).pvalue > 1e-3
    assert stats.ks_2samp(zeros[0], zeros[2]).pvalue > 1e-3
    assert not torch.equal(zeros[0], zeros[1])


def test_a_ratio_needs_pictures_as_they_are():
    with pytest.raises(UsageError, match="augment_probability=1"):
        built("augment=cutout").log_ratio(rows())
    model = built("augment=cutout", "augment_probability=0.5").eval()
    found = model.log_ratio(rows())
    assert torch.equal(found, model.log_ratio(rows()))  # nothing is changed at random


def test_a_stretched_tanh_reaches_the_ends_by_moderate_outputs():
    """tanh(+-1.9) = +-0.956: stretched by 0.05 beyond the ends, and clipped to them."""
    space = replace(IMAGE, size=256)
    outputs = torch.tensor([-1.9, -1.0, 0.0, 1.0, 1.9]).double().repeat(13)[:64]
    for share, ends in ((0.0, [6, 249]), (0.05, [0, 255])):
        model = built(f"stretch={share}", "generator=style", space=space).eval()
        model.generator.forward = lambda z, context, psi=1.0: (
            torch.tanh(outputs).reshape(1, 1, 8, 8).expand(len(z), -1, -1, -1)
        )
        x = model.sample(3).flatten(1)[0, :5]
        assert x[[0, 4]].tolist() == ends
        assert x[2].item() in (127, 128)
        due = (1 + share) * math.tanh(1) * 127.5
        assert (x[3] - x[1]).item() == pytest.approx(2 * due, abs=1.01)


def test_small_grey_pictures_take_less_noise():
    for shape, latent in (((1, 28, 28), 16), ((1, 64, 64), 64), ((3, 28, 28), 64)):
        assert DCGAN.defaults(replace(IMAGE, shape=shape)).config.latent == latent


def test_only_many_levels_are_stretched():
    of = {size: DCGAN.defaults(replace(IMAGE, size=size)).config.stretch for size in (17, 256)}
    assert of[17] == 0 < of[256]
    real = Space(kind="real", shape=(1, 8, 8))
    assert DCGAN.defaults(real).config.stretch == 0
    with pytest.raises(UsageError, match=r"stretch=0\.1 expected levels"):
        built("stretch=0.1", space=real)


@pytest.mark.parametrize("psi", [0.04, 0.5, 0.99])
def test_truncated_noise_is_normal_between_its_ends(psi):
    z = torch.randn(20000, generator=make_generator(0), dtype=torch.float64)
    found = truncate(z, psi)
    assert found.abs().max() <= 2 * psi
    assert torch.equal(found.argsort(), z.argsort())
    assert stats.kstest(found, stats.truncnorm(-2 * psi, 2 * psi).cdf).pvalue > 1e-3
    assert truncate(torch.tensor([30.0, -30.0]), psi).abs().max() <= 2 * psi * (1 + 1e-6)


@pytest.mark.parametrize("owner", [GAN, DCGAN, WGAN, SinkhornGenerator])
def test_truncation_one_changes_nothing_and_less_makes_samples_alike(owner):
    torch.manual_seed(0)
    space = replace(IMAGE, kind="real", mean=(0.0,), scale=(1.0,))
    model = owner.smallest_config(space).build(space).eval()
    plain, one, half, none = (
        model.sample(200, options=options, generator=make_generator(0))
        for options in (None, *(model.SamplingConfig(truncation=t) for t in (1.0, 0.5, 1e-6)))
    )
    assert torch.equal(plain, one)
    spread = [x.std(0).mean().item() for x in (plain, half, none)]
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] < 1e-3 * spread[0]
    with pytest.raises(UsageError, match=r"truncation=1\.5"):
        model.SamplingConfig(truncation=1.5)


def test_truncation_leaves_what_chooses_the_components_of_tables():
    space = Space(kind="label", size=5, name="name")
    torch.manual_seed(0)
    model = GAN.smallest_config(space).build(space).eval()
    model.initialise_from_data(Batch(torch.arange(500) % 5))
    x = model.sample(500, options=model.SamplingConfig(truncation=1e-6))
    assert len(x.unique()) == 5


def test_a_truncated_style_lies_between_it_and_the_mean_of_its_conditions():
    model = built("generator=style").eval()
    net = model.generator
    z, context = model.noise(6, make_generator(0)), torch.eye(3).double().repeat(2, 1)
    mean = net.mean_style(context)
    assert torch.equal(mean[0], mean[3])
    assert not torch.allclose(mean[0], mean[1])
    styles = net.style(model.noise(4000)[:, :4], context[:1].expand(4000, -1))
    error = (styles.mean(0) - mean[0]).abs() / (styles.std(0) * math.sqrt(1 / 4000 + 1 / 1000))
    assert error.max() < 5
    with torch.no_grad():
        whole, alike = net(z, context), net(z, context, 1e-9)
    torch.testing.assert_close(alike[0], alike[3], rtol=0, atol=1e-6)
    assert not torch.allclose(whole[0], whole[3])
    built("generator=style", space=IMAGE).sample(2, options=model.SamplingConfig(truncation=0.7))


def test_modulation_of_maps_is_that_of_weights():
    torch.manual_seed(0)
    conv = ModulatedConv(5, 4, 6, 3, True).double()
    x, style = torch.randn(2, 4, 7, 7).double(), torch.randn(2, 5).double()
    for k in range(2):
        weight = conv.weight * conv.scales(style)[k][None, :, None, None]
        weight = weight / weight.square().sum((1, 2, 3), keepdim=True).sqrt()
        known = F.conv2d(x[k : k + 1], weight, conv.bias, padding=1)
        torch.testing.assert_close(conv(x, style)[k : k + 1], known, rtol=1e-4, atol=1e-4)


def test_noise_of_maps_is_a_part_of_z():
    model = built("generator=style", space=IMAGE).eval()
    assert model.latent.shape == (4 + 2 * 2 + 4 * 4 + 8 * 8,)
    with torch.no_grad():
        model.generator.strength.fill_(1.0)
    z = model.noise(3, make_generator(0))
    assert torch.equal(model.decode(z), model.decode(z))
    other = torch.cat([z[:, :4], z[:, 4:].flip(0)], 1)
    assert not torch.equal(model.decode(z)[0], model.decode(other)[0])


@pytest.mark.parametrize("sides", [(2, 2), (7, 9), (28, 28)])
@pytest.mark.parametrize("init", ["auto", "he"])
def test_styles_make_images_of_any_size(sides, init):
    space = Space(kind="levels", shape=(3, *sides), size=256)
    model = built("generator=style", f"init={init}", space=space).eval()
    assert model.sample(2).shape == (2, 3, *sides)
    style = model.generator.style(model.noise(2)[:, :4], torch.zeros(2, 0).double())
    assert (model.generator.convs[0].scales(style).mean() - 1).abs() < 0.7


def test_samples_say_that_they_are_truncated(tmp_path):
    run = monge.fit("dcgan", "digits", "width=4", budget="1steps", out=tmp_path / "run")
    run.sample(2)
    assert run.notes == ()
    run.sample(2, truncation=0.5)
    assert "truncation=0.5" in run.notes[0]
