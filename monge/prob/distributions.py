r"""Distributions of single numbers, each with a few unbounded parameters.

Also the standard normal, $\log N(z; 0, I) = -\frac12 (|z|^2 + D \log 2\pi)$, and the log of a mean
of weights given by their logarithms.

Bernoulli: logit l, $\log p = x l + \log\sigma(-l)$.  Categorical: logits.  Mixtures of K
components have weights (softmax of K logits; none if K = 1), K means and K log-scales in the
standardised coordinate y = (x - mean) / scale of the training split:

Gaussian: $p(x) = \sum_k w_k N(y; m_k, s_k^2) / \text{scale}$, in the units of the data.
Discretised logistic on 0..top: $P(x) = \sum_k w_k [\sigma(b_k) - \sigma(a_k)]$ with a, b =
(y -+ h - m_k) / s_k and h half a level's width in y; the ends take the tails (Salimans et al.
2017). The difference is $\sigma(b)\,\sigma(-a)\,(1 - e^{a-b})$, whose logarithm is a sum of terms
that never cancel.
"""

from __future__ import annotations

import abc
import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pathwise(mean: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
    """z = mean + scale noise, a normal sample that carries the gradient of both parameters."""
    return mean + scale * noise


def normal_log_prob(z: Tensor) -> Tensor:
    """log N(z; 0, 1) of each number."""
    return -0.5 * (z.square() + math.log(2 * math.pi))


def normal_log_prob_rows(z: Tensor) -> Tensor:
    """log N(z; 0, I) of each row (B, ...), (B,)."""
    z = z.flatten(1)
    return -0.5 * (z.square().sum(1) + z.shape[1] * math.log(2 * math.pi))


def log_mean_exp(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the mean of k weights (k, ...), which bounds that of their expectation from
    below, and its Monte-Carlo error by the delta method, each (...)."""
    top = log_weights.amax(0)
    weights = (log_weights - top).exp()
    mean, error = weights.mean(0), weights.std(0) / len(weights) ** 0.5
    return top + torch.log(mean), error / mean


MAX_LOG_SCALE = math.log(30)
"""Upper bound of log-scales, in log training scales; keeps samples of a bad network finite."""
MODE_STEPS = 50
"""Fixed-point steps from the mean of a component to a mode of the mixture."""
ALL_ENTRIES = slice(None)
EntryIndex = int | slice
"""Index into the entries of a group: one entry (its axis is dropped) or all."""


class Distribution(nn.Module, abc.ABC):
    """Distributions of d numbers of one kind, independent given `count` parameters each."""

    count: int
    normal: ClassVar[bool] = True
    """Whether sampling uses the normal noise besides the uniform."""

    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Fit what the training values (B, d) determine beyond their mean and scale."""

    @abc.abstractmethod
    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """log p of x (*S, d) under params (*S, d, count), (*S, d)."""

    @abc.abstractmethod
    def sample(self, params: Tensor, noise: Tensor, at: EntryIndex = ALL_ENTRIES) -> Tensor:
        """x computed from noise (*S, d, 2), a uniform and a normal per number."""

    @abc.abstractmethod
    def mean(self, params: Tensor) -> Tensor:
        """E[x], (*S, d); of a label, its most probable code."""

    @abc.abstractmethod
    def initial_params(self) -> Tensor:
        """Parameters that match the training marginals, (d, count)."""

    def values(self, params: Tensor) -> Tensor:
        """log P of 0, 1, ... in turn, (*S, d, K); K is 0 for unbounded values."""
        return params[..., :0]

    def cumulative(self, params: Tensor, t: Tensor) -> Tensor:
        """P(x <= t) for t (*S, d), (*S, d)."""
        each = self.values(params).exp()  # (*S, d, K)
        codes = torch.arange(each.shape[-1], device=t.device)
        return (each * (codes <= t[..., None])).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The most probable x, (*S, d)."""
        return self.values(params).argmax(-1).to(params.dtype)

    def present(self, params: Tensor) -> Tensor:
        """The parameters of the same distributions given that no cell is empty."""
        return params

    def log_present(self, params: Tensor) -> Tensor:
        """The log-probability that a cell is not empty, (*S, d)."""
        return params.new_zeros(params.shape[:-1])


class BernoulliDistribution(Distribution):
    """P(x = 1) = sigmoid(l)."""

    normal = False
    odds: Tensor

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.count = 1
        self.register_buffer("odds", torch.logit(mean, eps=1e-3), persistent=False)

    def fit(self, x: Tensor, seen: Tensor) -> None:
        share = (x.masked_fill(~seen, 0.0).sum(0) + 0.5) / (seen.sum(0) + 1)
        self.odds.copy_(torch.logit(share, eps=1e-3))

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        logit = params[..., 0]
        return x * logit + F.logsigmoid(-logit)

    def sample(self, params: Tensor, noise: Tensor, at: EntryIndex = ALL_ENTRIES) -> Tensor:
        return params.select(-1, 0).sigmoid().gt_(noise.select(-1, 0))

    def mean(self, params: Tensor) -> Tensor:
        return params[..., 0].sigmoid()

    def initial_params(self) -> Tensor:
        return self.odds[:, None]

    def values(self, params: Tensor) -> Tensor:
        return F.logsigmoid(torch.cat([-params, params], -1))


class CategoricalDistribution(Distribution):
    """P(x = k) = softmax(l)_k over k = 0..size-1; `ordered` where the codes are numbers, and
    `optional` where the last code is the empty cell."""

    normal = False
    share: Tensor

    def __init__(self, entries: int, size: int, ordered: bool, optional: bool = False) -> None:
        super().__init__()
        self.count, self.ordered, self.optional = size, ordered, optional
        self.register_buffer("share", torch.ones(entries, size), persistent=False)

    def fit(self, x: Tensor, seen: Tensor) -> None:
        self.share.copy_(smoothed_counts(x, seen, self.count))

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        return params.log_softmax(-1).gather(-1, x.long()[..., None])[..., 0]

    def sample(self, params: Tensor, noise: Tensor, at: EntryIndex = ALL_ENTRIES) -> Tensor:
        return sample_categorical(params, noise.select(-1, 0)).to(params.dtype)

    def mean(self, params: Tensor) -> Tensor:
        if not self.ordered:
            return params.argmax(-1).to(params.dtype)
        codes = torch.arange(self.count, dtype=params.dtype, device=params.device)
        return params.softmax(-1) @ codes

    def initial_params(self) -> Tensor:
        return self.share.log()

    def values(self, params: Tensor) -> Tensor:
        return params.log_softmax(-1)

    def present(self, params: Tensor) -> Tensor:
        if not self.optional:
            return params
        masked = params.clone()
        masked[..., -1] = -torch.inf
        return masked

    def log_present(self, params: Tensor) -> Tensor:
        if not self.optional:
            return super().log_present(params)
        return params[..., :-1].logsumexp(-1) - params.logsumexp(-1)


class MixtureDistribution(Distribution):
    """K components with means and scales in the standardised coordinate.

    A scale is exp(floor) + exp(l): free above its floor, never below it.
    """

    shift: Tensor
    scale: Tensor
    floor: Tensor
    spread: float
    """Standard deviation of a component of scale 1."""

    def __init__(self, components: int, shift: Tensor, scale: Tensor, floor: Tensor) -> None:
        super().__init__()
        self.components = components
        self.count = 3 * components if components > 1 else 2
        for name, value in (("shift", shift), ("scale", scale), ("floor", floor)):
            self.register_buffer(name, value.clone(), persistent=False)

    def split(self, params: Tensor, at: EntryIndex = ALL_ENTRIES) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the weights, means and scales, each (*S, d, K)."""
        *logits, means, raw = params.split(self.components, -1)
        weights = logits[0] if logits else means.new_zeros(1).expand_as(means)
        return weights, means, raw.clamp(max=MAX_LOG_SCALE).exp() + self.floor[at].exp()[..., None]

    def log_mix(self, logits: Tensor, terms: Tensor) -> Tensor:
        """log sum_k w_k exp(terms_k), (*S, d)."""
        if self.components == 1:
            return terms[..., 0]
        return torch.logsumexp(logits.log_softmax(-1) + terms, -1)

    def component(self, params: Tensor, noise: Tensor, at: EntryIndex) -> tuple[Tensor, Tensor]:
        """Mean and scale of the component that the uniform picks, each (*S, d)."""
        logits, means, scales = self.split(params, at)
        if self.components == 1:
            return means[..., 0], scales[..., 0]
        which = sample_categorical(logits, noise[..., 0])[..., None]
        return means.gather(-1, which)[..., 0], scales.gather(-1, which)[..., 0]

    def initial_params(self) -> Tensor:
        """Equal weights, means at the quantiles of a normal, scales that make up variance 1."""
        places = (torch.arange(self.components) + 0.5) / self.components
        means = torch.special.ndtri(places)
        rest = math.sqrt(1 - float(means.square().mean()))
        log_scales = torch.full_like(means, math.log(rest / self.spread))
        logits = [torch.zeros_like(means)] if self.components > 1 else []
        row = torch.cat([*logits, means, log_scales])
        return row.expand(len(self.shift), self.count).to(self.shift)


class GaussianMixture(MixtureDistribution):
    """sum_k w_k N(y; m_k, s_k^2), as a density of x (dy/dx = 1 / scale).

    s_k stays above a thousandth of the training scale, so that repeated values in the data cannot
    make the density infinite.
    """

    spread = 1.0

    def __init__(self, components: int, shift: Tensor, scale: Tensor) -> None:
        floor = torch.full_like(scale, math.log(1e-3))
        super().__init__(components, shift, scale, floor)

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        logits, means, scales = self.split(params)
        y = ((x - self.shift) / self.scale)[..., None]  # (*S, d, 1)
        gap = (y - means) / scales  # (*S, d, K)
        terms = torch.addcmul(scales.log(), gap, gap, value=0.5).neg()
        return self.log_mix(logits, terms) - (self.scale.log() + 0.5 * math.log(2 * math.pi))

    def sample(self, params: Tensor, noise: Tensor, at: EntryIndex = ALL_ENTRIES) -> Tensor:
        mean, scale = self.component(params, noise, at)
        return self.shift[at] + self.scale[at] * (mean + scale * noise[..., 1])

    def mean(self, params: Tensor) -> Tensor:
        logits, means, _ = self.split(params)
        return self.shift + self.scale * (logits.softmax(-1) * means).sum(-1)

    def cumulative(self, params: Tensor, t: Tensor) -> Tensor:
        logits, means, scales = self.split(params)
        y = ((t - self.shift) / self.scale)[..., None]
        below = torch.special.ndtr((y - means) / scales)  # (*S, d, K)
        return (logits.softmax(-1) * below).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The highest of the modes reached from the means of the components by the fixed-point
        iteration y = sum_k r_k m_k / s_k^2 / sum_k r_k / s_k^2 with r_k the responsibilities
        (Carreira-Perpinan 2000)."""
        logits, means, scales = (part[..., None, :] for part in self.split(params))
        y, precision = means.mT, scales**-2  # (*S, d, K, 1)
        terms = logits.log_softmax(-1) - scales.log()
        for _ in range(MODE_STEPS if self.components > 1 else 0):
            share = (terms - 0.5 * (y - means).square() * precision).softmax(-1) * precision
            y = (share * means).sum(-1, keepdim=True) / share.sum(-1, keepdim=True)
        height = (terms - 0.5 * (y - means).square() * precision).logsumexp(-1)  # (*S, d, K)
        best = y[..., 0].gather(-1, height.argmax(-1, keepdim=True))[..., 0]
        return self.shift + self.scale * best


class DiscretisedLogisticMixture(MixtureDistribution):
    """sum_k w_k [sigma(b_k) - sigma(a_k)] on the levels 0..top.

    s_k stays above a twentieth of a level's width: one level can then take all but 1e-4.
    """

    spread = math.pi / math.sqrt(3)

    def __init__(self, components: int, shift: Tensor, scale: Tensor, top: int) -> None:
        super().__init__(components, shift, scale, (0.05 / scale).log())
        self.top = top

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        logits, means, scales = self.split(params)
        rate, half = 1 / scales, (0.5 / self.scale)[:, None]
        gap = ((x - self.shift) / self.scale)[..., None] - means  # (*S, d, K)
        below, above = F.logsigmoid((gap + half) * rate), F.logsigmoid((half - gap) * rate)
        width = (-torch.expm1(-2 * half * rate)).log()
        lowest, highest = (x <= 0)[..., None], (x >= self.top)[..., None]
        terms = below.masked_fill(highest, 0.0) + above.masked_fill(lowest, 0.0)
        return self.log_mix(logits, terms + width.masked_fill(lowest | highest, 0.0))

    def sample(self, params: Tensor, noise: Tensor, at: EntryIndex = ALL_ENTRIES) -> Tensor:
        mean, scale = self.component(params, noise, at)
        normal = noise[..., 1]
        logistic = torch.special.log_ndtr(normal) - torch.special.log_ndtr(-normal)
        x = self.shift[at] + self.scale[at] * (mean + scale * logistic)
        return x.round().clamp(0, self.top)

    def mean(self, params: Tensor) -> Tensor:
        """The mean of the clamped logistic; rounding changes it little."""
        logits, means, scales = self.split(params)
        scale = self.scale[:, None] * scales
        centre = self.shift[:, None] + self.scale[:, None] * means
        held = scale * (F.softplus(centre / scale) - F.softplus((centre - self.top) / scale))
        return (logits.softmax(-1) * held).sum(-1)

    def values(self, params: Tensor) -> Tensor:
        levels = torch.arange(self.top + 1, dtype=params.dtype, device=params.device)
        shape = (len(levels), *params.shape[:-1])
        every = levels.reshape(-1, *(1,) * (params.ndim - 1)).expand(shape)
        return self.log_prob(params.expand(len(levels), *params.shape), every).movedim(0, -1)


def smoothed_counts(codes: Tensor, seen: Tensor, size: int) -> Tensor:
    """Counts of each observed code per column of (B, d), plus one half, (d, size)."""
    columns = zip(codes.T, seen.T, strict=True)
    counts = [torch.bincount(column[here].long(), minlength=size) for column, here in columns]
    return torch.stack(counts) + 0.5


def sample_categorical(logits: Tensor, uniform: Tensor) -> Tensor:
    """Sample a code by the inverse CDF of the softmax at the uniform, (*S,).

    The uniform is scaled by the rounded total, so codes of zero probability never occur."""
    last = logits.shape[-1] - 1
    total = logits.softmax(-1).cumsum(-1).contiguous()
    place = total.narrow(-1, last, 1) * uniform.unsqueeze(-1)
    return torch.searchsorted(total, place, right=True).squeeze(-1).clamp_(max=last)
