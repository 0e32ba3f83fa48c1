"""Every entry of an event as one of finitely many codes: p(x) = P(code) p(x | code).

Bits, labels and few levels are their own codes; other numbers are binned. A number has one more
code for each of its atoms, and one for the empty cell if it may be empty; its bins are fitted to
the other numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from ..core.space import Space
from .bins import Bins


class CellStates(nn.Module):
    """The states of the D entries of a row: 0 for a plain value, then the atoms of the entry, then
    the empty cell. The empty cell of a label is a plain value, its last code."""

    sizes: Tensor  # (D,)
    atoms: Tensor  # (D, A): NaN where an entry has fewer
    optional: Tensor  # (D,)

    def __init__(self, parts: Sequence[Space]) -> None:
        super().__init__()
        optional = [part.optional and part.kind != "label" for part in parts]
        atoms = torch.full((len(parts), max((len(p.atoms) for p in parts), default=0)), torch.nan)
        for part, row in zip(parts, atoms, strict=True):
            row[: len(part.atoms)] = torch.tensor(part.atoms)
        sizes = [1 + len(p.atoms) + empty for p, empty in zip(parts, optional, strict=True)]
        self.register_buffer("sizes", torch.tensor(sizes, dtype=torch.long), persistent=False)
        self.register_buffer("atoms", atoms, persistent=False)
        self.register_buffer(
            "optional", torch.tensor(optional, dtype=torch.bool), persistent=False
        )
        self.single = all(size == 1 for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        """The state of each cell, (B, D)."""
        state = torch.zeros_like(x, dtype=torch.long)
        for k, atom in enumerate(self.atoms.T):
            state = torch.where(x == atom, k + 1, state)
        return torch.where(x.isnan() & self.optional, self.sizes - 1, state)

    def write(self, x: Tensor, state: Tensor) -> Tensor:
        """x (B, D) with the atom, or NaN for the empty cell, where a state is not 0."""
        x = torch.where((state == self.sizes - 1) & self.optional, torch.nan, x)
        for k, atom in enumerate(self.atoms.T):
            x = torch.where((state == k + 1) & ~atom.isnan(), atom.to(x), x)
        return x


class EntryCodes(nn.Module):
    """The codes of the D entries of an event, C in total, concatenated by entry."""

    sizes: Tensor  # (D,)
    offset: Tensor  # (D,)
    owner: Tensor  # (C,)
    grouped: Tensor  # (R,): the binned entries
    base: Tensor  # (D,): codes of each entry before those of its atoms and of the empty cell
    is_empty: Tensor  # (C,): the codes that stand for an empty cell

    def __init__(self, space: Space, bins: int) -> None:
        super().__init__()
        parts = space.parts
        grouped = [i for i, part in enumerate(parts) if is_binned(part, bins)]
        sizes = torch.tensor([code_count(part, bins) for part in parts], dtype=torch.long)
        owner = torch.arange(len(sizes)).repeat_interleave(sizes)
        is_empty = torch.zeros(len(owner), dtype=torch.bool)
        optional = torch.tensor([part.optional for part in parts], dtype=torch.bool)
        is_empty[(sizes.cumsum(0) - 1)[optional]] = True
        base = torch.tensor([base_count(part, bins) for part in parts], dtype=torch.long)
        self.register_buffer("base", base, persistent=False)
        self.register_buffer("is_empty", is_empty, persistent=False)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("offset", sizes.cumsum(0) - sizes, persistent=False)
        self.register_buffer("owner", owner, persistent=False)
        self.register_buffer("grouped", torch.tensor(grouped, dtype=torch.long), persistent=False)
        self.runs = Bins([parts[i] for i in grouped], bins)
        self.states = CellStates(parts)

    @property
    def total(self) -> int:
        return len(self.owner)

    def fit(self, x: Tensor, seen: Tensor) -> None:
        """Fit the bins to the observed values (B, D) except atoms and empty cells."""
        if not self.states.single:
            seen = seen & (self.states(x) == 0)
        for j, i in enumerate(self.grouped.tolist()):
            if bool(seen[:, i].any()):
                self.runs.fit(j, x[seen[:, i], i].double().sort().values)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The code of each entry and log p(x | code), both (B, D); -inf where x has no code."""
        single = self.states.single
        number = x if single else x.nan_to_num(0.0)
        code = number.long().clamp(min=torch.zeros_like(self.base), max=self.base - 1)
        inside = torch.zeros_like(x).masked_fill(x != code, -torch.inf)
        if len(own := self.grouped):
            code[:, own], inside[:, own] = self.runs.encode(number[:, own])
        if single:
            return code, inside
        state = self.states(x)
        code = torch.where(state > 0, self.base + state - 1, code)
        return code, torch.where(state > 0, 0.0, inside.masked_fill(x.isnan(), -torch.inf))

    def decode(self, code: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """A value of each code, computed from two uniforms, all (B, D)."""
        x, own = code.to(self.runs.unit.dtype), self.grouped
        if len(own):
            run = code[:, own].clamp(max=self.runs.low.shape[1] - 1)
            x[:, own] = self.runs.decode(run, u[:, own], v[:, own])
        if self.states.single:
            return x
        return self.states.write(x, (code - self.base + 1).clamp_min(0))

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

    def present(self, log_p: Tensor) -> Tensor:
        """Tables (..., C) without the codes of empty cells, not normalised."""
        return log_p.masked_fill(self.is_empty, -torch.inf)

    def log_present(self, log_p: Tensor) -> Tensor:
        """The log-probability that each entry is not empty under tables (..., C), (..., D)."""
        return self.sums(self.present(log_p).exp()).log()

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
    """How many codes an entry has: an optional label has that of the empty cell in its size."""
    empty = part.optional and part.kind != "label"
    return base_count(part, bins) + len(part.atoms) + empty


def base_count(part: Space, bins: int) -> int:
    """How many codes an entry has besides its atoms and the empty cell."""
    if is_binned(part, bins):
        return bins
    return 2 if part.kind == "binary" else part.size


def finite_log(p: Tensor) -> Tensor:
    """Finite logarithms, so that 0 times the log-probability of an unused code is 0."""
    return p.clamp_min(torch.finfo(torch.float32).tiny).log()
