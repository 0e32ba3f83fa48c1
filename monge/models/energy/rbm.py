r"""Restricted Boltzmann machine (RBM): bits and hidden units with pairwise energies

$E(v, h) = -a^\top v - b^\top h - v^\top W h$ over visible bits v and hidden bits h, and
$p(v) = e^{-F(v)} / Z$ with the free energy
$F(v) = -a^\top v - \sum_j \log(1 + e^{b_j + (W^\top v)_j})$ (Smolensky 1986). Units of one side
are independent given the other, so that Gibbs sampling takes turns between them. The gradient of
$\log p(v)$ is $-\nabla F(v) + E_p \nabla F$; the expectation is estimated by chains that go on
from step to step (Tieleman 2008), or by chains of a few turns that start at the data (contrastive
divergence, Hinton 2002). Z is a sum over all states of the smaller side if these are few;
otherwise annealed importance sampling estimates it (Salakhutdinov & Murray 2008).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ...core.abilities import CanComplete, CanEncode, CanSample, Given, HasLikelihood, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import DataError
from ...core.model import Defaults, Losses, Model, Update
from ...core.rng import derive_seed, make_generator, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from .._annealing import NormaliserCache, anneal, log_mean

MAX_ENUMERATED = 16
"""Units of the smaller side up to which all of its states are summed."""
STATES_PER_BLOCK = 1 << 12
"""States that are summed at once."""


class RBM(Model, HasLikelihood, CanSample, CanComplete, CanEncode):
    r"""$p(v) \propto \sum_h e^{-E(v, h)}$ over vectors or images of bits."""

    events = {"binary"}
    completion = "sampled by Gibbs turns between hidden units and unknown bits, approximate"

    class Config(Model.Config):
        tag = "model/energy.rbm"
        hidden: Annotated[int, Range(1)] = 128
        """Hidden units."""
        chains: Annotated[int, Range(0)] = 128
        """Chains that go on from step to step; 0: contrastive divergence, from the data."""
        turns: Annotated[int, Range(1)] = 1
        """Gibbs turns of the chains in each step."""

    class SamplingConfig(BaseConfig):
        turns: Annotated[int, Range(1)] = 1000
        """Gibbs turns of samples and completions; of a small machine samples are exact without
        them."""

    class LikelihoodConfig(BaseConfig):
        temperatures: Annotated[int, Range(2)] = 2000
        """Steps of annealed importance sampling, where Z is not summed exactly."""
        runs: Annotated[int, Range(2)] = 64
        """Runs of annealed importance sampling, from whose spread the standard error follows."""

    config: Config
    states: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.latent = Space(kind="binary", shape=(config.hidden,))
        self.weight = nn.Parameter(0.01 * torch.randn(space.dims, config.hidden))
        self.visible = nn.Parameter(torch.zeros(space.dims))
        self.hidden = nn.Parameter(torch.zeros(config.hidden))
        self.register_buffer("states", torch.zeros(max(config.chains, 1), space.dims))
        self.normaliser = NormaliserCache()

    def loss(self, batch: Batch) -> Losses:
        """F(v) of data less that of the chains: its gradient is that of -log p(v), estimated."""
        v = self.flat(batch)
        chains = self.states if self.config.chains else self.turn(v, self.config.turns)
        gap = self.free_energy(v) - self.free_energy(chains).mean()
        return {"energy": gap}

    def updates(self) -> list[Update]:
        updates = [Update("model", self.loss, [*self.parameters()])]
        return [Update("chains", self.move_chains), *updates] if self.config.chains else updates

    def move_chains(self, batch: Batch) -> Losses:
        """Some Gibbs turns of the chains."""
        self.states.copy_(self.turn(self.states, self.config.turns))
        return {"energy": self.free_energy(self.states).mean().detach()}

    def initialise_from_data(self, batch: Batch) -> None:
        """Visible units alone have the means of the data (Hinton 2012); chains start at rows."""
        v = self.flat(batch)
        mean = (v.sum(0) + 0.5) / (len(v) + 1)
        with torch.no_grad():
            self.visible.copy_(mean.logit())
            self.states.copy_(v[torch.randint(len(v), (len(self.states),), device=v.device)])

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """h ~ p(h) of a small machine, then v ~ p(v | h); otherwise by Gibbs turns from noise."""
        chosen = options or self.SamplingConfig()
        assert isinstance(chosen, self.SamplingConfig), "expected a SamplingConfig"
        if self.is_small:
            side = torch.cat([*self.smaller_states()])  # (2^m, m)
            log_p = torch.cat([self.log_weight(part) for part in self.smaller_states()])
            which = torch.multinomial(log_p.softmax(0), n, True, generator=generator)
            v = side[which]
            v = v if self.sums_visible else self.sample_visible(v, generator)
        else:
            start = self.visible.new_empty(n, self.space.dims)
            v = start.bernoulli_(0.5, generator=generator)
            v = self.turn(v, chosen.turns, generator)
        return v.double().reshape(n, *self.space.shape)

    # Both sides

    def flat(self, batch: Batch) -> Tensor:  # (B, D)
        if batch.observed is not None and not bool(batch.observed.all()):
            raise DataError(
                "expected rows without missing values, found some; rbm does not sum over them: "
                "complete them first, or choose another model"
            )
        return batch.x.reshape(len(batch), -1).to(self.visible)

    def free_energy(self, v: Tensor) -> Tensor:  # (B, D) -> (B,)
        return -v @ self.visible - F.softplus(self.hidden + v @ self.weight).sum(-1)

    def hidden_probabilities(self, v: Tensor) -> Tensor:
        """p(h_j = 1 | v), (B, hidden)."""
        return (self.hidden + v @ self.weight).sigmoid()

    def visible_probabilities(self, h: Tensor) -> Tensor:
        """p(v_i = 1 | h), (B, D)."""
        return (self.visible + h @ self.weight.T).sigmoid()

    def sample_visible(self, h: Tensor, generator: Generator | None = None) -> Tensor:
        return torch.bernoulli(self.visible_probabilities(h), generator=generator)

    @torch.no_grad()
    def turn(self, v: Tensor, turns: int, generator: Generator | None = None) -> Tensor:
        """h ~ p(h | v), v ~ p(v | h), some times."""
        for _ in range(turns):
            h = torch.bernoulli(self.hidden_probabilities(v), generator=generator)
            v = self.sample_visible(h, generator)
        return v

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        """The probabilities of the hidden units, (B, hidden)."""
        return self.hidden_probabilities(self.flat(as_batch(batch)))

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        chosen = options or self.SamplingConfig()
        assert isinstance(chosen, self.SamplingConfig), "expected a SamplingConfig"
        seen = batch.observed_mask.reshape(len(batch), -1)
        known = batch.x.reshape(len(batch), -1).to(self.visible)
        noise = torch.empty_like(known).bernoulli_(0.5, generator=generator)
        v = torch.where(seen, known, noise)
        for _ in range(chosen.turns):
            v = torch.where(seen, known, self.turn(v, 1, generator))
        return v.double().reshape(batch.x.shape)

    # The normaliser

    @property
    def sums_visible(self) -> bool:
        return self.space.dims < self.config.hidden

    @property
    def is_small(self) -> bool:
        """Whether all states of the smaller side are summed."""
        return min(self.space.dims, self.config.hidden) <= MAX_ENUMERATED

    def smaller_states(self) -> Iterator[Tensor]:
        """All states of the smaller side, some at a time, (S, units)."""
        units = min(self.space.dims, self.config.hidden)
        powers = 2 ** torch.arange(units, device=self.visible.device)
        for numbers in torch.arange(2**units, device=powers.device).split(STATES_PER_BLOCK):
            yield (numbers[:, None] // powers % 2).to(self.visible)

    def log_weight(self, states: Tensor) -> Tensor:
        """log of the sum of e^-E over the other side, (S,)."""
        if self.sums_visible:
            return -self.free_energy(states)
        return states @ self.hidden + F.softplus(self.visible + states @ self.weight.T).sum(-1)

    def exact_log_z(self) -> Tensor:
        return torch.stack(
            [self.log_weight(s).logsumexp(0) for s in self.smaller_states()]
        ).logsumexp(0)

    @torch.no_grad()
    def annealed_log_z(self, temperatures: int, runs: int, seed: int) -> tuple[Tensor, Tensor]:
        """log Z and its standard error. The path starts at independent bits with the biases a,
        whose Z is known, and multiplies W and b by an inverse temperature that grows to 1."""
        generator = make_generator(seed, self.visible.device)
        start = self.visible.sigmoid().expand(runs, -1)

        def step(v: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
            drive = self.hidden + v @ self.weight  # (runs, H)
            gain = (F.softplus(high * drive) - F.softplus(low * drive)).sum(-1)
            h = torch.bernoulli((high * drive).sigmoid(), generator=generator)
            back = (self.visible + high * (h @ self.weight.T)).sigmoid()
            return torch.bernoulli(back, generator=generator), gain

        _, log_weight = anneal(torch.bernoulli(start, generator=generator), step, temperatures)
        ratio, error = log_mean(log_weight)
        base = F.softplus(self.visible).sum() + self.config.hidden * math.log(2)
        return base + ratio, error

    def log_z(self, options: LikelihoodConfig, seed: int) -> tuple[Tensor, Tensor | None]:
        """log Z, and its standard error if it is estimated, which is done once for weights."""
        if self.is_small:
            return self.exact_log_z(), None
        return self.normaliser.find(
            self,
            (options, seed),
            lambda: self.annealed_log_z(options.temperatures, options.runs, seed),
        )

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        chosen = options or self.LikelihoodConfig()
        assert isinstance(chosen, self.LikelihoodConfig), "expected a LikelihoodConfig"
        log_z, error = self.log_z(chosen, derive_seed(seed_of(generator), "anneal"))
        value = -self.free_energy(self.flat(as_batch(batch))) - log_z
        if error is None:
            return Likelihood(value, "exact")
        return Likelihood(value, "estimate", error.expand(len(value)))

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few = 0 < space.rows < 10_000
        config = cls.Config(hidden=max(min(2 * space.dims, 500), 8))
        train = TrainConfig(
            optimiser="sgd",
            momentum=0.5,
            lr=0.05,
            batch_size=64,
            ema_decay=0.99 if few else 0.998,
            warmup=0,
        )
        return Defaults(config, train)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(hidden=3, chains=32)
