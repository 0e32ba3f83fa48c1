r"""Base of sequence models whose steps share one network and one head.

$\log p(x | c) = \sum_t \log p(x_t | x_{<t}, c)$ over the steps t that exist. The steps are the
single entries of an event: the channels of each step of a series (T,) or (T, C), the colours of
each pixel of an image in raster order, or the columns of a table, so the likelihood is an exact
product for every event. Step t reads the embedding of x_{t-1} (a learned vector at the first
step), its place if rows have one length, and the conditions; the network's output, mapped by the
column if steps are columns, plus a learned offset of the place are the parameters of its
distribution. Padding beyond the length of a row is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, cast

import torch
from torch import Generator, Tensor, nn

from ..core.abilities import CanSample, CanStream, Given, HasLikelihood, Likelihood
from ..core.batch import Batch, as_batch, broadcast_conditions
from ..core.config import Config as BaseConfig
from ..core.config import Range
from ..core.model import Model, is_exporting
from ..core.space import Space
from ..nn.autoregressive.incremental import EntryStepper
from ..nn.inputs.sequence import ColumnEmbedding, EntryEmbedding, SequenceContext
from ..nn.stepwise import ConditionedStepwise, WindowedStepwise
from ..prob.decoding import SymbolSampling
from ..prob.distributions import Distribution
from ..prob.heads import LevelsDistribution
from ._ordering import (
    StepLayout,
    StepRows,
    check_codes,
    check_no_missing,
    check_prefix,
    placeholder_values,
)
from ._particles import CompletesByParticles
from ._sequence_sampling import SequenceSteps, fill, row_groups, settings, unobserved_rows
from ._step_heads import ColumnHeads, SharedHead, StepHead, along

STEPS_PER_PASS = 1 << 14
"""Steps per network pass, so that activations stay in the processor's cache."""


class SequenceModel(Model, HasLikelihood, CanSample, CompletesByParticles, CanStream):
    """A product of conditionals along a sequence, all computed by one network.

    The loss is in nats per step, so that every step has the same weight.
    """

    events = {"real", "binary", "levels", "tokens"}
    loss_per_step = True
    supports_variable_length = True
    supports_flags = True
    givens = {"real", "binary", "levels", "label", "counts", "columns"}

    class Config(Model.Config):
        components: Annotated[int, Range(1)] = 5
        """Mixture components of the distribution of each real or finely quantised step."""
        levels: LevelsDistribution = "auto"
        """Distribution of levels: categorical, mixture of logistics (logistic), or chosen by their
        number (auto)."""

    class SamplingConfig(SymbolSampling):
        steps: Annotated[int, Range(0)] = 0
        """Steps to sample if rows vary in length; 0 takes the median of the training rows, or
        the longest if an end symbol exists."""
        prompt: tuple[int, ...] = ()
        """Tokens that every row starts with."""
        cached: bool = True
        """Cache the network's state; false recomputes the whole past for each step."""
        particles: Annotated[int, Range(1)] = 128
        """Completion where observed entries do not come first: particles per row; more are more
        exact and slower."""

    config: Config
    net: ConditionedStepwise[Any]
    window: int = 0
    """Steps of a row that a training step scores if the network's reach is finite; 0: all."""
    entries: EntryEmbedding | ColumnEmbedding
    blank: Tensor
    typical: Tensor

    def __init__(self, config: Config, space: Space, width: int) -> None:
        """width: of the vectors that the network reads. Subclasses build `net` from `width`,
        `step_head.outputs` and `context.width`."""
        super().__init__(config, space)
        self.name, self.width = type(self).__name__.lower(), width
        self.layout = StepLayout(space)
        cycle = self.layout.statistics()  # (cycle,)
        self.context: Any = self.build_context(space)
        self.step_head: StepHead
        if self.layout.is_table:
            self.entries = ColumnEmbedding(space, width)
            self.step_head = ColumnHeads(space, config.components, config.levels, width)
        else:
            self.entries = EntryEmbedding(cycle, width)
            flags = [place % self.layout.channels in space.flags for place in range(cycle.dims)]
            self.step_head = SharedHead(cycle, config.components, config.levels, flags)
        self.register_buffer("blank", placeholder_values(cycle), persistent=False)  # (cycle,)
        self.register_buffer("typical", torch.tensor((space.shape or (1,))[0]))
        self.first = nn.Parameter(0.1 * torch.randn(width))
        self.offset = nn.Parameter(self.step_head.initial_offset())
        self.place = nn.Parameter(0.1 * torch.randn(self.cycle, width)) if self.cycle > 1 else None

    def build_context(self, space: Space) -> nn.Module:
        """The features of the conditions, (B, 1 or T, width)."""
        return SequenceContext(space, self.layout.channels)

    @property
    def uses_particles(self) -> bool:  # type: ignore[override]
        return self.layout.is_vector

    @property
    def cycle(self) -> int:
        return self.layout.cycle

    def initialise_from_data(self, batch: Batch) -> None:
        """Initialise the distribution of each place to the marginal of its training values."""
        rows, exist = (
            self.flat(batch.x),
            self.layout.exist(batch) & self.layout.steps(batch.observed_mask),
        )
        with torch.no_grad():
            self.offset.copy_(self.step_head.fit(rows, exist))
        if batch.length is not None:
            self.typical.copy_(batch.length.median())

    @property
    def orders(self) -> Sequence[Tensor]:
        return [self.layout.places().to(self.blank.device)]

    def random_block(self, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """First step, end and number of blocks (B,) of one random block of each row with `count`
        steps. Rows longer than `window` have several equal blocks, others one; the blocks before
        it are read, so that the mean over blocks is the row's loss."""
        blocks = torch.ones_like(count)
        if self.window and isinstance(self.net, WindowedStepwise):
            blocks = (count / self.window).ceil().clamp_min(1).long()
        block = (torch.rand(len(count), device=count.device) * blocks).long()
        return block * count // blocks, (block + 1) * count // blocks, blocks

    def block_log_prob(self, rows: StepRows, first: Tensor, last: Tensor) -> Tensor:
        """log p of the steps from `first` to `last` of each row, (B,); rows of similar length are
        passed together, those that start at their first step apart from the others."""
        order, parts = [], []
        for late in (False, True):
            group = ((first > 0) == late).nonzero()[:, 0]
            for piece, most in self.pieces((last - first)[group], STEPS_PER_PASS):
                own = group[piece]
                if late:
                    log_p = self.windowed(rows.take(own), first[own], last[own], most)
                else:
                    here = torch.arange(most, device=last.device) < last[own][:, None]
                    log_p = self.scored(rows.take(own, most)) * here
                order.append(own)
                parts.append(log_p.sum(1))
        return torch.cat(parts)[torch.cat(order).argsort()]

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        return Likelihood(self.conditionals(as_batch(batch)).sum(1), "exact")

    def conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        """Zero at steps that do not exist."""
        rows = self.to_steps(batch)
        if torch.is_grad_enabled() or is_exporting():  # lengths are not known in a trace
            found = self.scored(rows)
        else:
            found = torch.zeros_like(rows.x)
            for own, most in self.pieces(rows.exist.sum(1), STEPS_PER_PASS):
                found[own, :most] = self.streamed(rows.take(own, most))
        return self.layout.event(found * rows.exist).reshape(len(batch), -1)

    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        return self.step_head.padded(self.parameters_of(self.to_steps(batch)))[:, self.orders[0]]

    def pieces(self, count: Tensor, room: int) -> Iterator[tuple[Tensor, int]]:
        """Rows sorted by length in chunks of at most `room` steps, with the longest length."""
        order, start = count.argsort(descending=True), 0
        while start < len(order):
            most = max(int(count[order[start]]), 1)
            size = max(1, room // min(most, self.stretch))
            yield order[start : start + size], most
            start += size

    @property
    def stretch(self) -> int:
        """Steps per network pass when no gradient is needed."""
        return max(8 * self.net.reach, 1024) if isinstance(self.net, WindowedStepwise) else 1 << 62

    def streamed(self, rows: StepRows) -> Tensor:
        """log p of every step (B, D), in stretches if the network's reach is finite."""
        steps = rows.x.shape[1]
        if steps <= self.stretch:
            return self.scored(rows)
        parts = [self.scored(rows.cut(self.stretch))]
        for start in range(self.stretch, steps, self.stretch):
            size = min(self.stretch, steps - start)
            first = torch.full((len(rows.x),), start, device=rows.x.device)
            parts.append(self.windowed(rows, first, first + size, size))
        return torch.cat(parts, 1)

    def scored(self, rows: StepRows) -> Tensor:
        """log p of every step, (B, D)."""
        places = torch.arange(rows.x.shape[1], device=rows.x.device)
        return self.step_head.log_prob(self.parameters_of(rows), rows.x, places)

    def parameters_of(self, rows: StepRows) -> Tensor:
        """The parameters of the distribution of every step, as the head of the steps lays them
        out."""
        places = torch.arange(rows.x.shape[1], device=rows.x.device)
        return self.step_head.parameters_of(self.outputs(rows), self.offset, places)

    def outputs(self, rows: StepRows) -> Tensor:
        """The outputs of the network at every step, (B, D, outputs)."""
        x = rows.x
        places = torch.arange(x.shape[1], device=x.device) % self.cycle
        vectors = self.entries(x[:, :-1], places[:-1])
        inputs = torch.cat([self.first.expand(len(x), 1, -1), vectors], 1)  # (B, D, width)
        if self.place is not None:
            inputs = inputs + along(self.place, x.shape[1])
        return self.net(inputs, rows.context)

    def windowed(self, rows: StepRows, first: Tensor, last: Tensor, size: int) -> Tensor:
        """log p of the steps from `first` (B,) up to `last` (B,), `size` at most; zero beyond."""
        x, net = rows.x, cast(WindowedStepwise[Any], self.net)
        end = x.shape[1] - 1
        steps = first[:, None] + torch.arange(1 - net.reach, size, device=x.device)  # (B, R-1+S)
        known = (steps - 1).clamp(0, end)  # the step that each input embeds
        inputs = self.entries(x.gather(1, known), known % self.cycle)
        inputs = torch.where((steps > 0)[..., None], inputs, self.first)
        if self.place is not None:
            inputs = inputs + self.place[steps % self.cycle]
        inputs = torch.where((steps >= 0)[..., None], inputs, net.before)
        scored = steps[:, net.reach - 1 :]  # (B, S)
        places = scored.clamp(max=end)
        out = net.window(inputs, rows.at(steps.clamp(0, end)))
        params = self.step_head.parameters_of(out, self.offset, places)
        log_p = self.step_head.log_prob(params, x.gather(1, places), places)
        return log_p * (scored < last[:, None])

    def to_steps(self, batch: Batch) -> StepRows:
        """The rows as steps; padding beyond the length of a row is set to zero and not read."""
        check_no_missing(self.name, batch)
        x, exist = self.flat(batch.x), self.layout.exist(batch)
        given = broadcast_conditions(batch.given, self.space, len(batch))
        x = torch.where(exist, x, 0.0)
        check_codes(self.name, self.space, x)
        return StepRows(x, exist, self.context(given, *x.shape))

    def flat(self, x: Tensor) -> Tensor:  # (B, D)
        return self.layout.steps(x).to(self.blank.dtype)

    @torch.no_grad()
    def complete_several(
        self,
        batch: Batch,
        draws: int,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Exact if the observed entries come first; padding beyond the length of a row is left
        unchanged."""
        chosen, rows = settings(self, options), self.known_rows(batch)
        self.effective = None
        if self.uses_particles:
            weighted = self.needs_weights(rows.observed_mask)  # (B,)
        else:  # particles that have to agree with many later steps would all descend from one
            order = self.layout.event(torch.arange(rows.x.shape[1])[None]).flatten()
            check_prefix(self.name, [order], batch.observed_mask.reshape(len(rows), -1))
            weighted = torch.zeros(len(rows), dtype=torch.bool, device=rows.x.device)
        x = rows.x[:, None].repeat(1, draws, 1)
        if not bool(weighted.all()):
            exact = (~weighted).nonzero()[:, 0].repeat_interleave(draws)
            x[~weighted] = self.flat(fill(self, rows[exact], options, generator)).unflatten(
                0, (-1, draws)
            )
        if bool(weighted.any()):
            x[weighted] = self.fill_by_particles(
                rows[weighted], chosen.particles, chosen.cached, generator, draws
            ).x
        full = self.to_event(x.flatten(0, 1)).unflatten(0, (-1, draws))
        within = self.layout.event(self.layout.within(batch))
        return torch.where(within[:, None], full, batch.x[:, None].to(full))

    def known_rows(self, batch: Batch) -> Batch:
        x, within = self.flat(batch.x), self.layout.within(batch)
        seen = self.layout.steps(batch.observed_mask) & within
        known = torch.where(seen, x, self.blank.repeat(x.shape[1] // self.cycle))
        return Batch(known, broadcast_conditions(batch.given, self.space, len(x)), seen)

    def entry_distributions(self) -> Sequence[Distribution]:
        return [self.step_head.entry_distribution(place) for place in range(self.cycle)]

    def entry_reader(self) -> Callable[[int, Tensor], Tensor]:
        return lambda entry, value: value  # the pass embeds it

    def entry_noise(self, n: int, generator: Generator | None) -> Tensor:
        return self.step_head.noise(n, self.space.dims, generator).transpose(0, 1)

    def particle_steps(self, member: int, rows: Batch, cached: bool) -> EntryStepper:
        return SequenceSteps(self, rows, cached)

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """Yields after each entry; entries not sampled yet hold their training mean or minimum."""
        batch = unobserved_rows(self, n, given, options)
        started = list(row_groups(self, batch, options, generator))
        for step in range(batch.x.shape[1]):
            for rows in started:
                rows.advance(step)
                batch.x[rows.index, step] = rows.x[step]
            if all(rows.finished for rows in started):
                batch.x[:, step + 1 :] = batch.x[:, step, None]
                yield self.to_event(batch.x)
                return
            yield self.to_event(batch.x.clone())

    def to_event(self, x: Tensor) -> Tensor:  # (n, D) -> (n, *event)
        x = self.layout.event(x)
        return x.long() if self.space.kind in ("tokens", "label") else x
