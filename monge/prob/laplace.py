r"""Laplace approximation of the posterior of a linear layer, and its evidence.

With outputs $o_i = \Theta^\top f_i$ of a layer $\Theta \sim N(\Theta_0, I / \alpha)$ and the
curvature $\Lambda_i$ of $-\log p(y_i | o_i)$ in $o_i$, the generalised Gauss-Newton matrix is
$H = \sum_i f_i f_i^\top \otimes \Lambda_i$, the posterior is $N(\Theta, (H + \alpha I)^{-1})$ at
the maximum $\Theta$, and the evidence is

$\log p(y) \approx \log p(y | \Theta) - \frac\alpha2 |\Theta - \Theta_0|^2
+ \frac Q2 \log\alpha - \frac12 \log\det(H + \alpha I)$

(MacKay 1992; of last layers, Daxberger et al. 2021). All of it is exact where y is Gaussian with
the mean o. The precision of highest evidence obeys $\alpha |\Theta - \Theta_0|^2 = \gamma$,
$\gamma = \sum_q \lambda_q / (\lambda_q + \alpha)$ over the eigenvalues of H, the number of weights
that the data determine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

LEAST_PRECISION, GREATEST_PRECISION = 1e-6, 1e6
"""Ends between which a precision is chosen."""
ITERATIONS = 50
"""Steps towards the precision of highest evidence."""


def gauss_newton(features: Tensor, curvature: Tensor) -> Tensor:
    """H (Q, Q), Q = F O, of features (N, F) and curvatures (N, O, O) of the outputs; weights are
    ordered by feature, then by output."""
    width, outputs = features.shape[1], curvature.shape[-1]
    found = torch.einsum("na,nb,npq->apbq", features, features, curvature)
    return found.reshape(width * outputs, width * outputs)


def positive_part(curvature: Tensor) -> Tensor:
    """Symmetric matrices (N, O, O) with their negative eigenvalues set to 0. Outputs that no
    matrix couples, such as those of different columns, are blocks of their own."""
    coupled = (curvature != 0).any(0)
    count, block = connected_components(coupled.cpu().numpy(), directed=False)
    found = torch.zeros_like(curvature)
    for each in range(count):
        own = torch.from_numpy((block == each).nonzero()[0]).to(curvature.device)
        values, vectors = torch.linalg.eigh(curvature[:, own[:, None], own])
        found[:, own[:, None], own] = vectors * values.clamp(min=0)[:, None] @ vectors.mT
    return found


@dataclass(frozen=True)
class LaplacePosterior:
    """N(mean, (H + alpha I)^-1) by the eigenvalues and eigenvectors of H."""

    values: Tensor  # (Q,)
    vectors: Tensor  # (Q, Q)
    precision: Tensor  # (), alpha
    square: Tensor  # (), |mean - prior mean|^2

    @classmethod
    def fit(
        cls, hessian: Tensor, square: Tensor, precision: Tensor, adapt: bool = True
    ) -> LaplacePosterior:
        """With the precision of highest evidence, from a first one."""
        values, vectors = torch.linalg.eigh(hessian)
        values = values.clamp(min=0)
        for _ in range(ITERATIONS if adapt else 0):
            determined = (values / (values + precision)).sum()
            precision = (determined / square.clamp(min=1e-12)).clamp(
                LEAST_PRECISION, GREATEST_PRECISION
            )
        return cls(values, vectors, precision, square)

    @property
    def determined(self) -> Tensor:
        """How many weights the data determine, ()."""
        return (self.values / (self.values + self.precision)).sum()

    @property
    def root(self) -> Tensor:
        """A square root of the covariance, (Q, Q)."""
        return self.vectors / (self.values + self.precision).sqrt()

    def log_evidence(self, log_likelihood: Tensor) -> Tensor:
        """log p(y), from log p(y | mean)."""
        size = len(self.values)
        return (
            log_likelihood
            - self.precision / 2 * self.square
            + size / 2 * self.precision.log()
            - (self.values + self.precision).log().sum() / 2
        )
