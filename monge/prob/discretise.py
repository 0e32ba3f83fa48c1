"""Every entry of an event as one of finitely many codes: p(x) = P(code) p(x | code).

Bits, labels and few levels are their own codes; other numbers are binned.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from ..core.space import Space
from .bins import Bins


class EntryCodes(nn.Module):
    """The codes of the D entries of an event, C in total, concatenated by entry."""

    sizes: Tensor  # (D,)
    offset: Tensor  # (D,)
    owner: Tensor  # (C,)
    grouped: Tensor  # (R,): the binned entries

    def __init__(self, space: Space, bins: int) -> None:
        super().__init__()
        parts = space.parts
        grouped = [i for i, part in enumerate(parts) if is_binned(part, bins)]
        sizes = torch.tensor([code_count(part, bins) for part in parts], dtype=torch.long)
        owner = torch.arange(len(sizes)).repeat_interleave(sizes)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("offset", sizes.cumsum(0) - sizes, persistent=False)
        self.register_buffer("owner", owner, persistent=False)
        self.register_buffer("grouped", torch.tensor(grouped, dtype=torch.long), persistent=False)
        self.runs = Bins([parts[i] for i in grouped], bins)

    @property
    def total(self) -> int:
        return len(self.owner)

    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Fit the bins to the observed values, (B, D)."""
        for j, i in enumerate(self.grouped.tolist()):
            if bool(seen[:, i].any()):
                self.runs.fit(j, x[seen[:, i], i].double().sort().values)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The code of each entry and log p(x | code), both (B, D); -inf if x has no code."""
        code = x.long().clamp(min=torch.zeros_like(self.sizes), max=self.sizes - 1)
        inside = torch.zeros_like(x).masked_fill(x != code, -torch.inf)
        if len(self.grouped):
            code[:, self.grouped], inside[:, self.grouped] = self.runs.encode(x[:, self.grouped])
        return code, inside

    def decode(self, code: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """A value of each code, computed from two uniforms, all (B, D)."""
        x, own = code.to(self.runs.unit.dtype), self.grouped
        if len(own):
            x[:, own] = self.runs.decode(code[:, own], u[:, own], v[:, own])
        return x

    def sample(self, code: Tensor, generator: Generator | None) -> Tensor:
        """A value sampled from each code, (B, D)."""
        u, v = torch.rand(
            2, *code.shape, generator=generator, dtype=self.runs.unit.dtype, device=code.device
        )
        return self.decode(code, u, v)

    def one_hot(self, code: Tensor, seen: Tensor) -> Tensor:
        """One-hot codes, (B, C); all zero for missing entries."""
        hot = self.runs.unit.new_zeros(len(code), self.total)
        return hot.scatter_(1, code + self.offset, seen.to(hot.dtype))

    def sums(self, values: Tensor) -> Tensor:
        """The sum over the codes of each entry, (..., C) to (..., D)."""
        zeros = values.new_zeros(*values.shape[:-1], len(self.sizes))
        return zeros.index_add(-1, self.owner, values)

    def even(self) -> Tensor:
        """The uniform distribution over the used codes of each entry, (C,)."""
        live = torch.ones(self.total, dtype=torch.float64, device=self.owner.device)
        steps = torch.arange(self.runs.low.shape[1], device=live.device)
        live[self.offset[self.grouped, None] + steps] = self.runs.live.double()
        return live / self.sums(live)[self.owner]

    def shrink(self, counts: Tensor, prior: Tensor, rows: Tensor | float) -> Tensor:
        """Frequencies (..., C) smoothed by `rows` pseudo-rows of each entry from `prior`."""
        more = rows[self.owner] if isinstance(rows, Tensor) else rows
        return (counts + more * prior) / (self.sums(counts)[..., self.owner] + more)

    def choose(self, log_p: Tensor, which: Tensor, generator: Generator | None) -> Tensor:
        """A code of each entry from row `which` of the tables log_p (G, C), (B, D).

        The cumulative distributions are concatenated on one line, that of entry d in table g
        between g D + d and g D + d + 1, so one search serves every entry of every row.
        """
        cumulative, entries = log_p.double().exp().cumsum(1), len(self.sizes)
        ends = cumulative[:, self.offset + self.sizes - 1]  # (G, D)
        begins = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], 1)
        line = (cumulative - begins[:, self.owner]) / (ends - begins)[:, self.owner] + self.owner
        line = line + entries * torch.arange(len(line), device=line.device)[:, None]  # (G, C)
        u = (
            torch.rand(
                len(which), entries, generator=generator, dtype=log_p.dtype, device=log_p.device
            )
            .double()
            .clamp(max=1 - 1e-9)
        )
        place = u + torch.arange(entries, device=u.device) + entries * which[:, None]
        found = torch.searchsorted(line.flatten(), place, right=True)
        return found - which[:, None] * self.total - self.offset


def is_binned(part: Space, bins: int) -> bool:
    return part.kind in ("real", "counts") or (part.kind == "levels" and part.size > bins)


def code_count(part: Space, bins: int) -> int:
    """Number of codes of an entry."""
    if is_binned(part, bins):
        return bins
    return 2 if part.kind == "binary" else part.size


def finite_log(p: Tensor) -> Tensor:
    """Finite logarithms, so that 0 times the log-probability of an unused code is 0."""
    return p.clamp_min(torch.finfo(torch.float32).tiny).log()
