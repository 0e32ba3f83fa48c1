"""VQ-VAE: codes, how the codebook learns, gradients, grids of images and its prior."""

from dataclasses import replace

import pytest
import small_data
import torch

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.space import Space
from monge.models.autoregressive.made import MADE
from monge.models.latent._encoder_decoder import GridEncoderDecoder
from monge.models.latent.vqvae import VQVAE, find_unused_codes, perplexity


def built(space=None, **fields):
    space = space or small_data.make("binary")[0]
    torch.manual_seed(0)
    return replace(VQVAE.smallest_config(space), **fields).build(space).double()


def rows(count=40):
    return small_data.make("binary")[1][:count].double()


def test_the_bound_of_one_position_and_all_codes_is_normalised():
    model = built(positions=1, codebook_size=3)
    for param in model.parameters():  # codes matter to the decoder and to the prior
        param.data += 0.5 * torch.randn_like(param)
    states = small_data.states(model.space)
    every, one = (
        model.likelihood(Batch(states), model.LikelihoodConfig(samples=k)).value.exp().sum().item()
        for k in (3, 1)
    )
    assert every == pytest.approx(1, abs=1e-10)
    assert one < 0.999


def test_gradients_pass_straight_through_the_codes():
    model, batch = built(), rows()
    h, context = model.encoder_outputs(batch)
    (through,) = torch.autograd.grad(model.loss(batch)["reconstruction"].sum(), h_of(model))
    z = model.encode(batch).requires_grad_()
    (at_codes,) = torch.autograd.grad(-model.log_given_code(batch, z, context).sum(), z)
    (expected,) = torch.autograd.grad(h, h_of(model), at_codes)
    torch.testing.assert_close(through, expected)
    assert through.abs().sum() > 0


def h_of(model):
    return model.nets.encoder.out.weight


def test_the_codebook_becomes_the_average_of_the_vectors_nearest_to_it():
    model, batch = built(codebook_decay=0.9, revive=0.0), rows()
    model.initialise_from_data(batch)
    used, sums = model.used.clone(), model.sums.clone()
    h, codes = model.split(model.encoder_outputs(batch)[0]).detach(), model.codes(batch)
    model.move_codebook(batch)
    for k in range(model.config.codebook_size):
        own = h[codes == k]
        count = 0.9 * used[k] + 0.1 * len(own)
        total = 0.9 * sums[k] + 0.1 * own.sum(0)
        torch.testing.assert_close(model.vectors[k], total / count)


def test_a_code_without_use_moves_to_a_vector_of_the_batch():
    model, batch = built(revive=0.03), rows()
    model.initialise_from_data(batch)
    model.vectors[2] = 1e3
    model.used[2] = 1e-6
    logged = model.move_codebook(batch)
    h = model.split(model.encoder_outputs(batch)[0]).flatten(0, 1)
    assert logged["revived"] == 1
    assert (h - model.vectors[2]).abs().sum(1).min() < 1e-12


def test_a_codebook_that_learns_by_gradients_seeks_the_mean_of_its_vectors():
    model, batch = built(codebook="gradient"), rows()
    assert {update.name for update in model.updates()} == {"model", "prior"}
    h, codes = model.split(model.encoder_outputs(batch)[0]), model.codes(batch)
    (slope,) = torch.autograd.grad(model.loss(batch)["codebook"].sum(), model.vectors)
    for k in range(model.config.codebook_size):
        torch.testing.assert_close(slope[k], 2 * (model.vectors[k] - h[codes == k]).sum(0))


def test_commitment_pulls_vectors_to_their_codes_alone():
    model, batch = built(commitment=0.5, codebook="gradient"), rows()
    loss = model.loss(batch)["commitment"]
    h = model.split(model.encoder_outputs(batch)[0])
    expected = 0.5 * (h - model.vectors[model.codes(batch)]).square().sum((1, 2))
    torch.testing.assert_close(loss, expected)
    slopes = torch.autograd.grad(
        loss.sum(), model.vectors, allow_unused=True, materialize_grads=True
    )
    assert not slopes[0].any()


@pytest.mark.parametrize("shape", [(1, 7, 5), (3, 8, 8)])
def test_images_of_any_size_have_a_grid_of_codes(shape):
    space = Space(kind="levels", shape=shape, size=4, high=(3.0,), rows=8)
    net = GridEncoderDecoder.Config(widths=(4, 6), depth=1)
    model = built(space, net=net)
    x = torch.randint(4, (3, *shape)).double()
    assert model.codes(Batch(x)).shape == (3, 4)
    assert model.decode(model.encode(Batch(x))).shape == x.shape
    near, far = x.clone(), x.clone()
    near[..., -1, -1] = 3 - near[..., -1, -1]
    changed = (
        model.nets.encode(model.features(Batch(near)), torch.zeros(3, 0))
        != model.nets.encode(model.features(Batch(far)), torch.zeros(3, 0))
    ).any(0)
    assert changed.any()  # the last pixel is read, though sides are odd


def test_codes_go_where_they_come_from():
    model, batch = built(), rows()
    z = model.encode(batch)
    assert torch.equal(model.decode(z), model.decode(z + 1e-9))
    assert torch.equal(z.reshape(len(z), 2, -1), model.vectors[model.codes(batch)])


def test_any_model_of_labels_can_be_the_prior():
    config = VQVAE.Config().override("prior=made", "prior.width=8")
    assert isinstance(config.prior, MADE.Config)
    model = built(prior=config.prior)
    assert model.sample(3).shape == (3, *model.space.shape)
    assert config.override("prior=none").prior is None


@pytest.mark.parametrize("name", ["pixelcnn", "ae", "predict.mlp"])
def test_a_prior_that_cannot_score_labels_is_refused(name):
    config = VQVAE.Config().override(f"prior={name.rpartition('.')[2]}")
    with pytest.raises(UsageError, match=name.rpartition(".")[2]):
        built(prior=config.prior)


def test_a_grid_needs_a_code_for_each_place():
    space = Space(kind="levels", shape=(1, 8, 8), size=4, high=(3.0,))
    net = GridEncoderDecoder.Config(widths=(4,))
    with pytest.raises(UsageError, match="16"):
        net.build(space, 64, 0, 20, 16, 64)


def test_unused_codes_are_reported():
    counts = torch.zeros(40)
    counts[:4] = 100
    assert perplexity(counts).item() == pytest.approx(4)
    assert "4 of 40" in find_unused_codes(counts).sentence
    assert find_unused_codes(torch.full((40,), 10.0)) is None
    assert find_unused_codes(counts / 100) is None  # too few to tell
