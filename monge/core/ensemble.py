r"""Ensembles: several models of one kind as one model, $p(x | c) = \frac1K \sum_k p_k(x | c)$.

Members differ by their initial weights and by the batches they see (Lakshminarayanan, Pritzel &
Blundell 2017) and, with bagging, by a bootstrap of the training rows each (Breiman 1996): of n
rows, n are sampled with replacement, so that a member leaves out about 37 % of them, which give an
out-of-bag estimate of its performance.

The file has three parts: the model and its bootstraps (`Ensemble`), the loss of members of equal
shape as one batched pass (`StackedModels`), and one mix-in per ability (`EnsembleSample`, ...).
`ensemble_class` composes the class of an ensemble from the abilities of its members. Abilities
that concern the inside of a member (codes, posteriors, critics) have no mean over members and are
left out.
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
from .config import MAX_LAYERS, Range
from .config import Config as BaseConfig
from .errors import UsageError
from .marginals import Marginals, MixedMarginals
from .model import Defaults, Losses, Model, Update
from .rng import derive_seed, keyed_uniform, make_generator, seed_of
from .space import Space
from .train_config import TrainConfig


class Ensemble(Model):
    """Ensemble: p(x | given) = (1/K) sum_k p_k(x | given) over independently trained members"""

    member_class: ClassVar[type[Model]]
    """The class of the members."""

    class Config(BaseConfig):
        tag = "model/ensemble"
        member: BaseConfig
        """The configuration of every member."""
        members: Annotated[int, Range(1, MAX_LAYERS)] = 5
        """Number of members."""
        bag: bool = False
        """Whether each member is trained on its own bootstrap of the training rows (bagging)."""

        def build(self, *args: Any) -> Any:
            return ensemble_class(self.member_class)(self, *args)

        @property
        def member_class(self) -> type[Model]:
            return cast(type[Model], self.member.owner)

        def train_config(self, train_config: TrainConfig) -> TrainConfig:
            """A member's training settings for all members: those of an update or a parameter hold
            for that update and that parameter of every member."""
            each = range(self.members)
            forms = (
                ["{}"]
                if self.member_class.supports_vmap
                else [f"member{k + 1}/{{}}" for k in each]
            )
            updates = {
                form.format(name): settings
                for name, settings in train_config.updates.items()
                for form in forms
            }
            freeze = tuple(f"members.{k}.{prefix}" for prefix in train_config.freeze for k in each)
            multipliers = {
                f"members.{k}.{prefix}": factor
                for prefix, factor in train_config.lr_multipliers.items()
                for k in each
            }
            return replace(
                train_config, updates=updates, freeze=freeze, lr_multipliers=multipliers
            )

    config: Config
    seed: Tensor  # of the bootstraps
    bootstrap_rows: Tensor  # number of training rows that the bootstraps sample from

    def __init__(
        self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        super().__init__(config, space)
        args = (space, parts) if parts else (space,)
        self.members = nn.ModuleList(config.member.build(*args) for _ in range(config.members))
        if config.bag:
            self.register_buffer("seed", torch.randint(2**62, ()))
            self.register_buffer("bootstrap_rows", torch.zeros((), dtype=torch.long))

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
        """The updates of the members, or one update of all members if they support vmap."""
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
                update,
                name=f"member{k + 1}/{update.name}",
                rows=partial(self.bag, k) if self.config.bag else None,
            )
            for k, member in enumerate(self.each)
            for update in member.updates()
        ]

    def bag(self, member: int, index: Tensor, n: int) -> Tensor:
        """The rows at positions `index` of the bootstrap of n rows of one member."""
        self.bootstrap_rows.fill_(n)
        return bootstrap(derive_seed(int(self.seed), "bag", member), index, n)

    def bags(self, index: Tensor, n: int) -> Tensor:
        """The same for all members; the k-th piece of `index` is that of member k."""
        pieces = enumerate(index.chunk(len(self.each)))
        return torch.cat([self.bag(member, piece, n) for member, piece in pieces])

    def left_out(self, rows: Tensor) -> Tensor:
        """Which members have not seen each of these training rows, (K, B)."""
        every = torch.arange(int(self.bootstrap_rows), device=rows.device)
        bags = torch.stack([self.bag(k, every, len(every)) for k in range(len(self.each))])
        seen = torch.zeros_like(bags, dtype=torch.bool).scatter_(1, bags, True)
        return ~seen[:, rows]

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        return cls.member_class.unsupported_reason(space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        member = cls.member_class.defaults(space)
        config = cls.Config(member=member.config)
        return Defaults(config, config.train_config(member.train))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(member=cls.member_class.smallest_config(space), members=2)


def bootstrap(seed: int, index: Tensor, n: int) -> Tensor:
    """Positions `index` of a bootstrap sample of n rows, a function of seed and position only."""
    return (n * keyed_uniform(index, (), seed)).long().clamp(max=n - 1)


def as_ensemble(
    config: BaseConfig, train_config: TrainConfig, members: int, bag: bool
) -> tuple[BaseConfig, TrainConfig]:
    """The model and training settings of an ensemble; unchanged for 0 members."""
    if bag and not members:
        raise UsageError(
            "--bag trains each member of an ensemble on its own bootstrap; add --ensemble 5"
        )
    if not members:
        return config, train_config
    ensemble = Ensemble.Config(member=config, members=members, bag=bag)
    return ensemble, ensemble.train_config(train_config)


class StackedModels:
    r"""The losses of K models of equal shape as one batched pass.

    The weights are stacked, $\theta$ = (K, ...), and vmap computes $\ell(\theta_k, b_k)$ for every
    k, so that the overhead of a small network is paid once. b_k is the k-th of K
    batches of one size that follow each other. Losses are summed over models, so that the gradient
    of each is what it would be alone; noise differs between models.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self.models, self.first = models, LossModule(models[0])
        self.weights = tensors_by_name(models, lambda model: dict(model.named_parameters()))
        shared = len(list(models[0].named_parameters(remove_duplicate=False)))
        self.tied = shared > len(self.weights)

    @cached_property
    def buffers(self) -> dict[str, Tensor]:
        """The buffers in which models differ, stacked; a vmapped loss does not change them."""
        found = tensors_by_name(self.models, lambda model: dict(model.named_buffers()))
        return {
            name: torch.stack(each)
            for name, each in found.items()
            if not all(torch.equal(each[0], other) for other in each[1:])
        }

    def __call__(self, batch: Batch) -> Losses:
        names, count = [*self.weights, *self.buffers], len(self.models)
        pieces: list[Tensor] = []

        def collect(value: Tensor) -> Tensor:
            pieces.append(value.unflatten(0, (count, -1)))  # (K, B, ...)
            return value

        def member_loss(*own: Tensor) -> Losses:
            rest = iter(own)
            state = {name: next(rest) for name in names}
            piece = batch.map(lambda _: next(rest))
            return functional_call(self.first, state, (piece,), tie_weights=self.tied)

        batch.map(collect)
        state = [*map(torch.stack, self.weights.values()), *self.buffers.values()]
        losses = vmap(member_loss, randomness="different")(*state, *pieces)
        return {name: term.sum(0) for name, term in losses.items()}


class LossModule(nn.Module):
    """A model whose forward pass is its loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Losses:
        return self.model.loss(batch)


def tensors_by_name(
    models: Sequence[Model], tensors: Callable[[Model], dict[str, Tensor]]
) -> dict[str, list[Tensor]]:
    """The tensors of all models by their name in `LossModule`."""
    each = [tensors(model) for model in models]
    return {f"model.{name}": [own[name] for own in each] for name in each[0]}


Share = tuple[Tensor, Any, Generator]
"""The rows assigned to a member, the member, and its own generator."""


class EnsembleAbility(Ensemble):
    """Base of the mix-ins: an ability of ensembles whose members have the abilities in `needs`."""

    needs: ClassVar[Sequence[type]] = ()

    @classmethod
    def applies_to(cls, member_class: type[Model]) -> bool:
        return all(issubclass(member_class, need) for need in cls.needs)


class EnsembleSample(EnsembleAbility, CanSample):
    """Samples a member for each row, which then samples the row."""

    needs: ClassVar[Sequence[type]] = (CanSample,)

    @torch.no_grad()
    def sampling_defaults(self) -> BaseConfig:
        return self.each[0].sampling_defaults()

    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        given = broadcast_conditions(given or {}, self.space, n)
        return scatter_rows(
            (rows, member.sample(len(rows), select_rows(given, rows), options, own))
            for rows, member, own in self.assign_uniformly(n, generator)
        )

    def assign_uniformly(self, n: int, generator: Generator | None) -> list[Share]:
        """Assign n rows to members with equal probability."""
        place = generator.device if generator else None
        which = torch.randint(len(self.each), (n,), generator=generator, device=place)
        return list(self.shares(which, generator))

    def shares(self, which: Tensor, generator: Generator | None) -> Iterator[Share]:
        """The members that occur in `which` (n,), with their rows."""
        seeds = torch.randint(2**62, (len(self.each),), generator=generator, device=which.device)
        for k, (member, seed) in enumerate(zip(self.each, seeds.tolist(), strict=True)):
            rows = (which == k).nonzero()[:, 0]
            if len(rows):
                yield rows, member, make_generator(seed, which.device)


class EnsembleStream(EnsembleSample, CanStream):
    """Streams the samples of all members in parallel."""

    needs: ClassVar[Sequence[type]] = (CanSample, CanStream)

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        given, shares = (
            broadcast_conditions(given or {}, self.space, n),
            self.assign_uniformly(n, generator),
        )
        streams = [
            member.stream(len(rows), select_rows(given, rows), options, own)
            for rows, member, own in shares
        ]
        last: tuple[Tensor, ...] = ()
        for now in zip_longest(*streams):
            last = tuple(last[k] if x is None else x for k, x in enumerate(now))
            yield scatter_rows((share[0], x) for share, x in zip(shares, last, strict=True))


class EnsembleComplete(EnsembleSample, CanComplete):
    """Samples a member for each row in proportion to the likelihood of the observed values,
    p_k(x_observed), which then completes the row: as exact as the members' own likelihoods and
    completions."""

    needs: ClassVar[Sequence[type]] = (CanSample, CanComplete)

    @classmethod
    def applies_to(cls, member_class: type[Model]) -> bool:
        marginalises = issubclass(member_class, HasLikelihood) and member_class.supports_missing
        return super().applies_to(member_class) and (
            marginalises or issubclass(member_class, HasConditionals)
        )

    def keeps_observed(self, options: BaseConfig | None = None) -> bool:
        return all(member.keeps_observed(options) for member in self.each)

    @property
    def completion(self) -> str:
        method = next(iter(dict.fromkeys(member.completion for member in self.each)))
        return f"by a member that is chosen by its likelihood of the known values: {method}"

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        place = generator.device if generator else None
        log_p = torch.stack(
            [observed_log_prob(member, batch, options, generator) for member in self.each]
        )  # (K, B)
        uniform = torch.rand(len(batch), generator=generator, device=place, dtype=torch.float64)
        ends = log_p.double().softmax(0).cumsum(0)
        which = (uniform.to(ends.device) > ends).sum(0).clamp(max=len(self.each) - 1)
        return scatter_rows(
            (rows, member.complete(batch[rows], options, own))
            for rows, member, own in self.shares(which, generator)
        )


class EnsembleLikelihood(EnsembleAbility, HasLikelihood):
    r"""log (1/K) sum_k p_k(x): exact if every member is exact, a bound if a member gives bounds.

    If $\ell_k$ is a bound, $E\,\ell_k \le \log p_k$, then $\log\frac1K\sum_k e^{\ell_k}$ need not
    be one, since noise that raises an $\ell_k$ counts for more than noise that lowers it. But for
    any weights q that are independent of that noise,

    $\log \sum_k \tfrac1K p_k \ge \sum_k q_k (\log p_k - \log q_k) - \log K$,

    with equality at $q_k \propto p_k$; so q is computed from log-likelihoods with other noise.
    """

    needs: ClassVar[Sequence[type]] = (HasLikelihood,)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        uniform = torch.full((len(self.each), 1), -math.log(len(self.each)), dtype=torch.float64)
        return self.mixture_likelihood(as_batch(batch), uniform, options, seed_of(generator))

    def out_of_bag(self, batch: Batch) -> Likelihood:
        """log p of training rows, each by the members not trained on it; NaN if all were."""
        unseen = self.left_out(batch.rows).double()  # (K, B)
        return self.mixture_likelihood(batch, (unseen / unseen.sum(0)).log(), None, 0)

    def mixture_likelihood(
        self, batch: Batch, prior: Tensor, options: BaseConfig | None, seed: int
    ) -> Likelihood:
        """log sum_k exp(prior_k) p_k(x) for prior (K, 1) or (K, B)."""
        found = self.member_likelihoods(batch, options, seed)
        kind = weakest_kind(found)
        other = (
            self.member_likelihoods(batch, options, derive_seed(seed, "weights"))
            if kind == "bound"
            else found
        )
        value, free = (
            torch.stack([each.value for each in scores]) + prior.to(scores[0].value)
            for scores in (found, other)
        )  # (K, B)
        total = mixture_bound(value, free) if kind == "bound" else value.logsumexp(0)
        errors = [each.stderr for each in found if each.stderr is not None]
        if len(errors) < len(found):
            return Likelihood(total, kind)
        return Likelihood(total, kind, (free.softmax(0) * torch.stack(errors)).norm(dim=0))

    def member_likelihoods(
        self, batch: Batch, options: BaseConfig | None, seed: int
    ) -> list[Likelihood]:
        """The likelihoods of all members, each with its own noise."""
        return [
            member.likelihood(batch, options, make_generator(derive_seed(seed, "member", k)))
            for k, member in enumerate(self.each)
        ]


class EnsembleConditionals(EnsembleAbility, HasConditionals):
    """The conditionals of all members, one after the other."""

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
    """The mean of the members' marginal distributions."""

    needs: ClassVar[Sequence[type]] = (HasMarginals,)

    def marginals(self, given: Given, options: BaseConfig | None = None) -> Marginals:
        return MixedMarginals([member.marginals(given, options) for member in self.each])


class EnsembleMean(EnsembleAbility, HasMean):
    """The mean of means; of a label, the mean of probabilities."""

    needs: ClassVar[Sequence[type]] = (HasMean,)

    @torch.no_grad()
    def mean(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        """Of a categorical column, the most probable code."""
        mean = torch.stack([member.mean(given, options) for member in self.each]).mean(0)
        for place, column in enumerate(self.space.columns):
            if column.kind == "label":
                assert isinstance(self, HasMarginals), "categorical columns have probabilities"
                mean[:, place] = self.marginals(given, options).probabilities[place].argmax(1)
        return mean


class EnsembleMode(EnsembleLikelihood, HasMode):
    """The most probable value of a single label, binary value or level; otherwise the most
    probable of the members' modes, which need not be the mode of the ensemble."""

    needs: ClassVar[Sequence[type]] = (HasLikelihood, HasMode)

    @torch.no_grad()
    def mode(self, given: Given, options: BaseConfig | None = None) -> Tensor:
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

    @torch.no_grad()
    def votes(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        """How many members predict each value of a single label or binary value, (B, size)."""
        modes = torch.stack([member.mode(given, options) for member in self.each])  # (K, B)
        size = 2 if self.space.kind == "binary" else self.space.size
        return nn.functional.one_hot(modes.long(), size).sum(0)

    @torch.no_grad()
    def majority(
        self, given: Given, options: BaseConfig | None = None, votes: Tensor | None = None
    ) -> Tensor:
        """The value that most members predict for each row, a single label or binary value, (B,);
        of several such values, the one with the largest mean probability."""
        votes = self.votes(given, options) if votes is None else votes
        n, size = votes.shape
        ready = broadcast_conditions(given, self.space, n)
        values = torch.arange(size, device=votes.device)[:, None].expand(size, n)
        values = values if self.space.kind == "label" else values.double()
        heights = [self.likelihood(Batch(x, ready), options).value for x in values]
        best = (votes + torch.stack(heights, 1).softmax(1) / 2).argmax(1)
        return best if self.space.kind == "label" else best.double()


class EnsembleDiagnose(EnsembleAbility, CanDiagnose):
    """The findings of all members, each once, with the number of members that have it."""

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
"""Subclasses come before their bases, as the order of a class's bases requires."""


@cache
def ensemble_class(member_class: type[Model]) -> type[Ensemble]:
    """The class of ensembles of a model, with the abilities that carry over from it."""
    mixins = tuple(mixin for mixin in ENSEMBLE_ABILITIES if mixin.applies_to(member_class))
    inherited = (
        "events",
        "givens",
        "supports_missing",
        "is_predictor",
        "uses_unlabelled",
        "is_unpaired",
        "SamplingConfig",
        "LikelihoodConfig",
    )
    body = {
        name: vars(base)[name]
        for name in inherited
        for base in reversed(member_class.__mro__)
        if name in vars(base)
    }
    own = {"member_class": member_class, "__module__": __name__, "__doc__": Ensemble.__doc__}
    made = abc.ABCMeta(f"EnsembleOf{member_class.__name__}", mixins or (Ensemble,), body | own)
    return cast(type[Ensemble], made)


def select_rows(given: Given, rows: Tensor) -> dict[str, Batch]:
    return {name: part[rows] for name, part in given.items()}


def scatter_rows(shares: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
    """The rows of all members in their original order."""
    places, values = zip(*shares, strict=True)
    return torch.cat(values)[torch.cat(places).argsort()]


def weakest_kind(found: Sequence[Likelihood]) -> LikelihoodKind:
    """The weakest of the members' kinds: estimate, bound, exact."""
    kinds = {each.kind for each in found}
    return "estimate" if "estimate" in kinds else "bound" if "bound" in kinds else "exact"


def mixture_bound(value: Tensor, free: Tensor) -> Tensor:
    """sum_k q_k (value_k - log q_k), q = softmax(free): below log sum_k exp(E value_k) in
    expectation where `free` is independent of the noise in `value`; all (K, B)."""
    log_q = free.clamp(min=torch.finfo(free.dtype).min).log_softmax(0)
    q = log_q.exp()
    return torch.where(q == 0, 0.0, q * (value - log_q)).sum(0)


def observed_log_prob(
    member: Any, batch: Batch, options: BaseConfig | None, generator: Generator | None
) -> Tensor:
    """log p_k of the observed values of each row, (B,)."""
    if isinstance(member, HasConditionals):
        return member.observed_log_prob(batch, options, generator)
    return member.likelihood(batch).value
