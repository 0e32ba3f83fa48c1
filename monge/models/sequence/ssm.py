r"""State-space network (Mamba or S4D) over text, sound and series, exact likelihood

Every layer is a linear recurrence, $h_t = \bar A_t h_{t-1} + \bar B_t u_t$, so that a whole
sequence is read by products of matrices, as by a transformer, and a sampling step costs the same
at any length, as in a recurrent network. In S4D the recurrence is the same at every step, a long
convolution (Gu et al. 2022); in Mamba it depends on the input, so that a layer chooses what it
keeps and what it forgets (Gu & Dao 2023; Dao & Gu 2024).
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
from ...nn.inputs.sequence import has_other_length
from ...nn.state_space import Mamba, StateSpaceNet
from ...nn.stepwise import ContextAdded
from .._sequence import SequenceModel
from .._sequence_sampling import row_groups, unobserved_rows

SMALL_DATA_ROWS = 10_000
"""Rows below which a network overfits without regularisation."""
LARGE_DATA_STEPS = 200_000
"""Steps of all rows together from which a wide network pays off."""


class SSM(SequenceModel):
    r"""$p(x | c) = \prod_t p(x_t | h_t)$, $h_t$ the states of a stack of linear recurrences that
    reads the embeddings of $x_{t-1}$ and of c."""

    class Config(SequenceModel.Config):
        tag = "model/sequence.ssm"
        net: StateSpaceNet.Config = Mamba.Config()
        """Network: mamba (selective) or s4d (long convolutions)."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.net.width)
        stack = config.net.build(self.step_head.outputs)
        torch.nn.init.zeros_(stack.leave.weight)  # start at the marginal distribution
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
        """x_t ~ p(x_t | h_t), one step after the other from the states h, (n, steps, ...);
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
            if has_other_length(part, space):
                return (
                    f"ssm expected conditions as long as the event beside {space}, found {name!r} "
                    f"({part}); leave it out, or use rnn, which reads sequences of another length"
                )
        return super().unsupported_reason(space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few, much = 0 < space.rows < SMALL_DATA_ROWS, space.rows * space.dims >= LARGE_DATA_STEPS
        text = space.kind == "tokens"
        net = Mamba.Config(
            width=128 if text and much else 64,
            depth=4,
            dropout=0.1 if few and not text and not much else 0.0,
        )
        train_config = TrainConfig(
            optimiser="adamw",
            weight_decay=0.01,  # a stronger one would shorten the memory of layers
            betas=(0.9, 0.99),
            lr=3e-3,
            grad_clip=1.0,
            batch_size=min(max(4096 // max(space.dims, 1), 4), 64),
            warmup=100,
            ema_decay=0.998,
        )
        return Defaults(cls.Config(net=net), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=Mamba.Config(width=8, depth=1, state=4, heads=2), components=2)
