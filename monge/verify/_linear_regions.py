r"""Where a ReLU network is linear: counting the pieces, bounding them, building as many as can be.

D units cut a line into at most D + 1 pieces and $R^n$ into at most $\sum_{j \le n} \binom Dj$
(Zaslavsky 1975); K layers of D units cut a line into up to $(D + 1)^K$ (Montúfar et al. 2014),
which networks that fold attain.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from ..nn.mlp import MLP


def rectified(units: int, depth: int = 1, inputs: int = 1) -> MLP:
    return MLP.Config(width=units, depth=depth, activation="relu").build(inputs, 1).double()


def cells_at_most(units: int, inputs: int) -> int:
    """Pieces into which hyperplanes in general position, one a unit, cut the space."""
    return sum(math.comb(units, dimension) for dimension in range(inputs + 1))


def pieces(net: MLP, low: float, high: float) -> int:
    """Linear pieces of a network of one input between two ends, exactly: between two joints each
    unit is linear, so that where it crosses zero follows from its values at the two."""
    x = torch.tensor([low, high], dtype=torch.float64)
    for layer in net.linears[:-1]:
        z = before(net, x, layer)  # (joints, units)
        here, there = z[:-1], z[1:]
        share = here / (here - there)
        crossing = (here * there < 0).nonzero(as_tuple=True)
        at = x[:-1, None] + share * (x[1:] - x[:-1])[:, None]
        x = torch.cat([x, at[crossing]]).sort().values
    return len(x) - 1


def before(net: MLP, x: Tensor, layer: torch.nn.Module) -> Tensor:
    """What enters the units of a layer at points x (n,), (n, units)."""
    h = x[:, None]
    for each in net.linears:
        z = each(h)
        if each is layer:
            break
        h = z.relu()
    return z


def cells(weight: Tensor, bias: Tensor) -> int:
    """Pieces into which the units of one layer cut the plane, exactly: of lines in general
    position each piece has a corner, and around a corner lie four."""
    patterns = set()
    for pair in itertools.combinations(range(len(bias)), 2):
        lines = weight[list(pair)]
        corner = torch.linalg.solve(lines, -bias[list(pair)])
        for signs in itertools.product((-1.0, 1.0), repeat=2):
            toward = torch.linalg.solve(lines, torch.tensor(signs, dtype=weight.dtype))
            point = corner + 1e-7 * toward
            patterns.add(tuple((weight @ point + bias > 0).tolist()))
    return len(patterns)


def fold(units: int, depth: int) -> MLP:
    """A network of (units + 1)^depth pieces on [0, 1], for an odd number of units.

    Each layer folds [0, 1] onto itself `units + 1` times: its slopes are 1, -1, ..., 1/2, -1/2 in
    some scale. All units but the last face right; the last faces left, which gives the first
    piece its slope without a unit of its own.
    """
    slopes = torch.tensor(
        [(-1.0) ** k * (1 if k < units - 1 else 0.5) for k in range(units + 1)],
        dtype=torch.float64,
    )
    joints = (1 / slopes.abs()).cumsum(0)
    total = joints[-1]
    net, at = rectified(units, depth), joints[:-1] / total
    facing = torch.ones(units, dtype=torch.float64)
    facing[-1] = -1
    # f(x) = sum_k c_k relu(facing_k (x - at_k)) + c_0, f(0) = 0, |slope| length = 1 for each piece
    change = torch.cat([slopes[1:-1] - slopes[:-2], -slopes[:1]]) * total
    start = -(change * (facing * -at).relu()).sum()
    with torch.no_grad():
        for place, layer in enumerate(net.linears):
            first, last = place == 0, place == depth
            if last:
                layer.weight.copy_(change[None])
                layer.bias.fill_(start)
                continue
            layer.weight.copy_(facing[:, None] if first else facing[:, None] * change)
            layer.bias.copy_(-facing * at + (0.0 if first else 1.0) * facing * start)
    return net


def interpolant(knots: Tensor, values: Tensor) -> MLP:
    """The network that joins points of a graph by lines, one unit for each line."""
    slopes = values.diff() / knots.diff()  # (D,)
    net = rectified(len(slopes))
    (hidden, out) = net.linears
    with torch.no_grad():
        hidden.weight.fill_(1.0)
        hidden.bias.copy_(-knots[:-1])
        out.weight.copy_(torch.cat([slopes[:1], slopes.diff()])[None])
        out.bias.copy_(values[:1])
    return net
