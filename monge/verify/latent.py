r"""Identities of models with a latent code z, $p(x) = \int p(x, z) dz$, and a posterior q(z | x).

$\log p(x) = ELBO + KL(q(z|x) \| p(z|x))$ with $ELBO = E_q \log p(x|z) - KL(q(z|x) \| p(z))$;
over k samples from q, $E \log \frac1k \sum_i p(x, z_i) / q(z_i|x)$ rises with k to log p(x).
Integrals over z are computed if it has at most two dimensions; otherwise means of samples are
compared, and a residual is measured in standard errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..core.abilities import HasLevels, HasLikelihood, HasPosterior
from ..core.batch import Batch
from ..core.errors import UsageError
from ..models.latent.vqvae import VQVAE
from ..solve.quadrature import integral
from ._density import WIDTH, check_codes, coarse_evidence, spread
from .framework import Residual, SkipIdentity

QUADRATURE = 1e-6
"""What is left of an integral over the code, in nats."""
INTEGRATED = 2
"""Rows whose codes are integrated over."""
SAMPLES = 2048
"""Latent codes sampled for each row if a mean is estimated."""
MAX_STANDARD_ERRORS = 5.0
"""Standard errors by which a mean may be off."""
MAX_SEQUENCES = 4096
"""Sequences of codes that are enumerated."""


def x58_evidence_is_bound_plus_divergence(model: HasPosterior, batch: Batch) -> Residual:
    """log p(x) = ELBO + KL(q(z|x) || p(z|x)).

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 1."""
    if isinstance(model, HasLevels):
        raise SkipIdentity("X61 covers hierarchies of latents")
    return missed_by(model, batch)


def x61_evidence_of_levels(model: HasLevels, batch: Batch) -> Residual:
    """log p(x) = E_q log p(x,z_1:T)/q + KL(q(z_1:T|x) || p(z_1:T|x)).

    Source: Sønderby et al. 2016, Ladder Variational Autoencoders."""
    return missed_by(model, batch)


def missed_by(model: HasPosterior, batch: Batch) -> Residual:
    """The error of evidence = bound + divergence."""
    batch = batch[:INTEGRATED]
    log_p = evidence(model, batch)

    def divergence(z: Tensor) -> Tensor:  # (S, B, *latent) -> (S, B)
        log_q = model.log_posterior(batch, z)
        return log_q.exp() * (log_q - (model.log_joint(batch, z) - log_p))

    gap = over_codes(model, batch, divergence)
    return Residual(float((log_p - gap - bound(model, batch)).abs().amax()), QUADRATURE)


def bound(model: HasPosterior, batch: Batch) -> Tensor:
    """The ELBO computed differently: noise through `infer`, the KL term in closed form, (B,)."""

    def term(noise: Tensor) -> Tensor:
        z = model.infer(batch, noise)
        square = noise.square().flatten(2).sum(2)
        normal = (-square / 2).exp() * (2 * math.pi) ** (-model.latent.dims / 2)
        terms = model.log_joint(batch, z)
        terms = terms - (
            model.log_posterior(batch, z) if kl is None else model.log_prior(batch, z)
        )
        return normal * terms

    kl = model.analytic_kl(batch)
    found = over_codes(model, batch, term)
    return found if kl is None else found - kl


def evidence(model: HasPosterior, batch: Batch) -> Tensor:
    """log of the integral of p(x, z | given) over z, (B,)."""
    start = coarse_evidence(model, batch)
    joint = over_codes(model, batch, lambda z: (model.log_joint(batch, z) - start).exp())
    return joint.log() + start


def over_codes(model: HasPosterior, batch: Batch, f: Callable[[Tensor], Tensor]) -> Tensor:
    """The integral over z of f: (S, B, *latent) -> (S, B), for each row, (B,)."""
    check_codes(model)

    def flat(z: Tensor) -> Tensor:  # (N, dims) -> (N, B)
        parts = z.reshape(-1, *model.latent.shape).split(pieces(batch))
        return torch.cat([f(spread(part, len(batch))) for part in parts])

    found, error = integral(flat, model.latent.dims, QUADRATURE / 4)
    if error > QUADRATURE / 2:
        raise SkipIdentity(f"an integral over its codes has an error of {error:.0e}")
    return found


def x59_kl_term_is_the_divergence_from_the_prior(model: HasPosterior, batch: Batch) -> Residual:
    """KL term = E_q[log q(z|x) - log p(z)], in standard errors.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, sec. 2.3."""
    kl = model.analytic_kl(batch)
    if kl is None:
        raise SkipIdentity("its KL term has no closed form")
    return apart([log_ratios(model, batch, SAMPLES)], kl)


def x59_score_is_the_bound(model: HasPosterior, batch: Batch) -> Residual:
    """E bound(1 sample) = E_q[log p(x,z) - log q(z|x)], in standard errors.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 6."""
    score = repeated(model, batch, samples=1, times=SAMPLES)
    return apart([score, log_weights(model, batch, SAMPLES)])


def x59_both_estimators_are_unbiased(model: HasPosterior, batch: Batch) -> Residual:
    """E_q[log p(x,z) - log q(z|x)] = E_q log p(x|z) - KL, in standard errors.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 6 and 7."""
    kl = model.analytic_kl(batch)
    if kl is None:
        raise SkipIdentity("its KL term has no closed form")
    log_p = over_samples(
        model, batch, SAMPLES, lambda z: model.log_joint(batch, z) - model.log_prior(batch, z)
    )
    return apart([log_weights(model, batch, SAMPLES), log_p - kl])


def x60_importance_samples_tighten_the_bound(model: HasPosterior, batch: Batch) -> Residual:
    """E bound(k samples) never falls with k, in standard errors.

    Source: Burda, Grosse & Salakhutdinov 2016, Importance Weighted Autoencoders, theorem 1."""
    plan = ((1, 200), (10, 100), (100, 50), (1000, 20))
    means = [repeated(model, batch, k, times).mean(1) for k, times in plan]  # (times,) each
    drops = [
        (before.mean() - after.mean()) / error_of([before, after])
        for before, after in itertools.pairwise(means)
    ]
    return Residual(float(torch.stack(drops).clamp(min=0).amax()), MAX_STANDARD_ERRORS)


def x60_score_is_the_importance_weighted_bound(model: HasPosterior, batch: Batch) -> Residual:
    """E bound(k samples) = E log mean_k p(x,z)/q(z|x), in standard errors.

    Source: Burda, Grosse & Salakhutdinov 2016, Importance Weighted Autoencoders, sec. 3."""
    k = 10
    score = repeated(model, batch, k, SAMPLES)
    weights = log_weights(model, batch, k * SAMPLES).unflatten(0, (k, SAMPLES))
    return apart([score, weights.logsumexp(0) - math.log(k)])


def x60_bound_stays_below_the_evidence(model: HasPosterior, batch: Batch) -> Residual:
    """E bound(1000 samples) <= log p(x), in standard errors.

    Source: Burda, Grosse & Salakhutdinov 2016, Importance Weighted Autoencoders, theorem 1."""
    batch = batch[:INTEGRATED]
    scores = repeated(model, batch, 1000, 20).mean(1)
    excess = (scores.mean() - evidence(model, batch).mean()) / error_of([scores])
    return Residual(float(excess.clamp(min=0)), MAX_STANDARD_ERRORS)


def x62_level_kls_add_up_to_the_kl(model: HasLevels, batch: Batch) -> Residual:
    """sum_t E_q KL_t = E_q[log q(z|x) - log p(z)], in standard errors.

    Source: Cover & Thomas 2006, Elements of Information Theory, theorem 2.5.3; Sønderby et al.
    2016, Ladder Variational Autoencoders."""

    def both(z: Tensor) -> Tensor:  # (S, B, *latent) -> (S, 2 B)
        ratio = model.log_posterior(batch, z) - model.log_prior(batch, z)
        return torch.cat([model.level_kls(batch, z).sum(-1), ratio], 1)

    kls, ratios = over_samples(model, batch, SAMPLES, both).chunk(2, 1)
    gaps = kls - ratios
    error = gaps.std(0) / SAMPLES**0.5 + 1e-12 * (1 + ratios.abs().mean(0))
    return Residual(float((gaps.mean(0).abs() / error).amax()), MAX_STANDARD_ERRORS)


def log_weights(model: HasPosterior, batch: Batch, n: int) -> Tensor:
    """log p(x, z) - log q(z | x) of n samples z ~ q for each row, (n, B)."""
    return over_samples(
        model, batch, n, lambda z: model.log_joint(batch, z) - model.log_posterior(batch, z)
    )


def log_ratios(model: HasPosterior, batch: Batch, n: int) -> Tensor:
    """log q(z | x) - log p(z) of n samples z ~ q for each row, (n, B)."""
    return over_samples(
        model, batch, n, lambda z: model.log_posterior(batch, z) - model.log_prior(batch, z)
    )


def x124_neighbours_of_a_code_bound_the_evidence(model: VQVAE, batch: Batch) -> Residual:
    """log p(x) >= log sum p(c) p(x|c) over c within one code of c(x).

    Source: van den Oord, Vinyals & Kavukcuoglu 2017, Neural Discrete Representation Learning,
    sec. 3.3."""
    batch = batch[:INTEGRATED]
    joint, near = enumerated(model, batch)  # (N, B)
    direct = joint.masked_fill(~near, -math.inf).logsumexp(0)
    count = 1 + model.positions * (model.config.codebook_size - 1)
    found = model.likelihood(batch, model.LikelihoodConfig(samples=count)).value
    above = (found - joint.logsumexp(0)).clamp(min=0)
    return Residual(float(torch.stack([(found - direct).abs(), above]).amax()), 1e-9)


def x124_codes_are_the_nearest_vectors(model: VQVAE, batch: Batch) -> Residual:
    """c_t(x) = argmin_k |h_t(x) - e_k|, and sum_c p(c) = 1.

    Source: van den Oord, Vinyals & Kavukcuoglu 2017, Neural Discrete Representation Learning,
    eq. 1."""
    h = model.split(model.encoder_outputs(batch)[0])  # (B, T, W)
    gaps = torch.cdist(h, model.vectors.expand(len(h), -1, -1))  # (B, T, K)
    chosen = gaps.gather(-1, model.codes(batch)[..., None])[..., 0]
    sequences = all_codes(model)
    given = {name: part[:1] for name, part in batch.given.items()}
    repeated = {name: part[[0] * len(sequences)] for name, part in given.items()}
    mass = model.log_prior(Batch(sequences, repeated), sequences).logsumexp(0)
    missed = torch.stack([(chosen - gaps.amin(-1)).amax(), mass.abs()])
    return Residual(float(missed.amax()), 1e-9)


def all_codes(model: VQVAE) -> Tensor:
    """Every sequence of codes, (N, T)."""
    size, length = model.config.codebook_size, model.positions
    if size**length > MAX_SEQUENCES:
        raise SkipIdentity(f"it has {size}^{length} sequences of codes, too many to enumerate")
    return torch.tensor([*itertools.product(range(size), repeat=length)])


def enumerated(model: VQVAE, batch: Batch) -> tuple[Tensor, Tensor]:
    """log p(x, c) of every sequence of codes, and whether it differs from that of x in one code
    at most, (N, B)."""
    context, own = model.context(batch.given, len(batch)), model.codes(batch)
    sequences = all_codes(model)
    joint = [model.log_joint(batch, c.expand(len(batch), -1), context) for c in sequences]
    near = (sequences[:, None] != own).sum(-1) <= 1
    return torch.stack(joint), near


def over_samples(
    model: HasPosterior, batch: Batch, n: int, f: Callable[[Tensor], Tensor]
) -> Tensor:
    """f: (S, B, *latent) -> (S, B) of n samples from q(z | x), (n, B)."""
    noise = torch.randn(n, len(batch), *model.latent.shape, dtype=torch.float64)
    return torch.cat([f(model.infer(batch, part)) for part in noise.split(pieces(batch))])


def pieces(batch: Batch) -> int:
    """Codes per row that are decoded at once."""
    return max(WIDTH // (32 * len(batch) * max(batch.x[0].numel(), 8)), 1)


def repeated(model: HasPosterior, batch: Batch, samples: int, times: int) -> Tensor:
    """The likelihood of each row from `samples` latents, with new noise each time, (times, B)."""
    if not isinstance(model, HasLikelihood):
        raise SkipIdentity("it has no likelihood")
    filters = (
        "filter" in model.LikelihoodConfig.__dataclass_fields__
    )  # those weigh whole sequences here
    try:
        options = model.LikelihoodConfig().override(
            f"samples={samples}", *["filter=false"] * filters
        )
    except UsageError as error:
        raise SkipIdentity("its likelihood takes no number of samples") from error
    index = torch.arange(len(batch)).repeat(times)
    many = replace(batch[index], row=None)  # numbered anew: the noise of a score is keyed by row
    parts = [
        model.likelihood(replace(many[part], row=part), options).value
        for part in torch.arange(len(many)).split(256)
    ]
    return torch.cat(parts).reshape(times, len(batch))


def apart(estimates: Sequence[Tensor], known: Tensor | None = None) -> Residual:
    """The distance between two means over samples (N, B), or from one to a known value."""
    means = [*(each.mean(0) for each in estimates), *([] if known is None else [known])]
    gap = (means[0] - means[1]).abs()
    return Residual(float((gap / error_of(estimates)).amax()), MAX_STANDARD_ERRORS)


def error_of(estimates: Sequence[Tensor]) -> Tensor:
    """The standard error of the difference of means over the first axis; never quite 0, since
    what does not vary is still rounded."""
    variance = torch.stack([each.var(0) / len(each) for each in estimates]).sum(0)
    size = torch.stack([each.abs().mean(0) for each in estimates]).sum(0)
    return variance.sqrt() + 1e-13 * (1 + size)
