"""Common errors on latent codes and invertible maps: the expectation, the volume."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from ...core.rng import make_generator
from ...models.latent._posterior import FactorisedPosterior
from ...models.latent.mhvae import MHVAE
from ...models.latent.vae import VAE
from ...prob.bijections.base import Compose
from ...prob.bijections.univariate import AffineMap
from ...prob.distributions import normal_log_prob
from ...solve.quadrature import lattice
from .._helpers import gap, jacobian, most, normal
from .._random_flows import DIMS, autoregressive, coupling, log_base
from ..framework import Control
from ..inference import table
from ..posterior import DIGITS, unevenness
from ..subjects import SPACES, build, random_rows

ROUNDING = 1e-12


def finite() -> tuple[Tensor, Tensor]:
    """p(z, x) and q(z | x), both (5, 6)."""
    return table(5, 6), normal(5, 6).softmax(0)


def bound(joint: Tensor, q: Tensor) -> Tensor:
    """E_q log p(x, z) / q(z | x), (x,)."""
    return (q * (joint / q).log()).sum(0)


def r11_a_latent_is_decoded_from_the_one_above() -> Control:
    """Common error: with a prior of z_T, p(z_t | z_(t-1)); correct: p(z_(t-1) | z_t).

    Examines: models.latent._hierarchy.

    Source: Luo 2022, Understanding Diffusion Models: A Unified Perspective, section on
    hierarchical variational autoencoders."""
    space = SPACES[0]
    model = build(MHVAE.smallest_config(space), space)
    assert isinstance(model, MHVAE)
    batch = random_rows(space, 1, make_generator(2))
    context = model.context(batch.given, 1)
    z, volume = lattice(2, 501, 25.0)  # (N, 2)
    one, codes = torch.zeros(()).double(), z[:, None]
    proper = model.log_prior(batch, codes)[:, 0].logsumexp(0) + volume
    below, top = codes.split(1, -1)
    step = model.level_prior(0, {1: below}, context, context)  # the step up that is printed
    printed = (step.log_prob(top) + normal_log_prob(top)).sum((1, 2)).logsumexp(0) + volume
    return Control(gap(printed, one), gap(proper, one), 1e-6)


def r15_the_distortion_of_a_beta_vae_is_negative() -> Control:
    """Common error: beta-VAE: min E log p(x|z) + beta KL; correct: min -E_q log p(x|z) + beta KL.

    Examines: models.latent._elbo, models.latent.vae.

    Source: Higgins et al. 2017, beta-VAE."""
    space, beta = SPACES[0], 4.0
    model = build(replace(VAE.smallest_config(space), beta=beta, samples=1), space)
    assert isinstance(model, VAE)
    batch = random_rows(space, 8, make_generator(2))
    torch.manual_seed(1)
    loss = torch.stack([*model.loss(batch).values()]).sum(0)
    torch.manual_seed(1)
    z = model.infer(batch, normal(1, 8, *model.latent.shape))
    log_p = (model.log_joint(batch, z) - model.log_prior(batch, z)).mean(0)
    kl = beta * torch.as_tensor(model.analytic_kl(batch))
    return Control(gap(loss, log_p + kl), gap(loss, -log_p + kl), ROUNDING)


def r62_only_the_last_divergence_is_bounded() -> Control:
    """Common error: log p(x) >= 0 in the derivation of the ELBO; correct: KL(q || p(z|x)) >= 0.

    Examines: mathematics only.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, sec. 2.2."""
    joint, q = finite()
    rest = (q * (q * joint.sum(0) / joint).log()).sum(0)
    return Control(float(-joint.sum(0).log().amin()), float(-rest.amin()), ROUNDING)


def r63_the_bound_weighs_the_joint_density() -> Control:
    """Common error: ELBO = E log p(z) / q(x,z); correct: E_q log p(x,z) / q(z|x).

    Examines: mathematics only.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 2."""
    joint, q = finite()
    evidence = joint.sum(0)
    reconstruction = (q * (joint / joint.sum(1, keepdim=True)).log()).sum(0)
    kl = (q * (q / joint.sum(1, keepdim=True)).log()).sum(0)
    printed = (q * (joint.sum(1, keepdim=True) / (q * evidence)).log()).sum(0)
    whole = reconstruction - kl
    return Control(gap(printed, whole), gap(bound(joint, q), whole), ROUNDING)


def r77_the_decoder_speaks_of_x() -> Control:
    """Common error: ELBO = E_q log p(z|x) - KL(q||p(z)); correct: E_q log p(x|z) - KL(q||p(z)).

    Examines: mathematics only.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 3."""
    joint, q = finite()
    prior = joint.sum(1, keepdim=True)
    kl = (q * (q / prior).log()).sum(0)
    printed, proper = (
        (q * distribution.log()).sum(0) - kl
        for distribution in (joint / joint.sum(0), joint / prior)
    )
    return Control(gap(printed, bound(joint, q)), gap(proper, bound(joint, q)), ROUNDING)


def r98_a_posterior_has_a_variance_for_each_unit() -> Control:
    """Common error: q = N(mu, |s|^2 I) for a vector s; correct: N(mu, diag(s^2)).

    Examines: models.latent._posterior.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 9."""
    posterior, units = FactorisedPosterior.Config().build(4), 4
    h, noise = normal(5, posterior.width), normal(3, 5, units)
    z, log_q = posterior.reparameterise(h, noise)
    mean, scale = h[:, :units], (10 * torch.tanh(h[:, units:] / 10)).exp()
    one, each = (
        MultivariateNormal(mean, torch.diag_embed(variance)).log_prob(z)
        for variance in (scale.square().sum(1, keepdim=True).expand_as(scale), scale.square())
    )
    return Control(gap(log_q.sum(-1), one), gap(log_q.sum(-1), each), 1e-11)


def r100_the_evidence_is_of_x() -> Control:
    """Common error: log p(z|x) = ELBO + KL(q || p(z|x)); correct: log p(x) = ELBO + KL.

    Examines: mathematics only.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, eq. 1."""
    joint, q = finite()
    posterior = joint / joint.sum(0)
    whole = bound(joint, q) + (q * (q / posterior).log()).sum(0)
    printed = (q * posterior.log()).sum(0)
    return Control(gap(whole, printed), gap(whole, joint.sum(0).log()), ROUNDING)


def r12_a_coupling_reads_what_stays() -> Control:
    """Common error: a coupling is y_A = h(x_A; beta(x_A)); correct: y_A = h(x_A; beta(x_B)).

    Examines: prob.bijections.coupling, prob.bijections.univariate.

    Source: Dinh, Sohl-Dickstein & Bengio 2017, Density Estimation Using Real NVP, sec. 3.2."""
    layer, z = coupling(AffineMap(), flip=False), normal(4, DIMS)

    def printed(z: Tensor) -> tuple[Tensor, Tensor]:
        moves, stays = z[:, : layer.size], z[:, layer.size :]
        y, log_slope = layer.warp(layer.params(moves, None)[:, : layer.size], moves)
        return torch.cat([y, stays], 1), log_slope.sum(1)

    def missed(f: Callable[[Tensor], tuple[Tensor, Tensor]]) -> float:
        return gap(torch.linalg.slogdet(jacobian(lambda v: f(v)[0], z))[1], f(z)[1])

    return Control(missed(printed), missed(layer), ROUNDING)


def r13_the_base_is_counted_once() -> Control:
    """Common error: log p = sum_i (log p(f_i) + log |det|); correct: log p(z) - sum_k log |det|.

    Examines: prob.bijections.base, prob.bijections.coupling.

    Source: Rezende & Mohamed 2015, Variational Inference with Normalizing Flows, sec. 3."""
    parts, z = [coupling(AffineMap(), bool(k % 2)) for k in range(3)], normal(4, DIMS)
    whole = Compose(parts)
    x, log_det = whole(z)
    truth = log_base(z) - torch.linalg.slogdet(jacobian(lambda v: whole(v)[0], z))[1]
    printed, y = torch.zeros(4).double(), z
    for part in parts:
        y, own = part(y)
        printed = printed + log_base(y) + own
    assert gap(x, y) == 0
    return Control(gap(printed, truth), gap(log_base(z) - log_det, truth), ROUNDING)


def r64_a_density_is_divided_by_the_volume() -> Control:
    """Common error: p(x) = p(z) whatever the volume; correct: p(x) = p(z) / |det dx / dz|.

    Examines: prob.bijections.coupling.

    Source: Papamakarios et al. 2021, Normalizing Flows for Probabilistic Modeling and Inference,
    sec. 2.1."""
    layer, z = coupling(AffineMap(), flip=False), normal(4, DIMS)
    x, log_det = layer(z)
    back, there = layer.inverse(x)
    truth = log_base(back) + there
    return Control(gap(log_base(z), truth), gap(log_base(z) - log_det, truth), ROUNDING)


def r64_a_jacobian_is_triangular() -> Control:
    """Common error: the Jacobian of a coupling is block diagonal; correct: it is triangular.

    Examines: prob.bijections.coupling.

    Source: Dinh, Sohl-Dickstein & Bengio 2017, Density Estimation Using Real NVP, sec. 3.3."""
    layer, z = coupling(AffineMap(), flip=False), normal(4, DIMS)
    matrix, size = jacobian(lambda v: layer(v)[0], z), layer.size
    above, below = (
        float(block.abs().amax()) for block in (matrix[:, :size, size:], matrix[:, size:, :size])
    )
    return Control(most(above, below), above, 0.0)


def r89_autoregressive_flows_are_flows() -> Control:
    """Common error: autoregressive flows are no normalising flows; correct: they are.

    They are invertible, and their densities are those of a change of variables.

    Examines: prob.bijections.autoregressive.

    Source: Papamakarios et al. 2021, Normalizing Flows for Probabilistic Modeling and Inference,
    sec. 3.1."""
    layer, x = autoregressive(AffineMap()), normal(4, DIMS)
    z, log_det = layer.inverse(x)
    again, back = layer(z)
    volume = torch.linalg.slogdet(jacobian(lambda v: layer.inverse(v)[0], x))[1]
    right = most(gap(log_det, volume), gap(again, x), gap(back, -volume))
    return Control(gap(log_base(x), log_base(z) + volume), right, 1e-10)


def r126_a_narrow_posterior_has_uniform_ranks() -> Control:
    """Common error: samples of a posterior that is too narrow pass by ranks; correct: of p(z | x).

    Examines: evaluate.ranks.

    Source: Talts et al. 2018, Validating Bayesian Inference Algorithms with Simulation-Based
    Calibration, sec. 4.2."""
    exact = math.sqrt(0.5)
    return Control(unevenness(0.8 * exact), unevenness(exact), DIGITS)
