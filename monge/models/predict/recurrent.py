"""Recurrent network: classes or numbers from sequences, or from images row by row

A hidden vector reads one step after the other, in both directions by default; the target is
predicted from the last hidden vectors (Hochreiter & Schmidhuber 1997; Cho et al.
2014; Schuster & Paliwal 1997).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.inputs.features import Conditions, Features
from ...nn.inputs.sequence import one_step
from ...nn.layers.dropout import dropout
from ...nn.recurrent import GRU, Bidirectional
from ...nn.recurrent import RecurrentNet as Network
from ._base import Predictor
from ._trunk import Trunk

SMALL_DATA_ROWS = 1000
"""Training rows below which a small network does as well and trains faster."""


class SequenceReader(nn.Module):
    """One condition read step by step, (B, width): the hidden vector after the last step that
    exists and, backwards, after the first."""

    def __init__(self, space: Space, net: Network.Config, both: bool) -> None:
        super().__init__()
        self.is_image = space.is_image and not space.varies
        self.features = Features(space if self.is_image else one_step(space))
        across = space.shape[0] * space.shape[2] if self.is_image else self.features.width
        config: Any = Bidirectional.Config(net=net) if both else net
        self.net, self.both = config.build(across), both
        self.width: int = self.net.outputs

    def forward(self, batch: Batch) -> Tensor:
        y = self.net(self.steps(batch), batch.length)  # (B, T, width)
        last = -1 if batch.length is None else batch.length - 1
        end = y[torch.arange(len(y), device=y.device), last]
        if not self.both:
            return end
        half = self.width // 2
        return torch.cat([end[:, :half], y[:, 0, half:]], 1)

    def steps(self, batch: Batch) -> Tensor:
        """The standardised features of each step, (B, T, features)."""
        if self.is_image:
            return self.features(batch).reshape(batch.x.shape).transpose(1, 2).flatten(2)
        flat = Batch(
            batch.x.flatten(0, 1),
            observed=None if batch.observed is None else batch.observed_mask.flatten(0, 1),
        )
        return self.features(flat).unflatten(0, batch.x.shape[:2])


class RecurrentTrunk(Trunk):
    """A separate network for every sequence, and the other conditions beside them."""

    def __init__(self, config: RecurrentPredictor.Config, inputs: Space) -> None:
        super().__init__()
        sequences = {name: part for name, part in inputs.given.items() if is_sequence(part)}
        self.names = tuple(sequences)
        self.each = nn.ModuleList(
            SequenceReader(part, config.net, config.both) for part in sequences.values()
        )
        rest = {name: part for name, part in inputs.given.items() if name not in sequences}
        self.rest = Conditions(replace(inputs, given=rest))
        self.width = self.rest.width + sum(part.width for part in self.each)  # type: ignore[misc]
        self.drop = dropout(config.dropout)

    def forward(self, given: Given) -> Tensor:  # (B, width)
        read = [part(given[name]) for name, part in zip(self.names, self.each, strict=True)]
        return torch.cat([self.drop(torch.cat(read, 1)), self.rest(given, len(read[0]))], 1)


class RecurrentPredictor(Predictor):
    r"""p(y | x) = p(y | W h + b), where $h = [\overrightarrow{h}_T, \overleftarrow{h}_1]$ are the
    last hidden vectors of a recurrent network over the steps of x; padding is not read."""

    class Config(Predictor.Config):
        tag = "model/predict.recurrent"
        net: Network.Config = GRU.Config()
        """Network that reads the steps: rnn, lstm or gru."""
        both: bool = True
        """Bidirectional: read the steps backwards too."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.2
        """Dropout probability of the hidden vector."""

    config: Config

    def build_trunk(self, inputs: Space) -> Trunk:
        return RecurrentTrunk(self.config, inputs)

    def loss(self, batch: Batch) -> Losses:
        """-log p(y | x): cross entropy of classes, Gaussian or mixture likelihood of numbers."""
        params = self.params(batch.given, len(batch))  # of p(y | x), W h + b
        return self.weighted_nll(batch, params)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """y ~ p(y | x), or its Monte Carlo dropout average with `passes`."""
        noise = self.head.noise(n, generator)  # (n, D, 2)
        params = self.sample_params(n, given, options, generator)
        return self.to_event(self.head.sample(params, noise))  # y ~ p(y | x)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if (sentence := super().unsupported_reason(space)) is not None:
            return sentence
        if any(map(is_sequence, space.given.values())):
            return None
        found = ", ".join(f"{name} ({part})" for name, part in space.given.items())
        return (
            f"recurrent expected a sequence among the conditions, found {found}; use predict.mlp"
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        small = space.rows < SMALL_DATA_ROWS
        net = GRU.Config(
            width=32 if small else 96, depth=1 if small else 2, dropout=0.0 if small else 0.2
        )
        train_config = TrainConfig(
            optimiser="adamw",
            weight_decay=0.1,
            lr=3e-3,
            batch_size=64,
            grad_clip=1.0,
            ema_decay=0.99,
        )
        return Defaults(cls.Config(net=net, dropout=0.3 if small else 0.2), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=GRU.Config(width=8))


def is_sequence(space: Space) -> bool:
    """Whether an event has steps: (T, ...), or an image, whose steps are its rows."""
    return space.kind != "columns" and (space.varies or (space.dims > 1 and len(space.shape) > 0))
