"""Stepwise sampling of sequence models: each step that is not observed is sampled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Generator, Tensor

from ..core.abilities import Given
from ..core.batch import Batch, broadcast_conditions
from ..core.config import Config
from ..core.errors import UsageError
from ..core.space import Space
from ..nn.autoregressive.incremental import EntryStepper
from ..nn.stepwise import WindowedStepwise
from ..prob.decoding import SymbolSampling, truncate_logits
from ..prob.distributions import CategoricalDistribution, Distribution, MixtureDistribution
from ..prob.mixed_number import MixedNumber
from ._ordering import StepRows

if TYPE_CHECKING:
    from ._sequence import SequenceModel


MAX_CACHE_ELEMENTS = 1 << 22
"""Cached numbers of the rows that are sampled together."""
MAX_ROWS = 1 << 13
"""Rows that are sampled together."""


class SequenceRowGroup:
    """m rows while they are sampled, with the network's state; steps are the first axis, so that a
    step writes contiguous memory."""

    def __init__(
        self,
        model: SequenceModel,
        options: SequenceModel.SamplingConfig,
        rows: Tensor,
        x: Tensor,
        seen: Tensor,
        noise: Tensor,
        context: Tensor | None,
    ) -> None:
        """x, seen: (m, D); noise: (D, m, 2); context: (m, 1 or D, K). Everything a step needs is
        stored here, since attribute access of a module takes longer than its use."""
        self.model, self.index, self.context = model, rows, context
        self.x, self.seen = x.T.contiguous(), seen.T.contiguous()  # (D, m)
        self.has_observed = self.seen.any(1).tolist()
        self.noise, self.steps = noise.unbind(), self.x.unbind()  # (m, 2) and (m,) each
        self.homes, self.options = model.step_head.homes, options
        self.end, self.ended = model.space.end, torch.zeros_like(self.seen[0])
        self.read, self.maps = model.entries.reader(), model.step_head.maps(model.offset)
        self.place, self.cycle = model.place, model.cycle
        self.in_units, self.net = model.step_head.in_units, model.net
        self.state: Any = (
            model.net.start(len(rows), len(self.x), context) if options.cached else None
        )

    def advance(self, step: int) -> None:
        self.sample_step(step, self.parameters(step))

    def sample_step(self, step: int, params: Tensor) -> None:
        """x_t ~ p(x_t | params), unless observed or after the end of its row."""
        here, place = self.steps[step], step % self.cycle
        distribution, at = self.homes[place]
        params = apply_temperature(distribution, params, self.options)
        value = self.in_units(place, distribution.sample(params, self.noise[step], at))
        if self.end is not None:  # rows that have ended repeat their end
            value = value.masked_fill(self.ended, self.end)
        if self.has_observed[step]:
            value = torch.where(self.seen[step], here, value)
        here.copy_(value)
        if self.end is not None:
            self.ended |= here == self.end

    @property
    def finished(self) -> bool:
        """Whether every row has ended."""
        return self.end is not None and bool(self.ended.all())

    def repeat_end(self, step: int) -> None:
        """Fill the steps after this one with its values."""
        self.x[step + 1 :] = self.x[step]

    def parameters(self, step: int) -> Tensor:
        """The parameters of the distribution of this step, (m, P)."""
        if self.state is None:
            past = StepRows(self.x.T, self.seen.T, self.context).cut(step + 1)
            return self.maps[step % self.cycle](self.model.outputs(past)[:, -1])
        if step:
            vector = self.read(self.steps[step - 1], (step - 1) % self.cycle)  # (m, width)
        else:
            vector = self.model.first.expand(len(self.index), -1)
        if self.place is not None:
            vector = vector + self.place[step % self.cycle]
        return self.maps[step % self.cycle](self.net.step(self.state, vector))

    def take(self, rows: Tensor) -> None:
        """Go on with these rows (m,) in place of all, repeats allowed."""
        self.x, self.seen = self.x[:, rows], self.seen[:, rows]
        self.steps, self.ended = self.x.unbind(), self.ended[rows]
        self.context = None if self.context is None else self.context[rows]
        if self.state is not None:
            self.state.reorder(rows)


class SequenceSteps(EntryStepper):
    """A pass along a sequence that is fed the values of its steps (m,)."""

    def __init__(self, model: SequenceModel, batch: Batch, cached: bool) -> None:
        n, steps = batch.x.shape
        index = torch.arange(n, device=batch.x.device)
        options = replace(settings(model, None), cached=cached)
        noise = batch.x.new_zeros(steps, n, 2)
        context = model.context(batch.given, n, steps)
        self.rows = SequenceRowGroup(
            model, options, index, batch.x, batch.observed_mask, noise, context
        )

    def parameters(self, place: int) -> Tensor:
        return self.rows.parameters(place)

    def feed(self, place: int, features: Tensor) -> None:
        self.rows.steps[place].copy_(features)

    def take(self, rows: Tensor) -> None:
        self.rows.take(rows)


def apply_temperature(
    distribution: Distribution, params: Tensor, options: SymbolSampling
) -> Tensor:
    """Logits divided by the temperature, without unlikely symbols; the scales of a mixture are
    also multiplied by the temperature."""
    temperature = options.temperature
    if temperature == 1 and not options.top_k and options.top_p == 1:
        return params
    if isinstance(distribution, CategoricalDistribution):
        return truncate_logits(params, options)
    if options.top_k or options.top_p < 1:
        raise UsageError(
            "top_k and top_p need tokens or levels, found numbers; set temperature=0.8 instead"
        )
    if isinstance(distribution, MixedNumber):
        states, number = params.tensor_split([distribution.logits], -1)
        return torch.cat(
            [states / temperature, apply_temperature(distribution.number, number, options)], -1
        )
    if not isinstance(distribution, MixtureDistribution):
        return params / temperature
    *logits, means, scales = params.split(distribution.components, -1)
    logits = [weights / temperature for weights in logits]
    return torch.cat([*logits, means, scales + math.log(temperature)], -1)


def unobserved_rows(
    model: SequenceModel, n: int, given: Given | None, options: Config | None
) -> Batch:
    """n rows without observed entries, laid out as steps; as long as conditions given per step,
    as `steps` asks, or as the median training row."""
    ready = broadcast_conditions(given or {}, model.space, n)
    frames, asked = int(model.typical), settings(model, options).steps
    if asked and not model.space.varies:
        raise UsageError(
            f"steps={asked} needs rows of variable length, found {model.space}; remove it"
        )
    along = [ready[name].x.shape[1] for name in model.context.local]
    frames = model.space.shape[0] if model.space.end is not None else frames
    frames = min(along, default=asked or frames) if model.space.varies else frames
    steps = frames * model.layout.channels if model.space.varies else model.space.dims
    x = model.blank.repeat(steps // model.cycle).repeat(n, 1)  # (n, D)
    seen = torch.zeros_like(x, dtype=torch.bool)
    if prompt := settings(model, options).prompt:
        check_prompt(model.space, prompt, steps)
        x[:, : len(prompt)], seen[:, : len(prompt)] = x.new_tensor(prompt), True
    return Batch(x, ready, seen)


def check_prompt(space: Space, prompt: Sequence[int], steps: int) -> None:
    if space.kind != "tokens":
        raise UsageError(f"a prompt needs text, found {space}; remove it")
    if len(prompt) >= steps:
        raise UsageError(
            f"expected a prompt of fewer than {steps} tokens, found {len(prompt)}; shorten it"
        )
    if min(prompt) < 0 or max(prompt) >= space.size:
        raise UsageError(
            f"expected prompt tokens from 0 to {space.size - 1}, found {min(prompt)} to "
            f"{max(prompt)}; encode the prompt with the run's tokeniser"
        )


def row_groups(
    model: SequenceModel, batch: Batch, options: Config | None, generator: Generator | None
) -> Iterator[SequenceRowGroup]:
    """Groups of the rows of a batch laid out as steps, each before its first step."""
    n, steps = batch.x.shape
    noise = model.step_head.noise(n, steps, generator)
    context = model.context(batch.given, n, steps)
    reach = model.net.reach if isinstance(model.net, WindowedStepwise) else steps
    size = max(1, min(MAX_ROWS, MAX_CACHE_ELEMENTS // (min(reach, steps) * model.width)))
    for rows in torch.arange(n, device=batch.x.device).split(size):
        own = None if context is None else context[rows]
        yield SequenceRowGroup(
            model,
            settings(model, options),
            rows,
            batch.x[rows],
            batch.observed_mask[rows],
            noise[:, rows],
            own,
        )


def fill(
    model: SequenceModel, batch: Batch, options: Config | None, generator: Generator | None
) -> Tensor:
    """Rows (n, *event) whose unobserved steps are sampled one after the other."""
    x = batch.x.clone()
    with torch.inference_mode():  # saves a tenth of the time
        for rows in row_groups(model, batch, options, generator):
            for step in range(x.shape[1]):
                rows.advance(step)
                if rows.finished:
                    rows.repeat_end(step)
                    break
            x[rows.index] = rows.x.T
    return model.to_event(x)


def settings(model: SequenceModel, options: Config | None) -> SequenceModel.SamplingConfig:
    return cast("SequenceModel.SamplingConfig", options or model.SamplingConfig())
