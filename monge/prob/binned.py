"""Whole numbers without limits, by a free probability for each run of them.

P(x) = softmax(l)_run(x) P(x | run): one softmax reaches any shape, spikes and gaps included, which
a mixture of smooth components finds only slowly. The runs are laid over the training values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.space import Space
from .laws import ALL, At, Law, pick, tally
from .runs import Runs


class Binned(Law):
    """Laws of d counts: logits over at most `bins` runs each."""

    share: Tensor

    def __init__(self, parts: Sequence[Space], bins: int) -> None:
        super().__init__()
        self.count, self.runs = bins, Runs(parts, bins)
        self.register_buffer("share", self.runs.live.float(), persistent=False)  # (d, bins)

    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Lay the runs over training values (B, d) and note how many fall into each."""
        x = x.masked_fill(~seen, 0.0)
        for j, column in enumerate(x.double().T):
            if bool(seen[:, j].any()):
                self.runs.fit(j, column[seen[:, j]].sort().values)
        self.share.copy_(tally(self.runs.encode(x)[0], seen, self.count))

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        run, inside = self.runs.encode(x.reshape(-1, x.shape[-1]))  # (N, d)
        chosen = run.reshape(*x.shape, 1)
        return self.live(params, ALL).log_softmax(-1).gather(-1, chosen)[..., 0] \
            + inside.reshape(x.shape)

    def draw(self, params: Tensor, noise: Tensor, at: At = ALL) -> Tensor:
        if isinstance(at, int):
            one = slice(at, at + 1)
            return self.draw(params[..., None, :], noise[..., None, :], one)[..., 0]
        run = pick(self.live(params, at), noise[..., 0])  # (*S, d)
        u = torch.special.ndtr(noise[..., 1]).flatten(0, -2)
        return self.runs.decode(run.flatten(0, -2), u, u, at).reshape(run.shape)

    def live(self, params: Tensor, at: At) -> Tensor:
        """Logits, those of runs that are not used at minus infinity."""
        return params.masked_fill(~self.runs.live[at], -torch.inf)

    def mean(self, params: Tensor) -> Tensor:
        return (self.live(params, ALL).softmax(-1) * self.runs.middle).sum(-1)

    def cumulative(self, params: Tensor, t: Tensor) -> Tensor:
        run, inside = self.runs.below(t.reshape(-1, t.shape[-1]))  # (N, d)
        each = self.live(params, ALL).softmax(-1)
        chosen = run.reshape(*t.shape, 1)
        upto = torch.cat([each, each.cumsum(-1) - each], -1)  # P(run), P(a lower run)
        own, lower = (upto.gather(-1, chosen + k)[..., 0] for k in (0, self.count))
        return lower + own * inside.reshape(t.shape)

    def mode(self, params: Tensor) -> Tensor:
        peak = self.runs.peak  # (d, bins)
        height = self.live(params, ALL) + self.runs.encode(peak.T)[1].T
        return peak.expand(height.shape).gather(-1, height.argmax(-1, keepdim=True))[..., 0]

    def start(self) -> Tensor:
        return self.share.clamp_min(0.5).log()
