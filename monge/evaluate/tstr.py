r"""Train on synthetic, test on real (TSTR): how useful samples are as training data.

Boosted trees trained on samples predict a column of a table from the others, and are evaluated on
real rows that have a value of it (Esteban, Hyland & Rätsch 2017): categories by accuracy, numbers
by $R^2 = 1 - \sum (y - \hat y)^2 / \sum (y - \bar y)^2$. The reference is trained on as many
training rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.metric import Metric
from ..core.space import Space
from ..nn.inputs.features import Features
from .tabular import NAMES, boosted_trees, correlations

TARGETS = 3
"""Most columns that are predicted."""
FEWEST = 20
"""Fewest rows to learn a column from."""


def targets(train: Tensor, test: Tensor, space: Space) -> list[int]:
    """The columns to predict: categories before numbers, and within a kind those with the
    strongest dependence on another column first."""
    if len(space.columns) < 2:
        return []
    read = Features(space).double()
    dependence = correlations(train, read).abs()
    dependence[read.owner[:, None] == read.owner] = 0.0
    lean = [float(dependence[part].max()) for part in read.slices]
    order = sorted(range(len(lean)), key=lambda i: (space.columns[i].kind not in NAMES, -lean[i]))
    sides = [side.where(has_value(side, space), torch.nan) for side in (train, test)]
    return [i for i in order if all(enough(side[:, i]) for side in sides)][:TARGETS]


def has_value(rows: Tensor, space: Space) -> Tensor:
    """Which cells (n, D) are neither unknown nor empty."""
    return ~(rows.isnan() | space.empty(rows))


def enough(values: Tensor) -> bool:
    """Whether a column has a value in enough rows, and varies."""
    known = values[~values.isnan()]
    return len(known) >= FEWEST and len(known.unique()) > 1


def tstr_scores(
    rows: Tensor, test: Tensor, space: Space, chosen: Sequence[int], seed: int = 0
) -> dict[str, Metric]:
    """How well each chosen column of `test` (m, D) is predicted from the others by trees fitted to
    `rows` (n, D)."""
    found = {}
    for column in chosen:
        (x, y), (inputs, truth) = (divided(side, column, space) for side in (rows, test))
        others = [part for i, part in enumerate(space.columns) if i != column]
        names, name = space.columns[column].kind in NAMES, space.columns[column].name
        predicted = fit_and_predict(x, y, inputs, others, names, seed)
        found[f"tstr_{name}"] = right(predicted, truth) if names else explained(predicted, truth)
    return found


def divided(rows: Tensor, column: int, space: Space) -> tuple[Tensor, Tensor]:
    """The inputs (n, D - 1) and values (n,) of a column, in the rows where it has one."""
    rows = rows[has_value(rows, space)[:, column]]
    return torch.cat([rows[:, :column], rows[:, column + 1 :]], 1), rows[:, column]


def fit_and_predict(
    x: Tensor, y: Tensor, inputs: Tensor, columns: list[Space], names: bool, seed: int
) -> Tensor:
    """Predictions for other rows (m, D) of trees fitted to y (n,) given x (n, D)."""
    if len(y.unique()) == 1:
        return y[0].expand(len(inputs))
    trees = boosted_trees(columns, names, seed)
    predicted = trees.fit(x.numpy(), y.numpy()).predict(inputs.numpy())
    return torch.as_tensor(predicted, dtype=y.dtype)


def right(predicted: Tensor, truth: Tensor) -> Metric:
    share = float((predicted == truth).double().mean())
    return Metric(share, "estimate", (share * (1 - share) / len(truth)) ** 0.5, "accuracy")


def explained(predicted: Tensor, truth: Tensor) -> Metric:
    """R^2, with the error of a ratio of means."""
    left, spread = (truth - predicted).square(), (truth - truth.mean()).square()
    whole = spread.mean().clamp_min(1e-300)
    share = left.mean() / whole
    error = (left - share * spread).std() / whole / len(truth) ** 0.5
    return Metric(float(1 - share), "estimate", float(error), "R²")
