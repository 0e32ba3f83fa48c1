r"""Identities of inference on models whose evidence is known: linear Gaussian and finite ones.

$x = W z + b + s \epsilon$, $z \sim N(0, I)$ has $p(x) = N(b, W W^T + s^2 I)$ and
$p(z | x) = N(V W^T (x - b) / s^2, V)$, $V = (I + W^T W / s^2)^{-1}$ (probabilistic PCA; Tipping &
Bishop 1999). For finite models everything is a sum. Expectations over a normal are Gauss-Hermite
sums, exact for polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from ..core.batch import Batch
from ..core.space import Space
from ..models.latent._encoder_decoder import DenseEncoderDecoder
from ..models.latent._posterior import FactorisedPosterior, FullCovariancePosterior, IAFPosterior
from ..models.latent.ae import AE
from ..nn.autoregressive.masked_mlp import MaskedMLP
from ._helpers import gap, most, normal
from .framework import Residual

NODES = 80
"""Of a Gauss-Hermite sum."""


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


def estimators(mean: float, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (N,), and both slopes at each node, along the path of z and by the score
    function, (N, 2) each."""
    noise, weights = hermite()
    with torch.enable_grad():
        place = torch.tensor([mean, scale], dtype=torch.float64).expand(NODES, 2).clone()
        z = (place := place.requires_grad_())[:, 0] + place[:, 1] * noise
        (path,) = torch.autograd.grad(curve(z).sum(), place)
    score = torch.stack([noise / scale, (noise.square() - 1) / scale], 1)
    return weights, path, curve(z.detach())[:, None] * score


def x8_pathwise_and_score_gradients_are_the_gradient() -> Residual:
    """E grad f(mu + sigma eps) = E f grad log q = grad E f.

    Source: Mohamed et al. 2020, Monte Carlo Gradient Estimation in Machine Learning, sec. 4 and
    5."""
    weights, path, score = estimators(0.7, 0.8)
    true = slopes(0.7, 0.8)
    return Residual(most(gap(weights @ path, true), gap(weights @ score, true)), 1e-9)


def x8_the_path_is_quieter_than_the_score() -> Residual:
    """Var grad f(mu + sigma eps) < Var f grad log q, as a ratio.

    Source: Mohamed et al. 2020, Monte Carlo Gradient Estimation in Machine Learning, sec. 3 and
    5."""
    weights, path, score = estimators(0.7, 0.8)
    spread = [
        weights @ each[:, 0].square() - (weights @ each[:, 0]).square() for each in (path, score)
    ]
    return Residual(float(spread[0] / spread[1]), 0.5)


def x9_the_score_has_mean_zero() -> Residual:
    """E_q grad log q = 0.

    Source: Mohamed et al. 2020, Monte Carlo Gradient Estimation in Machine Learning, sec. 4."""
    (noise, weights), scale = hermite(), 0.8
    score = torch.stack([noise / scale, (noise.square() - 1) / scale], 1)
    return Residual(most((weights @ score).abs().tolist()), 1e-12)


def x9_a_gradient_does_not_pass_through_its_own_distribution() -> Residual:
    """grad E_q f is not E_q grad f, which is 0: 0.01 over their gap.

    Source: Mohamed et al. 2020, Monte Carlo Gradient Estimation in Machine Learning, sec. 4."""
    return Residual(0.01 / float(slopes(0.7, 0.8)[0].abs()), 1.0)


def x10_a_reparameterised_density() -> Residual:
    """log q(z) = log N(eps) - sum log sigma = Normal(mu, sigma).log_prob(z).

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, sec. 2.4."""
    units = 4
    plain, full = (
        FactorisedPosterior.Config().build(units),
        FullCovariancePosterior.Config().build(units).double(),
    )
    noise, h, wide = normal(3, 5, units), normal(5, plain.width), normal(5, full.width)
    z, log_q = plain.reparameterise(h, noise)
    scale = (10 * torch.tanh(h[:, units:] / 10)).exp()
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


class LinearGaussian:
    """x = W z + b + s eps with two units of code and four entries."""

    def __init__(self) -> None:
        self.weight, self.bias, self.noise = normal(4, 2), normal(4), 0.6
        self.x = normal(4)

    def evidence(self) -> MultivariateNormal:
        spread = self.weight @ self.weight.T + self.noise**2 * torch.eye(4).double()
        return MultivariateNormal(self.bias, spread)

    def posterior(self) -> MultivariateNormal:
        precision = torch.eye(2).double() + self.weight.T @ self.weight / self.noise**2
        shift = self.weight.T @ (self.x - self.bias) / self.noise**2
        return MultivariateNormal(torch.linalg.solve(precision, shift), precision_matrix=precision)

    def bound(self, q: MultivariateNormal) -> Tensor:
        """The evidence lower bound: E_q |x - Wz - b|^2 is a square and a trace."""
        gap = self.x - self.bias - self.weight @ q.mean
        square = gap @ gap + torch.trace(self.weight @ q.covariance_matrix @ self.weight.T)
        log_p = -0.5 * square / self.noise**2 - 4 * math.log(self.noise * math.sqrt(2 * math.pi))
        prior = MultivariateNormal(torch.zeros(2).double(), torch.eye(2).double())
        return log_p - kl_divergence(q, prior)


def some_q() -> MultivariateNormal:
    factor = 0.3 * normal(2, 2).tril() + torch.eye(2).double()
    return MultivariateNormal(normal(2), scale_tril=factor)


def x58_evidence_of_a_linear_gaussian() -> Residual:
    """log p(x) = ELBO + KL(q || p(z|x)) of pPCA, tight at q = p(z|x).

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 1; Tipping & Bishop 1999,
    Probabilistic Principal Component Analysis."""
    distribution, q = LinearGaussian(), some_q()
    log_p, posterior = distribution.evidence().log_prob(distribution.x), distribution.posterior()
    whole = distribution.bound(q) + kl_divergence(q, posterior)
    return Residual(most(gap(whole, log_p), gap(distribution.bound(posterior), log_p)), 1e-10)


def x58_evidence_of_a_finite_distribution() -> Residual:
    """log p(x) = ELBO + KL(q || p(z|x)) for finite x and z, by summation.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 1."""
    joint, q = table(5, 6), table(5, 6).softmax(0)  # (z, x)
    evidence = joint.sum(0)
    bound = (q * (joint.log() - q.log())).sum(0)
    rest = (q * (q.log() - (joint / evidence).log())).sum(0)
    return Residual(gap(bound + rest, evidence.log()), 1e-12)


def x59_the_gradient_of_the_bound_is_a_mean_over_q() -> Residual:
    """grad_theta ELBO = E_q grad_theta log p(x, z), by theta = W.

    Source: Kingma & Welling 2019, An Introduction to Variational Autoencoders, sec. 2.3."""
    distribution, q = LinearGaussian(), some_q()
    nodes, weights = hermite()
    grid = torch.cartesian_prod(nodes, nodes) @ q.scale_tril.T + q.mean  # (N, 2)
    weight = torch.outer(weights, weights).flatten()
    left = distribution.x - distribution.bias - grid @ distribution.weight.T  # (N, 4)
    mean = torch.einsum("n,ni,nj->ij", weight, left, grid) / distribution.noise**2
    with torch.enable_grad():
        distribution.weight = distribution.weight.requires_grad_()
        (slope,) = torch.autograd.grad(distribution.bound(q), distribution.weight)
    return Residual(gap(slope, mean), 1e-10)


def table(*sizes: int) -> Tensor:
    """A random distribution of a few symbols."""
    return normal(math.prod(sizes)).softmax(0).reshape(sizes)


def chain() -> tuple[Tensor, Tensor]:
    """p(x, z_1, z_2) = p(z_2) p(z_1 | z_2) p(x | z_1) and q(z_1, z_2 | x) = q(z_1 | x)
    q(z_2 | z_1), both (x, z_1, z_2), of sizes 4, 3, 5."""
    up, down = normal(4, 3).softmax(1), normal(3, 5).softmax(1)
    p = normal(5).softmax(0) * normal(3, 5).softmax(0) * normal(4, 3).softmax(0)[:, :, None]
    return p, up[:, :, None] * down


def x61_evidence_of_a_chain_of_codes() -> Residual:
    """log p(x) = E_q log p(x,z_1:T)/q + KL(q(z_1:T|x) || p(z_1:T|x)).

    Source: Luo 2022, Understanding Diffusion Models: A Unified Perspective, section on
    hierarchical variational autoencoders."""
    p, q = chain()
    evidence = p.sum((1, 2))
    bound = (q * (p / q).log()).sum((1, 2))
    rest = (q * (q * evidence[:, None, None] / p).log()).sum((1, 2))
    return Residual(gap(bound + rest, evidence.log()), 1e-12)


def x62_divergences_of_a_chain_add_up() -> Residual:
    """KL(q(z_1:T) || p(z_1:T)) = sum_t E_q KL(q(z_t|z_<t) || p(z_t|z_<t)).

    Source: Cover & Thomas 2006, Elements of Information Theory, theorem 2.5.3."""
    p, q = table(3, 4, 2), table(3, 4, 2)
    total, parts = (q * (q / p).log()).sum(), []
    for place in range(3):
        later = tuple(range(place + 1, 3))
        own_q, own_p = (
            distribution.sum(later) if later else distribution for distribution in (q, p)
        )  # z_1..z_t
        past_q, past_p = (distribution.sum(place, keepdim=True) for distribution in (own_q, own_p))
        parts.append((own_q * ((own_q / past_q) / (own_p / past_p)).log()).sum())
    return Residual(gap(torch.stack(parts).sum(), total), 1e-12)


def x63_a_linear_autoencoder_is_pca() -> Residual:
    """Its lowest loss is the sum of the trailing eigenvalues, its span PCA's.

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
    config = IAFPosterior.Config(steps=3, context=4, maps=MaskedMLP.Config(width=16, depth=1))
    posterior: IAFPosterior = config.build(5).double()
    for parameter in posterior.parameters():
        parameter.add_(0.2 * normal(*parameter.shape))
    return posterior, normal(1, posterior.width), normal(2, 1, 5)


def x64_gates_are_the_volume_of_an_inverse_flow() -> Residual:
    """sum_t sum_i log sigma_ti = log |det dz_T / d eps|.

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

    Source: Kingma et al. 2016, Improved Variational Inference with Inverse Autoregressive Flow."""
    posterior, h, noise = flow()
    z, log_q = posterior.reparameterise(h, noise)
    return Residual(gap(posterior.log_prob(h, z), log_q.sum(-1)), 1e-10)


def x64_a_directed_graph_sums_to_one() -> Residual:
    """p(x_1|z_1,z_2) p(x_2|z_2) p(z_1) p(z_2|z_1) sums to 1.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 8.1."""
    first, second = normal(2).softmax(0), normal(2, 3).softmax(1)  # p(z_1), p(z_2 | z_1)
    left, right = normal(2, 3, 4).softmax(2), normal(3, 2).softmax(1)  # p(x_1 | .), p(x_2 | z_2)
    joint = torch.einsum("a,ab,abc,bd->abcd", first, second, left, right)
    given = joint / joint.sum(3, keepdim=True)  # p(x_2 | z_1, z_2, x_1)
    return Residual(
        most(
            gap(joint.sum(), torch.ones(()).double()),
            gap(given, right[None, :, None].expand_as(given)),
        ),
        1e-12,
    )
