"""Every entry by itself: smoothed frequencies, and histograms of numbers

The first reference of any comparison: what it scores is what the entries tell apart, so the
distance of a better model from it is the dependence that the model has found.
"""

from __future__ import annotations

from typing import Annotated

from torch import Generator, Tensor

from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._base import Reference, Rows, groups_of
from ._categorical import Tables


class Independent(Reference):
    r"""$p(x \mid y) = \prod_i p_i(x_i \mid y)$, a table for each combination y of labels given.

    A bit or a label has the frequency it was counted with, a number has a histogram:
    $p_i(x) = P_i(\text{run}) / |\text{run}|$ with geometric tails. With labels given, a table is
    smoothed towards the table of all rows.
    """

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"label"}

    class Config(BaseConfig):
        tag = "model/baseline.independent"
        bins: Annotated[int, Range(4)] = 32
        """Runs of a number's histogram; ordered levels are grouped only if there are more."""
        pseudo: Annotated[float, Range(0, open=True)] = 0.5
        """Pseudo-count of every value or run, so that nothing is impossible."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.laws = Tables(space, groups_of(space), config.bins, config.pseudo)
        self.width = 8 * space.dims

    def count(self, batch: Batch) -> Losses:
        rows = self.rows(batch)
        self.laws.fit(rows)
        return {"nll": -self.densities(rows)}

    def density(self, rows: Rows) -> Tensor:
        return self.laws.chosen(rows)

    def draw(self, rows: Rows, options: BaseConfig | None, generator: Generator | None) -> Tensor:
        return self.laws.draw(rows.x, rows.seen, rows.group, generator)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        bins = min(max(round(2 * space.rows**0.4), 8), 256)
        return Defaults(cls.Config(bins=bins), TrainConfig(max_steps=1, eval_every=1, patience=0))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(bins=8)
