"""Events as codes, and the counts of every prefix of codes.

An entry is one of finitely many codes: its value, or the run that a number falls into. A prefix is
the number that its codes are in the mixed radix of their sizes, so that tables are flat.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ...core.space import Space
from ...prob.discretise import EntryCodes, code_count
from ...prob.distributions import sample_categorical

MAX_STATES_PER_PASS = 1 << 22
"""States that are weighed at once where rows are completed."""


class PrefixCounts(nn.Module):
    """The counts of every prefix, a table for each entry, for each of `groups`.

    A prefix is the number that its codes are in the mixed radix of the sizes, the group in front.
    """

    counts: Tensor
    prior: Tensor

    def __init__(self, codes: EntryCodes, groups: int, pseudo: float) -> None:
        super().__init__()
        self.sizes, self.groups, self.pseudo = codes.sizes.tolist(), groups, pseudo
        self.cells = list(cells_of(self.sizes, groups))
        self.strides = [math.prod(self.sizes[i + 1 :]) for i in range(len(self.sizes))]
        self.register_buffer("counts", torch.zeros(sum(self.cells)))  # table after table
        self.register_buffer("prior", pseudo * codes.even().to(self.counts.dtype))  # m q

    def fit(self, code: Tensor, group: Tensor, even: Tensor) -> None:
        """Count codes (B, D); even: the same probability for each code of an entry, (C,)."""
        tables, priors = self.counts.split(self.cells), self.prior.split(self.sizes)
        for i, prefix in enumerate(self.prefixes(code, group)):
            tables[i].copy_(prefix.bincount(minlength=len(tables[i])))
            first = self.pseudo * even.split(self.sizes)[i]
            seen = tables[i].reshape(-1, self.sizes[i]).sum(0) + first
            priors[i].copy_(self.pseudo * seen / seen.sum())

    def prefixes(self, code: Tensor, group: Tensor) -> Iterator[Tensor]:
        """The prefix that ends with each entry, (B,)."""
        for size, own in zip(self.sizes, code.T, strict=True):
            group = group * size + own
            yield group

    def distribution(self, i: int, prefix: Tensor) -> Tensor:
        """P of each code of entry i after a prefix of those before it, (B, s_i)."""
        start, size = sum(self.cells[:i]), self.sizes[i]
        table = self.counts[start : start + self.cells[i]].reshape(-1, size)
        weight = table[prefix] + self.prior.split(self.sizes)[i]
        return weight / weight.sum(1, keepdim=True)

    def along(self, code: Tensor, group: Tensor) -> list[Tensor]:
        """The law of each entry of rows (B, D) after those before it, (B, s_i)."""
        before = [group, *self.prefixes(code, group)]
        return [self.distribution(i, prefix) for i, prefix in enumerate(before[:-1])]

    def joint(self) -> Tensor:
        """log P of every state of every group in the order of their numbers, float64."""
        log_p = torch.zeros(self.groups, dtype=torch.float64, device=self.counts.device)
        for i in range(len(self.sizes)):
            prefix = torch.arange(len(log_p), device=log_p.device)
            log_p = (log_p[:, None] + self.distribution(i, prefix).double().log()).flatten()
        return log_p

    def fill(self, code: Tensor, group: Tensor, seen: Tensor, uniform: Tensor) -> Tensor:
        """Codes (B, D) with those that are not `seen` drawn given the others of the row."""
        joint, code = self.joint(), code.clone()
        for pattern in seen.unique(dim=0):
            rows = (seen == pattern).all(1).nonzero()[:, 0]
            drawn = self.draw(joint, code[rows], group[rows], ~pattern, uniform[rows])
            code[rows] = torch.where(pattern, code[rows], drawn)
        return code

    def draw(
        self, joint: Tensor, code: Tensor, group: Tensor, hidden: Tensor, uniform: Tensor
    ) -> Tensor:
        """Codes of states (B, D) that agree with `code` but in the `hidden` entries (D,)."""
        stride = torch.tensor(self.strides, device=code.device)
        base = (code * stride * ~hidden).sum(1) + group * math.prod(self.sizes)  # (B,)
        ways = torch.zeros(1, dtype=torch.long, device=code.device)
        for i in hidden.nonzero()[:, 0].tolist():
            steps = torch.arange(self.sizes[i], device=code.device) * stride[i]
            ways = (ways[:, None] + steps).flatten()
        size = max(MAX_STATES_PER_PASS // len(ways), 1)
        pieces = zip(base.split(size), uniform.split(size), strict=True)
        drawn = torch.cat(
            [b + ways[sample_categorical(joint[b[:, None] + ways], u)] for b, u in pieces]
        )
        return drawn[:, None] // stride % torch.tensor(self.sizes, device=code.device)


def sizes_of(parts: Sequence[Space], bins: int) -> list[int]:
    """How many codes each entry has."""
    return [code_count(part, bins) for part in parts]


def cells_of(sizes: Sequence[int], groups: int) -> Iterator[int]:
    """Cells of the table of each entry."""
    for size in sizes:
        groups *= size
        yield groups


def fits_in(room: int, sizes: Sequence[int], groups: int) -> bool:
    """Whether the tables have at most `room` cells; it is told before they are all counted."""
    return all(total <= room for total in itertools.accumulate(cells_of(sizes, groups)))


def parameters_of(sizes: Sequence[int], groups: int) -> int:
    """Free numbers of all tables: the last cell of a row is what the others leave."""
    return sum(
        cells - cells // size for cells, size in zip(cells_of(sizes, groups), sizes, strict=True)
    )
