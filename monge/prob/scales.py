"""Scales of the laws of entries that are learned as numbers instead of being computed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .heads import Head
from .laws import Mixture


class Scales(nn.Module):
    """Puts learned scales, one for each entry, among what a network says of p(x).

    Where scales are the network's own, or the laws have none, what comes in goes out.
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
        """What the network must say for these parameters (P,), (inputs,)."""
        return params[self.places.argsort()[:self.inputs]]


def scale_places(head: Head) -> Tensor:
    """Which parameters of a head are log-scales, (P,)."""
    found = torch.zeros(head.width, dtype=torch.bool)
    for (law, _), own in zip(head.homes, head.slices, strict=True):
        if isinstance(law, Mixture):
            found[own.stop - law.components:own.stop] = True
    return found
