r"""Particle filter over the latent codes of a sequence: sampling, completion and likelihood.

The codes of observed steps are not known. A particle filter (Gordon, Salmond & Smith 1993;
Maddison et al. 2017) carries K of them per row: each step samples
$z_t \sim q(z_t | x_t, h_{t-1})$, multiplies the weight by
$p(x_t | z_t, h)\, p(z_t | h) / q(z_t | x_t, h)$ and, if the effective sample size is small,
resamples the particles by weight. The product of the mean weights between resamplings is an
unbiased estimate of p(x), and a particle sampled by weight follows p(z | x) as K grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch, broadcast_conditions
from ...core.config import Config
from ...core.errors import DataError, UsageError
from ...prob.distributions import log_mean_exp
from .._ordering import frames
from ._frames import Frames

if TYPE_CHECKING:
    from ._sequential import SequentialLatentModel


MIN_EFFECTIVE_SHARE = 0.5
"""Effective sample size, as a share of the particles, below which they are resampled."""


class NetworkHistory:
    """The summary of the past: the cached state of the network, or all its inputs."""

    def __init__(
        self,
        model: SequentialLatentModel,
        n: int,
        max_steps: int,
        context: Tensor | None,
        cached: bool,
    ) -> None:
        self.net, self.context = model.net, context
        self.read: list[Tensor] = []
        self.state: Any = model.net.start(n, max_steps, context) if cached else None
        self.summary = self.push(model.first.expand(n, -1))  # (n, outputs)

    def push(self, vector: Tensor) -> Tensor:
        """Read one more step (n, inputs)."""
        if self.state is not None:
            self.summary = self.net.step(self.state, vector)
            return self.summary
        self.read.append(vector)
        context = self.context
        if context is not None and context.shape[1] > 1:
            context = context[:, : len(self.read)]
        self.summary = self.net(torch.stack(self.read, 1), context)[:, -1]
        return self.summary

    def reorder(self, rows: Tensor) -> None:
        """Continue with these rows (m,); rows may repeat."""
        self.summary = self.summary[rows]
        if self.state is not None:
            self.state.reorder(rows)
        self.read = [vector[rows] for vector in self.read]
        self.context = None if self.context is None else self.context[rows]


class ParticleFilter:
    """B rows with K particles each, laid out as (K, B)."""

    def __init__(
        self,
        model: SequentialLatentModel,
        rows: Frames,
        seen: Tensor,
        many: int,
        cached: bool = True,
        few: float = MIN_EFFECTIVE_SHARE,
    ) -> None:
        """seen: (B, T, D), entries that are known. `rows.x` is filled as others are sampled."""
        self.model, self.rows, self.many, self.few = model, rows, many, few
        self.known, self.seen = seen, seen.any(-1)  # entries (B, T, D), frames (B, T)
        self.partial = self.seen & ~seen.all(-1)
        context = None if rows.context is None else rows.context.repeat(many, 1, 1)
        size = len(rows.x)
        self.memory = NetworkHistory(model, many * size, rows.x.shape[1] + 1, context, cached)
        self.weights = rows.x.new_zeros(many, size)  # log-weights since the last resampling
        self.log_p, self.spread = rows.x.new_zeros(size), rows.x.new_zeros(size)

    def advance(self, step: int, noise: Tensor, chance: Tensor | None, uniform: Tensor) -> None:
        """noise: (K, B, Z) of codes; chance: (K B, D, 2) of events, None if all are observed;
        uniform: (B,) for resampling."""
        model, k = self.model, self.many
        summary = self.memory.summary.unflatten(0, (k, -1))  # (K, B, outputs)
        here, x = self.seen[:, step], self.rows.x[:, step].expand(k, -1, -1)  # (K, B, D)
        if chance is None and not bool(here.any()):
            return
        if chance is None:
            z = self.weigh(step, here, summary, noise[:k])
        else:
            z = model.step_codes(model.prior_inputs(summary), None, noise[:k]).z
            params = model.params(z, model.decoder_context(summary))
            value = model.head.sample(params.flatten(0, 1), chance[: k * len(here)])
            x = torch.where(self.known[:, step], x, value.unflatten(0, (k, -1)))
            partial = self.partial[:, step]
            if bool(partial.any()):
                log_p = (model.head.log_prob(params, x) * self.known[:, step]).sum(-1)
                self.weights = self.weights + torch.where(partial, log_p, 0.0)
            whole = here & ~partial
            if model.carries_codes and bool(whole.any()):
                z = torch.where(whole[:, None], self.weigh(step, whole, summary, noise[:k]), z)
        self.memory.push(model.net_input(model.embed(x), z).flatten(0, 1))
        chosen = self.resample(step, uniform)[:1, :, None]  # (1, B, 1)
        if chance is not None:
            self.rows.x[:, step] = x.gather(0, chosen.expand(-1, -1, x.shape[2]))[0]

    def weigh(self, step: int, here: Tensor, summary: Tensor, noise: Tensor) -> Tensor:
        """Codes (K, B, Z) of an observed frame from its posterior; updates their weights."""
        model, x = self.model, self.rows.x[:, step].expand(self.many, -1, -1)
        codes = model.step_codes(
            model.prior_inputs(summary), model.posterior_inputs(summary, model.embed(x)), noise
        )
        params = model.params(codes.z, model.decoder_context(summary))
        log_p = (model.head.log_prob(params, x) * self.known[:, step]).sum(-1)
        gain = log_p + codes.log_prior - codes.log_posterior
        self.weights = self.weights + torch.where(here, gain, 0.0)
        return codes.z

    def resample(self, step: int, uniform: Tensor) -> Tensor:
        """Resample if the effective sample size is small, and to a single particle where the
        observed steps end; once no row has an observed step left, keep one particle per row.
        Returns which particle stands where, (K, B)."""
        places = self.places.expand(-1, len(uniform))
        if self.many == 1:
            return places
        after = self.seen[:, step + 1 :]
        ended = ~after[:, 0] & self.seen[:, step] if after.shape[1] else self.partial[:, step]
        share = self.weights.softmax(0)  # (K, B)
        degenerate = (1 / share.square().sum(0) < self.few * self.many) & ~ended
        if bool((degenerate | ended).any()):
            value, error = log_mean_exp(self.weights)
            done = degenerate | ended
            self.log_p = self.log_p + torch.where(done, value, 0.0)
            self.spread = self.spread + torch.where(done, error.square(), 0.0)
            places = torch.where(done, systematic_resample(share, uniform, ended), places)
            self.reorder(places)
            self.weights = torch.where(done, 0.0, self.weights)
        if after.shape[1] and not bool(after.any()):
            self.memory.reorder(torch.arange(len(uniform), device=uniform.device))
            self.many, self.weights = 1, self.weights[:1]
        return places

    @property
    def places(self) -> Tensor:
        """Which particle each is, (K, 1)."""
        return torch.arange(self.many, device=self.weights.device)[:, None]

    def reorder(self, chosen: Tensor) -> None:
        """Put particle chosen[k, b] of row b at place k."""
        size = chosen.shape[1]
        self.memory.reorder((chosen * size + torch.arange(size, device=chosen.device)).flatten())

    def total(self) -> tuple[Tensor, Tensor]:
        """The estimate of log p of the observed steps and its Monte Carlo error, (B,) each."""
        if self.many == 1:
            return self.log_p, self.spread.sqrt()
        value, error = log_mean_exp(self.weights)
        return self.log_p + value, (self.spread + error.square()).sqrt()


def systematic_resample(share: Tensor, uniform: Tensor, single: Tensor) -> Tensor:
    """Systematic resampling: particles (K, B) by their shares (K, B), evenly spaced through the
    cumulative shares from one uniform (B,), or a single particle for all where `single` (B,)."""
    k = len(share)
    places = torch.arange(k, device=share.device, dtype=share.dtype)[:, None]
    spots = torch.where(single, uniform.expand(k, -1), (places + uniform) / k)  # (K, B)
    total = share.cumsum(0).T.contiguous()
    return torch.searchsorted(total, spots.T.contiguous()).clamp_(max=k - 1).T


def start_sampling(
    model: SequentialLatentModel, n: int, given: Given | None, options: Config | None
) -> ParticleFilter:
    """State from which n rows are sampled step by step into `rows.x` (n, T, C)."""
    chosen = sampling_options(model, options)
    if chosen.steps and not model.space.varies:
        raise UsageError(
            f"steps={chosen.steps} applies to rows that vary in length, and every row here has "
            f"{model.space}; leave it out"
        )
    ready = broadcast_conditions(given or {}, model.space, n)
    along = [ready[name].x.shape[1] for name in model.context.local]
    steps = int(model.typical)
    if model.space.varies:
        steps = min(along, default=chosen.steps or steps)
    x = model.blank.expand(n, steps, -1)
    rows = model.join_steps(x, torch.ones_like(x[..., 0], dtype=torch.bool), ready, row_numbers(x))
    unseen = torch.zeros_like(rows.present)
    return ParticleFilter(model, rows, unseen, 1, chosen.cached)


def complete_prefix(
    model: SequentialLatentModel, batch: Batch, options: Config | None, generator: Generator | None
) -> Tensor:
    """Rows with the steps after the observed ones sampled, (B, *event)."""
    chosen, x = (
        sampling_options(model, options),
        frames(model.space, batch.x).to(model.blank.dtype).clone(),
    )
    within = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    if batch.length is not None:
        within = torch.arange(x.shape[1], device=x.device) < batch.length[:, None]
    seen = observed_prefix(model, frames(model.space, batch.observed_mask), within)
    rows = model.join_steps(x, seen, batch.given, row_numbers(x))
    particles = ParticleFilter(model, rows, rows.present, chosen.particles, chosen.cached)
    if not (particles.seen if model.carries_codes else particles.partial).any():
        particles = ParticleFilter(model, rows, rows.present, 1, chosen.cached)
    for step in range(rows.x.shape[1]):
        noise = sample_step_noise(model, particles.many, len(x), x, generator)
        particles.advance(step, *noise)
    known = batch.observed_mask | ~model.layout.event(within[..., None].expand_as(x).flatten(1))
    return torch.where(known, batch.x.to(x.dtype), model.from_frames(rows))


def observed_prefix(model: SequentialLatentModel, seen: Tensor, within: Tensor) -> Tensor:
    """Which steps are observed, (B, T), from which entries are, (B, T, C)."""
    whole, some = seen.all(-1), seen.any(-1)
    late = (some[:, 1:] & ~whole[:, :-1] & within[:, 1:]).any(1) | (some & ~whole & within).any(1)
    if bool(late.any()):
        raise DataError(
            f"{model.name} completes rows whose observed steps come first and are complete, "
            f"found row {int(late.nonzero()[0])} with an observed step after a missing one, or "
            "a partly observed step; mask all that follows, or use a model that completes any "
            "pattern"
        )
    return whole & within


def row_numbers(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device)


def sample_step_noise(
    model: SequentialLatentModel, many: int, n: int, like: Tensor, generator: Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The noise of a step: for codes, for events and for resampling."""
    kind: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
    noise = torch.randn(many, n, model.latent.shape[1], generator=generator, **kind)
    chance = model.head.noise(many * n, generator)
    return noise, chance, torch.rand(n, generator=generator, **kind)


def sampling_options(
    model: SequentialLatentModel, options: Config | None
) -> SequentialLatentModel.SamplingConfig:
    return cast("SequentialLatentModel.SamplingConfig", options or model.SamplingConfig())


def filter_log_likelihood(
    model: SequentialLatentModel,
    rows: Frames,
    samples: int,
    few: float,
    noise: Any,
    uniform: Tensor,
) -> tuple[Tensor, Tensor]:
    """The estimate of log p(x) by a particle filter and its error, (B,) each; noise: step ->
    (K, B, Z); uniform: (B, T)."""
    particles = ParticleFilter(model, rows, rows.present, samples, few=few)
    for step in range(rows.x.shape[1]):
        particles.advance(step, noise(step), None, uniform[:, step])
    return particles.total()
