r"""Metrics of text against references: BLEU, chrF, ROUGE and the word error rate.

BLEU (Papineni et al. 2002) is $b \exp(\frac14 \sum_{n \le 4} \log p_n)$ over a corpus, with p_n
the share of n-grams that occur in the references and b = min(1, e^{1 - r/c}) for references of r
and candidates of c words. It equals sacrebleu's default (Post 2018): cased, the tokens of
mteval-v13a, exponential smoothing of zero counts. chrF (Popovic 2015) is the F-score, with recall
weighted twice, of the mean precision and recall of 1- to 6-grams of characters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from ..core.errors import DataError
from ..core.metric import Metric, MetricKind

ORDER, LETTERS, RECALL = 4, 6, 2
"""Longest n-grams of words and of characters, and the weight of recall in chrF."""
WORD = re.compile(r"[^\W_]+")
"""A word of ROUGE: letters and digits of any script."""
RESAMPLED = 200
"""Bootstrap resamples of sentences for the standard error of a score."""
ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
CUTS = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),  # punctuation is separate
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),  # a full stop or comma, except between digits
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),  # a dash after a digit
)


def cut(line: str) -> list[str]:
    """Words and punctuation, as mteval-v13a separates them."""
    line = line.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, mark in ENTITIES:
        line = line.replace(entity, mark)
    line = f" {line} "
    for pattern, apart in CUTS:
        line = pattern.sub(apart, line)
    return line.split()


def grams(items: Sequence[str] | str, order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(items[i : i + order]) for i in range(len(items) - order + 1))


def bleu(candidates: Sequence[str], references: Sequence[str]) -> Metric:
    """In per cent, higher is better; with the bootstrap error over sentences."""
    counts = [word_counts(cut(own), cut(true)) for own, true in pairs(candidates, references)]
    return corpus(np.array(counts, float), bleu_of)


def word_counts(own: Sequence[str], true: Sequence[str]) -> list[int]:
    """Matching n-grams and all n-grams of each order, and the two lengths."""
    agree, total = [], []
    for order in range(1, ORDER + 1):
        mine, theirs = grams(own, order), grams(true, order)
        agree.append((mine & theirs).total())
        total.append(mine.total())
    return [*agree, *total, len(own), len(true)]


def bleu_of(counts: np.ndarray) -> float:
    """BLEU from counts (10,) summed over a corpus."""
    agree, total, (own, true) = counts[:ORDER], counts[ORDER : 2 * ORDER], counts[2 * ORDER :]
    if not agree.any() or not total.all():
        return 0.0
    halved = 1.0
    logs = []
    for right, every in zip(agree, total, strict=True):
        if not right:
            halved *= 2
        logs.append(math.log(right / every if right else 1 / (halved * every)))
    brevity = min(0.0, 1 - true / own)
    return 100 * math.exp(brevity + sum(logs) / ORDER)


def chrf(candidates: Sequence[str], references: Sequence[str]) -> Metric:
    """In per cent, higher is better."""
    counts = [
        letter_counts("".join(own.split()), "".join(true.split()))
        for own, true in pairs(candidates, references)
    ]
    return corpus(np.array(counts, float), chrf_of)


def letter_counts(own: str, true: str) -> list[int]:
    """For each order the matching n-grams, and those of each text; none of a candidate if its
    reference has none."""
    found: list[int] = []
    for order in range(1, LETTERS + 1):
        mine, theirs = grams(own, order), grams(true, order)
        found += [(mine & theirs).total(), mine.total() if theirs else 0, theirs.total()]
    return found


def chrf_of(counts: np.ndarray) -> float:
    agree, own, true = counts.reshape(LETTERS, 3).T
    known = (own > 0) & (true > 0)
    if not known.any():
        return 0.0
    precision, recall = (agree[known] / own[known]).mean(), (agree[known] / true[known]).mean()
    if not precision + recall:
        return 0.0
    weight = RECALL**2
    return float(100 * (1 + weight) * precision * recall / (weight * precision + recall))


def corpus(counts: np.ndarray, score: Callable[[np.ndarray], float]) -> Metric:
    """The score of counts (N, K) summed over a corpus, with its bootstrap standard error."""
    resampled = np.random.default_rng(0).multinomial(
        len(counts), [1 / len(counts)] * len(counts), RESAMPLED
    )
    spread = np.std([score(row) for row in resampled @ counts])
    return Metric(score(counts.sum(0)), "estimate", float(spread), "%")


def rouge(candidates: Sequence[str], references: Sequence[str]) -> dict[str, Metric]:
    """ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): the F-scores of shared words, of shared pairs of
    words, and of the longest common subsequence of words, mean over sentences, in per cent."""
    found: dict[str, list[float]] = {"rouge_1": [], "rouge_2": [], "rouge_l": []}
    for own, true in pairs(candidates, references):
        mine, theirs = (WORD.findall(text.lower()) for text in (own, true))
        for order in (1, 2):
            a, b = grams(mine, order), grams(theirs, order)
            found[f"rouge_{order}"].append(200 * (a & b).total() / max(a.total() + b.total(), 1))
        shared = common(mine, theirs)
        found["rouge_l"].append(200 * shared / max(len(mine) + len(theirs), 1))
    return {name: mean(values, "estimate") for name, values in found.items()}


def common(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for word in a:
        above = 0
        for place, other in enumerate(b, 1):
            above, row[place] = (
                row[place],
                above + 1 if word == other else max(row[place], row[place - 1]),
            )
    return row[-1]


def word_errors(candidates: Sequence[str], references: Sequence[str]) -> Metric:
    """Words to change, add or remove per word of the references, in per cent; lower is
    better."""
    counts = [
        [distance(own.split(), true.split()), len(true.split())]
        for own, true in pairs(candidates, references)
    ]
    score = corpus(np.array(counts, float), lambda sums: 100 * sums[0] / max(sums[1], 1))
    return Metric(score.value, "loss", score.stderr, "%")


def distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The edit distance of a and b (Levenshtein 1966)."""
    row = list(range(len(b) + 1))
    for count, word in enumerate(a, 1):
        corner, row[0] = row[0], count
        for place, other in enumerate(b, 1):
            corner, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, corner + (word != other)),
            )
    return row[-1]


def mean(values: Sequence[float], kind: MetricKind) -> Metric:
    spread = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Metric(float(np.mean(values)), kind, float(spread), "%")


def pairs(candidates: Sequence[str], references: Sequence[str]) -> list[tuple[str, str]]:
    if len(candidates) != len(references) or not candidates:
        raise DataError(
            f"expected one reference per candidate, found {len(candidates)} candidates and "
            f"{len(references)} references; give equally many"
        )
    return list(zip(candidates, references, strict=True))
