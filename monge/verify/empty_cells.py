r"""Identities of tables with empty cells: a cell is a flag, "present", and a value where it is.

$p(\text{flags}, \text{values}) = p(\text{flags})\, p(\text{values} \mid \text{flags})$ for the
distribution of every kind of column, and a column that could be empty but never is costs nothing
once enough rows have said so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.space import Space
from ..prob.heads import Head
from ._helpers import gap, most
from .framework import Residual

ROUNDING = 1e-12
ROWS = (10, 100, 1000, 10_000)
"""Numbers of training rows, none of which has an empty cell."""
PARAMETERS = 50
"""Random parameters of each distribution."""

NUMBER = Space(kind="real", optional=True, mean=(1.0,), scale=(2.0,), low=(-5.0,), high=(7.0,))
AMOUNT = Space(
    kind="real", optional=True, atoms=(0.0,), lower=0.0, mean=(1.0,), scale=(1.0,), high=(9.0,)
)
SHARE = Space(kind="real", optional=True, lower=0.0, upper=1.0, mean=(0.4,), scale=(0.2,))
COUNT = Space(kind="counts", optional=True, lower=0, mean=(3.0,), scale=(2.0,), high=(9.0,))
NAME = Space(kind="label", optional=True, size=4, high=(3.0,))  # three names, and none
COLUMNS = (NUMBER, AMOUNT, SHARE, COUNT, NAME)


def head_of(*columns: Space) -> Head:
    space = Space(kind="columns", shape=(len(columns),), columns=columns)
    return Head(space, components=3).double()


def present_rows(n: int) -> Tensor:
    """Rows of all columns without an empty cell, (n, 5)."""
    u = torch.rand(n, 5, dtype=torch.float64).clamp(1e-3, 1 - 1e-3)
    amount = torch.where(u[:, 1] < 0.3, 0.0, 3 * u[:, 1])
    whole = (u[:, 3:] * torch.tensor([9, 3])).floor()
    columns = [12 * u[:, 0] - 5, amount, u[:, 2], *whole.T]
    return torch.stack(columns, 1)


def x115_a_cell_is_its_flag_and_its_value() -> Residual:
    """p(flag, value) = p(flag) p(value | flag); p(empty) = 1 - p(present).

    Examines: prob.heads.

    Source: Little 1993, Pattern-Mixture Models for Multivariate Incomplete Data; Rubin 1976,
    Inference and Missing Data."""
    head, x = head_of(*COLUMNS), present_rows(PARAMETERS)
    head.fit(x, torch.ones_like(x, dtype=torch.bool))
    params = head.initial_params() + torch.randn(PARAMETERS, head.width, dtype=torch.float64)
    here = head.log_present(params)
    given = head.log_prob(head.present(params), x)
    empty = x.new_tensor([torch.nan] * 4 + [NAME.size - 1]).expand_as(x)
    flags = head.log_prob(params, empty).exp() + here.exp()
    return Residual(
        most(gap(head.log_prob(params, x), here + given), gap(flags, torch.ones_like(flags))),
        ROUNDING,
    )


def x116_a_flag_that_is_always_present_costs_nothing() -> Residual:
    """-log p(present) <= states / n after n rows without an empty cell.

    Examines: prob.heads.

    Source: Krichevsky & Trofimov 1981, The Performance of Universal Encoding."""
    numbers = COLUMNS[:4]
    plain = [column.override("optional=false") for column in numbers]
    worst, parts = 0.0, range(len(COLUMNS))
    for n in ROWS:
        x = present_rows(n)
        seen = torch.ones_like(x, dtype=torch.bool)
        head, without = head_of(*COLUMNS), head_of(*plain)
        head.fit(x, seen)
        without.fit(x[:, :4], seen[:, :4])
        params, other = (each.initial_params().expand(n, -1) for each in (head, without))
        cost = -head.log_present(params)[0]  # (5,)
        sizes = [max(2 + len(COLUMNS[i].atoms), COLUMNS[i].size) for i in parts]
        worst = most(worst, float((cost * n / torch.tensor(sizes)).amax()) - 1)
        rest = head.log_prob(params, x)[:, :4] + cost[:4] - without.log_prob(other, x[:, :4])
        same = [0, 2, 3]  # an atom shares its pseudo-rows with the empty cell
        worst = most(worst, float(rest[:, same].abs().amax()))
    return Residual(worst, 1e-9)
