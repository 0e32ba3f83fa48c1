r"""What is hidden, noisy or to be changed, drawn by noising what is known.

Replacement (Song et al. 2021) puts $\alpha_s y + \sigma_s n$ where y was seen after each step down
to s. What is hidden was then drawn without regard to it, so RePaint (Lugmayr et al. 2022) goes
back to t by the forward step $q(z_t | z_s)$ and down again, several times. Where this converges
the entries agree, but it is no draw from the exact conditional.

A datum with noise of known deviation is a z_t at the t whose $\sigma / \alpha$ is that deviation,
and sampling from there draws from p(x | noisy x). A datum that is noised to t on purpose and
brought back keeps what noise at t leaves of it (SDEdit: Meng et al. 2022).

Draws from a law that undoes noise: samples, completions, denoised and edited data.

Noise is drawn in standardised units, a sampler leads it to z_0, and x ~ p(x | z_0) is the last
step. What each step asks is the law itself, or what guidance makes of it.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import CanComplete, CanExport, CanSample, CanStream, Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range, RunRef
from ...core.errors import DataError, UsageError
from ...core.model import Model
from ...prob.noise_schedule import Noising
from ._conditioning import Teller, Told
from ._export import Step
from ._guidance import Guidance, guided
from ._ode_samplers import DPM
from ._parameterisation import Prediction
from ._samplers import Path, Predict, Sampler, ancestral, descend, noise_like
from ._units import Units


def repaint(
    predict: Predict,
    noising: Noising,
    times: Tensor,
    y: Tensor,
    seen: Tensor,
    again: int,
    jump: int,
    generator: Generator | None,
) -> Path:
    """z and the estimate of x (B, D) along falling times, with what is seen of y put in its
    place; stretches of `jump` steps are gone through `again` times."""

    def known(z: Tensor, t: Tensor) -> Tensor:
        noisy = noising.alpha(t) * y + noising.sigma(t) * noise_like(y, generator)
        return torch.where(seen, noisy, z)

    z = known(noising.spread(times[0]) * noise_like(y, generator), times[0])
    for a, b in itertools.pairwise(route(len(times) - 1, again, jump)):
        t, s = times[a], times[b]
        if b < a:  # back towards noise
            gone = noising.step(t, s).forward
            z = noising.alpha(s) / noising.alpha(t) * z + gone.sqrt() * noise_like(z, generator)
            continue
        told = predict(z, t.expand(len(z)))
        z = known(ancestral(told, noising, z, s, t, noise_like(z, generator)), s)
        yield z, told.x0


def route(steps: int, again: int, jump: int) -> Iterator[int]:
    """Places 0 (noise) to `steps` (data) in the order they are visited."""
    yield 0
    for start in range(0, steps, jump):
        end = min(start + jump, steps)
        for turn in range(again):
            if turn:
                yield start
            yield from range(start + 1, end + 1)


def matched(
    noising: Noising, y: Tensor, deviation: Tensor, grid: int, generator: Generator | None
) -> tuple[Tensor, float]:
    """z_t and t of noisy y (B, D) whose entries have noise of deviations (D,): those that have
    less than the noisiest, or than the next time of a grid, are given what they lack."""
    most = deviation.amax()
    level = (-2 * most.log()).to(y)
    top, low = noising.log_snr(y.new_tensor([0.0, 1.0]))
    if not low <= level <= top:
        least, largest = (-top / 2).exp().item(), (-low / 2).exp().item()
        raise DataError(
            f"noise of {most:.3g} deviations of the data has no time in this "
            f"schedule; give between {least:.2g} and {largest:.2g} deviations"
        )
    t = noising.time(level)
    t = (t * grid).ceil().clamp_min(1) / grid if grid else t
    whole = torch.maximum((-noising.log_snr(t)).exp(), most.square())
    lack = (whole - deviation.square()).sqrt()
    return noising.alpha(t) * (y + lack * noise_like(y, generator)), t.item()


def noised(
    noising: Noising, y: Tensor, t: float, grid: int, generator: Generator | None
) -> tuple[Tensor, float]:
    """z_t of y (B, D), and t, which is the nearest of a grid."""
    t = max(1, round(t * grid)) / grid if grid else t
    here = y.new_tensor(t)
    return noising.alpha(here) * y + noising.sigma(here) * noise_like(y, generator), t


class Drawing(Model, CanSample, CanStream, CanComplete, CanExport):
    """A law that can be asked what x a noisy z comes from, and is drawn from by asking."""

    completion = "drawn by replacement with resampling (RePaint), which approaches the law"

    class Config(Model.Config):
        drop: Annotated[float, Range(0, 1)] = 0.1
        """Share of rows whose conditions training hides, so that samples can be guided."""

    class SamplingConfig(BaseConfig):
        sampler: Sampler.Config = DPM.Config()
        """How noise becomes data: ancestral (variance), ddim (eta), dpm (order, correct), heun
        (churn), ode (method, tolerance), pc or langevin (corrections, ratio)."""
        guidance: Guidance = Guidance()
        """How much what is given counts."""
        guide: RunRef | None = None
        """Run of diffusion.noisy_classifier that guides samples towards its label."""
        clip: bool = True
        """Levels: hold estimates of x within their range."""
        again: Annotated[int, Range(1)] = 5
        """complete: how often each stretch is gone through, for hidden and seen to agree."""
        jump: Annotated[int, Range(1)] = 1
        """complete: steps of such a stretch."""
        noise: Annotated[float, Range(0)] = 0.0
        """complete: deviation of the noise that rows have, in units of the data: what they were
        without it is drawn, by ancestral steps at the sampler's times."""
        edit: Annotated[float, Range(0, 1)] = 0.0
        """complete: how far rows are noised and brought back; near 1 little is left of them."""

    config: Config
    units: Units
    teller: Teller
    schedule: Noising
    steps: int = 0
    """T where time is a grid; 0 where it flows."""

    @abc.abstractmethod
    def predict(self, z: Tensor, t: Tensor, told: Told | None = None) -> Prediction:
        """What is known of z (B, D) at times t (B,); without `told`, as if nothing were given."""

    def tell(self, given: Given | None, n: int) -> Told:
        """What the network is told of the conditions of n rows."""
        return self.teller(given or {}, n)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        *_, last = self.stream(n, given, options, generator)
        return last

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """The estimate of x at every step, and x at last."""
        asked = self.asking(options)
        predict = guided(self, given or {}, n, asked)
        like = self.units.scale.new_empty(n, self.space.dims)
        z = noise_like(like, generator) * self.schedule.spread(like.new_ones(()))
        sampler: Sampler = asked.sampler.build()
        path = sampler.sample(predict, self.schedule, z, generator, grid=self.steps)
        yield from self.along(path, predict, generator)

    def along(self, path: Path, predict: Predict, generator: Generator | None) -> Iterator[Tensor]:
        """Events of a path, (B, *event)."""
        for z, x0 in path:  # noqa: B007 - the last z is used below
            yield self.units.leave(x0)
        yield self.finish(z, predict, generator)

    def finish(self, z: Tensor, predict: Predict, generator: Generator | None) -> Tensor:
        """x ~ p(x | z_0), (B, *event)."""
        t = z.new_zeros(len(z))
        mean = z / self.schedule.alpha(t)[:, None] if self.units.whole else predict(z, t).x0
        deviation = torch.exp(-0.5 * self.schedule.log_snr(t))[:, None]
        return self.units.leave(mean + deviation * noise_like(z, generator))

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """With `noise` or `edit` every entry is drawn anew, from what it is seen to be."""
        asked, seen = self.asking(options), batch.observed_mask
        predict = guided(self, batch.given, len(batch), asked)
        if asked.noise or asked.edit:
            path = self.renewed(batch, predict, asked, generator)
            return [*self.along(path, predict, generator)][-1]
        usual = self.units.leave(torch.zeros_like(self.units.scale)[None])
        y = self.units.enter(torch.where(seen, batch.x, usual.to(batch.x)))
        times = asked.sampler.build().times(self.schedule, y, 1.0, self.steps)
        path = repaint(
            predict,
            self.schedule,
            times,
            y,
            seen.reshape(y.shape),
            asked.again,
            asked.jump,
            generator,
        )
        *_, x = self.along(path, predict, generator)
        return torch.where(seen, batch.x.to(x), x)

    def renewed(
        self, batch: Batch, predict: Predict, options: SamplingConfig, generator: Generator | None
    ) -> Path:
        """From what rows are with noise, their own or added; noisy levels are no whole numbers."""
        if options.noise and options.edit:
            raise UsageError(
                f"noise={options.noise:g} takes noise out and edit={options.edit:g} adds it; "
                "give one of them"
            )
        if not bool(batch.observed_mask.all()):
            raise UsageError(
                "noise and edit start from whole rows, and some entries are hidden; "
                "complete them first"
            )
        x = batch.x.reshape(len(batch), -1).to(self.units.scale)
        y = (x - self.units.shift) / self.units.scale
        sampler: Sampler = options.sampler.build()
        if options.edit:
            z, t = noised(self.schedule, y, options.edit, self.steps, generator)
            return sampler.sample(predict, self.schedule, z, generator, t, self.steps)
        z, t = matched(self.schedule, y, options.noise / self.units.scale, self.steps, generator)
        times = sampler.times(self.schedule, z, t, self.steps)
        return descend(predict, self.schedule, times, z, generator)

    def asking(self, options: BaseConfig | None) -> SamplingConfig:
        options = options or self.SamplingConfig()
        assert isinstance(options, Drawing.SamplingConfig), "samples are asked for with Sampling"
        return options

    def step(self) -> tuple[nn.Module, tuple[Tensor, ...], Mapping[str, Mapping[int, str]]]:
        """One step of DDIM without noise; see `Step`."""
        return Step.of(self)
