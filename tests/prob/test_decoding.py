"""Sampling and searching on a model that can be enumerated: a chain of two symbols and an end."""

import itertools
import math

import pytest
import torch

from monge.core.rng import make_generator
from monge.prob.decoding import (
    SYMBOL_BLOCK,
    SymbolSampling,
    beam_search,
    sample_symbols,
    top_extensions,
    truncate_logits,
)

END = 3


class Bigrams:
    """Logits of the next symbol from the last one alone, other in each row; takes note of rows."""

    def __init__(self, n: int, seed: int = 0) -> None:
        self.table = torch.randn(n, 5, 4, generator=make_generator(seed), dtype=torch.float64)
        self.rows = torch.arange(n)

    def next_logits(self, symbol):
        last = torch.full_like(self.rows, 4) if symbol is None else symbol
        return self.table[self.rows, last]

    def reorder(self, rows, beams=1):
        self.rows = self.rows[rows]


def score(table, sentence):
    last, total = 4, 0.0
    for symbol in sentence:
        total += table[last].log_softmax(-1)[symbol].item()
        last = symbol
    return total


def sentences(most):
    ended = [(*body, END) for n in range(most) for body in itertools.product(range(3), repeat=n)]
    return ended + list(itertools.product(range(3), repeat=most))


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.0])
def test_a_wide_beam_is_exhaustive(penalty):
    model = Bigrams(6)
    found, value = beam_search(model, 6, 4, END, 200, penalty)
    for row in range(6):
        best = max(sentences(4), key=lambda s: score(model.table[row], s) / len(s) ** penalty)
        assert tuple(found[row, : len(best)].tolist()) == best
        assert value[row].item() == pytest.approx(
            score(model.table[row], best) / len(best) ** penalty
        )


def test_a_narrow_beam_scores_what_it_returns_and_is_no_better_than_a_wide_one():
    narrow, wide = (beam_search(Bigrams(20, seed=1), 20, 6, END, beams, 1.0) for beams in (2, 100))
    table = Bigrams(20, seed=1).table
    for row in range(20):
        sequence = narrow[0][row].tolist()
        sequence = sequence[: sequence.index(END) + 1] if END in sequence else sequence
        assert narrow[1][row].item() == pytest.approx(score(table[row], sequence) / len(sequence))
    assert (narrow[1] <= wide[1] + 1e-12).all()
    assert (narrow[1] < wide[1] - 1e-6).any()


def test_rows_do_not_depend_on_those_beside_them():
    together = beam_search(Bigrams(8), 8, 5, END, 3)[0]
    for row in range(8):
        alone = Bigrams(8)
        alone.rows = torch.tensor([row])
        assert torch.equal(beam_search(alone, 1, 5, END, 3)[0][0], together[row])


@pytest.mark.parametrize("size", [7, 3 * SYMBOL_BLOCK, 5 * SYMBOL_BLOCK + 1, 5 * SYMBOL_BLOCK + 9])
def test_the_best_sums_are_found_run_by_run(size):
    log_p = torch.randn(12, size, generator=make_generator(size)).log_softmax(-1)
    live = torch.randn(3, 4, generator=make_generator(1))
    live[1, 2] = -math.inf
    score, origin, symbol = top_extensions(live, log_p, 6)
    every = (live[..., None] + log_p.view(3, 4, size)).flatten(1).topk(6, 1)
    assert torch.equal(score, every.values)
    assert torch.equal(origin * size + symbol, every.indices)


def test_samples_follow_the_distribution_and_ended_rows_stay_ended():
    model = Bigrams(1)
    model.rows = torch.zeros(20000, dtype=torch.long)
    uniform = torch.rand(3, 20000, generator=make_generator(1), dtype=torch.float64)
    steps = list(sample_symbols(model, uniform, END, SymbolSampling()))
    x = torch.stack(steps, 1)
    for sentence in sentences(3)[:6]:
        padded = torch.tensor([*sentence, *[END] * (3 - len(sentence))])
        share = (x == padded).all(1).double().mean().item()
        p = math.exp(score(model.table[0], sentence))
        assert abs(share - p) < 5 * (p * (1 - p) / 20000) ** 0.5 + 1e-9
    after = x[:, :-1] == END
    assert (x[:, 1:][after] == END).all()


def test_excluded_symbols_are_never_sampled():
    logits = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0]).double()
    p = logits.softmax(-1)
    assert truncate_logits(logits, SymbolSampling(top_k=2)).isfinite().tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]
    kept = truncate_logits(logits, SymbolSampling(top_p=float(p[:2].sum()) - 1e-6)).isfinite()
    assert kept.tolist() == [True, True, False, False, False]
    assert truncate_logits(logits, SymbolSampling(top_p=1e-9)).isfinite().sum() == 1
    torch.testing.assert_close(
        truncate_logits(logits, SymbolSampling(temperature=0.5)), 2 * logits
    )
    torch.testing.assert_close(
        truncate_logits(logits, SymbolSampling(temperature=2.0)), logits / 2
    )
    assert torch.equal(truncate_logits(logits, SymbolSampling()), logits)


def test_greedy_takes_the_most_probable_symbol():
    model, table = Bigrams(5), Bigrams(5).table
    for step, symbol in enumerate(
        sample_symbols(model, torch.full((1, 5), 0.999), None, SymbolSampling(top_k=1))
    ):
        assert step == 0
        assert torch.equal(symbol, table[:, 4].argmax(-1))


def test_logits_of_symbols_that_are_cut_are_minus_infinity():
    logits = torch.tensor([0.5, 0.1, 0.3, 0.1]).log()
    most = truncate_logits(logits, SymbolSampling(top_p=0.7))
    assert most.isneginf().tolist() == [False, True, False, True]
    assert torch.equal(most[[0, 2]], logits[[0, 2]])
    best = truncate_logits(logits, SymbolSampling(top_k=1))
    assert best.isneginf().tolist() == [False, True, True, True]
