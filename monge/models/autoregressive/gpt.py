"""GPT: causal transformer over text, pixels, levels, bits, reals or columns, exact likelihood

Every step of a sequence attends to those before it (Vaswani et al. 2017; Radford et al. 2018), so
that all conditionals come from one pass. Sampling caches the keys and values of each step, or with
linear attention their sums, whose size does not grow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.attention.position import Positions
from ...nn.attention.transformer import CausalTransformer
from ...nn.stepwise import ContextAdded
from .._ordering import TABLE_KINDS
from .._sequence import SequenceModel
from .._sequence_sampling import row_groups, unobserved_rows

SMALL_DATA_ROWS = 10_000
"""Rows below which a network overfits without regularisation."""
LARGE_TEXT_TOKENS = 200_000
"""Tokens of text from which a wide network pays off."""
LONG_ROW_STEPS = 1024
"""Steps from which linear attention is faster."""
MAX_LEARNED_POSITIONS = 1 << 14
"""Steps beyond which positions are not learned."""


class GPT(SequenceModel):
    r"""$p(x | c) = \prod_t p(x_t | x_{<t}, c)$, the parameters of each conditional from a stack of
    causal blocks that reads the embeddings of $x_{t-1}$, of t and of c."""

    events = {"real", "binary", "levels", "label", "counts", "columns", "tokens"}
    family_priority = 1

    class Config(SequenceModel.Config):
        tag = "model/autoregressive.gpt"
        net: CausalTransformer.Config = CausalTransformer.Config()
        """Stack of causal blocks."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.net.width)
        if config.net.positions in ("learned", "sinusoidal") and self.cycle == space.dims:
            self.place = None  # the stack has its own positions
        stack = config.net.build(self.width, self.step_head.outputs, max(space.dims, 1))
        if not self.layout.is_table:  # start at the marginal distribution of each place
            torch.nn.init.zeros_(stack.leave.weight)
        self.net: Any = ContextAdded(stack, self.context.width)

    def loss(self, batch: Batch) -> Losses:
        """-log p(x | c) in nats per step; one causal pass gives all conditionals."""
        rows = self.to_steps(batch)  # x (B, D)
        count = rows.exist.sum(1)  # (B,)
        first, last, blocks = self.random_block(count)
        nll = -self.block_log_prob(rows, first, last) * blocks  # (B,)
        return {"nll": nll * (len(nll) / count.sum().to(nll.dtype))}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x_t ~ p(x_t | x_<t, c) from cached keys and values, (n, steps, ...);
        steps after the end of a row repeat it."""
        batch = unobserved_rows(self, n, given, options)
        with torch.inference_mode():
            for rows in row_groups(self, batch, options, generator):
                for step in range(batch.x.shape[1]):
                    rows.sample_step(step, rows.parameters(step))  # x_t ~ p(x_t | x_<t)
                    if rows.finished:
                        rows.repeat_end(step)
                        break
                batch.x[rows.index] = rows.x.T
        return self.to_event(batch.x)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        for name, part in space.given.items():
            if part.varies and not space.varies:
                return (
                    f"gpt expected conditions of one length beside {space}, found {name!r}, whose "
                    f"rows differ in length ({part}); leave it out"
                )
        return super().unsupported_reason(space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Rotary positions find the pixel above or a period at once, which learned positions take
        long to find, and unlike a bias of the scores they cost next to nothing."""
        if space.kind == "tokens":
            return cls.text_defaults(space)
        few, steps = 0 < space.rows < SMALL_DATA_ROWS, space.dims
        positions: Positions = "rotary"
        if steps > LONG_ROW_STEPS:
            positions = (
                "sinusoidal" if space.varies or steps > MAX_LEARNED_POSITIONS else "learned"
            )
        net = CausalTransformer.Config(
            width=64,
            depth=3 if few else 4,
            heads=4,
            dropout=0.2 if few else 0.0,
            positions=positions,
            attention="linear" if steps > LONG_ROW_STEPS else "softmax",
        )
        train_config = TrainConfig(
            optimiser="adamw",
            weight_decay=0.1,
            lr=3e-3,
            batch_size=64 if space.kind in TABLE_KINDS else 16,
            grad_clip=1.0,
            warmup=200,
            ema_decay=0.998,
        )
        return Defaults(cls.Config(net=net), train_config)

    @classmethod
    def text_defaults(cls, space: Space) -> Defaults:
        """Batches of about four thousand symbols. Blocks start at other symbols in every epoch,
        which regularises enough: dropout would cost as much time as a larger network."""
        wide = space.rows * space.dims >= LARGE_TEXT_TOKENS and space.dims >= 32
        net = CausalTransformer.Config(
            width=128 if wide else 64,
            depth=4,
            heads=4,
            positions="rotary" if space.dims <= LONG_ROW_STEPS else "sinusoidal",
            attention="softmax" if space.dims <= LONG_ROW_STEPS else "linear",
        )
        train_config = TrainConfig(
            optimiser="adamw",
            weight_decay=0.1,
            betas=(0.9, 0.99),
            lr=3e-3,
            grad_clip=1.0,
            batch_size=min(max(4096 // space.dims, 4), 256),
            warmup=100,
            ema_decay=0.998,
        )
        return Defaults(cls.Config(net=net), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            net=CausalTransformer.Config(width=8, depth=1, heads=2, expand=2), components=2
        )
