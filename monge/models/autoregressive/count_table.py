r"""A table for every conditional, by counting: exact, and as large as the data has states

$P(x_i = k \mid x_{<i}) = \theta^{(i)}_{x_{<i}, k}$, one row for each way the entries before can
combine. For n bits the i-th table has $2^{i-1}$ parameters and all have $2^n - 1$, which is why
every other model of this family computes its conditionals instead. While it fits, a table can do
what no network can: it is fitted by counting, and any pattern is completed by enumeration.
"""

from __future__ import annotations

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
from ...core.model import Defaults, Losses, Model, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...prob.discretise import EntryCodes
from ...prob.distributions import sample_categorical
from .._ordering import placeholder_values
from ._prefix_counts import PrefixCounts, fits_in, parameters_of, sizes_of

CELLS = 1 << 20
"""Cells that the tables may have together."""
BINS = range(4, 65)
"""How many runs the values of a number may fall into."""


class CountTable(Model, HasLikelihood, HasConditionals, CanSample, CanComplete, CanStream):
    r"""$p(x \mid g) = \prod_i P(c_i \mid c_{<i}, g)\, p(x_i \mid c_i)$, where $c_i$ is the code of
    entry i: its value, or the run of the histogram a number falls into.

    $P(c_i = k \mid c_{<i}, g) = (n_k + m q_k) / \sum_k (n_k + m q_k)$ with n the counts of the
    training rows that begin so, and q the frequencies of the entry alone, which m more rows
    follow. Each combination g of labels given has tables of its own.
    """

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"label"}

    class Config(Model.Config):
        tag = "model/autoregressive.count_table"
        pseudo: Annotated[float, Range(0, open=True)] = 2.0
        """Rows added after every prefix, which follow the frequencies of the entry alone."""
        bins: Annotated[int, Range(BINS.start)] = 16
        """Runs of a number's histogram; levels are grouped only if there are more."""

    config: Config
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
        """Free numbers of the law: each row of a table sums to one."""
        return parameters_of(self.tables.sizes, self.tables.groups)

    @property
    def orders(self) -> Sequence[Tensor]:
        return [torch.arange(self.space.dims, device=self.blank.device)]

    def loss(self, batch: Batch) -> Losses:
        return {"nll": -self.log_prob(batch)}

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
        laws = zip(self.tables.along(code, group), code.T, strict=True)
        chosen = [law.gather(1, k[:, None])[:, 0] for law, k in laws]
        return torch.stack(chosen, 1).log() + inside

    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        """P of every code of an entry, zeros after the last."""
        x, group = self.whole(batch)
        laws = [law.T for law in self.tables.along(self.codes.encode(x)[0], group)]  # (s_i, B)
        return nn.utils.rnn.pad_sequence(laws).permute(2, 1, 0)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        for x in self.stream(n, given, options, generator):
            last = x
        return last

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """One yield for each entry; those not yet drawn stand at their training mean or low."""
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
        """Exactly, whatever is seen: every state that agrees with it is weighed."""
        seen, group = (
            batch.observed_mask.reshape(len(batch), -1),
            self.group(batch.given, len(batch)),
        )
        x = torch.where(seen, self.flat(batch.x), self.blank)
        chance, *inside = self.noise(len(x), generator)
        code = self.tables.fill(self.codes.encode(x)[0], group, seen, chance[:, 0])
        return self.to_event(torch.where(seen, x, self.codes.decode(code, *inside)))

    def noise(self, n: int, generator: Generator | None) -> Tensor:
        """Uniforms (3, n, D): for the code of each entry and, twice, for its place in a run."""
        fine = self.blank.new_empty(3, n, self.space.dims, dtype=torch.float64)
        return fine.uniform_(generator=generator)

    def whole(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Rows laid out flat (B, D), of which nothing may be missing, and their groups (B,)."""
        if not bool(batch.observed_mask.all()):
            raise DataError(
                "tabular needs every value of a row, but some are missing; fill them "
                "or choose a model that marginalises them"
            )
        return self.flat(batch.x), self.group(batch.given, len(batch))

    def group(self, given: Given, n: int) -> Tensor:
        """Which combination of labels each row is given, (n,)."""
        group = torch.zeros(n, dtype=torch.long, device=self.blank.device)
        for name, part in broadcast_conditions(given, self.space, n).items():
            size, codes = self.space.given[name].size, part.x.reshape(n, -1).long()
            if not bool(part.observed_mask.all()) or bool(((codes < 0) | (codes >= size)).any()):
                raise DataError(f"given {name!r} must be a code from 0 to {size - 1} in every row")
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


def groups_of(space: Space) -> int:
    """How many combinations of labels the conditions can take."""
    return math.prod(part.size**part.dims for part in space.given.values())


def entries_of(space: Space) -> Sequence[Space]:
    """A space with the kind and size of each entry."""
    return space.columns or [space] * space.dims


def bins_for(space: Space) -> int:
    """As many runs as leave no more cells than there are rows."""
    parts, groups = entries_of(space), groups_of(space)
    fitting = [bins for bins in BINS if fits_in(space.rows, sizes_of(parts, bins), groups)]
    return max(fitting, default=BINS.start)


def too_large(space: Space, bins: int) -> str | None:
    sizes, groups = sizes_of(entries_of(space), bins), groups_of(space)
    if fits_in(CELLS, sizes, groups):
        return None
    count = parameters_of(sizes, groups)
    told = f"{count}" if count < 10**9 else f"about 2^{count.bit_length()}"
    return (
        f"a table of {space} has {told} parameters, one for each way that entries combine; "
        "use autoregressive.fvsbn or autoregressive.made, which compute them"
    )
