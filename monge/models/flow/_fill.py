"""Flows that draw hidden entries given the others, by a chain."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import CanComplete
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...prob.normal import log_normal
from ._base import Flow
from ._complete import Draw, Hidden


class Fillable(Flow, CanComplete):
    """A flow whose coordinates belong to one entry each, so that those hidden can move alone."""

    completion = ("drawn by a Hamiltonian Monte Carlo chain whose law is p(hidden | seen); "
                  "moves=N makes it longer")

    class Sampling(Flow.Sampling):
        moves: Annotated[int, Range(2)] = 24
        """Completion: moves of the chain; more forget its start better."""
        leaps: Annotated[int, Range(1)] = 4
        """Completion: gradients a move follows; more go further."""

    @torch.no_grad()
    def complete(self, batch: Batch, how: BaseConfig | None = None,
                 generator: Generator | None = None) -> Tensor:
        how = how or self.Sampling()
        assert isinstance(how, Fillable.Sampling), "completions are asked for with Sampling"
        seen = batch.seen.reshape(len(batch), -1)
        law = self.hidden(batch, seen)
        start = law.begin(self.drawing(batch), generator)
        x = self.leave(law.draw(start, how.moves, how.leaps, generator))
        return torch.where(batch.seen, batch.x.to(x.dtype), x)

    def hidden(self, batch: Batch, seen: Tensor) -> Hidden:
        """The law of what is not seen (B, D) of rows."""
        context = self.context(batch.given, len(batch))

        def log_p(w: Tensor) -> Tensor:
            z, log_det = self.inner.inverse(w, context)
            return log_normal(z) + log_det

        return Hidden(log_p, self.outer, self.flat(batch), seen, ~self.low.isnan())

    def drawing(self, batch: Batch) -> Draw:
        """What makes coordinates of noise, given the same as the rows are."""
        context = self.context(batch.given, len(batch))

        def draw(z: Tensor) -> tuple[Tensor, Tensor]:
            w, log_det = self.inner(z, context)
            return w, log_normal(z) - log_det

        return draw
