r"""Decoding of sequences symbol by symbol: sampling and beam search.

Sampling: $x_t \sim p(x_t | x_{<t})$, the logits divided by a temperature, and symbols outside the
k most probable (top-k) or outside the smallest set of probability q (nucleus; Holtzman et al.
2020) excluded; greedy decoding is top-1. Beam search keeps the k most probable prefixes and
returns the finished sequence with the largest

$$s(x) = \log p(x) / T^\alpha$$

with T the number of its symbols, including the end, and $\alpha$ the length penalty: 0 maximises
the probability of the sequence, 1 the mean log-probability per symbol. All rows are searched at
once with one state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Protocol

import torch
from torch import Tensor

from ..core.config import Config, Range
from .distributions import sample_categorical

COMPACT_BELOW_SHARE = 0.75
"""Finished rows are dropped when at most this share of the rows is unfinished."""
COMPACT_FINISHED_DIVISOR = 8
"""Finished rows are dropped when they are at least one in this many."""
SYMBOL_BLOCK = 64
"""Consecutive symbols whose maximum is compared first in the top-k search."""


class SymbolSampling(Config):
    """How the next symbol is sampled."""

    neutral = {"temperature": (1.0,), "top_k": (0,), "top_p": (1.0,)}
    temperature: Annotated[float, Range(0, open=True)] = 1.0
    """Divides the logits: below 1 favours likely symbols, above 1 flattens; 1 is the model."""
    top_k: Annotated[int, Range(0)] = 0
    """Top-k sampling: only the k most probable symbols; 1 is greedy, 0 keeps all."""
    top_p: Annotated[float, Range(0, 1, open=True)] = 1.0
    """Nucleus (top-p) sampling: the most probable symbols with this total probability."""


class StepDecoder(Protocol):
    """Incremental decoder of m rows."""

    def next_logits(self, symbol: Tensor | None) -> Tensor:
        """Logits (m, V) of what follows one more symbol (m,); None before the first. The next call
        may overwrite them: large tensors cost less where the last ones were."""

    def reorder(self, rows: Tensor, beams: int = 1) -> None:
        """Keep the given rows in this order, repeats allowed; each group of consecutive rows (one
        per beam) comes from one source row."""


def truncate_logits(logits: Tensor, options: SymbolSampling) -> Tensor:
    """Logits (..., V) of the sampling distribution; minus infinity for excluded symbols."""
    if options.temperature != 1:
        logits = logits / options.temperature
    if options.top_k and options.top_k < logits.shape[-1]:
        least = logits.topk(options.top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if options.top_p < 1:
        p, order = logits.softmax(-1).sort(-1, descending=True)
        late = (
            p.cumsum(-1) - p >= options.top_p
        )  # the symbols before it already have this probability
        logits = logits.masked_fill(late.scatter(-1, order, late), -math.inf)
    return logits


def sample_symbols(
    decoder: StepDecoder, uniform: Tensor, end: int | None, options: SymbolSampling
) -> Iterator[Tensor]:
    """Yield the next symbol of every row (n,), at most one per row of `uniform` (steps, n);
    finished rows repeat their end, and the iteration stops when all are finished."""
    n, device = uniform.shape[1], uniform.device
    rows, symbol, ended = torch.arange(n, device=device), None, None
    for noise in uniform:
        logits = truncate_logits(decoder.next_logits(symbol), options)
        symbol = sample_categorical(logits, noise[rows])
        if end is None:
            yield symbol
            continue
        symbol = symbol if ended is None else symbol.masked_fill(ended, end)
        symbols = symbol.new_full((n,), end)
        symbols[rows] = symbol
        yield symbols
        ended = symbol == end
        count = int(ended.sum())
        if count == len(rows):
            return
        if len(rows) - count <= COMPACT_BELOW_SHARE * len(rows):
            on = (~ended).nonzero()[:, 0]
            decoder.reorder(on)
            rows, symbol, ended = rows[on], symbol[on], None


def beam_search(
    decoder: StepDecoder, n: int, max_length: int, end: int, beams: int = 5, penalty: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The best sequences found (n, max_length), with the end repeated, and their scores (n,)."""
    search = BeamSearch(decoder, n, max_length, end, beams, penalty)
    for length in range(1, max_length + 1):
        if not search.extend(length):
            break
    return search.best, search.score


def top_extensions(live: Tensor, log_p: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` largest sums of a prefix's log p, live (m, k), and that of its next symbol,
    log_p (m k, V): the sorted sums, their prefixes and their symbols, (m, count) each.

    They lie in the `count` blocks of symbols with the largest maxima.
    """
    (m, k), size = live.shape, log_p.shape[1]
    runs = size // SYMBOL_BLOCK
    if k * runs <= count:
        score, which = (
            (live[..., None] + log_p.view(m, k, size)).flatten(1).topk(min(count, k * size), 1)
        )
        return score, which // size, which % size
    cut = log_p[:, : runs * SYMBOL_BLOCK].unflatten(1, (runs, SYMBOL_BLOCK))  # (m k, runs, RUN)
    top = (cut.amax(2).view(m, k, runs) + live[..., None]).flatten(1).topk(count, 1).indices
    origin, run = top // runs, top % runs  # (m, count)
    rows = torch.arange(m, device=live.device)[:, None] * k
    sums = cut[rows + origin, run] + live.gather(1, origin)[..., None]  # (m, count, RUN)
    rest = log_p[:, runs * SYMBOL_BLOCK :].reshape(m, k, -1) + live[..., None]  # less than a block
    score, which = torch.cat([sums.flatten(1), rest.flatten(1)], 1).topk(count, 1)
    late, left = which - count * SYMBOL_BLOCK, max(size - runs * SYMBOL_BLOCK, 1)
    inside = which.clamp(max=count * SYMBOL_BLOCK - 1)
    symbol = run.gather(1, inside // SYMBOL_BLOCK) * SYMBOL_BLOCK + inside % SYMBOL_BLOCK
    return (
        score,
        torch.where(late < 0, origin.gather(1, inside // SYMBOL_BLOCK), late // left),
        torch.where(late < 0, symbol, runs * SYMBOL_BLOCK + late % left),
    )


class BeamSearch:
    """The unfinished rows with k prefixes each, and the best sequence found for each row."""

    def __init__(
        self, decoder: StepDecoder, n: int, max_length: int, end: int, beams: int, penalty: float
    ) -> None:
        self.decoder, self.max_length, self.end, self.penalty = decoder, max_length, end, penalty
        self.beams = beams
        self.symbol: Tensor | None = None
        self.rows = torch.arange(n)
        self.done = torch.zeros(n, dtype=torch.bool)  # whether the search of a row is finished
        self.found = torch.zeros(n, dtype=torch.long)  # finished sequences of each row
        self.symbols = torch.empty(n, 1, 0, dtype=torch.long)  # (m, k, length)
        self.live = torch.zeros(n, 1)  # log p of each prefix
        self.log_p = torch.empty(0)  # of the next symbols of all prefixes, (m k, V)
        self.best, self.score = torch.full((n, max_length), end), torch.full((n,), -math.inf)

    def extend(self, length: int) -> bool:
        """Extend every prefix by a symbol; returns false if all rows are finished."""
        logits = self.decoder.next_logits(self.symbol)
        if length == 1:
            self.to_device(logits)
        if self.log_p.shape != logits.shape:
            self.log_p = torch.empty_like(logits)
        torch.log_softmax(logits, -1, out=self.log_p)
        score, origin, symbol = top_extensions(self.live, self.log_p, 2 * self.beams)  # (m, 2 k)
        symbols = self.symbols.gather(1, origin[..., None].expand(-1, -1, self.symbols.shape[2]))
        symbols = torch.cat([symbols, symbol[..., None]], 2)
        over = symbol == self.end
        first = torch.arange(over.shape[1], device=over.device) < self.beams
        self.finish(symbols, score.masked_fill(~(over & first), -math.inf), length)
        if length == self.max_length:
            self.finish(symbols, score.masked_fill(over | ~first, -math.inf), length)
            return False
        order = (over | score.isneginf()).long().argsort(dim=1, stable=True)[:, : self.beams]
        held = self.live.shape[1]
        self.live = score.masked_fill(over, -math.inf).gather(1, order)
        self.symbols = symbols.gather(1, order[..., None].expand(-1, -1, length))
        return self.select(origin.gather(1, order), held)

    def to_device(self, logits: Tensor) -> None:
        """Move the state to the device of the logits."""
        for name in ("rows", "done", "found", "symbols", "best"):
            setattr(self, name, getattr(self, name).to(logits.device))
        self.live, self.score = self.live.to(logits), self.score.to(logits)

    def finish(self, symbols: Tensor, score: Tensor, length: int) -> None:
        """Record sequences that end here, (m, c, length); minus infinity for those that do
        not."""
        score = score.masked_fill(self.done[:, None], -math.inf)
        self.found[self.rows] += score.isfinite().sum(1)
        top, which = (score / length**self.penalty).max(1)
        better = top > self.score[self.rows]
        rows = self.rows[better]
        self.score[rows] = top[better]
        self.best[rows] = self.end
        self.best[rows, :length] = symbols[better, which[better]]

    def select(self, origin: Tensor, held: int) -> bool:
        """Mark rows as finished that have found k sequences, or one that no prefix can beat, and
        drop them once they are many. The decoder holds `held` prefixes per row; origin (m, k) is
        the prefix that each new one extends."""
        hope = self.live.amax(1) / self.max_length**self.penalty
        self.done |= (self.found[self.rows] >= self.beams) | (self.score[self.rows] >= hope)
        count = int(self.done.sum())
        on = (~self.done | (COMPACT_FINISHED_DIVISOR * count < len(self.rows))).nonzero()[:, 0]
        states = (on[:, None] * held + origin[on]).flatten()
        for name in ("rows", "done", "live", "symbols"):
            setattr(self, name, getattr(self, name)[on])
        self.symbol = self.symbols[..., -1].flatten()
        if len(on):
            self.decoder.reorder(states, origin.shape[1])
        return bool(len(on))
