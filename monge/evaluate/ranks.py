r"""Calibration by ranks: whether a conditional distribution is as wide as it should be.

If a row $(\theta, x)$ is drawn from the data and $\theta_1, ..., \theta_L \sim q(\theta | x)$ from
the model, the rank of a number $f(\theta)$ among $f(\theta_1), ..., f(\theta_L)$ is uniform on
0, ..., L whatever x is, if q is the conditional distribution of the data (Cook, Gelman & Rubin
2006; Talts et al. 2018, simulation-based calibration). Ranks pile up at both ends if q is too
narrow, in the middle if it is too wide, at one end if it is biased. f are the entries of
$\theta$, and $\log q(\theta | x)$, whose ranks also see wrong dependences between entries. Ties
are broken at random, so that whole numbers have uniform ranks too.

A row is in the central interval of probability c if its rank is among the middle c (L + 1), which
has exactly that probability; the interval of $\log q$ is the region of highest density.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ..core.abilities import CanSample, HasLikelihood
from ..core.batch import Batch
from ..core.metric import Metric
from ..core.model import Model, device_of
from ..core.rng import derive_seed, make_generator
from .forecasts import is_forecast
from .likelihood import HeldOutRows, row_subset
from .predictions import mean_of, predicts
from .rejection import Obeys, draw_obeying
from .tabular import NUMBERS, is_table, titles

DRAWS = 99
"""Samples given the condition of a row: ranks are 0 to 99."""
LEVELS = (0.5, 0.9)
"""Probabilities of the central intervals whose coverage is measured."""
MOST_ENTRIES = 16
"""Entries of an event whose ranks are computed."""
MAX_ROWS, MIN_ROWS, PIECE, PATIENCE = 1000, 50, 50, 10.0
"""Most rows, fewest rows, rows at once, and seconds after which no further rows are begun."""
BINS, ROWS_PER_BIN = (20, 10, 5), 10
"""Numbers of bins of the test of uniformity, of which the first with so many rows is taken."""
DENSITY = "density"
"""The name of the ranks of log q."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of held-out rows among samples of the model with the same conditions."""

    names: tuple[str, ...]  # of the statistics, the entries and the log-density
    rank: Tensor  # (N, S), from 0 to DRAWS

    @property
    def bins(self) -> int:
        """Bins of the test of uniformity; each has equally many ranks."""
        n = len(self.rank)
        return next((bins for bins in BINS if n >= ROWS_PER_BIN * bins), BINS[-1])

    def counts(self) -> Tensor:
        """Rows in each bin of ranks, (S, bins)."""
        place = self.rank * self.bins // (DRAWS + 1)
        return torch.stack([column.bincount(minlength=self.bins) for column in place.T])


def is_ranked(model: Model) -> bool:
    """Whether its ranks are computed: it samples few numbers given other fields of the same
    row."""
    space = model.space
    return (
        isinstance(model, CanSample)
        and bool(space.given)
        and not (model.is_unpaired or predicts(model) or is_forecast(model))
        and is_table(space)
        and space.dims <= MOST_ENTRIES
        and all(part.kind in NUMBERS for part in space.parts)
        and not any(part.varies or part.kind == "tokens" for part in space.given.values())
    )


@torch.no_grad()
def rank_statistics(
    model: Model,
    rows: HeldOutRows,
    names: Sequence[str] = (),
    seed: int = 0,
    obeys: Obeys | None = None,
) -> Ranks | None:
    """The ranks of at most `MAX_ROWS` rows without missing values; None if the model or the rows
    do not admit them, or if sampling is too slow."""
    if not is_ranked(model) or len(rows) < MIN_ROWS:
        return None
    batch = row_subset(rows, MAX_ROWS)
    known = batch.observed_mask & ~model.space.empty(batch.x)
    batch = batch[known.reshape(len(batch), -1).all(1).nonzero()[:, 0]]
    # those that are ranked if there is not time for all are spread over the rows
    batch = batch[torch.randperm(len(batch), generator=make_generator(seed))]
    noise = make_generator(derive_seed(seed, "ties"))
    generator = make_generator(derive_seed(seed, "ranks"), device_of(model))
    pieces, started = list[Tensor](), time.perf_counter()
    for start in range(0, len(batch), PIECE):
        some = batch[start : start + PIECE]
        pieces.append(ranks_of(statistics(model, some, generator, obeys), noise))
        if time.perf_counter() - started > PATIENCE:
            break
    found = torch.cat(pieces) if pieces else torch.empty(0, 0)
    if len(found) < MIN_ROWS:
        return None
    entries = titles(model.space, names)
    return Ranks((*entries, DENSITY)[: found.shape[1]], found)


def statistics(
    model: Model, batch: Batch, generator: Generator, obeys: Obeys | None = None
) -> Tensor:
    """The entries of each row and of its samples, and their log-density if the model has one that
    is exact, (B, 1 + DRAWS, S); the row itself is the first."""
    assert isinstance(model, CanSample)
    device, n = device_of(model), len(batch)
    every = batch[torch.arange(n).repeat_interleave(DRAWS)]

    def draw(index: Tensor) -> Tensor:
        given = every[index].to(device).given
        return model.sample(len(index), given, generator=generator).cpu()

    x, _ = draw_obeying(draw, len(every), obeys)
    values = [batch.x.reshape(n, 1, -1).double(), x.reshape(n, DRAWS, -1).double()]
    found = torch.cat(values, 1)  # (B, 1 + DRAWS, D)
    if not isinstance(model, HasLikelihood):
        return found
    own = model.likelihood(batch.to(device), generator=generator)
    if own.kind != "exact":
        return found
    sampled = Batch(x.to(batch.x.dtype), given=every.given)
    others = model.likelihood(sampled.to(device), generator=generator)
    values = [own.value.reshape(n, 1).cpu().double(), others.value.reshape(n, -1).cpu().double()]
    return torch.cat([found, torch.cat(values, 1)[..., None]], 2)


def ranks_of(values: Tensor, generator: Generator) -> Tensor:
    """How many of the others the first of values (B, 1 + L, S) exceeds, (B, S), where each of
    those that it equals counts as exceeded or not such that all numbers are equally likely."""
    first, others = values[:, :1], values[:, 1:]
    lower, equal = (others < first).sum(1), (others == first).sum(1)
    share = torch.rand(equal.shape, generator=generator, dtype=torch.float64)
    return lower + (share * (equal + 1)).long()


def rank_metrics(ranks: Ranks | None) -> dict[str, Metric]:
    """The coverage of central intervals of each entry and of regions of highest density, and the
    p-value that ranks are uniform: of every statistic, and of all together (Bonferroni)."""
    if ranks is None:
        return {}
    found, least = dict[str, Metric](), 1.0
    for name, rank, counts in zip(ranks.names, ranks.rank.T, ranks.counts(), strict=True):
        value = uniformity(counts)
        least = min(least, value)
        found[f"{name}.rank_p"] = Metric(value, "estimate", 0.0, "p-value")
        for level in LEVELS:
            inside = covered(rank, level, name == DENSITY)
            found[f"{name}.coverage_{level:g}"] = mean_of(inside, "share")
    every = min(1.0, least * len(ranks.names))
    return {
        "rank_p": Metric(every, "estimate", 0.0, "p-value"),
        **found,
        "rows_ranked": Metric(len(ranks.rank), "exact", 0.0, "rows"),
    }


def covered(rank: Tensor, level: float, highest: bool) -> Tensor:
    """Which ranks are among the middle ones, or among the highest, that have this
    probability."""
    count = round(level * (DRAWS + 1))
    start = DRAWS + 1 - count if highest else (DRAWS + 1 - count) // 2
    return (rank >= start) & (rank < start + count)


def uniformity(counts: Tensor) -> float:
    """The p-value of the chi-square test that bins (K,) are equally likely."""
    from scipy.stats import chisquare

    return float(chisquare(counts.numpy()).pvalue)
