r"""Base of diffusion models: noise in standardised units, one network, and two likelihoods.

$q(z_t | x) = N(\alpha_t y, \sigma_t^2 I)$ for standardised y, of tables the vector of a row
(`_units`). A network reads z_t and $\lambda_t$ and predicts x in one of four parameterisations
(`_parameterisation`). A sampler (`_samplers`, `_ode_samplers`) takes
$z_1 \sim N(0, (\alpha_1^2 + \sigma_1^2) I)$ to z_0, and `_likelihood` computes the bound and the
likelihood of the probability flow.

The functions at the top choose the default network, target and training config for some data.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import HasScore, HasTerms, Likelihood
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.rng import derive_seed, seed_of
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.unet import LARGE_IMAGE_SIDE, with_levels_for
from ...prob.row_embedding import TABLE_KINDS
from ...solve.jacobian_trace import mean_and_error, sample_probes
from ...solve.ode import Solver
from .._ordering import check_no_missing
from ._clusters import Clusters
from ._conditioning import ConditionEncoder, Conditioning
from ._denoisers import Denoiser, MLPDenoiser, UNetDenoiser
from ._likelihood import (
    BoundTerms,
    LikelihoodInputs,
    alpha_sigma_columns,
    concat_terms,
    consistency_bound,
    denoising_bound,
    ode_log_likelihood,
)
from ._parameterisation import DenoiserPrediction, Target
from ._sampling import DiffusionSampling
from ._units import MAX_ENUMERATED_LEVELS, FirstEstimate, Units, units_of

SMALL_DATA_ROWS = 5000
"""Rows below which the default network is small."""
CLUSTERS = 512
"""Most clusters of large images by default."""
CLUSTER_ROWS = 100
"""Rows of such a cluster, of fewer rows than for that many."""
CLUSTER_SWEEPS = 5
"""Passes of k-means over all training rows, after those over the rows of the initialisation."""
MAX_POINT_DIMS = 4
"""Numbers of a row up to which targets are stable by default."""
HIGH_DIMENSIONAL_ENTRIES, FIRST_LEVEL_SIDE = 2048, 32
"""Numbers of a large image, pixels times channels, from which its network has few channels at full
resolution; and the positions to a side of the first level of that network."""


def default_network(space: Space, waves: int = 0) -> Denoiser.Config:
    """A U-Net for images and long sequences, an MLP for other data."""
    if space.is_image and min(space.shape[1:]) >= 6:
        dropout = 0.1 if 0 < space.rows < SMALL_DATA_ROWS else 0.0
        config = UNetDenoiser.Config(attention=1, dropout=dropout, waves=waves)
        if not is_high_dimensional(space):
            found = with_levels_for(config, space.shape[1:])
            if not is_large_image(space):
                return found
            # Channels where positions are few: the shape of what is shown is decided there. After
            # 120 seconds of MNIST a classifier recognised 47 % of samples, 44 % with (1, 2).
            return replace(found, multipliers=(1, 4)[: len(found.multipliers)])
        return replace(  # few channels at full resolution: squares of pixels would stay visible
            config,
            width=16,
            multipliers=(1, 2, 4, 6),
            patch=max(1, min(space.shape[1:]) // FIRST_LEVEL_SIDE),
            blocks=1,
            middle=1,
        )
    if len(space.shape) == 2 and space.shape[0] >= 16:
        return UNetDenoiser.Config(
            width=32, multipliers=(1, 2, 2), blocks=1, attention=1, waves=waves
        )
    few = 0 < space.rows < 2000
    if space.kind in TABLE_KINDS:
        return MLPDenoiser.Config(width=256 if few else 512, depth=3, waves=waves)
    if space.dims <= 4:
        waves = waves or (0 if few else 3)
        return MLPDenoiser.Config(width=128, depth=3, waves=waves)
    return MLPDenoiser.Config(width=256 if few else 512, depth=3, waves=waves)


def is_large_image(space: Space) -> bool:
    """Whether rows are images of sides such as 28x28 pixels or more."""
    return space.is_image and min(space.shape[1:]) >= LARGE_IMAGE_SIDE


def is_high_dimensional(space: Space) -> bool:
    """Whether rows are large images of many numbers, such as 32x32 pixels in colour."""
    return is_large_image(space) and space.dims >= HIGH_DIMENSIONAL_ENTRIES


def default_target(space: Space) -> NetworkTarget:
    """The residual of x for tables, for few enough levels and for large grey images, else the
    velocity. Backgrounds of grey images have one level, which the own noisy value of a pixel shows
    at once, and from which a predicted velocity leaves samples a few levels away."""
    grey = space.kind == "levels" and is_large_image(space) and not is_high_dimensional(space)
    residual = has_few_levels(space) or grey or space.kind in TABLE_KINDS
    return "residual" if residual else "velocity"


def has_few_levels(space: Space) -> bool:
    """Whether the posterior over all levels of an entry is computed."""
    return space.kind == "binary" or 0 < space.size <= MAX_ENUMERATED_LEVELS


def is_points(space: Space) -> bool:
    """Whether rows are a few numbers without conditions, so that many of a batch are near each
    other and targets are stable by default. At equal time, 16 s, the bound is 0.008 nats higher
    then on moons, 0.015 on eight_gaussians and 0.024 on pinwheel (`ddpm`)."""
    return space.kind == "real" and space.dims <= MAX_POINT_DIMS and not space.given


def default_clusters(space: Space) -> int:
    """Clusters of large grey images without conditions: what they show is hard to learn. Of
    samples of MNIST after 100 seconds a classifier recognised 56 % without, 86 % with 128, 91 %
    with 512 and 89 % with 1024, whose bound is worse."""
    grey = is_large_image(space) and not is_high_dimensional(space)
    enough = space.rows >= SMALL_DATA_ROWS
    return min(CLUSTERS, space.rows // CLUSTER_ROWS) if grey and enough and not space.given else 0


def default_recipe(space: Space, clusters: int = 0) -> TrainConfig:
    """The training config; weights are averaged over up to ten thousand steps. Small tables have
    large batches too: a step costs little more, and with a few rows at each noise level the rates
    of names and empty cells are learned late. Large images have small batches: the time of a step
    grows with its rows, and in a fit of minutes the number of steps is what counts. With clusters
    they learn from 32 rows a step as fast as from 16, at less time a row."""
    few, table = 0 < space.rows < SMALL_DATA_ROWS, space.kind in TABLE_KINDS
    images = space.is_image or len(space.shape) == 2
    if not images and space.dims <= 4 and not table:
        return TrainConfig(
            lr=2e-3, batch_size=512, ema_decay=0.9999, eval_every=500, grad_clip=1.0
        )
    large = is_large_image(space)
    if large:
        lr, batch_size = (3e-3, 32) if clusters else (2e-3, 16)
    else:
        lr, batch_size = 1e-3, 64 if images or (few and not table) else 256
    return TrainConfig(
        lr=lr,
        batch_size=batch_size,
        ema_decay=0.9999,
        eval_every=300 if few else 2000,
        grad_clip=1.0,
    )


NetworkTarget = Literal[Target, "residual"]
MAX_BATCH_ELEMENTS = 1 << 18
"""Entries that the network reads at once when likelihoods are computed."""
MIN_BOUND_SAMPLES, MAX_BOUND_SAMPLES, BOUND_SAMPLE_ELEMENTS = 4, 128, 1024
"""Default samples of a bound: as many as make BOUND_SAMPLE_ELEMENTS entries per row, between
the first two."""
MAX_EXACT_TRACE_DIMS = 16
"""trace=auto: entries up to which the trace is exact."""


class Diffusion(DiffusionSampling, HasTerms, HasScore):
    """A distribution learned by denoising. A subclass sets `schedule`, and `steps` if its time is
    discrete."""

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"real", "binary", "levels", "label", "counts", "columns", "tokens"}

    class Config(DiffusionSampling.Config):
        net: Denoiser.Config = MLPDenoiser.Config()
        """Denoising network: mlp for vectors, unet for images and sequences, or transformer."""
        target: NetworkTarget = "velocity"
        """What the network predicts: x0, noise, score, velocity, or residual, the part of x that
        an entry's own noisy value does not determine, which for tables is that of the logits of
        names. Each determines the others; they differ in their initialisation and weighting."""
        clusters: Annotated[int, Range(0)] = 0
        """Clusters of similar rows (k-means), of which one is drawn before a row; the network is
        told which. For models without conditions; 0 for none."""
        optional_first: bool = False
        """Tables: whether a cell is empty is decided at more noise than what other cells hold, so
        that how often it is does not depend on how well these are modelled."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.clusters and not self.drop:
                raise UsageError(
                    f"clusters={self.clusters} expects drop above 0, since scores and guidance "
                    "also use the network without a cluster, found drop=0; give drop=0.1"
                )

    class LikelihoodConfig(BaseConfig):
        method: Literal["bound", "consistency", "ode"] = "bound"
        """Denoising lower bound, the same bound in its consistency form, whose samples vary more,
        or an estimate by the probability-flow ODE."""
        samples: Annotated[int, Range(1)] | None = None
        """bound, consistency: samples of time and noise per row; by default 4, up to 128 for
        short rows."""
        tolerance: Annotated[float, Range(0, open=True)] = 1e-4
        """ode: error tolerance of a step, relative and absolute."""
        trace: Literal["auto", "exact", "hutchinson"] = "auto"
        """ode: trace of the Jacobian: exact, estimated (Hutchinson), or exact for few entries."""
        probes: Annotated[int, Range(1)] = 2
        """ode: random directions per row of the estimated trace; more reduce its error."""

    config: Config
    variance: str = "posterior"
    """Variance of the reverse step: posterior, forward or learned."""

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.name = type(self).__name__.lower()
        self.units = units_of(space, config.optional_first)
        if config.clusters and space.given:
            raise UsageError(
                f"clusters={config.clusters} expects a model without conditions, found "
                f"{', '.join(space.given)}; give clusters=0"
            )
        self.clusters = Clusters(config.clusters, self.units.width) if config.clusters else None
        self.condition_encoder = ConditionEncoder(space, config.clusters)
        outputs, residual = 2 if self.learns_variance else 1, config.target == "residual"
        self.entrywise = self.units.denoiser(config.clusters) if residual else None
        guess = residual and self.entrywise is not None and self.entrywise.gives_guess
        self.net: Denoiser = config.net.build(
            self.units.network_space(residual), self.condition_encoder, outputs, guess
        )

    def check_unconditional(self, option: str) -> None:
        """Check that there are no conditions and no clusters where an option is set."""
        if self.condition_encoder.width:
            clusters = 0 if self.clusters is None else len(self.clusters.shares)
            found = ", ".join(self.space.given) or f"clusters={clusters}"
            raise UsageError(
                f"{option}=true expects a model without conditions, found {found}; "
                f"give {option}=false"
            )

    @property
    def learns_variance(self) -> bool:
        return False

    def predict(
        self, z: Tensor, t: Tensor, conditions: Conditioning | None = None
    ) -> DenoiserPrediction:
        return self.predict_at(z, self.schedule.log_snr(t), conditions)

    def predict_at(
        self, z: Tensor, log_snr: Tensor, conditions: Conditioning | None = None
    ) -> DenoiserPrediction:
        """The prediction at z (B, D) and a log-SNR (B,)."""
        if conditions is None:
            conditions = self.condition_encoder.empty(len(z))
        alpha, sigma = alpha_sigma_columns(self.schedule, log_snr)
        spread = (alpha.square() + sigma.square()).sqrt()
        first = FirstEstimate(z / spread, None, lambda out: (out, None))
        if self.entrywise is not None:
            first = self.entrywise.estimate(
                z, alpha, sigma, conditions.allowed, conditions.cluster
            )
        out, share = self.net(first.z, log_snr, conditions, first.guess), None
        if self.learns_variance:
            out, share = out.chunk(2, 1)
            share = share[:, : self.units.width].sigmoid()
        if self.entrywise is not None:
            x0, components = first.refine(out)
            return DenoiserPrediction(z, alpha, sigma, "x0", x0, share, components)
        kind = self.config.target
        assert kind != "residual", "the residual has an entrywise estimate"
        return DenoiserPrediction(
            z, alpha, sigma, kind, out / sigma if kind == "score" else out, share
        )

    def initialise_from_data(self, batch: Batch) -> None:
        self.units.fit(batch.x)
        y = self.to_units(batch)
        if self.entrywise is not None:
            self.entrywise.fit(y)
        if self.clusters is not None:
            self.clusters.fit(y)
        self.count_rows([batch])

    def count_rows(self, batches: Iterable[Batch]) -> None:
        """The centres, the shares and the frequencies of levels of the clusters."""
        if self.clusters is None:
            return
        for _ in range(CLUSTER_SWEEPS):
            self.clusters.move(map(self.to_units, batches))
        rows = self.clusters.count(map(self.to_units, batches))
        if self.entrywise is None:
            deque(rows, maxlen=0)
        else:
            self.entrywise.count(rows)

    def row_conditions(self, batch: Batch) -> Conditioning:
        """The conditions of rows, and their clusters."""
        nearest = None if self.clusters is None else self.clusters.nearest(self.to_units(batch))
        return self.encode_conditions(batch.given, len(batch), nearest)

    def drop_conditions(self, batch: Batch) -> Conditioning:
        """The conditions of a training batch, dropped in a random fraction of rows."""
        conditions = self.row_conditions(batch)
        if not (self.condition_encoder.width and self.config.drop):
            return conditions
        keep = torch.rand(len(batch), device=batch.x.device) >= self.config.drop
        return conditions.keep_rows(keep)

    def stratified_times(self, n: int) -> Tensor:
        """One time in each n-th of [0, 1), with a common random offset, (n,)."""
        like = self.units.like
        start = torch.rand((), dtype=like.dtype, device=like.device)
        return (torch.arange(n, dtype=like.dtype, device=like.device) + start) / n

    def to_units(self, batch: Batch) -> Tensor:
        """Rows in standardised units, (B, D); of tables their vectors."""
        check_no_missing(self.name, batch)
        return self.units.to_units(batch.x)

    def predict_noised(
        self, y: Tensor, noise: Tensor, log_snr: Tensor, conditions: Conditioning
    ) -> DenoiserPrediction:
        """The prediction at z = alpha y + sigma eps with a log-SNR (B,)."""
        alpha, sigma = alpha_sigma_columns(self.schedule, log_snr)
        return self.predict_at(alpha * y + sigma * noise, log_snr, conditions)

    def score(self, batch: Batch | Tensor, t: Tensor | None = None) -> Tensor:
        """Score of x + (sigma / alpha) noise, the noise in standardised units, at times t (B,), or
        of x at t = 0; with clusters that of the network without one."""
        batch = as_batch(batch)
        if not isinstance(self.units, Units):
            raise UsageError(
                f"expected numbers, which log p has a gradient in, found {self.space}; fit the "
                "model to the columns of numbers alone"
            )
        y = self.to_units(batch)
        t = y.new_zeros(len(y)) if t is None else t.to(y)
        alpha = self.schedule.alpha(t)[:, None]
        prediction = self.predict(alpha * y, t, self.encode_conditions(batch.given, len(y)))
        return (alpha * prediction.score / self.units.scale).reshape(batch.x.shape)

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, Diffusion.LikelihoodConfig), "expected likelihood options"
        seed = seed_of(generator)
        found = [self.chunk_likelihood(chunk, options, seed) for chunk in self.chunks(batch)]
        errors = [each.stderr for each in found if each.stderr is not None]
        return Likelihood(
            torch.cat([each.value for each in found]),
            found[0].kind,
            torch.cat(errors) if errors else None,
            found[0].description,
        )

    def chunk_likelihood(self, batch: Batch, options: LikelihoodConfig, seed: int) -> Likelihood:
        if options.method != "ode":
            if options.method == "consistency" and not self.steps:
                raise UsageError(
                    "method=consistency expects steps of the diffusion, found continuous time; "
                    "use method=bound"
                )
            bound = denoising_bound if options.method == "bound" else consistency_bound
            terms = bound(self.likelihood_inputs(batch, seed), self.bound_samples(options))
            return Likelihood(terms.value, "bound", terms.stderr, self.describe_estimator(options))
        dims, probes = self.units.width, None
        if options.trace == "hutchinson" or (
            options.trace == "auto" and dims > MAX_EXACT_TRACE_DIMS
        ):
            probes = sample_probes(
                batch.rows, options.probes, (dims,), derive_seed(seed, "probes")
            )
            probes = probes.to(self.units.like.dtype)
        solver = Solver(tolerance=options.tolerance)
        value, error = mean_and_error(
            ode_log_likelihood(self.likelihood_inputs(batch, seed), solver, probes)
        )
        return Likelihood(
            value, "estimate", error, self.describe_estimator(options, probes is None)
        )

    def describe_estimator(self, options: LikelihoodConfig, exact: bool = False) -> str:
        """One sentence with the samples and the tolerance of a likelihood estimate."""
        if options.method != "ode":
            over = f"{self.steps} steps" if self.steps else "continuous time"
            samples, form = self.bound_samples(options), "denoising"
            if options.method == "consistency":
                form = "consistency form of the"
            return f"{form} bound over {over}, {samples} samples of time and noise per row"
        some = (
            "one random direction"
            if options.probes == 1
            else f"{options.probes} random directions"
        )
        trace = "exact trace" if exact else f"trace along {some} per row"
        return f"probability-flow ODE, tolerance {options.tolerance:g}, {trace}"

    def bound_samples(self, options: LikelihoodConfig) -> int:
        return options.samples or min(
            max(BOUND_SAMPLE_ELEMENTS // max(self.units.width, 1), MIN_BOUND_SAMPLES),
            MAX_BOUND_SAMPLES,
        )

    def terms(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> dict[str, Tensor]:
        """Prior, reconstruction, and the diffusion term by ranges of the log-SNR: that of
        continuous time, and the gap that a finite number of steps adds to it."""
        found = self.bound_terms(batch, options, generator)
        if not self.steps:
            return found.named()
        continuous = self.bound_terms(batch, options, generator, continuous_time=True)
        gap = found.diffusion - continuous.diffusion
        return {**continuous.named(), f"gap of {self.steps} steps": gap}

    def bound_terms(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
        continuous_time: bool = False,
    ) -> BoundTerms:
        """The terms of the bound; with `flowing`, of the bound in continuous time."""
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, Diffusion.LikelihoodConfig), "expected likelihood options"
        seed = seed_of(generator)
        inputs = [self.likelihood_inputs(chunk, seed) for chunk in self.chunks(batch)]
        inputs = [replace(each, steps=0) for each in inputs] if continuous_time else inputs
        return concat_terms(
            [denoising_bound(each, self.bound_samples(options)) for each in inputs]
        )

    def likelihood_inputs(self, batch: Batch, seed: int) -> LikelihoodInputs:
        """What the likelihoods of these rows are computed from."""
        y, conditions = self.to_units(batch), self.row_conditions(batch)
        detail = self.units.detail(batch.x)
        if self.clusters is not None:
            detail = detail + self.clusters.log_share(y)
        return LikelihoodInputs(
            lambda z, log_snr: self.predict_at(z, log_snr, conditions),
            self.schedule,
            self.units,
            y,
            batch.rows,
            seed,
            self.steps,
            self.variance,
            detail,
        )

    def chunks(self, batch: Batch) -> list[Batch]:
        """The rows in chunks that the network reads at once."""
        batch = replace(batch, row=batch.rows)
        most = max(1, MAX_BATCH_ELEMENTS // max(self.units.width, 1))
        return batch.chunk(max(1, math.ceil(len(batch) / most)))
