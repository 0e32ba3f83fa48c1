r"""Variational autoencoder: Gaussian codes, a bound that importance samples tighten.

For any $q(z | x)$, with $w(z) = p(x, z) / q(z | x)$,

$\log p(x) = E_q \log w + KL(q(z | x) \| p(z | x)) \ge E_q \log w
           = E_q \log p(x | z) - KL(q(z | x) \| p(z))$,

the evidence lower bound: minus the *distortion*, minus the *rate*. The encoder puts out
$(\mu, \log\sigma)$ of $q = N(\mu, diag(\sigma^2))$, so that $z = \mu + \sigma \epsilon$ with
$\epsilon \sim N(0, I)$, $\log q(z | x) = \sum_j [\log N(\epsilon_j; 0, 1) - \log\sigma_j]$, and
the rate is known in closed form. Over k draws $E \log \frac1k \sum_i w(z_i)$ never falls as k
grows and tends to $\log p(x)$ (Burda, Grosse & Salakhutdinov 2016).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import (
    CanDecode,
    CanDiagnose,
    CanEncode,
    CanSample,
    Finding,
    Given,
    HasLikelihood,
    HasPosterior,
    Likelihood,
)
from ...core.batch import Batch, as_batch, conform
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Losses, Model, Suit
from ...core.noise import fold, row_normal, seed_of
from ...core.recipe import Recipe
from ...core.space import Space
from ...nn.embed import Conditions, Features
from ...nn.mlp import MLP
from ...prob.heads import Head
from ...prob.scales import Scales
from ._base import at_floor, log_mean_exp, log_normal, rates_of

BLOCK = 8
"""Importance samples of a row that are computed at once; more are a loop."""
WIDEST = 10.0
"""|log sigma| of the posterior stays below this, so that no datum, however odd, overflows."""
ACTIVE = 0.01
"""A latent unit is in use if its posterior mean varies more than this over rows (Burda et al.)."""


class VAE(Model, HasLikelihood, HasPosterior, CanSample, CanEncode, CanDecode, CanDiagnose):
    """p(x | given) = ∫ p(x | z, given) N(z; 0, I) dz, trained by its evidence lower bound.

    The entries of x are independent given z: Bernoulli, Gaussian, discretised logistic,
    categorical or binned by their kind. So a sample carries the noise of p(x | z) in every entry,
    which makes pictures grainy; `decode` gives the mean of p(x | z), which is smooth. Training
    lowers distortion + beta rate (Kingma & Welling 2014; beta: Higgins et al. 2017); a score is
    the bound itself, whatever beta is. Entries that were not seen are marginalised: they have no
    part in the distortion, and the encoder reads them as 0.
    """

    events = {"binary", "levels", "real", "counts", "columns"}
    givens = {"label", "real", "binary", "levels", "counts", "columns"}
    missing = True

    class Config(BaseConfig):
        latent: Annotated[int, Range(1)] = 16
        """Dimension of the code z."""
        encoder: MLP.Config = MLP.Config(width=256)
        """Network from a datum to the mean and log-scale of its posterior."""
        decoder: MLP.Config = MLP.Config(width=256)
        """Network from a code to the parameters of p(x | z)."""
        beta: Annotated[float, Range(0)] = 1.0
        """Weight of the rate in training; above 1 the codes get simpler and more disentangled."""
        anneal: Annotated[int, Range(0)] = 0
        """Steps over which the weight of the rate rises from 0 to beta."""
        free: Annotated[float, Range(0)] = 0.0
        """Nats of each latent unit that training does not charge for, which keeps it in use."""
        scale: Literal["shared", "network"] = "network"
        """Scales of Gaussians and logistics: one learned for each entry, or a function of z."""
        levels: Literal["logistic", "categorical"] = "logistic"
        """Law of ordered levels: a discretised logistic, or a free probability for each."""
        components: Annotated[int, Range(1)] = 1
        """Components of the mixture that a Gaussian or logistic law is."""

    class Scoring(BaseConfig):
        samples: Annotated[int, Range(1)] = 8
        """Importance samples: more are tighter and slower; 1 is the evidence lower bound."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.latent = Space(kind="real", shape=(config.latent,))
        self.features, self.conditions = Features(space), Conditions(space)
        self.head = Head(space, config.components, config.levels)
        self.scales = Scales(self.head, config.scale == "shared")
        context = self.conditions.width
        self.encoder: MLP = config.encoder.build(self.features.width + context, 2 * config.latent)
        self.decoder: MLP = config.decoder.build(config.latent + context, self.scales.inputs)
        self.settle()

    def begin(self, batch: Batch) -> None:
        self.head.fit(batch.x.reshape(len(batch), -1), batch.seen.reshape(len(batch), -1))
        self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        """Let p(x | z) begin as the law of each entry alone."""
        self.decoder.out.bias.copy_(self.scales.without(self.head.start()))

    def loss(self, batch: Batch) -> Losses:
        mean, log_scale = self.posterior(batch)
        z = mean + log_scale.exp() * torch.randn_like(mean)  # (B, latent)
        free, anneal = self.config.free, self.config.anneal
        rates = rates_of(mean, log_scale)  # (B, latent)
        rate = rates.mean(0).clamp(min=free).sum() if free else rates.sum(1)
        weight = self.config.beta * (min(1.0, (batch.step + 1) / anneal) if anneal else 1.0)
        return {"distortion": -self.log_given_code(batch, z), "rate": weight * rate}

    def likelihood(self, batch: Batch | Tensor, how: BaseConfig | None = None,
                   generator: Generator | None = None) -> Likelihood:
        batch, how = as_batch(batch), how or self.Scoring()
        assert isinstance(how, self.Scoring), "a score is asked for with Scoring"
        mean, log_scale = self.posterior(batch)
        log_weights = []
        for start in range(0, how.samples, BLOCK):
            shape = (min(BLOCK, how.samples - start), *self.latent.shape)
            noise = row_normal(batch.rows, shape, fold(seed_of(generator), "codes", start))
            noise = noise.to(mean.dtype).transpose(0, 1)  # (S, B, latent)
            z = mean + log_scale.exp() * noise
            if how.samples == 1:
                bound = self.log_given_code(batch, z)[0] - rates_of(mean, log_scale).sum(1)
                return Likelihood(bound, "bound")
            log_q = log_normal(noise) - log_scale.sum(1)
            log_weights.append(self.log_joint(batch, z) - log_q)
        return Likelihood(*log_mean_exp(torch.cat(log_weights)))

    @torch.no_grad()
    def sample(self, n: int, given: Given | None = None, how: BaseConfig | None = None,
               generator: Generator | None = None) -> Tensor:
        bias = self.decoder.out.bias
        z = torch.randn(n, *self.latent.shape, generator=generator, dtype=bias.dtype,
                        device=bias.device)
        params = self.params(z, given or {})
        x = self.head.draw(params, self.head.noise(n, generator))
        return x.reshape(n, *self.space.shape)

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        """The mean of the posterior."""
        return self.posterior(as_batch(batch))[0]

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        """The mean of p(x | z); of a label column, its most probable code."""
        x = self.head.mean(self.params(z, given or {}))
        return x.reshape(len(z), *self.space.shape)

    def log_joint(self, batch: Batch, z: Tensor) -> Tensor:
        return self.log_prior(z) + self.log_given_code(batch, z)

    def log_prior(self, z: Tensor) -> Tensor:
        return log_normal(z)

    def log_posterior(self, batch: Batch, z: Tensor) -> Tensor:
        mean, log_scale = self.posterior(batch)
        return log_normal((z - mean) * (-log_scale).exp()) - log_scale.sum(1)

    def infer(self, batch: Batch, noise: Tensor) -> Tensor:
        mean, log_scale = self.posterior(batch)
        return mean + log_scale.exp() * noise

    def rate(self, batch: Batch) -> Tensor:
        return rates_of(*self.posterior(batch)).sum(1)

    def log_given_code(self, batch: Batch, z: Tensor) -> Tensor:
        """log p(x | z, given) over the entries that were seen, for z (*S, B, latent), (*S, B)."""
        x = batch.x.reshape(len(batch), -1).to(z.dtype)  # (B, D)
        hidden = None if batch.observed is None else ~batch.seen.reshape(x.shape)
        x = x if hidden is None else x.masked_fill(hidden, 0.0)
        entries = self.head.log_prob(self.params(z, batch.given), x.expand(*z.shape[:-1], -1))
        return (entries if hidden is None else entries.masked_fill(hidden, 0.0)).sum(-1)

    def posterior(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean and log-scale of q(z | x, given), each (B, latent)."""
        context = self.conditions(conform(batch.given, self.space, len(batch)), len(batch))
        out = self.encoder(torch.cat([self.features(batch), context], 1))
        mean, raw = out.chunk(2, 1)
        return mean, WIDEST * torch.tanh(raw / WIDEST)

    def params(self, z: Tensor, given: Given) -> Tensor:
        """Parameters of p(x | z, given) for z (*S, B, latent), (*S, B, P)."""
        n = z.shape[-2]
        context = self.conditions(conform(given, self.space, n), n)
        context = context.expand(*z.shape[:-1], -1)
        return self.scales(self.decoder(torch.cat([z, context], -1)))

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> list[Finding]:
        mean, log_scale = self.posterior(batch)
        rate = rates_of(mean, log_scale).sum(1).mean().item()
        stuck = at_floor(self.head, self.params(mean, batch.given))
        found = [collapse(int((mean.var(0) > ACTIVE).sum()), self.config.latent, rate),
                 Finding("degenerate scale", f"the Gaussians of {stuck} of {self.space.dims} "
                         "entries are as narrow as they may be: their values repeat, or follow "
                         "from the others",
                         "declare them levels, counts or labels, or drop them") if stuck else None]
        return [finding for finding in found if finding]

    @classmethod
    def suit(cls, space: Space) -> Suit:
        few = 0 < space.rows < 10_000
        latent = 40 if space.dims > 256 else min(space.dims, 16)
        # Hidden units left out at random would blur reals, whose scales could not fall below that.
        dropout = 0.1 if few and space.kind in ("binary", "levels") else 0.0
        net = MLP.Config(width=512 if space.dims > 256 else 256, residual=True, dropout=dropout)
        recipe = Recipe(batch=64 if few else 128, average=0.995 if few else 0.999)
        return Suit(cls.Config(latent=latent, encoder=net, decoder=net), recipe)

    @classmethod
    def tiny(cls, space: Space) -> Config:
        net = MLP.Config(width=16, depth=1)
        return cls.Config(latent=2, encoder=net, decoder=net)


def collapse(active: int, units: int, rate: float) -> Finding | None:
    """What to say of a code of which so many units are in use and which holds `rate` nats."""
    if 2 * active >= units:
        return None
    remedy = (f"latent={active} would do as well" if active else
              "try anneal=2000 or free=0.1, or a smaller decoder")
    return Finding("posterior collapse", f"{active} of {units} latent units tell rows apart and "
                   f"the code holds {rate:.2f} nats", remedy)
