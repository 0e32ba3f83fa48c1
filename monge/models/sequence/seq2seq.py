"""Recurrent encoder-decoder (seq2seq) with attention: text given text, audio or images

An encoder reads the source in both directions; the decoder's hidden state starts at the encoder's
last states (Sutskever et al. 2014; Cho et al. 2014). With attention each step also reads a
weighted mean of the encoder's states s_k (Bahdanau et al. 2015; Luong et al. 2015), or, with hard
attention, one of them (Xu et al. 2015).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.attention.scores import HardAttention, HardChoice, build_score, log_prob
from ...nn.attention.softmax import padding_mask
from ...nn.inputs.condition_tokens import ConditionTokens
from ...nn.layers.dropout import Dropout
from ...nn.layers.linear import Linear
from ...nn.recurrent import GRU, Bidirectional, RecurrentNet, RecurrentState
from ...prob.decoding import sample_symbols
from ...prob.gradient_estimators import leave_one_out, score_function
from ._encoder_decoder import EncoderDecoderModel, cross_entropy

SCORE_SAMPLES = 2
"""Samples of the attended states of a row per training step, each the baseline of the other."""
SMALL_DATA_ROWS = 10_000
"""Pairs below which a network overfits without regularisation."""


@dataclass
class Seq2SeqMemory:
    """The encoder's states, which of them exist, and the decoder's first state."""

    states: Tensor  # (B, S, width)
    mask: Tensor | None  # (B, 1, S): minus infinity on padding
    start: RecurrentState

    def reorder(self, rows: Tensor) -> None:
        self.states = self.states[rows]
        self.mask = None if self.mask is None else self.mask[rows]


class Seq2Seq(EncoderDecoderModel):
    r"""$p(y | x) = \prod_t p(y_t | h_t, c_t)$, $c_t = \sum_k a_{tk} s_k$, with the context $c_t$

    after the decoder's network, as in Luong et al.: $h_t = f(h_{t-1}, y_{t-1})$,
    $a_{tk} = \mathrm{softmax}_k\, \mathrm{score}(h_t, s_k)$, in one pass in training;
    or at its input, as in Bahdanau et al.: $h_t = f(h_{t-1}, [y_{t-1}, c_t])$,
    $a_{tk} = \mathrm{softmax}_k\, \mathrm{score}(h_{t-1}, s_k)$, step by step.

    Scores are $h^\top s_k / \sqrt d$, $h^\top s_k$, $h^\top W s_k$ or $w^\top \tanh(W_1 h +
    W_2 s_k)$. Without attention c is the encoder's last state at every step. Hard attention reads
    the state with the best score, so likelihoods are exact. In training it reads the best, or the
    best after Gumbel noise, with the gradient of the softmax (straight through); or it samples a
    state from the softmax, whose gradient is the score-function estimator with the other sample
    of the row as baseline (Williams 1992; Xu et al. 2015).
    """

    class Config(EncoderDecoderModel.Config):
        tag = "model/sequence.seq2seq"
        net: RecurrentNet.Config = GRU.Config(width=256)
        """Network of decoder and encoder: rnn, gru or lstm; each direction of the encoder has half
        of its width."""
        attention: Literal["none", "dot", "unscaled", "bilinear", "additive"] = "bilinear"
        """Attention score between a step of the decoder and one of the source."""
        context: Literal["output", "input"] = "output"
        """Where the attended source joins the decoder: after its network, scored by its new state
        (output; Luong), or at its input, scored by the state before (input; Bahdanau), which
        trains step by step and slower."""
        hard: bool = False
        """Hard attention: a step reads one state of the source instead of a weighted mean."""
        hard_choice: HardChoice = "gumbel"
        """hard=true: the state that a step reads in training: the best (argmax) or the best after
        Gumbel noise (gumbel), trained through the softmax, or one sampled from it (sample),
        trained by the score-function estimator with two samples of each row."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Dropout at the input and output of the networks."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        width = config.net.width
        super().__init__(config, space, width)
        if width % 2:
            raise UsageError(
                f"net.width={width} must be even, since each direction of the encoder has half of "
                f"it; use net.width={width + 1}"
            )
        if config.hard and config.attention == "none":
            raise UsageError(
                "expected an attention score with hard=true, found attention=none; use "
                "attention=bilinear"
            )
        self.reader = ConditionTokens(space.given[self.source], width, mask=config.mask)
        half = replace(config.net, width=width // 2)
        self.encoder = Bidirectional.Config(net=half).build(width)
        self.net: RecurrentNet = config.net.build(width * (1 + (config.context == "input")))
        self.bridge = Linear(width, width * config.net.depth)
        self.score = (
            None
            if config.attention == "none"
            else build_score(config.attention, width, width, width // 2)
        )
        self.mix = Linear(2 * width, width)
        self.drop = Dropout(config.dropout)
        self.embedding = nn.Parameter(torch.randn(space.size, width))
        self.heads = nn.Parameter(torch.randn(space.size, width) * width**-0.5)

    @property
    def table(self) -> Tensor:
        return self.embedding

    @property
    def out(self) -> Tensor:
        return self.heads

    def encode_source(self, source: Batch) -> Seq2SeqMemory:
        x, length = self.reader(source)
        y = self.encoder(self.drop(x), length)  # (B, S, width)
        half = y.shape[2] // 2
        last = torch.full((len(y),), y.shape[1] - 1) if length is None else length - 1
        rows = torch.arange(len(y), device=y.device)
        ends = torch.cat([y[rows, last.to(y.device), :half], y[:, 0, half:]], 1)  # (B, width)
        first = self.bridge(ends).tanh().chunk(self.config.net.depth, 1)
        start = RecurrentState(
            [(h, *[torch.zeros_like(h)] * (self.net.carries - 1)) for h in first]
        )
        if self.score is None:
            return Seq2SeqMemory(ends[:, None], None, start)
        mask = None if length is None else padding_mask(length, y.shape[1], y)[:, 0]
        return Seq2SeqMemory(self.drop(y), mask, start)

    def decode_steps(self, memory: Seq2SeqMemory, inputs: Tensor) -> Tensor:
        h, weights, _ = self.run_decoder(memory, self.drop(inputs))
        return self.join(h, weights @ memory.states)

    def run_decoder(self, memory: Seq2SeqMemory, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The decoder's states h (B, T, width), its attention weights (B, T, S) and log q (B, T)
        of the states that they take."""
        if self.config.context == "output":
            h = self.drop(self.net.scan(inputs, memory.start)[0])
            return h, *self.attend(memory, h)
        state, steps = RecurrentState(list(memory.start.layers)), []
        for x in inputs.unbind(1):
            weights, log_q = self.attend(memory, state.layers[-1][0][:, None])  # (B, 1, S)
            context = (weights @ memory.states)[:, 0]
            h = self.net.step(state, torch.cat([x, context], 1))
            steps.append((h, weights[:, 0], log_q[:, 0]))
        h, weights, log_q = (torch.stack(part, 1) for part in zip(*steps, strict=True))
        return self.drop(h), weights, log_q

    def join(self, h: Tensor, context: Tensor) -> Tensor:
        """The decoder's states and the attended source as one vector each, (..., width)."""
        return self.drop(self.mix(torch.cat([h, context], -1)).tanh())

    def attend(self, memory: Seq2SeqMemory, h: Tensor) -> tuple[Tensor, Tensor]:
        """The attention weights (B, T, S) of decoder states h (B, T, width), and with hard
        attention log q of the states that they take, (B, T)."""
        if self.score is None:
            return h.new_ones(*h.shape[:2], 1), h.new_zeros(h.shape[:2])
        scores = self.score(h, memory.states)
        scores = scores if memory.mask is None else scores + memory.mask
        if self.config.hard:
            choice = self.config.hard_choice if self.training else "argmax"
            taken = HardAttention(choice, straight=choice != "sample").weights(scores)
            return taken, log_prob(scores, taken)
        return scores.softmax(-1), h.new_zeros(h.shape[:2])

    def attention(self, batch: Batch) -> Tensor:
        if self.score is None:
            raise UsageError(
                "expected a run with attention, found attention=none; "
                "refit with attention=bilinear"
            )
        x, _ = self.rows(batch)
        memory = self.encode_source(self.source_of(batch))
        return self.run_decoder(memory, self.inputs(x))[1]

    def step_decoder(self, memory: Seq2SeqMemory, n: int, max_steps: int) -> Seq2SeqDecoder:
        return Seq2SeqDecoder(self, memory)

    def loss(self, batch: Batch) -> Losses:
        """Cross entropy of each symbol given the source and the true symbols before it (teacher
        forcing), with label smoothing, in nats per symbol of a sentence of mean length."""
        x, exist = self.rows(batch)  # (B, T)
        memory = self.encode_source(self.source_of(batch))
        inputs = self.inputs(x)  # embeddings of the symbol before each, (B, T, width)
        if self.config.scheduled_sampling:
            inputs = self.mix_own_samples(memory, inputs, batch.step)
        samples = SCORE_SAMPLES if self.samples_attention else 1
        costs = [self.costs(memory, inputs, x, exist) for _ in range(samples)]
        cost = torch.stack([cost for cost, _ in costs])  # (S, B, T)
        if self.samples_attention:
            cost = cost + self.score_gradient(cost, torch.stack([log_q for _, log_q in costs]))
        return {"nll": cost.mean(0).sum(1) / self.average}

    @property
    def samples_attention(self) -> bool:
        return self.config.hard and self.config.hard_choice == "sample" and self.training

    def costs(
        self, memory: Seq2SeqMemory, inputs: Tensor, x: Tensor, exist: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The cross entropy of each symbol and log q of the source state it has read, (B, T)."""
        h, weights, log_q = self.run_decoder(memory, self.drop(inputs))
        logits = self.logits(self.join(h, weights @ memory.states)[exist])  # (N, V)
        cost = cross_entropy(logits, x[exist], self.config.label_smoothing)
        return cost.new_zeros(exist.shape).masked_scatter(exist, cost), log_q * exist

    def score_gradient(self, cost: Tensor, log_q: Tensor) -> Tensor:
        """0 with the gradient that the choice of source states adds to that of the costs
        (S, B, T). With the context after the network a choice acts on its own symbol, at its input
        on all later ones too."""
        outcome = cost.detach()
        if self.config.context == "input":
            outcome = outcome.flip(2).cumsum(2).flip(2)  # from this symbol on
        return score_function(outcome, log_q, leave_one_out(outcome)) - outcome

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
        config = cls.Config(net=GRU.Config(width=128 if few else 256), dropout=0.3 if few else 0.2)
        train_config = TrainConfig(
            lr=3e-3,
            batch_size=64,
            bucket_by_length=True,
            schedule="inverse",
            grad_clip=1.0,
            warmup=400,
            ema_decay=0.998,
        )
        return Defaults(config, train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=GRU.Config(width=8))


class Seq2SeqDecoder:
    """Stepwise decoding; all beams of a row share its encoded source."""

    def __init__(self, model: Seq2Seq, memory: Seq2SeqMemory) -> None:
        self.model, self.memory, self.beams = model, memory, 1
        self.state = RecurrentState(list(memory.start.layers))

    def next_logits(self, symbol: Tensor | None) -> Tensor:
        model, count = self.model, len(self.state.layers[0][0])
        x = model.first.expand(count, -1) if symbol is None else model.embed(symbol)
        if model.config.context == "input":
            context = self.attend(self.state.layers[-1][0])
            h = model.net.step(self.state, torch.cat([x, context], 1))
        else:
            h = model.net.step(self.state, x)
            context = self.attend(h)
        return model.logits(model.join(h, context))

    def attend(self, h: Tensor) -> Tensor:
        """The attended source of each beam, (n, width)."""
        own = h.unflatten(0, (-1, self.beams))  # (m, beams, width)
        return (self.model.attend(self.memory, own)[0] @ self.memory.states).flatten(0, 1)

    def reorder(self, rows: Tensor, beams: int = 1) -> None:
        self.state.reorder(rows)
        self.memory.reorder(rows[::beams] // self.beams)
        self.beams = beams
