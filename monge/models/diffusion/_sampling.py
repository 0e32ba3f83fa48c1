r"""Sampling, completion, denoising and editing with a diffusion model.

A sampler takes noise in standardised units to z_0, and the last step samples x ~ p(x | z_0). Each
step asks the model itself for a prediction, or the model with guidance.

Completion: replacement (Song et al. 2021) puts $\alpha_s y + \sigma_s n$ in place of the observed
entries after each step to s. The missing entries then ignore it, so RePaint (Lugmayr et al. 2022)
returns to t by the forward step $q(z_t | z_s)$ and repeats the step several times. On convergence
the entries agree, but this does not sample from the exact conditional.

Denoising and editing: data with noise of a known standard deviation are a z_t at the t whose
$\sigma / \alpha$ is that deviation, and sampling from there samples from p(x | noisy x). Data that
are noised to t on purpose and denoised again keep what noise at t leaves of them (SDEdit: Meng et
al. 2022).
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import CanComplete, CanExport, CanSample, CanStream, Given
from ...core.batch import Batch
from ...core.config import MAX_STEPS, Range, RunRef
from ...core.config import Config as BaseConfig
from ...core.errors import DataError, UsageError
from ...core.model import Model
from ...prob.noise_schedule import NoiseProcess
from ._clusters import Clusters
from ._conditioning import ConditionEncoder, Conditioning
from ._export import ExportedStep
from ._guidance import Guidance, guided_predictor
from ._ode_samplers import DPM, LEAST_NOISY_STEPS
from ._parameterisation import DenoiserPrediction
from ._samplers import Path, Predict, Sampler, ancestral, ancestral_path, noise_like
from ._units import EventUnits, Units


def repaint(
    predict: Predict,
    noising: NoiseProcess,
    times: Tensor,
    y: Tensor,
    observed: Tensor,
    resamples: int,
    jump_length: int,
    generator: Generator | None,
) -> Path:
    """z and the estimate of x (B, D) along falling times, with the observed entries of y put in
    place; each segment of `jump_length` steps is sampled `resamples` times."""

    def replace_observed(z: Tensor, t: Tensor) -> Tensor:
        noisy = noising.alpha(t) * y + noising.sigma(t) * noise_like(y, generator)
        return torch.where(observed, noisy, z)

    z = replace_observed(noising.spread(times[0]) * noise_like(y, generator), times[0])
    for a, b in itertools.pairwise(repaint_route(len(times) - 1, resamples, jump_length)):
        t, s = times[a], times[b]
        if b < a:  # back towards noise
            variance = noising.step(t, s).forward
            z = noising.alpha(s) / noising.alpha(t) * z + variance.sqrt() * noise_like(
                z, generator
            )
            continue
        prediction = predict(z, t.expand(len(z)))
        z = ancestral(prediction, noising, z, s, t, noise_like(z, generator))
        z = replace_observed(z, s)
        yield z, prediction.x0


def repaint_route(steps: int, resamples: int, jump_length: int) -> Iterator[int]:
    """Indices 0 (noise) to `steps` (data) of the times in the order they are visited."""
    yield 0
    for start in range(0, steps, jump_length):
        end = min(start + jump_length, steps)
        for number in range(resamples):
            if number:
                yield start
            yield from range(start + 1, end + 1)


def match_noise_level(
    noising: NoiseProcess, y: Tensor, deviation: Tensor, grid: int, generator: Generator | None
) -> tuple[Tensor, float]:
    """z_t and t of noisy y (B, D) whose entries have noise of standard deviations (D,). Entries
    with less than the noisiest one, or than the next time of a grid, get noise added."""
    largest = deviation.amax()
    level = (-2 * largest.log()).to(y)
    top, low = noising.log_snr(y.new_tensor([0.0, 1.0]))
    if not low <= level <= top:
        least, most = (-top / 2).exp().item(), (-low / 2).exp().item()
        raise DataError(
            f"expected noise between {least:.2g} and {most:.2g} standard deviations of the data, "
            f"which this schedule covers, found {largest:.3g}; change noise"
        )
    t = noising.time(level)
    t = (t * grid).ceil().clamp_min(1) / grid if grid else t
    variance = torch.maximum((-noising.log_snr(t)).exp(), largest.square())
    missing = (variance - deviation.square()).sqrt()
    return noising.alpha(t) * (y + missing * noise_like(y, generator)), t.item()


def add_noise(
    noising: NoiseProcess, y: Tensor, t: float, grid: int, generator: Generator | None
) -> tuple[Tensor, float]:
    """z_t of y (B, D), and t, rounded to the nearest time of a grid."""
    t = max(1, round(t * grid)) / grid if grid else t
    here = y.new_tensor(t)
    return noising.alpha(here) * y + noising.sigma(here) * noise_like(y, generator), t


class DiffusionSampling(Model, CanSample, CanStream, CanComplete, CanExport):
    """A model that predicts x from noisy z, and samples by repeated prediction."""

    completion = "sampled by replacement with resampling (RePaint), an approximation"

    class Config(Model.Config):
        drop: Annotated[float, Range(0, 1)] = 0.1
        """Fraction of rows whose conditions training drops, for classifier-free guidance."""

    class SamplingConfig(BaseConfig):
        neutral = {"guide": (None,)}
        sampler: Sampler.Config = DPM.Config()
        """Sampling algorithm: ancestral (variance), ddim (eta), dpm (order, correct), heun
        (churn), ode (method, tolerance), pc or langevin (corrections, ratio)."""
        guidance: Guidance = Guidance()
        """Weight of the conditions."""
        guide: RunRef | None = None
        """Run of diffusion.noisy_classifier that guides samples towards its label."""
        clip: bool = True
        """Discrete data: clamp estimates of x to the range of the levels."""
        resamples: Annotated[int, Range(1)] = 5
        """complete: how often RePaint samples each segment; more make entries agree better."""
        jump_length: Annotated[int, Range(1)] = 1
        """complete: steps of such a segment."""
        noise: Annotated[float, Range(0)] = 0.0
        """complete: standard deviation of the noise in the rows, in units of the data; the clean
        rows are sampled by ancestral steps at the sampler's times."""
        edit: Annotated[float, Range(0, 1)] = 0.0
        """complete: time to which rows are noised before they are sampled back (SDEdit); near 1
        little is left of them."""

    config: Config
    name: str
    units: EventUnits
    clusters: Clusters | None
    condition_encoder: ConditionEncoder
    schedule: NoiseProcess
    steps: int = 0
    """Number of time steps T; 0 is continuous time."""

    @abc.abstractmethod
    def predict(
        self, z: Tensor, t: Tensor, conditions: Conditioning | None = None
    ) -> DenoiserPrediction:
        """The prediction at z (B, D) and times t (B,); without conditions, the unconditional
        one."""

    def encode_conditions(
        self, given: Given | None, n: int, cluster: Tensor | None = None
    ) -> Conditioning:
        """The encoded conditions of n rows, and their clusters (n,), if any."""
        return self.condition_encoder(given or {}, n, cluster)

    def draw_clusters(self, n: int, generator: Generator | None) -> Tensor | None:
        """The clusters of n samples, (n,); None for a model without clusters."""
        if self.clusters is None:
            return None
        return self.clusters.draw(self.uniform(n, generator))

    def uniform(self, n: int, generator: Generator | None) -> Tensor:
        """A uniform number per row, (n,)."""
        like = self.units.like
        return torch.rand(n, generator=generator, dtype=like.dtype, device=like.device)

    def sampling_predictor(
        self, n: int, given: Given | None, options: SamplingConfig, generator: Generator | None
    ) -> Predict:
        """The prediction function of n samples, with guidance and their clusters."""
        cluster = self.draw_clusters(n, generator)
        return guided_predictor(self, given or {}, n, options, cluster=cluster)

    def sample_prior(self, n: int, generator: Generator | None) -> Tensor:
        """z_1 ~ N(0, (alpha_1^2 + sigma_1^2) I), (n, D)."""
        like = self.units.like.new_empty(n, self.units.width)
        return noise_like(like, generator) * self.schedule.spread(like.new_ones(()))

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """The estimate of x at every step, and the sample at last."""
        settings = self.sampling_options(options)
        predict = self.sampling_predictor(n, given, settings, generator)
        z, sampler = self.sample_prior(n, generator), settings.sampler.build()
        path = sampler.sample(predict, self.schedule, z, generator, grid=self.steps)
        yield from self.decode_path(path, predict, generator)

    def decode_path(
        self,
        path: Path,
        predict: Predict,
        generator: Generator | None,
        allowed: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """The events along a path, (B, *event)."""
        for z, x0 in path:  # noqa: B007 - the last z is used below
            yield self.units.to_data(x0)
        yield self.sample_data(z, predict, generator, allowed)

    def sample_data(
        self,
        z: Tensor,
        predict: Predict,
        generator: Generator | None,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """x ~ p(x | z_0), (B, *event), of the components of tables those that are `allowed`."""
        t = z.new_zeros(len(z))
        mean = z / self.schedule.alpha(t)[:, None]
        if not self.units.discrete:
            mean = torch.where(self.units.continuous, predict(z, t).x0, mean)
        deviation = torch.exp(-0.5 * self.schedule.log_snr(t))[:, None]
        return self.units.sample(mean, deviation, noise_like(z, generator), allowed)

    def keeps_observed(self, options: BaseConfig | None = None) -> bool:
        settings = self.sampling_options(options)
        return not (settings.noise or settings.edit)

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """With `noise` or `edit` every entry is sampled anew, starting from the given rows."""
        settings, observed = self.sampling_options(options), batch.observed_mask
        allowed = self.units.allowed(observed)
        cluster = self.clusters_given(batch, settings, generator)
        predict = guided_predictor(self, batch.given, len(batch), settings, allowed, cluster)
        if not self.keeps_observed(options):
            path = self.denoising_path(batch, predict, settings, generator)
            return [*self.decode_path(path, predict, generator)][-1]
        y = self.units.to_units(torch.where(observed, batch.x, self.units.typical.to(batch.x)))
        times = settings.sampler.build().times(self.schedule, y, 1.0, self.steps)
        path = repaint(
            predict,
            self.schedule,
            times,
            y,
            self.units.expand_mask(observed),
            settings.resamples,
            settings.jump_length,
            generator,
        )
        *_, x = self.decode_path(path, predict, generator, allowed)
        return torch.where(observed, batch.x.to(x), x)

    def clusters_given(
        self, batch: Batch, options: SamplingConfig, generator: Generator | None
    ) -> Tensor | None:
        """Clusters drawn given what is seen of rows, (B,); None for a model without clusters."""
        if self.clusters is None:
            return None
        seen = batch.observed_mask
        y = self.noisy_units(torch.where(seen, batch.x, self.units.typical.to(batch.x)))
        deviation = y.new_zeros(y.shape[1])
        if options.noise and isinstance(self.units, Units):
            deviation = options.noise / self.units.scale
        uniform = self.uniform(len(batch), generator)
        return self.clusters.draw_given(y, self.units.expand_mask(seen), deviation, uniform)

    def denoising_path(
        self, batch: Batch, predict: Predict, options: SamplingConfig, generator: Generator | None
    ) -> Path:
        """The path from noisy rows to data; the noise is their own, or added for editing. Noisy
        levels are not whole numbers, so they are standardised without a check."""
        if options.noise and options.edit:
            raise UsageError(
                f"expected noise, which removes noise, or edit, which adds it, found "
                f"noise={options.noise:g} and edit={options.edit:g}; give one of them"
            )
        if not bool(batch.observed_mask.all()):
            raise UsageError(
                "noise and edit expect rows without missing entries, found some; "
                "complete them first"
            )
        sampler: Sampler = options.sampler.build()
        if options.edit:
            y = self.noisy_units(batch.x)
            z, t = add_noise(self.schedule, y, options.edit, self.steps, generator)
            return sampler.sample(predict, self.schedule, z, generator, t, self.steps)
        if not isinstance(self.units, Units):
            raise UsageError(
                f"noise={options.noise:g} expects numbers that have noise, found {self.space}; "
                "use edit, or complete without noise"
            )
        y, deviation = self.noisy_units(batch.x), options.noise / self.units.scale
        z, t = match_noise_level(self.schedule, y, deviation, self.steps, generator)
        times = sampler.times(self.schedule, z, t, self.steps)
        return ancestral_path(predict, self.schedule, times, z, generator)

    def noisy_units(self, x: Tensor) -> Tensor:
        """Rows that may be noisy in standardised units, (B, D), unchecked; of tables their
        vectors."""
        if not isinstance(self.units, Units):
            return self.units.to_units(x)
        x = x.reshape(len(x), -1).to(self.units.scale)
        return (x - self.units.shift) / self.units.scale

    def sampling_options(self, options: BaseConfig | None) -> SamplingConfig:
        options = options or self.sampling_defaults()
        assert isinstance(options, DiffusionSampling.SamplingConfig), "expected sampling options"
        sampler = options.sampler
        if isinstance(sampler, DPM.Config) and sampler.noise is None:
            steps = min(sampler.steps or DPM.default_steps, self.steps or MAX_STEPS)
            noise = float(self.space.is_image and steps >= LEAST_NOISY_STEPS)
            options = replace(options, sampler=replace(sampler, noise=noise))
        return options

    def step(self) -> tuple[nn.Module, tuple[Tensor, ...], Mapping[str, Mapping[int, str]]]:
        """One step of DDIM without noise, ready for export."""
        return ExportedStep.with_examples(self)
