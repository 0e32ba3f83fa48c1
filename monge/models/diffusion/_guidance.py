r"""Guidance: samples that follow their conditions more, or less, than the model does.

$\nabla \log p(z | y) = \nabla \log p(z) + \nabla \log p(y | z)$, so that with a weight $\gamma$
the score is $\nabla \log p(z) + \gamma \nabla \log p(y | z)$ by a classifier of noisy data
(Dhariwal & Nichol 2021), or $\gamma \nabla \log p(z | y) + (1 - \gamma) \nabla \log p(z)$ by a
model also trained without y (Ho & Salimans 2022, whose w is $\gamma - 1$). 0 ignores y, 1 is the
model, above 1 sharpens it. For other $\gamma$ this is the score of $p(z_t) p(y | z_t)^\gamma$ at
each t, which is not the noised $p(x) p(y | x)^\gamma$: the distributions at successive times are
not consistent.

Estimates of x are combined as scores are, since $\alpha \hat x = z + \sigma^2 \nabla \log p(z)$.
"""

from __future__ import annotations

import abc
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor

from ...core.abilities import Given
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import DataError, UsageError
from ...core.space import Space
from ._conditioning import Conditioning
from ._parameterisation import DenoiserPrediction

if TYPE_CHECKING:
    from ._samplers import Predict
    from ._sampling import DiffusionSampling


LOG_SNR_SLACK = 0.01
"""By how much the log-SNR of a schedule may leave the range a classifier was fitted on."""


class Guidance(BaseConfig):
    """The weight of the conditions as a function of time."""

    neutral = {"gamma": (None, 1.0), "w": (None, 0.0)}
    gamma: Annotated[float, Range(0)] | None = None
    """Guidance weight of the conditions: 0 ignores them, 1 is the model itself, above 1 follows
    them more closely."""
    w: Annotated[float, Range(-1)] | None = None
    """The same weight as gamma - 1."""
    ramp: Literal["constant", "linear", "cosine"] = "constant"
    """How the weight goes from 1 at noise to gamma at data: constant gamma, linear or cosine."""
    t_max: Annotated[float, Range(0, 1)] = 1.0
    """Guide only at times up to this one; 1 is noise."""
    t_min: Annotated[float, Range(0, 1)] = 0.0
    """Guide only at times from this one on; 0 is data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        both = self.gamma is not None and self.w is not None
        if both and not math.isclose(self.gamma - 1, self.w):  # type: ignore[operator, arg-type]
            raise UsageError(
                f"expected w to be gamma - 1, found gamma={self.gamma:g} and w={self.w:g}; "
                "give one of them"
            )

    @property
    def strength(self) -> float:
        """gamma, 1 by default."""
        if self.gamma is not None:
            return self.gamma
        return 1.0 if self.w is None else self.w + 1

    @property
    def ignores_conditions(self) -> bool:
        """Whether the conditions have no weight at any time."""
        always = self.ramp == "constant" and self.t_max == 1 and self.t_min == 0
        return self.strength == 0 and always

    def weight(self, t: Tensor) -> Tensor:
        """gamma at times t (B,), as a column (B, 1)."""
        rise = {
            "constant": torch.ones_like,
            "linear": lambda t: 1 - t,
            "cosine": lambda t: 0.5 + 0.5 * torch.cos(math.pi * t),
        }[self.ramp](t)
        active = (t <= self.t_max) & (t >= self.t_min)
        return torch.where(active, 1 + (self.strength - 1) * rise, 1.0)[:, None]


class NoiseConditionalClassifier(abc.ABC):
    """p(y | z), the distribution of a label given noisy data at every noise level."""

    space: Space

    @property
    @abc.abstractmethod
    def input_space(self) -> Space:
        """The space of the data that are noisy."""

    @abc.abstractmethod
    def log_snr_range(self) -> tuple[float, float]:
        """The lowest and the highest log-SNR it was fitted on."""

    @abc.abstractmethod
    def log_prob_noisy(self, z: Tensor, log_snr: Tensor, y: Tensor) -> Tensor:
        """log p(y | z), (B,), for standardised z (B, D) of variance alpha^2 + sigma^2 = 1."""


def guided_predictor(
    model: DiffusionSampling,
    given: Given,
    n: int,
    options: DiffusionSampling.SamplingConfig,
    allowed: Tensor | None = None,
    cluster: Tensor | None = None,
) -> Predict:
    """The prediction function of a sampler: the model with the requested guidance; `allowed`
    (n, components) are the components that the cells of a table may have, `cluster` (n,) the
    clusters of the rows."""
    guidance, classifier = options.guidance, guiding_classifier(model, options)
    if classifier is None:
        return clip_estimates(
            model, options, classifier_free_guidance(model, given, n, guidance, allowed, cluster)
        )
    label = classifier.space.name
    if label not in given:
        raise DataError(
            f"guide={options.guide.run if options.guide else ''} expects a condition {label!r} "
            f"for the samples, found none; give {label}=VALUE"
        )
    y = given[label].x.expand(n)
    own = {name: part for name, part in given.items() if name in model.space.given}
    plain = unguided(model, model.encode_conditions(own, n))
    return clip_estimates(
        model, options, classifier_guidance(model, plain, classifier, y, guidance)
    )


def unguided(model: DiffusionSampling, conditions: Conditioning | None) -> Predict:
    return lambda z, t: model.predict(z, t, conditions)


def clip_estimates(
    model: DiffusionSampling, options: DiffusionSampling.SamplingConfig, predict: Predict
) -> Predict:
    """Predictions whose estimates of discrete data are clamped to the range of the levels."""
    if not (options.clip and model.units.discrete):
        return predict
    return lambda z, t: predict(z, t).map_x0(model.units.clamp)


def classifier_free_guidance(
    model: DiffusionSampling,
    given: Given,
    n: int,
    guidance: Guidance,
    allowed: Tensor | None = None,
    cluster: Tensor | None = None,
) -> Predict:
    """gamma times the conditional and 1 - gamma times the unconditional prediction."""
    if guidance.strength != 1:
        check_classifier_free(model)
    if guidance.ignores_conditions:
        return unguided(model, replace(model.condition_encoder.empty(n), allowed=allowed))
    conditions = replace(model.encode_conditions(given, n, cluster), allowed=allowed)
    none = torch.zeros(n, dtype=torch.bool, device=conditions.vector.device)
    both = conditions.concat(conditions.keep_rows(none))

    def predict(z: Tensor, t: Tensor) -> DenoiserPrediction:
        weight = guidance.weight(t)
        if bool((weight == 1).all()):
            return model.predict(z, t, conditions)
        with_y, without_y = model.predict(z.repeat(2, 1), t.repeat(2), both).x0.chunk(2)
        alpha, sigma = model.schedule.alpha(t)[:, None], model.schedule.sigma(t)[:, None]
        return DenoiserPrediction(z, alpha, sigma, "x0", torch.lerp(without_y, with_y, weight))

    return predict


def check_classifier_free(model: DiffusionSampling) -> None:
    """Raise a UsageError if classifier-free guidance is impossible."""
    if not model.condition_encoder.width:
        raise UsageError(
            f"gamma expects a conditional model, found a {model.name} without conditions; "
            "fit it with --given, or name a classifier with guide=RUN"
        )
    if not model.config.drop:
        raise UsageError(
            f"gamma expects a model also trained without conditions, found a {model.name} "
            "fitted with drop=0; fit it with drop=0.1"
        )


def classifier_guidance(
    model: DiffusionSampling,
    plain: Predict,
    classifier: NoiseConditionalClassifier,
    y: Tensor,
    guidance: Guidance,
) -> Predict:
    """x moved by gamma sigma^2 / alpha times the gradient of log p(y | z)."""

    def predict(z: Tensor, t: Tensor) -> DenoiserPrediction:
        prediction, spread = plain(z, t), model.schedule.spread(t)[:, None]
        with torch.enable_grad():
            point = z.detach().requires_grad_()
            log_p = classifier.log_prob_noisy(point / spread, model.schedule.log_snr(t), y)
            (gradient,) = torch.autograd.grad(log_p.sum(), point)
        shift = guidance.weight(t) * prediction.sigma.square() / prediction.alpha * gradient
        return prediction.map_x0(lambda x: x + shift)

    return predict


def guiding_classifier(
    model: DiffusionSampling, options: DiffusionSampling.SamplingConfig
) -> NoiseConditionalClassifier | None:
    """The classifier named by `guide`, checked against the model; None without one."""
    if options.guide is None:
        return None
    run = options.guide.run
    if "guide" not in model.parts:
        raise UsageError(
            f"expected the run guide={run} to be loaded, found none; sample from a saved run, "
            "which loads it"
        )
    classifier = model.parts["guide"]
    if not isinstance(classifier, NoiseConditionalClassifier):
        raise UsageError(
            f"expected a classifier of noisy data, found guide={run}; name a run of "
            "diffusion.noisy_classifier"
        )
    same = ("kind", "shape", "size", "mean", "scale")
    if any(getattr(classifier.input_space, name) != getattr(model.space, name) for name in same):
        raise DataError(
            f"expected guide={run} to classify the {model.space} that this model samples, found "
            f"{classifier.input_space} or other statistics; fit both on the same data"
        )
    ends = model.schedule.log_snr(model.units.like.new_tensor([1.0, 0.0])).tolist()
    low, high = classifier.log_snr_range()
    if ends[0] < low - LOG_SNR_SLACK or ends[1] > high + LOG_SNR_SLACK:
        raise UsageError(
            f"expected a schedule within log-SNR {low:g} to {high:g}, on which guide={run} was "
            f"fitted, found {ends[0]:.3g} to {ends[1]:.3g}; fit the classifier with low and high "
            "that cover it"
        )
    return classifier
