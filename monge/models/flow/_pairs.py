"""Which noise goes with each row of a batch, where flow matching does not leave it to chance."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ...solve.cost import squared
from ...solve.sinkhorn import sinkhorn

EPSILON = 0.02
"""Entropy of the entropic coupling, in units of the mean cost."""


@torch.no_grad()
def optimal(x: Tensor, z: Tensor) -> Tensor:
    """Rows of z, (B,), of the least sum of squared distances, each once."""
    _, columns = linear_sum_assignment(squared(x, z).double().cpu().numpy())
    return torch.from_numpy(columns).to(x.device)


@torch.no_grad()
def entropic(x: Tensor, z: Tensor) -> Tensor:
    """Rows of z, (B,), drawn as a plan of least cost and some entropy says."""
    plan = sinkhorn(x, z, EPSILON, relative=True, tolerance=1e-2).matrix
    return torch.multinomial(plan, 1)[:, 0]


PARTNERS = {"optimal": optimal, "entropic": entropic}
