r"""Sequential importance resampling: rows with any pattern of observed entries, in a fixed order.

Each row is P particles that walk along the order together (Gordon, Salmond & Smith 1993). At a
hidden entry a particle samples $x_i \sim p(x_i \mid x_{<i}, \text{present})$ and is weighted by
$P(\text{present} \mid x_{<i})$; at an observed entry it is weighted by $p(x_i \mid x_{<i})$. If
the effective sample size $(\sum w)^2 / \sum w^2$ falls below P / 2, the particles are resampled in
proportion to their weights. The mean weight estimates the probability of the observed values, so
members of a mixture are chosen by it; one particle of the member is the completed row. It tends to
the distribution of the model as P grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ...core.batch import Batch
from ...nn.autoregressive.incremental import EntryStepper
from ...prob.distributions import Distribution, sample_categorical

RESAMPLE_BELOW = 0.5
"""Share of the particles: an effective sample size below it makes a row resample them."""


@dataclass(frozen=True)
class FilledRows:
    """Rows sampled by the particles of one member."""

    x: Tensor  # (R, D)
    log_mean: Tensor  # (R,): log of the mean weight
    effective: Tensor  # (R,): effective sample size, the smallest on the way


class ParticleRows:
    """P particles of each of R rows (R, D), on their way along the order of one member."""

    def __init__(
        self,
        batch: Batch,
        particles: int,
        distributions: Sequence[Distribution],
        read: Callable[[int, Tensor], Tensor],
        weigh_observed: bool,
        noise: Tensor,
        generator: Generator | None,
    ) -> None:
        """batch: the R P particles, those of a row side by side; distributions: of each entry;
        read: the features of an entry; noise: (R P, D, 2)."""
        self.x, self.seen, self.generator = batch.x.clone(), batch.observed_mask, generator
        self.distributions, self.read, self.noise = distributions, read, noise
        self.weigh_observed = weigh_observed
        self.log_weight = self.x.new_zeros(len(batch) // particles, particles, dtype=torch.float64)
        self.log_mean = torch.zeros_like(self.log_weight[:, 0])
        self.effective = torch.full_like(self.log_mean, float(particles))

    def walk(self, entries: Sequence[int], steps: EntryStepper) -> FilledRows:
        for place, entry in enumerate(entries):
            self.advance(entry, steps.parameters(place))
            steps.feed(place, self.read(entry, self.x[:, entry]))
            if place + 1 < len(entries):
                self.resample(steps)
        return self.choose()

    def advance(self, entry: int, params: Tensor) -> None:
        """Sample or weigh an entry, given its parameters (R P, P_i)."""
        distribution = self.distributions[entry]
        params, here, known = params[:, None], self.x[:, entry], self.seen[:, entry]
        sampled = distribution.sample(distribution.present(params), self.noise[:, entry, None])
        gain = distribution.log_present(params)[:, 0]
        if self.weigh_observed:
            observed = distribution.log_prob(params, here[:, None])[:, 0]
            gain = torch.where(known, observed, gain)
        else:
            gain = torch.where(known, 0.0, gain)
        self.x[:, entry] = torch.where(known, here, sampled[:, 0])
        log_weight = self.log_weight + gain.double().view_as(self.log_weight)
        # A row that is impossible has no weights: its particles stay as likely as each other.
        impossible = log_weight.isneginf().all(1, keepdim=True)
        self.log_mean = self.log_mean.masked_fill(impossible[:, 0], -torch.inf)
        self.log_weight = torch.where(impossible, 0.0, log_weight)
        self.effective = self.effective.minimum(effective_size(self.log_weight))

    def resample(self, steps: EntryStepper) -> None:
        """Resample the particles of the rows whose effective sample size is low."""
        rows, particles = self.log_weight.shape
        low = effective_size(self.log_weight) < RESAMPLE_BELOW * particles
        if not bool(low.any()):
            return
        u = torch.rand(rows, generator=self.generator, device=self.x.device).double()
        stay = torch.arange(particles, device=self.x.device)
        ends = self.log_weight.softmax(1).cumsum(1)
        places = (stay + u[:, None]) / particles  # systematic: one uniform for each row
        parents = torch.searchsorted(ends, places).clamp(max=particles - 1)
        parents = torch.where(low[:, None], parents, stay)
        index = (parents + particles * torch.arange(rows, device=stay.device)[:, None]).flatten()
        self.x = self.x[index]
        steps.take(index)
        self.log_mean = self.log_mean + torch.where(low, log_mean_weight(self.log_weight), 0.0)
        self.log_weight = self.log_weight.masked_fill(low[:, None], 0.0)

    def choose(self) -> FilledRows:
        """One particle of each row in proportion to its weight."""
        rows, particles = self.log_weight.shape
        u = torch.rand(rows, generator=self.generator, device=self.x.device).double()
        which = sample_categorical(self.log_weight, u)
        x = self.x.view(rows, particles, -1)[torch.arange(rows, device=which.device), which]
        return FilledRows(x, self.log_mean + log_mean_weight(self.log_weight), self.effective)


def effective_size(log_weight: Tensor) -> Tensor:
    """(sum w)^2 / sum w^2 of each row, (R, P) to (R,)."""
    return (2 * log_weight.logsumexp(1) - (2 * log_weight).logsumexp(1)).exp()


def log_mean_weight(log_weight: Tensor) -> Tensor:
    return log_weight.logsumexp(1) - math.log(log_weight.shape[1])


def choose_member(filled: Sequence[FilledRows], generator: Generator | None) -> FilledRows:
    """The rows of one member each, in proportion to its estimate of the observed values."""
    if len(filled) == 1:
        return filled[0]
    log_mean = torch.stack([one.log_mean for one in filled], 1)  # (R, K)
    log_mean = log_mean.masked_fill(log_mean.isneginf().all(1, keepdim=True), 0.0)
    u = torch.rand(len(log_mean), generator=generator, device=log_mean.device).double()
    which = sample_categorical(log_mean, u)
    x = torch.stack([one.x for one in filled], 1)  # (R, K, D)
    sizes = torch.stack([one.effective for one in filled], 1)
    share = log_mean.softmax(1)
    effective = 1 / (share.square() / sizes).sum(1)
    chosen = x[torch.arange(len(x), device=x.device), which]
    return FilledRows(chosen, log_mean.logsumexp(1), effective)
