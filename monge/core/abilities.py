"""Abilities: what a model can do. A model has an ability if it inherits from its class.

Methods take a `Batch` (a bare tensor means `Batch(x)`); `options` is the model's own nested
`SamplingConfig` or `LikelihoodConfig`. A method with a generator takes all its noise from it, and
a likelihood keys its noise by row.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from .batch import Batch
from .config import Config
from .errors import DataError
from .marginals import Marginals
from .space import Space

Given = Mapping[str, Batch]
LikelihoodKind = Literal["exact", "bound", "estimate"]


@dataclass(frozen=True)
class Likelihood:
    """log p(x | given) of each row in nats, in the units of the data.

    kind: exact; bound: a lower bound, in expectation; estimate: unbiased or consistent. `stderr`
    (B,) is the Monte-Carlo error of each row, if known; the last field describes the estimator:
    number of samples, tolerance.

    Examples
    --------
    >>> import torch
    >>> from monge import Likelihood
    >>> Likelihood(torch.zeros(3), "bound").kind
    'bound'
    """

    value: Tensor  # (B,)
    kind: LikelihoodKind
    stderr: Tensor | None = None  # (B,)
    description: str = ""


@dataclass(frozen=True)
class Finding:
    """A problem found by diagnostics, and its remedy.

    Examples
    --------
    >>> import monge
    >>> monge.Finding("collapse", "no code is used", "lower beta").remedy
    'lower beta'
    """

    name: str
    sentence: str
    remedy: str


class Ability(abc.ABC):
    """Base of all abilities, with the words that users read for them.

    Examples
    --------
    >>> from monge import Ability, registry
    >>> issubclass(registry.find("made"), Ability)
    True
    """

    ability: ClassVar[str]
    """The name in listings and JSON, unique."""
    task: ClassVar[str]
    """The end of the sentence "MODEL cannot ..."."""


class CanSample(Ability):
    """Samples x ~ p(x | given).

    Examples
    --------
    >>> import monge
    >>> model = monge.fit("gaussian", "iris", progress=False).model
    >>> model.sample(3).shape
    torch.Size([3, 4])
    """

    ability = "sample"
    task = "sample"

    class SamplingConfig(Config):
        """Sampling options; the defaults suffice for every model."""

    def sampling_defaults(self) -> Config:
        """The options that hold where none is given; a model may choose them by its data."""
        return self.SamplingConfig()

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
    """Computes log p(x | given).

    Examples
    --------
    >>> import monge
    >>> model = monge.fit("gaussian", "iris", progress=False).model
    >>> found = model.likelihood(model.sample(3))
    >>> found.kind, found.value.shape
    ('exact', torch.Size([3]))
    """

    ability = "log-likelihood"
    task = "compute log-likelihoods"

    class LikelihoodConfig(Config):
        """Options of the log-likelihood."""

    @abc.abstractmethod
    def likelihood(
        self,
        batch: Batch | Tensor,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        """The log-likelihood of each row."""

    def log_prob(self, batch: Batch | Tensor) -> Tensor:
        """The values of `likelihood` alone, (B,)."""
        return self.likelihood(batch).value


class HasTerms(HasLikelihood):
    """A likelihood bound that is a sum of named terms.

    Examples
    --------
    >>> from monge import HasTerms, registry
    >>> issubclass(registry.find("vae"), HasTerms)
    True
    """

    ability = "bound terms"
    task = "split its bound into terms"

    @abc.abstractmethod
    def terms(
        self,
        batch: Batch | Tensor,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> dict[str, Tensor]:
        """The terms in nats per row, (B,); the bound is minus their sum."""


class HasConditionals(Ability):
    """An autoregressive model: log p(x) = sum_i log p(x_i | x_<i) in some order.

    Examples
    --------
    >>> from monge import HasConditionals, registry
    >>> issubclass(registry.find("made"), HasConditionals)
    True
    """

    ability = "conditionals"
    task = "compute the conditional of each entry"

    @property
    @abc.abstractmethod
    def orders(self) -> Sequence[Tensor]:
        """One permutation (D,) per member of the model: order[i] is the position of entry i."""

    @abc.abstractmethod
    def conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        """log p(x_i | the entries before i in the member's order) for every entry, (B, D)."""

    @abc.abstractmethod
    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        """The parameters of the conditional of each entry, (B, D, parameters)."""

    def observed_log_prob(
        self, batch: Batch, options: Config | None = None, generator: Generator | None = None
    ) -> Tensor:
        """log p of the observed values of each row, (B,), in the mean over members; here of values
        that come first in every order."""
        seen, whole = batch.observed_mask.reshape(len(batch), -1), replace(batch, observed=None)
        each = []
        for number, order in enumerate(self.orders):
            shown = seen[:, order.argsort()]
            if bool((shown[:, 1:] & ~shown[:, :-1]).any()):
                raise DataError(
                    "expected the observed entries to come first in the order of the model, found "
                    "others; hide what follows, or choose a model that completes any pattern"
                )
            each.append(torch.where(seen, self.conditionals(whole, number), 0.0).sum(1))
        return torch.stack(each).logsumexp(0) - math.log(len(each))


class HasSubsets(Ability):
    """Predicts every entry from any subset of the others.

    Examples
    --------
    >>> from monge import HasSubsets, registry
    >>> issubclass(registry.find("deep_nade"), HasSubsets)
    True
    """

    ability = "any order"
    task = "predict entries from any subset of the others"

    @abc.abstractmethod
    def predictions(self, batch: Batch, seen: Tensor) -> Tensor:
        """log p(x_i | the entries of x where `seen` (B, D)) for every other entry i, (B, D)."""

    @abc.abstractmethod
    def orderless(self, batch: Batch, seen: Tensor) -> Tensor:
        """D / (D - |S|) sum over i not in S of log p(x_i | x_S), (B,): the training objective."""


class HasPosterior(Ability):
    """A latent-variable model with an approximate posterior q(z | x).

    z holds all latent variables: the concatenated levels of a hierarchy, the codes of the steps of
    a sequence. Other inputs of the prior (conditions, earlier steps) come from the batch.

    Examples
    --------
    >>> from monge import HasPosterior, registry
    >>> issubclass(registry.find("vae"), HasPosterior)
    True
    """

    ability = "posterior"
    task = "infer the posterior of its latent codes"

    latent: Space

    @abc.abstractmethod
    def log_joint(self, batch: Batch, z: Tensor) -> Tensor:
        """log p(x, z | given) for z (S, B, *latent), (S, B)."""

    @abc.abstractmethod
    def log_prior(self, batch: Batch, z: Tensor) -> Tensor:
        """The sum of the factors of log p(x, z | given) that are densities of z, (S, B)."""

    @abc.abstractmethod
    def log_posterior(self, batch: Batch, z: Tensor) -> Tensor:
        """log q(z | x) for z (S, B, *latent), (S, B)."""

    @abc.abstractmethod
    def infer(self, batch: Batch, noise: Tensor) -> Tensor:
        """z ~ q(z | x), reparameterised by standard normal noise (S, B, *latent)."""

    def analytic_kl(self, batch: Batch) -> Tensor | None:
        """KL(q(z | x) || p(z)) in closed form, (B,); None if there is none."""
        return None


class HasLevels(HasPosterior):
    """Latent codes in levels or steps, whose KL terms add up by the chain rule:

    KL(q(z | x) || p(z)) = sum_t E_q KL(q(z_t | z_<t, x) || p(z_t | z_<t)).

    Examples
    --------
    >>> from monge import HasLevels, registry
    >>> issubclass(registry.find("hvae"), HasLevels)
    True
    """

    ability = "latent levels"
    task = "split its KL term by level"

    @abc.abstractmethod
    def level_kls(self, batch: Batch, z: Tensor) -> Tensor:
        """The KL term of each level for z (S, B, *latent), (S, B, T), whose mean over q is its
        part of KL(q(z | x) || p(z)): closed form if q and p depend on the same codes before z_t,
        else the log ratio of the two at z_t."""


class HasBijection(Ability):
    """An invertible map between codes and events: log p(x) = log N(z; 0, I) + log |det dz/dx|.

    Events are flattened, y (B, D), in the units of the data; integers are dequantised over
    [y, y + 1).

    Examples
    --------
    >>> from monge import HasBijection, registry
    >>> issubclass(registry.find("maf"), HasBijection)
    True
    """

    ability = "inverse"
    task = "map codes to data and back"

    latent: Space

    @property
    def precision(self) -> float:
        """Error of a round trip besides rounding, for coordinates near one."""
        return 0.0

    @property
    def estimates(self) -> bool:
        """Whether log-determinants are estimates, whose errors agree in both directions."""
        return False

    @abc.abstractmethod
    def push(self, z: Tensor, given: Given | None = None) -> tuple[Tensor, Tensor]:
        """z (B, *latent) to y (B, D), and log |det dy/dz| (B,)."""

    @abc.abstractmethod
    def pull(self, y: Tensor, given: Given | None = None) -> tuple[Tensor, Tensor]:
        """y (B, D) to z (B, *latent), and log |det dz/dy| (B,)."""


class HasDiscriminator(Ability):
    """A model trained against a discriminator D, whose optimum is p_data / (p_data + p_model), so
    that D / (1 - D) is the density ratio.

    Examples
    --------
    >>> from monge import HasDiscriminator, registry
    >>> issubclass(registry.find("gan"), HasDiscriminator)
    True
    """

    ability = "discriminator"
    task = "compare data with samples by a discriminator"

    @abc.abstractmethod
    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Discriminator logits of the rows and of as many samples with the same conditions, (B,)
        each, or (B, n) if D classifies n patches of a row."""

    @abc.abstractmethod
    def log_ratio(self, batch: Batch) -> Tensor:
        """log p_data(x | given) / p_model(x | given) according to D, (B,)."""

    @abc.abstractmethod
    def estimate_distance(self, batch: Batch) -> Tensor:
        """The divergence of the rows from as many samples that D implies, a lower bound, ()."""


class HasCritic(Ability):
    """A model trained against a critic f with a bounded Lipschitz constant.

    Examples
    --------
    >>> from monge import HasCritic, registry
    >>> issubclass(registry.find("wgan"), HasCritic)
    True
    """

    ability = "critic"
    task = "compare data with samples by a critic"

    @abc.abstractmethod
    def criticise(self, batch: Batch) -> Tensor:
        """f(x), unbounded, (B,)."""

    @abc.abstractmethod
    def estimate_distance(self, batch: Batch) -> Tensor:
        """mean f(rows) - mean f(as many samples), K W_1 at most in the mean, ()."""

    @abc.abstractmethod
    def critic_layers(self) -> Sequence[nn.Linear | nn.Conv2d]:
        """The linear maps of f; the functions between them are 1-Lipschitz."""


class CanEncode(Ability):
    """Encodes rows as latent codes.

    Examples
    --------
    >>> from monge import CanEncode, registry
    >>> issubclass(registry.find("vae"), CanEncode)
    True
    """

    ability = "encode"
    task = "encode rows"

    latent: Space

    @abc.abstractmethod
    def encode(self, batch: Batch | Tensor) -> Tensor:
        """The code of each row, (B, *latent)."""


class CanDecode(Ability):
    """Decodes latent codes to events.

    Examples
    --------
    >>> from monge import CanDecode, registry
    >>> issubclass(registry.find("vae"), CanDecode)
    True
    """

    ability = "decode"
    task = "decode latent codes"

    latent: Space

    @abc.abstractmethod
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        """The event that a code decodes to, (B, *event), in the units of the data."""


class HasScore(Ability):
    """Computes the gradient of log p, also of noised rows at a time t.

    Examples
    --------
    >>> from monge import HasScore, registry
    >>> issubclass(registry.find("score_sde"), HasScore)
    True
    """

    ability = "gradient of log p"
    task = "compute the gradient of log p"

    @abc.abstractmethod
    def score(self, batch: Batch | Tensor, t: Tensor | None = None) -> Tensor:
        """The gradient of log p with respect to x, (B, *event)."""


class HasMean(Ability):
    """Predicts E[x | given].

    Examples
    --------
    >>> from monge import HasMean, registry
    >>> issubclass(registry.find("predict.mlp"), HasMean)
    True
    """

    ability = "mean"
    task = "predict means"

    @abc.abstractmethod
    def mean(self, given: Given, options: Config | None = None) -> Tensor:
        """E[x | given]; of a label, its probabilities (B, size)."""


class HasMode(Ability):
    """Predicts the most probable x given the conditions.

    Examples
    --------
    >>> from monge import HasMode, registry
    >>> issubclass(registry.find("predict.mlp"), HasMode)
    True
    """

    ability = "mode"
    task = "predict the most probable value"

    @abc.abstractmethod
    def mode(self, given: Given, options: Config | None = None) -> Tensor:
        """The most probable x."""


class HasAttention(Ability):
    """Shows which steps of the condition each step of x attends to.

    Examples
    --------
    >>> from monge import HasAttention, registry
    >>> issubclass(registry.find("transformer"), HasAttention)
    True
    """

    ability = "attention"
    task = "show attention weights"

    @abc.abstractmethod
    def attention(self, batch: Batch) -> Tensor:
        """Attention weights of each step of x over the steps of the condition, (B, T, S):
        non-negative, summing to 1 over S."""


class HasMarginals(Ability):
    """Predicts the distribution of each entry given the conditions.

    Examples
    --------
    >>> from monge import HasMarginals, registry
    >>> issubclass(registry.find("predict.mlp"), HasMarginals)
    True
    """

    ability = "predict"
    task = "predict targets"

    @abc.abstractmethod
    def marginals(self, given: Given, options: Config | None = None) -> Marginals:
        """The marginal distribution of each entry: probabilities and cumulative distribution."""


class CanComplete(Ability):
    """Samples the values of rows that are not observed given the others.

    Examples
    --------
    >>> import monge
    >>> model = monge.fit("gaussian", "iris", progress=False).model
    >>> x = model.sample(2)
    >>> hidden = monge.Batch(x, observed=x > x.mean())
    >>> bool((model.complete(hidden) == x)[hidden.observed].all())
    True
    """

    ability = "complete"
    task = "complete rows"

    @property
    def completion(self) -> str:
        """The method and its accuracy in the last completion, as `monge complete` prints them."""
        return "sampled given the observed values"

    def keeps_observed(self, options: Config | None = None) -> bool:
        """Whether observed values stay as they are, so that a row of which all are observed need
        not be computed."""
        return True

    @abc.abstractmethod
    def complete(
        self, batch: Batch, options: Config | None = None, generator: Generator | None = None
    ) -> Tensor:
        """x with the values that are not observed sampled given the others, (B, *event)."""

    def complete_several(
        self,
        batch: Batch,
        draws: int,
        options: Config | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Several completions of each row, (B, draws, *event); a model that weighs candidates may
        choose all of a row from the same ones."""
        every = batch[torch.arange(len(batch)).repeat_interleave(draws)]
        every = replace(every, row=torch.arange(len(every)))  # noise that is keyed by rows
        return self.complete(every, options, generator).unflatten(0, (len(batch), draws))


class CanTransfer(Ability):
    """Carries rows over to other conditions, with the same codes.

    Examples
    --------
    >>> from monge import CanTransfer, registry
    >>> issubclass(registry.find("cflow"), CanTransfer)
    True
    """

    ability = "transfer"
    task = "transfer rows to other conditions"

    @abc.abstractmethod
    def transfer(self, batch: Batch, given: Given) -> Tensor:
        """The events whose codes under the new conditions equal those of the rows under their own,
        (B, *event); conditions not in `given` stay."""


class CanEnlarge(Ability):
    """Super-resolution: samples images given low-resolution ones, the condition `source`.

    Examples
    --------
    >>> from monge import CanEnlarge, registry
    >>> issubclass(registry.find("superres"), CanEnlarge)
    True
    """

    ability = "enlarge"
    task = "enlarge images"

    source: str
    slack: float
    """Largest difference between a downsampled image and its condition: rounding."""

    @abc.abstractmethod
    def shrink(self, x: Tensor) -> Tensor:
        """The low-resolution images of events (B, C, H, W)."""


class CanStream(Ability):
    """Shows samples as they come about.

    Examples
    --------
    >>> from monge import CanStream, registry
    >>> issubclass(registry.find("ddpm"), CanStream)
    True
    """

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
        """The samples so far, repeatedly; the last equals `sample`."""


class CanDiagnose(Ability):
    """Finds problems of its fit.

    Examples
    --------
    >>> from monge import CanDiagnose, registry
    >>> issubclass(registry.find("vae"), CanDiagnose)
    True
    """

    ability = "diagnose"
    task = "diagnose its fit"

    @abc.abstractmethod
    def diagnose(self, batch: Batch) -> list[Finding]:
        """Problems of the fit, found on held-out rows."""


class CanExport(Ability):
    """Has a step of its own to export.

    Examples
    --------
    >>> from monge import CanExport, registry
    >>> issubclass(registry.find("ddpm"), CanExport)
    True
    """

    ability = "export"
    task = "be exported"

    @abc.abstractmethod
    def step(self) -> tuple[nn.Module, tuple[Tensor, ...], Mapping[str, Mapping[int, str]]]:
        """The network of one step, example inputs, and the dynamic axes."""
