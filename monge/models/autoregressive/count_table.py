r"""Conditional probability tables fitted by counting: exact, one cell per combination of values

$P(x_i = k \mid x_{<i}) = \theta^{(i)}_{x_{<i}, k}$, one row for each combination of the
entries before. For n bits the i-th table has $2^{i-1}$ parameters and all have $2^n - 1$, which is
why every other model of this family computes its conditionals instead. Small tables have two
advantages over networks: they are fitted by counting, and any pattern is completed exactly by
enumeration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import (
    CanComplete,
    CanSample,
    CanStream,
    Given,
    HasConditionals,
    HasLikelihood,
    Likelihood,
)
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import DataError
from ...core.limits import code_count
from ...core.model import Defaults, Losses, Model, Update, is_exporting
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...prob.bins import EntryCodes
from ...prob.distributions import sample_categorical
from .._ordering import placeholder_values

MAX_CELLS = 1 << 22
"""Cells of all tables together: 16 MB, and as many states to sum over in a completion."""
BINS = range(4, 65)
"""Possible numbers of histogram bins of a number."""
MAX_STATES_PER_PASS = 1 << 22
"""States weighted at once when rows are completed."""


class CountTable(Model, HasLikelihood, HasConditionals, CanSample, CanComplete, CanStream):
    r"""$p(x \mid g) = \prod_i P(c_i \mid c_{<i}, g)\, p(x_i \mid c_i)$, where $c_i$ is the code of
    entry i: its value, or the histogram bin of a number.

    $P(c_i = k \mid c_{<i}, g) = (n_k + m q_k) / \sum_k (n_k + m q_k)$ with n the counts of the
    training rows with this prefix and m pseudo-rows. A prefix that is rare in training is left to
    $q_k$, the smoothed frequencies of the entry given one entry before it (or g): the one by which
    training rows are predicted best, each by the others; its marginal frequencies if the prefix is
    no more than that. Each combination g of the given labels has its own tables.
    """

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"label"}

    class Config(Model.Config):
        tag = "model/autoregressive.count_table"
        pseudo: Annotated[float, Range(0, open=True)] = 2.0
        """Pseudo-rows added to every prefix, with the frequencies of the entry given one entry
        before it."""
        bins: Annotated[int, Range(BINS.start)] = 16
        """Bins of a number's histogram; levels are grouped only if there are more."""

    config: Config
    completion = "sampled given the observed values, which is exact"
    blank: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        if reason := too_large(space, config.bins):
            raise DataError(reason)
        self.codes = EntryCodes(space, config.bins)
        self.tables = PrefixCounts(self.codes, groups_of(space), config.pseudo)
        self.register_buffer("blank", placeholder_values(space), persistent=False)  # (D,)

    @property
    def parameter_count(self) -> int:
        """Free parameters: each row of a table sums to one."""
        return parameters_of(self.tables.sizes, self.tables.groups)

    @property
    def orders(self) -> Sequence[Tensor]:
        return [torch.arange(self.space.dims, device=self.blank.device)]

    def loss(self, batch: Batch) -> Losses:
        """-log p(x | g) = -sum_i (log P(c_i | c_<i, g) + log p(x_i | c_i)); `count` minimises it,
        up to the pseudo-rows."""
        return {"nll": -self.conditionals(batch).sum(1)}

    def updates(self) -> Sequence[Update]:
        return [Update("count", self.count, whole=True)]

    def count(self, batch: Batch) -> Losses:
        x, group = self.whole(batch)
        self.codes.fit(x, torch.ones_like(x, dtype=torch.bool))
        self.tables.fit(self.codes.encode(x)[0], group, self.codes.even())
        return self.loss(batch)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        return Likelihood(self.conditionals(as_batch(batch)).sum(1), "exact")

    def conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        x, group = self.whole(batch)
        code, inside = self.codes.encode(x)
        tables = self.tables.conditionals(code, group)  # (B, s_i) each
        chosen = [p.gather(1, k[:, None])[:, 0] for p, k in zip(tables, code.T, strict=True)]
        return torch.stack(chosen, 1).log() + inside

    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        """P of every code of an entry, padded with zeros."""
        x, group = self.whole(batch)
        tables = self.tables.conditionals(self.codes.encode(x)[0], group)  # (B, s_i) each
        return nn.utils.rnn.pad_sequence([p.T for p in tables]).permute(2, 1, 0)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """c_i ~ P(c_i | c_<i, g), one entry after the other, and x_i ~ p(x_i | c_i)."""
        prefix = self.group(given or {}, n)  # the codes so far as one number, (n,)
        chance, *inside = self.noise(n, generator)
        codes = []
        for i, size in enumerate(self.tables.sizes):
            log_p = self.tables.distribution(i, prefix).log()  # (n, s_i)
            codes.append(sample_categorical(log_p, chance[:, i]))
            prefix = prefix * size + codes[-1]
        return self.to_event(self.codes.decode(torch.stack(codes, 1), *inside))

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """Yields after each entry; entries not sampled yet hold their training mean or minimum."""
        prefix, order = self.group(given or {}, n), self.orders[0]
        chance, *inside = self.noise(n, generator)
        code = torch.zeros(n, len(order), dtype=torch.long, device=order.device)
        for i, size in enumerate(self.tables.sizes):
            code[:, i] = sample_categorical(
                self.tables.distribution(i, prefix).log(), chance[:, i]
            )
            prefix = prefix * size + code[:, i]
            x = self.codes.decode(code, *inside)
            yield self.to_event(torch.where(order <= i, x, self.blank))

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """Exact for any pattern: every state that agrees with the observed entries, and in which
        no hidden entry is an empty cell, is weighted."""
        x, seen, group = self.known_rows(batch)
        chance, *inside = self.noise(len(x), generator)
        code = self.tables.fill(self.codes.encode(x)[0], group, seen, chance[:, 0])
        return self.to_event(torch.where(seen, x, self.codes.decode(code, *inside)))

    @torch.no_grad()
    def observed_log_prob(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """Exact for any pattern, by the same sum."""
        x, seen, group = self.known_rows(batch)
        code, inside = self.codes.encode(x)
        return self.tables.log_prob_seen(code, group, seen) + (inside * seen).sum(1)

    def known_rows(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Flat rows with a valid value at each entry that is not observed, which are observed, and
        the groups (B,)."""
        seen = batch.observed_mask.reshape(len(batch), -1)
        x = torch.where(seen, self.flat(batch.x), self.blank)
        return x, seen, self.group(batch.given, len(batch))

    def noise(self, n: int, generator: Generator | None) -> Tensor:
        """Uniforms (3, n, D): one for the code of each entry, two for its position in a bin."""
        fine = self.blank.new_empty(3, n, self.space.dims, dtype=torch.float64)
        return fine.uniform_(generator=generator)

    def whole(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Flat rows (B, D) without missing values, and their groups (B,)."""
        if not bool(batch.observed_mask.all()):
            raise DataError(
                "count_table expected rows without missing values, found some; fill them "
                "or choose a model that marginalises them"
            )
        return self.flat(batch.x), self.group(batch.given, len(batch))

    def group(self, given: Given, n: int) -> Tensor:
        """The combination of given labels of each row, (n,)."""
        group = torch.zeros(n, dtype=torch.long, device=self.blank.device)
        for name, part in broadcast_conditions(given, self.space, n).items():
            size, codes = self.space.given[name].size, part.x.reshape(n, -1).long()
            wrong = ~part.observed_mask.reshape(codes.shape) | (codes < 0) | (codes >= size)
            if not is_exporting() and bool(wrong.any()):
                raise DataError(
                    f"given {name!r} must be a code from 0 to {size - 1} in every row; correct or "
                    "drop the other rows"
                )
            for code in codes.T:
                group = group * size + code
        return group

    def flat(self, x: Tensor) -> Tensor:  # (B, D)
        return x.reshape(len(x), -1).to(self.blank.dtype)

    def to_event(self, x: Tensor) -> Tensor:  # (n, D) -> (n, *event)
        x = x.reshape(-1, *self.space.shape)
        return x.long() if self.space.kind == "label" else x

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        return too_large(space, bins_for(space))

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        return Defaults(
            cls.Config(bins=bins_for(space)), TrainConfig(max_steps=1, eval_every=1, patience=0)
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(bins=8)


class PrefixCounts(nn.Module):
    """The counts of every prefix of codes: one table per entry, for each of `groups`.

    A prefix is one number in the mixed radix of the sizes, led by the group, so tables are flat.
    """

    counts: Tensor
    prior: Tensor
    parents: Tensor

    def __init__(self, codes: EntryCodes, groups: int, pseudo: float) -> None:
        super().__init__()
        self.sizes, self.groups, self.pseudo = codes.sizes.tolist(), groups, pseudo
        empty = codes.sums(codes.is_empty.long()).tolist()
        self.present = [size - n for size, n in zip(self.sizes, empty, strict=True)]
        self.cells = list(cells_of(self.sizes, groups))
        self.strides = [math.prod(self.sizes[i + 1 :]) for i in range(len(self.sizes))]
        before = [groups, *self.sizes[:-1]]  # possible parents of the last entry
        self.parent_counts = [max(before[: i + 1]) for i in range(len(self.sizes))]
        even = codes.even().to(torch.get_default_dtype()).split(self.sizes)
        uniform = [q.repeat(n) for q, n in zip(even, self.parent_counts, strict=True)]
        self.register_buffer("counts", torch.zeros(sum(self.cells)))  # table after table
        self.register_buffer(
            "prior", pseudo * torch.cat(uniform)
        )  # m q, (parent, code) after another
        self.register_buffer("parents", torch.zeros(len(self.sizes), dtype=torch.long))

    def fit(self, code: Tensor, group: Tensor, even: Tensor) -> None:
        """Count codes (B, D); even: uniform probabilities of the codes of each entry, (C,)."""
        tables, priors = self.counts.split(self.cells), self.prior_tables()
        before = torch.cat([group[:, None], code], 1)  # (B, 1 + D)
        for i, prefix in enumerate(self.prefixes(code, group)):
            tables[i].copy_(prefix.bincount(minlength=len(tables[i])))
            first = self.pseudo * even.split(self.sizes)[i]
            marginal = tables[i].reshape(-1, self.sizes[i]).sum(0) + first
            prior = self.pseudo * marginal / marginal.sum()  # m q of the entry alone
            if i + (self.groups > 1) < 2:  # the prefix is one entry, or none
                priors[i].copy_(prior.expand_as(priors[i]))
                continue
            size, count = self.sizes[i], self.parent_counts[i]
            pairs = [
                (before[:, j] * size + code[:, i]).bincount(minlength=count * size)
                for j in range(i + 1)
            ]
            counts = torch.stack(pairs).reshape(i + 1, count, size).to(prior)
            self.parents[i] = leave_one_out(counts, prior).argmax()
            weight = counts[self.parents[i]] + prior
            priors[i].copy_(self.pseudo * weight / weight.sum(1, keepdim=True))

    def prior_tables(self) -> list[Tensor]:
        """m q of each entry after each code of its parent, views (parent, code)."""
        cells = [n * size for n, size in zip(self.parent_counts, self.sizes, strict=True)]
        return [
            table.reshape(-1, size)
            for table, size in zip(self.prior.split(cells), self.sizes, strict=True)
        ]

    def prefixes(self, code: Tensor, group: Tensor) -> Iterator[Tensor]:
        """The prefix that ends with each entry, (B,)."""
        for size, own in zip(self.sizes, code.T, strict=True):
            group = group * size + own
            yield group

    def distribution(self, i: int, prefix: Tensor) -> Tensor:
        """P of each code of entry i after a prefix of those before it, (B, s_i)."""
        start, size = sum(self.cells[:i]), self.sizes[i]
        table = self.counts[start : start + self.cells[i]].reshape(-1, size)
        strides = [math.prod(self.sizes[j:i]) for j in range(i + 1)]
        stride, count = prefix.new_tensor([strides, [self.groups, *self.sizes[:i]]])
        parent = prefix // stride[self.parents[i]] % count[self.parents[i]]
        weight = table[prefix] + self.prior_tables()[i][parent]
        return weight / weight.sum(1, keepdim=True)

    def conditionals(self, code: Tensor, group: Tensor) -> list[Tensor]:
        """P of each code of each entry given the entries before it in rows (B, D), (B, s_i)."""
        before = [group, *self.prefixes(code, group)]
        return [self.distribution(i, prefix) for i, prefix in enumerate(before[:-1])]

    def joint(self) -> Tensor:
        """log P of every state of every group, in the order of prefixes, float64."""
        log_p = torch.zeros(self.groups, dtype=torch.float64, device=self.counts.device)
        for i in range(len(self.sizes)):
            prefix = torch.arange(len(log_p), device=log_p.device)
            log_p = (log_p[:, None] + self.distribution(i, prefix).double().log()).flatten()
        return log_p

    def fill(self, code: Tensor, group: Tensor, seen: Tensor, uniform: Tensor) -> Tensor:
        """Codes (B, D) whose entries that are not `seen` are sampled given the others."""
        code, sizes = code.clone(), torch.tensor(self.sizes, device=code.device)
        stride = torch.tensor(self.strides, device=code.device)
        for rows, states, log_p in self.agreeing(code, group, seen):
            chosen = sample_categorical(log_p, uniform[rows])
            state = states.gather(1, chosen[:, None])  # (m, 1)
            code[rows] = torch.where(seen[rows], code[rows], state // stride % sizes)
        return code

    def log_prob_seen(self, code: Tensor, group: Tensor, seen: Tensor) -> Tensor:
        """log P of the codes (B, D) of the entries that are `seen`, and that no other is empty."""
        found = torch.zeros(len(code), dtype=torch.float64, device=code.device)
        for rows, _, log_p in self.agreeing(code, group, seen):
            found[rows] = log_p.logsumexp(1)
        return found

    def agreeing(
        self, code: Tensor, group: Tensor, seen: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Some of the rows (m,), the states (m, S) that agree with their `seen` codes and in which
        no other entry is empty, which is the last code of an entry, and log P of these (m, S)."""
        joint, stride = self.joint(), torch.tensor(self.strides, device=code.device)
        for pattern in seen.unique(dim=0):
            rows = (seen == pattern).all(1).nonzero()[:, 0]
            base = (code[rows] * stride * pattern).sum(1) + group[rows] * math.prod(self.sizes)
            ways = torch.zeros(1, dtype=torch.long, device=code.device)
            for i in (~pattern).nonzero()[:, 0].tolist():
                steps = torch.arange(self.present[i], device=code.device) * stride[i]
                ways = (ways[:, None] + steps).flatten()
            size = max(MAX_STATES_PER_PASS // len(ways), 1)
            for piece, own in zip(rows.split(size), base.split(size), strict=True):
                states = own[:, None] + ways
                yield piece, states, joint[states]


def leave_one_out(counts: Tensor, prior: Tensor) -> Tensor:
    """log-likelihood (P,) of the rows counted in tables (P, parent, code), each row predicted by
    the others and by pseudo-rows `prior` (code)."""
    others = counts.sum(2, keepdim=True) - 1 + prior.sum()
    each = (counts - 1 + prior).clamp_min(torch.finfo(prior.dtype).tiny).log() - others.log()
    return torch.where(counts > 0, counts * each, 0).sum((1, 2))


def groups_of(space: Space) -> int:
    """How many combinations of labels the conditions can take."""
    return math.prod(part.size**part.dims for part in space.given.values())


def entries_of(space: Space) -> Sequence[Space]:
    """A space with the kind and size of each entry."""
    return space.columns or [space] * space.dims


def bins_for(space: Space) -> int:
    """The most bins for which the tables have no more cells than there are rows."""
    parts, groups = entries_of(space), groups_of(space)
    fitting = [bins for bins in BINS if fits_in(space.rows, sizes_of(parts, bins), groups)]
    return max(fitting, default=BINS.start)


def too_large(space: Space, bins: int) -> str | None:
    sizes, groups = sizes_of(entries_of(space), bins), groups_of(space)
    if fits_in(MAX_CELLS, sizes, groups):
        return None
    count = parameters_of(sizes, groups)
    size = f"{count}" if count < 10**9 else f"about 2^{count.bit_length()}"
    return (
        f"a table of {space} has {size} parameters, one per combination of values; "
        "use autoregressive.fvsbn or autoregressive.made, which compute their conditionals"
    )


def sizes_of(parts: Sequence[Space], bins: int) -> list[int]:
    """How many codes each entry has."""
    return [code_count(part, bins) for part in parts]


def cells_of(sizes: Sequence[int], groups: int) -> Iterator[int]:
    """Cells of the table of each entry."""
    for size in sizes:
        groups *= size
        yield groups


def fits_in(room: int, sizes: Sequence[int], groups: int) -> bool:
    """Whether the tables have at most `room` cells; stops at the first that does not fit."""
    return all(total <= room for total in itertools.accumulate(cells_of(sizes, groups)))


def parameters_of(sizes: Sequence[int], groups: int) -> int:
    """Free parameters of all tables: the last cell of a row is determined by the others."""
    return sum(
        cells - cells // size for cells, size in zip(cells_of(sizes, groups), sizes, strict=True)
    )
