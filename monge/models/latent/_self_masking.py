r"""Cells that are empty because of their own value (self-masking, not-MIWAE; Ipsen, Mattei and
Frellsen 2021): $P(\text{present} \mid x_i) = \sigma(a_i + b_i y_i)$, y the standardised value.

The value of an empty cell is latent. Given the code z it depends on nothing else, so

$P(\text{empty} \mid z) = \int p(x_i \mid z)\, \sigma(-a_i - b_i y_i)\, dx_i$

is an integral over one number, computed by Gauss-Hermite quadrature, which the bound of not-MIWAE
samples. Numbers between bounds are integrated over their unbounded coordinate; atoms are added.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ...core.errors import UsageError
from ...core.space import Space
from ...prob.distributions import (
    Distribution,
    GaussianMixture,
    normal_log_prob,
    sample_categorical,
)
from ...prob.heads import Head
from ...prob.mixed_number import MixedNumber

NODES = 20
"""Nodes of the quadrature over the value of an empty cell."""
GRID, REACH = 321, 8.0
"""Points, within so many standard deviations, of which a value of an empty cell is one."""
LEARNING_SPEED = 20.0
"""A step of the optimiser moves a and b this many times as far as a weight: where cells hide above
a threshold they grow without end."""


class SelfMasking(nn.Module):
    """Flags of the real columns that may be empty; `own` (m,) are their places.

    `head` is that of p(x | z); the values of these columns have parameters `places` of it.
    """

    own: Tensor
    places: Tensor
    mean: Tensor
    scale: Tensor
    nodes: Tensor
    weights: Tensor

    def __init__(self, space: Space, head: Head, components: int) -> None:
        super().__init__()
        own = [i for i, part in enumerate(space.columns) if is_self_masked(part)]
        if not own:
            others = [f"{part.name} ({part.kind})" for part in space.columns if part.optional]
            found = f"them in {' and '.join(others)} alone" if others else "none"
            raise UsageError(
                "missing_mechanism=self: expected empty cells in columns of real numbers, found "
                f"{found}; remove it, or choose a table with such columns"
            )
        parts = tuple(value_space(space).columns[i] for i in own)
        self.values = Head(
            Space(kind="columns", shape=(len(own),), columns=parts), components=components
        )
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        fixed = {
            "own": torch.tensor(own),
            "places": torch.cat([torch.arange(head.width)[head.slices[i]] for i in own]),
            "mean": torch.tensor([part.mean[0] for part in parts]),
            "scale": torch.tensor([part.scale[0] for part in parts]),
            "nodes": torch.tensor(nodes, dtype=torch.get_default_dtype()),
            "weights": torch.tensor(weights / weights.sum(), dtype=torch.get_default_dtype()),
        }
        for name, value in fixed.items():
            self.register_buffer(name, value, persistent=False)
        self.offset = nn.Parameter(torch.zeros(len(own)))  # a / LEARNING_SPEED
        self.slope = nn.Parameter(torch.zeros(len(own)))  # b / LEARNING_SPEED

    @torch.no_grad()
    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Start at the share of empty cells in rows x (B, D), whatever the values are."""
        x, seen = x[:, self.own], seen[:, self.own]
        present = (seen & ~x.isnan()).sum(0) + 0.5
        self.offset.copy_((present / (seen.sum(0) - present + 1)).log() / LEARNING_SPEED)

    def logit(self, x: Tensor) -> Tensor:
        """Logit of P(present | x), for x (*S, m)."""
        y = (x - self.mean) / self.scale
        return LEARNING_SPEED * (self.offset + self.slope * y)

    def is_empty(self, x: Tensor) -> Tensor:
        """Which cells of rows (*S, D) are empty by this mechanism."""
        mine = torch.zeros(x.shape[-1], dtype=torch.bool, device=x.device)
        mine[self.own] = True
        return x.isnan() & mine

    def log_flags(self, params: Tensor, x: Tensor, unknown: Tensor, present: bool) -> Tensor:
        """log P of the flags of rows x (B, D) given z, (*S, B), for parameters (*S, B, P) of
        p(x | z); an unknown cell (B, D) is present, and counts for nothing unless `present`."""
        x, unknown = x[:, self.own], unknown[:, self.own]
        empty = x.isnan() & ~unknown
        known = F.logsigmoid(self.logit(x.nan_to_num(0.0)))  # (B, m)
        value = known.masked_fill(unknown | empty, 0.0).expand(*params.shape[:-1], -1)
        for where, sign in ((empty, -1.0), (unknown & present, 1.0)):
            if bool(where.any()):
                points, log_weight = self.quadrature(params)
                flags = F.logsigmoid(sign * self.logit(points)) + log_weight
                value = torch.where(where, flags.logsumexp(0), value)
        return value.sum(-1)

    def expected(self, params: Tensor, sign: float) -> Tensor:
        """E[x_i | z, flag] of each column, (*S, m): present for sign 1, empty for -1."""
        points, log_weight = self.quadrature(params)
        return (points * (F.logsigmoid(sign * self.logit(points)) + log_weight).softmax(0)).sum(0)

    def quadrature(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Values x and log-weights, both (N, *S, m), whose weighted sum is E[. | z]."""
        shape = (NODES, *params.shape[:-1], len(self.own))
        ones = (1,) * (len(shape) - 1)
        nodes, log_weights = self.nodes.view(-1, *ones), self.weights.log().view(-1, *ones)
        return self.points(params, nodes.expand(shape), log_weights.expand(shape))

    def points(self, params: Tensor, nodes: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
        """Values and log-weights, (N, *S, m), from points of a standard normal (N, *S, m)."""
        groups = zip(
            self.values.distributions(),
            self.values.params_of(params[..., self.places]),
            self.values.split(nodes, -1),
            self.values.split(log_weights, -1),
            strict=True,
        )
        pairs = [group_points(*group) for group in groups]
        most = max(len(x) for x, _ in pairs)  # groups with fewer atoms have points of no weight
        x = [torch.cat([x, x[:1].expand(most - len(x), *x.shape[1:])]) for x, _ in pairs]
        weights = [
            torch.cat([w, torch.full_like(w[:1], -torch.inf).expand(most - len(w), *w.shape[1:])])
            for _, w in pairs
        ]
        return self.values.concat(x), self.values.concat(weights)

    def hide(self, x: Tensor, generator: Generator | None) -> Tensor:
        """Rows (n, D) with cells left empty by the mechanism."""
        present = self.logit(x[:, self.own]).sigmoid()
        u = torch.empty_like(present).uniform_(generator=generator)
        hidden = x.clone()
        hidden[:, self.own] = torch.where(u < present, x[:, self.own], torch.nan)
        return hidden

    def sample_values(self, params: Tensor, sign: float, generator: Generator | None) -> Tensor:
        """Values (n, m) of p(x_i | z, flag): present for sign 1, empty for -1.

        A grid of points, moved by a random part of its step for each value, takes the place of
        the normal, so that rare flags are sampled as well as others."""
        u = self.scale.new_empty(2, len(params), len(self.own)).uniform_(generator=generator)
        step = 2 * REACH / (GRID - 1)
        grid = torch.linspace(-REACH, REACH, GRID, dtype=u.dtype, device=u.device)
        nodes = grid[:, None, None] + step * (u[0] - 0.5)
        x, log_weight = self.points(params, nodes, normal_log_prob(nodes) + math.log(step))
        log_p = (F.logsigmoid(sign * self.logit(x)) + log_weight).movedim(0, -1)  # (n, m, N)
        return x.movedim(0, -1).gather(-1, sample_categorical(log_p, u[1])[..., None])[..., 0]


def group_points(
    distribution: Distribution, params: Tensor, nodes: Tensor, log_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """`SelfMasking.points` of one group, with parameters (*S, d, count)."""
    mixed = distribution if isinstance(distribution, MixedNumber) else None
    number = cast(GaussianMixture, mixed.number if mixed else distribution)
    logits, means, scales = number.split(params[..., mixed.logits :] if mixed else params)
    y = (means + scales * nodes[..., None]).movedim(-1, 0).flatten(0, 1)  # (K N, *S, d)
    log_weight = (logits.log_softmax(-1) + log_weights[..., None]).movedim(-1, 0).flatten(0, 1)
    x = number.shift + number.scale * y
    if mixed is None:
        return x, log_weight
    x = mixed.coordinate.inverse(x)
    if not mixed.logits:
        return x, log_weight
    states = params[..., : mixed.logits].log_softmax(-1).movedim(-1, 0)  # number, then atoms
    atoms = mixed.atoms.T.reshape(-1, *(1,) * (x.ndim - 2), x.shape[-1]).expand(-1, *x.shape[1:])
    return torch.cat([x, atoms]), torch.cat([states[:1] + log_weight, states[1:]])


def is_self_masked(part: Space) -> bool:
    return part.kind == "real" and part.optional


def value_space(space: Space) -> Space:
    """The space of values, of which those that hide themselves are never empty."""
    columns = tuple(
        replace(part, optional=False) if is_self_masked(part) else part for part in space.columns
    )
    return replace(space, columns=columns)
