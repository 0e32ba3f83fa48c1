"""A small table with empty cells, an atom and bounds, and all of its rows."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space

NAME = Space(kind="label", size=3, optional=True, high=(2.0,), rows=600)
FLAG = Space(kind="binary", mean=(0.4,), scale=(0.5,), rows=600)
COUNT = Space(
    kind="counts", optional=True, lower=0, upper=4, mean=(1.5,), scale=(1.1,), high=(4,), rows=600
)
SHARE = Space(
    kind="real",
    optional=True,
    atoms=(0.0,),
    lower=0.0,
    upper=1.0,
    mean=(0.5,),
    scale=(0.25,),
    rows=600,
)
WEIGHT = Space(kind="real", optional=True, atoms=(7.0,), mean=(1.0,), scale=(2.0,), rows=600)
CELLS = 1024
"""Cells between the bounds of `SHARE` in which the density of a histogram is constant."""


def table(*columns: Space) -> Space:
    return Space(kind="columns", shape=(len(columns),), columns=columns, rows=columns[0].rows)


DISCRETE = table(NAME, FLAG, COUNT)
REALS = table(SHARE, WEIGHT)


def cells(part: Space, count: int = CELLS) -> Tensor:
    """All values of a column: of a real, the middles of narrow cells, then atoms, then NaN."""
    if part.kind in ("label", "binary"):
        return torch.arange(max(part.size, 2), dtype=torch.float64)
    if part.kind == "counts":
        whole = torch.arange(part.lower, part.upper + 1, dtype=torch.float64)
        return torch.cat([whole, torch.tensor([torch.nan], dtype=torch.float64)])
    ends = (part.lower, part.upper) if part.lower is not None else (-60.0, 60.0)
    edges = torch.linspace(*ends, count + 1, dtype=torch.float64)
    middles = (edges[1:] + edges[:-1]) / 2
    return torch.cat([middles, torch.tensor([*part.atoms, torch.nan], dtype=torch.float64)])


def widths(part: Space, count: int = CELLS) -> Tensor:
    """The measure of each of `cells`."""
    size = torch.ones(len(cells(part, count)), dtype=torch.float64)
    if part.kind == "real":
        width = part.upper - part.lower if part.lower is not None else 120.0
        size[:count] = width / count
    return size


def states(space: Space, count: int = CELLS) -> Tensor:
    return torch.cartesian_prod(*(cells(part, count) for part in space.columns))


def total(model, space: Space, count: int = CELLS) -> float:
    """The sum and integral of exp(log p) over all rows, empty cells included; a real column has
    `count` cells."""
    size = torch.cartesian_prod(*(widths(part, count) for part in space.columns)).prod(1)
    return sum(
        float((model.log_prob(x).detach().exp() * w).sum())
        for x, w in zip(states(space, count).split(50_000), size.split(50_000), strict=True)
    )


def discrete_rows(n: int = 600, seed: int = 0) -> Tensor:
    """Rows of `DISCRETE`: whether the count is empty depends on the name, and its size too."""
    u = torch.rand(n, 4, generator=make_generator(seed), dtype=torch.float64)
    name = (u[:, 0] > 0.4).double() + (u[:, 0] > 0.75)
    flag = (u[:, 1] < torch.where(name == 1, 0.9, 0.1)).double()
    count = ((2 + 2 * flag) * u[:, 2] + 0.5 * name).floor().clamp(0, 4)
    empty = u[:, 3] < torch.where(name == 1, 0.85, 0.05)
    return torch.stack([name, flag, torch.where(empty, torch.nan, count)], 1)


def real_rows(n: int = 600, seed: int = 0) -> Tensor:
    """Rows of `REALS`: both cells are empty together more often than not."""
    u = torch.rand(n, 3, generator=make_generator(seed), dtype=torch.float64)
    z = torch.randn(n, 2, generator=make_generator(seed + 1), dtype=torch.float64)
    share = torch.where(u[:, 0] < 0.2, 0.0, (z[:, 0]).sigmoid())
    weight = torch.where(u[:, 1] < 0.15, 7.0, 1 + 1.5 * z[:, 0] + z[:, 1])
    share = torch.where(u[:, 2] < 0.25, torch.nan, share)
    weight = torch.where((u[:, 2] < 0.2) | (u[:, 2] > 0.95), torch.nan, weight)
    return torch.stack([share, weight], 1)


def conditional(model, space: Space, row: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """All rows that agree with `row` outside the hidden cells, none of which is empty, and their
    probabilities given that."""
    every = states(space)
    same = (every == row) | (every.isnan() & row.isnan()) | hidden
    found = every[same.all(1) & ~(space.empty(every) & hidden).any(1)]
    return found, model.log_prob(found).detach().softmax(0)


def completion_error(
    model, space: Space, row: Tensor, hidden: Tensor, n: int, options=None, draws: int = 1
) -> float:
    """How far n completions of a row, some at a time, are from their distribution by brute
    force."""
    found, due = conditional(model, space, row, hidden)
    x = torch.where(hidden, torch.nan, row).expand(n // draws, -1)
    batch, noise = Batch(x, observed=(~hidden).expand(n // draws, -1)), make_generator(1)
    if draws == 1:
        done = model.complete(batch, options, noise).to(found)
    else:
        done = model.complete_several(batch, draws, options, noise).flatten(0, 1).to(found)
    known = torch.where(hidden, 0.0, row).nan_to_num(-1.0)
    assert torch.equal(torch.where(hidden, 0.0, done).nan_to_num(-1.0), known.expand(n, -1))
    assert not bool((space.empty(done) & hidden).any())
    return deviation(done, found, due)


def deviation(done: Tensor, found: Tensor, due: Tensor) -> float:
    """Pearson's statistic of rows (n, D) among the states (S, D) of probability `due`, in standard
    deviations from its mean; states of which fewer than 5 rows are due count as one."""
    hits = (done.nan_to_num(-1.0)[:, None] == found.nan_to_num(-1.0)).all(2).double()  # (n, S)
    assert bool((hits.sum(1) == 1).all())
    count, rare = hits.sum(0), len(done) * due < 5
    count = torch.cat([count[~rare], count[rare].sum(0, keepdim=True)])
    due = len(done) * torch.cat([due[~rare], due[rare].sum(0, keepdim=True)])
    pearson = float((count - due).square().div(due.clamp_min(5.0)).sum())
    free = max(len(due) - 1, 1)
    return (pearson - free) / (2 * free) ** 0.5


def questions() -> itertools.product:
    """Rows of `DISCRETE` and what is hidden of them."""
    rows = torch.tensor([[0.0, 1, 2], [1, 1, torch.nan], [2, 0, 1]], dtype=torch.float64)
    masks = torch.tensor(
        [[True, False, False], [False, False, True], [True, False, True], [False, True, False],
         [True, True, False], [True, True, True]]
    )  # fmt: skip
    return itertools.product(rows, masks)
