"""A model's distribution under one condition, as a density to sum and integrate.

Bits, labels and levels are enumerated; counts are enumerated over a window about their mean
outside of which there is no mass; real entries, two at most, are integrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.abilities import Given, HasLikelihood, HasPosterior
from ..core.batch import Batch, broadcast_conditions
from ..core.model import Model
from ..core.space import Space
from ..solve.quadrature import POINTS, integral, lattice
from .framework import SkipIdentity

STATES = 1 << 16
"""Largest number of states that are enumerated."""
REACH = 30
"""Standard deviations on either side of its mean over which a count is summed, at least."""
WIDTH = 1 << 22
"""Numbers of events that are scored at once."""
REALS = 2
"""Largest number of real entries that are integrated over."""
BESIDE = 256
"""Largest number of states of the other entries if some are integrated over."""
USELESS = 0.01
"""An integral that is more uncertain than this shows nothing."""
GRID = (61, 7.0)
"""Points of a coarse grid in each dimension of a code, and how far it reaches."""
FINITE = ("binary", "label", "levels")
Statistic = Callable[[Tensor, Tensor], Tensor]
"""What is averaged: x (N, D) and log p (N,) to (N, m)."""


@dataclass(frozen=True)
class Density:
    """p(x | given) for one value of the condition, with events laid out flat."""

    space: Space
    log_p: Callable[[Tensor], Tensor]  # (N, D) -> (N,)

    @property
    def is_finite(self) -> bool:
        return all(part.kind in FINITE for part in self.space.parts)

    def states(self) -> Tensor:
        """Every combination of the entries that are not real; real ones are 0, (K, D)."""
        axes = [values(part, window(self.space)) for part in self.space.parts]
        count = math.prod(map(len, axes))
        if count > STATES:
            raise SkipIdentity(f"needs at most {STATES} states, not {count:.3g}")
        states = torch.cartesian_prod(*axes).reshape(count, -1)
        if self.space.end is None:
            return states
        # one state for what ends at the same place: nothing is scored after the first end
        ended = (states == self.space.end).cummax(1).values
        return states[(~ended | (states == self.space.end)).all(1)]

    def mean(self, statistic: Statistic, wanted: float) -> tuple[Tensor, float]:
        """The sum or integral of p(x) times each of m statistics over all x, (m,), and how
        uncertain it is."""
        parts, states = self.space.parts, self.states()
        reals = [i for i, part in enumerate(parts) if part.kind == "real"]
        if not reals:
            return self.weigh(states, statistic).sum(0), 0.0
        if len(reals) > REALS or len(states) > BESIDE:
            raise SkipIdentity(
                f"needs at most {REALS} real entries and {BESIDE} states of the others, "
                f"not {len(reals)} and {len(states)}"
            )
        shift = torch.tensor([parts[i].mean[0] for i in reals], dtype=torch.float64)
        scale = torch.tensor([parts[i].scale[0] for i in reals], dtype=torch.float64)

        def slices(y: Tensor) -> Tensor:  # (N, reals) -> (N, m)
            x = states.repeat(len(y), 1)  # (N K, D)
            x[:, reals] = (shift + scale * y).repeat_interleave(len(states), 0)
            terms = self.weigh(x, statistic) * scale.prod()
            return terms.unflatten(0, (len(y), -1)).sum(1)

        found, error = integral(
            chunked(slices, WIDTH // (len(states) * len(parts))),
            len(reals),
            wanted,
            POINTS // len(states),
        )
        if USELESS < error < math.inf:
            raise SkipIdentity(f"its integral has an error of {error:.0e}")
        return found, error

    def weigh(self, x: Tensor, statistic: Statistic) -> Tensor:
        """p(x) times each statistic, (N, m); 0 if p is."""
        log_p = self.log_p(x)
        weight = log_p.exp()[:, None]
        return torch.where(weight == 0, 0.0, weight * statistic(x, log_p))


def chunked(f: Callable[[Tensor], Tensor], size: int) -> Callable[[Tensor], Tensor]:
    """f, a function of rows, on chunks of rows."""
    return lambda x: torch.cat([f(piece) for piece in x.split(size)])


def window(space: Space) -> int:
    """How many values of each count may be enumerated."""
    sizes = [2 if part.kind == "binary" else max(part.size, 1) for part in space.parts]
    counts = sum(part.kind == "counts" for part in space.parts)
    return int((STATES / math.prod(sizes)) ** (1 / counts) + 1e-9) if counts else 0


def values(part: Space, widest: int) -> Tensor:
    """The values of an entry, float64; of a real one, 0 alone."""
    if part.kind == "real":
        return torch.zeros(1, dtype=torch.float64)
    if part.kind == "counts":
        if widest < 2 * REACH * part.scale[0]:
            raise SkipIdentity(
                f"counts of scale {part.scale[0]:.3g} need more than {STATES} states"
            )
        return torch.arange(widest, dtype=torch.float64) + round(part.mean[0]) - widest // 2
    return torch.arange(2 if part.kind == "binary" else part.size, dtype=torch.float64)


def exact(model: HasLikelihood, batch: Batch) -> Density:
    """The distribution of a model with an exact likelihood, given the first condition."""
    kind = model.likelihood(batch).kind
    if kind != "exact":
        raise SkipIdentity(f"its likelihood is a{'n' if kind == 'estimate' else ''} {kind}")
    return density_of(model, batch, lambda rows: model.likelihood(rows).value)


def decoded(model: HasPosterior, batch: Batch, z: Tensor) -> Density:
    """p(x | z, given) for one code z (*latent)."""

    def log_p(rows: Batch) -> Tensor:
        codes = z.expand(1, len(rows), *z.shape)
        return (model.log_joint(rows, codes) - model.log_prior(rows, codes))[0]

    return density_of(model, batch, log_p)


def marginal(model: HasPosterior, batch: Batch) -> Density:
    """p(x | given) with the code, of two dimensions at most, summed out on a grid."""
    return density_of(model, batch, lambda rows: coarse_evidence(model, rows))


def coarse_evidence(model: HasPosterior, batch: Batch) -> Tensor:
    """log of the integral of p(x, z | given) over z on an even grid, (B,)."""
    check_codes(model)
    z, volume = lattice(model.latent.dims, *GRID)
    z = z.reshape(-1, *model.latent.shape)  # (S, *latent)
    count = max(WIDTH // (4 * len(z) * max(batch.x[0].numel(), 8)), 1)
    pieces = [batch[part] for part in torch.arange(len(batch)).split(count)]
    joint = [model.log_joint(piece, spread(z, len(piece))) for piece in pieces]
    return torch.cat([torch.logsumexp(part, 0) for part in joint]) + volume


def check_codes(model: HasPosterior) -> None:
    if model.latent.dims > REALS:
        raise SkipIdentity(
            f"needs a latent space of at most {REALS} dimensions, not {model.latent.dims}"
        )


def spread(z: Tensor, n: int) -> Tensor:
    """The same codes for each of n rows, (S, n, *latent)."""
    return z[:, None].expand(-1, n, *z.shape[1:])


def density_of(model: object, batch: Batch, log_p: Callable[[Batch], Tensor]) -> Density:
    assert isinstance(model, Model)
    space, given = model.space, batch[:1].given
    size = max(WIDTH // (64 * max(space.dims, 16)), 1)

    return Density(space, chunked(lambda x: log_p(rows(x, space, given)), size))


def rows(x: Tensor, space: Space, given: Given) -> Batch:
    """Flat events (N, D) as a batch under the one condition."""
    shaped = x.reshape(len(x), *space.shape)
    shaped = shaped.long() if space.kind == "label" else shaped
    return Batch(shaped, broadcast_conditions(given, space, len(x)))
