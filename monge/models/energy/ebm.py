r"""Energy-based model (EBM): a network is the energy of vectors, images or rows of numbers

$p(x) = b(x)\, e^{-E(x)} / Z$, $Z = E_b\, e^{-E}$, with a base b that is fitted before the first
step: entries are made nearly normal one at a time, y = g(x), and y is taken as
$N(\mu, L L^\top)$, so that $w = L^{-1} (y - \mu)$ is N(0, I) under b. With E = 0 the model is b,
and p is a density whatever the weights, as E grows linearly at most. Two losses learn E:

- contrastive divergence: $E(x) - E(\tilde x)$ with $\tilde x \sim p$, whose gradient is that of
  $-\log p(x)$ (Hinton 2002). Samples come from a replay buffer of chains that go on from step to
  step, a few of them starting anew from b (Du & Mordatch 2019).
- noise-contrastive estimation: logistic regression of data against samples of b. Its optimum is
  $-E(x) = \log p(x) / b(x)$, the normaliser included (Gutmann & Hyvärinen 2010).

A move of a chain is Langevin's or, with several leaps, Hamiltonian: a momentum $m \sim N(0, I)$ is
drawn, kicks $m \leftarrow m - \frac{\epsilon}{2} \nabla E$ stand before and after a turn of (w, m)
by the angle $\epsilon$, which is exact for b (Shahbaba et al. 2014), and the end is accepted with
probability $\min(1, e^{H - H'})$, $H = (|w|^2 + |m|^2) / 2 + E$. Without acceptance and with less
noise, chains run towards low energies (`noise`), as in Du & Mordatch 2019.

Annealed importance sampling along $b\, e^{-\beta E}$ estimates Z with an error, and its chains,
drawn by their weights and moved on, are the samples. Levels and counts are dequantised by uniform
noise, over which their likelihood is averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ...core.abilities import CanSample, Given, HasLikelihood, HasScore, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Model, Update
from ...core.rng import derive_seed, keyed_uniform, make_generator, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.layers.specs import ActivationSpec, ConvSpec, DenseSpec, FlattenSpec, StackSpec
from ...nn.mlp import MLP
from ...prob.distributions import log_mean_exp, normal_log_prob_rows
from ...prob.marginal_map import KNOTS, MarginalMap
from .._annealing import (
    LARGEST_TURN,
    TARGET_ACCEPTANCE,
    Chains,
    LogZ,
    MoveNoise,
    NormaliserCache,
    NormalPath,
    evaluate_energy,
    leap,
    log_mean,
)
from .._ordering import check_codes, check_no_missing

NUMBERS = ("real", "levels", "counts")
"""Kinds of entries that have an order and a distance."""
MIN_DISCRETE_SCALE = 0.3
"""Smallest scale of whole numbers: that of uniform noise of width one."""
MAX_CORRELATED = 1024
"""Entries up to which the base has correlations."""
MAX_CONTRASTED = 256
"""Entries up to which data are told from the base by default."""
MIN_ROWS_PER_KNOT = 10
"""Rows for each knot of the maps of entries, below which these would follow chance."""
ROWS_PER_PASS = 2048
"""Chains whose energies are computed at once."""
ADAPTATION = 0.02
"""How fast the step size of the chains in training follows the share of moves accepted."""
PILOT_CHAINS = 32
"""Chains by which step sizes are chosen along the path."""


class EBM(Model, HasLikelihood, CanSample, HasScore):
    r"""$p(x) = b(x)\, e^{-E(x)} / Z$ over vectors, images and tables of numbers."""

    events = {"real", "levels", "counts", "columns"}

    class Config(Model.Config):
        tag = "model/energy.ebm"
        net: MLP.Config = MLP.Config(width=128, depth=3)
        """Network of the energy of vectors, and of images with image_net=mlp."""
        image_net: Literal["mlp", "conv"] = "mlp"
        """Network of images: `net`, or convolutions that halve the sides."""
        widths: tuple[Annotated[int, Range(1)], ...] = (32, 64)
        """image_net=conv: channels of each level, first to last; each but the first halves the
        sides."""
        loss: Literal["cd", "nce"] = "cd"
        """cd: contrastive divergence; nce: noise-contrastive estimation against the base."""
        chains: Annotated[int, Range(1)] = 256
        """cd: chains in the replay buffer."""
        moved: Annotated[int, Range(1)] = 128
        """cd: chains that move in each step, and that the data are compared with."""
        moves: Annotated[int, Range(1)] = 2
        """cd: moves of a chain in a step."""
        leaps: Annotated[int, Range(1, MAX_LAYERS)] = 3
        """cd: leaps of a move; 1 for Langevin moves."""
        restart: Annotated[float, Range(0, 1)] = 0.02
        """cd: share of the chains that start anew from the base before they move."""
        noise: Annotated[float, Range(0, 1)] = 1.0
        """cd: scale of the momentum that is drawn. 1: moves are accepted such that chains follow
        the model; less: every move is taken, and chains run towards low energies."""
        step_size: Annotated[float, Range(0, open=True)] = 0.3
        """cd: step size of the chains; with noise=1 only the first one, which is adapted."""
        penalty: Annotated[float, Range(0)] = 0.01
        """cd: weight of the squared energies of data and chains."""
        noise_rows: Annotated[int, Range(1)] = 8
        """nce: samples of the base for each row."""

    class SamplingConfig(BaseConfig):
        temperatures: Annotated[int, Range(1)] = 200
        """Temperatures on the way from the base to the model."""
        chains: Annotated[int, Range(1)] = 256
        """Chains at least, of which samples are drawn in proportion to their weights."""
        moves: Annotated[int, Range(0)] = 50
        """Moves of the samples at the end."""
        leaps: Annotated[int, Range(1, MAX_LAYERS)] = 3
        """Leaps of a move."""

    class LikelihoodConfig(BaseConfig):
        temperatures: Annotated[int, Range(1)] = 200
        """Temperatures of annealed importance sampling."""
        runs: Annotated[int, Range(2)] = 256
        """Chains of annealed importance sampling, from whose spread the standard error follows."""
        leaps: Annotated[int, Range(1, MAX_LAYERS)] = 3
        """Leaps of a move."""
        samples: Annotated[int, Range(1)] = 1
        """Whole numbers: samples of the dequantisation noise."""

    config: Config
    states: Tensor
    step_size: Tensor
    mean: Tensor
    root: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.net = build_energy(config, space)
        self.numbers = MarginalMap([as_real(part) for part in space.parts])
        correlated = space.dims <= MAX_CORRELATED
        self.register_buffer("mean", torch.zeros(space.dims))
        self.register_buffer("root", torch.eye(space.dims) if correlated else torch.ones(1))
        self.register_buffer("states", torch.zeros(config.chains, space.dims))
        self.register_buffer("step_size", torch.tensor(config.step_size))
        low, high = zip(*(ends(part) for part in space.parts), strict=True)
        self.register_buffer("low", torch.tensor(low), persistent=False)  # NaN for reals
        self.register_buffer("high", torch.tensor(high), persistent=False)
        self.discrete = not bool(self.low.isnan().all())
        self.normaliser = NormaliserCache()

    def loss(self, batch: Batch) -> Losses:
        """The energy of data less that of chains, or logistic regression against the base."""
        w, _ = self.whiten(self.dequantise(batch, self.training_noise(batch)))
        if self.config.loss == "nce":
            noise = torch.randn(len(w) * self.config.noise_rows, w.shape[1]).to(w)
            return {"nce": self.regression(w, noise)}
        data, chains = self.energy(w), self.energy(self.states[-self.moved :])
        losses = {"energy": data - chains.mean()}
        if self.config.penalty:
            size = data.square() + chains.square().mean()
            losses["penalty"] = self.config.penalty * size
        return losses

    def regression(self, w: Tensor, noise: Tensor) -> Tensor:
        """-log P(data | w) - sum over the noise (B k, D) of log P(noise | w), (B,), with
        P(data | w) = 1 / (1 + k e^E(w))."""
        share = math.log(len(noise) / len(w))
        own = F.softplus(self.energy(w) + share)
        others = F.softplus(-self.energy(noise) - share).reshape(len(w), -1)
        return own + others.sum(1)

    def updates(self) -> list[Update]:
        updates = [Update("model", self.loss, [*self.parameters()])]
        return [Update("chains", self.move_chains), *updates] if self.moved else updates

    @property
    def moved(self) -> int:
        """Chains that move in each step."""
        return 0 if self.config.loss == "nce" else min(self.config.moved, self.config.chains)

    @torch.no_grad()
    def move_chains(self, batch: Batch) -> Losses:
        """Some moves of the first chains of the buffer, which become its last."""
        config, w = self.config, self.states[: self.moved]
        fresh = torch.rand(len(w), 1, device=w.device) < config.restart
        chains = self.evaluate(torch.where(fresh, torch.randn_like(w), w))
        accepted = []
        for _ in range(config.moves):
            momentum = config.noise * torch.randn_like(w)
            step = self.step_size.reshape(1, 1)
            end, chance = leap(self.evaluate, chains, momentum, 1.0, step, config.leaps)
            accepted.append(chance.mean())
            taken = torch.rand_like(chance) < chance if config.noise == 1 else chance >= 0
            chains = end.where(taken, chains)
        rate = torch.stack(accepted).mean()
        if config.noise == 1:
            larger = self.step_size * (ADAPTATION * (rate - TARGET_ACCEPTANCE)).exp()
            self.step_size.copy_(larger.clamp(max=LARGEST_TURN))
        self.states.copy_(torch.cat([self.states[self.moved :], chains.w]))
        return {"energy": chains.energy.mean(), "accepted": rate}

    @torch.no_grad()
    def initialise_from_data(self, batch: Batch) -> None:
        """Fit the base: maps of the entries, of few rows standardisation, mean and covariance;
        chains start from it."""
        x = self.dequantise(batch, self.training_noise(batch))
        if len(x) >= MIN_ROWS_PER_KNOT * KNOTS:
            self.numbers.fit(x, torch.ones_like(x, dtype=torch.bool))
        y = self.numbers(x)[0].double()
        self.mean.copy_(y.mean(0))
        if self.root.ndim == 2:
            self.root.copy_(torch.linalg.cholesky(shrunk_covariance(y)))
        self.states.normal_()

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Chains from the base to the model, n of them drawn by their weights, moved on."""
        chosen = options or self.SamplingConfig()
        assert isinstance(chosen, self.SamplingConfig), "expected a SamplingConfig"
        path = self.tune(chosen.leaps, generator)
        count = max(n, chosen.chains)
        w, log_weight = path.run(
            self.sample_base(count, generator),
            chosen.temperatures,
            self.move_noise(count, generator),
        )
        chains = self.evaluate(w[resampled(log_weight, n, generator)])
        noise = self.move_noise(n, generator)
        for _ in range(chosen.moves):
            chains, _ = path.attempt(chains, 1.0, noise)
        return self.to_data(chains.w)

    # Coordinates

    def dequantise(self, batch: Batch, uniform: Tensor | None) -> Tensor:
        """x (B, D), whole numbers with uniform noise (B, D) added."""
        check_no_missing("ebm", batch)
        x = batch.x.reshape(len(batch), -1).to(self.mean)
        if uniform is None:
            return x
        check_codes("ebm", self.space, x)
        return torch.where(self.low.isnan(), x, x + uniform.to(x))

    def training_noise(self, batch: Batch) -> Tensor | None:
        """Uniform noise (B, D) for a training batch; None if all entries are reals."""
        return torch.rand(len(batch), self.space.dims).to(self.mean) if self.discrete else None

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """w (B, D) of x (B, D), and log |det dw/dx| (B,)."""
        y, log_slopes = self.numbers(x)
        y = y - self.mean
        if self.root.ndim == 1:
            return y, log_slopes.sum(1)
        w = torch.linalg.solve_triangular(self.root, y.T, upper=False).T
        return w, log_slopes.sum(1) - self.root.diagonal().log().sum()

    def standardised(self, w: Tensor) -> Tensor:
        """y (B, D) of w (B, D)."""
        return self.mean + (w if self.root.ndim == 1 else w @ self.root.T)

    def to_data(self, w: Tensor) -> Tensor:
        """Events at w (B, D), in the support of the data."""
        x = self.numbers.inverse(self.standardised(w))
        if self.discrete:
            x = torch.where(self.low.isnan(), x, x.floor().clamp(self.low, self.high))
        return x.double().reshape(len(w), *self.space.shape)

    # Energies and chains

    def energy(self, w: Tensor) -> Tensor:  # (B, D) -> (B,)
        y = self.standardised(w)
        y = y if isinstance(self.net, MLP) else y.reshape(len(w), *self.space.shape)
        return self.net(y).flatten()

    def evaluate(self, w: Tensor) -> Chains:
        """Energies and their gradients at w (N, D)."""
        pieces = [evaluate_energy(self.energy, some) for some in w.split(ROWS_PER_PASS)]
        energies, slopes = zip(*((each.energy, each.slope) for each in pieces), strict=True)
        return Chains(w, torch.cat(energies), torch.cat(slopes))

    def tune(self, leaps: int, generator: Generator | None) -> NormalPath:
        """The path from the base to the model, with step sizes for it."""
        start = self.sample_base(PILOT_CHAINS, generator)
        noise = self.move_noise(PILOT_CHAINS, generator)
        return NormalPath.tuned(self.evaluate, leaps, start, noise)

    def move_noise(self, n: int, generator: Generator | None) -> MoveNoise:
        """Momenta and uniforms of the moves of n chains, one after the other."""

        def draw() -> tuple[Tensor, Tensor]:
            momentum = self.sample_base(n, generator)
            return momentum, self.mean.new_empty(n).uniform_(generator=generator)

        return draw

    def sample_base(self, n: int, generator: Generator | None) -> Tensor:
        w = self.mean.new_empty(n, self.space.dims)
        return w.normal_(generator=generator)

    # Likelihood

    @torch.no_grad()
    def annealed_log_z(self, options: LikelihoodConfig, seed: int) -> LogZ:
        """log Z and its standard error; that of the base is 0."""
        generator = make_generator(seed, self.mean.device)
        path = self.tune(options.leaps, generator)
        start = self.sample_base(options.runs, generator)
        noise = self.move_noise(options.runs, generator)
        return log_mean(path.run(start, options.temperatures, noise)[1])

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, self.LikelihoodConfig), "expected a LikelihoodConfig"
        seed, chosen = seed_of(generator), options
        log_z, error = self.normaliser.find(
            self,
            (chosen, seed),
            lambda: self.annealed_log_z(chosen, derive_seed(seed, "anneal")),
        )
        noises: list[Tensor | None] = [None]
        if self.discrete:
            noises = [
                keyed_uniform(batch.rows, (self.space.dims,), derive_seed(seed, "spread", k))
                for k in range(chosen.samples)
            ]
        terms = torch.stack([self.log_density(self.dequantise(batch, u)) for u in noises])
        value, errors = terms[0], error.expand(len(batch))
        if len(terms) > 1:
            value, own = log_mean_exp(terms)
            errors = torch.hypot(errors, own)
        text = f"log Z by {chosen.runs} annealed chains, standard error {float(error):.2g}"
        return Likelihood(value - log_z, "estimate", errors, text)

    def log_density(self, x: Tensor) -> Tensor:
        """log b(x) - E(x) of x (B, D) in the units of the data, (B,)."""
        w, log_det = self.whiten(x)
        return normal_log_prob_rows(w) + log_det - self.energy(w)

    def score(self, batch: Batch | Tensor, t: Tensor | None = None) -> Tensor:
        """The gradient of log p; of whole numbers, at the middle of their interval."""
        if t is not None:
            raise UsageError("expected no time, found one; ebm has no noised rows: leave t out")
        batch = as_batch(batch)
        half = torch.full((len(batch), self.space.dims), 0.5) if self.discrete else None
        with torch.enable_grad():
            x = self.dequantise(batch, half).detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.log_density(x).sum(), x)
        return slope.reshape(batch.x.shape)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        odd = next((part for part in space.parts if part.kind not in NUMBERS), None)
        if odd is not None:
            return f"expected columns of numbers, found {odd} in {odd.name}; use coupling, or made"
        mixed = next((part for part in space.parts if part.optional or part.atoms), None)
        if mixed is not None:
            return (
                f"expected numbers with a density, found empty cells or repeated values in "
                f"{mixed.name}; use coupling, or give data.space=plain"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Of few entries the base resembles the data, so that comparing the two teaches most and
        costs least; of many, a classifier tells them apart too easily."""
        few, dims = space.rows < 2000, space.dims
        wide = dims > MAX_CONTRASTED
        config = cls.Config(
            net=MLP.Config(width=256, depth=2) if dims > 16 else MLP.Config(width=128, depth=3),
            image_net="conv" if wide else "mlp",
            loss="cd" if wide else "nce",
            noise_rows=2 if dims <= 2 else 8,
        )
        train = TrainConfig(
            optimiser="adamw",
            lr=1e-3 if space.rows < 300 or wide else 3e-3,
            betas=(0.5, 0.99) if wide else (0.9, 0.999),
            weight_decay=0.3 if few else 1e-4,
            grad_clip=1.0 if wide else 0.0,
            batch_size=64 if few else 256,
            ema_decay=0.99 if few else 0.998,
            eval_every=200 if few else 500,
        )
        return Defaults(config, train)

    @classmethod
    def defaults_with(cls, space: Space, chosen: Mapping[str, str]) -> Defaults:
        """Chains lag behind energies that change fast."""
        found = cls.defaults(space)
        if chosen.get("loss") != "cd":
            return found
        assert isinstance(found.config, cls.Config)
        rate = 1e-3 if space.rows < 2000 or space.dims > MAX_CONTRASTED else 2e-3
        train = replace(found.train, lr=rate, betas=(0.5, 0.99), grad_clip=1.0)
        return replace(found, config=replace(found.config, loss="cd"), train=train)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=MLP.Config(width=8, depth=1), widths=(4,), chains=64, moved=32)


def build_energy(config: EBM.Config, space: Space) -> nn.Module:
    """The network of the energy, which is 0 at first."""
    net: nn.Module
    if config.image_net == "mlp" or not space.is_image:
        net = config.net.build(space.dims, 1)
        last = net.out
    else:
        levels = [
            layer
            for number, width in enumerate(config.widths)
            for layer in (ConvSpec(width, stride=2 if number else 1), ActivationSpec("silu"))
        ]
        net = StackSpec((*levels, FlattenSpec(), DenseSpec(1))).build(space.shape)
        last = [*net.children()][-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return net


def as_real(part: Space) -> Space:
    """An entry with its dequantisation noise as a real number between bounds."""
    if part.kind == "real":
        return part
    low, high = ends(part)
    return replace(
        part,
        kind="real",
        size=0,
        mean=(part.mean[0] + 0.5,),
        scale=(max(part.scale[0], MIN_DISCRETE_SCALE),),
        lower=low if math.isfinite(low) else None,
        upper=high + 1 if math.isfinite(high) else None,
    )


def ends(part: Space) -> tuple[float, float]:
    """The smallest and the largest whole number of an entry; NaN for reals."""
    if part.kind == "real":
        return math.nan, math.nan
    if part.kind == "levels":
        return 0.0, part.size - 1.0
    return (
        -math.inf if part.lower is None else part.lower,
        math.inf if part.upper is None else part.upper,
    )


def shrunk_covariance(y: Tensor) -> Tensor:
    """The covariance of rows (N, D) and of D more, which are N(0, I)."""
    n, dims = y.shape
    return (n * y.T.cov(correction=0).reshape(dims, dims) + dims * torch.eye(dims).to(y)) / (
        n + dims
    )


def resampled(log_weight: Tensor, n: int, generator: Generator | None) -> Tensor:
    """n chains in proportion to their weights, by systematic resampling in random order, (n,)."""
    start = log_weight.new_empty(1).uniform_(generator=generator)
    marks = (torch.arange(n, device=start.device) + start) / n
    which = torch.searchsorted(log_weight.softmax(0).cumsum(0), marks)
    which = which.clamp(max=len(log_weight) - 1)
    return which[torch.randperm(n, generator=generator, device=which.device)]
