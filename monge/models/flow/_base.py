r"""Base of normalising flows: units of the data, dequantisation, likelihoods and codes.

$x = f(z, c)$, $z \sim N(0, I)$: $\log p(x | c) = \log N(z; 0, I) + \log|\det \partial z/\partial
x|$ at $z = f^{-1}(x, c)$. Reals are standardised, with the log-determinant of the scale included,
so that their likelihood is exact. A discrete x is dequantised to [x, x + 1) by noise u ~ q(u | x),

$\log P(x) = \log \int_{[0, 1)^D} p(x + u) du \ge E_q \log \frac1k \sum_i p(x + u_i) / q(u_i | x)$

(Theis et al. 2016; Ho et al. 2019), a bound that rises with k. Uniform noise has q = 1; learned
noise is a logistic-normal distribution of each entry whose parameters a network computes from x.
Tables have coordinates and a first layer of their own (`_tables.py`).
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
from ...core.model import Model
from ...core.rng import derive_seed, keyed_uniform, seed_of
from ...core.space import Space
from ...nn.inputs.features import Conditions, Features
from ...nn.layers.linear import Linear
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.coupling import ConditionalBijection
from ...prob.bijections.elementwise import Logit
from ...prob.bijections.univariate import AffineMap
from ...prob.distributions import log_mean_exp, normal_log_prob_rows
from .._ordering import check_codes, check_no_missing
from ._tables import TableConfig, TableUnits
from ._units import data_units, value_limits

INITIAL_NOISE_LOG_SCALE = 0.5
"""Initial log-scale of learned noise: a logistic-normal distribution that is nearly uniform."""

MAX_INIT_ELEMENTS = 2**17
"""Entries of training rows that initialise scales before the first step."""


class Flow(Model, HasLikelihood, HasBijection, CanSample, CanEncode, CanDecode):
    """p(x | given) by an invertible map of N(0, I), or of N(mu(given), sigma(given)^2)."""

    events = {"real", "binary", "levels", "counts", "columns"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}

    class Config(Model.Config):
        margin: Annotated[float, Range(0, 0.4)] = 1e-4
        """Levels pass through logit(m + (1 - 2m) x) with this m; 0 standardises them instead. A
        small one turns uniform noise into logistic noise, which is close to Gaussian."""
        noise: Literal["uniform", "learned"] = "uniform"
        """Dequantisation of discrete data: uniform noise, or a distribution learned from x."""

    class SamplingConfig(BaseConfig):
        neutral = {"temperature": (1.0,)}
        temperature: Annotated[float, Range(0)] = 1.0
        """Scale of the latent noise: below 1 samples are more typical and less diverse."""

    class LikelihoodConfig(BaseConfig):
        samples: Annotated[int, Range(1)] = 1
        """Discrete data: samples of the dequantisation noise; more tighten the bound."""

    min_init_rows: ClassVar[int] = 0
    """Minimum number of training rows per entry for the initialisation from data."""

    config: Config
    low: Tensor
    high: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.name = type(self).__name__.lower()
        self.latent = Space(kind="real", shape=(space.dims,))
        self.conditions = Conditions(space)
        self.ends = self.build_inner(self.conditions.width), self.build_outer()
        self.map = Compose(self.ends)
        low, high = value_limits(space)  # NaN for reals
        table = self.table
        self.discrete = table.cells.has_states if table else not bool(low.isnan().all())
        self.register_buffer("low", low, persistent=False)  # (D,)
        self.register_buffer("high", high, persistent=False)
        self.features = Features(space) if self.discrete else None
        self.dequantiser = (
            learned_dequantiser(self.features.width + self.conditions.width, space.dims)
            if (self.features and config.noise == "learned")
            else None
        )

    def build_inner(self, context: int) -> Bijection:
        """The map from z to standardised coordinates; conditions first set the mean and the scale
        of z."""
        layers = self.build_layers(context)
        return Compose([conditional_base(context, self.space.dims), layers]) if context else layers

    def build_outer(self) -> Bijection:
        """The map from standardised coordinates to the units of the data, or for names, counts
        and mixed numbers of a table to coordinates of their cells."""
        if self.space.kind != "columns":
            return data_units(self.space, self.config.margin)
        assert isinstance(self.config, TableConfig), "expected a flow that takes tables"
        config, columns = self.config, self.space.columns
        return TableUnits(columns, config.table_net, self.context_width, config.optional_first)

    @property
    def context_width(self) -> int:
        """How many numbers of conditions the map reads."""
        return self.conditions.width

    @property
    def table(self) -> TableUnits | None:
        """The layer nearest to the data of a table."""
        return self.outer if isinstance(self.outer, TableUnits) else None

    @abc.abstractmethod
    def build_layers(self, context: int) -> Bijection:
        """The map from z to standardised coordinates, (B, D), reading `context` numbers of
        conditions."""

    @torch.no_grad()
    def initialise_from_data(self, batch: Batch) -> None:
        if self.table:
            check_no_missing(self.name, batch)
            self.table.fit(self.flat(batch))
        batch = self.init_rows(batch)
        uniform = keyed_uniform(batch.rows, self.latent.shape) if self.discrete else None
        y, _ = self.dequantise(batch, uniform)
        self.map.initialise_from_data(y, self.context(batch.given, len(y)))

    def init_rows(self, batch: Batch) -> Batch:
        """The rows that initialise scales."""
        dims = self.space.dims
        most = min(max(MAX_INIT_ELEMENTS // dims, 64, self.min_init_rows * dims), len(batch))
        return batch[torch.arange(most) * len(batch) // most]

    def dequantisation_noise(self, batch: Batch) -> Tensor | None:
        """Uniform noise (B, D) for a training batch; None if all entries are reals."""
        return torch.rand_like(self.flat(batch)) if self.discrete else None

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, self.LikelihoodConfig), "expected likelihood options"
        if not self.discrete:
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
        """log p(y) - log q(y - x) of rows dequantised by uniform noise (B, D), (B,)."""
        y, log_q = self.dequantise(batch, uniform)
        z, log_det = self.map.inverse(y, self.context(batch.given, len(y)))
        log_p = normal_log_prob_rows(z) + log_det
        return log_p if uniform is None else log_p - log_q

    def dequantise(self, batch: Batch, uniform: Tensor | None) -> tuple[Tensor, Tensor | float]:
        """Dequantised rows y (B, D), and log q of their noise, 0 for uniform noise; of a table
        log q of its coordinates."""
        check_no_missing(self.name, batch)
        x = self.flat(batch)
        if uniform is None:
            return x, 0.0
        uniform = uniform.to(x.dtype)
        if self.space.kind in ("binary", "levels"):
            check_codes(self.name, self.space, x)
        if self.dequantiser is None:
            return self.move(x, uniform, 0.0)
        assert self.features is not None
        features, context = self.features(batch), self.context(batch.given, len(x))
        features = features if context is None else torch.cat([features, context], 1)
        normal = torch.special.ndtri(uniform.clamp(1e-6, 1 - 1e-6))
        u, log_det = self.dequantiser(normal, features)
        return self.move(x, u, normal_log_prob_rows(normal) - log_det)

    def move(self, x: Tensor, u: Tensor, log_q: Tensor | float) -> tuple[Tensor, Tensor | float]:
        """y (B, D) at noise u of log-density log q, and log q of y."""
        if self.table:
            y, log_slopes = self.table.cells.place(x, u)
            return y, log_q - log_slopes.sum(1)
        return torch.where(self.low.isnan(), x, x + u), log_q

    def midpoints(self, batch: Batch) -> Tensor:
        """y (B, D) with discrete entries at the middle of their interval."""
        x = self.flat(batch)
        return self.move(x, torch.full_like(x, 0.5), 0.0)[0] if self.discrete else x

    def sample_latent(
        self, n: int, options: BaseConfig | None, generator: Generator | None
    ) -> Tensor:
        """z ~ N(0, temperature^2 I), (n, D)."""
        options = options or self.SamplingConfig()
        assert isinstance(options, Flow.SamplingConfig), "expected sampling options"
        z = torch.randn(
            n,
            *self.latent.shape,
            generator=generator,
            dtype=self.low.dtype,
            device=self.low.device,
        )
        return options.temperature * z

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        """The code of each row; of discrete entries, that of the middle of their interval."""
        batch = as_batch(batch)
        check_no_missing(self.name, batch)
        return self.pull(self.midpoints(batch), batch.given)[0]

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        context = self.context(given or {}, len(z))
        return self.to_data(self.inner(z, context)[0], context)

    def to_data(self, w: Tensor, context: Tensor | None) -> Tensor:
        """Events at standardised coordinates (B, D), in the support of the data."""
        y, _ = self.outer(w, context)
        if self.table:
            y = self.table.cells.decode(y)
        elif self.discrete:
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
        """Encoded conditions that the map reads, (n, context); None without conditions."""
        if not (given or self.space.given):
            return None
        return self.conditions(broadcast_conditions(given, self.space, n), n)

    def flat(self, batch: Batch) -> Tensor:  # (B, D)
        x, dtype = batch.x, self.low.dtype
        return x if x.ndim == 2 and x.dtype == dtype else x.reshape(len(x), -1).to(dtype)


def conditional_base(context: int, dims: int) -> Bijection:
    """N(0, I) to N(mu(c), sigma(c)^2), the identity at initialisation."""
    net = Linear(context, 2 * dims)
    torch.nn.init.zeros_(net.weight)
    torch.nn.init.zeros_(net.bias)
    return ConditionalBijection(net, AffineMap())


def learned_dequantiser(context: int, dims: int) -> Bijection:
    """Normal noise to noise in (0, 1), by a network that reads x and the conditions."""
    net: MLP = MLP.Config(width=128).build(context, 2 * dims)
    torch.nn.init.zeros_(net.out.weight)
    with torch.no_grad():
        net.out.bias.copy_(torch.tensor([0.0, INITIAL_NOISE_LOG_SCALE]).repeat_interleave(dims))
    return Compose([ConditionalBijection(net, AffineMap()), Logit(torch.ones(dims), 0.0)])


def importance_bound(log_weights: Tensor) -> Likelihood:
    """The bound of log-weights (k, B), and its Monte-Carlo error by the delta method."""
    if len(log_weights) == 1:
        return Likelihood(log_weights[0], "bound")
    value, error = log_mean_exp(log_weights)
    return Likelihood(value, "bound", error)
