r"""What may be chosen of a law with codes: how it is trained, completed and scored.

What laws with codes share: the bound, its tightening, draws, completions and the doctor.

For any $q(z | x)$, with $w(z) = p(x, z) / q(z | x)$,

$\log p(x) = E_q \log w + KL(q(z | x) \| p(z | x)) \ge E_q \log w
           = E_q \log p(x | z) - KL(q(z | x) \| p(z))$,

the evidence lower bound: minus the *distortion*, minus the *rate*. Of the two estimators of
Kingma & Welling (2014), A draws $\log p(x, z) - \log q(z | x)$ whole, B draws the distortion alone
and has the rate in closed form. Over k draws $E \log \frac1k \sum_i w(z_i)$ never falls as k grows
and tends to $\log p(x)$ (Burda, Grosse & Salakhutdinov 2016). q is amortised: a network reads its
parameters off x; for a single row better ones are found by climbing the bound from there, and what
that gains is the amortisation gap (Cremer, Li & Duvenaud 2018).
"""

from __future__ import annotations

import abc
import math
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import (
    CanComplete,
    CanDecode,
    CanDiagnose,
    CanEncode,
    CanSample,
    Finding,
    Given,
    HasPosterior,
    HasTerms,
    Likelihood,
)
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Losses, Model
from ...core.rng import derive_seed, keyed_normal, make_generator, seed_of
from ...core.space import Space
from ...nn.inputs.features import Conditions, Features
from ...prob.distributions import log_mean_exp
from ...prob.heads import Head, Scales
from ._diagnostics import aggregate, collapse, degenerate, lagging
from ._encoder_decoder import Dense, Networks
from ._posterior import Code, check_shape, check_width


class Training(Config):
    """The bound that training raises, and the networks it moves."""

    net: Networks.Config = Dense.Config(width=256)
    """Networks from a datum to its posterior and back: dense, or convolution for pictures."""
    beta: Annotated[float, Range(0)] = 1.0
    """Weight of the rate in training; above 1 the codes get simpler and more disentangled."""
    anneal: Annotated[int, Range(0)] = 0
    """Steps over which the weight of the rate rises from 0 to beta."""
    free: Annotated[float, Range(0)] = 0.0
    """Nats of each latent unit that training does not charge for, which keeps it in use."""
    estimator: Literal["auto", "A", "B"] = "auto"
    """Of the bound: A draws all of it, B has the rate in closed form; auto is B where it can
    be had."""
    samples: Annotated[int, Range(1)] = 1
    """Codes drawn for each row in training."""
    weighted: bool = False
    """Train the importance-weighted bound of all samples instead of the mean of bounds."""
    scale: Literal["shared", "network"] = "network"
    """Scales of Gaussians and logistics: one learned for each entry, or a function of z."""
    levels: Literal["logistic", "categorical"] = "logistic"
    """Law of ordered levels: a discretised logistic, or a free probability for each."""
    components: Annotated[int, Range(1)] = 1
    """Components of the mixture that a Gaussian or logistic law is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighted and self.free:
            raise UsageError(
                f"free={self.free} spares a rate, and weighted=true trains a bound "
                "that has none; use one of them"
            )


class Drawing(Config):
    """How `complete` draws what was not seen; `sample` has nothing to choose."""

    method: Literal["importance", "gibbs"] = "importance"
    """Completion: weigh codes by what was seen and draw one of them, or fill and encode back
    and forth, which is quick and only near the law."""
    samples: Annotated[int, Range(1)] = 64
    """Completion: codes that are weighed."""
    sweeps: Annotated[int, Range(1)] = 10
    """Completion: fillings before codes are weighed, so that they fit the whole row."""


class Bounding(Config):
    """How tight the bound is."""

    samples: Annotated[int, Range(1)] = 8
    """Importance samples: more are tighter and slower; 1 is the evidence lower bound."""
    refine: Annotated[int, Range(0)] = 0
    """Steps by which each row's own posterior climbs the bound from what the encoder says."""


BLOCK = 8
"""Importance samples of a row that are computed at once; more are a loop."""
CLIMB = 0.05
"""Rate at which the parameters of one row's posterior climb; it falls to 0 along a line."""
EXAMINED, CLIMBED = 64, 20
"""Rows, and steps of each, by which the doctor sees how far the encoder lags behind."""


class Variational(
    Model, HasTerms, HasPosterior, CanSample, CanEncode, CanDecode, CanComplete, CanDiagnose
):
    """p(x | given) = ∫ p(x | z, given) p(z | given) dz with an amortised q(z | x, given).

    The entries of x are independent given z: Bernoulli, Gaussian, discretised logistic,
    categorical or binned by their kind. So a sample carries the noise of p(x | z) in every entry,
    which makes pictures grainy; `decode` gives the mean of p(x | z), which is smooth. Training
    lowers distortion + beta rate (beta: Higgins et al. 2017); a score is the bound itself,
    whatever beta is. Entries that were not seen are marginalised: they have no part in the
    distortion, and the encoder reads them as 0.
    """

    events = {"binary", "levels", "real", "counts", "columns"}
    givens = {"label", "real", "binary", "levels", "counts", "columns"}
    supports_missing = True
    completion = (
        "drawn from codes that were weighed by what was seen and resampled, which tends "
        "to the law as sample.samples grows (sample.method=gibbs: filled and encoded back and "
        "forth, near the law alone)"
    )

    class Config(Training, Model.Config):
        pass

    class SamplingConfig(Drawing):
        pass

    class LikelihoodConfig(Bounding):
        pass

    config: Config

    def __init__(
        self, config: Config, space: Space, summary: int, latent: int, spoken: int
    ) -> None:
        """summary: numbers the encoder says of a row; spoken: units the decoder reads."""
        super().__init__(config, space)
        self.latent = Space(kind="real", shape=(latent,))
        self.features, self.conditions = Features(space), Conditions(space)
        check_width(latent, self.features.width, space)
        self.head = Head(space, config.components, config.levels)
        self.scales = Scales(self.head, config.scale == "shared")
        self.nets: Networks = config.net.build(
            space, self.features.width, self.conditions.width, summary, spoken, self.scales.inputs
        )
        self.settle()

    @abc.abstractmethod
    def code(self, h: Tensor, context: Tensor, noise: Tensor) -> Code:
        """Codes made of standard normal noise (S, B, latent) for summaries h (B, summary)."""

    @abc.abstractmethod
    def prior_draw(self, n: int, context: Tensor, generator: Generator | None) -> Tensor:
        """z ~ p(z | given), (n, latent)."""

    def spoken(self, z: Tensor) -> Tensor:
        """The part of a code that the decoder reads."""
        return z

    def initialise_from_data(self, batch: Batch) -> None:
        self.head.fit(batch.x.reshape(len(batch), -1), batch.observed_mask.reshape(len(batch), -1))
        self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        """Let p(x | z) begin as the law of each entry alone."""
        self.nets.bias.copy_(self.scales.without(self.head.start()))

    def loss(self, batch: Batch) -> Losses:
        config, (h, context) = self.config, self.summary(batch)
        noise = torch.randn(
            config.samples, len(batch), *self.latent.shape, dtype=h.dtype, device=h.device
        )
        code = self.code(h, context, noise)
        log_p = self.log_given_code(batch, code.z, context)  # (S, B)
        beta = config.beta
        weight = beta * min(1.0, (batch.step + 1) / config.anneal) if config.anneal else beta
        if config.weighted:
            bound = (log_p - weight * code.ratios.sum(-1)).logsumexp(0) - math.log(len(log_p))
            return {"bound": -bound}
        rates = code.terms(config.estimator == "A").mean(0)  # (B, U)
        if config.free:
            least = config.free * self.latent.dims / rates.shape[-1]
            return {
                "distortion": -log_p.mean(0),
                "rate": weight * rates.mean(0).clamp(min=least).sum(),
            }
        return {"distortion": -log_p.mean(0), "rate": weight * rates.sum(1)}

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, self.LikelihoodConfig), "a score is asked for with Scoring"
        seed, (h, context) = seed_of(generator), self.summary(batch)
        h = self.refined(batch, h, context, options.refine, seed) if options.refine else h
        log_weights = []
        for start in range(0, options.samples, BLOCK):
            noise = self.noise(
                batch, min(BLOCK, options.samples - start), derive_seed(seed, "codes", start)
            )
            if options.samples == 1:
                return Likelihood(self.bound(batch, h, context, noise), "bound")
            code = self.code(h, context, noise)
            log_p = self.log_given_code(batch, code.z, context)
            log_weights.append(log_p - code.ratios.sum(-1))
        value, error = log_mean_exp(torch.cat(log_weights))
        return Likelihood(value, "bound", error)

    def bound(self, batch: Batch, h: Tensor, context: Tensor, noise: Tensor) -> Tensor:
        """The evidence lower bound by its quietest estimator, (B,)."""
        code = self.code(h, context, noise)
        log_p = self.log_given_code(batch, code.z, context)
        return log_p.mean(0) - code.terms().sum(-1).mean(0)

    def terms(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> dict[str, Tensor]:
        """Of the evidence lower bound, which more samples tighten."""
        batch = as_batch(batch)
        h, context = self.summary(batch)
        code = self.code(
            h, context, self.noise(batch, 1, derive_seed(seed_of(generator), "codes", 0))
        )
        log_p = self.log_given_code(batch, code.z, context)
        return {"distortion": -log_p[0], **self.named(code.terms()[0])}

    def named(self, rates: Tensor) -> dict[str, Tensor]:
        """The parts of a rate, from what units add to it (B, U)."""
        return {"rate": rates.sum(1)}

    def noise(self, batch: Batch, count: int, seed: int) -> Tensor:
        """Normals keyed by row, (count, B, latent)."""
        noise = keyed_normal(batch.rows, (count, *self.latent.shape), seed)
        return noise.to(self.nets.bias).transpose(0, 1)

    def refined(self, batch: Batch, h: Tensor, context: Tensor, steps: int, seed: int) -> Tensor:
        """Parameters of each row's own posterior, climbed to from what the encoder says."""
        leaf = h.detach().clone().requires_grad_()
        adam = torch.optim.Adam([leaf], CLIMB)  # entry by entry: rows do not meet
        for step in range(steps):
            noise = self.noise(batch, 4, derive_seed(seed, "refine", step))
            with torch.enable_grad():
                bound = self.bound(batch, leaf, context.detach(), noise).sum()
                (leaf.grad,) = torch.autograd.grad(-bound, leaf)
            adam.param_groups[0]["lr"] = CLIMB * (1 - step / steps)
            adam.step()
        return leaf.detach()

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        context = self.context(given or {}, n)
        z = self.prior_draw(n, context, generator)
        return self.draw(z, context, generator).reshape(n, *self.space.shape)

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        """The code that noise 0 stands for: of a Gaussian posterior, its mean."""
        batch = as_batch(batch)
        h, context = self.summary(batch)
        return self.code(h, context, h.new_zeros(1, len(batch), *self.latent.shape)).z[0]

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        """The mean of p(x | z); of a label column, its most probable code."""
        check_shape(z, self.latent)
        x = self.head.mean(self.params(z, self.context(given or {}, len(z))))
        return x.reshape(len(z), *self.space.shape)

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        options = options or self.SamplingConfig()
        assert isinstance(options, self.SamplingConfig), "a completion is asked for with Sampling"
        current = batch
        for _ in range(options.sweeps):
            h, context = self.summary(current)
            code = self.code(h, context, self.fresh_noise(1, h, generator))
            current = self.filled(batch, code.z[0], context, generator)
        if options.method == "gibbs":
            return current.x
        h, context = self.summary(current)
        codes = [
            self.code(
                h, context, self.fresh_noise(min(BLOCK, options.samples - start), h, generator)
            )
            for start in range(0, options.samples, BLOCK)
        ]
        log_w = torch.cat(
            [self.log_given_code(batch, code.z, context) - code.ratios.sum(-1) for code in codes]
        )  # (K, B)
        which = torch.multinomial(log_w.T.softmax(1), 1, generator=generator)[:, 0]
        z = torch.cat([code.z for code in codes])[which, torch.arange(len(batch))]
        return self.filled(batch, z, context, generator).x

    def filled(
        self, batch: Batch, z: Tensor, context: Tensor, generator: Generator | None
    ) -> Batch:
        """The rows with what was not seen drawn from p(x | z)."""
        drawn = self.draw(z, context, generator).reshape(batch.x.shape)
        return replace(
            batch, x=torch.where(batch.observed_mask, batch.x.to(drawn), drawn), observed=None
        )

    def fresh_noise(self, count: int, h: Tensor, generator: Generator | None) -> Tensor:
        return torch.randn(
            count, len(h), *self.latent.shape, generator=generator, dtype=h.dtype, device=h.device
        )

    def log_joint(self, batch: Batch, z: Tensor) -> Tensor:
        context = self.context(batch.given, len(batch))
        return self.log_prior(batch, z) + self.log_given_code(batch, z, context)

    def infer(self, batch: Batch, noise: Tensor) -> Tensor:
        return self.code(*self.summary(batch), noise).z

    def summary(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the encoder says of each row, (B, summary), and its conditions, (B, C)."""
        context = self.context(batch.given, len(batch))
        return self.nets.encode(self.features(batch), context), context

    def context(self, given: Given, n: int) -> Tensor:
        return self.conditions(broadcast_conditions(given, self.space, n), n)  # (n, C)

    def log_given_code(self, batch: Batch, z: Tensor, context: Tensor) -> Tensor:
        """log p(x | z, given) over the entries that were seen, for z (*S, B, latent), (*S, B)."""
        x = batch.x.reshape(len(batch), -1).to(z.dtype)  # (B, D)
        hidden = None if batch.observed is None else ~batch.observed_mask.reshape(x.shape)
        x = x if hidden is None else x.masked_fill(hidden, 0.0)
        entries = self.head.log_prob(self.params(z, context), x.expand(*z.shape[:-1], -1))
        return (entries if hidden is None else entries.masked_fill(hidden, 0.0)).sum(-1)

    def params(self, z: Tensor, context: Tensor) -> Tensor:
        """Parameters of p(x | z, given) for z (*S, B, latent), (*S, B, P)."""
        return self.scales(self.nets.decode(self.spoken(z), context))

    def draw(self, z: Tensor, context: Tensor, generator: Generator | None) -> Tensor:
        """x ~ p(x | z, given), (n, D)."""
        return self.head.draw(self.params(z, context), self.head.noise(len(z), generator))

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> list[Finding]:
        h, context = self.summary(batch)
        noise = self.noise(batch, 1, 0)
        centre, code = self.code(h, context, 0 * noise), self.code(h, context, noise)
        params = self.params(centre.z[0], context)
        prior = self.prior_draw(
            4096, context[torch.arange(4096) % len(batch)], make_generator(0, h.device)
        )
        found = [
            collapse(centre.z[0], code.terms()[0]),
            aggregate(code.z[0], prior),
            degenerate(self.head, params),
            self.lag(batch[:EXAMINED]),
        ]
        return [finding for finding in found if finding]

    def lag(self, batch: Batch) -> Finding | None:
        """What the encoder's posteriors lack against those found for each row by itself."""
        h, context = self.summary(batch)
        noise = self.noise(batch, 16, 1)
        own = self.refined(batch, h, context, CLIMBED, 0)
        before, after = (self.bound(batch, each, context, noise).mean() for each in (h, own))
        return lagging(float(after - before), float(before))
