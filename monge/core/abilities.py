"""What a law can do. An ability is inherited, never guessed, and never a method that raises.

Every question is a `Batch` (a bare tensor means `Batch(x)`); `how` is the model's own nested
Config `Sampling` or `Scoring`, chosen when it is used; a method that takes a generator draws from
it and from nothing else, and a score keys its noise by row.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Generator, Tensor, nn

from .batch import Batch
from .config import Config
from .marginals import Marginals
from .space import Space

Given = Mapping[str, Batch]
LikelihoodKind = Literal["exact", "bound", "estimate"]


@dataclass(frozen=True)
class Likelihood:
    """log p(x | given) of each row in nats, in the units of the data, with what the number is.

    exact: the value itself; bound: at most the value, in expectation; estimate: unbiased or
    consistent with error `stderr`. `stderr` (B,) is the row's own Monte-Carlo error, where known;
    `told` says in words by what draws and to what tolerance.
    """

    value: Tensor  # (B,)
    kind: LikelihoodKind
    stderr: Tensor | None = None  # (B,)
    told: str = ""


@dataclass(frozen=True)
class Finding:
    """One thing the doctor sees: what is wrong and what mends it."""

    name: str
    sentence: str
    remedy: str


class Ability(abc.ABC):
    """What users read of an ability, who never read the name of its class."""

    ability: ClassVar[str]
    """The word of listings and JSON, another for each."""
    task: ClassVar[str]
    """The end of the sentence "MODEL cannot ..."."""


class CanSample(Ability):
    """Draws x ~ p(x | given), the law that is scored."""

    ability = "sample"
    task = "sample"

    class SamplingConfig(Config):
        """How to draw; no model needs more than its defaults."""

    @abc.abstractmethod
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """(n, *event); `given` has n rows, or one that is repeated."""


class HasLikelihood(Ability):
    """Scores log p(x | given)."""

    ability = "log-likelihood"
    task = "compute log-likelihoods"

    class LikelihoodConfig(Config):
        """How to score; exact laws need no choice."""

    @abc.abstractmethod
    def likelihood(
        self,
        batch: Batch | Tensor,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        """Nats of each row, with kind and standard error."""

    def log_prob(self, batch: Batch | Tensor) -> Tensor:
        return self.likelihood(batch).value


class HasTerms(HasLikelihood):
    """Scores by a bound that is a sum of named parts."""

    ability = "bound terms"
    task = "split its bound into terms"

    @abc.abstractmethod
    def terms(
        self,
        batch: Batch | Tensor,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> dict[str, Tensor]:
        """What each part takes off the score, nats of each row, (B,): the bound is minus their
        sum."""


class HasConditionals(Ability):
    """A product of conditionals in an order: log p(x) = sum_i log p(x_i | x_<i)."""

    ability = "conditionals"
    task = "compute the conditional of each entry"

    @property
    @abc.abstractmethod
    def orders(self) -> Sequence[Tensor]:
        """One permutation (D,) for each member of the law: order[i] is the place of entry i."""

    @abc.abstractmethod
    def conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        """log p(x_i | what precedes i in the member's order) for every entry, (B, D)."""

    @abc.abstractmethod
    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        """What the conditional of each entry is computed from, (B, D, parameters)."""


class HasSubsets(Ability):
    """Predicts every entry from any subset of the others."""

    ability = "any order"
    task = "predict entries from any subset of the others"

    @abc.abstractmethod
    def predictions(self, batch: Batch, seen: Tensor) -> Tensor:
        """log p(x_i | those of x where `seen` (B, D)) for every entry i not seen, (B, D)."""

    @abc.abstractmethod
    def orderless(self, batch: Batch, seen: Tensor) -> Tensor:
        """D / (D - |S|) sum over i not in S of log p(x_i | x_S), what training raises, (B,)."""


class HasPosterior(Ability):
    """A latent-variable law with an approximate posterior q(z | x).

    z stands for all that is latent: of a hierarchy its levels side by side, of a sequence the
    codes of its steps. What the prior reads of the row besides z (its conditions; of a sequence,
    the steps before) it takes from the batch.
    """

    ability = "posterior"
    task = "infer the posterior of its latent codes"

    latent: Space

    @abc.abstractmethod
    def log_joint(self, batch: Batch, z: Tensor) -> Tensor:
        """log p(x, z | given) for z (S, B, *latent), (S, B)."""

    @abc.abstractmethod
    def log_prior(self, batch: Batch, z: Tensor) -> Tensor:
        """The factors of p(x, z | given) that are laws of z, for z (S, B, *latent), (S, B)."""

    @abc.abstractmethod
    def log_posterior(self, batch: Batch, z: Tensor) -> Tensor:
        """log q(z | x) for z (S, B, *latent), (S, B)."""

    @abc.abstractmethod
    def infer(self, batch: Batch, noise: Tensor) -> Tensor:
        """z ~ q(z | x) made from standard normal noise (S, B, *latent)."""

    def rate(self, batch: Batch) -> Tensor | None:
        """KL(q(z | x) || p(z)) in closed form, (B,); None where it has none."""
        return None


class HasLevels(HasPosterior):
    """Codes in levels or steps, so that the rate is a sum of theirs: by the chain rule,

    KL(q(z | x) || p(z)) = sum_t E_q KL(q(z_t | z_<t, x) || p(z_t | z_<t)).
    """

    ability = "latent levels"
    task = "split its KL term by level"

    @abc.abstractmethod
    def level_rates(self, batch: Batch, z: Tensor) -> Tensor:
        """What each level adds to the rate, for z (S, B, *latent), (S, B, T): in the mean over q
        its part of KL(q(z | x) || p(z)). Where q and p know the same codes before z_t, it is
        KL(q(z_t | z_<t, x) || p(z_t | z_<t)) in closed form; else the ratio of the two at z_t."""


class HasBijection(Ability):
    """An invertible map between codes and events: log p(x) = log N(z; 0, I) + log |det dz/dx|.

    Events are laid out flat, y (B, D), in the units of the data; whole numbers are spread over
    the interval [y, y + 1) of theirs.
    """

    ability = "inverse"
    task = "map codes to data and back"

    latent: Space

    @property
    def precision(self) -> float:
        """What going there and back may miss besides rounding, in coordinates near one."""
        return 0.0

    @property
    def estimates(self) -> bool:
        """Whether log-determinants are estimates, whose error is the same both ways."""
        return False

    @abc.abstractmethod
    def push(self, z: Tensor, given: Given | None = None) -> tuple[Tensor, Tensor]:
        """z (B, *latent) to y (B, D), and log |det dy/dz| (B,)."""

    @abc.abstractmethod
    def pull(self, y: Tensor, given: Given | None = None) -> tuple[Tensor, Tensor]:
        """y (B, D) to z (B, *latent), and log |det dz/dy| (B,)."""


class HasDiscriminator(Ability):
    """A law trained against a discriminator D, which at its best is p_data / (p_data + p_model)
    whatever the model, so that D / (1 - D) is the ratio of the densities."""

    ability = "discriminator"
    task = "compare data with samples by a discriminator"

    @abc.abstractmethod
    def verdicts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What D puts out of the rows and of as many draws given the same, (B,) each, or (B, n)
        where it judges n parts of a row."""

    @abc.abstractmethod
    def log_ratio(self, batch: Batch) -> Tensor:
        """log p_data(x | given) / p_model(x | given) as D says it, (B,)."""


class HasCritic(Ability):
    """A law trained against a critic f whose Lipschitz constant matters."""

    ability = "critic"
    task = "compare data with samples by a critic"

    @abc.abstractmethod
    def criticise(self, batch: Batch) -> Tensor:
        """f(x), unbounded, (B,)."""

    @abc.abstractmethod
    def critic_layers(self) -> Sequence[nn.Linear]:
        """The linear maps of f; between them only 1-Lipschitz functions stand."""


class CanEncode(Ability):
    ability = "encode"
    task = "encode rows"

    latent: Space

    @abc.abstractmethod
    def encode(self, batch: Batch | Tensor) -> Tensor:
        """The code of each row, (B, *latent)."""


class CanDecode(Ability):
    ability = "decode"
    task = "decode latent codes"

    latent: Space

    @abc.abstractmethod
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        """The event a code stands for, (B, *event), in the units of the data."""


class HasScore(Ability):
    ability = "gradient of log p"
    task = "compute the gradient of log p"

    @abc.abstractmethod
    def score(self, batch: Batch | Tensor, t: Tensor | None = None) -> Tensor:
        """The gradient of log p with respect to x, (B, *event)."""


class HasMean(Ability):
    ability = "mean"
    task = "predict means"

    @abc.abstractmethod
    def mean(self, given: Given, options: Config | None = None) -> Tensor:
        """E[x | given]; of a label, its probabilities (B, size)."""


class HasMode(Ability):
    ability = "mode"
    task = "predict the most probable value"

    @abc.abstractmethod
    def mode(self, given: Given, options: Config | None = None) -> Tensor:
        """The most probable x."""


class HasAttention(Ability):
    ability = "attention"
    task = "show attention weights"

    @abc.abstractmethod
    def attention(self, batch: Batch) -> Tensor:
        """How much the law of each step of x looks at each step of what is given, (B, T, S): not
        below 0, and summing to 1 over S."""


class HasMarginals(Ability):
    ability = "predict"
    task = "predict targets"

    @abc.abstractmethod
    def marginals(self, given: Given, options: Config | None = None) -> Marginals:
        """The law of each entry alone: its probabilities, and what lies below a value."""


class CanComplete(Ability):
    ability = "complete"
    task = "complete rows"

    completion: str = "drawn from the law given what was seen"
    """By what method, and how far it can be trusted: `monge complete` says it."""

    @abc.abstractmethod
    def complete(
        self, batch: Batch, options: Config | None = None, generator: Generator | None = None
    ) -> Tensor:
        """x with what `observed` hides drawn given what it shows, (B, *event)."""


class CanTransfer(Ability):
    ability = "transfer"
    task = "transfer rows to other conditions"

    @abc.abstractmethod
    def transfer(self, batch: Batch, given: Given) -> Tensor:
        """The events whose codes under these conditions are those that the rows have under their
        own, (B, *event); a condition that is not named stays."""


class CanEnlarge(Ability):
    """Draws pictures whose small pictures, of this condition, are given."""

    ability = "enlarge"
    task = "enlarge pictures"

    source: str
    slack: float
    """By how much the two may differ: the rounding of what is given."""

    @abc.abstractmethod
    def shrink(self, x: Tensor) -> Tensor:
        """The small pictures of events (B, C, H, W)."""


class CanStream(Ability):
    ability = "stream"
    task = "stream samples"

    @abc.abstractmethod
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """The whole sample so far, again and again; the last equals `sample`."""


class CanDiagnose(Ability):
    ability = "diagnose"
    task = "diagnose its fit"

    @abc.abstractmethod
    def diagnose(self, batch: Batch) -> list[Finding]:
        """What ails the fit, seen on held-out rows."""


class CanExport(Ability):
    ability = "export"
    task = "be exported"

    @abc.abstractmethod
    def step(self) -> tuple[nn.Module, tuple[Tensor, ...], Mapping[str, Mapping[int, str]]]:
        """The network of one step, example inputs, and the axes that may vary."""
