r"""Clusters of similar rows: $p(x) = \sum_k p(k)\, p(x | k)$, and a network that is told k.

What a picture shows is decided at much noise, where a network learns slowly; told the cluster, it
need not decide it (Bao et al. 2022; Hu et al. 2023). The cluster k(x) of a row is that of
the nearest of the centres, which k-means finds once before training, so that

$\log p(x) \ge \log p(k(x)) + \log p(x | k(x))$

for the distribution that is sampled: a cluster by its share of the rows, then x. A row of which
cells are hidden has the clusters of a mixture of normals, $p(k | y_o) \propto p(k) \prod_d
N(y_d; c_{kd}, s^2)$ over the seen cells, an approximation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ...core.errors import DataError
from ...solve.k_means import k_means, nearest_centre


class Clusters(nn.Module):
    """`count` centres in standardised units, and the share of the rows of each."""

    centres: Tensor  # (K, D)
    shares: Tensor  # (K,)
    variance: Tensor  # (): of an entry within its cluster

    def __init__(self, count: int, dims: int) -> None:
        super().__init__()
        self.register_buffer("centres", torch.zeros(count, dims))
        self.register_buffer("shares", torch.full((count,), 1 / count))
        self.register_buffer("variance", torch.ones(()))

    @torch.no_grad()
    def fit(self, y: Tensor) -> None:
        """Centres by k-means of rows (B, D)."""
        count = len(self.shares)
        if len(y) < count:
            raise DataError(
                f"expected at least as many rows as clusters, found {len(y)} and "
                f"clusters={count}; use fewer clusters"
            )
        self.centres.copy_(k_means(y, count))

    @torch.no_grad()
    def move(self, rows: Iterable[Tensor]) -> None:
        """The centres moved to the means of the rows (B, D) that are nearest to them."""
        total, members = torch.zeros_like(self.centres), torch.zeros_like(self.shares)
        for y in rows:
            cluster = self.nearest(y)
            total.index_add_(0, cluster, y)
            members += torch.bincount(cluster, minlength=len(members))
        members = members[:, None]
        self.centres.copy_(torch.where(members > 0, total / members.clamp_min(1), self.centres))

    @torch.no_grad()
    def count(self, rows: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunks of rows (B, D) with their clusters (B,). When all have been read, the shares,
        with one row more in each cluster, and the variance are theirs."""
        total, square, entries = torch.ones_like(self.shares), 0.0, 0
        for y in rows:
            cluster = self.nearest(y)
            total += torch.bincount(cluster, minlength=len(total))
            square += float((y - self.centres[cluster]).square().sum())
            entries += y.numel()
            yield y, cluster
        self.shares.copy_(total / total.sum())
        self.variance.fill_(square / max(entries, 1))

    def nearest(self, y: Tensor) -> Tensor:
        """The cluster of rows (B, D), (B,)."""
        return nearest_centre(y, self.centres)

    def draw(self, uniform: Tensor) -> Tensor:
        """Clusters by their shares from uniforms (B,), (B,)."""
        return draw_each(self.shares.expand(len(uniform), -1), uniform)

    def draw_given(self, y: Tensor, seen: Tensor, deviation: Tensor, uniform: Tensor) -> Tensor:
        """Clusters given the `seen` entries of rows (B, D), which have noise of standard
        deviations (D,), from uniforms (B,), (B,)."""
        weight = seen / (self.variance + deviation.square())
        square = weight @ self.centres.square().mT - 2 * (weight * y) @ self.centres.mT  # + y^2
        return draw_each(torch.softmax(self.shares.log() - 0.5 * square, 1), uniform)

    def log_share(self, y: Tensor) -> Tensor:
        """log p(k) of the cluster of rows (B, D), (B,)."""
        return self.shares.log()[self.nearest(y)]


def draw_each(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The index (B,) at which the cumulated probabilities (B, K) reach uniforms (B,)."""
    below = probabilities.cumsum(1)[:, :-1] <= uniform[:, None]
    return below.sum(1)
