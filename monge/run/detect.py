"""Which rows of other data are unlike the data of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.abilities import CanEncode, HasLikelihood
from ..core.batch import Batch
from ..core.errors import UsageError
from ..core.metric import Metric
from ..core.space import Space
from ..evaluate.detection import (
    Scores,
    auroc,
    compressed_nats,
    false_alarms,
    mahalanobis,
    p_values,
)
from ..evaluate.energy_distance import FeatureMap
from ..evaluate.likelihood import row_likelihoods
from .completion import in_chunks

if TYPE_CHECKING:
    import pandas as pd

    from ..data.batches import Split
    from .run import Run

MAX_REFERENCE = 5000
"""Training rows from which usual values are learned."""
ALARM = 0.01
"""p-value below which a row counts as unlike the data."""


@dataclass(frozen=True)
class Detection:
    """Scores of rows, each larger for rows that are less like the data of a run.

    Examples
    --------
    >>> import monge
    >>> run = monge.fit("gaussian", "iris", progress=False)
    >>> found = run.detect(run.sample(50, seed=0))
    >>> sorted(found.inside)
    ['likelihood', 'mahalanobis', 'typicality']
    """

    inside: Mapping[str, Scores]  # of held-out rows of the run, by score
    outside: Mapping[str, Scores]  # of the rows in question
    numbers: np.ndarray  # their numbers in the file, from 1

    @property
    def names(self) -> list[str]:
        return list(self.inside)

    def auroc(self, name: str) -> Metric:
        return auroc(self.inside[name], self.outside[name])

    def false_alarms(self, name: str) -> float:
        return false_alarms(self.inside[name], self.outside[name])

    def p_values(self, name: str) -> Scores:
        return p_values(self.inside[name], self.outside[name])

    def table(self) -> pd.DataFrame:
        """A line per row: its scores, and how probable scores as large are for held-out rows."""
        import pandas as pd

        columns: dict[str, Any] = {"row": self.numbers}
        for name in self.names:
            columns |= {name: self.outside[name], f"{name}_p": self.p_values(name)}
        return pd.DataFrame(columns)


def detect(run: Run, what: Any, background: Run | None = None, seed: int = 0) -> Detection:
    """Score rows in question and the test rows of a run; `background` is a run on the same columns
    that knows what is common to all data."""
    usual, rows = run.split(None, "test"), run.split(what)
    reference = first_rows(run.split(None, "train"), MAX_REFERENCE)
    known, asked = whole(usual), whole(rows)
    inside: dict[str, Scores] = {}
    outside: dict[str, Scores] = {}

    def add(name: str, score: Any) -> None:
        inside[name], outside[name] = score(known), score(asked)

    if isinstance(run.model, HasLikelihood):
        nats = {id(batch): nats_of(run, batch, seed) for batch in (known, asked)}
        add("likelihood", lambda batch: -nats[id(batch)])
        middle = nats_of(run, reference, seed).mean()
        add("typicality", lambda batch: np.abs(nats[id(batch)] - middle))
        if background is not None:
            if background.space.shape != run.space.shape:
                raise UsageError(
                    f"expected a background run of {run.space}, found one of {background.space}; "
                    "fit it to data of the same columns"
                )
            add("ratio", lambda batch: nats_of(background, batch, seed) - nats[id(batch)])
        if (as_bytes := byte_rows(run.space)) is not None:
            add(
                "complexity",
                lambda batch: -nats[id(batch)] - compressed_nats(as_bytes(batch)),
            )
    if is_encoder(run):
        points = codes_of(run)
    elif any(part.kind == "tokens" for part in (run.space, *run.space.given.values())):
        return Detection(inside, outside, rows.numbers.numpy())  # symbols are no points
    else:
        features = FeatureMap(run.space)
        points = lambda batch: features(batch).numpy()  # noqa: E731
    learned = points(reference)
    add("mahalanobis", lambda batch: mahalanobis(learned, points(batch)))
    return Detection(inside, outside, rows.numbers.numpy())


def is_encoder(run: Run) -> bool:
    return isinstance(run.model, CanEncode)


def codes_of(run: Run) -> Any:
    """A function that gives the codes of rows, (N, F)."""

    def codes(batch: Batch) -> Scores:
        model: Any = run.model
        found = in_chunks(lambda rows: model.encode(rows), batch)
        return found.reshape(len(batch), -1).double().numpy()

    return codes


def nats_of(run: Run, batch: Batch, seed: int) -> Scores:
    model = run.require(HasLikelihood)
    chunks = (batch[part] for part in torch.arange(len(batch)).split(256))
    return row_likelihoods(model, chunks, run.space.dims, model.LikelihoodConfig(), seed).value


def byte_rows(space: Space) -> Any:
    """A function that gives rows as bytes, for levels and bits; None for others."""
    if space.kind not in ("levels", "binary") or max(space.size, 2) > 256:
        return None
    stretch = 255 // (max(space.size, 2) - 1)
    return lambda batch: (batch.x * stretch).numpy().astype(np.uint8)


def whole(rows: Split) -> Batch:
    return rows.batch(torch.arange(len(rows)))


def first_rows(rows: Split, most: int) -> Batch:
    """At most so many rows, evenly spaced."""
    count = min(len(rows), most)
    return rows.batch(torch.arange(count) * len(rows) // max(count, 1))
