r"""What laws with Gaussian codes share: codes and their rates, checks.

Approximate posteriors q(z | x): what an encoder says of a row, and noise, made a code.

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

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...core.errors import DataError, UsageError
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import Masked
from ...prob.bijections.autoregressive import Autoregressive
from ...prob.bijections.base import Mapped
from ...prob.bijections.univariate import UnivariateMap
from ...prob.distributions import Gaussians, log_normals
from ...prob.heads import Head

WIDEST = 10.0
"""|log sigma| of a law of codes stays below this, so that no datum, however odd, overflows."""


@dataclass(frozen=True)
class Code:
    """Codes drawn from q(z | x), with what they cost."""

    z: Tensor  # (S, B, latent)
    ratios: Tensor  # (S, B, U): terms of log q(z | x) - log p(z), one for each unit or one in all
    rates: Tensor | None  # (S or 1, B, U): the same in the mean, with less noise or none

    def terms(self, drawn: bool = False) -> Tensor:
        """What each unit adds to the rate, with as little noise as can be, (*, B, U)."""
        return self.ratios if drawn or self.rates is None else self.rates


def bounded(raw: Tensor) -> Tensor:
    """A log-scale within -WIDEST..WIDEST."""
    return WIDEST * torch.tanh(raw / WIDEST)


def rates_of(mean: Tensor, log_scale: Tensor) -> Tensor:
    """KL(N(mean, scale^2) || N(0, 1)) of each unit."""
    return 0.5 * (mean.square() + (2 * log_scale).exp() - 1) - log_scale


def at_floor(head: Head, params: Tensor) -> int:
    """How many entries have Gaussians whose scales rest on their floor."""
    count = 0
    for law, own in zip(head.each(), head.own(params), strict=True):
        if isinstance(law, Gaussians):
            above = law.split(own)[2].log() - law.floor[:, None]  # (B, d, K)
            count += int((above.mean(0).amin(-1) < 0.1).sum())
    return count


def check_width(latent: int, features: int, space: Space) -> None:
    most = max(space.dims, features)
    if latent > most:
        raise UsageError(
            f"latent={latent} is wider than the data, whose rows have {most} entries; "
            f"choose latent={most} at most"
        )


def check_shape(z: Tensor, latent: Space) -> None:
    """Raise unless z holds a code in each row."""
    if z.shape[1:] != latent.shape:
        found = "x".join(map(str, z.shape[1:])) or "none"
        raise DataError(
            f"a code here has {latent.dims} units, not {found}; give rows of {latent.dims} numbers"
        )


OPEN = 2.0
"""Gates begin at sigmoid(2) = 0.88: the first code passes nearly unchanged."""


class Posterior(Configured, nn.Module, abc.ABC):
    """q(z | h) for codes of `latent` units, where h (B, width) is what the encoder says."""

    class Config(BaseConfig):
        """Of any posterior."""

        tag = "posterior/"

    width: int
    closed: ClassVar[bool] = True
    """Whether it has a rate in closed form."""

    @abc.abstractmethod
    def draw(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """z, and the term of log q(z | x) of each unit, both (S, B, latent) like the noise."""

    @abc.abstractmethod
    def log_prob(self, h: Tensor, z: Tensor) -> Tensor:
        """log q(z | x) of given codes (S, B, latent), (S, B)."""

    def rates(self, h: Tensor) -> Tensor | None:
        """KL(q || N(0, I)) in closed form as a sum over units, (B, latent), where it has one."""
        return None

    def steady(self, h: Tensor, noise: Tensor) -> Tensor | None:
        """Where it has none: numbers of mean 0 (S, B, latent) that make the drawn rate less noisy
        when they are added to it."""
        return None


class Factorised(Posterior):
    """N(mu, diag(sigma^2))."""

    class Config(Posterior.Config):
        """A mean and a scale for each unit."""

        tag = "posterior/factorised"

    def __init__(self, config: Config, latent: int) -> None:
        super().__init__()
        self.width = 2 * latent

    def draw(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale = gaussian(h)
        return mean + log_scale.exp() * noise, log_normals(noise) - log_scale

    def log_prob(self, h: Tensor, z: Tensor) -> Tensor:
        mean, log_scale = gaussian(h)
        return (log_normals((z - mean) * (-log_scale).exp()) - log_scale).sum(-1)

    def rates(self, h: Tensor) -> Tensor:
        return rates_of(*gaussian(h))


class Full(Posterior):
    """N(mu, L L^T), L lower triangular with a positive diagonal.

    The rate is a sum over units by the chain rule: given the units before it, unit i is normal
    with mean mu_i + sum_{j<i} L_ij eps_j and scale L_ii.
    """

    class Config(Posterior.Config):
        """A mean for each unit and a covariance of all."""

        tag = "posterior/full"

    below: Tensor

    def __init__(self, config: Config, latent: int) -> None:
        super().__init__()
        self.latent, self.width = latent, latent * (latent + 3) // 2
        places = torch.tril_indices(latent, latent, -1)
        self.register_buffer("below", places[0] * latent + places[1], persistent=False)

    def factor(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mu (B, latent), the logarithm of the diagonal of L, and L below it, (B, n, n).

        S is what the encoder says over the number of units, so that q begins near a factorised
        one however many there are.
        """
        (mean, log_scale), rest = gaussian(h[:, : 2 * self.latent]), h[:, 2 * self.latent :]
        lean = h.new_zeros(len(h), self.latent**2).index_copy(1, self.below, rest / self.latent)
        return mean, log_scale, log_scale.exp()[..., None] * lean.unflatten(1, (self.latent, -1))

    def draw(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale, lower = self.factor(h)
        leant = torch.einsum("bij,sbj->sbi", lower, noise)
        return mean + log_scale.exp() * noise + leant, log_normals(noise) - log_scale

    def log_prob(self, h: Tensor, z: Tensor) -> Tensor:
        mean, log_scale, lower = self.factor(h)
        whole = lower + torch.diag_embed(log_scale.exp())
        noise = torch.linalg.solve_triangular(whole, (z - mean)[..., None], upper=False)[..., 0]
        return (log_normals(noise) - log_scale).sum(-1)

    def rates(self, h: Tensor) -> Tensor:
        mean, log_scale, lower = self.factor(h)
        return rates_of(mean, log_scale) + 0.5 * lower.square().sum(-1)


class IAF(Posterior):
    """Inverse autoregressive flow: every step bends the code by what precedes each unit."""

    closed = False

    class Config(Posterior.Config):
        tag = "posterior/iaf"
        steps: Annotated[int, Range(1)] = 2
        """Masked maps; every other one reads the units backwards."""
        context: Annotated[int, Range(0)] = 32
        """Numbers about the row that each map reads besides the code."""
        maps: Masked.Config = Masked.Config(width=128, depth=1)
        """Network of each map."""

    def __init__(self, config: Config, latent: int) -> None:
        super().__init__()
        self.latent, self.width = latent, 2 * latent + config.context
        units = torch.arange(latent)
        orders = [units.flip(0) if step % 2 else units for step in range(config.steps)]
        self.steps = nn.ModuleList(gated(config, order) for order in orders)

    def each(self) -> list[Autoregressive]:
        return [cast(Autoregressive, step) for step in self.steps]

    def draw(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale = gaussian(h[:, : 2 * self.latent])
        context = self.context(h, noise)
        z = (mean + log_scale.exp() * noise).flatten(0, 1)  # (S B, latent)
        log_q = (log_normals(noise) - log_scale).flatten(0, 1)
        for step in self.each():
            z, log_gates = step.reverse(z, context)
            log_q = log_q - log_gates
        return z.view_as(noise), log_q.view_as(noise)

    def steady(self, h: Tensor, noise: Tensor) -> Tensor:
        """What the Gaussian that the maps begin as costs in the mean, less what it costs here."""
        mean, log_scale = gaussian(h[:, : 2 * self.latent])
        log_open = -len(self.steps) * math.log1p(math.exp(-OPEN))
        mean, log_scale = math.exp(log_open) * mean, log_scale + log_open
        z = mean + log_scale.exp() * noise
        return rates_of(mean, log_scale) - (log_normals(noise) - log_scale - log_normals(z))

    def log_prob(self, h: Tensor, z: Tensor) -> Tensor:
        mean, log_scale = gaussian(h[:, : 2 * self.latent])
        context, flat = self.context(h, z), z.flatten(0, 1)
        total = flat.new_zeros(len(flat))
        for step in reversed(self.each()):
            flat, log_det = step(flat, context)  # undone unit by unit
            total = total + log_det
        noise = (flat.view_as(z) - mean) * (-log_scale).exp()
        return (log_normals(noise) - log_scale).sum(-1) + total.view(z.shape[:-1])

    def context(self, h: Tensor, z: Tensor) -> Tensor:
        own = h[:, 2 * self.latent :]
        return own.expand(*z.shape[:-1], -1).flatten(0, 1)  # (S B, context)


class Gate(UnivariateMap):
    """Read from after to before, z -> s z + (1 - s) m with s = sigmoid(2 + r), parameters m, r."""

    count = 2

    def forward(self, params: Tensor, z: Tensor) -> Mapped:
        shift, raw = params.unbind(-1)
        log_gate = F.logsigmoid(raw + OPEN)
        return (z - torch.sigmoid(-raw - OPEN) * shift) * (-log_gate).exp(), -log_gate

    def inverse(self, params: Tensor, x: Tensor) -> Mapped:
        shift, raw = params.unbind(-1)
        log_gate = F.logsigmoid(raw + OPEN)
        return log_gate.exp() * x + torch.sigmoid(-raw - OPEN) * shift, log_gate


def gated(config: IAF.Config, order: Tensor) -> Autoregressive:
    """One map; it begins as a gate that is nearly open and reads nothing."""
    units = torch.arange(len(order))
    net: Masked = config.maps.build(
        units, units.repeat_interleave(Gate.count), order[None], config.context
    )
    for last in filter(None, (net.out, net.direct)):
        nn.init.normal_(last.weight, std=1e-3 / math.sqrt(last.in_features))
    nn.init.zeros_(net.out.bias)
    return Autoregressive(net, Gate(), order)


def gaussian(h: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-scale that a network says, each half as wide."""
    mean, raw = h.chunk(2, -1)
    return mean, bounded(raw)
