r"""Metrics of synthetic tables: distances of marginals and of pairwise correlations.

Marginals of numbers are compared by the Kolmogorov-Smirnov statistic $\sup_t |F(t) - G(t)|$, those
of categories by the total variation $\frac12 \sum_k |p_k - q_k|$; both lie between 0 and 1. Pairs
are compared by the mean of $|\rho_{ij} - \rho'_{ij}|$ over the correlations of features of
different columns, where a category is one-hot encoded. Missing cells are NaN and are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.metric import Metric
from ..core.space import Space
from ..nn.inputs.features import Features
from ..prob.divergence import total_variation
from .two_sample import jackknife

WIDEST = 128
"""Most columns of rows that are evaluated as a table."""
NAMES = ("label", "binary")
NUMBERS = ("real", "counts", "levels")


def columns_of(space: Space, names: Sequence[str] = ()) -> Space | None:
    """The space of event and simple conditions as the columns of one table, with these names for
    the event; None if the event is not a table row."""
    if not is_plain(space):
        return None
    parts = [
        replace(part, name=name)
        for part, name in zip(space.parts, titles(space, names), strict=True)
    ]
    for title, given in space.given.items():
        if is_plain(given):
            parts += [replace(part, name=part.name or title) for part in given.parts]
    return Space(kind="columns", shape=(len(parts),), columns=tuple(parts), rows=space.rows)


def is_plain(space: Space) -> bool:
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
    parts = [batch, *(batch.given[name] for name, part in space.given.items() if is_plain(part))]
    return torch.cat(
        [
            torch.where(part.observed_mask, part.x.double(), torch.nan).reshape(len(batch), -1)
            for part in parts
        ],
        1,
    )


def table_metrics(x: Tensor, y: Tensor, space: Space) -> dict[str, Metric]:
    """Distances of marginals and correlations of tables x (n, D) and y (m, D), and the column that
    differs most."""
    each = marginals(x, y, space)
    worst = int(each.argmax())
    pair, column = space.columns[worst], slice(worst, worst + 1)
    found = {
        "marginals": jackknife(lambda x, y: marginals(x, y, space).mean(), x, y, "share"),
        "worst_marginal": jackknife(
            lambda x, y: marginals(x, y, replace(space, shape=(1,), columns=(pair,))).mean(),
            x[:, column],
            y[:, column],
            f"in {pair.name}",
        ),
    }
    if len(space.columns) > 1:
        read = Features(space).double()
        found["pair_correlations"] = jackknife(
            lambda x, y: between(correlations(x, read), correlations(y, read), read.owner),
            x,
            y,
            "mean difference",
        )
    return found


def marginals(x: Tensor, y: Tensor, space: Space) -> Tensor:
    """The distance of the marginals of each column of two tables, (D,)."""
    return torch.stack(
        [
            marginal(a[~a.isnan()], b[~b.isnan()], part)
            for a, b, part in zip(x.unbind(1), y.unbind(1), space.columns, strict=True)
        ]
    )


def marginal(x: Tensor, y: Tensor, space: Space) -> Tensor:
    """The distance of the marginals of one column, values (n,) and (m,)."""
    if not len(x) or not len(y):
        return x.new_zeros(())
    if space.kind in NAMES:
        size = max(space.size, 2)
        return total_variation(
            *(torch.bincount(side.long(), minlength=size).double() / len(side) for side in (x, y))
        )
    at = torch.cat([x, y])
    below = [torch.searchsorted(side.sort().values, at, right=True) / len(side) for side in (x, y)]
    return (below[0] - below[1]).abs().max().double()


def correlations(x: Tensor, read: Features) -> Tensor:
    """The correlations of all features (F, F), each pair over the rows where both are observed; 0
    for constant features."""
    known = ~x.isnan()[:, read.owner]  # (n, F)
    seen, value = known.to(x), read(Batch(x.nan_to_num())).where(known, 0.0)
    count, total = (seen.T @ seen).clamp_min(1), value.T @ seen  # total[i, j]: of i where j is
    square = value.square().T @ seen
    product = value.T @ value - total * total.T / count
    spread = (square - total.square() / count).clamp_min(0)
    scale = (spread * spread.T).sqrt()
    return torch.where(scale > 1e-9 * count, product / scale.clamp_min(1e-300), 0.0)


def between(x: Tensor, y: Tensor, owner: Tensor) -> Tensor:
    """The mean difference of two matrices of correlations over features of different columns."""
    apart = owner[:, None] != owner
    return (x - y).abs()[apart].mean()
