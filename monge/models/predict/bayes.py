r"""Bayesian neural network: predictions averaged over the posterior of the weights

$p(y | x) = \int p(y | x, w)\, p(w | data)\, dw \approx \frac1K \sum_k p(y | x, w_k)$ over K draws
of the posterior, so that predictions are less certain where data are few. Weights have the prior
$N(0, s^2 / fan)$ with the number of inputs of a unit as fan, biases $N(0, s^2)$. Three ways
(`inference`) find draws:

laplace  the network is fitted, and the last layer has the Gaussian of the curvature there; the
    precision of its prior and the noise of targets maximise the evidence (MacKay 1992; Daxberger
    et al. 2021). For networks of any size.
hmc      chains of Hamiltonian Monte Carlo over all weights, with all rows in each move: samples of
    the posterior itself (Neal 1996), for small networks and few rows. A step of training is a
    move; the step size follows the acceptance rate by dual averaging, then stays.
svgd     particles that climb together and repel each other, Stein variational gradient descent
    (Liu & Wang 2016), on batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, vmap

from ...core.abilities import CanDiagnose, Finding, Given
from ...core.batch import Batch
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Model, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP as Network
from ...prob.laplace import LaplacePosterior, gauss_newton, positive_part
from ...solve.mcmc import DualAveraging, split_rhat, stein_direction
from .._annealing import Chains, evaluate_energy, leap
from ._base import Predictor, Spread, pass_count
from ._trunk import MLPTrunk, Trunk

FIRST_STEP, TARGET_ACCEPTANCE = 0.01, 0.8
"""Step size of the first move of a chain, and the acceptance rate that is sought."""
MAX_LAST_WEIGHTS = 4096
"""Most weights of a last layer with a Gaussian posterior."""
MAX_SAMPLED_WEIGHTS = 100_000
"""Most weights of a network whose posterior is sampled."""
MAX_RHAT = 1.1
"""R-hat above which chains do not agree (Gelman et al. 2013)."""
ACCEPTANCE = (0.4, 0.98)
"""Acceptance rates that chains with a good step size have."""


class BayesPredictor(Predictor, CanDiagnose):
    """p(y | x) averaged over draws of p(w | data), by laplace, hmc or svgd."""

    class Config(Predictor.Config):
        tag = "model/predict.bayes"
        inference: Literal["laplace", "hmc", "svgd"] = "laplace"
        """How draws of the posterior are found: a Gaussian of the last layer, chains of
        Hamiltonian Monte Carlo, or particles."""
        spread: Spread = "constant"
        """Distribution of a real target: a Gaussian with one learned scale, a Gaussian whose scale
        depends on the inputs, or a mixture of Gaussians."""
        net: Network.Config = Network.Config(width=50, depth=1)
        """Hidden layers between the inputs and the target."""
        prior: Annotated[float, Range(0, open=True)] = 1.0
        """hmc and svgd: scale s of the prior of weights."""
        draws: Annotated[int, Range(1)] = 64
        """Networks that predictions average; with svgd, the particles."""
        refresh: Annotated[int, Range(1)] = 25
        """laplace: steps after which the curvature over all training rows is computed anew."""
        chains: Annotated[int, Range(1)] = 4
        """hmc: chains, each of which keeps draws / chains states."""
        leaps: Annotated[int, Range(1, MAX_LAYERS)] = 20
        """hmc: leapfrog steps of a move."""
        warmup: Annotated[int, Range(1)] = 100
        """hmc: moves in which the step size is adapted."""
        thin: Annotated[int, Range(1)] = 5
        """hmc: moves from one kept state to the next."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.inference == "hmc" and self.draws % self.chains:
                enough = -(-self.draws // self.chains) * self.chains
                raise UsageError(
                    f"expected draws to be a multiple of chains, found draws={self.draws} and "
                    f"chains={self.chains}; choose draws={enough}"
                )

    class SamplingConfig(Predictor.SamplingConfig):
        passes: Annotated[int, Range(0)] = 0
        """Draws of the posterior that predictions average; 0 for all."""

    class LikelihoodConfig(SamplingConfig):
        """The options of sampling."""

    config: Config
    home: Tensor
    scale: Tensor
    states: Tensor
    kept: Tensor
    adaptation: Tensor
    accepted: Tensor
    moves: Tensor
    first: Tensor
    root: Tensor
    noise: Tensor
    precision: Tensor
    determined: Tensor

    def __init__(
        self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        super().__init__(config, space, parts)
        own = self.own_parameters()
        if config.inference == "laplace":
            size = (self.trunk.width + 1) * self.scales.inputs
            check_size(size, MAX_LAST_WEIGHTS, "the last layer", "a smaller net.width")
            for name, value in {
                "first": torch.zeros(size),  # the mean of the prior
                "root": torch.zeros(size, size),  # of the covariance
                "noise": torch.randn(config.draws, size),
                "precision": torch.ones(()),
                "determined": torch.zeros(()),
            }.items():
                self.register_buffer(name, value)
            return
        size = sum(p.numel() for p in own.values())
        check_size(size, MAX_SAMPLED_WEIGHTS, "the network", "inference=laplace")
        scale = [torch.full_like(p, prior_scale(p, config.prior)).flatten() for p in own.values()]
        self.register_buffer("home", torch.cat([p.detach().flatten() for p in own.values()]))
        self.register_buffer("scale", torch.cat(scale))
        for parameter in own.values():
            parameter.requires_grad_(False)
        if config.inference == "svgd":
            self.particles = nn.Parameter(torch.randn(config.draws, size))
            return
        start = torch.randn(config.chains, size)
        self.register_buffer("states", start)
        self.register_buffer("kept", start.repeat(config.draws // config.chains, 1))
        self.register_buffer("adaptation", DualAveraging.start(FIRST_STEP).state)
        self.register_buffer("accepted", torch.zeros(()))
        self.register_buffer("moves", torch.zeros((), dtype=torch.long))

    def build_trunk(self, inputs: Space) -> Trunk:
        return MLPTrunk(self.config.net, inputs)

    def updates(self) -> Sequence[Update]:
        trained = [p for p in self.parameters() if p.requires_grad]
        match self.config.inference:
            case "hmc":
                return [Update("chains", self.move_chains, whole=True)]
            case "svgd":
                return [Update("model", self.loss, trained)]
        posterior = Update("posterior", self.fit_posterior, every=self.config.refresh, whole=True)
        return [Update("model", self.loss, trained), posterior]

    @torch.no_grad()
    def initialise_from_data(self, batch: Batch) -> None:
        """Start at the marginal distribution of each target, around which the prior of the bias of
        the last layer lies."""
        super().initialise_from_data(batch)
        if self.config.inference == "laplace":
            self.first.copy_(self.last_layer().flatten())
        else:
            own = self.own_parameters()
            known = ("out.bias", "scales.log_scale")
            parts = [p if name in known else 0 * p for name, p in own.items()]
            self.home.copy_(torch.cat([part.flatten() for part in parts]))

    def loss(self, batch: Batch) -> Losses:
        """laplace: -log p(y | x) less the log-prior of the last layer, and what the noise gains in
        evidence; svgd: -log p(y | x) whose gradient is the particles' direction; hmc: that of the
        chains."""
        match self.config.inference:
            case "hmc":
                return {"nll": self.nlls(self.states, batch).mean(0)}
            case "svgd":
                return {"nll": self.climb(batch)}
        rows, nll = (
            self.rows(batch),
            self.weighted_nll(batch, self.params(batch.given, len(batch))),
        )
        gap = self.last_layer().flatten() - self.first
        losses = nll | {"prior": self.precision / (2 * rows) * gap.square().sum()}
        if self.scales.log_scale is not None:
            each = self.determined / (rows * self.space.dims)
            losses["evidence"] = -each * self.scales.log_scale.sum()
        return losses

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """A draw of the weights for each row, then y ~ p(y | x, w)."""
        noise = self.head.noise(n, generator)  # (n, D, 2)
        params = self.sample_params(n, given, options, generator)
        return self.to_event(self.head.sample(params, noise))

    # Draws

    def passes(
        self, given: Given, n: int, options: BaseConfig | None, generator: Generator | None = None
    ) -> list[Tensor]:
        """The parameters (n, P) of p(y | x, w) for each draw of the weights."""
        count = min(pass_count(options) or self.config.draws, self.config.draws)
        inputs = self.trunk_inputs(given, n)
        if self.config.inference == "laplace":
            layer = self.last_layer()
            draws = layer + (self.noise[:count] @ self.root.T).reshape(count, *layer.shape)
            out = torch.einsum("nf,kfo->kno", self.features(inputs), draws)
            return [*self.scales(out)]
        draws = self.particles if self.config.inference == "svgd" else self.kept
        return [*self.all_params(draws[:count], inputs)]

    def forward(self, inputs: Given) -> Tensor:
        """Parameters of p(y | x, w) from what the trunk reads, (n, P)."""
        return self.scales(self.out(self.trunk(inputs)))

    def all_params(self, w: Tensor, inputs: Given) -> Tensor:
        """Those of networks with the whitened weights w (K, size), (K, n, P)."""
        return vmap(lambda each: functional_call(self, self.weights(each), (inputs,)))(w)

    def weights(self, w: Tensor) -> dict[str, Tensor]:
        """The named weights of a network at w (size,), which is N(0, I) a priori."""
        own = self.own_parameters()
        flat = (self.home + self.scale * w).split([p.numel() for p in own.values()])
        return {
            name: part.reshape(p.shape) for (name, p), part in zip(own.items(), flat, strict=True)
        }

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """The weights of the network, without those of other runs."""
        mine = ("trunk.", "out.", "scales.")
        return {name: p for name, p in self.named_parameters() if name.startswith(mine)}

    def rows(self, batch: Batch) -> int:
        return self.space.rows or len(batch)

    def nlls(self, w: Tensor, batch: Batch) -> Tensor:
        """-log p(y | x, w) of each row for weights w (K, size), (K, B)."""
        inputs = self.trunk_inputs(batch.given, len(batch))

        def of_one(each: Tensor) -> Tensor:
            params = functional_call(self, self.weights(each), (inputs,))
            return torch.stack([*self.weighted_nll(batch, params).values()]).sum(0)

        return vmap(of_one)(w)

    # Chains and particles

    @torch.no_grad()
    def move_chains(self, batch: Batch) -> Losses:
        """A Hamiltonian move of every chain, with all rows."""

        def evaluate(w: Tensor) -> Chains:
            return evaluate_energy(lambda at: self.nlls(at, batch).sum(1), w)

        tuner, chains = DualAveraging(self.adaptation), evaluate(self.states)
        adapting = int(self.moves) < self.config.warmup
        step = tuner.step if adapting else tuner.averaged
        step = (step * (0.8 + 0.4 * torch.rand_like(step))).clamp(max=math.pi / 2)
        momentum = torch.randn_like(chains.w)
        end, chance = leap(evaluate, chains, momentum, 1.0, step.reshape(1, 1), self.config.leaps)
        chains = end.where(torch.rand_like(chance) < chance, chains)
        rate = chance.mean()
        if adapting:
            self.adaptation.copy_(tuner.update(rate, TARGET_ACCEPTANCE, FIRST_STEP).state)
        self.states.copy_(chains.w)
        self.accepted.mul_(0.95).add_(0.05 * rate)
        if not int(self.moves) % self.config.thin:
            self.kept.copy_(torch.cat([self.kept[len(chains.w) :], chains.w]))
        self.moves.add_(1)
        return {"nll": chains.energy.mean() / len(batch), "accepted": rate}

    def climb(self, batch: Batch) -> Tensor:
        """The mean loss of the particles, with the gradient of Stein's direction, ()."""
        rows = self.rows(batch)
        with torch.enable_grad():
            w = self.particles.detach().requires_grad_()
            nll = self.nlls(w, batch).mean(1)  # (K,)
            log_p = -rows * nll - w.square().sum(1) / 2
            (score,) = torch.autograd.grad(log_p.sum(), w)
        with torch.no_grad():
            direction = stein_direction(w, score)
        uphill = -(direction * self.particles).sum() / rows
        return nll.detach().mean() + uphill - uphill.detach()

    # The last layer

    def features(self, inputs: Given) -> Tensor:
        """What the last layer reads, and 1 for its bias, (n, F + 1)."""
        found = self.trunk(inputs)
        return torch.cat([found, found.new_ones(len(found), 1)], 1)

    def last_layer(self) -> Tensor:
        """Weights and bias of the last layer, (F + 1, O)."""
        return torch.cat([self.out.weight.T, self.out.bias[None]])

    @torch.no_grad()
    def fit_posterior(self, batch: Batch) -> Losses:
        """The Gaussian of the last layer at its weights of the moment, over all rows."""
        layer, seen = self.last_layer(), batch.observed_mask.reshape(len(batch), -1)
        features, x = self.features(self.trunk_inputs(batch.given, len(batch))), self.flat(batch.x)
        with torch.enable_grad():
            out = (features @ layer).requires_grad_()
            log_p = torch.where(seen, self.head.log_prob(self.scales(out), x), 0.0).sum()
            (slope,) = torch.autograd.grad(-log_p, out, create_graph=True)
            # no row reads another, so that each sum has the derivatives of every row
            curves = [
                torch.autograd.grad(column.sum(), out, retain_graph=True)[0] for column in slope.T
            ]
        curvature = positive_part(torch.stack(curves, 1).double())  # (N, O, O)
        found = LaplacePosterior.fit(
            gauss_newton(features.double(), curvature),
            (layer.flatten() - self.first).double().square().sum(),
            self.precision.double(),
        )
        self.precision.copy_(found.precision)
        self.determined.copy_(found.determined)
        self.root.copy_(found.root)
        evidence = found.log_evidence(log_p.detach().double())
        return {"evidence": -evidence / len(batch)}

    # Diagnostics

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> list[Finding]:
        if self.config.inference != "hmc":
            return []
        found, (low, high) = [], ACCEPTANCE
        params = torch.stack(self.passes(batch.given, len(batch), None))  # (K, n, P)
        worst = float(split_rhat(params.unflatten(0, (-1, self.config.chains))).quantile(0.9))
        if worst > MAX_RHAT:
            found.append(
                Finding(
                    "chains apart",
                    f"R-hat of the predictions of {self.config.chains} chains is {worst:.2f} "
                    f"(90 % quantile), above {MAX_RHAT}: they have not reached one distribution.",
                    "train longer, or raise leaps",
                )
            )
        rate = float(self.accepted)
        if int(self.moves) > self.config.warmup and not low <= rate <= high:
            found.append(
                Finding(
                    "acceptance",
                    f"{rate:.0%} of the moves are accepted, expected {low:.0%} to {high:.0%}.",
                    "raise warmup" if rate < low else "raise leaps",
                )
            )
        return found

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        train = TrainConfig(
            optimiser="adamw", lr=3e-3, weight_decay=0.1, batch_size=64, ema_decay=0.0
        )
        return Defaults(cls.Config(), train)

    @classmethod
    def defaults_with(cls, space: Space, chosen: Mapping[str, str]) -> Defaults:
        """Particles are fewer than draws, each with a network of its own; chains are not averaged
        and are not stopped early, as their held-out score varies."""
        found = cls.defaults(space)
        assert isinstance(found.config, cls.Config)
        match chosen.get("inference"):
            case "svgd":
                config = replace(found.config, inference="svgd", draws=20)
                return replace(found, config=config, train=TrainConfig(lr=1e-2, batch_size=64))
            case "hmc":
                config = replace(found.config, inference="hmc")
                train = TrainConfig(ema_decay=0.0, eval_every=50, patience=0)
                return replace(found, config=config, train=train)
        return found

    @classmethod
    def smallest_config(cls, space: Space) -> Any:
        return cls.Config(net=Network.Config(width=8, depth=1), draws=8, refresh=20)


def prior_scale(parameter: Tensor, scale: float) -> float:
    """Standard deviation of a weight or a bias a priori."""
    return scale / math.sqrt(parameter.shape[1]) if parameter.ndim > 1 else scale


def check_size(size: int, most: int, what: str, remedy: str) -> None:
    if size > most:
        raise UsageError(
            f"expected at most {most} weights in {what}, found {size}; choose {remedy}"
        )
