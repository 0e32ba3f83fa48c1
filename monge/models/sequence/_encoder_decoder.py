r"""Base of encoder-decoder models of text: $\log p(y | x) = \sum_t \log p(y_t | y_{<t}, x)$.

An encoder reads the source, a decoder generates one symbol after the other until the end symbol
(Sutskever et al. 2014). In training the decoder reads the true symbols so far (teacher forcing),
or with some probability its own samples (scheduled sampling; Bengio et al. 2015, in two parallel
passes as in Mihaylova & Martins 2019). Label smoothing trains towards
$(1 - \varepsilon)\,\delta_y + \varepsilon / V$ (Szegedy et al. 2016); likelihoods are unsmoothed.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ...core.abilities import (
    CanSample,
    CanStream,
    Given,
    HasAttention,
    HasConditionals,
    HasLikelihood,
    HasMode,
    Likelihood,
)
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import MAX_STEPS, Range
from ...core.config import Config as BaseConfig
from ...core.model import Model, is_exporting
from ...core.space import Space
from ...nn.layers.linear import linear
from ...prob.decoding import StepDecoder, SymbolSampling, beam_search, sample_symbols
from ...prob.distributions import sample_categorical
from .._ordering import StepLayout, check_codes, check_no_missing

TOKENS_PER_PASS = 1 << 12
"""Tokens that are scored together: each has a logit for every symbol of the vocabulary."""
ROWS_PER_SEARCH = 64
"""Rows whose beams are searched together."""
MAX_BEAMS = 1000
"""Widest beam: memory and time grow with it."""
SCHEDULED_SAMPLING_WARMUP = 2000
"""Steps over which scheduled sampling is ramped up."""
SourceMemory = Any
"""The encoded source that a decoder reads: each model has its own form."""


class EncoderDecoderModel(
    Model, HasLikelihood, HasConditionals, HasAttention, HasMode, CanSample, CanStream
):
    """A product of conditionals along a sentence, given one source that is read as a whole.

    The loss is in nats per symbol of a sentence of mean length, so that every symbol has the same
    weight in batches of short and of long sentences.
    """

    events = {"tokens"}
    givens = {"tokens", "real", "levels", "binary", "counts", "label"}
    supports_variable_length = True
    is_predictor = True
    loss_per_step = True

    class Config(Model.Config):
        label_smoothing: Annotated[float, Range(0, 0.9)] = 0.1
        """Label smoothing: probability spread evenly over all symbols in the training target."""
        scheduled_sampling: Annotated[float, Range(0, 1)] = 0.0
        """Scheduled sampling: share of the decoder's training inputs that it samples itself."""
        mask: Annotated[float, Range(0, 0.9)] = 0.2
        """Sound given: largest share of its frequency bands, and of its frames, that one of the
        random masks in training hides (SpecAugment)."""

    class SamplingConfig(SymbolSampling):
        steps: Annotated[int, Range(0, MAX_STEPS)] = 0
        """Largest number of symbols to sample; 0 takes the longest training sentence."""
        beams: Annotated[int, Range(1, MAX_BEAMS)] = 5
        """Beam width of the search for the most probable sentence."""
        penalty: Annotated[float, Range(0)] = 1.0
        """Length penalty: power of the length by which log-probabilities are divided."""

    config: Config
    average: Tensor

    def __init__(self, config: Config, space: Space, width: int) -> None:
        """width: of the symbol embeddings and of the decoder's outputs."""
        super().__init__(config, space)
        self.name, self.width = type(self).__name__.lower(), width
        self.source, self.layout = next(iter(space.given)), StepLayout(space)
        self.first = nn.Parameter(torch.randn(width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(space.size))
        self.register_buffer("average", torch.tensor(float(space.shape[0])))

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        name = cls.__name__.lower()
        if len(space.given) != 1:
            return (
                f"{name} expected 1 condition, found {len(space.given)}; "
                "name one with --given, or use autoregressive.gpt"
            )
        return None

    @abc.abstractmethod
    def encode_source(self, source: Batch) -> SourceMemory:
        """The encoded source."""

    @abc.abstractmethod
    def decode_steps(self, memory: SourceMemory, inputs: Tensor) -> Tensor:
        """Decoder outputs (B, T, width) of T steps; inputs (B, T, width) embed the symbol before
        each."""

    @abc.abstractmethod
    def step_decoder(self, memory: SourceMemory, n: int, max_steps: int) -> StepDecoder:
        """The decoder before its first step."""

    @property
    @abc.abstractmethod
    def table(self) -> Tensor:
        """Input embeddings of the symbols, (V, width)."""

    @property
    @abc.abstractmethod
    def out(self) -> Tensor:
        """Output weights of the symbols' logits, (V, width)."""

    def logits(self, vectors: Tensor) -> Tensor:  # (..., width) -> (..., V)
        return linear(vectors, self.out, self.bias)

    def embed(self, x: Tensor) -> Tensor:
        """The embeddings of symbols x (...,), (..., width)."""
        return F.embedding(x, self.table)

    def initialise_from_data(self, batch: Batch) -> None:
        """Initialise the output bias to the log frequency of each symbol."""
        x, exist = self.rows(batch)
        counts = torch.bincount(x[exist], minlength=self.space.size) + 0.5
        with torch.no_grad():
            self.bias.copy_((counts / counts.sum()).log())
        self.average.copy_(exist.sum(1).double().mean())

    def rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Symbols (B, T) and which of them exist."""
        check_no_missing(self.name, batch)
        exist = self.layout.exist(batch)
        x = batch.x.long().masked_fill(~exist, 0)
        check_codes(self.name, self.space, x)
        return x, exist

    def inputs(self, x: Tensor) -> Tensor:
        """The embeddings of the symbol before each, (B, T, width)."""
        return torch.cat([self.first.expand(len(x), 1, -1), self.embed(x[:, :-1])], 1)

    def source_of(self, batch: Batch) -> Batch:
        """The source of each row."""
        return broadcast_conditions(batch.given, self.space, len(batch))[self.source]

    def mix_own_samples(self, memory: SourceMemory, inputs: Tensor, step: int) -> Tensor:
        """Inputs of which a random share is replaced by symbols sampled given the true ones."""
        share = self.config.scheduled_sampling * min(1.0, step / SCHEDULED_SAMPLING_WARMUP)
        with torch.no_grad():
            logits = self.logits(self.decode_steps(memory, inputs)[:, :-1])
            uniform = torch.rand(logits.shape[:-1], device=logits.device)
            sampled = sample_categorical(logits, uniform)  # (B, T - 1)
        replaced = torch.rand(sampled.shape, device=sampled.device) < share
        later = torch.where(replaced[..., None], self.embed(sampled), inputs[:, 1:])
        return torch.cat([inputs[:, :1], later], 1)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        return Likelihood(self.conditionals(as_batch(batch)).sum(1), "exact")

    @property
    def orders(self) -> Sequence[Tensor]:
        return [torch.arange(self.space.dims, device=self.bias.device)]

    def conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        """Zero at steps that do not exist."""
        x, exist = self.rows(batch)
        if is_exporting():  # lengths are not known while a network is traced
            log_p = self.parameters_of_conditionals(batch, member).log_softmax(-1)
            return log_p.gather(2, x[..., None])[..., 0] * exist
        source = self.source_of(batch)
        pieces, order = [], exist.sum(1).argsort(descending=True)
        while len(order):
            most = max(int(exist[order[0]].sum()), 1)
            own, order = (
                order[: max(1, TOKENS_PER_PASS // most)],
                order[max(1, TOKENS_PER_PASS // most) :],
            )
            vectors = self.decode_steps(
                self.encode_source(source[own]), self.inputs(x[own, :most])
            )
            log_p = self.logits(vectors).log_softmax(-1)
            found = log_p.gather(2, x[own, :most, None])[..., 0] * exist[own, :most]
            pieces.append((own, F.pad(found, (0, x.shape[1] - most))))
        rows = torch.cat([own for own, _ in pieces])
        return torch.cat([found for _, found in pieces])[rows.argsort()]

    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        x, _ = self.rows(batch)
        memory = self.encode_source(self.source_of(batch))
        return self.logits(self.decode_steps(memory, self.inputs(x)))

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """Yields after each symbol; symbols not sampled yet hold the end symbol."""
        source = broadcast_conditions(given or {}, self.space, n)[self.source]
        x, uniform = self.empty_sentences(n, options, generator)
        decoder = self.step_decoder(self.encode_source(source), n, len(uniform))
        symbols = sample_symbols(decoder, uniform, self.space.end, self.settings(options))
        for step, symbol in enumerate(symbols):
            x[:, step] = symbol
            yield x.clone()

    def empty_sentences(
        self, n: int, options: BaseConfig | None, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        """n sentences of end symbols (n, steps), and uniform noise for each symbol (steps, n)."""
        most, end = self.settings(options).steps or self.space.shape[0], self.space.end
        uniform = self.bias.new_empty(most, n).uniform_(generator=generator)
        return torch.full((n, most), end or 0, device=self.bias.device), uniform

    @torch.no_grad()
    def mode(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        """The most probable sentence found by beam search, (B, steps); the end is repeated."""
        source, chosen = given[self.source], self.settings(options)
        most, end = chosen.steps or self.space.shape[0], self.space.end
        length = source.length
        order = torch.arange(len(source)) if length is None else length.argsort()
        found = []
        with torch.inference_mode():  # saves a tenth of the time
            for rows in order.split(ROWS_PER_SEARCH):
                decoder = self.step_decoder(
                    self.encode_source(trim(source[rows])), len(rows), most
                )
                found.append(
                    beam_search(
                        decoder,
                        len(rows),
                        most,
                        self.space.size if end is None else end,
                        chosen.beams,
                        chosen.penalty,
                    )[0]
                )
        return torch.cat(found)[order.argsort()]

    def settings(self, options: BaseConfig | None) -> SamplingConfig:
        return cast("EncoderDecoderModel.SamplingConfig", options or self.SamplingConfig())


def cross_entropy(logits: Tensor, symbols: Tensor, smoothing: float) -> Tensor:
    """Cross entropy of each symbol (N,) with label smoothing."""
    return F.cross_entropy(logits, symbols, reduction="none", label_smoothing=smoothing)


def trim(source: Batch) -> Batch:
    """The source without steps that are padding in every row."""
    if source.length is None:
        return source
    return Batch(source.x[:, : int(source.length.max())], length=source.length)
