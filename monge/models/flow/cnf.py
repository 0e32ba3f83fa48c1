r"""Continuous normalising flow (CNF): an ODE between data and noise, trained by flow matching

$\dot x = v(x, t, c)$ moves data at t = 0 to noise at t = 1. Along the way (Chen et al. 2018)

$\frac{d}{dt} \log p_t(x(t)) = -\mathrm{tr}\, \partial v / \partial x$, so that
$\log p(x) = \log N(x(1); 0, I) + \int_0^1 \mathrm{tr}\, \partial v / \partial x\, dt$.

The likelihood can be maximised through the solver. Flow matching (Lipman et al. 2023) needs none:
with $x_t = (1 - t) x + t z$ for pairs (x, z), the minimum of $E |v(x_t, t) - (z - x)|^2$ moves
the distribution of x to that of z. Pairs are independent, or those of an optimal-transport plan
within the batch, whose lines cross less (Tong et al. 2024; Pooladian et al. 2023). Or they are
those of a fitted flow, z ~ N(0, I) and the x to which it moves z: each step of this *reflow* keeps
the distribution and straightens the paths, so that few steps of a solver suffice (Liu, Gong & Liu
2023).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ...core.abilities import CanStream, Given, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import MAX_STEPS, Range, RunRef
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Model
from ...core.rng import derive_seed, keyed_uniform, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from ...nn.unet import UNet, with_levels_for
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.elementwise import ActNorm, Standardise
from ...prob.distributions import normal_log_prob_rows
from ...solve.jacobian_trace import mean_and_error, sample_probes
from ...solve.ode import TABLEAUX, Method, Solver
from .._ordering import check_no_missing
from ._base import Flow, importance_bound
from ._completion import (
    CANDIDATES_PER_DRAW,
    KERNELS,
    MAX_CANDIDATES,
    MAX_KERNELS,
    MIN_KERNELS,
    CompletableFlow,
    KernelDensity,
    choose_candidates,
    repaint,
    weaker,
)
from ._continuous import PAIRINGS, ContinuousBijection, SolverOptions, even_times
from ._tables import SMALLEST_TABLE_NET, TableConfig, TableUnits, default_table_net

REFLOW_SOLVER, REFLOW_TIMES = Solver("rk4", steps=8), 8
"""How the pairs of a reflow are computed, and at how many times each is matched."""
WEIGHING_SOLVER = Solver("rk4", steps=6)
"""How completion computes the densities of candidates: errors of a few hundredths of a nat are
small beside those of choosing among candidates."""
MIN_SOLVER_EVALS = 16
"""Network evaluations that an adaptive solver needs at least for events of many entries."""


class CNF(CompletableFlow, CanStream):
    """p(x | given) = N(z; 0, I) exp(int_0^1 tr dv/dx dt), z where the flow of v takes x at t = 1.

    The likelihood with the exact trace is exact up to the tolerance of the solver, which dopri5
    applies to each row separately. With Hutchinson's trace it is an unbiased estimate with a
    standard error over the probes (Grathwohl et al. 2019). Discrete data are dequantised, and
    their likelihood is a bound (`samples` above 1 are then averaged, not importance-weighted,
    since the mean of exponentials of estimates is biased).
    """

    class Config(Flow.Config, TableConfig):
        tag = "model/flow.cnf"
        net: MLP.Config = MLP.Config(width=256, depth=3)
        """MLP of the velocity."""
        waves: Annotated[int, Range(0, 16)] = 0
        """Octaves of Fourier features of each entry that the MLP reads too, for sharp edges."""
        image_net: Literal["mlp", "unet"] = "mlp"
        """Velocity network of images: the MLP, or a U-Net."""
        unet: UNet.Config = UNet.Config()
        """The U-Net of image_net=unet."""
        objective: Literal["matching", "likelihood"] = "matching"
        """Training objective: flow matching, or the likelihood."""
        coupling: Literal["independent", "optimal", "entropic", "reflow"] = "independent"
        """Matching: pairs of rows and noise: independent, of an optimal-transport plan, or samples
        of the run `start` with the noise that it moved there, which straightens its paths."""
        start: RunRef | None = None
        """Run of a cnf on the same data whose weights are the initial ones."""
        gradient: Literal["steps", "adjoint"] = "steps"
        """Likelihood: backpropagate through the steps, or solve the adjoint, which stores none."""
        solver: Method = "dopri5"
        """Runge-Kutta method; dopri5 has adaptive steps."""
        steps: Annotated[int, Range(1, MAX_STEPS)] = 32
        """Steps of fixed-step methods."""
        tolerance: Annotated[float, Range(0, open=True)] = 1e-5
        """dopri5: error tolerance of a step, relative and absolute."""

    class SamplingConfig(Flow.SamplingConfig, SolverOptions):
        moves: Annotated[int, Range(2)] = 12
        """Completion of tables: moves of the chain; more reduce its bias."""
        candidates: Annotated[int, Range(1)] = 64
        """Completion, except of tables: candidates from which a row is chosen; more reduce its
        bias."""

    class LikelihoodConfig(Flow.LikelihoodConfig, SolverOptions):
        trace: Literal["auto", "exact", "hutchinson"] = "auto"
        """Trace of the Jacobian: exact, estimated (Hutchinson), or exact for few entries."""
        probes: Annotated[int, Range(1)] = 2
        """Hutchinson: random directions per row; more reduce the error."""

    min_init_rows = 8

    config: Config

    def __init__(
        self, config: Config, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        super().__init__(config, space)
        self.has_start = bool(parts)
        if parts:
            self.start_from(check_start(parts["start"], space))
        elif config.coupling == "reflow":
            raise UsageError(
                "coupling=reflow expects a run whose paths it straightens, found none; "
                "add start=RUN"
            )
        if config.coupling in PAIRINGS and space.given:
            raise UsageError(
                f"expected independent noise with conditions, found coupling={config.coupling}, "
                "which depends on them; use coupling=independent"
            )
        if config.noise == "learned" and config.objective == "matching":
            raise UsageError(
                "noise=learned expects objective=likelihood, found objective=matching; "
                "add objective=likelihood, or use noise=uniform"
            )

    def start_from(self, other: CNF) -> None:
        """Take the weights of another flow, and keep it if its pairs are matched, which are in
        its coordinates."""
        own, found = self.state_dict(), other.state_dict()
        if {name: value.shape for name, value in found.items() if name in own} != {
            name: value.shape for name, value in own.items()
        }:
            raise UsageError(
                "expected a start with the networks of this cnf, found others; leave the settings "
                "of networks out, which are those of the start"
            )
        self.load_state_dict({name: found[name] for name in own})
        if self.config.coupling == "reflow":
            self.parts["start"] = other
            self.outer.requires_grad_(False)

    def initialise_from_data(self, batch: Batch) -> None:
        if not self.has_start:
            super().initialise_from_data(batch)

    def build_inner(self, context: int) -> Bijection:
        return self.build_layers(context)  # the velocity itself reads the conditions

    def build_outer(self) -> Bijection:
        """Logits of levels are standardised, since flow matching pairs them with N(0, I)."""
        units = super().build_outer()
        if isinstance(units, Standardise | TableUnits):
            return units
        return Compose([ActNorm(self.space.dims, learned=False), units])

    def build_layers(self, context: int) -> Bijection:
        config, is_image = self.config, self.space.is_image
        net = config.unet if config.image_net == "unet" and is_image else config.net
        shape = self.space.shape or (1,)
        return ContinuousBijection(net, shape, context, self.solver(config), config.waves)

    @property
    def flow(self) -> ContinuousBijection:
        return cast(ContinuousBijection, self.inner)

    @property
    def precision(self) -> float:
        """That of the solver: errors of steps add up, and the field amplifies them."""
        order, config = TABLEAUX[self.config.solver].order, self.config
        if config.solver == "dopri5":
            return 100 * config.tolerance
        return config.steps ** -float(order)

    def solver(self, options: BaseConfig) -> Solver:
        """The requested solver, with the model's own settings by default."""
        assert isinstance(options, CNF.Config | SolverOptions)
        own = self.config
        return Solver(
            options.solver or own.solver,
            options.steps or own.steps,
            options.tolerance or own.tolerance,
        )

    def loss(self, batch: Batch) -> Losses:
        """Flow matching: |v(x_t, t) - (z - x)|^2; or the negative log-likelihood by the solver."""
        if "start" in self.parts:
            x, z, context = self.reflow_pairs(self.context(batch.given, len(batch)), len(batch))
            return {"matching": self.matching_loss(x, z, context)}
        y, log_q = self.dequantise(batch, self.dequantisation_noise(batch))
        if self.config.objective == "matching":
            return self.matching_losses(y, log_q, self.context(batch.given, len(y)))
        seed = int(torch.randint(2**62, ()))
        probes = self.probes(torch.arange(len(y), device=y.device), "auto", 1, seed)
        log_p = self.log_density(y, batch, self.solver(self.config), probes)
        return {"nll": -(log_p.mean(1) - log_q)}

    def matching_losses(self, y: Tensor, log_q: Tensor | float, context: Tensor | None) -> Losses:
        """Flow matching; the layer of a table learns by its likelihood under N(0, I)."""
        if not self.table:
            x = self.outer.inverse_only(y)
            return {"matching": self.matching_loss(x, self.paired_noise(x), context)}
        x, log_det = self.table.inverse(y, context)
        nll = log_q - (normal_log_prob_rows(x) + log_det)
        x = x.detach()
        return {"matching": self.matching_loss(x, self.paired_noise(x), context), "nll": nll}

    def paired_noise(self, x: Tensor) -> Tensor:
        """z ~ N(0, I) for each row of x (B, D), by the coupling."""
        z = torch.randn_like(x)
        return (
            z if self.config.coupling == "independent" else z[PAIRINGS[self.config.coupling](x, z)]
        )

    @torch.no_grad()
    def reflow_pairs(self, context: Tensor | None, n: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """x and z (n, D) of the flow at the start, and their conditions: each pair as often as it
        is matched, at rows far apart, whose times are far apart."""
        flow, count = check_start(self.parts["start"], self.space).flow, -(-n // REFLOW_TIMES)
        z = torch.randn(count, *self.latent.shape, dtype=self.low.dtype, device=self.low.device)
        shared = None if context is None else context[:count]
        *_, x = flow.path(z, shared, (1.0, 0.0), REFLOW_SOLVER)
        again = torch.arange(n, device=z.device) % count
        return x[again], z[again], None if shared is None else shared[again]

    def matching_loss(self, x: Tensor, z: Tensor, context: Tensor | None) -> Tensor:
        """The mean squared error of the velocity against z - x, at times spread evenly."""
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
        assert isinstance(options, CNF.LikelihoodConfig), "expected likelihood options"
        seed = seed_of(generator)
        probes = self.probes(
            batch.rows, options.trace, options.probes, derive_seed(seed, "probes")
        )
        solver = self.solver(options)
        if not self.discrete:
            y, _ = self.dequantise(batch, None)
            value, error = mean_and_error(self.log_density(y, batch, solver, probes))
            kind = "exact" if probes is None else "estimate"
            return Likelihood(value, kind, error)  # type: ignore[arg-type]
        weights = []
        for k in range(options.samples):
            u = keyed_uniform(batch.rows, self.latent.shape, derive_seed(seed, "spread", k))
            y, log_q = self.dequantise(batch, u)
            weights.append(self.log_density(y, batch, solver, probes).mean(1) - log_q)
        found = torch.stack(weights)  # (samples, B)
        return importance_bound(found if probes is None else found.mean(0, keepdim=True))

    def probes(self, rows: Tensor, trace: str, count: int, seed: int) -> Tensor | None:
        """Probes (B, count, D) of Hutchinson's trace; None if it is exact."""
        if trace == "exact" or (trace == "auto" and self.flow.has_exact_trace):
            return None
        return sample_probes(rows, count, self.latent.shape, seed).to(self.low.dtype)

    def log_density(
        self, y: Tensor, batch: Batch, solver: Solver, probes: Tensor | None
    ) -> Tensor:
        """log p(y) with each of the probes, or the one exact value, (B, K)."""
        context = self.context(batch.given, len(y))
        x, log_det = self.outer.inverse(y, context)
        adjoint = self.config.gradient == "adjoint" and torch.is_grad_enabled()
        z, total = self.flow.solve(x, context, (0.0, 1.0), solver, probes, adjoint)
        return (normal_log_prob_rows(z) + log_det)[:, None] + total

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z ~ N(0, temperature^2 I) at t = 1, moved by the ODE to t = 0."""
        options = options or self.SamplingConfig()
        context = self.context(given or {}, n)
        z = self.sample_latent(n, options, generator)  # (n, D)
        for z_t in self.flow.path(z, context, (1.0, 0.0), self.solver(options)):
            z = z_t
        return self.to_data(z, context)

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """The rows after every step of the solver; with adaptive steps rows are at different
        times."""
        options = options or self.SamplingConfig()
        context = self.context(given or {}, n)
        z = self.sample_latent(n, options, generator)
        for z_t in self.flow.path(z, context, (1.0, 0.0), self.solver(options)):
            yield self.to_data(z_t, context)

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        """The code of each row; discrete entries start at the middle of their interval."""
        batch = as_batch(batch)
        check_no_missing(self.name, batch)
        context = self.context(batch.given, len(batch))
        y, _ = self.outer.inverse(self.midpoints(batch), context)
        return self.transport(y, context, (0.0, 1.0))

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        context = self.context(given or {}, len(z))
        return self.to_data(self.transport(z, context, (1.0, 0.0)), context)

    def transport(self, y: Tensor, context: Tensor | None, times: tuple[float, float]) -> Tensor:
        """y (B, D) moved by the flow, without its log-determinant."""
        *_, last = self.flow.path(y, context, times, self.solver(self.config))
        return last

    @property
    def completion(self) -> str:
        if self.table or self.effective is not None:
            return super().completion
        if self.flow.has_exact_trace:
            return (
                "chosen by importance among candidates of each row, which tends to "
                "p(missing | observed) as sample.candidates grows"
            )
        return (
            "sampled from noise with observed entries put back at every step and steps "
            "repeated (RePaint), an approximation of p(missing | observed)"
        )

    @property
    def evals_per_score(self) -> int:
        return 1 if self.flow.has_exact_trace else MIN_SOLVER_EVALS

    @property
    def estimates(self) -> bool:
        return not self.flow.has_exact_trace

    def uniform(self, batch: Batch, generator: Generator | None) -> Tensor | None:
        """Dequantisation noise, (B, D); None if all entries are reals."""
        like = self.flat(batch)
        return (
            torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
            if self.discrete
            else None
        )

    @property
    def weighing_map(self) -> Bijection:
        return self.flow.with_solver(WEIGHING_SOLVER)

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        """Candidates chosen by their density if its trace is exact; RePaint for many entries."""
        if self.table:
            return super().complete(batch, options, generator)
        if self.flow.has_exact_trace:
            return self.complete_several(batch, 1, options, generator)[:, 0]
        observed, context = (
            batch.observed_mask.reshape(len(batch), -1),
            self.context(batch.given, len(batch)),
        )
        y, _ = self.dequantise(replace(batch, observed=None), self.uniform(batch, generator))
        x, _ = self.outer.inverse(y, context)
        velocity = functools.partial(self.flow.velocity, context=context)
        x = self.to_data(repaint(velocity, x, observed, generator), context)
        return torch.where(batch.observed_mask, batch.x.to(x.dtype), x)

    @torch.no_grad()
    def complete_several(
        self,
        batch: Batch,
        draws: int,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        if self.table or not self.flow.has_exact_trace:
            return super().complete_several(batch, draws, options, generator)
        options = options or self.SamplingConfig()
        assert isinstance(options, self.SamplingConfig), "expected sampling options"
        count, found = max(options.candidates, CANDIDATES_PER_DRAW * draws), []
        densities, group = self.kernel_densities(batch, generator)
        self.effective = None
        for rows in torch.arange(len(batch)).split(max(MAX_CANDIDATES // count, 1)):
            every = batch[rows.repeat_interleave(count)]
            missing = self.missing_entries(every, every.observed_mask.reshape(len(every), -1))
            proposals = [densities[k] for k in group[rows].tolist()]
            w, log_weights = missing.candidates(proposals, count, generator)
            which, own = choose_candidates(log_weights.view(-1, count), draws, generator)
            found.append(self.to_data(w, self.context(every.given, len(every)))[which])
            self.effective = weaker(self.effective, own)
        x = torch.cat(found).unflatten(0, (-1, draws))
        return torch.where(batch.observed_mask[:, None], batch.x[:, None].to(x.dtype), x)

    def kernel_densities(
        self, batch: Batch, generator: Generator | None
    ) -> tuple[list[KernelDensity], Tensor]:
        """Kernel densities of samples given each of the conditions of some rows, and which of them
        is that of a row, (B,)."""
        context = self.context(batch.given, len(batch))
        every, group = None, torch.zeros(len(batch), dtype=torch.long)
        if context is not None:
            every, group = context.unique(dim=0, return_inverse=True)
        groups = 1 if every is None else len(every)
        n, found = min(KERNELS, max(MAX_KERNELS // groups, MIN_KERNELS)), []
        for k in range(groups):
            own = None if every is None else every[k].expand(n, -1)
            z = self.sample_latent(n, self.SamplingConfig(), generator)
            *_, w = self.flow.path(z, own, (1.0, 0.0), WEIGHING_SOLVER)
            found.append(KernelDensity.of(w))
        return found, group

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """A U-Net for images that can be halved; Fourier features for few entries of many rows."""
        few, sides = 0 < space.rows < 2000, space.shape[1:]
        train_config = TrainConfig(
            lr=1e-3, batch_size=128 if few else 256, ema_decay=0.999, eval_every=500
        )
        plain = UNet.Config(multipliers=(1, 2), blocks=1, attention=0)
        for unet in (
            (with_levels_for(plain, sides), plain) if space.is_image and min(sides) >= 8 else ()
        ):
            if not any(side % unet.factor for side in sides):
                train_config = (
                    train_config
                    if unet.patch == 1
                    else replace(train_config, batch_size=64, eval_every=2000)
                )
                return Defaults(cls.Config(image_net="unet", unet=unet), train_config)
        if space.dims <= 4 and not few and space.kind != "columns":
            net = MLP.Config(width=128, depth=3)
            train_config = TrainConfig(
                lr=2e-3, batch_size=1024, ema_decay=0.999, eval_every=1000, patience=0
            )
            return Defaults(cls.Config(net=net, waves=4), train_config)
        narrow = few or space.kind == "columns"  # little is left by the layer of a table
        net = MLP.Config(width=128 if narrow else 512, depth=3, residual=True)
        return Defaults(
            cls.Config(net=net, table_net=default_table_net(space), optional_first=True),
            train_config,
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        """Counts need Fourier features: they are almost Gaussian, and few steps learn little."""
        return cls.Config(
            net=MLP.Config(width=16, depth=2),
            solver="rk4",
            steps=6,
            waves=2 if space.kind == "counts" else 0,
            table_net=SMALLEST_TABLE_NET,
            optional_first=True,
        )


def check_start(model: nn.Module, space: Space) -> CNF:
    if not isinstance(model, CNF):
        raise UsageError(
            f"expected a cnf, found {type(model).__module__.rpartition('.')[2]}; name the run of "
            "a cnf"
        )
    if model.space != space:
        raise UsageError(
            f"expected a start on {space}, found one on {model.space} or on other rows; fit one "
            "to these data, with the same conditions"
        )
    return model
