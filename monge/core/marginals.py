r"""Marginal distributions of the entries of an event.

They are given by the cumulative distribution $F_i(t) = P(x_i \le t \mid given)$: intervals are its
quantiles, and an ensemble has the mean of its members' F.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch
from torch import Tensor

from .space import Space

MAX_BISECTIONS = 60


class Marginals(abc.ABC):
    """Marginal distributions of the D entries of B events."""

    space: Space

    @property
    @abc.abstractmethod
    def probabilities(self) -> Sequence[Tensor]:
        """P(x_i = k) of each entry, (B, K_i); K_i is 0 for unbounded values."""

    @abc.abstractmethod
    def cumulative(self, t: Tensor) -> Tensor:
        """P(x_i <= t_i), (B, D) for t (B, D)."""

    def quantile(self, level: float) -> Tensor:
        """The smallest t with P(x_i <= t) >= level, (B, D): by sums over the values of each
        entry, or by bisection if one has no bound."""
        known = self.probabilities
        if self.space.is_plain and all(p.shape[-1] for p in known):
            steps = [(p.cumsum(-1) < level).sum(-1).clamp_max(p.shape[-1] - 1) for p in known]
            return torch.stack(steps, 1).to(known[0])
        low, high = self.bracket(level)
        for _ in range(MAX_BISECTIONS):
            middle = (low + high) / 2
            enough = self.cumulative(middle) >= level
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        real = torch.tensor([part.kind == "real" for part in self.space.parts])
        found = torch.where(real.to(high.device), high, (high + 1e-4).floor())
        return found if self.space.is_plain else self.within_support(found, low, level)

    def within_support(self, found: Tensor, below: Tensor, level: float) -> Tensor:
        """Quantiles that bisection found to lie in (below, found], (B, D): on the atom there if
        that has enough probability, and between the bounds."""
        parts = self.space.parts
        for k in range(max(len(part.atoms) for part in parts)):
            atoms = [part.atoms[k] if k < len(part.atoms) else torch.nan for part in parts]
            atom = self.expand(torch.tensor(atoms, dtype=torch.float64))
            here = (below < atom) & (atom <= found)
            t = torch.where(here, atom, found)
            found = torch.where(here & (self.cumulative(t) >= level), t, found)
        lower = [-torch.inf if part.lower is None else part.lower for part in parts]
        upper = [torch.inf if part.upper is None else part.upper for part in parts]
        return found.clamp(self.expand(torch.tensor(lower)), self.expand(torch.tensor(upper)))

    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        """Values below and above the quantile, starting from the training range."""
        ends = self.space.spread("low").flatten(), self.space.spread("high").flatten()
        step = (ends[1] - ends[0]).clamp_min(1e-3)
        low, high = self.expand(ends[0] - step), self.expand(ends[1] + step)
        for _ in range(MAX_BISECTIONS):
            below, above = self.cumulative(low) >= level, self.cumulative(high) < level
            if not bool((below | above).any()):
                break
            width = high - low
            low, high = low - width * below, high + width * above
        return low, high

    def expand(self, values: Tensor) -> Tensor:
        """The same values (D,) for every row, (B, D)."""
        like = self.probabilities[0]
        return values.to(like).expand(len(like), -1)


class MixedMarginals(Marginals):
    """The mean of several marginal distributions of the same entries."""

    def __init__(self, members: Sequence[Marginals]) -> None:
        self.space, self.members = members[0].space, members

    @property
    def probabilities(self) -> Sequence[Tensor]:
        every = zip(*(member.probabilities for member in self.members), strict=True)
        return [torch.stack(entry).mean(0) for entry in every]

    def cumulative(self, t: Tensor) -> Tensor:
        return torch.stack([member.cumulative(t) for member in self.members]).mean(0)
