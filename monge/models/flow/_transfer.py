"""Flows that keep a code and change what is given."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.abilities import CanTransfer, Given
from ...core.batch import Batch
from ._fill import Fillable


class Transferring(Fillable, CanTransfer):
    """x' = f(f^{-1}(x, c), c'): what the code holds stays, what c says becomes what c' says."""

    @torch.no_grad()
    def transfer(self, batch: Batch, given: Given) -> Tensor:
        return self.decode(self.encode(batch), {**batch.given, **given})
