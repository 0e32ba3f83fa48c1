r"""Stochastic and deterministic samplers by steps: ancestral, DDIM, predictor-corrector, Langevin.

With $z_t = \alpha_t x + \sigma_t \epsilon$ and $\lambda = \log \alpha^2 / \sigma^2$, a sampler
uses $\hat x$ and $\hat\epsilon$ at falling times and moves from t to s < t. Ancestral sampling
(Ho et al. 2020) samples from $q(z_s | z_t, \hat x)$; DDIM (Song, Meng & Ermon 2021) takes

$\alpha_s \hat x + \sigma_s \sqrt{1 - \eta^2 c}\, \hat\epsilon + \eta \sigma_s \sqrt{c}\, n$,
$c = 1 - e^{\lambda_t - \lambda_s}$,

which is ancestral for $\eta = 1$. A predictor is corrected by Langevin steps
$z + \delta\, s(z) + \sqrt{2 \delta}\, n$ at the time it has reached (Song et al. 2021).

Solvers of the probability flow are in `_ode_samplers`.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Generator, Tensor

from ...core.config import MAX_STEPS, Configured, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError

if TYPE_CHECKING:
    from ...prob.noise_schedule import NoiseProcess
    from ._parameterisation import DenoiserPrediction


Predict = Callable[[Tensor, Tensor], "DenoiserPrediction"]
"""The prediction at z (B, ...) and times t (B,)."""
Path = Iterator[tuple[Tensor, Tensor]]
"""z and the estimate of x after every step."""
Spacing = Literal["middle", "time", "log_snr", "edm"]
"""Spacing of the times: even in the sigmoid of (lambda - 1) / 3, which is dense at intermediate
noise levels, even in time, in lambda, or in EDM's root of sigma / alpha."""
Variance = Literal["learned", "posterior", "forward"]
MIDDLE_CENTRE, MIDDLE_WIDTH, EDM_RHO = 1.0, 3.0, 7.0
"""Centre and width of the sigmoid in units of the log-SNR, and the exponent of EDM. With 10 steps
of DPM-Solver++ distances on moons, pinwheel and eight_gaussians, one fit each, are then 30, 14 and
3 % above those of 60 steps; with a centre of 0 and a width of 4 it was 70, 47 and 20 %. A centre
of 3 would meet them, but leaves samples of MNIST further from where 80 steps lead: 0.15
deviations, not 0.06."""


SPACING_SCALES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "middle": (
        lambda v: torch.sigmoid((v - MIDDLE_CENTRE) / MIDDLE_WIDTH),
        lambda u: MIDDLE_CENTRE + MIDDLE_WIDTH * torch.logit(u),
    ),
    "log_snr": (torch.clone, torch.clone),
    "edm": (lambda v: torch.exp(-v / (2 * EDM_RHO)), lambda u: -2 * EDM_RHO * torch.log(u)),
}
"""Functions of the log-SNR in which steps are even, with their inverses."""


class Sampler(Configured, abc.ABC):
    """Takes z (B, ...) at time `start` to time 0 in `steps` steps, by default `default_steps`."""

    default_steps: ClassVar[int] = 100

    class Config(BaseConfig):
        tag = "sampler/"
        steps: Annotated[int, Range(1, MAX_STEPS)] | None = None
        """Steps from noise to data; each sampler has its own default."""
        spacing: Spacing = "time"
        """Spacing of the times: dense at intermediate noise levels (middle), even in time, even in
        the log-SNR, or the noise levels of EDM."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abc.abstractmethod
    def sample(
        self,
        predict: Predict,
        noising: NoiseProcess,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        """z and the estimate of x after every step; `grid` is the number of time steps of the
        model, 0 for continuous time."""

    def times(self, noising: NoiseProcess, z: Tensor, start: float, grid: int) -> Tensor:
        """`steps` + 1 falling times from `start` to 0, of the type of z."""
        most = max(1, round(start * grid))
        count = self.count(most if grid else 0)
        wanted = spaced_times(self.config.spacing, noising, z, start, count)
        if not grid:
            return wanted
        places = (wanted * grid).round().long().tolist()
        return z.new_tensor(distinct_places(places, most)) / grid

    def count(self, most: int) -> int:
        """The number of steps, at most `most` if that is not 0."""
        steps = self.config.steps
        if steps is None:
            return min(self.default_steps, most or self.default_steps)
        if most and steps > most:
            raise UsageError(
                f"expected at most the {most} steps of this model, found steps={steps}; "
                f"give steps={most} or fewer"
            )
        return steps


def spaced_times(
    spacing: Spacing, noising: NoiseProcess, z: Tensor, start: float, count: int
) -> Tensor:
    """`count` + 1 falling times from `start` to 0, (count + 1,)."""
    even = torch.linspace(start, 0.0, count + 1, dtype=z.dtype, device=z.device)
    if spacing == "time":
        return even
    there, back = SPACING_SCALES[spacing]
    first, last = there(noising.log_snr(even[[0, -1]]))
    levels = back(torch.lerp(first, last, 1 - even[1:-1] / start))
    return torch.cat([even[:1], noising.time(levels), even[-1:]])


def distinct_places(places: list[int], most: int) -> list[int]:
    """Distinct falling integers from `most` to 0 close to the given ones."""
    count, found = len(places) - 1, [most]
    for left, place in zip(range(count - 1, -1, -1), places[1:], strict=True):
        found.append(max(min(place, found[-1] - 1), left) if left else 0)
    return found


def noise_like(z: Tensor, generator: Generator | None) -> Tensor:
    return torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)


class Ancestral(Sampler):
    """z_s ~ N(mean of q(z_s | z_t, x), v), the model of the bound if the steps are its own.

    v is the variance of the posterior or of the forward step; both are exact for small steps and
    bound the exact one (Sohl-Dickstein et al. 2015). The last step uses that of the posterior.
    """

    default_steps = 250

    class Config(Sampler.Config):
        tag = "sampler/ancestral"
        variance: Variance = "learned"
        """Variance of a step: learned by the network (posterior if it is not), that of the
        posterior q(z_s | z_t, x), or that of the forward step."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: NoiseProcess,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        times = self.times(noising, z, start, grid)
        return ancestral_path(predict, noising, times, z, generator, self.config.variance)


def ancestral_path(
    predict: Predict,
    noising: NoiseProcess,
    times: Tensor,
    z: Tensor,
    generator: Generator | None,
    variance: Variance = "learned",
) -> Path:
    """Ancestral steps from z along falling times."""
    for t, s in itertools.pairwise(times):
        prediction, noise = predict(z, t.expand(len(z))), noise_like(z, generator)
        z = ancestral(prediction, noising, z, s, t, noise, variance)
        yield z, prediction.x0


def ancestral(
    prediction: DenoiserPrediction,
    noising: NoiseProcess,
    z: Tensor,
    s: Tensor,
    t: Tensor,
    noise: Tensor,
    variance: Variance = "learned",
) -> Tensor:
    """z_s sampled given z_t and the prediction there."""
    step = noising.step(s, t)
    spread = step.variance
    if variance == "forward" and s > 0:
        spread = step.forward
    elif variance == "learned" and prediction.share is not None:
        spread = step.variance ** (1 - prediction.share) * step.forward**prediction.share
    return step.on_z * z + step.on_x * prediction.x0 + spread.sqrt() * noise


class DDIM(Sampler):
    """alpha_s x + sigma_s sqrt(1 - eta^2 c) eps + eta sigma_s sqrt(c) n: every eta preserves the
    marginals q(z_t | x) (Song, Meng & Ermon 2021)."""

    default_steps = 50

    class Config(Sampler.Config):
        tag = "sampler/ddim"
        eta: Annotated[float, Range(0, 1)] = 0.0
        """Amount of fresh noise: 0 is deterministic, 1 is ancestral sampling."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: NoiseProcess,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        times, eta = self.times(noising, z, start, grid), self.config.eta
        for t, s in itertools.pairwise(times):
            prediction = predict(z, t.expand(len(z)))
            z = ddim(prediction, noising, s, t, eta, noise_like(z, generator) if eta else None)
            yield z, prediction.x0


def ddim(
    prediction: DenoiserPrediction,
    noising: NoiseProcess,
    s: Tensor,
    t: Tensor,
    eta: float,
    noise: Tensor | None,
) -> Tensor:
    """z_s from the prediction at z_t, and fresh noise if eta is above 0."""
    fresh = -eta * eta * torch.expm1(noising.log_snr(t) - noising.log_snr(s))  # eta^2 c
    alpha, sigma = noising.alpha(s), noising.sigma(s)
    z = alpha * prediction.x0 + sigma * (1 - fresh).sqrt() * prediction.noise
    return z if noise is None else z + sigma * fresh.sqrt() * noise


class PC(Sampler):
    """Predictor-corrector: after each ancestral step, `corrections` Langevin steps with
    delta = (ratio sigma)^2."""

    class Config(Sampler.Config):
        tag = "sampler/pc"
        corrections: Annotated[int, Range(0)] = 1
        """Langevin steps after each step of the predictor."""
        ratio: Annotated[float, Range(0, 1, open=True)] = 0.16
        """Size of a Langevin step in units of the noise at its time."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: NoiseProcess,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        times = self.times(noising, z, start, grid)
        for t, s in itertools.pairwise(times):
            prediction = predict(z, t.expand(len(z)))
            z = ancestral(prediction, noising, z, s, t, noise_like(z, generator))
            x0 = prediction.x0
            if s > 0:
                z, x0 = langevin_steps(predict, noising, z, x0, s, self.config, generator)
            yield z, x0


class Langevin(Sampler):
    """Annealed Langevin dynamics at falling noise levels (Song & Ermon 2019). Each level starts
    where the last one ended, with z / alpha unchanged."""

    class Config(Sampler.Config):
        tag = "sampler/langevin"
        spacing: Spacing = "middle"
        """Spacing of the times: dense at intermediate noise levels (middle), even in time, even in
        the log-SNR, or the noise levels of EDM."""
        corrections: Annotated[int, Range(1)] = 5
        """Langevin steps at each level."""
        ratio: Annotated[float, Range(0, 1, open=True)] = 0.4
        """Size of a Langevin step in units of the noise at its time."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: NoiseProcess,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        times = self.times(noising, z, start, grid)
        for t, s in itertools.pairwise(times):
            z = noising.alpha(s) / noising.alpha(t) * z
            z, x0 = langevin_steps(predict, noising, z, z, s, self.config, generator)
            yield z, x0


def langevin_steps(
    predict: Predict,
    noising: NoiseProcess,
    z: Tensor,
    x0: Tensor,
    t: Tensor,
    config: PC.Config | Langevin.Config,
    generator: Generator | None,
) -> tuple[Tensor, Tensor]:
    """z after the Langevin steps at t, and the last estimate of x."""
    length = (config.ratio * noising.sigma(t)).square()
    for _ in range(config.corrections):
        prediction = predict(z, t.expand(len(z)))
        z = z + length * prediction.score + (2 * length).sqrt() * noise_like(z, generator)
        x0 = prediction.x0
    return z, x0
