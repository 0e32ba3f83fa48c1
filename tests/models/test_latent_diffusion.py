"""Latent diffusion: which parts learn when, runs as autoencoders, units and maps of codes."""

from dataclasses import replace

import pytest
import small_data
import torch

import monge
from monge.core.batch import Batch
from monge.core.config import RunRef
from monge.core.errors import UsageError
from monge.core.model import Update
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.models.baseline.gaussian import Gaussian
from monge.models.flow.maf import MAF
from monge.models.latent._encoder_decoder import GridEncoderDecoder
from monge.models.latent.latent_diffusion import LatentDiffusion
from monge.models.latent.vae import VAE
from monge.train.trainer import Trainer


def built(space=None, parts=(), **fields):
    space = space or small_data.make("real")[0]
    torch.manual_seed(0)
    return replace(LatentDiffusion.smallest_config(space), **fields).build(space, *parts)


def weights(module):
    return torch.cat([param.detach().flatten() for param in module.parameters()]).clone()


def test_the_vae_learns_in_the_first_steps_only():
    space, rows = small_data.make("real")
    trainer = Trainer(
        built(space, vae_steps=2), small_data.Rows(rows), TrainConfig(batch_size=50, lr=0.01)
    )
    seen = []
    for _ in range(4):
        trainer.train_step(1.0)
        seen.append((weights(trainer.model.own), weights(trainer.model.prior)))
    for number, (vae, prior) in enumerate(seen[1:], 1):
        assert torch.equal(vae, seen[number - 1][0]) == (number >= 2)
        assert not torch.equal(prior, seen[number - 1][1])


def test_the_diffusion_does_not_move_the_vae():
    model, (_, rows) = built(), small_data.make("real")
    vae, diffusion = model.updates()
    loss = diffusion.loss(rows[:8])
    torch.stack([term.mean() for term in loss.values()]).sum().backward()
    assert all(param.grad is None for param in vae.params)
    assert {id(p) for p in vae.params}.isdisjoint(id(p) for p in diffusion.params)
    assert isinstance(vae, Update)


def test_a_density_of_codes_is_in_the_units_of_the_codes():
    space = Space(kind="real", shape=(2,), rows=100)
    latent = replace(VAE.smallest_config(space), latent=1)
    codes = Space(kind="real", shape=(1,), rows=100)
    model = built(space, vae=latent, prior=MAF.smallest_config(codes)).double()
    model.stretch.fill_(0.3)
    model.centre.fill_(2.0)
    z = torch.linspace(-8, 12, 4001, dtype=torch.float64)[:, None]
    log_p = model.log_prior(Batch(torch.zeros(4001, 2).double()), z, 0)
    assert log_p.exp().sum().item() * 0.005 == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(model.from_map(model.to_map(z)), z)


def test_images_have_maps_of_codes():
    space = Space(kind="levels", shape=(1, 7, 6), size=4, high=(3.0,), rows=10)
    net = GridEncoderDecoder.Config(widths=(4, 4), depth=1)
    vae = replace(VAE.smallest_config(space), net=net, latent=12)
    model = built(space, vae=vae, prior=MAF.smallest_config(Space(kind="real", shape=(3, 2, 2))))
    assert model.prior.space.shape == (3, 2, 2)
    z = torch.randn(5, 12)
    codes = model.to_map(z)
    assert torch.equal(model.from_map(codes), z)
    assert torch.equal(codes[:, :, 1, 0], z.reshape(5, 4, 3)[:, 2])  # a place keeps its vector


@pytest.mark.parametrize(("side", "places", "numbers"), [(28, 7, 4), (32, 16, 6), (64, 16, 12)])
def test_pictures_of_many_numbers_have_fine_codes(side, places, numbers):
    channels = 1 if side == 28 else 3
    space = Space(kind="levels", shape=(channels, side, side), size=256, rows=100)
    config = LatentDiffusion.defaults(space).config
    assert config.vae.latent == numbers * places**2
    assert config.code_units == ("spread" if side == 28 else "precision")


def test_a_code_of_a_map_is_of_its_place():
    """Means and scales of a place depend on the pixels around it, not on those of another."""
    space = Space(kind="levels", shape=(1, 16, 16), size=4, high=(3.0,), rows=10)
    net = GridEncoderDecoder.Config(widths=(4, 4), depth=0)
    vae = replace(VAE.smallest_config(space), net=net, latent=3 * 16).build(space)
    x = torch.zeros(1, 1, 16, 16)
    other = x.clone()
    other[..., 14:, :2] = 3.0  # the lower left corner: row 3, column 0 of the map
    outputs = [vae.posterior.split(vae.encoder_outputs(Batch(each))[0]) for each in (x, other)]
    for one, two in zip(*outputs, strict=True):
        changed = (one != two).reshape(4, 4, 3).any(-1)
        assert changed[3, 0]
        assert not changed[:2].any()
        assert not changed[:, 2:].any()


def test_units_by_precision_make_posteriors_equally_wide():
    space = Space(kind="levels", shape=(1, 8, 8), size=4, high=(3.0,), rows=100)
    net = GridEncoderDecoder.Config(widths=(4,), depth=0)
    vae = replace(VAE.smallest_config(space), net=net, latent=2 * 16)
    codes = Space(kind="real", shape=(2, 4, 4))
    model = built(space, vae=vae, prior=MAF.smallest_config(codes), code_units="precision")
    with torch.no_grad():  # scales of the two channels of a place
        model.vae.nets.leave.bias[2:] = torch.tensor([-1.0, -3.0])
        model.vae.nets.leave.weight.mul_(5)
    batch = Batch(torch.randint(4, (400, 1, 8, 8), generator=torch.Generator().manual_seed(0)))
    torch.manual_seed(0)
    model.initialise_from_data(batch)
    _mean, log_scale = model.vae.posterior.split(model.vae.encoder_outputs(batch)[0])
    widths = (2 * log_scale).exp().mean(0).sqrt() / model.stretch
    assert widths.reshape(16, 2).square().mean(0).sqrt().detach() == pytest.approx(
        [widths.square().mean().sqrt().item()] * 2, rel=0.05
    )
    seen = model.to_map(
        model.vae.posterior.reparameterise(
            model.vae.encoder_outputs(batch)[0], torch.randn(1, 400, 32)
        )[0][0]
    )
    assert seen.mean().item() == pytest.approx(0, abs=0.05)
    assert seen.square().mean().item() == pytest.approx(1, rel=0.1)


def test_units_follow_the_vae_and_stay_with_it():
    space, rows = small_data.make("real")
    model = built(space, vae_steps=2, code_units="precision")
    trainer = Trainer(model, small_data.Rows(rows), TrainConfig(batch_size=50, lr=0.01))
    seen = []
    for _ in range(4):
        trainer.train_step(1.0)
        seen.append(trainer.model.stretch.clone())
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[1], seen[2])
    assert torch.equal(seen[2], seen[3])


def test_a_fitted_vae_is_used_as_it_is(tmp_path):
    data = torch.randn(60, 3).numpy()
    vae = monge.fit("vae", data, "latent=2", budget="3steps", out=tmp_path / "vae")
    run = monge.fit(
        "latent_diffusion",
        data,
        f"autoencoder={vae.folder}",
        "prior=maf",
        budget="3steps",
        out=tmp_path / "both",
    )
    used = run.model.parts["autoencoder"]
    assert torch.equal(weights(used), weights(vae.model))
    assert run.model.own is None
    assert run.model.stretch.std() > 0
    again = monge.load(run.folder)
    assert (again.log_likelihood(data).value == run.log_likelihood(data).value).all()
    assert len(again.sample(4)) == 4


def test_other_runs_are_refused():
    space, _ = small_data.make("real")
    other = Space(kind="real", shape=(space.dims + 1,), rows=10)
    gaussian = Gaussian.Config().build(space)
    vae = VAE.smallest_config(other).build(other)
    for part, name in ((gaussian, "gaussian"), (vae, str(other.dims))):
        with pytest.raises(UsageError, match=name):
            built(space, [{"autoencoder": part}], autoencoder=RunRef("there"))
