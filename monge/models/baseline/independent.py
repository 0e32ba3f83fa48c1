"""Independent entries: smoothed frequencies, and histograms of numbers

The first baseline of any comparison: it ignores dependence between entries, so the gain of a
better model over it is the dependence that the model captures.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.limits import label_combinations
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._base import ClosedFormModel, FlatRows
from ._categorical import CategoricalTables


class Independent(ClosedFormModel):
    r"""$p(x \mid y) = \prod_i p_i(x_i \mid y)$, one table per combination y of given labels.

    Bits and labels have their smoothed frequencies, numbers a histogram,
    $p_i(x) = P_i(\text{bin}) / |\text{bin}|$, with geometric tails. Tables given labels are
    smoothed towards the table of all rows.
    """

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"label"}

    class Config(BaseConfig):
        tag = "model/baseline.independent"
        bins: Annotated[int, Range(4)] = 32
        """Bins of a number's histogram; ordered levels are grouped only if there are more."""
        pseudo: Annotated[float, Range(0, open=True)] = 0.5
        """Pseudo-count of every value or bin, so that no probability is 0."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.distributions = CategoricalTables(
            space, label_combinations(space), config.bins, config.pseudo
        )
        self.width = 8 * space.dims

    def loss(self, batch: Batch) -> Losses:
        """-log p(x | y) = -sum_i log p_i(x_i | y) over the observed entries; `fit_rows` minimises
        it by counting, up to the pseudo-counts."""
        return {"nll": -self.log_densities(self.to_rows(batch))}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x_i ~ p_i(x_i | y), each entry on its own."""
        rows = self.unobserved_rows(n, given)
        x = self.distributions.sample(rows, rows.group, generator)  # (n, D)
        return self.to_events(x)

    def fit_rows(self, batch: Batch) -> Losses:
        rows = self.to_rows(batch)
        self.distributions.fit(rows)
        return {"nll": -self.log_densities(rows)}

    def log_density(self, rows: FlatRows) -> Tensor:
        return self.distributions.log_prob_of_group(rows)

    def sample_missing(
        self, rows: FlatRows, options: BaseConfig | None, generator: Generator | None
    ) -> Tensor:
        return self.distributions.sample(rows, rows.group, generator)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        bins = min(max(round(2 * space.rows**0.4), 8), 256)
        return Defaults(cls.Config(bins=bins), TrainConfig(max_steps=1, eval_every=1, patience=0))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(bins=8)
