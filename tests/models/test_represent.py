"""Encoders without labels: what a look changes, what is hidden, what a linear map reads."""

import math

import numpy as np
import pytest
import small_data
import torch

import monge
from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.space import Space
from monge.evaluate.likelihood import objective
from monge.evaluate.linear_probe import probe
from monge.models._views import corrupt_entries, transform_images
from monge.models.represent._base import ConvRepresentationNet
from monge.models.represent.byol import BYOL
from monge.models.represent.contrastive import Contrastive
from monge.models.represent.mae import MaskedAutoencoder
from monge.prob.info_nce import info_nce, nt_xent

IMAGE = Space(kind="levels", shape=(1, 16, 16), size=4, mean=(1.5,), scale=(1.0,), high=(3.0,))


def test_info_nce_is_cross_entropy_with_the_diagonal():
    scores = torch.randn(6, 9, dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(6), reduction="none")
    torch.testing.assert_close(info_nce(scores), expected)


def test_agreement_by_hand():
    one, two = torch.randn(2, 3, 4, dtype=torch.float64)
    found = nt_xent(one, two, 0.5)
    z = torch.cat([one, two])
    z = z / z.norm(dim=1, keepdim=True)
    for i in range(3):
        each = []
        for a, b in ((i, i + 3), (i + 3, i)):
            others = [z[a] @ z[j] / 0.5 for j in range(6) if j != a]
            each.append(torch.logsumexp(torch.stack(others), 0) - z[a] @ z[b] / 0.5)
        torch.testing.assert_close(found[i], torch.stack(each).mean())


def test_views_preserve_what_they_should():
    torch.manual_seed(0)
    images = torch.rand(5, 2, 8, 8)
    torch.testing.assert_close(transform_images(images, 0.0, 0.0, 0.0), images)
    assert (transform_images(images, 30.0, 0.2, 0.1) - images).abs().mean() > 0.05
    features, owner = torch.arange(600.0).reshape(200, 3), torch.tensor([0, 0, 1])
    view = corrupt_entries(features, owner, 0.4)
    changed = view != features
    assert torch.equal(changed[:, 0], changed[:, 1])  # features of one entry change together
    assert changed.float().mean().item() == pytest.approx(0.4, abs=0.1)
    assert all(set(view[:, k].tolist()) <= set(features[:, k].tolist()) for k in range(3))
    assert torch.equal(corrupt_entries(features, owner, 0.0), features)


def test_a_mask_hides_something_of_every_row_in_squares():
    torch.manual_seed(0)
    model = MaskedAutoencoder.smallest_config(IMAGE).build(IMAGE)
    hidden = model.sample_mask(torch.zeros(300, 256))
    assert hidden.any(1).all()
    assert hidden.float().mean().item() == pytest.approx(0.4, abs=0.03)
    squares = hidden.reshape(300, 8, 2, 8, 2).transpose(2, 3).flatten(3)
    assert torch.equal(squares.all(3), squares.any(3))


def test_the_loss_of_a_mask_reads_hidden_entries_alone():
    space, batch = small_data.make("real")
    torch.manual_seed(0)
    model = MaskedAutoencoder.smallest_config(space).build(space).double()
    batch = batch.double()[:10]
    model.sample_mask = lambda x: torch.tensor([True, False]).expand(10, 2)
    model.initialise_from_data(batch)
    loss = model.loss(batch)["hidden"]
    other = Batch(batch.x + torch.tensor([1.0, 0.0]))
    code = model.encode_observed(
        model.features(batch), torch.tensor([[False, True]]).expand(10, 2)
    )
    params = model.decoder(code)
    torch.testing.assert_close(loss, -2 * model.head.log_prob(params, batch.x)[:, 0])
    moved_on = model.decoder(
        model.encode_observed(model.features(other), torch.tensor([[False, True]]).expand(10, 2))
    )
    torch.testing.assert_close(moved_on, params)  # what is hidden is not read


@pytest.mark.parametrize("kind", [Contrastive, MaskedAutoencoder])
def test_images_are_read_by_convolutions(kind):
    defaults = kind.defaults(IMAGE)
    assert isinstance(defaults.config.net, ConvRepresentationNet.Config)
    model = defaults.config.build(IMAGE)
    x = torch.randint(4, (6, 1, 16, 16)).float()
    assert model.loss(Batch(x))[("contrast" if kind is Contrastive else "hidden")].shape == (6,)
    assert model.eval().encode(x).shape == (6, *model.latent.shape)
    with pytest.raises(UsageError, match="net=convolution"):
        kind.Config().override("net=convolution").build(small_data.make("real")[0])


def test_the_held_out_objective_is_repeatable_and_lower_is_better():
    space, batch = small_data.make("real")
    model = Contrastive.smallest_config(space).build(space).eval()
    before = torch.random.get_rng_state()
    one, two = (objective(model, [batch[:100], batch[100:150]]) for _ in range(2))
    assert one == two
    assert (one.kind, one.unit) == ("loss", "loss")
    assert torch.equal(before, torch.random.get_rng_state())
    assert one.better_than(None)
    assert not one.better_than(two)


def test_a_probe_reads_what_is_linear_and_nothing_else():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(2000, 5, generator=generator, dtype=torch.float64)
    names = (codes @ torch.randn(5, 3, generator=generator, dtype=torch.float64)).argmax(1)
    noise = torch.randint(3, (2000,), generator=generator)
    good = probe(codes[:1000], names[:1000], codes[1000:], names[1000:])
    assert good.value > 0.97
    chance = probe(codes[:1000], noise[:1000], codes[1000:], noise[1000:])
    assert abs(chance.value - 1 / 3) < 5 * chance.stderr
    assert chance.stderr == pytest.approx(math.sqrt(chance.value * (1 - chance.value) / 1000))


@pytest.mark.parametrize("name", ["represent.contrastive", "represent.mae", "represent.byol"])
def test_a_run_is_evaluated_by_its_loss_and_probed(name):
    run = monge.fit(name, "iris", "net.width=32", "train.eval_every=20", budget="60steps")
    assert run.result["held_out"]["kind"] == "loss"
    found = run.evaluate()
    assert {"held_out_loss", "parameters", "probe_accuracy"} <= set(found)
    assert found["probe_accuracy"].value > 0.6
    again = monge.load(run.folder).evaluate()
    assert again["probe_accuracy"] == found["probe_accuracy"]


def test_codes_of_pairs_beat_noise_on_what_pairs_share():
    """Rows are a cause in 2 entries and noise in 6: looks agree about the cause."""
    rng = np.random.default_rng(0)
    cause = rng.integers(0, 2, 600)
    x = rng.normal(size=(600, 8))
    x[:, :2] = 4 * cause[:, None] + 0.3 * x[:, :2]
    run = monge.fit(
        "represent.contrastive",
        x.astype(np.float32),
        "net.width=32",
        "latent=2",
        "train.eval_every=50",
        budget="150steps",
    )
    codes = run.model.encode(Batch(torch.as_tensor(x, dtype=torch.float32))).double()
    share = probe(
        codes[:300], torch.as_tensor(cause[:300]), codes[300:], torch.as_tensor(cause[300:])
    )
    assert share.value > 0.95


def test_a_label_that_was_read_is_not_probed():
    given = monge.fit("vae", "iris", "latent=2", given=["label"], budget="2steps")
    assert "probe_accuracy" not in given.evaluate()
    alone = monge.fit("vae", "iris", "latent=2", budget="2steps")
    assert "probe_accuracy" in alone.evaluate()


def test_the_target_of_byol_follows_and_has_no_gradient():
    space, rows = small_data.make("real")
    torch.manual_seed(0)
    model = BYOL.smallest_config(space).build(space)
    weights = [p.clone() for p in model.target.parameters()]
    assert all(
        torch.equal(own, other)
        for own, other in zip(
            model.target.parameters(),
            [*model.trunk.parameters(), *model.project.parameters()],
            strict=True,
        )
    )
    model.loss(rows)["angle"].mean().backward()
    assert all(p.grad is None and not p.requires_grad for p in model.target.parameters())
    assert all(p.grad is not None for p in model.predict.parameters())
    for parameter in model.trunk.parameters():
        parameter.data.add_(1.0)
    model.move_target(rows)  # with the whole decay from the first step on
    moved = [(b - a).mean() for a, b in zip(weights, model.target.parameters(), strict=True)]
    count = len(list(model.trunk.parameters()))
    share = torch.tensor(1 - model.config.target_decay)
    torch.testing.assert_close(torch.stack(moved[:count]), share.expand(count))
    assert not any(moved[count:])  # the projection did not change


def test_views_that_are_the_same_and_predicted_cost_nothing():
    space, rows = small_data.make("real")
    model = BYOL.smallest_config(space).override("corrupt=0").build(space)
    model.predict = torch.nn.Identity()
    torch.testing.assert_close(
        model.loss(rows)["angle"], torch.zeros(len(rows)), atol=1e-6, rtol=0
    )
