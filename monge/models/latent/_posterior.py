r"""Approximate posteriors q(z | x): encoder outputs and noise to codes, with KL terms and checks.

factorised  $z = \mu + \sigma \epsilon$, $q = N(\mu, diag(\sigma^2))$ (Kingma & Welling 2014)
full        $z = \mu + L \epsilon$, $L = diag(\sigma)(I + S)$ lower triangular: $N(\mu, L L^T)$
iaf         $z_0 = \mu + \sigma \epsilon$, $z_t = \sigma_t z_{t-1} + (1 - \sigma_t) m_t$ with
            $(m_t, \sigma_t)$ of entry i a masked network of the entries of $z_{t-1}$ before i
            (inverse autoregressive flow; Kingma et al. 2016, eq. 10-14)

Each has a triangular Jacobian, so $\log q(z | x) = \sum_i [\log N(\epsilon_i; 0, 1) - \log d_i]$
with d its diagonal, and each term belongs to one unit of the code.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.config import MAX_LAYERS, Configured, Range
from ...core.config import Config as BaseConfig
from ...core.errors import DataError, UsageError
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import MaskedMLP
from ...prob.bijections.autoregressive import AutoregressiveBijection
from ...prob.bijections.base import Mapped
from ...prob.bijections.univariate import UnivariateMap
from ...prob.distributions import normal_log_prob, pathwise

MAX_LOG_SCALE = 10.0
"""|log sigma| of a distribution of codes stays below this, so that no row overflows."""


@dataclass(frozen=True)
class PosteriorSample:
    """Codes z ~ q(z | x) with the terms of their KL divergence from the prior."""

    z: Tensor  # (S, B, latent)
    log_ratios: Tensor  # (S, B, U): terms of log q(z | x) - log p(z), one per unit or one in all
    kl: Tensor | None  # (S or 1, B, U): their expectation, analytic or of less variance

    def kl_terms(self, monte_carlo: bool = False) -> Tensor:
        """Terms of the KL divergence, by default of the least variance available, (*, B, U)."""
        return self.log_ratios if monte_carlo or self.kl is None else self.kl


def bound_log_scale(raw: Tensor) -> Tensor:
    """A log-scale within -MAX_LOG_SCALE..MAX_LOG_SCALE."""
    return MAX_LOG_SCALE * torch.tanh(raw / MAX_LOG_SCALE)


def kl_to_standard_normal(mean: Tensor, log_scale: Tensor) -> Tensor:
    """KL(N(mean, scale^2) || N(0, 1)) of each unit."""
    return 0.5 * (mean.square() + (2 * log_scale).exp() - 1) - log_scale


def check_latent_size(latent: int, features: int, space: Space) -> None:
    """Raise if a code has more units than a row has entries or features."""
    limit = max(space.dims, features)
    if latent > limit:
        raise UsageError(
            f"expected at most {limit} latent units for rows of {limit} entries, found "
            f"latent={latent}; choose latent={limit} or less"
        )


def check_code_shape(z: Tensor, latent: Space) -> None:
    """Raise unless z holds a code in each row."""
    if z.shape[1:] != latent.shape:
        found = "x".join(map(str, z.shape[1:])) or "none"
        raise DataError(
            f"expected codes of {latent.dims} units, found {found}; "
            f"give rows of {latent.dims} numbers"
        )


GATE_BIAS = 2.0
"""Gates start at sigmoid(2) = 0.88, so that codes pass nearly unchanged."""


class Posterior(Configured, nn.Module, abc.ABC):
    """q(z | h) for codes of `latent` units, where h (B, width) are the encoder outputs."""

    class Config(BaseConfig):
        """Base of the configurations of posteriors."""

        tag = "posterior/"

    width: int
    has_analytic_kl: ClassVar[bool] = True
    """Whether KL(q || N(0, I)) is analytic."""

    @abc.abstractmethod
    def reparameterise(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised codes z and log q(z | x) of each unit, both (S, B, latent)."""

    @abc.abstractmethod
    def log_prob(self, h: Tensor, z: Tensor) -> Tensor:
        """log q(z | x) of given codes (S, B, latent), (S, B)."""

    def analytic_kl(self, h: Tensor) -> Tensor | None:
        """KL(q || N(0, I)) of each unit if it is analytic, (B, latent)."""
        return None

    def control_variate(self, h: Tensor, noise: Tensor) -> Tensor | None:
        """If the KL is not analytic: terms of mean 0 (S, B, latent) that reduce the variance of
        the sampled KL when added to it."""
        return None


class FactorisedPosterior(Posterior):
    """N(mu, diag(sigma^2))."""

    class Config(Posterior.Config):
        """A mean and a scale per unit."""

        tag = "posterior/factorised"
        initial_scale: Annotated[float, Range(1e-3, 1)] = 1.0
        """Scale of each unit at initialisation. A small one lets many units of a code be used from
        the first steps on."""

    def __init__(self, config: Config, latent: int) -> None:
        super().__init__()
        self.width = 2 * latent
        self.initial = MAX_LOG_SCALE * math.atanh(math.log(config.initial_scale) / MAX_LOG_SCALE)

    def reparameterise(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale = self.split(h)
        z = pathwise(mean, log_scale.exp(), noise)
        return z, normal_log_prob(noise) - log_scale

    def log_prob(self, h: Tensor, z: Tensor) -> Tensor:
        mean, log_scale = self.split(h)
        return (normal_log_prob((z - mean) * (-log_scale).exp()) - log_scale).sum(-1)

    def analytic_kl(self, h: Tensor) -> Tensor:
        return kl_to_standard_normal(*self.split(h))

    def split(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-scale, each (..., latent)."""
        mean, raw = h.chunk(2, -1)
        return mean, bound_log_scale(raw + self.initial)


class FullCovariancePosterior(Posterior):
    """N(mu, L L^T), L lower triangular with a positive diagonal.

    The KL divergence is a sum over units by the chain rule: given the units before it, unit i is
    normal with mean mu_i + sum_{j<i} L_ij eps_j and scale L_ii.
    """

    class Config(Posterior.Config):
        """A mean per unit and a full covariance."""

        tag = "posterior/full"

    below: Tensor

    def __init__(self, config: Config, latent: int) -> None:
        super().__init__()
        self.latent, self.width = latent, latent * (latent + 3) // 2
        places = torch.tril_indices(latent, latent, -1)
        self.register_buffer("below", places[0] * latent + places[1], persistent=False)

    def factor(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mu (B, latent), the logarithm of the diagonal of L, and L below it, (B, n, n).

        S is the encoder output divided by the number of units, so that q starts near a
        factorised Gaussian for any number of units.
        """
        (mean, log_scale), rest = split_gaussian(h[:, : 2 * self.latent]), h[:, 2 * self.latent :]
        strict = h.new_zeros(len(h), self.latent**2).index_copy(1, self.below, rest / self.latent)
        return mean, log_scale, log_scale.exp()[..., None] * strict.unflatten(1, (self.latent, -1))

    def reparameterise(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale, lower = self.factor(h)
        correlated = torch.einsum("bij,sbj->sbi", lower, noise)
        z = pathwise(mean, log_scale.exp(), noise) + correlated
        return z, normal_log_prob(noise) - log_scale

    def log_prob(self, h: Tensor, z: Tensor) -> Tensor:
        mean, log_scale, lower = self.factor(h)
        whole = lower + torch.diag_embed(log_scale.exp())
        noise = torch.linalg.solve_triangular(whole, (z - mean)[..., None], upper=False)[..., 0]
        return (normal_log_prob(noise) - log_scale).sum(-1)

    def analytic_kl(self, h: Tensor) -> Tensor:
        mean, log_scale, lower = self.factor(h)
        return kl_to_standard_normal(mean, log_scale) + 0.5 * lower.square().sum(-1)


class IAFPosterior(Posterior):
    """Inverse autoregressive flow: each step maps every unit given the units before it."""

    has_analytic_kl = False

    class Config(Posterior.Config):
        tag = "posterior/iaf"
        steps: Annotated[int, Range(1, MAX_LAYERS)] = 2
        """Autoregressive maps; every other one orders the units backwards."""
        context: Annotated[int, Range(0)] = 32
        """Encoder outputs that each map reads besides the code."""
        maps: MaskedMLP.Config = MaskedMLP.Config(width=128, depth=1)
        """Network of each map."""

    def __init__(self, config: Config, latent: int) -> None:
        super().__init__()
        self.latent, self.width = latent, 2 * latent + config.context
        units = torch.arange(latent)
        orders = [units.flip(0) if step % 2 else units for step in range(config.steps)]
        self.steps = nn.ModuleList(build_gated_map(config, order) for order in orders)

    def maps(self) -> list[AutoregressiveBijection]:
        return [cast(AutoregressiveBijection, step) for step in self.steps]

    def reparameterise(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale = split_gaussian(h[:, : 2 * self.latent])
        context = self.row_context(h, noise)
        z = pathwise(mean, log_scale.exp(), noise).flatten(0, 1)  # (S B, latent)
        log_q = (normal_log_prob(noise) - log_scale).flatten(0, 1)
        for step in self.maps():
            z, log_gates = step.reverse(z, context)
            log_q = log_q - log_gates
        return z.view_as(noise), log_q.view_as(noise)

    def control_variate(self, h: Tensor, noise: Tensor) -> Tensor:
        """What the Gaussian that the maps begin as costs in the mean, less what it costs here."""
        mean, log_scale = split_gaussian(h[:, : 2 * self.latent])
        log_open = -len(self.steps) * math.log1p(math.exp(-GATE_BIAS))
        mean, log_scale = math.exp(log_open) * mean, log_scale + log_open
        z = pathwise(mean, log_scale.exp(), noise)
        return kl_to_standard_normal(mean, log_scale) - (
            normal_log_prob(noise) - log_scale - normal_log_prob(z)
        )

    def log_prob(self, h: Tensor, z: Tensor) -> Tensor:
        mean, log_scale = split_gaussian(h[:, : 2 * self.latent])
        context, flat = self.row_context(h, z), z.flatten(0, 1)
        total = flat.new_zeros(len(flat))
        for step in reversed(self.maps()):
            flat, log_det = step(flat, context)  # undone unit by unit
            total = total + log_det
        noise = (flat.view_as(z) - mean) * (-log_scale).exp()
        return (normal_log_prob(noise) - log_scale).sum(-1) + total.view(z.shape[:-1])

    def row_context(self, h: Tensor, z: Tensor) -> Tensor:
        own = h[:, 2 * self.latent :]
        return own.expand(*z.shape[:-1], -1).flatten(0, 1)  # (S B, context)


class IAFGate(UnivariateMap):
    """z -> s z + (1 - s) m with s = sigmoid(2 + r) as the inverse map, parameters m and r."""

    count = 2

    def forward(self, params: Tensor, z: Tensor) -> Mapped:
        shift, raw = params.unbind(-1)
        log_gate = F.logsigmoid(raw + GATE_BIAS)
        return (z - torch.sigmoid(-raw - GATE_BIAS) * shift) * (-log_gate).exp(), -log_gate

    def inverse(self, params: Tensor, x: Tensor) -> Mapped:
        shift, raw = params.unbind(-1)
        log_gate = F.logsigmoid(raw + GATE_BIAS)
        return log_gate.exp() * x + torch.sigmoid(-raw - GATE_BIAS) * shift, log_gate


def build_gated_map(config: IAFPosterior.Config, order: Tensor) -> AutoregressiveBijection:
    """One map; it starts as a nearly open gate that ignores its inputs."""
    units = torch.arange(len(order))
    net: MaskedMLP = config.maps.build(
        units, units.repeat_interleave(IAFGate.count), order[None], config.context
    )
    for last in filter(None, (net.out, net.direct)):
        nn.init.normal_(last.weight, std=1e-3 / math.sqrt(last.in_features))
    nn.init.zeros_(net.out.bias)
    return AutoregressiveBijection(net, IAFGate(), order)


def split_gaussian(h: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-scale from network outputs, each half as wide."""
    mean, raw = h.chunk(2, -1)
    return mean, bound_log_scale(raw)
