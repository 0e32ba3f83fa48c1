r"""Guidance: samples that heed what they are given more, or less, than the law says.

$\nabla \log p(z | y) = \nabla \log p(z) + \nabla \log p(y | z)$, so that with a weight $\gamma$

$\nabla \log p(z) + \gamma \nabla \log p(y | z)$ by a classifier of noisy data (Dhariwal & Nichol
2021), or $\gamma \nabla \log p(z | y) + (1 - \gamma) \nabla \log p(z)$ by a law that was also
trained with y hidden (Ho & Salimans 2022, whose w is $\gamma - 1$). 0 forgets y, 1 is the law,
above 1 it is sharpened. For other $\gamma$ this is the score of $p(z_t) p(y | z_t)^\gamma$ at each
t, which is not what noise makes of $p(x) p(y | x)^\gamma$: the laws of successive times do not fit
together.

Estimates of x are combined as scores are, since $\alpha \hat x = z + \sigma^2 \nabla \log p(z)$.
"""

from __future__ import annotations

import abc
import math
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor

from ...core.abilities import Given
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import DataError, UsageError
from ...core.space import Space
from ._conditioning import Told
from ._parameterisation import Prediction

if TYPE_CHECKING:
    from ._samplers import Predict
    from ._sampling import Drawing


SLACK = 0.01
"""By how much the log-SNR of a law may pass the range a classifier was fitted on."""


class Guidance(BaseConfig):
    """The weight of what is given, as a function of time."""

    gamma: Annotated[float, Range(0)] | None = None
    """Weight of what is given: 0 forgets it, 1 is the law itself, above 1 it counts for more."""
    w: Annotated[float, Range(-1)] | None = None
    """The same weight as gamma - 1."""
    ramp: Literal["constant", "linear", "cosine"] = "constant"
    """How the weight goes from 1 at noise to gamma at data: at once, along a line or a cosine."""
    since: Annotated[float, Range(0, 1)] = 1.0
    """Guide only from this time on; 1 is noise,"""
    until: Annotated[float, Range(0, 1)] = 0.0
    """and only down to this time; 0 is data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        both = self.gamma is not None and self.w is not None
        if both and not math.isclose(self.gamma - 1, self.w):  # type: ignore[operator, arg-type]
            raise UsageError(
                f"gamma={self.gamma:g} and w={self.w:g} disagree, for w is gamma - 1; "
                "give one of them"
            )

    @property
    def strength(self) -> float:
        """gamma, 1 where nothing is said."""
        if self.gamma is not None:
            return self.gamma
        return 1.0 if self.w is None else self.w + 1

    @property
    def forgets(self) -> bool:
        """Whether what is given has no weight at any time."""
        always = self.ramp == "constant" and self.since == 1 and self.until == 0
        return self.strength == 0 and always

    def weight(self, t: Tensor) -> Tensor:
        """gamma at times t (B,), as a column (B, 1)."""
        rise = {
            "constant": torch.ones_like,
            "linear": lambda t: 1 - t,
            "cosine": lambda t: 0.5 + 0.5 * torch.cos(math.pi * t),
        }[self.ramp](t)
        heeded = (t <= self.since) & (t >= self.until)
        return torch.where(heeded, 1 + (self.strength - 1) * rise, 1.0)[:, None]


class Judge(abc.ABC):
    """p(y | z), a law of labels given noisy data, at every level of noise."""

    space: Space

    @property
    @abc.abstractmethod
    def field(self) -> Space:
        """The space of what is noisy."""

    @abc.abstractmethod
    def reach(self) -> tuple[float, float]:
        """The lowest and the highest log-SNR it was fitted on."""

    @abc.abstractmethod
    def log_prob_noisy(self, z: Tensor, log_snr: Tensor, y: Tensor) -> Tensor:
        """log p(y | z), (B,), for standardised z (B, D) of variance alpha^2 + sigma^2 = 1."""


def guided(law: Drawing, given: Given, n: int, options: Drawing.SamplingConfig) -> Predict:
    """What a sampler asks of a law, by the user's guidance."""
    guidance, judge = options.guidance, judge_of(law, options)
    if judge is None:
        return clipped(law, options, classifier_free(law, given, n, guidance))
    title = judge.space.name
    if title not in given:
        raise DataError(
            f"guide={options.guide.run if options.guide else ''} needs the {title!r} that "
            f"samples shall have; give {title}"
        )
    y = given[title].x.expand(n)
    own = {name: part for name, part in given.items() if name in law.space.given}
    plain = asked(law, law.tell(own, n))
    return clipped(law, options, classified(law, plain, judge, y, guidance))


def asked(law: Drawing, told: Told | None) -> Predict:
    return lambda z, t: law.predict(z, t, told)


def clipped(law: Drawing, options: Drawing.SamplingConfig, predict: Predict) -> Predict:
    """Estimates of whole numbers held within their range."""
    if not (options.clip and law.units.whole):
        return predict
    return lambda z, t: predict(z, t).changed(law.units.within)


def classifier_free(law: Drawing, given: Given, n: int, guidance: Guidance) -> Predict:
    """gamma times what is said with the condition, and 1 - gamma times what is said without."""
    if guidance.strength != 1:
        check(law)
    if guidance.forgets:
        return asked(law, None)
    told = law.tell(given, n)
    both = told.beside(told.hidden(torch.zeros(n, dtype=torch.bool, device=told.vector.device)))

    def predict(z: Tensor, t: Tensor) -> Prediction:
        weight = guidance.weight(t)
        if bool((weight == 1).all()):
            return law.predict(z, t, told)
        told_of, plain = law.predict(z.repeat(2, 1), t.repeat(2), both).x0.chunk(2)
        alpha, sigma = law.schedule.alpha(t)[:, None], law.schedule.sigma(t)[:, None]
        return Prediction(z, alpha, sigma, "x0", torch.lerp(plain, told_of, weight))

    return predict


def check(law: Drawing) -> None:
    """Whether a weight of the condition means anything."""
    if not law.space.given:
        raise UsageError(
            f"gamma weighs what a law is given, and this {law.name} is given nothing; "
            "fit it with --given, or name a classifier with guide=RUN"
        )
    if not law.config.drop:
        raise UsageError(
            f"gamma needs a law that also knows samples without conditions, and this "
            f"{law.name} was fitted with drop=0; fit it with drop=0.1"
        )


def classified(
    law: Drawing, plain: Predict, judge: Judge, y: Tensor, guidance: Guidance
) -> Predict:
    """x moved by gamma sigma^2 / alpha times the gradient of log p(y | z)."""

    def predict(z: Tensor, t: Tensor) -> Prediction:
        told, spread = plain(z, t), law.schedule.spread(t)[:, None]
        with torch.enable_grad():
            point = z.detach().requires_grad_()
            log_p = judge.log_prob_noisy(point / spread, law.schedule.log_snr(t), y)
            (slope,) = torch.autograd.grad(log_p.sum(), point)
        move = guidance.weight(t) * told.sigma.square() / told.alpha * slope
        return told.changed(lambda x: x + move)

    return predict


def judge_of(law: Drawing, options: Drawing.SamplingConfig) -> Judge | None:
    """The classifier that guides, if one does, fit to guide this law."""
    if options.guide is None:
        return None
    if "guide" not in law.parts:
        raise UsageError(
            f"guide={options.guide.run} names a run that was not loaded; draw from a run, "
            "which loads it"
        )
    judge = law.parts["guide"]
    if not isinstance(judge, Judge):
        raise UsageError(
            f"guide={options.guide.run} does not judge noisy data; name a run of "
            "diffusion.noisy_classifier"
        )
    same = ("kind", "shape", "size", "mean", "scale")
    if any(getattr(judge.field, name) != getattr(law.space, name) for name in same):
        raise DataError(
            f"guide={options.guide.run} judges {judge.field} and this law draws "
            f"{law.space}, or their statistics differ; fit both on the same data"
        )
    ends = law.schedule.log_snr(law.units.scale.new_tensor([1.0, 0.0])).tolist()
    low, high = judge.reach()
    if ends[0] < low - SLACK or ends[1] > high + SLACK:
        raise UsageError(
            f"guide={options.guide.run} was fitted on log-SNR {low:g} to {high:g} and "
            f"this schedule goes from {ends[0]:.3g} to {ends[1]:.3g}; fit the "
            "classifier with low and high that hold it"
        )
    return judge
