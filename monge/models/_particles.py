r"""Sequential importance resampling: rows with any pattern of observed entries, in a fixed order.

Each row is P particles that walk along the order together (Gordon, Salmond & Smith 1993). At a
hidden entry a particle samples $x_i \sim p(x_i \mid x_{<i}, \text{present})$ and is weighted by
$P(\text{present} \mid x_{<i})$; at an observed entry it is weighted by $p(x_i \mid x_{<i})$. If
the effective sample size $(\sum w)^2 / \sum w^2$ falls below P / 2, the particles are resampled in
proportion to their weights. The mean weight estimates the probability of the observed values, so
members of a mixture are chosen by it; one particle of the member is the completed row. It tends to
the distribution of the model as P grows. Several draws of a row are particles of the same walk,
which then has more of them.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from ..core.abilities import CanComplete, HasConditionals
from ..core.batch import Batch
from ..core.config import Config as BaseConfig
from ..core.space import Space
from ..nn.autoregressive.incremental import EntryStepper
from ..prob.distributions import Distribution, sample_categorical
from ._ordering import late_rows

ROWS_PER_PASS = 4096
"""Particles that walk at a time."""
PARTICLES_PER_DRAW = 4
"""Fewest particles for each of several draws of a row."""
RESAMPLE_BELOW = 0.5
"""Share of the particles: an effective sample size below it makes a row resample them."""


class CompletesByParticles(CanComplete, HasConditionals, abc.ABC):
    """Rows are completed exactly along the order if their observed entries come first and no
    hidden cell may be empty, and by particles otherwise. Rows are flat, (n, D)."""

    space: Space
    SamplingConfig: ClassVar[Any]
    uses_particles: bool = True
    """Whether rows are so short that particles can agree with the entries that come later."""
    weighs_observed: ClassVar[bool] = True
    """Whether an observed entry has a conditional of its own in the order of completion, rather
    than being known from the start."""
    effective: tuple[int, float, float] | None = None
    """Of the last completion by particles: their number, and the effective sample size of the
    median row and of the worst."""

    @abc.abstractmethod
    def known_rows(self, batch: Batch) -> Batch:
        """Flat rows (B, D) with a valid value at each entry that is not observed."""

    @abc.abstractmethod
    def entry_distributions(self) -> Sequence[Distribution]:
        """The distribution of each entry in the units of the data."""

    @abc.abstractmethod
    def entry_reader(self) -> Callable[[int, Tensor], Tensor]:
        """What a pass is fed of an entry, from its values (n,)."""

    @abc.abstractmethod
    def entry_noise(self, n: int, generator: Generator | None) -> Tensor:
        """Noise for `n` rows, (n, D, 2)."""

    @abc.abstractmethod
    def particle_steps(self, member: int, rows: Batch, cached: bool) -> EntryStepper:
        """A pass along the member's order over flat rows (n, D)."""

    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """x_hidden ~ p(x_hidden | x_observed, no hidden cell is empty)."""
        return self.complete_several(batch, 1, options, generator)[:, 0]

    def member_weights(self, batch: Batch) -> Tensor:
        """Log-weights of the members before any entry is weighed, (n, K)."""
        return batch.x.new_zeros(len(batch), len(self.orders))

    def needs_weights(self, seen: Tensor) -> Tensor:
        """The rows (B,) that no pass along the order samples exactly: an entry is observed after
        a hidden one, or a hidden cell might be empty, which it is not."""
        optional = torch.tensor([part.optional for part in self.space.columns or (self.space,)])
        found = (~seen & optional.to(seen.device)).any(1)
        return found | late_rows(self.orders, seen) if self.weighs_observed else found

    def fill_by_particles(
        self,
        batch: Batch,
        particles: int,
        cached: bool,
        generator: Generator | None,
        draws: int = 1,
    ) -> FilledRows:
        """Flat rows (n, D) whose unobserved entries are sampled by particles of all members,
        each several times."""
        members = range(len(self.orders))
        particles = max(particles, PARTICLES_PER_DRAW * draws if draws > 1 else 1)
        count = -(-particles // len(members))  # of each member
        distributions, read, parts = self.entry_distributions(), self.entry_reader(), []
        with torch.inference_mode():
            every = torch.arange(len(batch), device=batch.x.device)
            for index in every.split(max(ROWS_PER_PASS // count, 1)):
                rows = batch[index.repeat_interleave(count)]
                start, filled = self.member_weights(batch[index]), []
                for k in members:
                    noise = self.entry_noise(len(rows), generator)
                    walk = ParticleRows(
                        rows, count, distributions, read, self.weighs_observed, noise, generator
                    )
                    steps = self.particle_steps(k, rows, cached)
                    one = walk.walk(self.orders[k].argsort().tolist(), steps, draws)
                    filled.append(replace(one, log_mean=one.log_mean + start[:, k]))
                parts.append(choose_member(filled, generator))
        sizes = torch.cat([part.effective for part in parts])
        self.effective = count * len(members), float(sizes.median()), float(sizes.min())
        return FilledRows(
            torch.cat([part.x for part in parts]),
            torch.cat([part.log_mean for part in parts]),
            sizes,
        )

    def observed_log_prob(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """log p of the observed values of each row, and that no hidden cell is empty, (B,): exact
        where completion is, and else the log of the mean weight."""
        if not self.uses_particles:
            return super().observed_log_prob(batch, options, generator)
        rows = self.known_rows(batch)
        weighted = self.needs_weights(rows.observed_mask)
        chosen: Any = options or self.SamplingConfig()
        found = rows.x.new_zeros(len(rows), dtype=torch.float64)
        if not bool(weighted.all()):
            found[~weighted] = super().observed_log_prob(rows[~weighted]).double()
        if bool(weighted.any()):
            found[weighted] = self.fill_by_particles(
                rows[weighted], chosen.particles, chosen.cached, generator
            ).log_mean
        return found

    @property
    def completion(self) -> str:
        if self.effective is None:
            return "sampled entry by entry, which is exact"
        count, median, worst = self.effective
        return (
            f"sampled by sequential importance resampling of {count} particles per row, which "
            "tends to the model's distribution as sample.particles grows (effective sample size "
            f"{median:.3g} in the median row, {worst:.3g} in the worst)"
        )


@dataclass(frozen=True)
class FilledRows:
    """Rows sampled by the particles of one member."""

    x: Tensor  # (R, draws, D)
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

    def walk(self, entries: Sequence[int], steps: EntryStepper, draws: int) -> FilledRows:
        for place, entry in enumerate(entries):
            self.advance(entry, steps.parameters(place))
            steps.feed(place, self.read(entry, self.x[:, entry]))
            if place + 1 < len(entries):
                self.resample(steps)
        return self.choose(draws)

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

    def choose(self, draws: int) -> FilledRows:
        """Particles of each row in proportion to their weights."""
        rows, particles = self.log_weight.shape
        u = torch.rand(rows, draws, generator=self.generator, device=self.x.device).double()
        which = sample_categorical(self.log_weight[:, None].expand(-1, draws, -1), u)
        x = self.x.view(rows, particles, -1)[torch.arange(rows, device=u.device)[:, None], which]
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
    x = torch.stack([one.x for one in filled], 2)  # (R, draws, K, D)
    u = torch.rand(x.shape[:2], generator=generator, device=log_mean.device).double()
    which = sample_categorical(log_mean[:, None].expand(*x.shape[:3]), u)  # (R, draws)
    sizes = torch.stack([one.effective for one in filled], 1)
    share = log_mean.softmax(1)
    effective = 1 / (share.square() / sizes).sum(1)
    chosen = x.take_along_dim(which[..., None, None], 2)[:, :, 0]
    return FilledRows(chosen, log_mean.logsumexp(1) - math.log(len(filled)), effective)
