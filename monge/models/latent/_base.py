"""What laws with Gaussian codes share: rates, log-weights, and scales that no code decides."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...core.abilities import LikelihoodKind
from ...prob.heads import Head
from ...prob.laws import Gaussians, Mixture


def rates_of(mean: Tensor, log_scale: Tensor) -> Tensor:
    """KL(N(mean, scale^2) || N(0, 1)) of each unit."""
    return 0.5 * (mean.square() + (2 * log_scale).exp() - 1) - log_scale


def log_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I) over the last axis."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


def log_mean_exp(log_weights: Tensor) -> tuple[Tensor, LikelihoodKind, Tensor]:
    """The bound of log-weights (k, B), (B,), and its Monte-Carlo error by the delta method."""
    top = log_weights.amax(0)
    weights = (log_weights - top).exp()
    mean, error = weights.mean(0), weights.std(0) / len(weights) ** 0.5
    return top + mean.log(), "bound", error / mean


class Scales(nn.Module):
    """Puts learned scales, one for each entry, among what the decoder says of p(x | z).

    Where scales are the decoder's own, or the laws have none, what comes in goes out.
    """

    places: Tensor
    log_scale: nn.Parameter | None

    def __init__(self, head: Head, shared: bool) -> None:
        super().__init__()
        mine = scale_places(head) if shared else torch.zeros(head.width, dtype=torch.bool)
        self.inputs = int((~mine).sum())
        order = torch.cat([(~mine).nonzero()[:, 0], mine.nonzero()[:, 0]])
        self.register_buffer("places", order.argsort(), persistent=False)
        start = nn.Parameter(head.start()[mine]) if mine.any() else None
        self.register_parameter("log_scale", start)

    def forward(self, out: Tensor) -> Tensor:  # (*S, inputs) -> (*S, P)
        if self.log_scale is None:
            return out
        scales = self.log_scale.expand(*out.shape[:-1], -1)
        return torch.cat([out, scales], -1).index_select(-1, self.places)

    def without(self, params: Tensor) -> Tensor:
        """What the decoder must say for these parameters (P,), (inputs,)."""
        return params[self.places.argsort()[:self.inputs]]


def scale_places(head: Head) -> Tensor:
    """Which parameters of a head are log-scales, (P,)."""
    found = torch.zeros(head.width, dtype=torch.bool)
    for (law, _), own in zip(head.homes, head.slices, strict=True):
        if isinstance(law, Mixture):
            found[own.stop - law.components:own.stop] = True
    return found


def at_floor(head: Head, params: Tensor) -> int:
    """How many entries have Gaussians whose scales rest on their floor."""
    count = 0
    for law, own in zip(head.each(), head.own(params), strict=True):
        if isinstance(law, Gaussians):
            above = law.split(own)[2] - law.floor[:, None]  # (B, d, K)
            count += int((above.mean(0).amin(-1) < 0.1).sum())
    return count
