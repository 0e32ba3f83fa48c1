r"""A Gaussian copula with sinh-arcsinh margins.

Margins: with $u = \mathrm{asinh}(r/\sigma)$, $z = \sinh(\delta u)$ is standard normal (the
symmetric sinh-arcsinh distribution of Jones & Pewsey 2009), with heavier tails than a normal if
$\delta < 1$.

Dependence: z is normal with correlation $\Sigma = \mathrm{diag}(a) + B B^\top$, rows of B (D, R)
and $a_i = 1 - |B_i|^2$: R common factors correlate the D numbers without changing their margins,
which is a Gaussian copula. With $A = I + B^\top \mathrm{diag}(a)^{-1} B = L L^\top$,

$z^\top \Sigma^{-1} z = \sum_i z_i^2/a_i - |L^{-1} B^\top (z/a)|^2$,
$\log\det\Sigma = \sum_i \log a_i + \log\det A$ (Woodbury), so a log-density costs O(D R).
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

MIN_DELTA = 0.4
"""The smallest delta."""
MIN_UNIQUE_VARIANCE = 0.02
"""Smallest initial share of variance that the common factors do not explain."""
INITIAL_SHAPES = (-3.0, -1.5, -0.75, 0.0, 0.75, 1.5, 3.0)
"""Logits of delta tried at initialisation."""
SPARE = 8
"""Dimensions of a random projection beyond the factors that it is to find."""
CENTRAL_PROBABILITY = 0.8
"""Probability of the central interval that initialises the scales."""


class SinhArcsinhMargins(nn.Module):
    """Marginal distributions of D numbers r; entries of one `owner` (D,) share a shape."""

    owner: Tensor

    def __init__(self, owner: Tensor) -> None:
        super().__init__()
        self.register_buffer("owner", owner, persistent=False)
        self.log_scale = nn.Parameter(torch.zeros(len(owner)))
        self.shape = nn.Parameter(torch.full((int(owner.max()) + 1,), 2.0))

    @property
    def delta(self) -> Tensor:
        return (MIN_DELTA + (1 - MIN_DELTA) * self.shape.sigmoid())[self.owner]

    @torch.no_grad()
    def fit(self, r: Tensor) -> None:
        """Initialise with the most likely of a few shapes, and with scales whose central interval
        has the right coverage of the values (N, D)."""
        edge = torch.special.ndtri(torch.as_tensor((1 + CENTRAL_PROBABILITY) / 2).to(r)).asinh()
        size = torch.stack([column.abs().quantile(CENTRAL_PROBABILITY) for column in r.unbind(1)])
        best = torch.full_like(self.shape, -torch.inf)
        shapes = self.shape.clone()
        for shape in INITIAL_SHAPES:
            self.shape.fill_(shape)
            self.log_scale.copy_((size / (edge / self.delta).sinh()).clamp_min(1e-4).log())
            z, slope = self(r)
            score = torch.zeros_like(best).index_add_(
                0, self.owner, (slope - 0.5 * z.square()).sum(0)
            )
            shapes = torch.where(score > best, self.shape, shapes)
            best = torch.maximum(best, score)
        self.shape.copy_(shapes)
        self.log_scale.copy_((size / (edge / self.delta).sinh()).clamp_min(1e-4).log())

    def forward(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """z, and log dz / dr of each, (B, D) both."""
        u = (r * (-self.log_scale).exp()).asinh()
        inner = self.delta * u
        slope = self.delta.log() - self.log_scale + log_cosh(inner) - log_cosh(u)
        return inner.sinh(), slope

    def inverse(self, z: Tensor) -> Tensor:
        return self.log_scale.exp() * (z.asinh() / self.delta).sinh()


def log_cosh(u: Tensor) -> Tensor:
    """log cosh u without overflow."""
    return u.abs() + torch.nn.functional.softplus(-2 * u.abs()) - math.log(2)


class GaussianCopula(nn.Module):
    """The Gaussian copula of D numbers with `rank` common factors; 0 makes them independent."""

    def __init__(self, dims: int, rank: int) -> None:
        super().__init__()
        self.dims, self.rank = dims, min(rank, dims)
        raw = 0.01 * torch.randn(dims, self.rank)
        self.raw = nn.Parameter(raw) if self.rank else None

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """a (D,) and B (D, R)."""
        assert self.raw is not None, "the copula has common factors"
        own = 1 / (1 + self.raw.square().sum(1))
        return own, self.raw * own.sqrt()[:, None]

    @torch.no_grad()
    def fit(self, z: Tensor) -> None:
        """Initialise with the leading factors of values (N, D)."""
        count = min(self.rank, len(z) - 1)
        if self.raw is None or count < 1:
            return
        z = z / z.square().mean(0).sqrt().clamp_min(1e-6)
        # a random projection finds factors only roughly unless it has some dimensions to spare
        _, size, axes = torch.pca_lowrank(z, min(count + SPARE, *z.shape), center=False)
        causes = (axes * size / len(z) ** 0.5)[:, :count]  # (D, count)
        own = (1 - causes.square().sum(1)).clamp_min(MIN_UNIQUE_VARIANCE)
        self.raw[:, :count] = causes / own.sqrt()[:, None]

    def log_density(self, z: Tensor) -> Tensor:
        """log N(z; 0, Sigma) - sum_i log N(z_i; 0, 1), (B,)."""
        if self.raw is None:
            return torch.zeros_like(z[:, 0])
        own, causes = self.parts
        scaled = z / own
        root = torch.linalg.cholesky(
            causes.mT @ (causes / own[:, None]) + torch.eye(self.rank).to(z)
        )
        along = torch.linalg.solve_triangular(root, (scaled @ causes).mT, upper=False)
        distance = (z * (scaled - z)).sum(1) - along.square().sum(0)
        return -0.5 * distance - 0.5 * own.log().sum() - root.diagonal().log().sum()

    def sample(self, n: int, like: Tensor, generator: Generator | None = None) -> Tensor:
        """z (n, D)"""
        z = like.new_empty(n, self.dims).normal_(generator=generator)
        if self.raw is None:
            return z
        own, causes = self.parts
        common = like.new_empty(n, self.rank).normal_(generator=generator)
        return z * own.sqrt() + common @ causes.mT
