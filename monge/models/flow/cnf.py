r"""Continuous flow: an ordinary differential equation between data and noise, by flow matching

$\dot x = v(x, t, c)$ moves data at t = 0 to noise at t = 1. Along the way (Chen et al. 2018)

$\frac{d}{dt} \log p_t(x(t)) = -\mathrm{tr}\, \partial v / \partial x$, so that
$\log p(x) = \log N(x(1); 0, I) + \int_0^1 \mathrm{tr}\, \partial v / \partial x\, dt$.

Likelihood can be climbed through the solver. Flow matching (Lipman et al. 2023) needs none: with
$x_t = (1 - t) x + t z$ for pairs (x, z), the minimum of $E |v(x_t, t) - (z - x)|^2$ moves the law
of x to that of z. Pairs are independent, or those of a plan of least cost within the batch, whose
lines cross less (Tong et al. 2024; Pooladian et al. 2023).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ...core.abilities import CanStream, Given, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.rng import derive_seed, keyed_uniform, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from ...nn.unet import UNet, suited
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.elementwise import ActNorm, Standardise
from ...prob.distributions import log_normal
from ...solve.jacobian_trace import draw_probes, mean_and_error
from ...solve.ode import TABLEAUX, Method, Solver
from .._ordering import check_whole
from ._base import Flow, importance_bound
from ._completion import CompletableFlow, repaint
from ._continuous import PAIRINGS, Continuous, SolverOptions, even_times

MIN_SOLVER_EVALS = 16
"""Of the network, that an adaptive solver takes at least for events of many entries."""


class CNF(CompletableFlow, CanStream):
    """p(x | given) = N(z; 0, I) exp(int_0^1 tr dv/dx dt), z where the flow of v takes x at t = 1.

    A score with the exact trace is exact up to the tolerance of the solver, which dopri5 keeps
    row by row: rows do not see one another. With Hutchinson's trace it is an unbiased estimate
    with its standard error over the probes (Grathwohl et al. 2019); whole numbers are spread, and
    their score is a bound (`samples` above 1 are then averaged, not weighed, since the mean of
    exponentials of estimates is biased).
    """

    class Config(Flow.Config):
        tag = "model/flow.cnf"
        net: MLP.Config = MLP.Config(width=256, depth=3)
        """Perceptron of the velocity."""
        waves: Annotated[int, Range(0, 16)] = 0
        """Octaves of sines and cosines of each entry that the perceptron reads too, for edges."""
        picture: Literal["mlp", "unet"] = "mlp"
        """What reads pictures: the perceptron, or a U-Net."""
        unet: UNet.Config = UNet.Config()
        """The U-Net, where pictures are read by one."""
        train: Literal["matching", "likelihood"] = "matching"
        """What is learned from: straight lines between data and noise, or the likelihood."""
        coupling: Literal["independent", "optimal", "entropic"] = "independent"
        """Matching: which noise belongs to a row: any, or that of a plan of least cost."""
        gradient: Literal["steps", "adjoint"] = "steps"
        """Likelihood: differentiate through the steps, or solve the adjoint, which keeps none."""
        solver: Method = "dopri5"
        """Runge-Kutta method; dopri5 chooses its steps by their error."""
        steps: Annotated[int, Range(1)] = 32
        """Steps of the methods whose steps are fixed."""
        tolerance: Annotated[float, Range(0, open=True)] = 1e-5
        """dopri5: error of a step, relative and absolute."""

    class SamplingConfig(CompletableFlow.SamplingConfig, SolverOptions):
        moves: Annotated[int, Range(2)] = 12
        """Completion: moves of the chain; more forget its start better."""

    class LikelihoodConfig(Flow.LikelihoodConfig, SolverOptions):
        trace: Literal["auto", "exact", "hutchinson"] = "auto"
        """The trace of the Jacobian: exact, estimated, or exact as long as entries are few."""
        probes: Annotated[int, Range(1)] = 2
        """Hutchinson: random directions a row; more are less uncertain."""

    begins = 8  # of each entry, a scale

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        if config.coupling != "independent" and space.given:
            raise UsageError(
                f"coupling={config.coupling} pairs rows with noise whatever they are "
                "given, so that noise would depend on it; use coupling=independent"
            )
        if config.noise == "learned" and config.train == "matching":
            raise UsageError(
                "noise=learned is learned by likelihood alone; say train=likelihood "
                "too, or noise=uniform"
            )

    def inside(self, context: int) -> Bijection:
        return self.body(context)  # the velocity itself reads what is given

    def outside(self) -> Bijection:
        """Numbers that are squashed are standardised after it: the lines of matching lead to them
        from N(0, I)."""
        units = super().outside()
        if isinstance(units, Standardise):
            return units
        return Compose([ActNorm(self.space.dims, learned=False), units])

    def body(self, context: int) -> Bijection:
        config, pictures = self.config, self.space.is_picture
        net = config.unet if config.picture == "unet" and pictures else config.net
        shape = self.space.shape or (1,)
        return Continuous(net, shape, context, self.solver(config), config.waves)

    @property
    def flow(self) -> Continuous:
        return cast(Continuous, self.inner)

    @property
    def precision(self) -> float:
        """That of the solver: steps add up, and a field stretches what they miss."""
        order, config = TABLEAUX[self.config.solver].order, self.config
        if config.solver == "dopri5":
            return 100 * config.tolerance
        return config.steps ** -float(order)

    def solver(self, options: BaseConfig) -> Solver:
        """The solver that is asked for; what is left open is the model's own."""
        assert isinstance(options, CNF.Config | SolverOptions)
        own = self.config
        return Solver(
            options.solver or own.solver,
            options.steps or own.steps,
            options.tolerance or own.tolerance,
        )

    def loss(self, batch: Batch) -> Losses:
        uniform = torch.rand_like(self.flat(batch)) if self.whole else None
        y, log_q = self.spread(batch, uniform)
        if self.config.train == "matching":
            return {"matching": self.mismatch(y, self.context(batch.given, len(y)))}
        seed = int(torch.randint(2**62, ()))
        probes = self.probes(torch.arange(len(y), device=y.device), "auto", 1, seed)
        log_p = self.log_density(y, batch, self.solver(self.config), probes)
        return {"nll": -(log_p.mean(1) - log_q)}

    def mismatch(self, y: Tensor, context: Tensor | None) -> Tensor:
        """The squared distance of velocity and line in the mean over rows, whose times are spread
        evenly."""
        x = self.outer.undo(y)
        z = torch.randn_like(x)
        z = z if self.config.coupling == "independent" else z[PAIRINGS[self.config.coupling](x, z)]
        shift = torch.rand((), dtype=x.dtype, device=x.device)
        t = torch.add(even_times(len(x), x.dtype, x.device), shift, alpha=1 / len(x))  # (B, 1)
        line = z - x
        return F.mse_loss(self.flow.velocity(torch.addcmul(x, t, line), t, context), line)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, CNF.LikelihoodConfig), "a score is asked for with Scoring"
        seed = seed_of(generator)
        probes = self.probes(
            batch.rows, options.trace, options.probes, derive_seed(seed, "probes")
        )
        solver = self.solver(options)
        if not self.whole:
            y, _ = self.spread(batch, None)
            value, error = mean_and_error(self.log_density(y, batch, solver, probes))
            kind = "exact" if probes is None else "estimate"
            return Likelihood(value, kind, error)  # type: ignore[arg-type]
        weights = []
        for k in range(options.samples):
            u = keyed_uniform(batch.rows, self.latent.shape, derive_seed(seed, "spread", k))
            y, log_q = self.spread(batch, u)
            weights.append(self.log_density(y, batch, solver, probes).mean(1) - log_q)
        found = torch.stack(weights)  # (samples, B)
        return importance_bound(found if probes is None else found.mean(0, keepdim=True))

    def probes(self, rows: Tensor, trace: str, count: int, seed: int) -> Tensor | None:
        """Directions (B, count, D) of Hutchinson's trace; none where it is exact."""
        if trace == "exact" or (trace == "auto" and self.flow.is_small):
            return None
        return draw_probes(rows, count, self.latent.shape, seed).to(self.low.dtype)

    def log_density(
        self, y: Tensor, batch: Batch, solver: Solver, probes: Tensor | None
    ) -> Tensor:
        """log p(y) with each of the probes, or the one exact value, (B, K)."""
        x, paid = self.outer.inverse(y)
        context = self.context(batch.given, len(y))
        adjoint = self.config.gradient == "adjoint" and torch.is_grad_enabled()
        z, total = self.flow.solve(x, context, (0.0, 1.0), solver, probes, adjoint)
        return (log_normal(z) + paid)[:, None] + total

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        *_, last = self.stream(n, given, options, generator)
        return last

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """After every step of the solver; rows that it takes at their own pace are not all at one
        time."""
        options = options or self.SamplingConfig()
        assert isinstance(options, CNF.SamplingConfig), "samples are asked for with Sampling"
        z = torch.randn(
            n,
            *self.latent.shape,
            generator=generator,
            dtype=self.low.dtype,
            device=self.low.device,
        )
        context = self.context(given or {}, n)
        for y in self.flow.path(
            options.temperature * z, context, (1.0, 0.0), self.solver(options)
        ):
            yield self.leave(y)

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        """Where the flow takes each row; whole numbers start in the middle of their interval."""
        batch = as_batch(batch)
        check_whole(self.name, batch)
        y, _ = self.outer.inverse(self.middle(batch))
        return self.travel(y, batch.given, (0.0, 1.0))

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        return self.leave(self.travel(z, given or {}, (1.0, 0.0)))

    def travel(self, y: Tensor, given: Given, times: tuple[float, float]) -> Tensor:
        """Where the flow takes y (B, D), whose volume nobody asks for."""
        context = self.context(given, len(y))
        *_, last = self.flow.path(y, context, times, self.solver(self.config))
        return last

    @property
    def completion(self) -> str:  # type: ignore[override]
        if self.flow.is_small:
            return CompletableFlow.completion
        return (
            "drawn step by step from noise, what was seen being put back at every time and "
            "each step taken several times (RePaint): an approximation of p(hidden | seen)"
        )

    @property
    def evals_per_score(self) -> int:
        return 1 if self.flow.is_small else MIN_SOLVER_EVALS

    @property
    def estimates(self) -> bool:
        return not self.flow.is_small

    def uniform(self, batch: Batch, generator: Generator | None) -> Tensor | None:
        """Noise that spreads whole numbers, (B, D); none where there are none."""
        like = self.flat(batch)
        return (
            torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
            if self.whole
            else None
        )

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """A chain needs an exact density; of many entries, the flow is walked instead."""
        if self.flow.is_small:
            return super().complete(batch, options, generator)
        seen, context = (
            batch.observed_mask.reshape(len(batch), -1),
            self.context(batch.given, len(batch)),
        )
        y, _ = self.spread(replace(batch, observed=None), self.uniform(batch, generator))
        x, _ = self.outer.inverse(y)
        velocity = functools.partial(self.flow.velocity, context=context)
        x = self.leave(repaint(velocity, x, seen, generator))
        return torch.where(batch.observed_mask, batch.x.to(x.dtype), x)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Pictures that can be halved: a U-Net; a few numbers of many rows: sines, for edges."""
        few, sides = 0 < space.rows < 2000, space.shape[1:]
        recipe = TrainConfig(
            lr=1e-3, batch_size=128 if few else 256, ema_decay=0.999, eval_every=500
        )
        plain = UNet.Config(multipliers=(1, 2), blocks=1, attention=0)
        for unet in (suited(plain, sides), plain) if space.is_picture and min(sides) >= 8 else ():
            if not any(side % unet.factor for side in sides):
                recipe = (
                    recipe if unet.patch == 1 else replace(recipe, batch_size=64, eval_every=2000)
                )
                return Defaults(cls.Config(picture="unet", unet=unet), recipe)
        if space.dims <= 4 and not few:
            net = MLP.Config(width=128, depth=3)
            recipe = TrainConfig(
                lr=2e-3, batch_size=1024, ema_decay=0.999, eval_every=1000, patience=0
            )
            return Defaults(cls.Config(net=net, waves=4), recipe)
        net = MLP.Config(width=128 if few else 512, depth=3, residual=True)
        return Defaults(cls.Config(net=net), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        """Counts: of a law that is almost Gaussian few steps learn little without sines."""
        return cls.Config(
            net=MLP.Config(width=16, depth=2),
            solver="rk4",
            steps=6,
            waves=2 if space.kind == "counts" else 0,
        )
