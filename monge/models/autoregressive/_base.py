r"""What laws of entries in an order share: exact scores, and draws one entry after the other.

$\log p(x) = \log \frac1K \sum_k \prod_i p(x_i \mid x_{<i \text{ in order } k})$. A network puts
out the parameters of every conditional in one pass (`outputs`), or of one entry after the other
(`stepper`); the head turns parameters into laws of the entries, so that every kind of data is
served alike. What was seen of a row comes first in the order, or its completion is refused.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, cast

import torch
from torch import Generator, Tensor

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
from ...core.model import Losses, Model
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import Stepping
from ...nn.inputs.features import Conditions, Features
from ...prob.distributions import pick
from ...prob.heads import Head, LevelsLaw
from .._ordering import blank, check_prefix, check_whole

ROWS = 1024
"""Rows drawn at a time, so that what is cached stays near the processor."""


class Ordered(Model, HasLikelihood, HasConditionals, CanSample, CanComplete, CanStream):
    """A mean over K members of products of conditionals, each in its own order.

    A step of training takes one member, drawn at random, whose mean over members bounds the
    mixture's loss from above.
    """

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}

    class Config(Model.Config):
        components: Annotated[int, Range(1)] = 5
        """Parts of the mixture that each real or finely levelled entry follows."""
        levels: LevelsLaw = "auto"
        """Law of levels: a probability each, a mixture of logistics, or as their number asks."""

    class SamplingConfig(BaseConfig):
        cached: bool = True
        """Compute each hidden unit once; false recomputes everything for each entry."""

    places: Tensor
    blank: Tensor

    def __init__(self, config: Config, space: Space, places: Tensor) -> None:
        """places: (K, D), the place of each entry in the order of each member."""
        super().__init__(config, space)
        self.name = type(self).__name__.lower()
        self.features, self.conditions = Features(space), Conditions(space)
        self.head = Head(space, config.components, config.levels)
        self.register_buffer("places", places, persistent=False)  # (K, D)
        self.register_buffer("blank", blank(space), persistent=False)  # (D,)

    def initialise_from_data(self, batch: Batch) -> None:
        self.head.fit(self.flat(batch.x), batch.observed_mask.reshape(len(batch), -1))
        self.settle()

    @abc.abstractmethod
    def settle(self) -> None:
        """Let each conditional begin as the law of its entry alone."""

    @property
    def orders(self) -> Sequence[Tensor]:
        return list(self.places)

    def loss(self, batch: Batch) -> Losses:
        members = len(self.places)
        member = int(torch.randint(members, ())) if members > 1 else 0
        return {"nll": -self.conditionals(batch, member).sum(1)}

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, members = as_batch(batch), range(len(self.places))
        each = [self.conditionals(batch, k).sum(1) for k in members]  # (B,), K times
        if len(each) == 1:
            return Likelihood(each[0], "exact")
        return Likelihood(torch.logsumexp(torch.stack(each), 0) - math.log(len(each)), "exact")

    def conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        self.check_whole(batch)
        return self.head.log_prob(self.outputs(batch, member), self.flat(batch.x))

    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        """Where entries have fewer parameters than others, zeros follow."""
        outputs = self.outputs(batch, member)
        parts = [outputs[:, own].T for own in self.head.slices]  # (P_i, B)
        return torch.nn.utils.rnn.pad_sequence(parts).permute(2, 1, 0)

    @abc.abstractmethod
    def outputs(self, batch: Batch, member: int) -> Tensor:
        """The parameters of every conditional, laid out as the head has them, (B, P)."""

    @abc.abstractmethod
    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], Stepping]:
        """What starts a pass, one entry at a time, over the rows of a context (n, context)."""

    def context(self, batch: Batch) -> Tensor:  # (B, context)
        return self.conditions(
            broadcast_conditions(batch.given, self.space, len(batch)), len(batch)
        )

    def flat(self, x: Tensor) -> Tensor:  # (B, D)
        return x.reshape(len(x), -1).to(self.blank.dtype)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        return self.fill(self.hidden(n, given), options, generator)

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        seen = batch.observed_mask.reshape(len(batch), -1)
        self.check_prefix(seen)
        given = broadcast_conditions(batch.given, self.space, len(batch))
        x = torch.where(seen, self.flat(batch.x), self.blank)
        return self.fill(Batch(x, given, seen), options, generator)

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """One yield for each entry; those not yet drawn stand at their training mean or low."""
        batch = self.hidden(n, given)
        draws = list(self.draws(batch, options, generator))
        for place in range(self.space.dims):
            for draw in draws:
                entry = draw.advance(place)
                batch.x[draw.rows, entry] = draw.each[entry]
            yield self.shaped(batch.x.clone())

    def hidden(self, n: int, given: Given | None) -> Batch:
        """n rows of which nothing is seen."""
        x = self.blank.repeat(n, 1)  # (n, D)
        return Batch(
            x,
            broadcast_conditions(given or {}, self.space, n),
            torch.zeros_like(x, dtype=torch.bool),
        )

    def fill(
        self, batch: Batch, options: BaseConfig | None, generator: Generator | None
    ) -> Tensor:
        x = torch.empty_like(batch.x)
        with torch.inference_mode():  # tensors that autograd knows nothing of save a tenth
            for draw in self.draws(batch, options, generator):
                for place in range(self.space.dims):
                    draw.advance(place)
                x[draw.rows] = draw.x.T
        return self.shaped(x)

    def draws(
        self, batch: Batch, options: BaseConfig | None, generator: Generator | None
    ) -> Iterator[_Draw]:
        """The rows by member and in pieces, each at the start of its order."""
        cached = cast(Ordered.SamplingConfig, options or self.SamplingConfig()).cached
        noise = self.head.noise(len(batch), generator)  # (n, D, 2)
        context = self.conditions(batch.given, len(batch))
        member = self.choose(batch, generator)  # (n,)
        for k in range(len(self.places)):
            entries, steps = self.orders[k].argsort().tolist(), self.stepper(k, cached)
            for rows in (member == k).nonzero()[:, 0].split(ROWS):
                if len(rows):
                    yield self.draw(rows, entries, steps(context[rows]), noise, batch)

    def draw(
        self, rows: Tensor, entries: list[int], steps: Stepping, noise: Tensor, batch: Batch
    ) -> _Draw:
        """Some rows of a batch (n, D) and of the noise (n, D, 2), at the start of their order."""
        which = slice(None) if len(rows) == len(batch) else rows  # all are picked by a view
        own, seen = noise.transpose(0, 1)[:, which], batch.observed_mask[which]
        x = batch.x.new_empty(len(self.blank), len(seen))  # (D, m)
        kept = seen.T.contiguous() if bool(seen.any()) else None
        if kept is not None:
            x.copy_(batch.x[which].T)
        return _Draw(
            which,
            entries,
            self.head,
            self.features.reader(),
            steps,
            own.unbind(),
            x,
            x.unbind(),
            kept,
        )

    def choose(self, batch: Batch, generator: Generator | None) -> Tensor:
        """A member for each row, in proportion to what it makes of the values seen, (n,)."""
        members, seen = range(len(self.places)), batch.observed_mask
        if len(members) == 1:
            return torch.zeros(len(batch), dtype=torch.long, device=seen.device)
        whole = replace(batch, observed=None)
        weights = [(self.conditionals(whole, k) * seen).sum(1) for k in members]
        uniform = self.blank.new_empty(len(batch)).uniform_(generator=generator)
        return pick(torch.stack(weights, 1), uniform)

    def check_whole(self, batch: Batch) -> None:
        check_whole(self.name, batch)

    def check_prefix(self, seen: Tensor) -> None:
        check_prefix(self.name, self.places, seen)

    def shaped(self, x: Tensor) -> Tensor:  # (n, D) -> (n, *event)
        x = x.reshape(-1, *self.space.shape)
        return x.long() if self.space.kind == "label" else x


@dataclass(frozen=True)
class _Draw:
    """Rows on their way through one member's order; entries first, so that a step moves rows of
    memory."""

    rows: Tensor | slice  # where the m rows stand in the whole
    entries: list[int]  # the entry at each place
    head: Head
    read: Callable[[int, Tensor], Tensor]  # the features of an entry
    steps: Stepping
    noise: Sequence[Tensor]  # of each entry, (m, 2)
    x: Tensor  # (D, m)
    each: Sequence[Tensor]  # the entries of x, (m,)
    seen: Tensor | None  # (D, m): values that are kept, if there are any

    def advance(self, place: int) -> int:
        """Draw the entry at `place`, or keep what is seen of it, and let the network know it; the
        entry's number."""
        entry = self.entries[place]
        params = self.steps.parameters(place)  # (m, P_i)
        drawn = self.head.draw_entry(entry, params, self.noise[entry])
        here = self.each[entry]
        if self.seen is None:
            here.copy_(drawn)
        else:
            torch.where(self.seen[entry], here, drawn, out=here)
        self.steps.feed(place, self.read(entry, here))
        return entry


class Again(Stepping):
    """The plain way: the whole network (features, context, member) again for every entry."""

    def __init__(
        self,
        model: Ordered,
        network: Callable[[Tensor, Tensor, int], Tensor],
        member: int,
        context: Tensor,
    ) -> None:
        self.model, self.network, self.member, self.context = model, network, member, context
        self.entries = model.orders[member].argsort().tolist()
        self.x = model.blank.new_zeros(len(context), model.features.width)  # (n, F)

    def parameters(self, place: int) -> Tensor:
        own = self.model.head.slices[self.entries[place]]
        return self.network(self.x, self.context, self.member)[:, own]

    def feed(self, place: int, features: Tensor) -> None:
        self.x[:, self.model.features.slices[self.entries[place]]] = features


def unshift_bits(features: Features, space: Space) -> None:
    """Let bits be read as 0 and 1, where an equation is written for them."""
    kinds = [part.kind for part in space.columns] or [space.kind] * space.dims
    bits = torch.tensor([kind == "binary" for kind in kinds])[features.owner]  # (F,)
    features.shift[bits], features.factor[bits] = 0.0, 1.0
