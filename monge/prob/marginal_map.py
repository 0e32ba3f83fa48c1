r"""Numbers made nearly normal, one column at a time: y = g(x), increasing, with log dy/dx.

g is linear between `KNOTS` knots laid through the quantiles of the training values, which it maps
to those of a standard normal, and standardises beyond them. Its slopes are kept within a factor
of `MAX_STRETCH` of that of standardisation, so that repeated values are not blown up. Numbers
between bounds pass through their unbounded coordinate first. Empty cells and atoms have no y.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..core.space import Space
from .mixed_number import BoundedCoordinate

KNOTS = 33
MAX_STRETCH = 20.0


class MarginalMap(nn.Module):
    """g of d numbers; as made it standardises, and `fit` lays it through training values."""

    places: Tensor  # (d,): where each number stands among those grouped by their bounds
    knots: Tensor  # (d, K + 2): in the unbounded coordinate, rising
    scores: Tensor  # (d, K + 2): y there, rising

    def __init__(self, parts: Sequence[Space]) -> None:
        super().__init__()
        bounds = [(part.lower is None, part.upper is None) for part in parts]
        groups = [[i for i, own in enumerate(bounds) if own == each] for each in {*bounds}]
        groups.sort()
        self.coordinates = nn.ModuleList(BoundedCoordinate([parts[i] for i in g]) for g in groups)
        places = torch.tensor([i for group in groups for i in group]).argsort()
        self.register_buffer("places", places, persistent=False)
        self.owners = {i: (n, k) for n, group in enumerate(groups) for k, i in enumerate(group)}
        self.groups = groups
        self.atoms = [part.atoms for part in parts]
        scores = torch.special.ndtri((torch.arange(KNOTS) + 0.5) / KNOTS)
        mean = torch.tensor([part.mean[0] for part in parts])[:, None]
        scale = torch.tensor([part.scale[0] for part in parts])[:, None]
        t, slope = self.unbound(mean.T)
        widths = (scale.T.log() + slope).exp().T
        scores = torch.cat([scores[:1] - 1, scores, scores[-1:] + 1])
        self.register_buffer("knots", t.T + widths * scores)
        self.register_buffer("scores", scores.repeat(len(parts), 1))

    def unbound(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """t(x) and log dt/dx, (B, d)."""
        if len(self.groups) == 1:
            t, slope = self.coordinates[0](x)
            return t, slope
        pairs = [
            one(x[:, group]) for one, group in zip(self.coordinates, self.groups, strict=True)
        ]
        t, slope = (torch.cat(each, 1)[:, self.places] for each in zip(*pairs, strict=True))
        return t, slope

    @torch.no_grad()
    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Lay the map through the numbers x (B, d) that are `seen`; atoms are left out."""
        for i, (group, k) in self.owners.items():
            here = seen[:, i] & ~x[:, i].isnan()
            for atom in self.atoms[i]:
                here &= x[:, i] != atom
            if int(here.sum()) < 2:
                continue
            t = self.coordinates[group](x[here, i], k)[0].double().sort().values
            levels = (torch.arange(KNOTS, device=t.device) + 0.5) / KNOTS
            place = levels * (len(t) - 1)
            low = place.floor().long()
            high = (low + 1).clamp(max=len(t) - 1)
            knots = t[low] + (place - low) * (t[high] - t[low])
            scores = torch.special.ndtri(levels.double())
            spread = float(t.std(correction=0)) or 1.0
            # Slopes within bounds, by moving knots apart and scores together.
            gaps = knots.diff().clamp_min(scores.diff() * spread / MAX_STRETCH)
            rise = scores.diff().clamp_min(gaps / (spread * MAX_STRETCH))
            start = knots[KNOTS // 2] - gaps[: KNOTS // 2].sum()
            first = -rise[: KNOTS // 2].sum()
            one_step = t.new_ones(1)  # the slope of standardisation beyond the ends
            steps = torch.cat([0 * one_step, spread * one_step, gaps, spread * one_step])
            rises = torch.cat([0 * one_step, one_step, rise, one_step])
            self.knots[i] = (start - spread + steps.cumsum(0)).to(self.knots)
            self.scores[i] = (first - 1 + rises.cumsum(0)).to(self.scores)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and log dy/dx, (B, d)."""
        t, slope = self.unbound(x)
        y, inner = piecewise_linear(t, self.knots, self.scores)
        return y, slope + inner

    def inverse(self, y: Tensor) -> Tensor:
        t, _ = piecewise_linear(y, self.scores, self.knots)
        coordinates = [cast(BoundedCoordinate, one) for one in self.coordinates]
        parts = [
            one.inverse(t[:, group]) for one, group in zip(coordinates, self.groups, strict=True)
        ]
        return torch.cat(parts, 1)[:, self.places]


def piecewise_linear(x: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """The broken line through (starts, ends), each (d, K), at x (B, d), and its log-slope."""
    segment = torch.searchsorted(starts, x.T.contiguous()).sub(1)
    segment = segment.clamp(0, starts.shape[1] - 2)  # (d, B)
    low, high = starts.gather(1, segment), starts.gather(1, segment + 1)
    start, end = ends.gather(1, segment), ends.gather(1, segment + 1)
    slope = (end - start) / (high - low)
    return (start + slope * (x.T - low)).T, slope.log().T
