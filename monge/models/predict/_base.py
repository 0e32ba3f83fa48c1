r"""Base of predictors p(y | x): a trunk network reads the inputs, a head is the distribution.

$p(y \mid x) = \prod_d p(y_d \mid \theta_d)$ with $\theta = W f(x) + b$, so that training lowers
$-\log p(y \mid x)$ whatever the target is: squared error and a learned variance for a real, cross
entropy for classes, a probability for each bin of a count. Several targets share one trunk.

With Monte Carlo dropout it is $\frac1N \sum_m p(y \mid x, M_m)$ over dropout masks M,
an estimate of $E_M\, p(y \mid x, M)$ (Gal & Ghahramani 2016). A trunk of several networks side by
side gives $\frac1K \sum_k p(y \mid x, w_k)$ over their weights (Lakshminarayanan, Pritzel &
Blundell 2017): in both the distribution is the mean of those of `passes`.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, cast

import torch
from torch import Generator, Tensor

from ...core.abilities import (
    CanEncode,
    CanSample,
    Given,
    HasLikelihood,
    HasMarginals,
    HasMean,
    HasMode,
    Likelihood,
)
from ...core.batch import Batch, as_batch, broadcast_conditions, repeated_row
from ...core.config import Config as BaseConfig
from ...core.config import Range, RunRef
from ...core.errors import UsageError
from ...core.marginals import Marginals, MixedMarginals
from ...core.model import Losses, Model, is_exporting
from ...core.rng import derive_seed, make_generator, seed_of
from ...core.space import Space
from ...nn.layers.dropout import monte_carlo_dropout
from ...nn.layers.linear import Linear, StackedLinear
from ...prob.heads import Head, HeadMarginals, LearnedScales
from ._trunk import Trunk, copy_weights, encoder_input

MAX_MODES = 100
"""Modes of passes that are compared for a prediction averaged over them."""

Spread = Literal["constant", "input", "mixture"]
Weight = Annotated[float, Range(0)]


class Predictor(Model, HasLikelihood, HasMarginals, HasMean, HasMode, CanSample):
    """p(y | x) from a trunk that a model supplies by `build_trunk`.

    Missing targets are left out of likelihoods; missing inputs are read as their mean. With
    `encoder`, the codes of another run replace the field it was fitted on; with `start`, the trunk
    is initialised with the weights of another run.
    """

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}
    supports_missing = True
    is_predictor = True
    needs_given = True

    class Config(Model.Config):
        spread: Spread = "input"
        """Distribution of a real target: a Gaussian with one learned scale, a Gaussian whose scale
        depends on the inputs, or a mixture of Gaussians."""
        components: Annotated[int, Range(1)] = 5
        """Components of the mixture."""
        label_smoothing: Annotated[float, Range(0, 1)] = 0.0
        """Label smoothing: share of each label spread evenly over all classes in training."""
        classes: tuple[Weight, ...] = ()
        """Training weight per class, in the order of the names; empty weights all equally."""
        tasks: tuple[Weight, ...] = ()
        """Training weight per target; empty weights all equally."""
        encoder: RunRef | None = None
        """Run whose codes replace the field it was fitted on."""
        start: RunRef | None = None
        """Run whose trunk weights initialise this trunk where names and shapes agree."""

    class SamplingConfig(BaseConfig):
        passes: Annotated[int, Range(0)] = 0
        """Monte Carlo dropout passes that predictions average; 0 turns dropout off."""

    class LikelihoodConfig(SamplingConfig):
        """The options of sampling."""

    config: Config
    trunk: Trunk
    centre: Tensor
    stretch: Tensor
    classes: Tensor
    tasks: Tensor

    def __init__(
        self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        helpers = dict(parts or {})
        start = helpers.pop("start", None)
        super().__init__(config, space, helpers)
        self.field, inputs = encoder_input(space, helpers.get("encoder"))
        self.trunk = self.build_trunk(inputs)
        self.head = Head(space, config.components if config.spread == "mixture" else 1)
        self.scales = LearnedScales(self.head, config.spread == "constant")
        outs = [Linear(self.trunk.width, self.scales.inputs) for _ in range(self.trunk.members)]
        self.out: Any = outs[0] if len(outs) == 1 else StackedLinear(outs)
        sizes = {"classes": class_count(space), "tasks": space.dims}
        for name, size in sizes.items():
            weights = check_weights(name, getattr(config, name), size)
            self.register_buffer(name, weights, persistent=False)
        # Mean and scale of the encoder's codes; `initialise_from_data` sets them.
        for name, value in (("centre", 0.0), ("stretch", 1.0)):
            self.register_buffer(name, torch.tensor(value))
        if start is not None:
            copy_weights(start, self.trunk)
        self.init_output_bias()

    @abc.abstractmethod
    def build_trunk(self, inputs: Space) -> Trunk:
        """The network that reads the conditions of `inputs`."""

    def initialise_from_data(self, batch: Batch) -> None:
        if self.field is not None:
            codes = self.encode(batch.given[self.field])
            # One scale for all units, so that those the encoder does not use stay small.
            self.centre.copy_(codes.mean())
            self.stretch.copy_(codes.std().clamp_min(1e-6))
        self.head.fit(self.flat(batch.x), batch.observed_mask.reshape(len(batch), -1))
        self.init_output_bias()

    @torch.no_grad()
    def init_output_bias(self) -> None:
        """Start at the marginal distribution of each target."""
        self.out.weight.zero_()
        self.out.bias.copy_(self.scales.without(self.head.initial_params()))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.parts.eval()
        return self

    def weighted_nll(self, batch: Batch, params: Tensor) -> Losses:
        """-log p(y | params) of each row with label smoothing, class and task weights, the mean
        over networks if there are several; one term per column if there are several targets."""
        x = self.flat(batch.x)
        log_p = self.target_log_prob(params, x)  # (B, D)
        weights = self.tasks * batch.observed_mask.reshape(x.shape)
        if self.config.classes:
            weights = weights * self.classes[x.long()]
        each = -torch.where(weights > 0, weights * log_p, 0.0)
        if self.space.kind != "columns":
            return {"nll": each.sum(1)}
        names = [column.name for column in self.space.columns]
        return dict(zip(names, each.T, strict=True))

    def target_log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """The smoothed log p of x (B, D) for params (B, P), or its mean over networks for params
        (K, B, P)."""
        if params.ndim == 2:
            return self.smooth_labels(self.head.log_prob(params, x), params)
        rows = params.flatten(0, 1), x.repeat(len(params), 1)
        return self.target_log_prob(*rows).unflatten(0, (len(params), -1)).mean(0)

    def smooth_labels(self, log_p: Tensor, params: Tensor) -> Tensor:
        """Log-probabilities (B, D) mixed with the mean over all classes."""
        share = self.config.label_smoothing
        if not share:
            return log_p
        even = [
            values.mean(-1) if values.shape[-1] else own
            for values, own in zip(self.head.values(params), log_p.T, strict=True)
        ]
        return (1 - share) * log_p + share * torch.stack(even, 1)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch = as_batch(batch)
        x, seen = self.flat(batch.x), batch.observed_mask.reshape(len(batch), -1)
        passes = self.passes(batch.given, len(batch), options, generator)
        members = torch.stack(
            [torch.where(seen, self.head.log_prob(params, x), 0.0).sum(1) for params in passes]
        ).unflatten(0, (-1, self.trunk.members))  # (S, K, B)
        each = members.logsumexp(1) - math.log(self.trunk.members)
        if len(each) == 1:
            return Likelihood(each[0], "exact" if not pass_count(options) else "estimate")
        top = each.amax(0)
        ratio = (each - top).exp()
        error = ratio.std(0) / (len(each) ** 0.5 * ratio.mean(0))
        return Likelihood(top + ratio.mean(0).log(), "estimate", error)

    def sample_params(
        self, n: int, given: Given | None, options: BaseConfig | None, generator: Generator | None
    ) -> Tensor:
        """Parameters (n, P) of the distribution of each target; with dropout passes or several
        networks, those of a random one per row."""
        every = torch.stack(self.passes(given or {}, n, options, generator))  # (S, n, P)
        which = torch.randint(len(every), (n,), generator=generator, device=every.device)
        return every[which, torch.arange(n)]

    @torch.no_grad()
    def marginals(self, given: Given, options: BaseConfig | None = None) -> Marginals:
        return MixedMarginals(
            [
                HeadMarginals(self.space, self.head, params)
                for params in self.passes(given, condition_rows(given), options)
            ]
        )

    @torch.no_grad()
    def mean(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        """Among columns, a name stands as its most probable code."""
        passes = self.passes(given, condition_rows(given), options)
        if self.space.kind == "label":
            every = [torch.stack(self.head.values(params), 1).exp() for params in passes]
            return torch.stack(every).mean(0).reshape(-1, *self.space.shape, self.space.size)
        mean = torch.stack([self.head.mean(params) for params in passes]).mean(0)
        names = [part.kind == "label" for part in self.space.parts]
        if any(names):
            which = torch.tensor(names, device=mean.device)
            mean = torch.where(which, self.most_probable(passes), mean)
        return mean.reshape(-1, *self.space.shape)

    @torch.no_grad()
    def mode(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        """For a number averaged over passes, the most probable of their modes."""
        return self.to_event(
            self.most_probable(self.passes(given, condition_rows(given), options))
        )

    def most_probable(self, passes: Sequence[Tensor]) -> Tensor:
        """The value of each entry with the highest probability or density, (B, D); of a number,
        among the modes of the first MAX_MODES passes."""
        best = self.head.mode(passes[0])
        if len(passes) == 1:
            return best
        every = list(zip(*map(self.head.values, passes), strict=True))
        if not all(values[0].shape[-1] for values in every):
            modes = torch.stack([self.head.mode(params) for params in passes[:MAX_MODES]])
            heights = [  # of modes (S, B, D)
                torch.logsumexp(
                    torch.stack([self.head.log_prob(params, mode) for params in passes]), 0
                )
                for mode in modes
            ]
            best = modes.gather(0, torch.stack(heights).argmax(0, keepdim=True))[0]
        for entry, values in enumerate(every):
            if values[0].shape[-1]:
                best[:, entry] = torch.stack(values).exp().mean(0).argmax(-1).to(best)
        return best

    def passes(
        self, given: Given, n: int, options: BaseConfig | None, generator: Generator | None = None
    ) -> list[Tensor]:
        """The parameters (n, P) that each network gives in each dropout pass; without passes a row
        that is repeated is read once."""
        count, seed = pass_count(options), seed_of(generator)
        if not count:
            row = None if self.training or is_exporting() else repeated_row(given, n)
            params = self.params(given, n) if row is None else self.params(row, 1)
            return [own.expand(n, -1) for own in by_member(params)]
        found: list[Tensor] = []
        for number in range(count):
            with monte_carlo_dropout(
                self.trunk, make_generator(derive_seed(seed, "pass", number))
            ):
                found += by_member(self.params(given, n))
        return found

    def params(self, given: Given, n: int) -> Tensor:
        """Parameters of the distribution of each target, (n, P), or (K, n, P) of K networks."""
        return self.scales(self.out(self.trunk(self.trunk_inputs(given, n))))

    def trunk_inputs(self, given: Given, n: int) -> Given:
        """What the trunk reads: the conditions, with codes where an encoder reads them."""
        found = broadcast_conditions(given, self.space, n)
        if self.field is None:
            return found
        codes = (self.encode(found[self.field]) - self.centre) / self.stretch
        return found | {self.field: Batch(codes)}

    def encode(self, batch: Batch) -> Tensor:
        return cast(CanEncode, self.parts["encoder"]).encode(batch).to(self.centre)

    def flat(self, x: Tensor) -> Tensor:  # (B, D)
        return x.reshape(len(x), self.space.dims).to(self.out.weight.dtype)

    def to_event(self, x: Tensor) -> Tensor:  # (B, D) -> (B, *event)
        x = x.reshape(-1, *self.space.shape)
        return x.long() if self.space.kind == "label" else x


def default_network(owner: type[Predictor], space: Space) -> Any:
    """The default settings of a predictor that is trained in another way than alone: those of one
    network."""
    config: Any = owner.defaults(space).config
    return replace(config, members=1) if getattr(config, "members", 1) > 1 else config


def check_one_network(config: Any, name: str) -> None:
    """Raise UsageError if a predictor that is trained in another way has several networks."""
    if (members := getattr(config, "members", 1)) > 1:
        raise UsageError(
            f"expected {name}.members=1, since one network is trained here, found {members}; "
            "leave it out"
        )


class WrappedPredictor(Model, HasLikelihood, HasMarginals, HasMean, HasMode, CanSample):
    """p(y | x) of a predictor that is trained in another way than alone."""

    supports_missing = True
    is_predictor = True

    class Config(Model.Config):
        """Settings of the model."""

    class SamplingConfig(Predictor.SamplingConfig):
        """The options of the predictor."""

    class LikelihoodConfig(Predictor.LikelihoodConfig):
        """The options of the predictor."""

    predictor: Predictor

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        return self.predictor.likelihood(batch, options, generator)

    def marginals(self, given: Given, options: BaseConfig | None = None) -> Marginals:
        return self.predictor.marginals(given, options)

    def mean(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        return self.predictor.mean(given, options)

    def mode(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        return self.predictor.mode(given, options)


def by_member(params: Tensor) -> Sequence[Tensor]:
    """The parameters (n, P) of each network."""
    return [params] if params.ndim == 2 else params.unbind()


def pass_count(options: BaseConfig | None) -> int:
    """How many passes are asked for."""
    return cast(Predictor.SamplingConfig, options).passes if options is not None else 0


def condition_rows(given: Given) -> int:
    """How many rows the conditions have; one that is single is repeated."""
    sizes = [len(part) for part in given.values()]
    return max(*sizes) if len(sizes) > 1 else (sizes or [1])[0]  # as torch.export traces it


def class_count(space: Space) -> int:
    """How many classes the event has; 0 where it is no class."""
    return {"binary": 2, "label": space.size}.get(space.kind, 0) * (space.dims == 1)


def check_weights(name: str, given: Sequence[float], size: int) -> Tensor:
    if given and len(given) != size:
        raise UsageError(
            f"{name} has {len(given)} weights, and there are {size} {name} here; give one for each"
        )
    return torch.tensor(given or [1.0] * size)
