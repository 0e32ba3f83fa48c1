r"""Identities of the distribution that codes have over all rows, $q(z) = \frac1N \sum_n q(z|x_n)$.

Its total correlation is $KL(q(z) \| \prod_d q(z_d))$; the prior that maximises the ELBO is q(z)
itself, of which a VampPrior is the mean over learned inputs. A ladder multiplies the prior of a
level by a Gaussian of the data.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.space import Space
from ..models.latent._encoder_decoder import DenseEncoderDecoder
from ..models.latent._total_correlation import (
    discriminator_loss,
    log_ratios_in_batch,
    log_row_weights,
)
from ..models.latent.hvae import HVAE
from ..models.latent.vae import VAE, VampPrior
from ._helpers import most, normal
from .framework import Residual

ROWS, NODES, CELLS = 5, 40, 600
"""Rows, nodes of a quadrature along each unit of a code, cells of a grid along each."""


def posteriors() -> tuple[Tensor, Tensor]:
    """Means and log-scales (ROWS, 2) of posteriors whose mixture has dependent units."""
    first, other, spread = normal(3, ROWS)
    return torch.stack([first, first + 0.3 * other], 1), 0.1 * torch.stack([spread, other], 1)


def x131_total_correlation_of_a_whole_batch() -> Residual:
    """E_q log q(z) / prod_d q(z_d) over all rows is KL(q(z) || prod_d q(z_d)).

    The mean over codes is a Gauss-Hermite sum, the divergence an integral over a grid.

    Examines: models.latent._total_correlation.

    Source: Chen, Li, Grosse & Duvenaud 2018, Isolating Sources of Disentanglement in Variational
    Autoencoders, sec. 3 and appendix C."""
    mean, log_scale = posteriors()
    nodes, weights = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(NODES))
    noise = torch.cartesian_prod(nodes, nodes)[:, None]  # (S, 1, 2)
    shares = torch.cartesian_prod(weights, weights).prod(1) / (2 * math.pi)  # (S,)
    z = mean + log_scale.exp() * noise  # (S, ROWS, 2)
    found = (shares @ log_ratios_in_batch(z, mean, log_scale, ROWS)).mean()
    return Residual(abs(float(found) - grid_divergence(mean, log_scale.exp())), 1e-6)


def grid_divergence(mean: Tensor, scale: Tensor) -> float:
    """KL(q(z) || q(z_1) q(z_2)) of an even mixture of Gaussians by the trapezoidal rule."""
    low, high = (mean - 9 * scale).amin(), (mean + 9 * scale).amax()
    axis = torch.linspace(float(low), float(high), CELLS, dtype=mean.dtype)
    each = torch.distributions.Normal(mean, scale).log_prob(axis[:, None, None]).exp()
    one, two = each.unbind(-1)  # (CELLS, ROWS): densities of a unit
    joint = one @ two.T / len(mean)  # (CELLS, CELLS)
    product = one.mean(1)[:, None] * two.mean(1)
    inside = torch.where(joint > 0, joint * (joint / product).log(), 0.0)
    return float(inside.sum() * (axis[1] - axis[0]).square())


def x131_random_batches_estimate_the_density_of_codes() -> Residual:
    """Over all batches with row i, sum_j w_ij q(z|x_j) has the mean q(z).

    Examines: models.latent._total_correlation.

    Source: Chen, Li, Grosse & Duvenaud 2018, Isolating Sources of Disentanglement in Variational
    Autoencoders, appendix C.2."""
    density, errors = normal(ROWS).exp(), []  # q(z | x_j) at one z
    for size in range(2, ROWS + 1):
        weights = log_row_weights(size, ROWS, density).exp()  # (B, B), row 0 is that of the code
        batches = [(0, *others) for others in itertools.combinations(range(1, ROWS), size - 1)]
        each = torch.stack([weights[0] @ density[list(rows)] for rows in batches])
        errors.append(float((each.mean() - density.mean()).abs()))
    return Residual(most(*errors), 1e-12)


def x131_the_best_discriminator_is_the_log_ratio() -> Residual:
    """The loss of a discriminator is least at log q(z) / prod_d q(z_d).

    Examines: models.latent._total_correlation.

    Source: Kim & Mnih 2018, Disentangling by Factorising, eq. 3; Goodfellow et al. 2014,
    Generative Adversarial Nets, prop. 1."""
    counts = torch.tensor([[6, 2], [2, 2]])  # codes of two units, each 0 or 1
    total = int(counts.sum())
    products = counts.sum(1)[:, None] * counts.sum(0)  # of total^2 permuted codes
    ratio = (counts * total / products).double().log().flatten()
    with torch.enable_grad():
        logits = ratio.clone().requires_grad_()
        joint = logits.repeat_interleave(counts.flatten())
        (slope,) = torch.autograd.grad(
            discriminator_loss(joint, logits.repeat_interleave(products.flatten())), logits
        )
    return Residual(float(slope.abs().amax()), 1e-12)


def x132_vamp_prior_is_the_mean_of_posteriors() -> Residual:
    """With rows as pseudo-inputs p(z) = 1/K sum_k q(z|x_k), and samples agree.

    Examines: models.latent.vae.

    Source: Tomczak & Welling 2018, VAE with a VampPrior, eq. 9."""
    count, space = 4, Space(kind="real", shape=(3,), mean=(0.0,) * 3, scale=(1.0,) * 3)
    config = VAE.Config(
        latent=2,
        net=DenseEncoderDecoder.Config(width=8, depth=1),
        prior=VampPrior.Config(components=count),
    )
    model = VAE(config, space).double().eval()
    rows, z = Batch(normal(count, 3)), normal(6, 1, 2).expand(6, count, 2)
    assert isinstance(model.prior, VampPrior), "the prior of the config"
    model.prior.pseudo_inputs.copy_(model.features(rows))
    own = model.log_posterior(rows, z).logsumexp(1) - math.log(count)  # (6,)
    first = replace(rows, x=rows.x[:1])
    gap = float((model.log_prior(first, z[:, :1])[:, 0] - own).abs().amax())
    samples, codes = model.prior.sample(4000, None), model.encode(rows)
    error = (samples.mean(0) - codes.mean(0)).abs() / (samples.std(0) / 4000**0.5)
    return Residual(most(gap / 1e-10, float(error.amax()) / 5.0), 1.0)


def x149_ladder_posterior_is_the_prior_times_a_gaussian_of_data() -> Residual:
    """q(z_1|z_2,x) = p(z_1|z_2) N(z_1; mu(x), sigma(x)^2) / integral.

    The product is normalised by the trapezoidal rule.

    Examines: models.latent._hierarchy.

    Source: Sønderby et al. 2016, Ladder Variational Autoencoders, eq. 17-19."""
    space = Space(kind="real", shape=(3,), mean=(0.0,) * 3, scale=(1.0,) * 3)
    config = HVAE.smallest_config(space).override("inference=ladder")
    model = HVAE(config, space).double().eval()
    for parameter in model.parameters():
        parameter.copy_(0.5 * normal(*parameter.shape))
    batch = Batch(normal(ROWS, 3))
    axis, top = torch.linspace(-30, 30, 20 * CELLS + 1, dtype=torch.float64), normal(1, ROWS, 1)
    top = top.expand(len(axis), ROWS, 1)
    z = torch.cat([axis[:, None, None].expand_as(top), top], -1)  # (CELLS, ROWS, 2)
    path = model.path_of(batch, z)
    of_data = model.level_posterior(0, {1: top}, *model.encoder_outputs(batch))
    log_product = (path.p[0].log_prob(path.z[0]) + of_data.log_prob(path.z[0])).squeeze(-1)
    product = log_product.exp() / (log_product.exp().sum(0) * (axis[1] - axis[0]))
    found = path.q[0].log_prob(path.z[0]).squeeze(-1).exp()
    return Residual(float((found - product).abs().amax()), 1e-10)
