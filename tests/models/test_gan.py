"""The two-player game: its losses, its players, the discriminator's outputs, its diagnostics."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import monge
from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.adversarial import _convnets
from monge.models.adversarial._losses import (
    discriminator_terms,
    divergence_bound,
    estimates,
    generator_terms,
    log_ratio,
    value,
)
from monge.models.adversarial.dcgan import DCGAN
from monge.models.adversarial.gan import GAN
from monge.prob.divergence import jensen_shannon, total_variation

REAL = Space(kind="real", shape=(2,), rows=1000)
IMAGE = Space(kind="levels", shape=(1, 8, 8), size=17, rows=1000)
LABEL = {"label": Space(kind="label", size=3, name="label")}


def built(owner=GAN, space: Space = REAL, **settings: object):
    torch.manual_seed(0)
    return replace(owner.smallest_config(space), **settings).build(space).double()


def rows(space: Space = REAL, n: int = 16, seed: int = 1) -> Batch:
    x = torch.randn(n, *space.shape, generator=make_generator(seed), dtype=torch.float64)
    x = (17 * torch.sigmoid(x)).floor() if space.kind == "levels" else x
    return Batch(x, {name: Batch(torch.arange(n) % 3) for name in space.given})


def logits(seed: int = 0) -> tuple[Tensor, Tensor]:
    real, fake = torch.randn(2, 40, generator=make_generator(seed), dtype=torch.float64)
    return real, fake


def test_discriminator_outputs_of_a_half_give_minus_log_four_and_no_divergence():
    none = torch.zeros(5)
    assert value(none, none).item() == pytest.approx(-math.log(4))
    assert divergence_bound(none, none).item() == pytest.approx(0, abs=1e-7)
    sure = torch.full((5,), 40.0)
    assert divergence_bound(sure, -sure).item() == pytest.approx(math.log(2))


def test_minimax_takes_from_the_generator_what_it_gives_the_discriminator():
    real, fake = logits()
    fake.requires_grad_()
    loss = discriminator_terms("minimax", real, fake)["fake"].sum()
    (ours,) = torch.autograd.grad(generator_terms("minimax", fake).sum(), fake)
    (theirs,) = torch.autograd.grad(loss, fake)
    torch.testing.assert_close(ours, -theirs)
    (other,) = torch.autograd.grad(generator_terms("nonsaturating", fake).sum(), fake)
    assert (other < 0).all()
    assert not torch.allclose(other, ours)


def test_smoothing_is_one_sided():
    real, fake = logits()
    plain, smooth = (discriminator_terms("nonsaturating", real, fake, s) for s in (0.0, 0.2))
    torch.testing.assert_close(plain["fake"], smooth["fake"], atol=0, rtol=0)
    labels = torch.full_like(real, 0.8)
    known = nn.functional.binary_cross_entropy_with_logits(real, labels, reduction="none")
    torch.testing.assert_close(smooth["real"], known / 2)
    with pytest.raises(UsageError, match=r"label_smoothing=0\.7"):
        GAN.Config(label_smoothing=0.7)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_the_ratio_is_read_back_from_the_best_discriminator(label_smoothing):
    ratio = torch.tensor([0.1, 1.0, 7.0], dtype=torch.float64)
    best = (1 - label_smoothing) * ratio / (1 + ratio)
    torch.testing.assert_close(
        log_ratio("nonsaturating", best.logit(), label_smoothing).exp(), ratio
    )
    torch.testing.assert_close(log_ratio("squares", best, label_smoothing).exp(), ratio)


@pytest.mark.parametrize(("owner", "space"), [(GAN, REAL), (DCGAN, IMAGE)])
def test_the_players_share_all_parameters_and_each_moves_its_own(owner, space):
    model = built(owner, replace(space, given=LABEL), critic_steps=3, penalty=0.5)
    moved = [id(p) for update in model.updates() for p in update.params]
    assert sorted(moved) == sorted(id(p) for p in model.parameters())
    assert [update.repeat for update in model.updates()] == [3, 1, 1]
    for update in model.updates():
        losses = update.loss(rows(model.space))
        if update.params:
            total = torch.stack([term.mean() for term in losses.values()]).sum()
            grads = torch.autograd.grad(total, list(update.params), allow_unused=True)
            assert all(g is not None for g in grads), update.name


def test_the_price_of_slopes_is_that_of_a_linear_discriminator():
    model = built(penalty=3.0)
    model.discriminate = lambda y, context: y @ torch.tensor([3.0, 4.0]).double()
    torch.testing.assert_close(model.r1_penalty(rows()), torch.full((16,), 3 / 2 * 25).double())


def test_resampling_by_the_ratio_maps_one_distribution_to_the_other():
    """Fakes N(0, 1), data N(1, 1): log ratio x - 1/2. Of many candidates the chosen is data."""
    model = built(space=Space(kind="real", shape=(1,)), latent=1)
    model.generate = lambda z, context, truncation=1.0: z
    model.discriminate = lambda y, context: y[:, 0] - 0.5
    x = model.sample(4000, options=model.SamplingConfig(resample=64), generator=make_generator(0))
    assert x.mean().item() == pytest.approx(1.0, abs=0.08)
    assert x.std().item() == pytest.approx(1.0, abs=0.08)
    plain = model.sample(4000, generator=make_generator(0))
    assert plain.mean().item() == pytest.approx(0.0, abs=0.08)
    again = model.sample(
        4000, options=model.SamplingConfig(resample=64), generator=make_generator(0)
    )
    assert torch.equal(x, again)


def test_resampled_rows_keep_what_they_are_given():
    model = built(space=replace(REAL, given=LABEL))
    model.generate = lambda z, context, truncation=1.0: context[:, :2].clone()
    given = {"label": Batch(torch.arange(6) % 3)}
    x = model.sample(6, given, model.SamplingConfig(resample=5), make_generator(0))
    torch.testing.assert_close(x[0], torch.tensor([1.0, 0.0]).double())
    torch.testing.assert_close(x[4], torch.tensor([0.0, 1.0]).double())


def test_diagnostics_find_that_the_discriminator_has_won():
    model = built(game="minimax").eval()
    assert model.diagnose(rows(n=64)) == []
    model.generate = lambda z, context, truncation=1.0: z + 100
    model.discriminate = lambda y, context: 5 * (20 - y[:, 0])
    (won,) = model.diagnose(rows(n=64))
    assert won.name == "discriminator has won"
    assert "100%" in won.sentence
    assert "game=nonsaturating" in won.remedy


def test_the_monitor_returns_the_curves_and_their_optimal_values():
    model = built()
    monitored = model.monitor(rows())
    assert set(monitored) == {"value", "js_bound", "accuracy", "gradient_norm"}
    torch.testing.assert_close(monitored["js_bound"], (monitored["value"] + math.log(4)) / 2)
    assert model.optimal_values["watch/value"] == -math.log(4)


def test_bad_input_is_refused():
    model = built().train()
    with pytest.raises(UsageError, match=r"\b2\b.*\b1\b.*train\.batch_size"):
        model.discriminator_loss(rows(n=1))
    alone = {"label": Space(kind="label", size=1, name="label")}
    single = GAN.unsupported_reason(replace(REAL, given=alone))
    assert re.search(r"\b2\b.*\blabel\b.*\b1\b", single)
    assert "adversarial.gan" in DCGAN.unsupported_reason(REAL)
    assert "2x2" in DCGAN.unsupported_reason(replace(IMAGE, shape=(1, 1, 8)))
    with pytest.raises(UsageError, match=r"depth=5.*8x8.*depth=3"):
        DCGAN.Config(depth=5).build(IMAGE)


@pytest.mark.parametrize("sides", [(2, 2), (7, 7), (8, 8), (9, 14), (28, 28), (33, 20), (5, 64)])
@pytest.mark.parametrize("channels", [1, 3])
def test_dcgan_makes_images_of_any_size_by_the_published_rules(sides, channels):
    space = Space(kind="levels", shape=(channels, *sides), size=256)
    model = DCGAN.Config(latent=3, width=4).build(space).eval()
    x = model.sample(5, generator=make_generator(0))
    assert x.shape == (5, channels, *sides)
    assert x.min() >= 0
    assert x.max() <= 255
    assert model.log_ratio(Batch(x)).shape == (5,)
    assert _convnets.broken_rules(model.generator, model.discriminator) == []


def test_every_published_rule_is_checked():
    def broken(maker=None, discriminator=None) -> str:
        own = _convnets.upsampler(3, 1, (8, 8), 4, 2, True), _convnets.downsampler(1, (8, 8), 4, 2)
        (rule,) = _convnets.broken_rules(
            maker(list(own[0])) if maker else own[0],
            discriminator(list(own[1])) if discriminator else own[1],
        )
        return rule

    def without(kind):
        return lambda layers: [layer for layer in layers if not isinstance(layer, kind)]

    def swapped(kind, other):
        return lambda layers: [other if isinstance(layer, kind) else layer for layer in layers]

    assert "batch norm" in broken(maker=without(nn.BatchNorm2d))
    assert "batch norm" in broken(discriminator=lambda ls: [ls[0], nn.BatchNorm2d(4), *ls[1:]])
    assert "tanh" in broken(maker=without(nn.Tanh))
    assert "relu" in broken(maker=swapped(nn.ReLU, nn.LeakyReLU(0.2)))
    assert "slope 0.2" in broken(discriminator=swapped(nn.LeakyReLU, nn.LeakyReLU(0.1)))
    assert "dense layers" in broken(maker=lambda ls: [nn.Linear(3, 3), *ls])


def test_real_images_are_unbounded():
    space = Space(kind="real", shape=(1, 4, 4), mean=(100.0,), scale=(50.0,))
    model = built(DCGAN, space)
    assert not any(isinstance(layer, nn.Tanh) for layer in model.generator)
    assert model.sample(4).shape == (4, 1, 4, 4)


def test_a_run_reports_modes_ratios_and_problems():
    run = monge.fit("gan", "ring", "train.eval_every=50", "data.rows=600", budget="50steps")
    found = run.evaluate()
    assert found["modes_found"].unit == "of 8"
    assert {"c2st", "coverage", "coverage_of_real_rows", "memorised"} <= set(found)
    assert {"watch/value", "watch/js_bound", "watch/gradient_norm"} <= set(run.history)
    assert "implausible samples" in {finding.name for finding in run.diagnose()}
    assert run.sample(5, None, "resample=4").shape == (5, 2)


GAMES = ("nonsaturating", "minimax", "squares", "hinge")


@pytest.mark.parametrize("game", GAMES[1:])
def test_the_best_discriminator_reaches_the_divergence_of_its_game(game):
    p, q = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    share = p / (p + q)
    best = {"minimax": share.logit(), "squares": share, "hinge": (p - q).sign()}[game]
    found = {
        "minimax": jensen_shannon(p, q),
        "squares": ((p - q).square() / (p + q)).sum(),
        "hinge": total_variation(p, q),
    }[game]
    rows = (10 * p).round().long(), (10 * q).round().long()  # a sample with these frequencies

    def bound(a: Tensor) -> float:
        terms = estimates(game, *(a.repeat_interleave(count) for count in rows))
        return next(float(each) for name, each in terms.items() if name.endswith("_bound"))

    assert bound(best) == pytest.approx(float(found), abs=1e-12)
    moved = best + 0.2 * torch.randn(200, 4, generator=make_generator(0), dtype=torch.float64)
    assert max(map(bound, moved)) <= float(found) + 1e-12


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("owner", [GAN, DCGAN])
def test_every_game_is_played_on_images(game, owner):
    defaults = owner.defaults_with(replace(IMAGE, shape=(1, 8, 8)), {"game": game})
    defaults.config.override(f"game={game}")  # its own settings suit the game
    model = built(owner, IMAGE, game=game).train()
    batch = rows(IMAGE)
    for update in model.updates():
        terms = update.loss(batch)
        assert all(bool(term.isfinite().all()) for term in terms.values())
    assert model.estimate_distance(batch).item() <= 2


def test_the_hinge_knows_no_ratio_and_no_labels():
    model = built(game="hinge")
    with pytest.raises(UsageError, match="nonsaturating"):
        model.log_ratio(rows())
    with pytest.raises(UsageError, match=r"label_smoothing=0\.1"):
        replace(GAN.Config(), game="hinge", label_smoothing=0.1)


KINDS = {
    "real": Space(kind="real", shape=(2,), mean=(1.0,), scale=(2.0,)),
    "counts": Space(kind="counts", mean=(3.0,), scale=(2.0,)),
    "binary": Space(kind="binary", shape=(4,)),
    "image": Space(kind="levels", shape=(1, 4, 4), size=5),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("owner", [GAN, DCGAN])
def test_conditions_of_any_kind_reach_both_players(owner, kind):
    space = replace(IMAGE, given={"c": KINDS[kind]})
    model = built(owner, space).eval()
    assert kind == "image" or KINDS[kind].kind in owner.givens
    batch = rows(IMAGE)
    values = [torch.full((16, *KINDS[kind].shape), number).double() for number in (0.0, 1.0)]
    first, second = (Batch(batch.x, {"c": Batch(each)}) for each in values)
    assert not torch.allclose(model.log_ratio(first), model.log_ratio(second))
    z = model.noise(16, make_generator(0))
    made = [model.generate(z, model.context(each.given, 16)) for each in (first, second)]
    assert not torch.allclose(*made)


def test_samples_of_pictures_vary_by_default_as_rows_do(tmp_path):
    """Without a penalty on slopes all were alike."""
    run = monge.fit("gan", "digits", budget="200steps", out=tmp_path / "run")
    rows, x = run.split(None, "train").whole().x, run.sample_tensor(200)
    assert float(x.std(0).mean()) > 0.6 * float(rows.double().std(0).mean())
