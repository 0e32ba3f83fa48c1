r"""Deep NADE: one network for every order, predicts any entry from any subset of the others

One network reads $[f(x) \odot m; m]$, where m marks the observed entries S, and computes the
distribution of every entry given them (Uria, Murray and Larochelle 2014); with convolutions it is
ConvNADE (Uria et al. 2016). With o a random order and d uniform in 1..D,

$E_{o, d} \frac{D}{D - d + 1} \sum_{i \ge d} \log p(x_{o_i} | x_{o_{<d}}) = E_o \log p_o(x)$,

so one pass with one random subset per row trains all D! orders at once. Only S matters: its size
is uniform in 0..D-1, and all sets of a size are equally likely.

Orders disagree on p(x), so the distribution is defined by K fixed orders, part of the
configuration; their uniform mixture is both scored and sampled. An exact likelihood takes D passes
per order. If these are too many, it is D times the mean of some conditionals, sampled from all K D
without replacement: unbiased for the mean over orders of log p_o(x), which is log p(x) if K = 1
(an estimate) and at most log p(x) otherwise (a bound).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, cast

import torch
from torch import Generator, Tensor

from ...core.abilities import Given, HasSubsets, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.rng import keyed_uniform, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.autoregressive.any_order import (
    ConvSubsetNet,
    DenseSubsetNet,
    ObservedRows,
    RevealOrder,
    SubsetNet,
)
from ...nn.autoregressive.masked_mlp import EntryStepper
from ...prob.distributions import sample_categorical
from ._base import ROWS_PER_PASS, AutoregressiveModel, RowGroup
from ._orders import Order, Orders

MAX_PRODUCTS_PER_ROW = 1 << 29
"""Multiplications per row up to which a likelihood uses all conditionals."""
MIN_PASSES = 8
"""Least number of conditionals of an estimated likelihood."""
SMALL_EVENT_DIMS = 256
"""Pixels or entries up to which the defaults use convolutions or several orders."""


class DeepNADE(AutoregressiveModel, HasSubsets):
    r"""p(x | c) = (1/K) sum_k prod_i p(x_i | entries before i in order k, c).

    Any pattern can be completed, along orders that start with the observed entries: member k is
    sampled by its likelihood of the observed entries in its order, then the hidden entries follow
    in its order, weighted by the probability that none of them is empty. If the observed entries
    come first in every order (or nothing is observed), this samples p(hidden | observed) exactly;
    otherwise the orders disagree and the result is the network's approximation, which for one
    hidden entry is its conditional given all others.
    """

    class Config(AutoregressiveModel.Config, Orders):
        tag = "model/autoregressive.deep_nade"
        orders: Annotated[int, Range(1, MAX_LAYERS)] = 4
        """Number of orders in the mixture; more are better, slower to score, and cost nothing
        in training."""
        order: Order = "random"
        """First order: natural, snake (image rows in alternating direction), random, or given (by
        `sequence`); further orders are random."""
        net: SubsetNet.Config = DenseSubsetNet.Config()
        """Network from the observed entries to all distributions: dense, or conv for images."""

    class LikelihoodConfig(BaseConfig):
        passes: Annotated[int, Range(0)] = 0
        """Conditionals evaluated per row: orders times entries is exact, fewer an
        estimate (a bound with several orders); 0 takes all unless they cost too much."""

    config: Config
    weighs_observed = False

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.places(space))
        self.net: SubsetNet = config.net.build(
            space.shape, self.features.owner, self.head.owner, self.conditions.width
        )
        self.init_output_bias()

    def init_output_bias(self) -> None:
        self.net.init_output_bias(self.head.initial_params())

    def loss(self, batch: Batch) -> Losses:
        """-D / (D - |S|) sum_{i not in S} log p(x_i | x_S), with a random subset S per row."""
        self.check_no_missing(batch)
        observed = self.random_subsets(len(batch))  # (B, D)
        return {"nll": -self.orderless(batch, observed)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x_i ~ p(x_i | entries before i in the row's order), one entry after the other."""
        batch = self.unobserved_rows(n, given)
        with torch.inference_mode():
            for rows in self.row_groups(batch, options, generator):
                for place in range(self.space.dims):
                    params = rows.steps.parameters(place)  # (m, P_i)
                    rows.steps.feed(place, rows.sample_entry(place, params))
                batch.x[rows.index] = rows.x.T
        return self.to_event(batch.x)

    def random_subsets(self, n: int) -> Tensor:
        """A random subset for each row, (n, D), its size uniform in 0..D-1.

        One entry is hidden and the others are observed with probability u each: as u is
        uniform, so is the size. The u of a batch are stratified, which lowers the loss
        variance.
        """
        dims, device = self.space.dims, self.blank.device
        rows = torch.arange(n, device=device)
        u = (torch.rand((), device=device) + rows / n) % 1  # (n,)
        seen = torch.rand(n, dims, device=device) < u[:, None]
        seen[rows, torch.randint(dims, (n,), device=device)] = False
        return seen

    def orderless(self, batch: Batch, seen: Tensor) -> Tensor:
        log_p = self.predictions(batch, seen).masked_fill(seen, 0.0)  # (B, D)
        return self.space.dims * log_p.sum(1) / (~seen).sum(1)

    def predictions(self, batch: Batch, seen: Tensor) -> Tensor:
        features = self.features(batch).masked_fill(~seen[:, self.features.owner], 0.0)
        known = ObservedRows(features, seen, self.context(batch))
        return self.head.log_prob(self.net(known), self.flat(batch.x))

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        passes = self.affordable(
            cast(DeepNADE.LikelihoodConfig, options or self.LikelihoodConfig()).passes
        )
        if passes >= self.places.numel():
            return super().likelihood(batch)
        return self.estimate(as_batch(batch), passes, seed_of(generator))

    def affordable(self, passes: int) -> int:
        return passes or max(MAX_PRODUCTS_PER_ROW // self.net.work, MIN_PASSES)

    def estimate(self, batch: Batch, passes: int, seed: int) -> Likelihood:
        """D times the mean of randomly chosen conditionals of all orders."""
        self.check_no_missing(batch)
        members, dims = self.places.shape
        which = keyed_uniform(batch.rows, (members * dims,), seed).argsort(1)[:, :passes]
        terms = torch.stack([self.conditional(batch, one) for one in which.T])  # (passes, B)
        left = 1 - passes / (
            members * dims
        )  # finite-population correction: sampled without replacement
        error = dims * terms.std(0) * math.sqrt(left / passes) if passes > 1 else None
        return Likelihood(dims * terms.mean(0), "estimate" if members == 1 else "bound", error)

    def conditional(self, batch: Batch, which: Tensor) -> Tensor:
        """One conditional of each row, numbered by position within each order, (B,)."""
        places = self.places[which // self.space.dims]  # (B, D)
        place = (which % self.space.dims)[:, None]
        return self.predictions(batch, places < place)[places == place]

    def outputs(self, batch: Batch, member: int) -> Tensor:
        """Each conditional is given the observed entries before it in the order."""
        x, seen = self.flat(batch.x), batch.observed_mask.reshape(len(batch), -1)
        steps = self.pass_along(member, self.nothing_known(self.context(batch)), seen)
        entries = self.places[member].argsort().tolist()
        parts = {}
        for place, entry in enumerate(entries):
            parts[entry] = steps.parameters(place)  # (B, P_i)
            steps.feed(place, self.features.entry(entry, x[:, entry]))
        return torch.cat([parts[entry] for entry in range(len(entries))], 1)

    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], EntryStepper]:
        def start(context: Tensor) -> EntryStepper:
            nothing = self.nothing_known(context)
            return self.pass_along(member, nothing, ~nothing.seen, cached)

        return start

    def pass_along(
        self, member: int, known: ObservedRows, news: Tensor, cached: bool = True
    ) -> EntryStepper:
        """An entrywise pass along the member's order that starts from the known entries; `news`
        (n, D) marks the entries that each row learns on the way."""
        return self.net.stepper(
            known, RevealOrder(self.places[member].argsort().tolist(), news), cached
        )

    def nothing_known(self, context: Tensor) -> ObservedRows:
        features = self.blank.new_zeros(len(context), self.features.width)
        return ObservedRows(
            features, features.new_zeros(len(context), self.space.dims).bool(), context
        )

    def row_groups(
        self, batch: Batch, options: BaseConfig | None, generator: Generator | None
    ) -> Iterator[RowGroup]:
        """The rows grouped by member and chunk; all observed entries are known from the start."""
        cached = cast(DeepNADE.SamplingConfig, options or self.SamplingConfig()).cached
        noise = self.head.noise(len(batch), generator)  # (n, D, 2)
        known = ObservedRows(
            self.features(batch), batch.observed_mask, self.conditions(batch.given, len(batch))
        )
        member = self.sample_members(batch, generator)  # (n,)
        for k, places in enumerate(self.places):
            for rows in (member == k).nonzero()[:, 0].split(ROWS_PER_PASS):
                if len(rows):
                    steps = self.pass_along(k, known[rows], ~known.seen[rows], cached)
                    yield self.row_group(rows, places.argsort().tolist(), steps, noise, batch)

    def sample_members(self, batch: Batch, generator: Generator | None) -> Tensor:
        weights = self.member_weights(batch)
        uniform = self.blank.new_empty(len(batch)).uniform_(generator=generator)
        return sample_categorical(weights, uniform)

    def member_weights(self, batch: Batch) -> Tensor:
        """log p of the observed entries, which only matters where there are several orders."""
        if len(self.places) == 1 or not bool(batch.observed_mask.any()):
            return super().member_weights(batch)
        return self.known_log_prob(batch)

    def known_log_prob(self, batch: Batch) -> Tensor:
        """log p of the observed entries of flat rows in the order of each member, (n, K)."""
        members = range(len(self.places))
        log_ps = [self.head.log_prob(self.outputs(batch, k), batch.x) for k in members]
        return torch.stack([log_p.where(batch.observed_mask, 0.0).sum(1) for log_p in log_ps], 1)

    def observed_log_prob(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        rows = self.known_rows(batch)
        known = self.known_log_prob(rows).double()
        known = known.logsumexp(1) - math.log(len(self.places))
        weighted = self.needs_weights(rows.observed_mask)
        chosen = cast(DeepNADE.SamplingConfig, options or self.SamplingConfig())
        if bool(weighted.any()):
            filled = self.fill_by_particles(
                rows[weighted], chosen.particles, chosen.cached, generator
            )
            alone = len(self.places) == 1  # else the weights of the members are part of it
            known[weighted] = filled.log_mean + (known[weighted] if alone else 0.0)
        return known

    def particle_steps(self, member: int, rows: Batch, cached: bool) -> EntryStepper:
        known = ObservedRows(
            self.features(rows), rows.observed_mask, self.conditions(rows.given, len(rows))
        )
        return self.pass_along(member, known, ~known.seen, cached)

    @property
    def completion(self) -> str:
        approximate = (
            "sampled entry by entry after the observed ones, which is exact if these come first "
            "in every order, and else as far as the orders agree"
        )
        if self.effective is None:
            return approximate
        return f"{approximate}; {super().completion}"

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Small images use convolutions, which need fewer rows. Held-out likelihoods of many
        passes are evaluated only after training has taken twice their time."""
        if space.is_image and math.prod(space.shape[1:]) <= SMALL_EVENT_DIMS:
            config = cls.Config(orders=1, net=ConvSubsetNet.Config())
            return Defaults(
                config, TrainConfig(batch_size=32, lr=2e-3, ema_decay=0.995, eval_every=300)
            )
        orders, width, batch = 4 if space.dims <= SMALL_EVENT_DIMS else 1, 500, 128
        net = DenseSubsetNet.Config(width=width, dropout=0.3 if space.rows < 2000 else 0.0)
        score = orders * space.dims * min(space.rows // 8, 4096) * width
        step = 3 * batch * (width + 3 * space.dims)
        train_config = TrainConfig(
            batch_size=batch, ema_decay=0.995, eval_every=max(2 * score // step, 100)
        )
        return Defaults(cls.Config(orders=orders, net=net), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(orders=2, components=2, net=DenseSubsetNet.Config(width=16))
