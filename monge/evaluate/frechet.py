r"""Two distances between samples in the features of a network.

Fréchet: the squared $W_2$ between normal distributions with the moments of both samples (Heusel et
al. 2017), $|\mu_1 - \mu_2|^2 + \mathrm{tr}(S_1 + S_2 - 2 (S_1 S_2)^{1/2})$. The
estimate is biased upwards for few rows, so compare it with the distance of as many real rows.

Kernel: the squared MMD under $k(x, y) = (x \cdot y / d + 1)^3$ by its unbiased statistic
(Bińkowski et al. 2018), zero in the mean for equal distributions whatever the number of rows.
"""

from __future__ import annotations

from torch import Tensor

from ..core.metric import Metric
from ..prob.divergence import off_diagonal
from ..solve.transport.exact import bures
from .two_sample import jackknife

UNIT = "own features"
PAIRED = 1000
"""Most rows of each side for the kernel distance, whose cost is quadratic."""


def feature_space_distances(x: Tensor, y: Tensor) -> dict[str, Metric]:
    """Both distances between features x (n, F) and y (m, F), with errors over groups of rows."""
    return {
        "frechet_distance": jackknife(frechet, x, y, UNIT),
        "kernel_distance": jackknife(kernel, x[:PAIRED], y[:PAIRED], UNIT),
    }


def frechet(x: Tensor, y: Tensor) -> Tensor:
    return bures(x.mean(0), x.T.cov(), y.mean(0), y.T.cov())


def kernel(x: Tensor, y: Tensor) -> Tensor:
    within_x, within_y, cross = (cubic(a, b) for a, b in ((x, x), (y, y), (x, y)))
    return off_diagonal(within_x) + off_diagonal(within_y) - 2 * cross.mean()


def cubic(x: Tensor, y: Tensor) -> Tensor:
    """k of all pairs, (n, m)."""
    near = x @ y.T / x.shape[1] + 1
    return near * near * near  # many times faster than a power
