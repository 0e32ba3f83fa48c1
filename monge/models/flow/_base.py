r"""What flows share: the units of the data, whole numbers made continuous, scores and draws.

$x = f(z, c)$, $z \sim N(0, I)$: $\log p(x | c) = \log N(z; 0, I) + \log|\det \partial z/\partial
x|$ at $z = f^{-1}(x, c)$. Reals are standardised, and the log-scale is paid: their score is exact.
A whole number x is spread over [x, x + 1) by noise u ~ q(u | x), and

$\log P(x) = \log \int_{[0, 1)^D} p(x + u) du \ge E_q \log \frac1k \sum_i p(x + u_i) / q(u_i | x)$

(Theis et al. 2016; Ho et al. 2019) is a bound that rises with k. Uniform noise has q = 1; learned
noise is a logistic-normal law of each entry whose parameters a network reads off x.
"""

from __future__ import annotations

import abc
from typing import Annotated, ClassVar, Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import (
    CanDecode,
    CanEncode,
    CanSample,
    Given,
    HasBijection,
    HasLikelihood,
    Likelihood,
)
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Losses, Model
from ...core.rng import derive_seed, keyed_uniform, seed_of
from ...core.space import Space
from ...nn.inputs.features import Conditions, Features
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.coupling import Conditional
from ...prob.bijections.elementwise import Logit
from ...prob.bijections.univariate import Affine
from ...prob.distributions import log_mean_exp, log_normal
from .._ordering import check_codes, check_whole
from ._units import data_units, value_limits

INITIAL_NOISE_LOG_SCALE = 0.5
"""Log-scale at which learned noise begins: a logistic-normal law that is nearly uniform."""

MAX_INIT_ELEMENTS = 2**17
"""Numbers of training rows that scales are taken from before the first step."""


class Flow(Model, HasLikelihood, HasBijection, CanSample, CanEncode, CanDecode):
    """p(x | given) by an invertible map of N(0, I), or of N(mu(given), sigma(given)^2).

    Labels of a table are spread as levels in the order of their codes, which any order bounds.
    """

    events = {"real", "binary", "levels", "counts", "columns"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}

    class Config(Model.Config):
        margin: Annotated[float, Range(0, 0.4)] = 1e-4
        """Levels pass z = logit(m + (1 - 2m) x) with this m; 0 standardises them instead. A small
        one makes logistic noise of uniform noise, which is near to Gaussian."""
        noise: Literal["uniform", "learned"] = "uniform"
        """What spreads whole numbers over their interval: uniform noise, or a law read off x."""

    class SamplingConfig(BaseConfig):
        temperature: Annotated[float, Range(0)] = 1.0
        """Scale of the noise: below 1 samples are more typical and vary less."""

    class LikelihoodConfig(BaseConfig):
        samples: Annotated[int, Range(1)] = 1
        """Whole numbers: draws of their noise; more bound the likelihood more tightly."""

    begins: ClassVar[int] = 0
    """Training rows an entry, at least, that scales are taken from before the first step."""

    config: Config
    low: Tensor
    high: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.name = type(self).__name__.lower()
        self.latent = Space(kind="real", shape=(space.dims,))
        self.conditions = Conditions(space)
        self.ends = self.inside(self.conditions.width), self.outside()
        self.map = Compose(self.ends)
        low, high = value_limits(space)  # NaN for reals
        self.whole = not bool(low.isnan().all())
        self.register_buffer("low", low, persistent=False)  # (D,)
        self.register_buffer("high", high, persistent=False)
        self.features = Features(space) if self.whole else None
        self.spreader = (
            learned_dequantiser(self.features.width + self.conditions.width, space.dims)
            if (self.features and config.noise == "learned")
            else None
        )

    def inside(self, context: int) -> Bijection:
        """The map from z to coordinates near one, which begins with what conditions say of z."""
        body = self.body(context)
        return Compose([conditional_base(context, self.space.dims), body]) if context else body

    def outside(self) -> Bijection:
        """The map from coordinates near one to the units of the data."""
        return data_units(self.space, self.config.margin)

    @abc.abstractmethod
    def body(self, context: int) -> Bijection:
        """The map from z to coordinates near one, (B, D), that reads so many conditions."""

    @torch.no_grad()
    def initialise_from_data(self, batch: Batch) -> None:
        batch = self.thinned(batch)
        uniform = keyed_uniform(batch.rows, self.latent.shape) if self.whole else None
        y, _ = self.spread(batch, uniform)
        self.map.initialise_from_data(y, self.context(batch.given, len(y)))

    def thinned(self, batch: Batch) -> Batch:
        """The rows that scales are taken from."""
        dims = self.space.dims
        most = min(max(MAX_INIT_ELEMENTS // dims, 64, self.begins * dims), len(batch))
        return batch[torch.arange(most) * len(batch) // most]

    def loss(self, batch: Batch) -> Losses:
        uniform = torch.rand_like(self.flat(batch)) if self.whole else None
        return {"nll": -self.log_weight(batch, uniform)}

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, self.LikelihoodConfig), "a score is asked for with Scoring"
        if not self.whole:
            return Likelihood(self.log_weight(batch, None), "exact")
        seed, shape = seed_of(generator), self.latent.shape
        weights = [
            self.log_weight(
                batch, keyed_uniform(batch.rows, shape, derive_seed(seed, "spread", k))
            )
            for k in range(options.samples)
        ]
        return importance_bound(torch.stack(weights))

    def log_weight(self, batch: Batch, uniform: Tensor | None) -> Tensor:
        """log p(y) - log q(y - x) of a row spread by uniform noise (B, D), (B,)."""
        y, log_q = self.spread(batch, uniform)
        z, log_det = self.map.inverse(y, self.context(batch.given, len(y)))
        log_p = log_normal(z) + log_det
        return log_p if uniform is None else log_p - log_q

    def spread(self, batch: Batch, uniform: Tensor | None) -> tuple[Tensor, Tensor | float]:
        """y (B, D), whole numbers spread over their interval, and the log-density of that."""
        check_whole(self.name, batch)
        x = self.flat(batch)
        if uniform is None:
            return x, 0.0
        uniform = uniform.to(x.dtype)
        if self.space.kind in ("binary", "levels"):
            check_codes(self.name, self.space, x)
        if self.spreader is None:
            return self.shifted(x, uniform), 0.0
        assert self.features is not None
        told, context = self.features(batch), self.context(batch.given, len(x))
        told = told if context is None else torch.cat([told, context], 1)
        normal = torch.special.ndtri(uniform.clamp(1e-6, 1 - 1e-6))
        u, log_det = self.spreader(normal, told)
        return self.shifted(x, u), log_normal(normal) - log_det

    def shifted(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.where(self.low.isnan(), x, x + u)

    def middle(self, batch: Batch) -> Tensor:
        """y (B, D) with whole numbers in the middle of their interval."""
        x = self.flat(batch)
        return self.shifted(x, torch.full_like(x, 0.5)) if self.whole else x

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        options = options or self.SamplingConfig()
        assert isinstance(options, Flow.SamplingConfig), "samples are asked for with Sampling"
        z = torch.randn(
            n,
            *self.latent.shape,
            generator=generator,
            dtype=self.low.dtype,
            device=self.low.device,
        )
        return self.decode(options.temperature * z, given)

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        """The code of each row; of whole numbers, that of the middle of their interval."""
        batch = as_batch(batch)
        check_whole(self.name, batch)
        return self.pull(self.middle(batch), batch.given)[0]

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        return self.leave(self.inner(z, self.context(given or {}, len(z)))[0])

    def leave(self, w: Tensor) -> Tensor:
        """Events of coordinates (B, D), in the support of the data."""
        y, _ = self.outer(w)
        if self.whole:
            y = torch.where(self.low.isnan(), y, y.floor().clamp(self.low, self.high))
        return y.reshape(len(w), *self.space.shape)

    @property
    def inner(self) -> Bijection:
        return self.ends[0]

    @property
    def outer(self) -> Bijection:
        return self.ends[1]

    def push(self, z: Tensor, given: Given | None = None) -> tuple[Tensor, Tensor]:
        return self.map(z, self.context(given or {}, len(z)))

    def pull(self, y: Tensor, given: Given | None = None) -> tuple[Tensor, Tensor]:
        return self.map.inverse(y, self.context(given or {}, len(y)))

    def context(self, given: Given, n: int) -> Tensor | None:
        """What the map reads besides, (n, context); None where there are no conditions."""
        if not (given or self.space.given):
            return None
        return self.conditions(broadcast_conditions(given, self.space, n), n)

    def flat(self, batch: Batch) -> Tensor:  # (B, D)
        x, dtype = batch.x, self.low.dtype
        return x if x.ndim == 2 and x.dtype == dtype else x.reshape(len(x), -1).to(dtype)


def conditional_base(context: int, dims: int) -> Bijection:
    """N(0, I) to N(mu(c), sigma(c)^2), at first to itself."""
    net = torch.nn.Linear(context, 2 * dims)
    torch.nn.init.zeros_(net.weight)
    torch.nn.init.zeros_(net.bias)
    return Conditional(net, Affine())


def learned_dequantiser(context: int, dims: int) -> Bijection:
    """Normal noise to noise in (0, 1), as a network says that reads x and what is given."""
    net: MLP = MLP.Config(width=128).build(context, 2 * dims)
    torch.nn.init.zeros_(net.out.weight)
    with torch.no_grad():
        net.out.bias.copy_(torch.tensor([0.0, INITIAL_NOISE_LOG_SCALE]).repeat_interleave(dims))
    return Compose([Conditional(net, Affine()), Logit(torch.ones(dims), 0.0)])


def importance_bound(log_weights: Tensor) -> Likelihood:
    """The bound of log-weights (k, B), and its Monte-Carlo error by the delta method."""
    if len(log_weights) == 1:
        return Likelihood(log_weights[0], "bound")
    value, error = log_mean_exp(log_weights)
    return Likelihood(value, "bound", error)
