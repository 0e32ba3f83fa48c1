r"""Metrics of synthetic tables: distances of marginals, of pairs of columns and of empty cells.

Every column is a category: names as they are, numbers in ten bins of quantiles of the training
rows, an empty cell as a value of its own. Marginals and pairs are compared by the total variation
$\frac12 \sum_k |p_k - q_k|$ of the frequencies of one and of two columns. Correlations are
compared by the mean of $|\rho_{ij} - \rho'_{ij}|$ over features of different columns, where a
category is one-hot encoded. Detection is the area under the ROC curve of boosted trees that
distinguish samples from real rows, cross-validated. Cells that are unknown, as opposed to empty,
are NaN in a column that may not be empty, and count nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.batch import Batch
from ..core.metric import Metric
from ..core.rng import make_generator
from ..core.space import Space
from ..nn.inputs.features import Features
from ..prob.divergence import total_variation
from .samples import spread
from .two_sample import jackknife

WIDEST = 128
"""Most columns of rows that are evaluated as a table."""
BINS, MOST_NAMES = 10, 100
"""Bins of a number, and names with a category of their own; all others share one."""
FOLDS = 5
"""Parts of the rows in the cross-validation of a detection."""
ROUNDS, LEAVES, RATE = 40, 15, 0.2
"""Number of trees (per class), leaves per tree, and learning rate."""
MOST_CATEGORIES = 255
"""Most categories of a tree; more are read as numbers."""
NAMES = ("label", "binary")
NUMBERS = ("real", "counts", "levels")


def columns_of(space: Space, names: Sequence[str] = ()) -> Space | None:
    """The space of event and simple conditions as the columns of one table, with these names for
    the event; None if the event is not a table row."""
    if not is_table(space):
        return None
    parts = [
        replace(part, name=name)
        for part, name in zip(space.parts, titles(space, names), strict=True)
    ]
    for title, given in space.given.items():
        if is_table(given):
            parts += [replace(part, name=part.name or title) for part in given.parts]
    return Space(kind="columns", shape=(len(parts),), columns=tuple(parts), rows=space.rows)


def is_table(space: Space) -> bool:
    return (
        len(space.shape) <= 1
        and not space.varies
        and space.dims <= WIDEST
        and space.kind in ("columns", *NAMES, *NUMBERS)
    )


def titles(space: Space, names: Sequence[str]) -> list[str]:
    """Names of the columns: the given ones, those of the space, or numbered."""
    if len(names) == space.dims:
        return list(names)
    if space.kind == "columns" or not space.shape:
        return [part.name for part in space.parts]
    return [f"{space.name or 'x'}{i + 1}" for i in range(space.dims)]


def cells(batch: Batch, space: Space) -> Tensor:
    """The rows of a batch of this space as the table of `columns_of`, (n, D), float64."""
    parts = [batch, *(batch.given[name] for name, part in space.given.items() if is_table(part))]
    return torch.cat(
        [
            torch.where(part.observed_mask, part.x.double(), torch.nan).reshape(len(batch), -1)
            for part in parts
        ],
        1,
    )


@dataclass(frozen=True)
class Coding:
    """The cells of a table as categories, from the training rows."""

    space: Space
    edges: tuple[Tensor, ...]  # the inner ends of the bins of a number, or the frequent names
    sizes: tuple[int, ...]  # categories of each column

    @classmethod
    def of(cls, train: Tensor, space: Space) -> Coding:
        """The coding by training rows (n, D)."""
        edges, sizes = [], []
        values = train.where(~space.empty(train), torch.nan)
        for part, column in zip(space.columns, values.unbind(1), strict=True):
            known = column[~column.isnan()]
            edges.append(frequent(known) if part.kind in NAMES else quantiles(known))
            sizes.append(len(edges[-1]) + 1 + part.optional)
        return cls(space, tuple(edges), tuple(sizes))

    def __call__(self, x: Tensor) -> Tensor:
        """The category of each cell (n, D): the last for an empty one, -1 for an unknown one."""
        found, values = [], x.where(~self.space.empty(x), torch.nan).T.contiguous()
        for part, edges, size, column in zip(
            self.space.columns, self.edges, self.sizes, values, strict=True
        ):
            code = torch.bucketize(column, edges)
            if part.kind in NAMES:
                hit = edges[code.clamp(max=len(edges) - 1)] == column
                code = torch.where(hit, code, len(edges))
            found.append(torch.where(column.isnan(), size - 1 if part.optional else -1, code))
        return torch.stack(found, 1)

    def indicators(self, codes: Tensor) -> Tensor:
        """One indicator for each category of each column, (n, sum of sizes), float32."""
        each = [
            F.one_hot(column.clamp_min(0), size) * (column >= 0)[:, None]
            for column, size in zip(codes.unbind(1), self.sizes, strict=True)
        ]
        return torch.cat(each, 1).float()


def quantiles(values: Tensor) -> Tensor:
    """The inner ends of the bins."""
    if not len(values):
        return values
    levels = torch.arange(1, BINS, dtype=values.dtype) / BINS
    return values.quantile(levels).unique()


def frequent(values: Tensor) -> Tensor:
    """The codes of the most frequent names in order; -1, which no name has, if there are none."""
    if not len(values):
        return values.new_full((1,), -1.0)
    names, counts = values.unique(return_counts=True)
    return names[counts.argsort(descending=True, stable=True)[:MOST_NAMES]].sort().values


def table_metrics(x: Tensor, y: Tensor, coding: Coding) -> dict[str, Metric]:
    """Distances of marginals, pairs and correlations of tables x (n, D) and y (m, D), and the
    column that differs most."""
    space, (a, b) = coding.space, (coding(side) for side in (x, y))
    worst = int(marginals(a, b, coding).argmax())
    found = {
        "marginals": jackknife(lambda a, b: marginals(a, b, coding).mean(), a, b, "share"),
        "worst_marginal": jackknife(
            lambda a, b: marginals(a, b, coding)[worst], a, b, f"in {space.columns[worst].name}"
        ),
    }
    if len(space.columns) > 1:
        found["pairs"] = jackknife(lambda a, b: pairs(a, b, coding).mean(), a, b, "share")
        read = Features(space).double()
        found["pair_correlations"] = jackknife(
            lambda x, y: between(correlations(x, read), correlations(y, read), read.owner),
            x,
            y,
            "mean difference",
        )
    return found | empty_rates(x, y, space)


def marginals(a: Tensor, b: Tensor, coding: Coding) -> Tensor:
    """The total variation of each column of two tables of categories, (D,)."""
    sides = [coding.indicators(side).double().sum(0).split(coding.sizes) for side in (a, b)]
    return torch.stack(
        [total_variation(*map(normalised, columns)) for columns in zip(*sides, strict=True)]
    )


def pairs(a: Tensor, b: Tensor, coding: Coding) -> Tensor:
    """The total variation of each pair of columns, (D (D - 1) / 2,), over the rows where both are
    known."""
    sides, found = [coding.indicators(side) for side in (a, b)], []
    starts = [0, *torch.tensor(coding.sizes).cumsum(0).tolist()]
    for start, end in pairwise(starts[:-1]):
        tables = [side[:, start:end].T @ side[:, end:] for side in sides]  # of all later columns
        later = coding.sizes[starts.index(end) :]
        found += [
            total_variation(*(normalised(block.double().flatten()) for block in blocks))
            for blocks in zip(*(table.split(later, 1) for table in tables), strict=True)
        ]
    return torch.stack(found)


def normalised(counts: Tensor) -> Tensor:
    """Frequencies; zeros if nothing was counted."""
    return counts / counts.sum().clamp_min(1)


def empty_rates(x: Tensor, y: Tensor, space: Space) -> dict[str, Metric]:
    """The largest difference of the rates of empty cells, and of the rates of two columns that
    are empty in the same row, in percentage points."""
    names = [part.name for part in space.columns if part.optional]
    columns = torch.tensor([part.optional for part in space.columns])
    a, b = (space.empty(side)[:, columns].double() for side in (x, y))
    if not names:
        return {}
    first, second = torch.triu_indices(len(names), len(names), 1)

    def rates(a: Tensor, b: Tensor) -> Tensor:
        return 100 * (a.mean(0) - b.mean(0)).abs()

    def both(a: Tensor, b: Tensor) -> Tensor:
        return rates(a[:, first] * a[:, second], b[:, first] * b[:, second])

    worst = int(rates(a, b).argmax())
    found = {
        "empty_cells": jackknife(
            lambda a, b: rates(a, b)[worst], a, b, f"points in {names[worst]}"
        )
    }
    if len(names) > 1:
        pair = int(both(a, b).argmax())
        unit = f"points in {names[first[pair]]}, {names[second[pair]]}"
        found["empty_pairs"] = jackknife(lambda a, b: both(a, b)[pair], a, b, unit)
    return found


def detection(x: Tensor, y: Tensor, space: Space, seed: int = 0) -> Metric:
    """The area under the ROC curve of trees that distinguish rows x from y (n, D), equally many of
    each, every row scored by trees that were fitted to other rows."""
    n = min(len(x), len(y))
    rows = torch.cat([spread(x, n), spread(y, n)])
    label = torch.arange(2 * n) < n
    fold = torch.cat([torch.randperm(n, generator=make_generator(seed + k)) for k in (0, 1)])
    scores = torch.empty(2 * n, dtype=torch.float64)
    for k in range(FOLDS):
        other = fold % FOLDS != k
        trees = boosted_trees(space.columns, True, seed)
        trees.fit(rows[other].numpy(), label[other].numpy())
        scores[~other] = torch.as_tensor(trees.predict_proba(rows[~other].numpy())[:, 1])
    return roc_area(scores[:n], scores[n:])


def roc_area(positive: Tensor, negative: Tensor) -> Metric:
    """The share of pairs in which the positive score is the higher, ties counted half, with the
    standard error of DeLong, DeLong & Clarke-Pearson 1988."""

    def below(x: Tensor, others: Tensor) -> Tensor:
        others = others.sort().values
        counts = [torch.searchsorted(others, x, right=right) for right in (False, True)]
        return (counts[0] + counts[1]).double() / (2 * len(others))

    up, down = below(positive, negative), 1 - below(negative, positive)
    error = (up.var() / len(up) + down.var() / len(down)) ** 0.5
    return Metric(float(up.mean()), "estimate", float(error), "AUC")


def boosted_trees(columns: Sequence[Space], names: bool, seed: int) -> Any:
    """Boosted trees (Friedman 2001) that predict a name, or a number, from cells of these columns;
    NaN is a value of its own."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    maker: Any = HistGradientBoostingClassifier if names else HistGradientBoostingRegressor
    return maker(
        max_iter=ROUNDS,
        max_leaf_nodes=LEAVES,
        learning_rate=RATE,
        random_state=seed,
        categorical_features=[
            part.kind == "label" and part.size <= MOST_CATEGORIES for part in columns
        ],
        early_stopping=False,
    )


def correlations(x: Tensor, read: Features) -> Tensor:
    """The correlations of all features (F, F), each pair over the rows where both have a value; 0
    for constant features. Of a cell that may be empty, the indicators always have one."""
    optional = read.code.isnan()  # (F,): the indicators of empty cells
    may_be_empty = torch.zeros(x.shape[1]).index_add(0, read.owner, optional.float()) > 0
    known = ~x.isnan()[:, read.owner] | (read.indicates & may_be_empty[read.owner])  # (n, F)
    seen, value = known.to(x), read(Batch(x)).where(known, 0.0)
    count, total = (seen.T @ seen).clamp_min(1), value.T @ seen  # total[i, j]: of i where j is
    square = value.square().T @ seen
    product = value.T @ value - total * total.T / count
    deviation = (square - total.square() / count).clamp_min(0)
    scale = (deviation * deviation.T).sqrt()
    return torch.where(scale > 1e-9 * count, product / scale.clamp_min(1e-300), 0.0)


def between(x: Tensor, y: Tensor, owner: Tensor) -> Tensor:
    """The mean difference of two matrices of correlations over features of different columns."""
    apart = owner[:, None] != owner
    return (x - y).abs()[apart].mean()
