r"""An ensemble of any model as one law.

$p(x | c) = \frac1K \sum_k p_k(x | c)$. Members differ by their first weights and by the batches
they see (Lakshminarayanan, Pritzel & Blundell 2017) and, where they are bagged, by a bootstrap of
the training rows each (Breiman 1996): of n rows, n are drawn with replacement, so that a member
leaves out about 37 % of them, which tell how it does on what it has not seen.

What a mixture can do follows from what its members can; `mixed` says how.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from .batch import Batch
from .config import Config as BaseConfig
from .config import Range
from .error import WordError
from .model import Losses, Model, Suit, Turn
from .noise import fold, row_uniform
from .recipe import Recipe
from .space import Space
from .stack import Stack


class Mixture(Model):
    """p(x | given) = (1/K) sum_k p_k(x | given), each member a model of its own."""

    kin: ClassVar[type[Model]]
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
            return law_of(self.kin)(self, *args)

        @property
        def kin(self) -> type[Model]:
            return cast(type[Model], self.member.owner)

        def recipe(self, recipe: Recipe) -> Recipe:
            """A member's recipe for all: what it says of a turn or of a parameter holds for that
            turn and that parameter of every member."""
            each = range(self.members)
            alike = ["{}"] if self.kin.stackable else [f"member{k + 1}/{{}}" for k in each]
            turns = {form.format(name): mover for name, mover in recipe.turns.items()
                     for form in alike}
            freeze = tuple(f"members.{k}.{head}" for head in recipe.freeze for k in each)
            rates = {f"members.{k}.{head}": rate for head, rate in recipe.rates.items()
                     for k in each}
            return replace(recipe, turns=turns, freeze=freeze, rates=rates)

    config: Config
    seed: Tensor  # of the bags
    drawn: Tensor  # how many rows there were when they were drawn

    def __init__(self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
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

    def begin(self, batch: Batch) -> None:
        for member in self.each:
            member.begin(batch)

    def loss(self, batch: Batch) -> Losses:
        return {f"member{k + 1}/{name}": term for k, member in enumerate(self.each)
                for name, term in member.loss(batch).items()}

    def turns(self) -> Sequence[Turn]:
        """Those of the members; one for all where members stack."""
        if self.kin.stackable:
            params = [p for p in self.parameters() if p.requires_grad]
            return [Turn("model", Stack(self.each), params, batches=len(self.each),
                         rows=self.bags if self.config.bag else None)]
        return [replace(turn, name=f"member{k + 1}/{turn.name}",
                        rows=partial(self.bag, k) if self.config.bag else None)
                for k, member in enumerate(self.each) for turn in member.turns()]

    def bag(self, member: int, index: Tensor, n: int) -> Tensor:
        """The rows that stand for rows `index` of n in the bootstrap of one member."""
        self.drawn.fill_(n)
        return bootstrap(fold(int(self.seed), "bag", member), index, n)

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
    def refuses(cls, space: Space) -> str | None:
        return cls.kin.refuses(space)

    @classmethod
    def suit(cls, space: Space) -> Suit:
        suit = cls.kin.suit(space)
        config = cls.Config(member=suit.config)
        return Suit(config, config.recipe(suit.recipe))

    @classmethod
    def tiny(cls, space: Space) -> Config:
        return cls.Config(member=cls.kin.tiny(space), members=2)


def bootstrap(seed: int, index: Tensor, n: int) -> Tensor:
    """Entries `index` of n draws with replacement from n rows, each a function of its place."""
    return (n * row_uniform(index, (), seed)).long().clamp(max=n - 1)


def gather(config: BaseConfig, recipe: Recipe, members: int, bag: bool
           ) -> tuple[BaseConfig, Recipe]:
    """A model's configuration and recipe as those of an ensemble; 0 members ask for none."""
    if bag and not members:
        raise WordError("bagging draws rows anew for each member of an ensemble; say how many "
                        "with --ensemble 5")
    if not members:
        return config, recipe
    mixture = Mixture.Config(member=config, members=members, bag=bag)
    return mixture, mixture.recipe(recipe)


@cache
def law_of(kin: type[Model]) -> type[Mixture]:
    """The class of mixtures of a model, with the abilities that carry over from it."""
    from .mixed import CARRIED  # which stands on Mixture

    bases = tuple(mixed for mixed in CARRIED if mixed.carries(kin)) or (Mixture,)
    same = ("events", "givens", "missing", "predicts", "unpaired", "Sampling", "Scoring")
    body = {name: vars(base)[name] for name in same for base in reversed(kin.__mro__)
            if name in vars(base)}
    about = {"kin": kin, "__module__": __name__, "__doc__": Mixture.__doc__}
    made = abc.ABCMeta(f"MixtureOf{kin.__name__}", bases, body | about)
    return cast(type[Mixture], made)
