r"""Latent diffusion: a diffusion model of the codes of a variational autoencoder

A VAE maps rows to codes z and back, and a diffusion model learns the distribution that the codes
of data have, which N(0, I) only approximates (Rombach et al. 2022; Vahdat, Kreis & Kautz 2021).
Both bounds add up: with $L(z) \le \log p(z)$ of the diffusion,
$\log p(x) \ge E_q [\log p(x | z) - \log q(z | x) + L(z)]$. The VAE is a fitted run, whose weights
stay, or is trained in the first steps of the fit, while the diffusion follows its codes.

The prior N(0, I) of the VAE makes all numbers of a code vary alike, however little some of them
change x. Noise of the diffusion then hides layouts and details at once, where in x it hides
details first. The posterior is as narrow as a number matters, so that codes in units of its width,
c(z) = (z - m) / s with s proportional to the standard deviation of q, have the proportions of x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import (
    CanDecode,
    CanDiagnose,
    CanEncode,
    CanSample,
    Finding,
    Given,
    HasLikelihood,
    HasTerms,
    Likelihood,
)
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range, RunRef
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Model, Update
from ...core.rng import derive_seed, make_generator, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from .._moving_average import warmed_up
from ._elbo import DecoderModel, LatentVariableModel, build_prior, prior_class
from ._encoder_decoder import GridEncoderDecoder
from ._posterior import FactorisedPosterior

AUTOENCODER, PRIOR = "model/latent.vae", "model/diffusion.vdm"
"""The models of the rows given their codes, and of the codes, unless others are chosen."""
PICTURE_PRIOR = "model/diffusion.ddpm"
"""The model of fine codes."""
FINE_ENTRIES, FINE_SIDE = 2048, 16
"""Numbers of an image, pixels times channels, from which its codes are fine: a map of about this
many places to a side that keeps nearly all of it, so that little noise is left to the decoder."""

FINE_VAE_STEPS, FINE_ANNEAL = 3000, 2000
"""Steps of the vae of fine codes, and those of them over which the weight of its KL term rises: a
full weight from the first step on would leave most of a code unused for long."""
UNITS_DECAY, MIN_SCALE = 0.99, 1e-3
"""Decay of the averages of the units of codes, and the smallest scale of one."""


class LatentDiffusion(Model, HasTerms, CanSample, CanEncode, CanDecode, CanDiagnose):
    """p(x | given) = ∫ p(z | given) p(x | z, given) dz with a diffusion model p(z | given)."""

    events = {"binary", "levels", "real", "counts", "columns"}
    givens = {"label", "real", "binary", "levels", "counts", "columns"}
    supports_missing = True

    class Config(Model.Config):
        tag = "model/latent.latent_diffusion"
        autoencoder: RunRef | None = None
        """Run of a vae on the same data, whose weights stay; none: one is trained in this fit."""
        vae: Model.Config | None = None
        """The vae that is trained in this fit; none: with the settings that it has by default."""
        vae_steps: Annotated[int, Range(1)] = 4000
        """Steps after which the vae is trained no further."""
        prior: Model.Config | None = None
        """Model of the codes, such as vdm or ddpm; none: vdm with the settings that it has by
        default for such codes."""
        code_units: Literal["spread", "precision"] = "spread"
        """Units in which the diffusion sees a code. spread: every unit of a code varies alike;
        precision: the posteriors of all units have one width, so that a unit varies as much as it
        changes the row, and noise hides details first, as in the row itself."""

    class SamplingConfig(DecoderModel.SamplingConfig):
        """How `sample` decodes."""

    class LikelihoodConfig(BaseConfig):
        """How the bound is estimated."""

        samples: Annotated[int, Range(1)] = 1
        """Codes of a row whose bounds are averaged; more are less noisy and slower."""

    config: Config
    centre: Tensor
    stretch: Tensor

    def __init__(
        self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        super().__init__(config, space, parts)
        self.is_frozen = "autoencoder" in self.parts
        self.own = None if self.is_frozen else build_vae(config.vae, space)
        self.latent = self.vae.latent
        self.prior = build_prior(config.prior, PRIOR, code_space(self.vae, space))
        # Units of codes: those of a vae that is trained here stay near 0 and 1 without averages.
        self.register_buffer("centre", torch.zeros(self.latent.shape))
        self.register_buffer("stretch", torch.ones(self.latent.shape))

    @property
    def vae(self) -> LatentVariableModel:
        """The model of the rows given their codes."""
        return check_vae(self.own or self.parts["autoencoder"], self.space)

    def loss(self, batch: Batch) -> Losses:
        """The loss of the diffusion on codes z ~ q(z | x)."""
        with torch.no_grad():
            h, context = self.vae.encoder_outputs(batch)
            code = self.vae.sample_posterior(h, context, self.vae.sample_noise(1, h))
        codes = Batch(self.to_map(code.z[0]), batch.given, step=batch.step)
        return self.prior.loss(codes)

    def updates(self) -> list[Update]:
        learned = [param for param in self.prior.parameters() if param.requires_grad]
        diffusion = Update("diffusion", self.loss, learned)
        if self.is_frozen:
            return [diffusion]
        own, until = [p for p in self.vae.parameters() if p.requires_grad], self.config.vae_steps
        vae = Update("vae", self.vae.loss, own, until=until)
        if self.config.code_units == "spread":
            return [vae, diffusion]
        return [vae, Update("units", self.follow_units, until=until), diffusion]

    def initialise_from_data(self, batch: Batch) -> None:
        if not self.is_frozen:
            self.vae.initialise_from_data(batch)
        if self.is_frozen or self.config.code_units == "precision":
            centre, stretch = self.measured_units(batch)
            self.centre.copy_(centre)
            self.stretch.copy_(stretch)
        events = Batch(self.to_map(self.vae.encode(batch)), batch.given)
        self.prior.initialise_from_data(events)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z ~ p(z | given) by the sampler of the diffusion, then x ~ p(x | z, given)."""
        assert isinstance(self.prior, CanSample), "a prior that was checked samples"
        z = self.from_map(self.prior.sample(n, given, generator=generator))
        context = self.vae.context(given or {}, n)
        if isinstance(options, self.SamplingConfig) and options.mean:
            return self.vae.mean_given_code(z, context)
        return self.vae.sample_given_code(z, context, generator)

    # Codes

    @torch.no_grad()
    def follow_units(self, batch: Batch) -> Losses:
        """Averages of the units over recent steps, while the vae changes."""
        centre, stretch = self.measured_units(batch)
        decay = warmed_up(UNITS_DECAY, batch.step)
        self.centre.lerp_(centre, 1 - decay)
        self.stretch.copy_(self.stretch.log().lerp(stretch.log(), 1 - decay).exp())
        return {"stretch": self.stretch.mean()}

    @torch.no_grad()
    def measured_units(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Centre and scale of the units of codes in these rows, each (latent,)."""
        if self.config.code_units == "spread":
            codes = self.vae.encode(batch)
            return codes.mean(0), codes.std(0).clamp_min(MIN_SCALE)
        h, context = self.vae.encoder_outputs(batch)
        codes = self.vae.sample_posterior(h, context, self.vae.sample_noise(2, h)).z  # (2, B, D)
        # Half the squared distance of two codes of a row is, in the mean, its posterior variance.
        posterior = self.of_channels((codes[0] - codes[1]).square().mean(0) / 2)
        centre = self.of_channels(codes.mean((0, 1)))
        spread = self.of_channels((codes - centre).square().mean((0, 1)))
        mean_square = (spread / posterior.clamp_min(MIN_SCALE**2)).mean()
        return centre, (posterior * mean_square).sqrt().clamp_min(MIN_SCALE)

    def of_channels(self, value: Tensor) -> Tensor:
        """The mean over the places of a map of numbers of the units of a code, (latent,)."""
        if not isinstance(self.vae.nets, GridEncoderDecoder):
            return value
        each = value.unflatten(0, (-1, self.prior.space.shape[0]))  # (places, channels)
        return each.mean(0).expand_as(each).flatten()

    def to_map(self, z: Tensor) -> Tensor:
        """Codes (B, latent) as events of the prior."""
        z = (z - self.centre) / self.stretch
        if isinstance(self.vae.nets, GridEncoderDecoder):
            channels, rows, columns = self.prior.space.shape
            return z.reshape(-1, rows, columns, channels).movedim(-1, 1)
        return z

    def from_map(self, codes: Tensor) -> Tensor:
        """Events of the prior as codes (B, latent)."""
        if isinstance(self.vae.nets, GridEncoderDecoder):
            codes = codes.movedim(1, -1).flatten(1)
        return codes * self.stretch + self.centre

    def encode(self, batch: Batch | Tensor) -> Tensor:
        return self.vae.encode(batch)

    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        return self.vae.decode(z, given)

    # Log-likelihood

    def terms(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> dict[str, Tensor]:
        """Terms of the bound of one code: of the row given it, and log q(z | x) - L(z)."""
        batch, seed = as_batch(batch), seed_of(generator)
        return self.terms_of_code(batch, derive_seed(seed, "codes", 0))

    @torch.no_grad()
    def terms_of_code(self, batch: Batch, seed: int) -> dict[str, Tensor]:
        h, context = self.vae.encoder_outputs(batch)
        code = self.vae.sample_posterior(h, context, self.vae.keyed_noise(batch, 1, seed))
        z = code.z[0]
        log_q = code.log_ratios.sum(-1)[0] + self.vae.log_prior(batch, z)
        return {
            "reconstruction": -self.vae.log_given_code(batch, z, context),
            "codes": log_q - self.log_prior(batch, z, seed),
        }

    def log_prior(self, batch: Batch, z: Tensor, seed: int) -> Tensor:
        """The bound of log p(z | given) in the units of z, (B,)."""
        assert isinstance(self.prior, HasLikelihood), "a prior that was checked has a likelihood"
        codes = Batch(self.to_map(z), batch.given, row=batch.rows)
        found = self.prior.likelihood(codes, generator=make_generator(seed, z.device))
        return found.value - self.stretch.log().sum()

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, self.LikelihoodConfig), "expected a LikelihoodConfig"
        seed = seed_of(generator)
        seeds = [derive_seed(seed, "codes", k) for k in range(options.samples)]
        terms = [self.terms_of_code(batch, each) for each in seeds]
        each = torch.stack([-torch.stack([*found.values()]).sum(0) for found in terms])  # (K, B)
        error = each.std(0) / math.sqrt(len(each)) if len(each) > 1 else None
        return Likelihood(each.mean(0), "bound", error)

    @property
    def evals_per_score(self) -> int:
        return self.prior.evals_per_score

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> list[Finding]:
        """What the vae finds of itself; its own prior is not the one in use."""
        return [each for each in self.vae.diagnose(batch) if "prior" not in each.name]

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        return prior_class(AUTOENCODER).unsupported_reason(space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Images keep a map of codes, which a convolutional diffusion reads."""
        vae = prior_class(AUTOENCODER).defaults(space).config
        assert isinstance(vae, Model.Config), "a model has the configuration of a model"
        if space.is_image and min(space.shape[1:]) >= 8:
            vae = replace(vae, **grid_settings(space))
        codes = code_space(build_vae(vae, space), space)
        if not has_fine_codes(space):
            prior: Any = prior_class(PRIOR).defaults(codes).config
            train = TrainConfig(batch_size=64, ema_decay=0.998)
            return Defaults(cls.Config(vae=vae, prior=prior), train)
        # Errors of all noise levels count alike, as in pictures; the bound asks for details first.
        proposed: Any = prior_class(PICTURE_PRIOR).defaults(codes)
        net: Any = proposed.config.net
        prior = replace(
            proposed.config, net=replace(net, width=32, multipliers=(1, 2, 3), middle=1)
        )
        train = TrainConfig(
            lr=2e-3, batch_size=16, ema_decay=0.9999, eval_every=2000, grad_clip=1.0
        )
        config = cls.Config(vae=vae, vae_steps=FINE_VAE_STEPS, prior=prior, code_units="precision")
        return Defaults(config, train)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        vae = prior_class(AUTOENCODER).smallest_config(space)
        codes = code_space(build_vae(vae, space), space)
        return cls.Config(vae=vae, prior=prior_class(PRIOR).smallest_config(codes))


def grid_settings(space: Space) -> dict[str, object]:
    """Settings of a vae with a map of codes for images of this size."""
    channels, *sides = space.shape
    if has_fine_codes(space):
        levels = max(1, math.ceil(math.log2(min(sides) / FINE_SIDE)))
        widths, numbers = (32, 64, 64, 64, 64)[:levels], 2 * channels * 2 ** (levels - 1)
    else:
        widths, numbers = ((32, 64) if math.prod(sides) >= 256 else (64,)), 4
    places = math.prod(-(-side // 2 ** len(widths)) for side in sides)
    found = {"net": GridEncoderDecoder.Config(widths=widths), "latent": numbers * places}
    if not has_fine_codes(space):
        return found
    # Most of a picture is in its codes: a narrow posterior, and networks that are nearly linear.
    posterior = FactorisedPosterior.Config(initial_scale=0.055)
    net = GridEncoderDecoder.Config(widths=widths, depth=0)
    return {**found, "net": net, "posterior": posterior, "anneal": FINE_ANNEAL}


def has_fine_codes(space: Space) -> bool:
    """Whether rows are images of many numbers, such as 32x32 pixels in colour."""
    return space.is_image and min(space.shape[1:]) > FINE_SIDE and space.dims >= FINE_ENTRIES


def build_vae(config: BaseConfig | None, space: Space) -> Model:
    return (config or prior_class(AUTOENCODER).defaults(space).config).build(space)


def check_vae(model: nn.Module, space: Space) -> LatentVariableModel:
    if not isinstance(model, LatentVariableModel):
        raise UsageError(
            f"expected a vae, found {type(model).__module__.rpartition('.')[2]}; name the run of "
            "a vae"
        )
    if (model.space.kind, model.space.shape) != (space.kind, space.shape):
        raise UsageError(
            f"expected a vae of {space}, found one of {model.space}; fit one to these data"
        )
    return model


def code_space(vae: Model, space: Space) -> Space:
    """The codes of a row as events of the prior: a vector, or the map of a grid."""
    vae = check_vae(vae, space)
    shape: tuple[int, ...] = vae.latent.shape
    if isinstance(vae.nets, GridEncoderDecoder):
        rows, columns = vae.nets.sides[0]
        shape = (vae.latent.dims // (rows * columns), rows, columns)
    return Space(
        kind="real", shape=shape, low=(-4.0,), high=(4.0,), rows=space.rows, given=space.given
    )
