r"""Models of equal shape as one batched network.

The weights of K models stand stacked, $\theta$ = (K, ...), and one pass computes
$\ell(\theta_k, b_k)$ for every k: each linear map becomes one batched product, and what a small
network costs beside its arithmetic is paid once instead of K times.

An ensemble of any model as one law.

$p(x | c) = \frac1K \sum_k p_k(x | c)$. Members differ by their first weights and by the batches
they see (Lakshminarayanan, Pritzel & Blundell 2017) and, where they are bagged, by a bootstrap of
the training rows each (Breiman 1996): of n rows, n are drawn with replacement, so that a member
leaves out about 37 % of them, which tell how it does on what it has not seen.

What a mixture can do follows from what its members can; `mixed` says how.

What a mixture can do: each ability of $p = \frac1K \sum_k p_k$ made of the members' own.

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

import abc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, vmap

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
from .batch import Batch, as_batch, broadcast_conditions
from .config import Config, Range
from .config import Config as BaseConfig
from .errors import DataError, UsageError
from .marginals import Marginals, MixedMarginals
from .model import Defaults, Losses, Model, Update
from .rng import derive_seed, keyed_uniform, make_generator, seed_of
from .space import Space
from .train_config import TrainConfig


class StackedModels:
    """Calling it gives the losses of model k on the k-th piece of a batch, summed over models, so
    that the gradient of each is what it would be alone. Pieces are of one size, what is left over
    is left out; noise differs from model to model."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models, self.first = models, LossModule(models[0])
        self.weights = columns(models, lambda model: dict(model.named_parameters()))
        shared = len(list(models[0].named_parameters(remove_duplicate=False)))
        self.tied = shared > len(self.weights)

    @cached_property
    def buffers(self) -> dict[str, Tensor]:
        """Those in which models differ, stacked; a stackable loss leaves them as they are."""
        found = columns(self.models, lambda model: dict(model.named_buffers()))
        return {
            name: torch.stack(each)
            for name, each in found.items()
            if not all(torch.equal(each[0], other) for other in each[1:])
        }

    def __call__(self, batch: Batch) -> Losses:
        names, many = [*self.weights, *self.buffers], len(self.models)
        size = len(batch) // many
        pieces: list[Tensor] = []

        def apart(value: Tensor) -> Tensor:
            pieces.append(value[: many * size].unflatten(0, (many, size)))  # (K, B, ...)
            return value

        def one(*own: Tensor) -> Losses:
            rest = iter(own)
            state = {name: next(rest) for name in names}
            piece = batch.map(lambda _: next(rest))
            return functional_call(self.first, state, (piece,), tie_weights=self.tied)

        batch.map(apart)
        state = [*map(torch.stack, self.weights.values()), *self.buffers.values()]
        losses = vmap(one, randomness="different")(*state, *pieces)
        return {name: term.sum(0) for name, term in losses.items()}


class LossModule(nn.Module):
    """A model whose forward pass is its loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Losses:
        return self.model.loss(batch)


def columns(
    models: Sequence[Model], tensors: Callable[[Model], dict[str, Tensor]]
) -> dict[str, list[Tensor]]:
    """The tensors of one name in all models, by the name they have in `Lossy`."""
    each = [tensors(model) for model in models]
    return {f"model.{name}": [own[name] for own in each] for name in each[0]}


class Ensemble(Model):
    """p(x | given) = (1/K) sum_k p_k(x | given), each member a model of its own."""

    member_class: ClassVar[type[Model]]
    """What the members are."""

    class Config(BaseConfig):
        tag = "model/ensemble"
        member: BaseConfig
        """The configuration of every member."""
        members: Annotated[int, Range(1)] = 5
        """How many there are."""
        bag: bool = False
        """Whether each is trained on a bootstrap of the training rows."""

        def build(self, *args: Any) -> Any:
            return ensemble_class(self.member_class)(self, *args)

        @property
        def member_class(self) -> type[Model]:
            return cast(type[Model], self.member.owner)

        def recipe(self, recipe: TrainConfig) -> TrainConfig:
            """A member's recipe for all: what it says of a turn or of a parameter holds for that
            turn and that parameter of every member."""
            each = range(self.members)
            alike = (
                ["{}"]
                if self.member_class.supports_vmap
                else [f"member{k + 1}/{{}}" for k in each]
            )
            turns = {
                form.format(name): mover
                for name, mover in recipe.updates.items()
                for form in alike
            }
            freeze = tuple(f"members.{k}.{head}" for head in recipe.freeze for k in each)
            rates = {
                f"members.{k}.{head}": rate
                for head, rate in recipe.lr_multipliers.items()
                for k in each
            }
            return replace(recipe, updates=turns, freeze=freeze, lr_multipliers=rates)

    config: Config
    seed: Tensor  # of the bags
    drawn: Tensor  # how many rows there were when they were drawn

    def __init__(
        self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        super().__init__(config, space)
        args = (space, parts) if parts else (space,)
        self.members = nn.ModuleList(config.member.build(*args) for _ in range(config.members))
        if config.bag:
            self.register_buffer("seed", torch.randint(2**62, ()))
            self.register_buffer("drawn", torch.zeros((), dtype=torch.long))

    @property
    def each(self) -> list[Any]:
        return list(self.members)

    def initialise_from_data(self, batch: Batch) -> None:
        for member in self.each:
            member.initialise_from_data(batch)

    def loss(self, batch: Batch) -> Losses:
        return {
            f"member{k + 1}/{name}": term
            for k, member in enumerate(self.each)
            for name, term in member.loss(batch).items()
        }

    def updates(self) -> Sequence[Update]:
        """Those of the members; one for all where members stack."""
        if self.member_class.supports_vmap:
            params = [p for p in self.parameters() if p.requires_grad]
            return [
                Update(
                    "model",
                    StackedModels(self.each),
                    params,
                    batches=len(self.each),
                    rows=self.bags if self.config.bag else None,
                )
            ]
        return [
            replace(
                turn,
                name=f"member{k + 1}/{turn.name}",
                rows=partial(self.bag, k) if self.config.bag else None,
            )
            for k, member in enumerate(self.each)
            for turn in member.updates()
        ]

    def bag(self, member: int, index: Tensor, n: int) -> Tensor:
        """The rows that stand for rows `index` of n in the bootstrap of one member."""
        self.drawn.fill_(n)
        return bootstrap(derive_seed(int(self.seed), "bag", member), index, n)

    def bags(self, index: Tensor, n: int) -> Tensor:
        """The same where consecutive pieces of `index` are the members'."""
        pieces = enumerate(index.chunk(len(self.each)))
        return torch.cat([self.bag(member, piece, n) for member, piece in pieces])

    def left_out(self, rows: Tensor) -> Tensor:
        """Which members have not seen each of these training rows, (K, B)."""
        every = torch.arange(int(self.drawn), device=rows.device)
        bags = torch.stack([self.bag(k, every, len(every)) for k in range(len(self.each))])
        seen = torch.zeros_like(bags, dtype=torch.bool).scatter_(1, bags, True)
        return ~seen[:, rows]

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        return cls.member_class.unsupported_reason(space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        suit = cls.member_class.defaults(space)
        config = cls.Config(member=suit.config)
        return Defaults(config, config.recipe(suit.recipe))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(member=cls.member_class.smallest_config(space), members=2)


def bootstrap(seed: int, index: Tensor, n: int) -> Tensor:
    """Entries `index` of n draws with replacement from n rows, each a function of its place."""
    return (n * keyed_uniform(index, (), seed)).long().clamp(max=n - 1)


def as_ensemble(
    config: BaseConfig, recipe: TrainConfig, members: int, bag: bool
) -> tuple[BaseConfig, TrainConfig]:
    """A model's configuration and recipe as those of an ensemble; 0 members ask for none."""
    if bag and not members:
        raise UsageError(
            "bagging draws rows anew for each member of an ensemble; say how many "
            "with --ensemble 5"
        )
    if not members:
        return config, recipe
    mixture = Ensemble.Config(member=config, members=members, bag=bag)
    return mixture, mixture.recipe(recipe)


@cache
def ensemble_class(member_class: type[Model]) -> type[Ensemble]:
    """The class of mixtures of a model, with the abilities that carry over from it."""
    # which stands on Mixture

    bases = tuple(mixed for mixed in ENSEMBLE_ABILITIES if mixed.carries(member_class)) or (
        Ensemble,
    )
    same = (
        "events",
        "givens",
        "supports_missing",
        "is_predictor",
        "is_unpaired",
        "SamplingConfig",
        "LikelihoodConfig",
    )
    body = {
        name: vars(base)[name]
        for name in same
        for base in reversed(member_class.__mro__)
        if name in vars(base)
    }
    about = {"member_class": member_class, "__module__": __name__, "__doc__": Ensemble.__doc__}
    made = abc.ABCMeta(f"EnsembleOf{member_class.__name__}", bases, body | about)
    return cast(type[Ensemble], made)


Share = tuple[Tensor, Any, Generator]
"""The rows a member was drawn for, the member, and noise of its own."""


class EnsembleAbility(Ensemble):
    """An ability that carries over to mixtures of some models."""

    needs: ClassVar[Sequence[type]] = ()

    @classmethod
    def carries(cls, member_class: type[Model]) -> bool:
        return all(issubclass(member_class, need) for need in cls.needs)


class EnsembleSample(EnsembleAbility, CanSample):
    """Draws a member for each row, and lets it draw the row."""

    needs: ClassVar[Sequence[type]] = (CanSample,)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        given = broadcast_conditions(given or {}, self.space, n)
        return joined(
            (rows, member.sample(len(rows), taken(given, rows), options, own))
            for rows, member, own in self.even(n, generator)
        )

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
                yield rows, member, make_generator(seed, which.device)


class EnsembleStream(EnsembleSample, CanStream):
    """Members draw side by side."""

    needs: ClassVar[Sequence[type]] = (CanSample, CanStream)

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        given, shares = broadcast_conditions(given or {}, self.space, n), self.even(n, generator)
        streams = [
            member.stream(len(rows), taken(given, rows), options, own)
            for rows, member, own in shares
        ]
        last: tuple[Tensor, ...] = ()
        for now in zip_longest(*streams):
            last = tuple(last[k] if x is None else x for k, x in enumerate(now))
            yield joined((share[0], x) for share, x in zip(shares, last, strict=True))


class EnsembleComplete(EnsembleSample, CanComplete):
    """Draws a member for each row in proportion to what it makes of the values seen, p_k(x_seen),
    and lets it complete the row: as exact as the members' own scores and completions are."""

    needs: ClassVar[Sequence[type]] = (CanSample, CanComplete)

    @classmethod
    def carries(cls, member_class: type[Model]) -> bool:
        knows = issubclass(member_class, HasLikelihood) and member_class.supports_missing
        return super().carries(member_class) and (
            knows or issubclass(member_class, HasConditionals)
        )

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: Config | None = None, generator: Generator | None = None
    ) -> Tensor:
        place = generator.device if generator else None
        log_p = torch.stack([seen_score(member, batch) for member in self.each])  # (K, B)
        uniform = torch.rand(len(batch), generator=generator, device=place, dtype=torch.float64)
        ends = log_p.double().softmax(0).cumsum(0)
        which = (uniform.to(ends.device) > ends).sum(0).clamp(max=len(self.each) - 1)
        return joined(
            (rows, member.complete(batch[rows], options, own))
            for rows, member, own in self.shares(which, generator)
        )


class EnsembleLikelihood(EnsembleAbility, HasLikelihood):
    """log (1/K) sum_k p_k(x): exact where every member's is, a bound where it is one."""

    needs: ClassVar[Sequence[type]] = (HasLikelihood,)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        even = torch.full((len(self.each), 1), -math.log(len(self.each)), dtype=torch.float64)
        return self.weighed(as_batch(batch), even, options, seed_of(generator))

    def out_of_bag(self, batch: Batch) -> Likelihood:
        """log p of training rows, each by the members that have not seen it; NaN where all
        have."""
        unseen = self.left_out(batch.rows).double()  # (K, B)
        return self.weighed(batch, (unseen / unseen.sum(0)).log(), None, 0)

    def weighed(
        self, batch: Batch, prior: Tensor, options: Config | None, seed: int
    ) -> Likelihood:
        """log sum_k exp(prior_k) p_k(x) for prior (K, 1) or (K, B)."""
        found = self.scores(batch, options, seed)
        kind = kind_of(found)
        other = (
            self.scores(batch, options, derive_seed(seed, "weights")) if kind == "bound" else found
        )
        value, free = (
            torch.stack([each.value for each in scores]) + prior.to(scores[0].value)
            for scores in (found, other)
        )  # (K, B)
        total = under(value, free) if kind == "bound" else value.logsumexp(0)
        errors = [each.stderr for each in found if each.stderr is not None]
        if len(errors) < len(found):
            return Likelihood(total, kind)
        return Likelihood(total, kind, (free.softmax(0) * torch.stack(errors)).norm(dim=0))

    def scores(self, batch: Batch, options: Config | None, seed: int) -> list[Likelihood]:
        """Every member's, each with noise of its own."""
        return [
            member.likelihood(batch, options, make_generator(derive_seed(seed, "member", k)))
            for k, member in enumerate(self.each)
        ]


class EnsembleConditionals(EnsembleAbility, HasConditionals):
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


class EnsembleMarginals(EnsembleAbility, HasMarginals):
    """The mean of the members' laws of each entry."""

    needs: ClassVar[Sequence[type]] = (HasMarginals,)

    def marginals(self, given: Given, options: Config | None = None) -> Marginals:
        return MixedMarginals([member.marginals(given, options) for member in self.each])


class EnsembleMean(EnsembleAbility, HasMean):
    """The mean of means; of a label, the mean of probabilities."""

    needs: ClassVar[Sequence[type]] = (HasMean,)

    @torch.no_grad()
    def mean(self, given: Given, options: Config | None = None) -> Tensor:
        """Among columns, a name stands as its most probable code."""
        mean = torch.stack([member.mean(given, options) for member in self.each]).mean(0)
        for place, column in enumerate(self.space.columns):
            if column.kind == "label":
                assert isinstance(self, HasMarginals), "names among columns have probabilities"
                mean[:, place] = self.marginals(given, options).probabilities[place].argmax(1)
        return mean


class EnsembleMode(EnsembleLikelihood, HasMode):
    """The most probable value of a single label, flag or level; otherwise the most probable of
    the members' modes, which need not be the mixture's own."""

    needs: ClassVar[Sequence[type]] = (HasLikelihood, HasMode)

    @torch.no_grad()
    def mode(self, given: Given, options: Config | None = None) -> Tensor:
        modes = torch.stack(
            [member.mode(given, options) for member in self.each]
        )  # (K, B, *event)
        n, space = modes.shape[1], self.space
        if not space.shape and space.kind in ("label", "binary", "levels"):
            size = 2 if space.kind == "binary" else space.size
            modes = torch.arange(size).to(modes)[:, None].expand(size, n)
        ready = broadcast_conditions(given, space, n)
        heights = torch.stack([self.likelihood(Batch(x, ready), options).value for x in modes])
        return modes[heights.argmax(0), torch.arange(n, device=modes.device)]


class EnsembleDiagnose(EnsembleAbility, CanDiagnose):
    """What ails any member, told once, with how many it ails."""

    needs: ClassVar[Sequence[type]] = (CanDiagnose,)

    def diagnose(self, batch: Batch) -> list[Finding]:
        found = [finding for member in self.each for finding in member.diagnose(batch)]
        first = {finding.name: finding for finding in reversed(found)}
        counts = {name: sum(finding.name == name for finding in found) for name in first}
        return [
            replace(
                finding,
                sentence=f"In {counts[name]} of {len(self.each)} members: {finding.sentence}",
            )
            for name, finding in first.items()
        ]


ENSEMBLE_ABILITIES: tuple[type[EnsembleAbility], ...] = (
    EnsembleComplete,
    EnsembleStream,
    EnsembleSample,
    EnsembleMode,
    EnsembleLikelihood,
    EnsembleConditionals,
    EnsembleMean,
    EnsembleMarginals,
    EnsembleDiagnose,
)
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
    seen, whole = batch.observed_mask.reshape(len(batch), -1), replace(batch, observed=None)
    each = []
    for number, order in enumerate(member.orders):
        entries = order.argsort()
        if bool((seen[:, entries][:, 1:] & ~seen[:, entries][:, :-1]).any()):
            raise DataError(
                "an ensemble of such models completes rows whose seen entries come "
                "first in their order; hide what follows, or fit a single model"
            )
        each.append(torch.where(seen, member.conditionals(whole, number), 0.0).sum(1))
    return torch.stack(each).logsumexp(0)
