"""Base of closed-form baselines: flat rows, a fit without gradients, exact marginals; trees.

A baseline keeps its state in buffers and rewrites them in one update over all training rows
(counting, or a pass of EM). Missing entries are summed or integrated out, in fitting and in
scoring, and are sampled exactly given the others.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import CanComplete, CanSample, Given, HasLikelihood, Likelihood
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config
from ...core.errors import DataError
from ...core.model import Losses, Model, Update, is_exporting
from ...core.space import Space
from ...prob.bins import EntryCodes, finite_log
from ...prob.graphical import BayesianNetwork, Node

MAX_BATCH_ELEMENTS = 2**22
"""Elements of a temporary tensor; more rows are processed in chunks."""


@dataclass(frozen=True)
class FlatRows:
    """A batch of flat rows; missing entries of x are 0.

    A missing entry may be an empty cell, unless the rows are to be completed.
    """

    x: Tensor  # (B, D)
    seen: Tensor  # (B, D)
    group: Tensor  # (B,): which combination of labels is given
    present: bool = False  # whether no missing entry is an empty cell

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor) -> FlatRows:
        return FlatRows(self.x[index], self.seen[index], self.group[index], self.present)

    def only(self, entries: Tensor) -> FlatRows:
        return FlatRows(self.x[:, entries], self.seen[:, entries], self.group, self.present)

    def split(self, width: int) -> Iterator[FlatRows]:
        """Chunks small enough to hold `width` numbers per row."""
        size = max(MAX_BATCH_ELEMENTS // max(width, 1), 1)
        parts = (value.split(size) for value in (self.x, self.seen, self.group))
        return (
            FlatRows(x, seen, group, self.present) for x, seen, group in zip(*parts, strict=True)
        )


Statistics = tuple[Tensor, ...]
"""Sufficient statistics: weighted sums over rows from which distributions are fitted."""


def add_statistics(some: Statistics, more: Statistics) -> Statistics:
    return tuple(a + b for a, b in zip(some, more, strict=True))


class DistributionSet(nn.Module, abc.ABC):
    """K distributions of the same D entries, any of them missing, fitted to weighted rows."""

    width: int
    """Numbers held per row while it is scored."""

    def fit(self, rows: FlatRows) -> None:
        """Fit what all distributions share to all rows."""

    @abc.abstractmethod
    def log_prob(self, x: Tensor, seen: Tensor, present: bool = False) -> Tensor:
        """log p of the observed entries of x (B, D) under each distribution, and if `present` of
        no missing entry being an empty cell, (B, K)."""

    @abc.abstractmethod
    def statistics(self, x: Tensor, seen: Tensor, weight: Tensor) -> Statistics:
        """E-step: expected statistics over rows with weights (B, K)."""

    @abc.abstractmethod
    def update(self, statistics: Statistics) -> None:
        """M-step: the most probable distributions given the statistics and the prior."""

    @abc.abstractmethod
    def penalty(self) -> Tensor:
        """Negative log prior of the distributions, up to a constant."""

    @abc.abstractmethod
    def sample(self, rows: FlatRows, which: Tensor, generator: Generator | None) -> Tensor:
        """x (B, D) with missing entries sampled from distribution `which` (B,) given the rest."""

    @abc.abstractmethod
    def features(self, x: Tensor, seen: Tensor) -> Tensor:
        """Rows as vectors with a meaningful Euclidean distance, (B, F)."""


class ClosedFormModel(Model, HasLikelihood, CanSample, CanComplete):
    """A model without trained parameters, fitted to all training rows at once."""

    supports_missing = True
    max_label_combinations = 1024
    completion = "sampled given the observed values, which is exact"
    width: int
    """Numbers held per row while it is scored."""

    @abc.abstractmethod
    def fit_rows(self, batch: Batch) -> Losses:
        """Fit the buffers to all training rows; returns the terms to log."""

    @abc.abstractmethod
    def log_density(self, rows: FlatRows) -> Tensor:
        """log p of the observed entries of each row, (B,)."""

    @abc.abstractmethod
    def sample_missing(
        self, rows: FlatRows, options: Config | None, generator: Generator | None
    ) -> Tensor:
        """Rows with missing entries sampled given the observed ones, (B, D)."""

    def updates(self) -> Sequence[Update]:
        return [Update("count", self.fit_rows, whole=True)]

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        return Likelihood(self.log_densities(self.to_rows(as_batch(batch))), "exact")

    def log_densities(self, rows: FlatRows) -> Tensor:
        pieces = [rows] if is_exporting() else rows.split(self.width)
        return torch.cat([self.log_density(piece) for piece in pieces])

    def unobserved_rows(self, n: int, given: Given | None) -> FlatRows:
        """n rows of which every entry is missing, with their conditions."""
        conditions = broadcast_conditions(given or {}, self.space, n)
        group = combination_of(conditions, self.space, n).to(self.like.device)
        x = self.like.new_zeros(n, self.space.dims)
        return FlatRows(x, torch.zeros_like(x, dtype=torch.bool), group)

    def to_events(self, x: Tensor) -> Tensor:  # (n, D) -> (n, *event)
        x = x.reshape(len(x), *self.space.shape)
        return x.long() if self.space.kind == "label" else x

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: Config | None = None, generator: Generator | None = None
    ) -> Tensor:
        """x_missing ~ p(x_missing | x_observed, no missing entry is an empty cell), exactly."""
        rows = replace(self.to_rows(batch), present=True)
        x = self.sample_missing(rows, options, generator).reshape(batch.x.shape)
        return torch.where(batch.observed_mask, batch.x, x.to(batch.x.dtype))

    @property
    def like(self) -> Tensor:
        """A buffer with the dtype and device of the model."""
        return next(buffer for buffer in self.buffers() if buffer.is_floating_point())

    def to_rows(self, batch: Batch) -> FlatRows:
        n, like = len(batch), self.like
        group = combination_of(broadcast_conditions(batch.given, self.space, n), self.space, n)
        seen = observed_within_length(batch).reshape(n, -1)
        x = batch.x.reshape(n, -1).to(like)
        return FlatRows(torch.where(seen, x, 0), seen, group.to(like.device))


def observed_within_length(batch: Batch) -> Tensor:
    """Which entries are observed and not padding, in the shape of x."""
    if batch.length is None:
        return batch.observed_mask
    steps = torch.arange(batch.x.shape[1], device=batch.x.device)
    inside = steps < batch.length[:, None]  # (B, T)
    return batch.observed_mask & inside.reshape(*inside.shape, *(1,) * (batch.x.ndim - 2))


def kinds_of(space: Space) -> list[str]:
    """The kind of each entry."""
    return [c.kind for c in space.columns] if space.columns else [space.kind] * space.dims


def combination_of(given: Given, space: Space, n: int) -> Tensor:
    """The combination of labels of each row, (n,)."""
    group = torch.zeros(n, dtype=torch.long)
    for name, part in given.items():
        if not bool(part.observed_mask.all()):
            raise DataError(f"given {name!r} has missing values; fill them or drop their rows")
        size = space.given[name].size
        for label in part.x.reshape(n, -1).long().unbind(1):
            wrong = (label < 0) | (label >= size)
            if not is_exporting() and bool(wrong.any()):
                raise DataError(
                    f"given {name!r} must be a code from 0 to {size - 1} in every row; correct or "
                    "drop the other rows"
                )
            group = group.to(label.device) * size + label
    return group


class TreeOfCodes(nn.Module):
    r"""A tree of codes, $\prod_i P(c_i \mid c_{\pi(i)})$, fitted by counting pairs; messages from
    the leaves to the root sum out missing entries. What `build_tree` registers, and what can be
    done with it: a base of models and modules."""

    codes: EntryCodes
    pseudo: float
    width: int
    log_p: Tensor  # (C, M): code of an entry, code of its parent; rows of roots are constant
    parent: Tensor  # (D,): -1 for a root
    order: Tensor  # (D,): parents before children

    def build_tree(self, space: Space, bins: int, pseudo: float) -> None:
        """Entries without edges; pseudo: mean pseudo-count of a code in conditional tables."""
        self.codes, self.pseudo = EntryCodes(space, bins), pseudo
        self.width = self.codes.total
        start = finite_log(self.codes.even()).to(torch.get_default_dtype())
        self.register_buffer("log_p", start[:, None].repeat(1, int(self.codes.sizes.max())))
        self.register_buffer("parent", torch.full((space.dims,), -1))
        self.register_buffer("order", torch.arange(space.dims))

    def fit_tree(self, rows: FlatRows) -> None:
        codes = self.codes
        codes.fit(rows.x, rows.seen)
        pairs = torch.zeros(codes.total, codes.total, dtype=torch.float64, device=rows.x.device)
        for piece in rows.split(self.width):
            hot = codes.one_hot(codes.encode(piece.x)[0], piece.seen)
            pairs += hot.T @ hot
        parent, order = spanning_forest(self.information(pairs))
        self.parent.copy_(parent)
        self.order.copy_(order)
        self.tabulate(pairs)

    def information(self, pairs: Tensor) -> Tensor:
        """The gain of an edge between two entries, (D, D), from the rows that observe both."""
        codes = self.codes
        single = codes.sums(pairs)  # (C, D): counts of a code where the other entry is observed
        both = codes.sums(single.T)  # (D, D)
        entropy = codes.sums(torch.xlogy(single, single).T)  # (D, D)
        joint = codes.sums(codes.sums(torch.xlogy(pairs, pairs)).T)
        n = both.clamp_min(1)
        mutual = (joint - entropy - entropy.T + torch.xlogy(both, both)) / n
        free = codes.sums((codes.even() > 0).double()) - 1  # (D,)
        return mutual - free[:, None] * free / n

    def tabulate(self, pairs: Tensor) -> None:
        """Fit the tables of the current tree to the counts of pairs of codes (C, C)."""
        codes, even = self.codes, self.codes.even()
        rows = self.pseudo * codes.sums((even > 0).double())  # (D,)
        p = codes.shrink(pairs.diagonal(), even, rows)  # (C,)
        self.log_p.copy_(finite_log(p)[:, None])
        for i, above in enumerate(self.parent.tolist()):
            if above >= 0:
                here, there = self.place(i), self.place(above)
                joint = pairs[here, there] + rows[i] * p[here, None]  # (C_i, C_parent)
                self.log_p[here, : joint.shape[1]] = finite_log(joint / joint.sum(0)).to(
                    self.log_p
                )

    def place(self, i: int) -> slice:
        """The codes of entry i."""
        return slice(int(self.codes.offset[i]), int(self.codes.offset[i] + self.codes.sizes[i]))

    def log_density(self, rows: FlatRows) -> Tensor:
        code, inside = self.codes.encode(rows.x)
        value = torch.where(rows.seen, inside, 0).sum(1)
        whole = rows.seen.all(1)
        if bool(whole.all()):
            return value + self.known(code)
        value[whole] += self.known(code[whole])
        value[~whole] += self.collect(code[~whole], rows.seen[~whole], rows.present)[1]
        return value

    def known(self, code: Tensor) -> Tensor:
        """log P of rows of codes without missing entries, (B,)."""
        above = code[:, self.parent.clamp_min(0)]
        return self.log_p[code + self.codes.offset, above].sum(1)

    def edges(self) -> Iterator[tuple[int, int, slice, Tensor]]:
        """Entry, parent, codes and table (C_i, C_parent) of each, parents before children."""
        parent = self.parent.tolist()
        for i in self.order.tolist():
            size = int(self.codes.sizes[max(parent[i], 0)])
            yield i, parent[i], self.place(i), self.log_p[self.place(i), :size]

    def network(self) -> BayesianNetwork:
        """The tree of codes as a directed graphical model, whose nodes are x0, x1, ..."""
        nodes = {}
        for i, above, _, table in self.edges():
            p = table.double().exp()  # (C_i, C_parent)
            p = p / p.sum(0)
            nodes[f"x{i}"] = Node(p[:, 0]) if above < 0 else Node(p.T.contiguous(), [f"x{above}"])
        return BayesianNetwork(nodes)

    def collect(self, code: Tensor, seen: Tensor, present: bool) -> tuple[Tensor, Tensor]:
        r"""Messages to the root: log-beliefs of each code (B, C), and log P of the observed.

        $m_i(c) = \log \sum_{c_i} P(c_i \mid c) \exp b_i(c_i)$, where $b_i$ is the evidence of
        entry i plus the messages of its children. If `present`, no missing entry is empty.
        """
        belief = torch.zeros(
            len(code), self.codes.total, dtype=self.log_p.dtype, device=code.device
        )
        hidden = ~seen[:, self.codes.owner]  # (B, C)
        hidden = hidden & ~self.codes.is_empty if present else hidden
        belief.masked_fill_(~(hidden | self.codes.one_hot(code, seen).bool()), -torch.inf)
        value = torch.zeros_like(belief[:, 0])
        for _, above, here, table in reversed(list(self.edges())):
            top = belief[:, here].amax(1, keepdim=True)
            message = ((belief[:, here] - top).exp() @ table.exp()).log() + top  # (B, C_parent)
            if above < 0:
                value += message[:, 0]
            else:
                belief[:, self.place(above)] += message
        return belief, value

    def sample_missing(
        self, rows: FlatRows, options: Config | None, generator: Generator | None
    ) -> Tensor:
        code, _ = self.codes.encode(rows.x)
        belief, _ = self.collect(code, rows.seen, rows.present)
        u = torch.rand(belief.shape, generator=generator, dtype=belief.dtype, device=code.device)
        score = belief - (-u.log()).log()  # Gumbel noise: the argmax is a sample
        for i, above, here, table in self.edges():
            code[:, i] = (score[:, here] + table.T[code[:, max(above, 0)]]).argmax(1)
        return self.codes.sample(code, generator)


def spanning_forest(gain: Tensor) -> tuple[Tensor, Tensor]:
    """The spanning forest of largest total gain (Prim's algorithm, only edges of positive gain):
    parent of each node, -1 for a root, and an order in which parents come first."""
    gain = gain.cpu()
    parent, order = torch.zeros(len(gain), dtype=torch.long), [0]
    best, outside = gain[0].clone(), torch.ones(len(gain), dtype=torch.bool)
    parent[0], outside[0] = -1, False
    while len(order) < len(gain):
        node = int(best.where(outside, -torch.inf).argmax())
        outside[node] = False
        order.append(node)
        better = outside & (gain[node] > best)
        best[better], parent[better] = gain[node, better], node
    return parent.masked_fill(best <= 0, -1), torch.tensor(order)
