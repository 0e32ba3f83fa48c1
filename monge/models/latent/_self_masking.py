r"""Cells that are empty because of their own value (self-masking, not-MIWAE; Ipsen, Mattei and
Frellsen 2021): $P(\text{present} \mid x_i) = \sigma(a_i + b_i y_i)$, y the standardised value.

The value of an empty cell is latent. Given the code z it depends on nothing else, so

$P(\text{empty} \mid z) = \int p(x_i \mid z)\, \sigma(-a_i - b_i y_i)\, dx_i$

is an integral over one number, computed by Gauss-Hermite quadrature, which the bound of not-MIWAE
samples. Numbers between bounds are integrated over their unbounded coordinate; atoms are added.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ...core.errors import UsageError
from ...core.space import Space
from ...prob.distributions import Distribution, GaussianMixture
from ...prob.heads import Head
from ...prob.mixed_number import MixedNumber

NODES = 24
"""Nodes of the quadrature over the value of an empty cell."""
CANDIDATES = 64
"""Values of p(x_i | z) of which one is chosen by the probability of its flag."""


class SelfMasking(nn.Module):
    """Flags of the real columns that may be empty; `own` (m,) are their places."""

    own: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        own = [i for i, part in enumerate(space.columns) if is_self_masked(part)]
        if not own:
            raise UsageError(
                f"missing_mechanism=self needs columns of real numbers with empty cells, found "
                f"{space} without; remove it, or use a table with such columns"
            )
        mean = torch.tensor([space.columns[i].mean[0] for i in own])
        scale = torch.tensor([space.columns[i].scale[0] for i in own])
        for name, value in (("own", torch.tensor(own)), ("mean", mean), ("scale", scale)):
            self.register_buffer(name, value, persistent=False)
        self.offset = nn.Parameter(torch.zeros(len(own)))  # a
        self.slope = nn.Parameter(torch.zeros(len(own)))  # b

    @torch.no_grad()
    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Start at the share of empty cells in rows x (B, D), whatever the values are."""
        x, seen = x[:, self.own], seen[:, self.own]
        present = (seen & ~x.isnan()).sum(0) + 0.5
        self.offset.copy_((present / (seen.sum(0) - present + 1)).log())

    def logit(self, x: Tensor, at: int | slice = slice(None)) -> Tensor:
        """Logit of P(present | x), for x (*S, m)."""
        y = (x - self.mean[at]) / self.scale[at]
        return self.offset[at] + self.slope[at] * y

    def is_empty(self, x: Tensor) -> Tensor:
        """Which cells of rows (*S, D) are empty by this mechanism."""
        mine = torch.zeros(x.shape[-1], dtype=torch.bool, device=x.device)
        mine[self.own] = True
        return x.isnan() & mine

    def log_flags(
        self, head: Head, params: Tensor, x: Tensor, unknown: Tensor, present: bool
    ) -> Tensor:
        """log P of the flags of rows x (B, D) given z, (*S, B); an unknown cell (B, D) counts as
        present, or not at all unless `present`."""
        x, unknown = x[:, self.own], unknown[:, self.own]
        empty = x.isnan() & ~unknown
        known = F.logsigmoid(self.logit(x.nan_to_num(0.0)))  # (B, m)
        signs = [(empty, -1.0), *([(unknown, 1.0)] if present else [])]
        value = known.masked_fill(unknown | empty, 0.0).expand(*params.shape[:-1], -1)
        for where, sign in signs:
            if bool(where.any()):
                value = torch.where(where, self.expected(head, params, sign), value)
        return value.sum(-1)

    def expected(self, head: Head, params: Tensor, sign: float) -> Tensor:
        """log E[sigmoid(sign logit(x_i)) | z] of each of the columns, (*S, m)."""
        parts = []
        for j, i in enumerate(self.own.tolist()):
            x, log_weight = quadrature(head.entry_distribution(i), params[..., head.slices[i]])
            parts.append((F.logsigmoid(sign * self.logit(x, j)) + log_weight).logsumexp(-1))
        return torch.stack(parts, -1)

    def hide(self, x: Tensor, generator: Generator | None) -> Tensor:
        """Rows (n, D) with cells left empty by the mechanism."""
        present = self.logit(x[:, self.own]).sigmoid()
        u = torch.empty_like(present).uniform_(generator=generator)
        hidden = x.clone()
        hidden[:, self.own] = torch.where(u < present, x[:, self.own], torch.nan)
        return hidden

    def sample_values(
        self, head: Head, params: Tensor, sign: Tensor, generator: Generator | None
    ) -> Tensor:
        """Values (n, m) of p(x_i | z, flag): the flag is present where `sign` (n, m) is 1, and
        empty where it is -1."""
        many = params.repeat_interleave(CANDIDATES, 0)
        x = head.sample(many, head.noise(len(many), generator))[:, self.own]
        x = x.unflatten(0, (-1, CANDIDATES))  # (n, candidates, m)
        log_p = F.logsigmoid(sign[:, None] * self.logit(x))
        u = torch.empty_like(x).uniform_(generator=generator)
        best = (log_p - (-u.log()).log()).argmax(1, keepdim=True)  # Gumbel noise: a sample
        return x.gather(1, best)[:, 0]


def is_self_masked(part: Space) -> bool:
    return part.kind == "real" and part.optional


def value_space(space: Space) -> Space:
    """The space of values, of which those that hide themselves are never empty."""
    columns = tuple(
        replace(part, optional=False) if is_self_masked(part) else part for part in space.columns
    )
    return replace(space, columns=columns)


def quadrature(distribution: Distribution, params: Tensor) -> tuple[Tensor, Tensor]:
    """Values (*S, N) and log-weights (*S, N) whose weighted sum is the expectation under the
    distribution of a single number with parameters (*S, P)."""
    mixed = distribution if isinstance(distribution, MixedNumber) else None
    number = cast(GaussianMixture, mixed.number if mixed else distribution)
    inner = params[..., mixed.logits :] if mixed else params
    nodes, weights = (
        torch.tensor(part, dtype=params.dtype, device=params.device)
        for part in np.polynomial.hermite_e.hermegauss(NODES)
    )
    logits, means, scales = number.split(inner[..., None, :])  # (*S, 1, K)
    y = (means[..., None] + scales[..., None] * nodes).flatten(-3)  # (*S, K N)
    x = number.shift + number.scale * y
    log_weight = logits.log_softmax(-1)[..., None] + (weights / weights.sum()).log()
    log_weight = log_weight.flatten(-3)
    if mixed is None:
        return x, log_weight
    x = mixed.coordinate.inverse(x[..., None])[..., 0]
    if not mixed.logits:
        return x, log_weight
    states = params[..., : mixed.logits].log_softmax(-1)  # number, then atoms
    atoms = mixed.atoms[0].expand(*x.shape[:-1], -1)
    return torch.cat([x, atoms], -1), torch.cat(
        [states[..., :1] + log_weight, states[..., 1:]], -1
    )
