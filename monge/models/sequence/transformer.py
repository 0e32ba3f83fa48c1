"""Transformer encoder-decoder: text given text, audio or images

Every step of the source attends to all others; every step of the sentence attends to those before
it and to the source (Vaswani et al. 2017). The decoder reads the embeddings of the symbols before
each step; the source enters through cross-attention only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.attention.transformer import (
    CausalTransformer,
    DecoderStack,
    TransformerEncoder,
    TransformerState,
)
from ...nn.fast_step import prepare_product
from ...nn.inputs.condition_tokens import ConditionTokens
from ...prob.decoding import sample_symbols
from ._encoder_decoder import EncoderDecoderModel, cross_entropy

SMALL_DATA_ROWS = 10_000
"""Pairs below which a network overfits without regularisation."""


@dataclass
class TransformerMemory:
    """The encoded source."""

    states: Tensor  # (B, S, width)
    length: Tensor | None  # (B,)


class Transformer(EncoderDecoderModel):
    r"""$p(y | x) = \prod_t \mathrm{softmax}(E h_t)_{y_t}$, h the decoder's vectors given
    $y_{<t}$ and the encoder's of x.

    The embeddings E may be shared by the decoder's input, its output, and the source if it has as
    many symbols; at the input they are multiplied by $\sqrt d$.
    """

    family_priority = 3

    class Config(EncoderDecoderModel.Config):
        tag = "model/sequence.transformer"
        net: CausalTransformer.Config = CausalTransformer.Config(
            width=256, depth=3, positions="sinusoidal"
        )
        """Blocks of the decoder and of the encoder."""
        share: Literal["none", "target", "all"] = "all"
        """Shared embeddings: none; target: the decoder's input and output; all: those and the
        source's."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        net, given = config.net, next(iter(space.given.values()))
        super().__init__(config, space, net.width)
        self.whole = config.share == "all" and given.kind == "tokens" and given.size == space.size
        self.reader = ConditionTokens(given, net.width, self.whole, config.mask)
        if self.reader.table is not None:
            nn.init.normal_(self.reader.table, std=net.width**-0.5)
        fields = {name: getattr(net, name) for name in net.__dataclass_fields__}
        self.encoder = TransformerEncoder(
            TransformerEncoder.Config(**fields), net.width, self.reader.max_steps
        )
        # The last map of the decoder lets shared embeddings differ between input and output;
        # without it every symbol is initially its own most probable successor.
        self.decoder = DecoderStack(
            DecoderStack.Config(**fields), net.width, net.width, net.width, space.shape[0]
        )
        spread = net.width**-0.5
        self.embedding = nn.Parameter(torch.randn(space.size, net.width) * spread)
        self.heads = (
            nn.Parameter(torch.randn(space.size, net.width) * spread)
            if config.share == "none"
            else None
        )

    @property
    def table(self) -> Tensor:
        return self.embedding

    @property
    def out(self) -> Tensor:
        return self.embedding if self.heads is None else self.heads

    def embed(self, x: Tensor) -> Tensor:
        return super().embed(x) * math.sqrt(self.width)

    def encode_source(self, source: Batch) -> TransformerMemory:
        x, length = self.reader(source, self.embedding if self.whole else None)
        gain = math.sqrt(self.width) if self.reader.space.kind == "tokens" else 1.0
        return TransformerMemory(self.encoder(x * gain, length), length)

    def decode_steps(self, memory: TransformerMemory, inputs: Tensor) -> Tensor:
        return self.decoder(inputs, memory.states, memory.length)

    def attention(self, batch: Batch) -> Tensor:
        """Cross-attention of the last block, averaged over its heads, (B, T, S)."""
        x, _ = self.rows(batch)
        memory = self.encode_source(self.source_of(batch))
        return self.decoder.weights(self.inputs(x), memory.states, memory.length).mean(1)

    def step_decoder(
        self, memory: TransformerMemory, n: int, max_steps: int
    ) -> TransformerDecoder:
        return TransformerDecoder(
            self, self.decoder.start(n, max_steps, memory.states, memory.length), n
        )

    def loss(self, batch: Batch) -> Losses:
        """Cross entropy of each symbol given the source and the true symbols before it (teacher
        forcing), with label smoothing, in nats per symbol of a sentence of mean length."""
        x, exist = self.rows(batch)  # (B, T)
        memory = self.encode_source(self.source_of(batch))
        inputs = self.inputs(x)  # embeddings of the symbol before each, (B, T, width)
        if self.config.scheduled_sampling:
            inputs = self.mix_own_samples(memory, inputs, batch.step)
        logits = self.logits(self.decode_steps(memory, inputs)[exist])  # (N, V)
        cost = cross_entropy(logits, x[exist], self.config.label_smoothing)
        total = cost.new_zeros(exist.shape).masked_scatter(exist, cost).sum(1)
        return {"nll": total / self.average}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """y_t ~ p(y_t | y_<t, x) until the end symbol, (n, steps); the end is repeated."""
        source = broadcast_conditions(given or {}, self.space, n)[self.source]
        x, uniform = self.empty_sentences(n, options, generator)  # (n, steps), (steps, n)
        decoder = self.step_decoder(self.encode_source(source), n, len(uniform))
        symbols = sample_symbols(decoder, uniform, self.space.end, self.settings(options))
        for step, symbol in enumerate(symbols):  # y_t ~ p(y_t | y_<t, x)
            x[:, step] = symbol
        return x

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few = 0 < space.rows < SMALL_DATA_ROWS
        net = CausalTransformer.Config(
            width=128 if few else 256,
            depth=2 if few else 3,
            heads=4,
            expand=2,
            activation="relu",
            positions="sinusoidal",
            dropout=0.15,
        )
        train_config = TrainConfig(
            optimiser="adam",
            lr=2e-3,
            betas=(0.9, 0.98),
            batch_size=64,
            bucket_by_length=True,
            schedule="inverse",
            warmup=500,
            grad_clip=1.0,
            ema_decay=0.998,
        )
        return Defaults(cls.Config(net=net), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            net=CausalTransformer.Config(
                width=8, depth=1, heads=2, expand=2, positions="sinusoidal"
            )
        )


class TransformerDecoder:
    """Stepwise decoding with cached keys and values of the symbols so far."""

    def __init__(self, model: Transformer, state: TransformerState, n: int) -> None:
        self.model, self.state, self.count = model, state, n
        weight = model.out.detach().t().contiguous()  # (width, V): faster for few rows
        self.leave = prepare_product(weight, model.bias.detach())

    @torch.no_grad()
    def next_logits(self, symbol: Tensor | None) -> Tensor:
        model = self.model
        x = model.first.expand(self.count, -1) if symbol is None else model.embed(symbol)
        return self.leave(model.decoder.step(self.state, x))

    def reorder(self, rows: Tensor, beams: int = 1) -> None:
        self.state.reorder(rows, beams)
        self.count = len(rows)
