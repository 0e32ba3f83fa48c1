r"""Deep NADE: one network for every order, any entry given any others

One network reads $[f(x) \odot m; m]$, m saying which entries S are seen, and puts out the law of
every entry given them (Uria, Murray and Larochelle 2014); with convolutions it is ConvNADE (Uria
et al. 2016). With o a random order and d uniform in 1..D,

$E_{o, d} \frac{D}{D - d + 1} \sum_{i \ge d} \log p(x_{o_i} | x_{o_{<d}}) = E_o \log p_o(x)$,

so one pass and one random subset a row train all D! orders at once. Only S matters: its size is
uniform in 0..D-1 and, given that, every set of this size is as likely.

Orders disagree on p(x), so there is a law only once they are fixed: K of them, a part of the
configuration, whose mean is both scored and sampled. A score takes D passes an order. Where these
are too many it takes D times the mean of some conditionals, drawn at random from all K D without
replacement: unbiased for the mean over orders of log p_o(x), which is log p(x) itself where K = 1
(an estimate) and at most log p(x) otherwise (a bound).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, cast

import torch
from torch import Generator, Tensor

from ...core.abilities import HasSubsets, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.rng import keyed_uniform, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.autoregressive.any_order import Conv, Dense, Known, SubsetNet, Walk
from ...nn.autoregressive.masked_mlp import Stepping
from ...prob.distributions import pick
from ._base import ROWS, Ordered, _Draw
from ._orders import Order, Orders

WORK = 1 << 29
"""Products a row is scored with before conditionals are left out."""
FEWEST = 8
"""Conditionals that are taken at least."""
SMALL = 256
"""Pixels or entries up to which a suit is generous: with convolutions, with orders."""


class DeepNADE(Ordered, HasSubsets):
    r"""p(x | c) = (1/K) sum_k prod_i p(x_i | entries before i in order k, c).

    A completion is drawn, for any pattern, along orders that begin with what is seen: with member
    k, chosen in proportion to what it makes of the seen entries in its order of those alone, the
    hidden entries follow in its order. Where the seen entries come first in every order, as where
    nothing is seen, this is p(hidden | seen) exactly; otherwise orders disagree and it is the
    network's own answer, which for one hidden entry is its conditional given all others.
    """

    class Config(Ordered.Config, Orders):
        tag = "model/autoregressive.deep_nade"
        orders: Annotated[int, Range(1)] = 4
        """How many orders of the entries the law is the mean over; more are better and slower to
        score, and cost nothing in training."""
        order: Order = "random"
        """The first order: as the entries stand, the rows of a picture to and fro (snake),
        shuffled (random), or as `sequence` has it (given); further orders are shuffled."""
        net: SubsetNet.Config = Dense.Config()
        """Network from the seen entries to the laws of all: dense, or conv for pictures."""

    class LikelihoodConfig(BaseConfig):
        passes: Annotated[int, Range(0)] = 0
        """Conditionals a row is scored by: all orders times entries make the score exact, fewer
        an estimate of it (a bound with several orders); 0 takes all that are affordable."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.places(space))
        self.net: SubsetNet = config.net.build(
            space.shape, self.features.owner, self.head.owner, self.conditions.width
        )
        self.settle()

    def settle(self) -> None:
        self.net.settle(self.head.start())

    def loss(self, batch: Batch) -> Losses:
        self.check_whole(batch)
        return {"nll": -self.orderless(batch, self.subsets(len(batch)))}

    def subsets(self, n: int) -> Tensor:
        """A random subset for each row, (n, D), its size uniform in 0..D-1.

        One entry is hidden and the others are seen with probability u each: with u uniform, so is
        the size. The u of a batch are spread evenly, which quietens the mean of the loss.
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
        known = Known(features, seen, self.context(batch))
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
        return passes or max(WORK // self.net.work, FEWEST)

    def estimate(self, batch: Batch, passes: int, seed: int) -> Likelihood:
        """D times the mean of some of the conditionals of all orders."""
        self.check_whole(batch)
        members, dims = self.places.shape
        which = keyed_uniform(batch.rows, (members * dims,), seed).argsort(1)[:, :passes]
        terms = torch.stack([self.conditional(batch, one) for one in which.T])  # (passes, B)
        left = 1 - passes / (members * dims)  # without replacement, only what is left out varies
        error = dims * terms.std(0) * math.sqrt(left / passes) if passes > 1 else None
        return Likelihood(dims * terms.mean(0), "estimate" if members == 1 else "bound", error)

    def conditional(self, batch: Batch, which: Tensor) -> Tensor:
        """One conditional of each row, numbered place by place within order by order, (B,)."""
        places = self.places[which // self.space.dims]  # (B, D)
        place = (which % self.space.dims)[:, None]
        return self.predictions(batch, places < place)[places == place]

    def outputs(self, batch: Batch, member: int) -> Tensor:
        """Each conditional is given those entries before it in the order that were seen."""
        x, seen = self.flat(batch.x), batch.observed_mask.reshape(len(batch), -1)
        steps = self.walk(member, self.nothing(self.context(batch)), seen)
        entries = self.places[member].argsort().tolist()
        parts = {}
        for place, entry in enumerate(entries):
            parts[entry] = steps.parameters(place)  # (B, P_i)
            steps.feed(place, self.features.entry(entry, x[:, entry]))
        return torch.cat([parts[entry] for entry in range(len(entries))], 1)

    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], Stepping]:
        def start(context: Tensor) -> Stepping:
            nothing = self.nothing(context)
            return self.walk(member, nothing, ~nothing.seen, cached)

        return start

    def walk(self, member: int, known: Known, news: Tensor, cached: bool = True) -> Stepping:
        """From what is known along the member's order, where each entry is new to some rows."""
        return self.net.stepper(known, Walk(self.places[member].argsort().tolist(), news), cached)

    def nothing(self, context: Tensor) -> Known:
        features = self.blank.new_zeros(len(context), self.features.width)
        return Known(features, features.new_zeros(len(context), self.space.dims).bool(), context)

    def draws(
        self, batch: Batch, options: BaseConfig | None, generator: Generator | None
    ) -> Iterator[_Draw]:
        """The rows by member and in pieces, each knowing all that is seen from the start."""
        cached = cast(DeepNADE.SamplingConfig, options or self.SamplingConfig()).cached
        noise = self.head.noise(len(batch), generator)  # (n, D, 2)
        known = Known(
            self.features(batch), batch.observed_mask, self.conditions(batch.given, len(batch))
        )
        member = self.choose(batch, generator)  # (n,)
        for k, places in enumerate(self.places):
            for rows in (member == k).nonzero()[:, 0].split(ROWS):
                if len(rows):
                    steps = self.walk(k, known[rows], ~known.seen[rows], cached)
                    yield self.draw(rows, places.argsort().tolist(), steps, noise, batch)

    def choose(self, batch: Batch, generator: Generator | None) -> Tensor:
        members = range(len(self.places))
        weights = batch.x.new_zeros(len(batch), len(members))
        if len(members) > 1 and bool(batch.observed_mask.any()):
            made = [self.head.log_prob(self.outputs(batch, k), batch.x) for k in members]
            weights = torch.stack(
                [log_p.where(batch.observed_mask, 0.0).sum(1) for log_p in made], 1
            )
        uniform = self.blank.new_empty(len(batch)).uniform_(generator=generator)
        return pick(weights, uniform)

    def check_prefix(self, seen: Tensor) -> None:
        """Any pattern is served."""

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Small pictures are read by convolutions, which learn them from few rows. Held-out scores
        of many passes wait until training has taken twice their time."""
        if space.is_picture and math.prod(space.shape[1:]) <= SMALL:
            config = cls.Config(orders=1, net=Conv.Config())
            return Defaults(
                config, TrainConfig(batch_size=32, lr=2e-3, ema_decay=0.995, eval_every=300)
            )
        orders, width, batch = 4 if space.dims <= SMALL else 1, 500, 128
        net = Dense.Config(width=width, dropout=0.3 if space.rows < 2000 else 0.0)
        score = orders * space.dims * min(space.rows // 8, 4096) * width
        step = 3 * batch * (width + 3 * space.dims)
        recipe = TrainConfig(
            batch_size=batch, ema_decay=0.995, eval_every=max(2 * score // step, 100)
        )
        return Defaults(cls.Config(orders=orders, net=net), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(orders=2, components=2, net=Dense.Config(width=16))
