r"""Samplers by steps: how noise becomes data with a network that tells x from its noisy versions.

With $z_t = \alpha_t x + \sigma_t \epsilon$ and $\lambda = \log \alpha^2 / \sigma^2$, a sampler
asks for $\hat x$ and $\hat\epsilon$ at falling times and moves from t to s < t. Ancestral sampling
(Ho et al. 2020) draws from $q(z_s | z_t, \hat x)$; DDIM (Song, Meng & Ermon 2021) takes

$\alpha_s \hat x + \sigma_s \sqrt{1 - \eta^2 c}\, \hat\epsilon + \eta \sigma_s \sqrt{c}\, n$,
$c = 1 - e^{\lambda_t - \lambda_s}$,

whose $\eta = 1$ is ancestral. A predictor is corrected by Langevin steps
$z + \delta\, s(z) + \sqrt{2 \delta}\, n$ at the time it has reached (Song et al. 2021).

Solvers of the flow that has the same marginals stand in `_solvers`.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Generator, Tensor

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...core.errors import UsageError

if TYPE_CHECKING:
    from ...prob.noise_schedule import Noising
    from ._parameterisation import Prediction


Predict = Callable[[Tensor, Tensor], "Prediction"]
"""What is known of z (B, ...) at times t (B,)."""
Path = Iterator[tuple[Tensor, Tensor]]
"""z and the estimate of x after every step."""
Spacing = Literal["middle", "time", "log_snr", "edm"]
"""Where steps are: even in s(lambda / 4) with s the sigmoid, which is dense where data take shape,
in time, in lambda, or in EDM's root of sigma / alpha."""
Variance = Literal["learned", "posterior", "forward"]
WIDE, RHO = 4.0, 7.0
"""Width of the middle in units of the log-SNR, and EDM's root."""


SCALES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "middle": (lambda v: torch.sigmoid(v / WIDE), lambda u: WIDE * torch.logit(u)),
    "log_snr": (torch.clone, torch.clone),
    "edm": (lambda v: torch.exp(-v / (2 * RHO)), lambda u: -2 * RHO * torch.log(u)),
}
"""Scales of the log-SNR on which steps are even, with their inverses."""


class Sampler(Configured, abc.ABC):
    """Moves noise z (B, ...) at time `start` to time 0 in `steps`, or in the `usual` number."""

    usual: ClassVar[int] = 100

    class Config(BaseConfig):
        tag = "sampler/"
        steps: Annotated[int, Range(1)] | None = None
        """Steps from noise to data; where none is said, the sampler's usual number."""
        spacing: Spacing = "time"
        """Where the steps are: dense in the middle, even in time, even in the log of the
        signal-to-noise ratio, or as EDM has its noise levels."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abc.abstractmethod
    def sample(
        self,
        predict: Predict,
        noising: Noising,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        """`grid` is the number of times of a law that knows no others, 0 where time flows."""

    def times(self, noising: Noising, z: Tensor, start: float, grid: int) -> Tensor:
        """`steps` + 1 falling times from `start` to 0, of the type of z."""
        most = max(1, round(start * grid))
        count = self.count(most if grid else 0)
        wanted = spaced(self.config.spacing, noising, z, start, count)
        if not grid:
            return wanted
        places = (wanted * grid).round().long().tolist()
        return z.new_tensor(apart(places, most)) / grid

    def count(self, most: int) -> int:
        """How many steps, of a law that takes so many at most; 0 is any number."""
        steps = self.config.steps
        if steps is None:
            return min(self.usual, most or self.usual)
        if most and steps > most:
            raise UsageError(
                f"steps={steps} is more than the {most} times that this law knows; "
                f"give at most {most}"
            )
        return steps


def spaced(spacing: Spacing, noising: Noising, z: Tensor, start: float, count: int) -> Tensor:
    """`count` + 1 falling times from `start` to 0, (count + 1,)."""
    even = torch.linspace(start, 0.0, count + 1, dtype=z.dtype, device=z.device)
    if spacing == "time":
        return even
    there, back = SCALES[spacing]
    first, last = there(noising.log_snr(even[[0, -1]]))
    levels = back(torch.lerp(first, last, 1 - even[1:-1] / start))
    return torch.cat([even[:1], noising.time(levels), even[-1:]])


def apart(places: list[int], most: int) -> list[int]:
    """Falling whole numbers from `most` to 0 near those wanted, no two alike."""
    count, found = len(places) - 1, [most]
    for left, place in zip(range(count - 1, -1, -1), places[1:], strict=True):
        found.append(max(min(place, found[-1] - 1), left) if left else 0)
    return found


def noise_like(z: Tensor, generator: Generator | None) -> Tensor:
    return torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)


class Ancestral(Sampler):
    """z_s ~ N(mean of q(z_s | z_t, x), v): the law whose bound is scored, where steps are its own.

    v is the variance of the posterior or that of the forward step; both are right for small steps
    and bound the right one (Sohl-Dickstein et al. 2015). The last step draws the posterior's.
    """

    usual = 250

    class Config(Sampler.Config):
        tag = "sampler/ancestral"
        variance: Variance = "learned"
        """Variance of a step: as the network says where it has learned to (otherwise the
        posterior's), that of q(z_s | z_t, x), or that of the forward step."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: Noising,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        times = self.times(noising, z, start, grid)
        return descend(predict, noising, times, z, generator, self.config.variance)


def descend(
    predict: Predict,
    noising: Noising,
    times: Tensor,
    z: Tensor,
    generator: Generator | None,
    variance: Variance = "learned",
) -> Path:
    """Ancestral steps along falling times: whatever z is, a draw from what it comes from."""
    for t, s in itertools.pairwise(times):
        told, noise = predict(z, t.expand(len(z))), noise_like(z, generator)
        z = ancestral(told, noising, z, s, t, noise, variance)
        yield z, told.x0


def ancestral(
    told: Prediction,
    noising: Noising,
    z: Tensor,
    s: Tensor,
    t: Tensor,
    noise: Tensor,
    variance: Variance = "learned",
) -> Tensor:
    """z_s drawn given z_t and what is told of it."""
    step = noising.step(s, t)
    spread = step.variance
    if variance == "forward" and s > 0:
        spread = step.forward
    elif variance == "learned" and told.share is not None:
        spread = step.variance ** (1 - told.share) * step.forward**told.share
    return step.on_z * z + step.on_x * told.x0 + spread.sqrt() * noise


class DDIM(Sampler):
    """alpha_s x + sigma_s sqrt(1 - eta^2 c) eps + eta sigma_s sqrt(c) n: for every eta the laws of
    z_t given x are kept (Song, Meng & Ermon 2021)."""

    usual = 50

    class Config(Sampler.Config):
        tag = "sampler/ddim"
        eta: Annotated[float, Range(0, 1)] = 0.0
        """How much noise is drawn anew: 0 none, 1 as ancestral sampling does."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: Noising,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        times, eta = self.times(noising, z, start, grid), self.config.eta
        for t, s in itertools.pairwise(times):
            told = predict(z, t.expand(len(z)))
            z = ddim(told, noising, s, t, eta, noise_like(z, generator) if eta else None)
            yield z, told.x0


def ddim(
    told: Prediction, noising: Noising, s: Tensor, t: Tensor, eta: float, noise: Tensor | None
) -> Tensor:
    """z_s made of what is told of z_t, and of noise where eta is above 0."""
    anew = -eta * eta * torch.expm1(noising.log_snr(t) - noising.log_snr(s))  # eta^2 c
    alpha, sigma = noising.alpha(s), noising.sigma(s)
    z = alpha * told.x0 + sigma * (1 - anew).sqrt() * told.noise
    return z if noise is None else z + sigma * anew.sqrt() * noise


class PC(Sampler):
    """A predictor, which is ancestral, and after each of its steps `corrections` steps of Langevin
    dynamics with delta = (ratio sigma)^2: the scale of z given x sets their length."""

    class Config(Sampler.Config):
        tag = "sampler/pc"
        corrections: Annotated[int, Range(0)] = 1
        """Langevin steps after each step of the predictor."""
        ratio: Annotated[float, Range(0, 1, open=True)] = 0.16
        """Length of a Langevin step in units of the noise at its time."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: Noising,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        times = self.times(noising, z, start, grid)
        for t, s in itertools.pairwise(times):
            told = predict(z, t.expand(len(z)))
            z = ancestral(told, noising, z, s, t, noise_like(z, generator))
            x0 = told.x0
            if s > 0:
                z, x0 = langevin(predict, noising, z, x0, s, self.config, generator)
            yield z, x0


class Langevin(Sampler):
    """Langevin dynamics at falling levels of noise (Song & Ermon 2019), each begun where the last
    one ended; z / alpha goes on unchanged, which is z itself where variance explodes."""

    class Config(Sampler.Config):
        tag = "sampler/langevin"
        spacing: Spacing = "middle"
        """Where the levels are: dense in the middle, even in time, even in the log of the
        signal-to-noise ratio, or as EDM has its noise levels."""
        corrections: Annotated[int, Range(1)] = 5
        """Langevin steps at each level."""
        ratio: Annotated[float, Range(0, 1, open=True)] = 0.4
        """Length of a Langevin step in units of the noise at its time."""

    config: Config

    def sample(
        self,
        predict: Predict,
        noising: Noising,
        z: Tensor,
        generator: Generator | None = None,
        start: float = 1.0,
        grid: int = 0,
    ) -> Path:
        times = self.times(noising, z, start, grid)
        for t, s in itertools.pairwise(times):
            z = noising.alpha(s) / noising.alpha(t) * z
            z, x0 = langevin(predict, noising, z, z, s, self.config, generator)
            yield z, x0


def langevin(
    predict: Predict,
    noising: Noising,
    z: Tensor,
    x0: Tensor,
    t: Tensor,
    config: PC.Config | Langevin.Config,
    generator: Generator | None,
) -> tuple[Tensor, Tensor]:
    """z after some steps of Langevin dynamics at t, and the last estimate of x."""
    length = (config.ratio * noising.sigma(t)).square()
    for _ in range(config.corrections):
        told = predict(z, t.expand(len(z)))
        z = z + length * told.score + (2 * length).sqrt() * noise_like(z, generator)
        x0 = told.x0
    return z, x0
