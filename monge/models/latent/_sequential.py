r"""Laws of sequences with a code at every step: what vrnn and stcn share.

A step is a frame of an event: a step of a series with its channels, a pixel with its colours.
Before step t a causal network has summed up the past in $h_{t-1}$; then

$p(x, z | c) = \prod_t p(z_t | h_{t-1})\, p(x_t | z_t, h_{t-1})$,
$q(z | x, c) = \prod_t q(z_t | x_t, h_{t-1})$,

all laws of codes Gaussian, in levels that are drawn one after the other. The posterior is told as
a change of the prior, $N(\mu + \sigma \delta, (\sigma \rho)^2)$ where that is $N(\mu, \sigma^2)$,
so that a code costs $\frac12 (\delta^2 + \rho^2 - 1) - \log \rho$ whatever the prior is. What a
row has beyond its length is no part of the law.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import (
    CanComplete,
    CanDiagnose,
    CanSample,
    CanStream,
    Finding,
    Given,
    HasLevels,
    HasLikelihood,
    Likelihood,
)
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Losses
from ...core.rng import derive_seed, keyed_normal, seed_of
from ...core.space import Space
from ...nn.mlp import MLP
from ...nn.stepwise import Conditioned
from ._diagnostics import ACTIVE, degenerate
from ._frames import Codes, Framed, Frames, Normal
from ._particle_filter import completed, drawn
from ._posterior import check_width

ROOM = 1 << 23
"""Numbers of the hidden layers that are scored at once."""
BLOCK = 8
"""Importance samples of whole sequences that are computed at once."""


class Stepped(Framed, HasLikelihood, HasLevels, CanSample, CanComplete, CanStream, CanDiagnose):
    """A sequence of codes and events, one of each a step.

    The loss is in nats a step, so that a long row weighs as its steps do and no more.
    """

    carries: bool
    """Whether the summary of the past depends on codes, so that they must be filtered."""

    class Config(Framed.Config):
        latent: Annotated[int, Range(1)] = 16
        """Dimension of the code of a step, in each level."""
        part: MLP.Config = MLP.Config(width=128, depth=1)
        """Networks of the prior, the posterior and p(x | z) at a step."""
        beta: Annotated[float, Range(0)] = 1.0
        """Weight of the rate in training."""
        anneal: Annotated[int, Range(0)] = 0
        """Steps over which the weight of the rate rises from 0 to beta."""

    class SamplingConfig(BaseConfig):
        steps: Annotated[int, Range(0)] = 0
        """Steps to draw where rows vary in length; 0 takes the median of the training rows."""
        particles: Annotated[int, Range(1)] = 32
        """Completion: codes of the past that are weighed by what was seen."""
        cached: bool = True
        """Keep what the network needs of the past; false recomputes everything for each step."""

    class LikelihoodConfig(BaseConfig):
        samples: Annotated[int, Range(1)] = 8
        """Importance samples: more are tighter and slower; 1 is the evidence lower bound."""
        filter: bool = True
        """Weigh samples step by step, so that those that fit the past well go on; false weighs
        whole sequences."""

    config: Config
    net: Conditioned[Any]

    def __init__(self, config: Config, space: Space) -> None:
        """The heir builds `net`, and the laws of each level and of x by `equip`."""
        super().__init__(config, space)
        check_width(config.latent, 0, space)

    def equip(self, befores: Sequence[int], afters: Sequence[int], past: int) -> None:
        """The laws of each level, topmost first, that read vectors of these sizes before and
        after a step is seen; p(x | z) reads all codes and `past` numbers besides."""
        part, latent, count = self.config.part, self.config.latent, len(befores)
        self.latent = Space(kind="real", shape=(self.count(self.space), count * latent))
        above = [latent * (place > 0) for place in range(count)]
        self.priors = nn.ModuleList(
            Normal(part, size + over, latent) for size, over in zip(befores, above, strict=True)
        )
        self.posteriors = nn.ModuleList(
            Normal(part, size + over, latent) for size, over in zip(afters, above, strict=True)
        )
        self.decoder: MLP = part.build(count * latent + past, self.head.width)
        self.first = nn.Parameter(0.1 * torch.randn(self.net.inputs))
        self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        """Let p(x | z) begin as the law of a step alone."""
        self.decoder.out.weight.mul_(0.1)
        self.decoder.out.bias.copy_(self.head.start())

    def initialise_from_data(self, batch: Batch) -> None:
        rows = self.laid(batch)
        steps = rows.x[rows.exist]  # (N, C)
        self.head.fit(steps, torch.ones_like(steps, dtype=torch.bool))
        with torch.no_grad():
            self.decoder.out.bias.copy_(self.head.start())
        if batch.length is not None:
            self.typical.copy_(batch.length.median())

    @abc.abstractmethod
    def course(
        self, rows: Frames, noise: Tensor | None, z: Tensor | None = None
    ) -> tuple[Codes, Tensor]:
        """Codes of every step, made from noise (S, B, T, Z) or where they are z, (S, B, T, Z), and
        the summaries that p(x | z) reads besides, (S, B, T, past)."""

    @abc.abstractmethod
    def weighed(self, rows: Frames, options: LikelihoodConfig, seed: int) -> tuple[Tensor, Tensor]:
        """The importance-weighted bound and its Monte-Carlo error, (B,) each."""

    @abc.abstractmethod
    def before(self, summary: Tensor) -> Sequence[Tensor]:
        """What the prior of each level reads of the summary (..., outputs) of the past."""

    def after(self, summary: Tensor, features: Tensor) -> Sequence[Tensor]:
        """What the posterior of each level reads where a step is seen before the network does."""
        return [torch.cat([part, features], -1) for part in self.before(summary)]

    @abc.abstractmethod
    def enter(self, features: Tensor, z: Tensor) -> Tensor:
        """What the network reads of a step: (..., F) and (..., Z) to (..., inputs)."""

    @abc.abstractmethod
    def past(self, summary: Tensor) -> Tensor:
        """What p(x | z) reads of the summary besides codes, (..., past)."""

    def codes(
        self,
        before: Sequence[Tensor],
        after: Sequence[Tensor] | None,
        noise: Tensor | None,
        z: Tensor | None = None,
    ) -> Codes:
        """Level after level from what is read before a step is seen and after it; without the
        latter, drawn from the prior."""
        parts, latent = [], self.config.latent
        above: tuple[Tensor, ...] = ()
        for place, prior in enumerate(self.priors):
            own = slice(place * latent, (place + 1) * latent)
            mean, log_scale = prior(before[place], *above)
            shift = stretch = torch.zeros_like(mean)
            if after is not None:
                shift, stretch = self.posteriors[place](after[place], *above)
            if z is not None:
                here = z[..., own]
            else:
                assert noise is not None, "codes are given or made from noise"
                white = shift + stretch.exp() * noise[..., own]
                here = mean + log_scale.exp() * white
            parts.append(Codes(here, mean, log_scale, shift, stretch))
            above = (here,)
        return Codes.join(parts, -1) if len(parts) > 1 else parts[0]

    def params(self, z: Tensor, past: Tensor) -> Tensor:
        """Of p(x_t | z_t, h_{t-1}), (..., P)."""
        return self.decoder(torch.cat([z, past], -1))

    def log_given(self, rows: Frames, z: Tensor, past: Tensor) -> Tensor:
        """log p(x_t | z_t, h_{t-1}) of every step, (S, B, T); zero where none is."""
        params = self.params(z, past)
        log_p = self.head.log_prob(params, rows.x.expand(*params.shape[:-1], -1)).sum(-1)
        return log_p * rows.exist

    def loss(self, batch: Batch) -> Losses:
        rows = self.laid(batch)
        noise = torch.randn(
            1, *rows.exist.shape, self.latent.shape[1], dtype=rows.x.dtype, device=rows.x.device
        )
        codes, past = self.course(rows, noise)
        anneal = self.config.anneal
        weight = self.config.beta * (min(1.0, (batch.step + 1) / anneal) if anneal else 1.0)
        share = len(batch) / rows.exist.sum().to(rows.x.dtype)
        distortion = -self.log_given(rows, codes.z, past)[0].sum(1)
        rate = (codes.rates.sum(-1) * rows.exist)[0].sum(1)
        return {"distortion": share * distortion, "rate": weight * share * rate}

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        options, seed = options or self.LikelihoodConfig(), seed_of(generator)
        assert isinstance(options, Stepped.LikelihoodConfig), "a score is asked for with Scoring"
        rows = self.laid(as_batch(batch))
        values, errors = [], []
        for own in self.pieces(rows, options.samples):
            if options.samples == 1:
                codes, past = self.course(own, self.noise(own, 1, seed))
                bound = self.log_given(own, codes.z, past) - codes.rates.sum(-1) * own.exist
                values.append(bound[0].sum(1))
            else:
                value, error = self.weighed(own, options, seed)
                values.append(value)
                errors.append(error)
        return Likelihood(torch.cat(values), "bound", torch.cat(errors) if errors else None)

    def pieces(self, rows: Frames, samples: int) -> Iterator[Frames]:
        """As many rows as have room together."""
        count = max(rows.exist.shape[1] * min(samples, BLOCK), samples)
        each = count * max(self.net.outputs, self.head.width)
        for own in torch.arange(len(rows.x), device=rows.x.device).split(max(ROOM // each, 1)):
            context = None if rows.context is None else rows.context[own]
            yield Frames(rows.x[own], rows.exist[own], context, rows.row[own])

    def noise(self, rows: Frames, samples: int, seed: int, start: int = 0) -> Tensor:
        """Keyed by row and step, so that padding changes none, (S, B, T, Z)."""
        shape = (samples, self.latent.shape[1])
        steps = [
            keyed_normal(rows.row, shape, derive_seed(seed, "codes", step, start))
            for step in range(rows.x.shape[1])
        ]
        return torch.stack(steps, 2).transpose(0, 1).to(rows.x.dtype)

    def log_joint(self, batch: Batch, z: Tensor) -> Tensor:
        rows = self.laid(batch)
        codes, past = self.course(rows, None, z)
        return self.log_given(rows, z, past).sum(-1) + (codes.log_prior * rows.exist).sum(-1)

    def log_prior(self, batch: Batch, z: Tensor) -> Tensor:
        rows = self.laid(batch)
        return (self.course(rows, None, z)[0].log_prior * rows.exist).sum(-1)

    def log_posterior(self, batch: Batch, z: Tensor) -> Tensor:
        rows = self.laid(batch)
        return (self.course(rows, None, z)[0].log_posterior * rows.exist).sum(-1)

    def infer(self, batch: Batch, noise: Tensor) -> Tensor:
        return self.course(self.laid(batch), noise)[0].z

    def level_rates(self, batch: Batch, z: Tensor) -> Tensor:
        """One for each level of each step."""
        rows = self.laid(batch)
        rates = self.course(rows, None, z)[0].rates * rows.exist[..., None]  # (S, B, T, Z)
        return rates.unflatten(-1, (-1, self.config.latent)).sum(-1).flatten(-2)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """(n, steps, ...) where rows vary in length."""
        *_, last = drawn(self, n, given, options, generator)
        return self.layout.event(last.flatten(1))

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """One yield for each step; those not yet drawn stand at their training mean or low."""
        for x in drawn(self, n, given, options, generator):
            yield self.layout.event(x.flatten(1))

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """The seen steps come first; what lies beyond a row's length is left as it is."""
        return completed(self, batch, options, generator)

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> list[Finding]:
        rows = self.laid(replace(batch, row=batch.rows))
        codes, past = self.course(rows, self.noise(rows, 1, 0))
        rates = codes.rates[0][rows.exist]  # (N, Z)
        active, units = int((rates.mean(0) > ACTIVE).sum()), rates.shape[1]
        found = [degenerate(self.head, self.params(codes.z, past)[0][rows.exist])]
        if 4 * active < units:
            found.append(
                Finding(
                    "posterior collapse",
                    f"{active} of {units} latent units of a step are in use and "
                    f"they hold {float(rates.sum(1).mean()):.2f} nats a step",
                    f"latent={active} would do as well"
                    if active
                    else "where a step is simple given its past, wavenet is as good and quicker; otherwise "
                    "anneal=2000 gives codes time",
                )
            )
        return [finding for finding in found if finding]
