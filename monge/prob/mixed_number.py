r"""Numbers that may be empty, sit on single values, or lie between bounds.

A cell is in one of several states: it holds a number with a density, one of the atoms
$a_1, ..., a_A$, or nothing. With probabilities $\pi$ of the states,

$\log p(x) = \log \pi_{s(x)} + 1[s(x) = \text{number}]\, \log p(x \mid \text{number})$:

the density with respect to Lebesgue measure plus a point mass at each atom and at the empty cell,
so that it sums and integrates to one. Numbers between bounds are modelled by a distribution of an
unbounded coordinate t(x), with $\log |dt/dx|$ added:

lower bound a   $t = \mathrm{softplus}^{-1}((x - a)/\text{scale})$, nearly linear far from a;
upper bound b   the same of $(b - x)/\text{scale}$, with the sign changed;
both            $t = \mathrm{logit}((x - a)/(b - a))$.

Whole numbers stay as they are: their distribution knows of bounds itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.space import Space
from .distributions import (
    ALL_ENTRIES,
    Distribution,
    EntryIndex,
    GaussianMixture,
    MixtureDistribution,
    sample_categorical,
)

NEAREST = 1e-6
"""Smallest distance from a bound, in standard deviations or of the range between two bounds."""
NODES = 24
"""Nodes of the quadrature for the mean of a bounded number."""


class BoundedCoordinate(nn.Module):
    """t(x) of d numbers of which all have the same kind of bounds, and its inverse."""

    start: Tensor
    width: Tensor

    def __init__(self, parts: Sequence[Space]) -> None:
        super().__init__()
        real, first = parts[0].kind == "real", parts[0]
        self.lower, self.upper = real and first.lower is not None, real and first.upper is not None
        near = [part.lower if part.lower is not None else part.upper or 0.0 for part in parts]
        width = [
            part.upper - part.lower
            if part.upper is not None and part.lower is not None
            else part.scale[0]
            for part in parts
        ]
        self.register_buffer("start", torch.tensor(near), persistent=False)
        self.register_buffer("width", torch.tensor(width), persistent=False)

    def ends(self) -> tuple[Tensor, Tensor]:
        """The bounds of each number, infinite where there is none, (d,)."""
        infinite = torch.full_like(self.start, torch.inf)
        lower = self.start if self.lower else -infinite
        if not self.upper:
            return lower, infinite
        return lower, self.start + self.width if self.lower else self.start

    def forward(self, x: Tensor, at: EntryIndex = ALL_ENTRIES) -> tuple[Tensor, Tensor]:
        """t and log |dt/dx|, (*S, d)."""
        if not (self.lower or self.upper):
            return x, torch.zeros_like(x)
        v = (x - self.start[at]) / self.width[at]
        if self.lower and self.upper:
            v = v.clamp(NEAREST, 1 - NEAREST)
            slope = -v.log() - (-v).log1p()
            return torch.logit(v), slope - self.width[at].log()
        sign = 1.0 if self.lower else -1.0
        v = (sign * v).clamp_min(NEAREST)
        rest = (-torch.expm1(-v)).log()
        return sign * (v + rest), -rest - self.width[at].log()

    def inverse(self, t: Tensor, at: EntryIndex = ALL_ENTRIES) -> Tensor:
        if not (self.lower or self.upper):
            return t
        if self.lower and self.upper:
            return self.start[at] + self.width[at] * t.sigmoid()
        sign = 1.0 if self.lower else -1.0
        return self.start[at] + sign * self.width[at] * F.softplus(sign * t)


class MixedNumber(Distribution):
    """Distributions of d numbers of one kind with as many atoms each.

    Parameters: logits of the states (number, atoms, empty) if there are several, then those of
    the distribution of a number.
    """

    atoms: Tensor
    share: Tensor

    def __init__(
        self, parts: Sequence[Space], number: Distribution | None, components: int
    ) -> None:
        """number: how what is no atom is distributed; None for a mixture of Gaussians of t(x)."""
        super().__init__()
        self.coordinate = BoundedCoordinate(parts)
        self.optional = parts[0].optional
        self.number = number or self.mixture(parts, components)
        atoms = torch.tensor([part.atoms for part in parts]).reshape(len(parts), -1)
        self.register_buffer("atoms", atoms, persistent=False)  # (d, A)
        self.states = 1 + atoms.shape[1] + self.optional
        self.logits = self.states if self.states > 1 else 0
        self.count = self.logits + self.number.count
        self.register_buffer("share", torch.ones(len(parts), self.states), persistent=False)

    def mixture(self, parts: Sequence[Space], components: int) -> GaussianMixture:
        mean = torch.tensor([part.mean[0] for part in parts])
        scale = torch.tensor([part.scale[0] for part in parts])
        shift, slope = self.coordinate(mean)
        return GaussianMixture(components, shift, (scale.log() + slope).exp().clamp(1e-6, 1e6))

    def state_of(self, x: Tensor) -> Tensor:
        """0 for a number, then the atoms, then empty, (*S, d)."""
        state = torch.zeros_like(x, dtype=torch.long)
        for k in range(self.atoms.shape[1]):
            state = torch.where(x == self.atoms[:, k], k + 1, state)
        return torch.where(x.isnan(), self.states - 1, state) if self.optional else state

    def inner(self, x: Tensor, state: Tensor) -> Tensor:
        """Numbers, with a harmless one where the state is another."""
        middle = self.coordinate.inverse(self.middle())
        return torch.where(state == 0, x, middle.expand_as(x)) if self.logits else x

    def middle(self) -> Tensor:
        """A value of t inside the data, (d,)."""
        if isinstance(self.number, MixtureDistribution):
            return self.number.shift
        return torch.zeros_like(self.share[:, 0])

    def fit(self, x: Tensor, seen: Tensor) -> None:
        state = self.state_of(x)
        for k in range(self.states):
            self.share[:, k] = ((state == k) & seen).sum(0) + 0.5
        t, _ = self.coordinate(self.inner(x, state))
        self.number.fit(t, seen & (state == 0))

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        state = self.state_of(x)
        t, slope = self.coordinate(self.inner(x, state))
        number = self.number.log_prob(params[..., self.logits :], t) + slope
        if not self.logits:
            return number
        log_state = params[..., : self.logits].log_softmax(-1)
        chosen = log_state.gather(-1, state[..., None])[..., 0]
        return chosen + torch.where(state == 0, number, 0.0)

    def sample(self, params: Tensor, noise: Tensor, at: EntryIndex = ALL_ENTRIES) -> Tensor:
        if not self.logits:
            number = self.number.sample(params, noise, at)
            return self.coordinate.inverse(number, at)
        logits = params[..., : self.logits]
        uniform = noise[..., 0]
        state = sample_categorical(logits, uniform)
        # The uniform picked the first state if it is below its probability; what is left of it
        # is uniform again.
        first = logits.softmax(-1)[..., 0].clamp_min(torch.finfo(logits.dtype).tiny)
        again = (uniform / first).clamp(max=1 - 1e-6)
        number = self.number.sample(
            params[..., self.logits :], torch.stack([again, noise[..., 1]], -1), at
        )
        x = self.coordinate.inverse(number, at)
        atoms = self.atoms[at]
        for k in range(self.atoms.shape[1]):
            x = torch.where(state == k + 1, atoms[..., k], x)
        return torch.where(state == self.states - 1, torch.nan, x) if self.optional else x

    def mean(self, params: Tensor) -> Tensor:
        """E[x | not empty]."""
        number, present = self.number_mean(params[..., self.logits :]), self.present_share(params)
        return (present[..., 0] * number) + (present[..., 1:] * self.atoms).sum(-1)

    def number_mean(self, params: Tensor) -> Tensor:
        bounded = self.coordinate.lower or self.coordinate.upper
        if not bounded or not isinstance(self.number, MixtureDistribution):
            return self.number.mean(params)
        nodes, weights = (
            torch.tensor(part, dtype=params.dtype, device=params.device)
            for part in np.polynomial.hermite_e.hermegauss(NODES)
        )
        logits, means, scales = self.number.split(params)  # (*S, d, K)
        t = means[..., None] + scales[..., None] * nodes  # (*S, d, K, nodes)
        t = self.number.shift[:, None, None] + self.number.scale[:, None, None] * t
        x = self.coordinate.inverse(t.movedim(-3, -1)).movedim(-1, -3)
        return ((x @ weights) / math.sqrt(2 * math.pi) * logits.softmax(-1)).sum(-1)

    def present_share(self, params: Tensor) -> Tensor:
        """The probabilities of number and atoms of a cell that is not empty, (*S, d, 1 + A)."""
        if not self.logits:
            return torch.ones_like(params[..., :1])
        return params[..., : self.logits - self.optional].softmax(-1)

    def cumulative(self, params: Tensor, t: Tensor) -> Tensor:
        """P(x <= t | not empty)."""
        share = self.present_share(params)
        number = self.number.cumulative(params[..., self.logits :], self.coordinate(t)[0])
        start, end = self.coordinate.ends()
        number = torch.where(t <= start, 0.0, torch.where(t >= end, 1.0, number))
        below = (share[..., 1:] * (self.atoms <= t[..., None])).sum(-1)
        return share[..., 0] * number + below

    def mode(self, params: Tensor) -> Tensor:
        """The atom that holds more than half of the probability of a cell that is not empty;
        else the number whose t is the most probable."""
        x = self.coordinate.inverse(self.number.mode(params[..., self.logits :]))
        share = self.present_share(params)
        for k in range(self.atoms.shape[1]):
            x = torch.where(share[..., k + 1] > 0.5, self.atoms[:, k], x)
        return x

    def present(self, params: Tensor) -> Tensor:
        if not self.optional:
            return params
        masked = params.clone()
        masked[..., self.logits - 1] = -torch.inf
        return masked

    def log_present(self, params: Tensor) -> Tensor:
        if not self.optional:
            return params.new_zeros(params.shape[:-1])
        logits = params[..., : self.logits]
        return logits[..., :-1].logsumexp(-1) - logits.logsumexp(-1)

    def initial_params(self) -> Tensor:
        number = self.number.initial_params()
        return torch.cat([self.share.log().to(number), number], -1) if self.logits else number
