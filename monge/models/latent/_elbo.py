r"""Bases of models that decode a code: decoders, and the ELBO, sampling and completion of those
with one vector of latent codes per row.

For any $q(z | x)$, with importance weights $w(z) = p(x, z) / q(z | x)$,

$\log p(x) = E_q \log w + KL(q(z | x) \| p(z | x)) \ge E_q \log w
           = E_q \log p(x | z) - KL(q(z | x) \| p(z))$,

the evidence lower bound (ELBO): reconstruction minus the KL term. Of the two estimators of Kingma
& Welling (2014), A samples $\log p(x, z) - \log q(z | x)$ as a whole; B samples the reconstruction
and computes the KL term analytically. Over k samples $E \log \frac1k \sum_i w(z_i)$ never falls as
k grows and tends to $\log p(x)$ (Burda, Grosse & Salakhutdinov 2016). Inference is amortised: the
encoder outputs the parameters of q. Gradient steps on the parameters of a single row improve on
the encoder; what they gain is the amortisation gap (Cremer, Li & Duvenaud 2018).

Annealed importance sampling leads from q(z | x) to p(z | x) (Neal 2001; of decoders, Wu et al.
2017). With $z = T(\epsilon)$, $\epsilon \sim N(0, I)$, the path is
$N(\epsilon; 0, I)\, w(T(\epsilon))^\beta$, whose normaliser is 1 at $\beta = 0$ and p(x) at
$\beta = 1$. Its mean weight is unbiased, so that the logarithm is a lower bound in expectation,
as with importance samples, which are the case of one temperature.
"""

from __future__ import annotations

import abc
import math
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

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
    HasLikelihood,
    HasPosterior,
    HasTerms,
    Likelihood,
)
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range, find, name_of, title_of
from ...core.errors import UsageError
from ...core.model import Model, new_optimiser, take_step
from ...core.rng import derive_seed, keyed_normal, make_generator, seed_of
from ...core.space import Space
from ...nn.inputs.features import Conditions, Features
from ...prob.distributions import log_mean_exp
from ...prob.heads import Head, LearnedScales
from .._annealing import (
    SAMPLES_PER_BLOCK,
    AnnealedLikelihoodConfig,
    RowNoise,
    annealed_bound,
)
from ._diagnostics import (
    find_amortisation_gap,
    find_collapse,
    find_degenerate_scale,
    find_prior_mismatch,
)
from ._encoder_decoder import DenseEncoderDecoder, EncoderDecoder, GridEncoderDecoder
from ._posterior import PosteriorSample, check_code_shape, check_latent_size

REFINE_LR = 0.05
"""Initial learning rate of refinement; it falls linearly to 0."""
GAP_ROWS, GAP_STEPS = 64, 20
"""Rows, and refinement steps of each, from which `diagnose` estimates the amortisation gap."""
MAX_CHAINS, CODES_PER_DRAW = 16, 4
"""Completion: most chains of a row, and the fewest codes from which a draw of it is chosen."""
PRIOR_SAMPLES = 4096
"""Samples of the prior that `diagnose` compares with the codes of data."""


class DecoderModel(Model, CanSample):
    """A model whose decoder maps a code to the parameters of p(x | code, given).

    The entries of x are independent given the code: Bernoulli, Gaussian, discretised logistic,
    categorical or binned, by their kind. So a sample carries the noise of p(x | code) in every
    entry, which makes images grainy; `decode` gives the mean of p(x | code), which is smooth.
    Missing entries are marginalised: they are left out of log p(x | code), and the encoder reads
    them as 0.
    """

    events = {"binary", "levels", "real", "counts", "columns"}
    givens = {"label", "real", "binary", "levels", "counts", "columns"}
    supports_missing = True

    class Config(Model.Config):
        net: EncoderDecoder.Config = DenseEncoderDecoder.Config(width=256)
        """Encoder and decoder networks: dense, or convolution or grid for images."""
        scale: Literal["shared", "network"] = "network"
        """Scales of Gaussians and logistics: one learned per entry, or computed by the decoder."""
        levels: Literal["logistic", "categorical"] = "logistic"
        """Distribution of ordered levels: discretised logistic, or one probability per level."""
        components: Annotated[int, Range(1)] = 1
        """Components of the mixture that models a real or levelled entry."""

    class SamplingConfig(BaseConfig):
        """How `sample` decodes."""

        neutral = {"mean": (False,)}
        mean: bool = False
        """Samples: the mean of p(x | z) of sampled codes instead of x ~ p(x | z); smoother
        pictures, which are not samples of the scored distribution."""

    config: Config

    def __init__(
        self, config: Config, space: Space, encoder_outputs: int, decoder_inputs: int
    ) -> None:
        """encoder_outputs: numbers per row that the encoder returns; decoder_inputs: those that
        the decoder reads."""
        super().__init__(config, space)
        self.features, self.conditions = Features(space), Conditions(space)
        self.head = Head(self.value_space(config, space), config.components, config.levels)
        self.scales = LearnedScales(self.head, config.scale == "shared")
        self.nets: EncoderDecoder = config.net.build(
            space,
            self.features.width,
            self.conditions.width,
            encoder_outputs,
            decoder_inputs,
            self.scales.inputs,
        )
        self.init_output_bias()

    @classmethod
    def value_space(cls, config: BaseConfig, space: Space) -> Space:
        """The space of which p(x | code) is a distribution."""
        return space

    def decoder_input(self, z: Tensor) -> Tensor:
        """The part of a code that the decoder reads."""
        return z

    def initialise_from_data(self, batch: Batch) -> None:
        self.head.fit(batch.x.reshape(len(batch), -1), batch.observed_mask.reshape(len(batch), -1))
        self.init_output_bias()

    @torch.no_grad()
    def init_output_bias(self) -> None:
        """Start p(x | code) at the marginal distribution of each entry."""
        self.nets.bias.copy_(self.scales.without(self.head.initial_params()))

    def encoder_outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The encoder's outputs h (B, H) and the encoded conditions (B, C) of each row."""
        context = self.context(batch.given, len(batch))
        return self.nets.encode(self.features(batch), context), context

    def context(self, given: Given, n: int) -> Tensor:
        return self.conditions(broadcast_conditions(given, self.space, n), n)  # (n, C)

    def params(self, z: Tensor, context: Tensor) -> Tensor:
        """Parameters of p(x | z, given) for z (*S, B, latent), (*S, B, P)."""
        return self.scales(self.nets.decode(self.decoder_input(z), context))

    def log_given_code(
        self, batch: Batch, z: Tensor, context: Tensor, present: bool = False
    ) -> Tensor:
        """log p(x | z, given) over the observed entries for z (*S, B, latent), and if `present`
        of no other entry being an empty cell, (*S, B)."""
        return self.log_given_params(batch, self.params(z, context), present)

    def log_given_params(self, batch: Batch, params: Tensor, present: bool) -> Tensor:
        """`log_given_code` from the parameters (*S, B, P) of p(x | z, given)."""
        x = batch.x.reshape(len(batch), -1).to(params.dtype)  # (B, D)
        hidden = None if batch.observed is None else ~batch.observed_mask.reshape(x.shape)
        x = x if hidden is None else x.masked_fill(hidden, 0.0)
        entries = self.head.log_prob(params, x.expand(*params.shape[:-1], -1))
        if hidden is None:
            return entries.sum(-1)
        unseen = self.head.log_present(params) if present else entries.new_zeros(())
        return torch.where(hidden, unseen, entries).sum(-1)

    def sample_given_code(
        self, z: Tensor, context: Tensor, generator: Generator | None, present: bool = False
    ) -> Tensor:
        """x ~ p(x | z, given), if `present` given that no cell is empty, (n, *event)."""
        params = self.params(z, context)
        params = self.head.present(params) if present else params
        x = self.head.sample(params, self.head.noise(len(z), generator))
        return x.reshape(len(z), *self.space.shape)

    def decode_samples(
        self,
        z: Tensor,
        context: Tensor,
        options: BaseConfig | None,
        generator: Generator | None,
    ) -> Tensor:
        """x ~ p(x | z, given), or its mean if the options say so, (n, *event)."""
        if isinstance(options, self.SamplingConfig) and options.mean:
            return self.mean_given_code(z, context)
        return self.sample_given_code(z, context, generator)

    def mean_given_code(self, z: Tensor, context: Tensor) -> Tensor:
        return self.head.mean(self.params(z, context)).reshape(len(z), *self.space.shape)


class LatentVariableModel(
    DecoderModel, HasTerms, HasPosterior, CanEncode, CanDecode, CanComplete, CanDiagnose
):
    """p(x | given) = ∫ p(x | z, given) p(z | given) dz with an amortised q(z | x, given).

    Training minimises reconstruction + beta KL (beta: Higgins et al. 2017); a log-likelihood is
    the bound itself, whatever beta is.
    """

    completion = (
        "sampled from codes resampled by their importance weights given the observed entries, "
        "which tends to the model's distribution as sample.samples grows (sample.method=gibbs: "
        "pseudo-Gibbs, approximate)"
    )

    class Config(DecoderModel.Config):
        beta: Annotated[float, Range(0)] = 1.0
        """Weight of the KL term (beta-VAE); above 1 favours disentangled codes."""
        anneal: Annotated[int, Range(0)] = 0
        """KL annealing: steps over which the weight of the KL term rises from 0 to beta."""
        free_bits: Annotated[float, Range(0)] = 0.0
        """Free bits: KL per latent dimension (nats) that is not penalised; counters posterior
        collapse."""
        estimator: Literal["auto", "A", "B"] = "auto"
        """ELBO estimator: A = Monte Carlo, B = analytic KL; auto uses B when available."""
        samples: Annotated[int, Range(1)] = 1
        """Codes sampled per row in training."""
        importance_weighted: bool = False
        """Train the importance-weighted bound (IWAE) of all samples instead of the mean ELBO."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.importance_weighted and self.free_bits:
                raise UsageError(
                    f"free_bits={self.free_bits} needs a KL term, and the bound of "
                    "importance_weighted=true has none; use one of them"
                )

        @property
        def weights_version(self) -> int:
            """2 where the encoder's map holds means and scales at their own places; before, they
            were read from other places."""
            return 2 if isinstance(self.net, GridEncoderDecoder.Config) else 1

    class SamplingConfig(DecoderModel.SamplingConfig):
        """How `sample` decodes and `complete` imputes."""

        method: Literal["importance", "gibbs"] = "importance"
        """Imputation: importance resampling, or pseudo-Gibbs (faster, approximate)."""
        samples: Annotated[int, Range(1)] = 64
        """Imputation: importance samples per row."""
        sweeps: Annotated[int, Range(1)] = 10
        """Imputation: pseudo-Gibbs sweeps, with method=importance before the resampling."""

    class LikelihoodConfig(AnnealedLikelihoodConfig):
        """How tight the bound is."""

        refine: Annotated[int, Range(0)] = 0
        """Gradient steps that refine each row's posterior (semi-amortised inference)."""

    config: Config

    def __init__(
        self, config: Config, space: Space, encoder_outputs: int, latent: int, decoder_inputs: int
    ) -> None:
        super().__init__(config, space, encoder_outputs, decoder_inputs)
        self.latent = Space(kind="real", shape=(latent,))
        check_latent_size(latent, self.features.width, space)

    @abc.abstractmethod
    def sample_posterior(self, h: Tensor, context: Tensor, noise: Tensor) -> PosteriorSample:
        """z ~ q(z | x) from standard normal noise (S, B, latent) and encoder outputs h (B, H)."""

    @abc.abstractmethod
    def sample_prior(self, n: int, context: Tensor, generator: Generator | None) -> Tensor:
        """z ~ p(z | given), (n, latent)."""

    # Terms of the loss, for the models to combine

    def sample_noise(self, count: int, h: Tensor, generator: Generator | None = None) -> Tensor:
        """Standard normal noise (count, B, latent)."""
        return torch.randn(
            count, len(h), *self.latent.shape, generator=generator, dtype=h.dtype, device=h.device
        )

    def keyed_noise(self, batch: Batch, count: int, seed: int) -> Tensor:
        """Standard normal noise keyed by row, so that batching does not change it, (count, B,
        latent)."""
        noise = keyed_normal(batch.rows, (count, *self.latent.shape), seed)
        return noise.to(self.nets.bias).transpose(0, 1)

    def kl_weight(self, step: int) -> float:
        """beta, annealed from 0 over the first `anneal` steps."""
        beta, anneal = self.config.beta, self.config.anneal
        return beta * min(1.0, (step + 1) / anneal) if anneal else beta

    def kl_term(self, code: PosteriorSample) -> Tensor:
        """KL(q || p) of each row, (B,); with free bits, its mean over rows, ()."""
        kl = code.kl_terms(self.config.estimator == "A").mean(0)  # (B, U)
        if not self.config.free_bits:
            return kl.sum(1)
        free = self.config.free_bits * self.latent.dims / kl.shape[-1]
        return kl.mean(0).clamp(min=free).sum()

    # Log-likelihood

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, self.LikelihoodConfig), "expected a LikelihoodConfig"
        seed, (h, context) = seed_of(generator), self.encoder_outputs(batch)
        if options.refine:
            h = self.refine_posterior(batch, h, context, options.refine, seed)
        if options.method == "ais":
            return self.annealed_bound(batch, h, context, options, seed)
        log_weights = []
        for start in range(0, options.samples, SAMPLES_PER_BLOCK):
            count = min(SAMPLES_PER_BLOCK, options.samples - start)
            noise = self.keyed_noise(batch, count, derive_seed(seed, "codes", start))
            if options.samples == 1:
                return Likelihood(self.elbo(batch, h, context, noise), "bound")
            code = self.sample_posterior(h, context, noise)
            log_p = self.log_given_code(batch, code.z, context)
            log_weights.append(log_p - code.log_ratios.sum(-1))
        value, error = log_mean_exp(torch.cat(log_weights))
        return Likelihood(value, "bound", error)

    def annealed_bound(
        self, batch: Batch, h: Tensor, context: Tensor, options: LikelihoodConfig, seed: int
    ) -> Likelihood:
        """Annealed importance sampling of log p(x) from q(z | x), whose parameters are h."""

        def energy(noise: Tensor) -> Tensor:  # (S B, latent) -> (S B,)
            code = self.sample_posterior(h, context, noise.unflatten(0, (-1, len(batch))))
            log_p = self.log_given_code(batch, code.z, context)
            return (code.log_ratios.sum(-1) - log_p).flatten()

        noise = RowNoise(batch.rows, seed, partial(self.keyed_noise, batch))
        return annealed_bound(energy, noise, options)

    def elbo(self, batch: Batch, h: Tensor, context: Tensor, noise: Tensor) -> Tensor:
        """The evidence lower bound by its estimator of least variance, (B,)."""
        code = self.sample_posterior(h, context, noise)
        log_p = self.log_given_code(batch, code.z, context)
        return log_p.mean(0) - code.kl_terms().sum(-1).mean(0)

    def terms(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> dict[str, Tensor]:
        """Terms of the ELBO; importance samples tighten the bound beyond it."""
        batch = as_batch(batch)
        h, context = self.encoder_outputs(batch)
        noise = self.keyed_noise(batch, 1, derive_seed(seed_of(generator), "codes", 0))
        code = self.sample_posterior(h, context, noise)
        log_p = self.log_given_code(batch, code.z, context)
        return {"reconstruction": -log_p[0], **self.name_kl_terms(code.kl_terms()[0])}

    def name_kl_terms(self, kl: Tensor) -> dict[str, Tensor]:
        """The named parts of the KL term, from its terms per unit (B, U)."""
        return {"kl": kl.sum(1)}

    def refine_posterior(
        self, batch: Batch, h: Tensor, context: Tensor, steps: int, seed: int
    ) -> Tensor:
        """Posterior parameters of each row after gradient ascent on its ELBO from h, (B, H)."""
        leaf = h.detach().clone().requires_grad_()
        # elementwise: rows do not interact
        adam = new_optimiser(torch.optim.Adam, [leaf], REFINE_LR)
        for step in range(steps):
            noise = self.keyed_noise(batch, 4, derive_seed(seed, "refine", step))
            with torch.enable_grad():
                bound = self.elbo(batch, leaf, context.detach(), noise).sum()
                (leaf.grad,) = torch.autograd.grad(-bound, leaf)
            adam.param_groups[0]["lr"] = REFINE_LR * (1 - step / steps)
            take_step(adam)
        return leaf.detach()

    # Codes and completion

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        """The code of noise 0: the mean of a Gaussian posterior."""
        batch = as_batch(batch)
        h, context = self.encoder_outputs(batch)
        noise = h.new_zeros(1, len(batch), *self.latent.shape)
        return self.sample_posterior(h, context, noise).z[0]

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        """The mean of p(x | z); of a label column, its most probable class."""
        check_code_shape(z, self.latent)
        return self.mean_given_code(z, self.context(given or {}, len(z)))

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        return self.complete_several(batch, 1, options, generator)[:, 0]

    @torch.no_grad()
    def complete_several(
        self,
        batch: Batch,
        draws: int,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """All draws of a row are resampled from the codes of some chains."""
        options = options or self.SamplingConfig()
        assert isinstance(options, self.SamplingConfig), "expected a SamplingConfig"
        by_gibbs, rows = options.method == "gibbs", torch.arange(len(batch))
        chains = draws if by_gibbs else min(draws, MAX_CHAINS)
        question = batch[rows.repeat_interleave(chains)]
        known = current = self.known_cells(question)
        for _ in range(options.sweeps):  # pseudo-Gibbs: z ~ q(z | x), x_missing ~ p(x | z)
            h, context = self.encoder_outputs(current)
            code = self.sample_posterior(h, context, self.sample_noise(1, h, generator))
            current = self.fill_missing(known, code.z[0], context, generator)
        if by_gibbs:
            x = self.fill_empty(question, current, code.z[0], context, generator)
            return x.unflatten(0, (-1, draws))
        count = -(-max(options.samples, CODES_PER_DRAW * draws) // chains)
        z, log_weights, context = self.weigh_codes(known, current, count, generator)
        pool = log_weights.unflatten(1, (-1, chains)).movedim(1, 0).flatten(1)  # (B, codes)
        which = torch.multinomial(pool.softmax(1), draws, replacement=True, generator=generator)
        chain = rows.to(which.device)[:, None] * chains + which % chains  # (B, draws)
        z, context = z[which // chains, chain].flatten(0, 1), context[chain.flatten()]
        question, known = question[chain.flatten()], known[chain.flatten()]
        current = self.fill_missing(known, z, context, generator)
        x = self.fill_empty(question, current, z, context, generator)
        return x.unflatten(0, (-1, draws))

    def weigh_codes(
        self, known: Batch, filled: Batch, samples: int, generator: Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Codes z (K, B, latent) ~ q(z | filled rows) with log-weights (K, B) that make them codes
        of p(z | known cells, no missing one empty); and the encoded conditions."""
        h, context = self.encoder_outputs(filled)
        codes = []
        for start in range(0, samples, SAMPLES_PER_BLOCK):
            count = min(SAMPLES_PER_BLOCK, samples - start)
            noise = self.sample_noise(count, h, generator)
            codes.append(self.sample_posterior(h, context, noise))
        log_weights = torch.cat(
            [
                self.log_given_code(known, code.z, context, True) - code.log_ratios.sum(-1)
                for code in codes
            ]
        )
        return torch.cat([code.z for code in codes]), log_weights, context

    def known_cells(self, batch: Batch) -> Batch:
        """Rows to complete as the encoder and the weights read them."""
        return batch

    def fill_empty(
        self, question: Batch, rows: Batch, z: Tensor, context: Tensor, generator: Generator | None
    ) -> Tensor:
        """Completed rows (B, *event): cells of the question that `known_cells` read as empty, and
        whose value is asked for, are sampled too."""
        return rows.x

    def fill_missing(
        self, batch: Batch, z: Tensor, context: Tensor, generator: Generator | None
    ) -> Batch:
        """The rows with missing entries, none of which is empty, sampled from p(x | z)."""
        x = self.sample_given_code(z, context, generator, present=True)
        return replace(batch, x=torch.where(batch.observed_mask, batch.x.to(x), x), observed=None)

    def log_joint(self, batch: Batch, z: Tensor) -> Tensor:
        context = self.context(batch.given, len(batch))
        return self.log_prior(batch, z) + self.log_given_code(batch, z, context)

    def infer(self, batch: Batch, noise: Tensor) -> Tensor:
        return self.sample_posterior(*self.encoder_outputs(batch), noise).z

    # Diagnostics

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> list[Finding]:
        h, context = self.encoder_outputs(batch)
        noise = self.keyed_noise(batch, 1, 0)
        centre = self.sample_posterior(h, context, 0 * noise)
        code = self.sample_posterior(h, context, noise)
        params = self.params(centre.z[0], context)
        rows = torch.arange(PRIOR_SAMPLES) % len(batch)
        prior = self.sample_prior(PRIOR_SAMPLES, context[rows], make_generator(0, h.device))
        found = [
            find_collapse(centre.z[0], code.kl_terms()[0]),
            find_prior_mismatch(code.z[0], prior),
            find_degenerate_scale(self.head, params),
            self.check_amortisation(batch[:GAP_ROWS]),
        ]
        return [finding for finding in found if finding]

    def check_amortisation(self, batch: Batch) -> Finding | None:
        """Compare the encoder's posteriors with those refined for each row."""
        h, context = self.encoder_outputs(batch)
        noise = self.keyed_noise(batch, 16, 1)
        own = self.refine_posterior(batch, h, context, GAP_STEPS, 0)
        before, after = (self.elbo(batch, each, context, noise).mean() for each in (h, own))
        return find_amortisation_gap(float(after - before), float(before))


def importance_weighted_bound(log_p: Tensor, log_ratios: Tensor) -> Tensor:
    """log of the mean importance weight of samples of log p(x | z) and log q(z | x) - log p(z),
    (S, B) to (B,)."""
    return (log_p - log_ratios).logsumexp(0) - math.log(len(log_p))


def prior_class(tag: str) -> type[Model]:
    """The model with this tag, as a prior of codes."""
    return find(tag).owner


def build_prior(chosen: BaseConfig | None, default: str, codes: Space) -> Model:
    """The model of the codes: the chosen one, else the one with the tag `default` and the settings
    that it has by default for them."""
    config: Any = chosen or prior_class(default).defaults(codes).config
    prior, kind = config.owner, codes.kind
    able = issubclass(prior, HasLikelihood) and issubclass(prior, CanSample)
    if not able or kind not in prior.events or prior.is_predictor:
        raise UsageError(
            f"expected a prior that scores and samples codes that are {kind}, found "
            f"{title_of(type(config))}; choose one such as {name_of(find(default))}"
        )
    return config.build(codes)
