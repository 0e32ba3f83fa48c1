r"""The total correlation of codes: how far their units are from independent over all rows.

With $q(z) = \frac1N \sum_n q(z | x_n)$ over the N training rows,
$TC = KL(q(z) \| \prod_d q(z_d)) = E_{q(z)} \log \frac{q(z)}{\prod_d q(z_d)}$.

minibatch      q(z) of a code of row i is estimated from the rows of its batch: itself with weight
               1 / N, each of the B - 1 others with (N - 1) / (N (B - 1)). Over random batches the
               mean is q(z); these are the stratified weights of Chen et al. 2018, averaged over
               which of the others has the largest, and for B = N they are exact.
discriminator  a network tells codes from codes whose units are permuted among rows, which are
               samples of the product; its logit estimates the log ratio (Kim & Mnih 2018).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...prob.distributions import normal_log_prob


def log_row_weights(batch: int, rows: int, like: Tensor) -> Tensor:
    """Logs of the weights of the rows of a batch in the estimate of q(z) of a code of each of
    them, (B, B): entry (i, j) is that of row j for a code of row i."""
    rows = max(rows, batch)
    others = math.log((rows - 1) / (rows * (batch - 1))) if batch > 1 else 0.0
    weights = torch.full((batch, batch), others, dtype=like.dtype, device=like.device)
    return weights.fill_diagonal_(-math.log(rows))


def log_ratios_in_batch(z: Tensor, mean: Tensor, log_scale: Tensor, rows: int) -> Tensor:
    """log q(z) / prod_d q(z_d) of codes z (S, B, latent), (S, B), from the posteriors
    N(mean, scale^2) (B, latent) of the batch; there are `rows` training rows."""
    gaps = (z[:, :, None] - mean) * (-log_scale).exp()  # (S, B, B, latent)
    each = normal_log_prob(gaps) - log_scale
    weights = log_row_weights(len(mean), rows, z)
    joint = (each.sum(-1) + weights).logsumexp(-1)  # (S, B)
    product = (each + weights[..., None]).logsumexp(-2).sum(-1)
    return joint - product


def permute_units(z: Tensor) -> Tensor:
    """Codes (B, latent) whose units are permuted among the rows, each on its own."""
    order = torch.rand_like(z).argsort(0)
    return z.gather(0, order)


def discriminator_loss(joint: Tensor, product: Tensor) -> Tensor:
    """Cross entropy of logits of codes and of permuted codes, (B,) each to ()."""
    return 0.5 * (F.softplus(-joint).mean() + F.softplus(product).mean())
