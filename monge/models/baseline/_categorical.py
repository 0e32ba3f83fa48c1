"""K products of categorical tables, p_k(x) = prod_i P_ki(c_i) p(x_i | c_i), of weighted rows.

Tables are smoothed by `pseudo` rows per code towards the frequencies of all rows, and those by as
many rows towards the uniform distribution. The densities within histogram bins are shared.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ...core.space import Space
from ...prob.bins import EntryCodes, finite_log
from ._base import DistributionSet, FlatRows, Statistics


class CategoricalTables(DistributionSet):
    """K distributions of independent entries."""

    log_p: Tensor  # (K, C)
    base: Tensor  # (C,): frequencies of all rows

    def __init__(self, space: Space, count: int, bins: int, pseudo: float) -> None:
        super().__init__()
        self.codes, self.pseudo = EntryCodes(space, bins), pseudo
        even = self.codes.even().to(torch.get_default_dtype())
        self.register_buffer("base", even)
        self.register_buffer("log_p", finite_log(even).repeat(count, 1))
        self.width = self.codes.total + 4 * count

    @property
    def prior_rows(self) -> Tensor:
        """Pseudo-rows that smooth the table of each entry, (D,)."""
        return self.pseudo * self.codes.sums((self.codes.even() > 0).double())

    def fit(self, rows: FlatRows) -> None:
        """Fit the bins and count the rows of each group: group k is distribution k."""
        codes = self.codes
        codes.fit(rows.x, rows.seen)
        counts = torch.zeros_like(self.log_p, dtype=torch.float64)
        for part in rows.split(8 * len(codes.sizes)):
            place = codes.encode(part.x)[0] + codes.offset + codes.total * part.group[:, None]
            counts += place[part.seen].bincount(minlength=counts.numel()).reshape(counts.shape)
        base = codes.shrink(counts.sum(0), codes.even(), self.prior_rows)
        self.base.copy_(base)
        self.log_p.copy_(
            finite_log(codes.shrink(counts, base, self.prior_rows) if len(counts) > 1 else base)
        )

    def log_prob_of_group(self, rows: FlatRows) -> Tensor:
        """log p of the observed entries of each row under the table of its group, (B,)."""
        code, inside = self.codes.encode(rows.x)
        log_p = self.log_p[rows.group[:, None], code + self.codes.offset] + inside  # (B, D)
        return torch.where(rows.seen, log_p, 0).sum(1)

    def log_prob(self, x: Tensor, seen: Tensor, present: bool = False) -> Tensor:
        code, inside = self.codes.encode(x)
        shared = torch.where(seen, inside, 0).sum(1, keepdim=True)
        log_p = self.codes.one_hot(code, seen) @ self.log_p.T + shared
        if present and bool(self.codes.is_empty.any()):
            log_p = log_p + (~seen).to(log_p) @ self.codes.log_present(self.log_p).T
        return log_p

    def statistics(self, x: Tensor, seen: Tensor, weight: Tensor) -> Statistics:
        return ((weight.to(self.log_p).T @ self.features(x, seen)).double(),)

    def update(self, statistics: Statistics) -> None:
        self.log_p.copy_(
            finite_log(self.codes.shrink(statistics[0], self.base.double(), self.prior_rows))
        )

    def penalty(self) -> Tensor:
        return -(self.prior_rows[self.codes.owner] * self.base * self.log_p.double()).sum()

    def sample(self, rows: FlatRows, which: Tensor, generator: Generator | None) -> Tensor:
        log_p = self.codes.present(self.log_p) if rows.present else self.log_p
        code = self.codes.choose(log_p, which, generator)
        return torch.where(rows.seen, rows.x, self.codes.sample(code, generator))

    def features(self, x: Tensor, seen: Tensor) -> Tensor:
        return self.codes.one_hot(self.codes.encode(x)[0], seen)
