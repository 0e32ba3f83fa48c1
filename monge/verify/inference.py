r"""Identities of inference on models whose evidence is known: linear Gaussian and finite ones.

$x = W z + b + s \epsilon$, $z \sim N(0, I)$ has $p(x) = N(b, W W^T + s^2 I)$ and
$p(z | x) = N(V W^T (x - b) / s^2, V)$, $V = (I + W^T W / s^2)^{-1}$ (probabilistic PCA; Tipping &
Bishop 1999). For finite models everything is a sum. Expectations over a normal are Gauss-Hermite
sums, exact for polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from ..core.batch import Batch
from ..core.space import Space
from ..models.baseline.chow_liu import ChowLiuTree
from ..models.latent._encoder_decoder import DenseEncoderDecoder
from ..models.latent._hierarchy import LevelGaussian
from ..models.latent._posterior import (
    MAX_LOG_SCALE,
    FactorisedPosterior,
    FullCovariancePosterior,
    IAFPosterior,
    Posterior,
)
from ..models.latent.ae import AE
from ..models.latent.mhvae import MHVAE
from ..models.latent.vae import VAE
from ..nn.autoregressive.masked_mlp import MaskedMLP
from ..prob.gradient_estimators import score_function
from ._density import exact
from ._helpers import gap, most, normal
from .framework import Residual, SkipIdentity
from .subjects import build

NODES = 80
"""Of a Gauss-Hermite sum."""
SMALL_IAF = IAFPosterior.Config(steps=3, context=4, maps=MaskedMLP.Config(width=16, depth=1))


def hermite() -> tuple[Tensor, Tensor]:
    """Places and weights of an expectation over N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def curve(z: Tensor) -> Tensor:
    return z**3 + z.sin()


def slopes(mean: float, scale: float) -> Tensor:
    """Of E[z^3 + sin z] over N(mean, scale^2), by mean and by scale."""
    fade = math.exp(-(scale**2) / 2)
    return torch.tensor(
        [
            3 * (mean**2 + scale**2) + fade * math.cos(mean),
            6 * mean * scale - scale * fade * math.sin(mean),
        ],
        dtype=torch.float64,
    )


MEAN, SCALE = 0.7, 0.8


def estimators() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights (N,), and at each node the slopes along the path of a factorised posterior's sample,
    those of its log-density and those of the score-function estimator, (N, 2) each. Slopes are by
    mean and scale."""
    noise, weights = hermite()
    posterior = FactorisedPosterior.Config().build(1)
    bent = math.log(SCALE) / MAX_LOG_SCALE  # the log-scale is bounded by a tanh
    outputs = torch.tensor([[MEAN, MAX_LOG_SCALE * math.atanh(bent)]], dtype=torch.float64)
    by_scale = torch.tensor([1.0, 1 / (SCALE * (1 - bent**2))], dtype=torch.float64)
    with torch.enable_grad():
        h = outputs.repeat(NODES, 1).requires_grad_()
        z, _ = posterior.reparameterise(h, noise[None, :, None])  # (1, N, 1)
        log_q = posterior.log_prob(h, z.detach())  # (1, N)
        value = curve(z.detach())[..., 0]
        path, score, weighed = (
            torch.autograd.grad(each.sum(), h, retain_graph=True)[0] * by_scale
            for each in (curve(z), log_q, score_function(value, log_q))
        )
    return weights, path, score, weighed


def x8_pathwise_and_score_gradients_are_the_gradient() -> Residual:
    """E grad f(mu + sigma eps) = E f grad log q = grad E f.

    Examines: models.latent._posterior, prob.gradient_estimators.

    Source: Mohamed et al. 2020, Monte Carlo Gradient Estimation in Machine Learning, sec. 4 and
    5."""
    weights, path, _, weighed = estimators()
    true = slopes(MEAN, SCALE)
    return Residual(most(gap(weights @ path, true), gap(weights @ weighed, true)), 1e-9)


def x8_the_path_is_quieter_than_the_score() -> Residual:
    """Var grad f(mu + sigma eps) < Var f grad log q, as a ratio.

    Examines: models.latent._posterior.

    Source: Mohamed et al. 2020, Monte Carlo Gradient Estimation in Machine Learning, sec. 3 and
    5."""
    weights, path, _, weighed = estimators()
    spread = [
        weights @ each.square() - (weights @ each).square() for each in (path[:, 0], weighed[:, 0])
    ]
    return Residual(float(spread[0] / spread[1]), 0.5)


def x8_samples_of_every_posterior_carry_a_gradient() -> Residual:
    """The gradient through a posterior's sample is a difference quotient.

    Examines: models.latent._posterior.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, sec. 2.4; Kingma et al. 2016,
    Improved Variational Inference with Inverse Autoregressive Flow, sec. 2.1."""
    worst, step = 0.0, 1e-5
    for config in (FactorisedPosterior.Config(), FullCovariancePosterior.Config(), SMALL_IAF):
        posterior: Posterior = config.build(3).double()
        for parameter in posterior.parameters():
            parameter.add_(0.2 * normal(*parameter.shape))
        h, noise, way = normal(2, posterior.width), normal(4, 2, 3), normal(2, posterior.width)

        def mean(h: Tensor, noise: Tensor = noise, posterior: Posterior = posterior) -> Tensor:
            z, log_q = posterior.reparameterise(h, noise)
            return (z.sin() + 0.1 * log_q).sum()

        with torch.enable_grad():
            leaf = h.clone().requires_grad_()
            (slope,) = torch.autograd.grad(mean(leaf), leaf)
        quotient = (mean(h + step * way) - mean(h - step * way)) / (2 * step)
        worst = most(worst, gap((slope * way).sum(), quotient))
    return Residual(worst, 1e-5)


def x9_the_score_has_mean_zero() -> Residual:
    """E_q grad log q = 0.

    Examines: models.latent._posterior.

    Source: Mohamed et al. 2020, Monte Carlo Gradient Estimation in Machine Learning, sec. 4."""
    weights, _, score, _ = estimators()
    return Residual(most((weights @ score).abs().tolist()), 1e-12)


def x9_a_gradient_does_not_pass_through_its_own_distribution() -> Residual:
    """grad E_q f is not E_q grad f at a fixed z, which is 0: 0.01 over the gap.

    Examines: models.latent._posterior.

    Source: Mohamed et al. 2020, Monte Carlo Gradient Estimation in Machine Learning, sec. 4."""
    weights, path, _, _ = estimators()
    return Residual(0.01 / float((weights @ path)[0].abs()), 1.0)


def x10_a_reparameterised_density() -> Residual:
    """log q(z) = log N(eps) - sum log sigma = Normal(mu, sigma).log_prob(z).

    Examines: models.latent._posterior.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, sec. 2.4."""
    units = 4
    plain, full = (
        FactorisedPosterior.Config().build(units),
        FullCovariancePosterior.Config().build(units).double(),
    )
    noise, h, wide = normal(3, 5, units), normal(5, plain.width), normal(5, full.width)
    z, log_q = plain.reparameterise(h, noise)
    scale = (MAX_LOG_SCALE * torch.tanh(h[:, units:] / MAX_LOG_SCALE)).exp()
    one = gap(log_q.sum(-1), Normal(h[:, :units], scale).log_prob(z).sum(-1))
    mean, log_scale, lower = full.factor(wide)
    distribution = MultivariateNormal(mean, scale_tril=lower + torch.diag_embed(log_scale.exp()))
    z, log_q = full.reparameterise(wide, noise)
    return Residual(
        most(
            one,
            gap(log_q.sum(-1), distribution.log_prob(z)),
            gap(full.log_prob(wide, z), distribution.log_prob(z)),
        ),
        1e-11,
    )


class LinearVAE:
    """A VAE whose networks are linear: its distribution is probabilistic PCA, so that evidence
    and posterior are known. Weights, offsets and scales are read off its decoder."""

    def __init__(self) -> None:
        space = Space(kind="real", shape=(4,), mean=(0.0,) * 4, scale=(1.0,) * 4)
        config = VAE.Config(
            latent=2,
            net=DenseEncoderDecoder.Config(depth=0),
            posterior=FullCovariancePosterior.Config(),
            scale="shared",
        )
        model = build(config, space)
        assert isinstance(model, VAE)
        self.model, self.batch = model, Batch(normal(5, 4))
        places = torch.cat([torch.zeros(1, 2), torch.eye(2)]).double()
        means = model.decode(places)
        self.bias, self.weight = means[0], (means[1:] - means[0]).T  # (4,), (4, 2)
        at_mean = model.head.log_prob(model.params(places[:1], places[:1, :0]), means[:1])[0]
        self.noise = (-at_mean).exp() / math.sqrt(2 * math.pi)  # (4,)

    def evidence(self) -> MultivariateNormal:
        spread = self.weight @ self.weight.T + self.noise.square().diag()
        return MultivariateNormal(self.bias, spread)

    def posterior(self) -> MultivariateNormal:
        scaled = self.weight.T / self.noise.square()  # (2, 4)
        precision = torch.eye(2).double() + scaled @ self.weight
        shift = (self.batch.x - self.bias) @ scaled.T  # (B, 2)
        mean = torch.linalg.solve(precision, shift.T).T
        return MultivariateNormal(mean, precision_matrix=precision.expand(len(mean), 2, 2))

    def infer_exactly(self) -> None:
        """Set the encoder's map so that q is the true posterior."""
        scaled, true = self.weight.T / self.noise.square(), self.posterior()
        matrix = true.covariance_matrix[0] @ scaled
        factor = torch.linalg.cholesky(true.covariance_matrix[0])
        bent = factor.diagonal().log() / MAX_LOG_SCALE
        below = 2 * factor[1, 0] / factor[1, 1]
        assert isinstance(self.model.nets, DenseEncoderDecoder)
        out = self.model.nets.encoder.out
        out.weight.copy_(torch.cat([matrix, torch.zeros(3, 4)]))
        raw = MAX_LOG_SCALE * bent.atanh()
        out.bias.copy_(torch.cat([-matrix @ self.bias, raw, below[None]]))

    def q(self) -> MultivariateNormal:
        h, _ = self.model.encoder_outputs(self.batch)
        assert isinstance(self.model.posterior, FullCovariancePosterior)
        mean, log_scale, lower = self.model.posterior.factor(h)
        return MultivariateNormal(mean, scale_tril=lower + torch.diag_embed(log_scale.exp()))

    def bound(self) -> Tensor:
        """The ELBO over all noise, (B,): Gauss-Hermite sums of what the model computes."""
        nodes, weights = hermite()
        noise = torch.cartesian_prod(nodes, nodes)[:, None].expand(-1, len(self.batch), 2)
        h, context = self.model.encoder_outputs(self.batch)
        code = self.model.sample_posterior(h, context, noise)
        log_p = self.model.log_given_code(self.batch, code.z, context)
        return torch.outer(weights, weights).flatten() @ (log_p - code.log_ratios.sum(-1))


def x58_evidence_of_a_linear_gaussian() -> Residual:
    """log p(x) = ELBO + KL(q || p(z|x)) of a linear VAE, which is pPCA.

    Examines: models.latent._elbo, models.latent.vae.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 1; Tipping & Bishop 1999,
    Probabilistic Principal Component Analysis."""
    vae = LinearVAE()
    log_p = vae.evidence().log_prob(vae.batch.x)
    return Residual(gap(vae.bound() + kl_divergence(vae.q(), vae.posterior()), log_p), 1e-10)


def x58_a_bound_is_tight_at_the_posterior() -> Residual:
    """A linear VAE with q = p(z|x) scores log p(x) by any number of samples.

    Examines: models.latent._elbo, models.latent.vae.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 1; Tipping & Bishop 1999,
    Probabilistic Principal Component Analysis."""
    vae = LinearVAE()
    vae.infer_exactly()
    log_p, worst = vae.evidence().log_prob(vae.batch.x), 0.0
    for samples in (2, 20):
        options = vae.model.LikelihoodConfig(samples=samples)
        worst = most(worst, gap(vae.model.likelihood(vae.batch, options).value, log_p))
    return Residual(most(worst, gap(vae.bound(), log_p)), 1e-10)


def x59_the_gradient_of_the_bound_is_a_mean_over_q() -> Residual:
    """The decoder's gradient of the loss is -E_q grad log p(x, z).

    Examines: models.latent._elbo, models.latent.vae.

    Source: Kingma & Welling 2019, An Introduction to Variational Autoencoders, sec. 2.3."""
    model, batch = LinearVAE().model, Batch(normal(5, 4))
    assert isinstance(model.nets, DenseEncoderDecoder)
    wanted = [*model.nets.decoder.parameters(), *model.scales.parameters()]
    with torch.enable_grad():
        torch.manual_seed(1)
        loss = torch.stack([term.sum() for term in model.loss(batch).values()]).sum()
        found = torch.autograd.grad(loss, wanted)
        torch.manual_seed(1)
        z = model.infer(batch, normal(1, 5, 2)).detach()
        due = torch.autograd.grad(-model.log_joint(batch, z).sum(), wanted)
    return Residual(most(map(gap, found, due)), 1e-11)


def table(*sizes: int) -> Tensor:
    """A random distribution of a few symbols."""
    return normal(math.prod(sizes)).softmax(0).reshape(sizes)


def x61_codes_form_a_chain(model: MHVAE, batch: Batch) -> Residual:
    """p(x | z) reads z_1 alone, q(z_t) only z_(t-1), p(z_t) only z_(t+1).

    Source: Luo 2022, Understanding Diffusion Models: A Unified Perspective, section on
    hierarchical variational autoencoders."""
    if len(model.widths) < 2:
        raise SkipIdentity("it has one level")
    context = model.context(batch.given, len(batch))
    z, away = normal(2, 1, len(batch), model.latent.dims).unbind(0)
    others = replace(batch, x=batch.x.flip(0))
    levels, far = z.split(model.widths, -1), away.split(model.widths, -1)
    above = torch.cat([levels[0], *far[1:]], -1)
    below = torch.cat([far[0], *levels[1:]], -1)

    def decoded(code: Tensor) -> Tensor:
        return model.log_given_code(batch, code, context)

    mine, theirs = model.path_of(batch, z), model.path_of(others, z)
    moved = model.path_of(batch, below)
    leaks = [gap(decoded(z), decoded(above))]
    leaks += [gap(a.mean, b.mean) for a, b in zip(mine.q[1:], theirs.q[1:], strict=True)]
    leaks += [gap(a.mean, b.mean) for a, b in zip(mine.p, moved.p, strict=True)]
    reads = [
        gap(decoded(z), decoded(below)),
        gap(mine.q[0].mean, theirs.q[0].mean),
        gap(mine.q[1].mean, moved.q[1].mean),
    ]
    return Residual(most(leaks) + float(min(reads) == 0), 0.0)


def x62_divergences_of_levels_are_those_of_normals() -> Residual:
    """KL(q_t || p_t) and log-densities of a level are those of two normals.

    Examines: models.latent._hierarchy.

    Source: Rasmussen & Williams 2006, Gaussian Processes for Machine Learning, sec. A.5; Sønderby
    et al. 2016, Ladder Variational Autoencoders."""
    mean, log_scale, z = normal(2, 6, 3), 0.5 * normal(2, 6, 3), normal(6, 3)
    q, p = (LevelGaussian(m, s) for m, s in zip(mean, log_scale, strict=True))
    first, second = (Normal(m, s.exp()) for m, s in zip(mean, log_scale, strict=True))
    return Residual(
        most(gap(q.kl(p), kl_divergence(first, second)), gap(q.log_prob(z), first.log_prob(z))),
        1e-12,
    )


def x63_a_linear_autoencoder_is_pca() -> Residual:
    """Its lowest loss is the sum of the trailing eigenvalues, its span PCA's.

    Examines: models.latent.ae.

    Source: Baldi & Hornik 1989, Neural Networks and Principal Component Analysis."""
    rows = normal(200, 5) @ normal(5, 5)
    rows = (rows - rows.mean(0)) / rows.std(0, correction=0)
    model: AE = (
        AE.Config(latent=2, net=DenseEncoderDecoder.Config(depth=0))
        .build(Space(kind="real", shape=(5,)))
        .double()
    )
    with torch.enable_grad():
        descend(lambda: model.loss(Batch(rows))["error"].mean(), list(model.parameters()))
    values, vectors = torch.linalg.eigh(torch.cov(rows.T, correction=0))
    left = float(model.loss(Batch(rows))["error"].mean() / values[:3].sum() - 1)
    span, _ = torch.linalg.qr(model.nets.decoder.out.weight)  # type: ignore[union-attr]
    apart = gap(span @ span.T, vectors[:, 3:] @ vectors[:, 3:].T)
    return Residual(most(abs(left) / 1e-6, apart / 1e-4), 1.0)


def descend(loss: Callable[[], Tensor], params: list[Tensor]) -> None:
    """Down to the least of a smooth loss."""
    optimiser = torch.optim.LBFGS(
        params,
        max_iter=2000,
        tolerance_grad=1e-10,
        tolerance_change=1e-15,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)


def flow() -> tuple[IAFPosterior, Tensor, Tensor]:
    """An inverse autoregressive posterior with random weights, summaries and noise. Weights are
    small enough that no gate closes: undoing a map divides by its gates, and so does rounding."""
    posterior: IAFPosterior = SMALL_IAF.build(5).double()
    for parameter in posterior.parameters():
        parameter.add_(0.2 * normal(*parameter.shape))
    return posterior, normal(1, posterior.width), normal(2, 1, 5)


def x64_gates_are_the_volume_of_an_inverse_flow() -> Residual:
    """sum_t sum_i log sigma_ti = log |det dz_T / d eps|.

    Examines: models.latent._posterior.

    Source: Kingma et al. 2016, Improved Variational Inference with Inverse Autoregressive Flow,
    sec. 4."""
    posterior, h, noise = flow()
    _, log_q = posterior.reparameterise(h, noise)
    jacobian = torch.autograd.functional.jacobian(
        lambda e: posterior.reparameterise(h, e[None, None])[0][0, 0], noise[0, 0]
    )
    log_normal = Normal(0.0, 1.0).log_prob(noise[0, 0]).sum()
    volume = torch.linalg.slogdet(jacobian)[1]
    return Residual(gap(log_normal - log_q[0, 0].sum(), volume), 1e-11)


def x64_an_inverse_flow_is_undone_unit_by_unit() -> Residual:
    """log q(z) of a given z equals that computed from its noise.

    Examines: models.latent._posterior.

    Source: Kingma et al. 2016, Improved Variational Inference with Inverse Autoregressive Flow."""
    posterior, h, noise = flow()
    z, log_q = posterior.reparameterise(h, noise)
    return Residual(gap(posterior.log_prob(h, z), log_q.sum(-1)), 1e-10)


def x64_a_directed_graph_is_a_product(model: ChowLiuTree, batch: Batch) -> Residual:
    """A tree's joint probability is prod_i p(x_i | x_parent) of its marginals.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 8.1; Chow & Liu 1968,
    Approximating Discrete Probability Distributions with Dependence Trees."""
    density = exact(model, batch)
    if not density.is_finite:
        raise SkipIdentity("it has real numbers, whose tables are of intervals")
    states = density.states()
    p = density.log_p(states).exp()
    parents = model.parent.tolist()
    if max(parents) < 0:
        raise SkipIdentity("its tree has no edge")
    product = torch.ones_like(p)
    for i, above in enumerate(parents):
        same = states[:, None, i] == states[None, :, i]
        if above < 0:
            product = product * (same * p).sum(1)
            continue
        there = states[:, None, above] == states[None, :, above]
        product = product * (same * there * p).sum(1) / (there * p).sum(1)
    return Residual(gap(product, p), 1e-12)
