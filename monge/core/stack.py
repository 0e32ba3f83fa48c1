r"""Models of equal shape as one batched network.

The weights of K models stand stacked, $\theta$ = (K, ...), and one pass computes
$\ell(\theta_k, b_k)$ for every k: each linear map becomes one batched product, and what a small
network costs beside its arithmetic is paid once instead of K times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from .batch import Batch
from .model import Losses, Model


class Stack:
    """Calling it gives the losses of model k on the k-th piece of a batch, summed over models, so
    that the gradient of each is what it would be alone. Pieces are of one size, what is left over
    is left out; noise differs from model to model."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models, self.first = models, Lossy(models[0])
        self.weights = columns(models, lambda model: dict(model.named_parameters()))
        shared = len(list(models[0].named_parameters(remove_duplicate=False)))
        self.tied = shared > len(self.weights)

    @cached_property
    def buffers(self) -> dict[str, Tensor]:
        """Those in which models differ, stacked; a stackable loss leaves them as they are."""
        found = columns(self.models, lambda model: dict(model.named_buffers()))
        return {name: torch.stack(each) for name, each in found.items()
                if not all(torch.equal(each[0], other) for other in each[1:])}

    def __call__(self, batch: Batch) -> Losses:
        names, many = [*self.weights, *self.buffers], len(self.models)
        size = len(batch) // many
        pieces: list[Tensor] = []

        def apart(value: Tensor) -> Tensor:
            pieces.append(value[:many * size].unflatten(0, (many, size)))  # (K, B, ...)
            return value

        def one(*own: Tensor) -> Losses:
            rest = iter(own)
            state = {name: next(rest) for name in names}
            piece = batch.map(lambda _: next(rest))
            return functional_call(self.first, state, (piece,), tie_weights=self.tied)

        batch.map(apart)
        state = [*map(torch.stack, self.weights.values()), *self.buffers.values()]
        losses = vmap(one, randomness="different")(*state, *pieces)
        return {name: term.sum(0) for name, term in losses.items()}


class Lossy(nn.Module):
    """A model whose forward pass is its loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Losses:
        return self.model.loss(batch)


def columns(models: Sequence[Model], tensors: Callable[[Model], dict[str, Tensor]]
            ) -> dict[str, list[Tensor]]:
    """The tensors of one name in all models, by the name they have in `Lossy`."""
    each = [tensors(model) for model in models]
    return {f"model.{name}": [own[name] for own in each] for name in each[0]}
