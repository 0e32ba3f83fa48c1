r"""What a mixture can do: each ability of $p = \frac1K \sum_k p_k$ made of the members' own.

It draws by drawing a member for each row; its score is $\log\frac1K\sum_k e^{\ell_k}$, its mean
the mean of means. What speaks of a member's inside (codes, posteriors, critics) has no mean over
members and is left out.

If $\ell_k$ is only a bound, $E\,\ell_k \le \log p_k$, then $\log\frac1K\sum_k e^{\ell_k}$ need not
be one, since noise that raises an $\ell_k$ counts for more than noise that lowers it. For any
weights q that do not depend on that noise, however,

$\log \sum_k \tfrac1K p_k \ge \sum_k q_k (\log p_k - \log q_k) - \log K$,

with equality at $q_k \propto p_k$; so q is made of scores with noise of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from .abilities import (
    CanComplete,
    CanDiagnose,
    CanSample,
    CanStream,
    Finding,
    Given,
    HasConditionals,
    HasLikelihood,
    HasMarginals,
    HasMean,
    HasMode,
    Likelihood,
    LikelihoodKind,
)
from .batch import Batch, as_batch, conform
from .config import Config
from .error import DataError
from .marginals import Marginals, Mixed
from .mixture import Mixture
from .model import Model
from .noise import fold, fresh, seed_of

Share = tuple[Tensor, Any, Generator]
"""The rows a member was drawn for, the member, and noise of its own."""


class Carried(Mixture):
    """An ability that carries over to mixtures of some models."""

    needs: ClassVar[Sequence[type]] = ()

    @classmethod
    def carries(cls, kin: type[Model]) -> bool:
        return all(issubclass(kin, need) for need in cls.needs)


class Drawn(Carried, CanSample):
    """Draws a member for each row, and lets it draw the row."""

    needs: ClassVar[Sequence[type]] = (CanSample,)

    @torch.no_grad()
    def sample(self, n: int, given: Given | None = None, how: Config | None = None,
               generator: Generator | None = None) -> Tensor:
        given = conform(given or {}, self.space, n)
        return joined((rows, member.sample(len(rows), taken(given, rows), how, own))
                      for rows, member, own in self.even(n, generator))

    def even(self, n: int, generator: Generator | None) -> list[Share]:
        """Every member as likely as any other."""
        place = generator.device if generator else None
        which = torch.randint(len(self.each), (n,), generator=generator, device=place)
        return list(self.shares(which, generator))

    def shares(self, which: Tensor, generator: Generator | None) -> Iterator[Share]:
        """The members that any row of `which` (n,) names."""
        seeds = torch.randint(2**62, (len(self.each),), generator=generator, device=which.device)
        for k, (member, seed) in enumerate(zip(self.each, seeds.tolist(), strict=True)):
            rows = (which == k).nonzero()[:, 0]
            if len(rows):
                yield rows, member, fresh(seed, which.device)


class Streamed(Drawn, CanStream):
    """Members draw side by side."""

    needs: ClassVar[Sequence[type]] = (CanSample, CanStream)

    @torch.no_grad()
    def stream(self, n: int, given: Given | None = None, how: Config | None = None,
               generator: Generator | None = None) -> Iterator[Tensor]:
        given, shares = conform(given or {}, self.space, n), self.even(n, generator)
        streams = [member.stream(len(rows), taken(given, rows), how, own)
                   for rows, member, own in shares]
        last: tuple[Tensor, ...] = ()
        for now in zip_longest(*streams):
            last = tuple(last[k] if x is None else x for k, x in enumerate(now))
            yield joined((share[0], x) for share, x in zip(shares, last, strict=True))


class Filled(Drawn, CanComplete):
    """Draws a member for each row in proportion to what it makes of the values seen, p_k(x_seen),
    and lets it complete the row: as exact as the members' own scores and completions are."""

    needs: ClassVar[Sequence[type]] = (CanSample, CanComplete)

    @classmethod
    def carries(cls, kin: type[Model]) -> bool:
        knows = issubclass(kin, HasLikelihood) and kin.missing
        return super().carries(kin) and (knows or issubclass(kin, HasConditionals))

    @torch.no_grad()
    def complete(self, batch: Batch, how: Config | None = None,
                 generator: Generator | None = None) -> Tensor:
        place = generator.device if generator else None
        log_p = torch.stack([seen_score(member, batch) for member in self.each])  # (K, B)
        uniform = torch.rand(len(batch), generator=generator, device=place, dtype=torch.float64)
        ends = log_p.double().softmax(0).cumsum(0)
        which = (uniform.to(ends.device) > ends).sum(0).clamp(max=len(self.each) - 1)
        return joined((rows, member.complete(batch[rows], how, own))
                      for rows, member, own in self.shares(which, generator))


class Scored(Carried, HasLikelihood):
    """log (1/K) sum_k p_k(x): exact where every member's is, a bound where it is one."""

    needs: ClassVar[Sequence[type]] = (HasLikelihood,)

    def likelihood(self, batch: Batch | Tensor, how: Config | None = None,
                   generator: Generator | None = None) -> Likelihood:
        even = torch.full((len(self.each), 1), -math.log(len(self.each)), dtype=torch.float64)
        return self.weighed(as_batch(batch), even, how, seed_of(generator))

    def out_of_bag(self, batch: Batch) -> Likelihood:
        """log p of training rows, each by the members that have not seen it; NaN where all
        have."""
        unseen = self.left_out(batch.rows).double()  # (K, B)
        return self.weighed(batch, (unseen / unseen.sum(0)).log(), None, 0)

    def weighed(self, batch: Batch, prior: Tensor, how: Config | None, seed: int) -> Likelihood:
        """log sum_k exp(prior_k) p_k(x) for prior (K, 1) or (K, B)."""
        found = self.scores(batch, how, seed)
        kind = kind_of(found)
        other = self.scores(batch, how, fold(seed, "weights")) if kind == "bound" else found
        value, free = (torch.stack([each.value for each in scores]) + prior.to(scores[0].value)
                       for scores in (found, other))  # (K, B)
        total = under(value, free) if kind == "bound" else value.logsumexp(0)
        errors = [each.stderr for each in found if each.stderr is not None]
        if len(errors) < len(found):
            return Likelihood(total, kind)
        return Likelihood(total, kind, (free.softmax(0) * torch.stack(errors)).norm(dim=0))

    def scores(self, batch: Batch, how: Config | None, seed: int) -> list[Likelihood]:
        """Every member's, each with noise of its own."""
        return [member.likelihood(batch, how, fresh(fold(seed, "member", k)))
                for k, member in enumerate(self.each)]


class Ordered(Carried, HasConditionals):
    """As many products of conditionals as the members have together."""

    needs: ClassVar[Sequence[type]] = (HasConditionals,)

    @property
    def orders(self) -> Sequence[Tensor]:
        return [order for member in self.each for order in member.orders]

    def conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        whose, own = divmod(member, len(self.each[0].orders))
        return self.each[whose].conditionals(batch, own)

    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        whose, own = divmod(member, len(self.each[0].orders))
        return self.each[whose].parameters_of_conditionals(batch, own)


class Margined(Carried, HasMarginals):
    """The mean of the members' laws of each entry."""

    needs: ClassVar[Sequence[type]] = (HasMarginals,)

    def marginals(self, given: Given, how: Config | None = None) -> Marginals:
        return Mixed([member.marginals(given, how) for member in self.each])


class Averaged(Carried, HasMean):
    """The mean of means; of a label, the mean of probabilities."""

    needs: ClassVar[Sequence[type]] = (HasMean,)

    @torch.no_grad()
    def mean(self, given: Given, how: Config | None = None) -> Tensor:
        """Among columns, a name stands as its most probable code."""
        mean = torch.stack([member.mean(given, how) for member in self.each]).mean(0)
        for place, column in enumerate(self.space.columns):
            if column.kind == "label":
                assert isinstance(self, HasMarginals), "names among columns have probabilities"
                mean[:, place] = self.marginals(given, how).probabilities[place].argmax(1)
        return mean


class Peaked(Scored, HasMode):
    """The most probable value of a single label, flag or level; otherwise the most probable of
    the members' modes, which need not be the mixture's own."""

    needs: ClassVar[Sequence[type]] = (HasLikelihood, HasMode)

    @torch.no_grad()
    def mode(self, given: Given, how: Config | None = None) -> Tensor:
        options = torch.stack([member.mode(given, how) for member in self.each])  # (K, B, *event)
        n, space = options.shape[1], self.space
        if not space.shape and space.kind in ("label", "binary", "levels"):
            size = 2 if space.kind == "binary" else space.size
            options = torch.arange(size).to(options)[:, None].expand(size, n)
        ready = conform(given, space, n)
        heights = torch.stack([self.likelihood(Batch(x, ready), how).value for x in options])
        return options[heights.argmax(0), torch.arange(n, device=options.device)]


class Examined(Carried, CanDiagnose):
    """What ails any member, told once, with how many it ails."""

    needs: ClassVar[Sequence[type]] = (CanDiagnose,)

    def diagnose(self, batch: Batch) -> list[Finding]:
        found = [finding for member in self.each for finding in member.diagnose(batch)]
        first = {finding.name: finding for finding in reversed(found)}
        counts = {name: sum(finding.name == name for finding in found) for name in first}
        return [replace(finding, sentence=f"In {counts[name]} of {len(self.each)} members: "
                        f"{finding.sentence}") for name, finding in first.items()]


CARRIED: tuple[type[Carried], ...] = (Filled, Streamed, Drawn, Peaked, Scored, Ordered, Averaged,
                                      Margined, Examined)
"""Those that stand on others come first, as a class's bases must."""


def taken(given: Given, rows: Tensor) -> dict[str, Batch]:
    return {name: part[rows] for name, part in given.items()}


def joined(shares: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
    """The members' rows, each where it belongs."""
    places, values = zip(*shares, strict=True)
    return torch.cat(values)[torch.cat(places).argsort()]


def kind_of(found: Sequence[Likelihood]) -> LikelihoodKind:
    """The weakest of the members' kinds."""
    kinds = {each.kind for each in found}
    return "estimate" if "estimate" in kinds else "bound" if "bound" in kinds else "exact"


def under(value: Tensor, free: Tensor) -> Tensor:
    """sum_k q_k (value_k - log q_k), q = softmax(free): below log sum_k exp(E value_k) in
    expectation where `free` is independent of the noise in `value`; all (K, B)."""
    log_q = free.clamp(min=torch.finfo(free.dtype).min).log_softmax(0)
    q = log_q.exp()
    return torch.where(q == 0, 0.0, q * (value - log_q)).sum(0)


def seen_score(member: Any, batch: Batch) -> Tensor:
    """log p_k of what was seen of each row, (B,): of a product of conditionals, those of what was
    seen, which must come first in its orders."""
    if not isinstance(member, HasConditionals):
        return member.likelihood(batch).value
    seen, whole = batch.seen.reshape(len(batch), -1), replace(batch, observed=None)
    each = []
    for number, order in enumerate(member.orders):
        entries = order.argsort()
        if bool((seen[:, entries][:, 1:] & ~seen[:, entries][:, :-1]).any()):
            raise DataError("an ensemble of such models completes rows whose seen entries come "
                            "first in their order; hide what follows, or fit a single model")
        each.append(torch.where(seen, member.conditionals(whole, number), 0.0).sum(1))
    return torch.stack(each).logsumexp(0)
