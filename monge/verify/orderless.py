r"""Identities of laws that are learnt for all orders at once.

Of the D! orders o and the places d, only the set $S = \{o_1, ..., o_{d-1}\}$ has a part in the
objective, so that its mean over all of them needs the 2^D - 1 subsets alone.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from ..core.abilities import HasSubsets
from ..core.batch import Batch
from ..core.model import Model
from .identity import Residual, Skip

ROUNDING = 1e-12
"""What float64 leaves of a mean over all orders, for each nat."""
MOST = 6
"""Entries whose orders are listed."""


def x54_orderless_objective_is_unbiased(model: HasSubsets, batch: Batch) -> Residual:
    """E_od D/(D-d+1) sum_{i>=d} log p(x_oi | x_o<d) = E_o log p_o(x)."""
    assert isinstance(model, Model)
    dims = model.space.dims
    if dims > MOST:
        raise Skip(f"needs at most {MOST} entries, not {dims}")
    sets = [subset for size in range(dims) for subset in itertools.combinations(range(dims), size)]
    seen = {subset: shown(subset, batch, dims) for subset in sets}
    objective = {subset: model.orderless(batch, seen[subset]) for subset in sets}  # (B,) each
    log_p = {subset: model.predictions(batch, seen[subset]) for subset in sets}  # (B, D) each
    drawn, along = [], []
    for order in itertools.permutations(range(dims)):
        before = [tuple(sorted(order[:place])) for place in range(dims)]
        drawn.append(torch.stack([objective[subset] for subset in before]).mean(0))
        steps = zip(before, order, strict=True)
        along.append(torch.stack([log_p[subset][:, entry] for subset, entry in steps]).sum(0))
    mean = torch.stack(along).mean(0)  # (B,)
    gap = (torch.stack(drawn).mean(0) - mean).abs().amax()
    return Residual(float(gap), ROUNDING * max(float(mean.abs().amax()), 1.0))


def shown(subset: tuple[int, ...], batch: Batch, dims: int) -> Tensor:
    """The subset as a mask, the same for every row, (B, D)."""
    seen = torch.zeros(len(batch), dims, dtype=torch.bool)
    seen[:, list(subset)] = True
    return seen
