r"""A table for every conditional, by counting: exact, and as large as the data has states

$p(x_i = k \mid x_{<i}) = \theta^{(i)}_{x_{<i}, k}$: one row for each way the entries before can
combine. For n bits the i-th table has $2^{i-1}$ parameters and all have $2^n - 1$, which is why
every other model of this family computes its conditionals instead. Small tables can do what no
network can: they are fitted by counting, and any pattern is completed by enumeration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import (
    CanComplete,
    CanSample,
    CanStream,
    Given,
    HasConditionals,
    HasLikelihood,
    Likelihood,
)
from ...core.batch import Batch, as_batch, conform
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.error import DataError
from ...core.model import Losses, Model, Suit, Turn
from ...core.recipe import Recipe
from ...core.space import Space
from ...prob.laws import pick
from ...prob.runs import Runs
from ._base import blank

CELLS = 1 << 20
"""Cells that the tables may have together."""
ROOM = 1 << 22
"""States that are weighed at once where rows are completed."""
BINS = range(4, 65)
"""How many runs the values of a number may be cut into."""


class Tabular(Model, HasLikelihood, HasConditionals, CanSample, CanComplete, CanStream):
    r"""$p(x \mid g) = \prod_i P(c_i \mid c_{<i}, g)\, p(x_i \mid c_i)$ with $P(c_i = k \mid c_{<i},
    g) = (n_k + m\, q_k) / (\sum_k n_k + m)$, where $c_i$ is the code of entry i (its value, or the
    run of the histogram a number falls into), $n$ are the counts of training rows that begin so
    and $q$ the frequencies of the entry alone, which m more rows follow. Each combination g of
    labels given has tables of its own.
    """

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"label"}

    class Config(Model.Config):
        pseudo: Annotated[float, Range(0, open=True)] = 0.5
        """Pseudo-count of a cell, on average over the row of a table."""
        bins: Annotated[int, Range(BINS.start)] = 16
        """Runs of a number's histogram; levels are grouped only if there are more."""

    config: Config
    counts: Tensor
    share: Tensor
    blank: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        if reason := too_large(space, config.bins):
            raise DataError(reason)
        self.codes, self.groups = Codes(space, config.bins), groups_of(space)
        self.ends = ends_of(self.codes.sizes, self.groups)
        self.register_buffer("counts", torch.zeros(self.ends[-1]))  # the tables end to end
        self.register_buffer("share", torch.cat(self.codes.even()))  # (sum of sizes,)
        self.register_buffer("blank", blank(space), persistent=False)  # (D,)

    @property
    def parameter_count(self) -> int:
        """Free numbers: each row of a table sums to one."""
        return sum(len(table) * (table.shape[1] - 1) for table in self.tables())

    @property
    def orders(self) -> Sequence[Tensor]:
        return [torch.arange(self.space.dims, device=self.blank.device)]

    def loss(self, batch: Batch) -> Losses:
        return {"nll": -self.log_prob(batch)}

    def turns(self) -> Sequence[Turn]:
        return [Turn("count", self.count, whole=True)]

    def count(self, batch: Batch) -> Losses:
        group, x = self.group(batch.given, len(batch)), self.flat(batch)
        self.codes.fit(x)
        code, _ = self.codes.encode(x)
        shares = zip(self.share.split(self.codes.sizes), self.codes.even(), strict=True)
        for i, (place, (share, even)) in enumerate(zip(self.prefixes(code, group), shares,
                                                       strict=True)):
            table, size = self.tables()[i], self.codes.sizes[i]
            cell = place * size + code[:, i]
            table.copy_(cell.bincount(minlength=table.numel()).reshape(table.shape))
            rows = self.config.pseudo * int((even > 0).sum())
            share.copy_((table.sum(0) + rows * even) / (len(code) + rows))
        return self.loss(batch)
