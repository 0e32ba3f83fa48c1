r"""Identities of samplers, guidance and in-painting, on distributions known at every noise level.

A sampler with the exact $E[x | z_t]$ of a mixture of normals must sample that mixture. In one
dimension the probability flow is the map that preserves ranks, so that it is known as well.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..core.abilities import CanComplete, CanSample
from ..core.batch import Batch
from ..core.errors import DataError
from ..core.rng import make_generator
from ..models.diffusion._ode_samplers import DPM, ODE, Heun, velocity
from ..models.diffusion._parameterisation import DenoiserPrediction
from ..models.diffusion._samplers import DDIM, PC, Ancestral, Langevin, Sampler, ancestral, ddim
from ..prob.noise_schedule import NoiseProcess, NoiseSchedule
from ..solve.jacobian_trace import exact_trace
from ..solve.ode import Solver, State, integrate
from ._helpers import gap, most, normal
from ._noisy_mixtures import NoisyGaussianMixture, line
from .framework import Residual, SkipIdentity
from .subjects import strangers

FAMILIES = ("preserving", "exploding", "sub")
SHAPES = ("linear", "cosine", "sigmoid", "logsnr", "edm")
SAMPLES = 10_000
"""Samples whose distribution is compared."""
FALSE_ALARM = 1e-6
"""Probability with which exact samples may be rejected."""
RANKS = 100
"""Points that a flow is followed from."""
GAMMA = 3.0
COMPLETED = 3
"""Rows that are completed."""
FEW = {"moves": 2, "resamples": 2}
"""Options of completion that repeat its steps, and how often they are repeated here: what is
observed must be kept whatever their number is."""


def noisings() -> list[NoiseProcess]:
    """Every shape in every family."""
    return [
        NoiseSchedule.Config(shape=shape, family=family).build()  # type: ignore[arg-type]
        for family in FAMILIES
        for shape in SHAPES
    ]


def ends(noising: NoiseProcess) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """alpha and sigma at noise and at data, each (1, 1)."""
    first, last = (torch.full((1, 1), t, dtype=torch.float64) for t in (1.0, 0.0))
    return (
        (noising.alpha(first), noising.sigma(first)),
        (noising.alpha(last), noising.sigma(last)),
    )


def led(
    config: Sampler.Config, noising: NoiseProcess, distribution: NoisyGaussianMixture, z: Tensor
) -> Tensor:
    """Where a sampler with the exact score moves z (B, D).

    The noise it adds comes from another seed than z: from the same one, it would repeat z."""
    sampler: Sampler = config.build()
    *_, (last, _) = sampler.sample(distribution.denoiser(noising), noising, z, make_generator(1))
    return last


def x103_tilting_does_not_commute_with_noise() -> Residual:
    """p(z) p(y|z)^gamma is not the noised p(x) p(y|x)^gamma: their L1 gap.

    Examines: mathematics only.

    Source: Bradley & Nakkiran 2024, Classifier-Free Guidance Is a Predictor-Corrector."""
    weights, means = torch.tensor([0.5, 0.5]).double(), torch.tensor([-0.5, 0.5]).double()
    alpha, sigma, grid = 0.8, 0.6, torch.linspace(-8, 8, 1601, dtype=torch.float64)
    step = grid[1] - grid[0]

    def tilted(alpha: float, spread: float) -> Tensor:
        """p(v) p(first | v)^gamma over the grid, normalised."""
        each = weights * (-0.5 * ((grid[:, None] - alpha * means) / spread).square()).exp()
        whole = each.sum(1) * (each[:, 0] / each.sum(1)) ** GAMMA
        return whole / (whole.sum() * step)

    first = tilted(1.0, 0.5)
    kernel = (-0.5 * ((grid[:, None] - alpha * grid) / sigma).square()).exp()
    noised = kernel @ first * step / (sigma * math.sqrt(2 * math.pi))
    apart = (noised - tilted(alpha, math.hypot(alpha * 0.5, sigma))).abs().sum() * step
    return Residual(0.05 - float(apart), 0.0)


def x106_ddim_keeps_the_marginals() -> Residual:
    """DDIM from q(z_t|x) ends in q(z_s|x) for every eta.

    Examines: models.diffusion._samplers.

    Source: Song, Meng & Ermon 2021, Denoising Diffusion Implicit Models, sec. 3.1."""
    missed = []
    for noising in noisings():
        s, t = torch.tensor([0.3, 0.8]).double()
        alpha, sigma = noising.alpha(t).reshape(1, 1), noising.sigma(t).reshape(1, 1)
        zero, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
        for eta in (0.0, 0.3, 1.0):
            on_x, on_noise, anew = (
                ddim(
                    DenoiserPrediction(alpha * x + sigma * eps, alpha, sigma, "x0", x),
                    noising,
                    s,
                    t,
                    eta,
                    n,
                )
                for x, eps, n in ((one, zero, zero), (zero, one, zero), (zero, zero, one))
            )
            spread = on_noise.square() + anew.square()
            missed += [gap(on_x, noising.alpha(s)), gap(spread.sqrt(), noising.sigma(s))]
    return Residual(most(missed), 1e-12)


def x106_ddim_with_eta_one_is_ancestral() -> Residual:
    """DDIM with eta = 1 samples q(z_s|z_t, x), with variance sigma_q^2.

    Examines: models.diffusion._samplers.

    Source: Song, Meng & Ermon 2021, Denoising Diffusion Implicit Models, sec. 4.1."""
    missed = []
    for noising in noisings():
        s, t = torch.tensor([0.3, 0.8]).double()
        z, x, noise = normal(4, 3), normal(4, 3), normal(4, 3)
        alpha, sigma = noising.alpha(t).expand(4, 1), noising.sigma(t).expand(4, 1)
        prediction = DenoiserPrediction(z, alpha, sigma, "x0", x)
        missed.append(
            gap(
                ddim(prediction, noising, s, t, 1.0, noise),
                ancestral(prediction, noising, z, s, t, noise),
            )
        )
    return Residual(most(missed), 1e-12)


def x107_flow_gives_the_density() -> Residual:
    """The flow's log-density is the exact one of noised normal data.

    Examines: models.diffusion._ode_samplers, solve.jacobian_trace, solve.ode.

    Source: Song et al. 2021, Score-Based Generative Modeling through SDEs, sec. 4.3."""
    distribution = NoisyGaussianMixture(
        torch.ones(1).double(), torch.tensor([[0.7, -0.4]]).double(), torch.tensor([0.5]).double()
    )
    noising = NoiseSchedule.Config().build()
    predict, first = distribution.denoiser(noising), normal(8, 2)

    def field(angle: Tensor, state: State) -> State:
        slope, trace = exact_trace(lambda y: velocity(predict, noising, angle, y)[0], state[0])
        return slope, trace[:, None]

    (alpha, sigma), (clean, least) = ends(noising)
    angles = torch.atan2(least, clean).item(), torch.atan2(sigma, alpha).item()
    start = (first, torch.zeros(8, 1).double())
    end, total = integrate(field, start, angles, Solver(tolerance=1e-11)).end
    found = distribution.log_prob(end, alpha, sigma) + total[:, 0]
    return Residual(gap(found, distribution.log_prob(first, clean, least)), 1e-9)


def x108_flows_keep_ranks() -> Residual:
    """In 1-D, the flow of the exact score maps quantiles to quantiles.

    Examines: models.diffusion._ode_samplers, models.diffusion._samplers.

    Source: Song et al. 2021, Score-Based Generative Modeling through SDEs, sec. 4.3; Khrulkov et
    al. 2023, Understanding DDPM Latent Codes through Optimal Transport."""
    distribution, missed = line(), []
    levels = (torch.arange(RANKS).double() + 0.5) / RANKS
    for noising in noisings():
        first, last = ends(noising)
        z, truth = distribution.quantile(levels, *first), distribution.quantile(levels, *last)
        missed.append(gap(led(ODE.Config(tolerance=1e-6), noising, distribution, z), truth) / 1e-4)
    for config in (DPM.Config(steps=100), Heun.Config(steps=60), DDIM.Config(steps=1000)):
        away = (led(config, noising, distribution, z) - truth).abs().mean()
        missed.append(float(away) / 5e-3)
    return Residual(most(missed), 1.0)


def missed(config: Sampler.Config, noising: NoiseProcess, n: int = SAMPLES) -> float:
    """The Kolmogorov distance between the distribution and n samples by a sampler with the exact
    score: the largest gap between their distribution functions."""
    distribution, (_, last) = line(), ends(noising)
    z = noising.spread(torch.ones(1).double()) * normal(n, 1)
    samples = led(config, noising, distribution, z).sort(0)[0]
    below, steps = distribution.cumulative(samples, *last), torch.arange(n + 1).double() / n
    return most(float((below - steps[:-1]).amax()), float((steps[1:] - below).amax()))


def chance(n: int = SAMPLES) -> float:
    """What n exact samples exceed with probability FALSE_ALARM at most, since
    P(distance > e) <= 2 exp(-2 n e^2) (Massart 1990)."""
    return math.sqrt(math.log(2 / FALSE_ALARM) / (2 * n))


def x108_ancestral_steps_sample_the_distribution() -> Residual:
    """Ancestral steps with the exact score sample the data (Kolmogorov).

    Examines: models.diffusion._samplers.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, algorithm 2."""
    noising = NoiseSchedule.Config().build()
    configs = Ancestral.Config(steps=200), Ancestral.Config(steps=200, variance="forward")
    n = 2 * SAMPLES  # more than for other samplers, to see noise that is a tenth too large
    return Residual(most(missed(config, noising, n) for config in configs), chance(n))


def x108_samplers_reach_the_distribution() -> Residual:
    """Other samplers with the exact score sample the data (Kolmogorov).

    Examines: models.diffusion._ode_samplers, models.diffusion._samplers.

    Source: Song, Meng & Ermon 2021, Denoising Diffusion Implicit Models; Lu et al. 2022,
    DPM-Solver++; Karras et al. 2022, Elucidating the Design Space of Diffusion-Based Generative
    Models."""
    noising = NoiseSchedule.Config().build()
    configs = (
        DDIM.Config(steps=150, eta=0.5),
        PC.Config(steps=150),
        Heun.Config(steps=40, churn=10.0),
    )
    return Residual(most(missed(config, noising) for config in configs), chance())


def x108_langevin_samples_the_distribution() -> Residual:
    """Annealed Langevin with the exact score samples the data (Kolmogorov).

    With fewer steps the samples lag behind the falling noise.

    Examines: models.diffusion._samplers.

    Source: Song & Ermon 2019, Generative Modeling by Estimating Gradients of the Data
    Distribution, algorithm 1."""
    noising = NoiseSchedule.Config(family="exploding", shape="logsnr").build()
    config = Langevin.Config(steps=200, corrections=8, ratio=0.4)
    return Residual(missed(config, noising, SAMPLES // 2), chance(SAMPLES // 2))


def x114_what_is_seen_is_kept(model: CanComplete, batch: Batch) -> Residual:
    """A completion equals the observed values exactly where they are observed.

    Source: Lugmayr et al. 2022, RePaint: Inpainting Using Denoising Diffusion Probabilistic
    Models."""
    batch = batch[:COMPLETED]
    flat = batch.x.reshape(len(batch), -1)
    seen = (torch.arange(flat.shape[1]) < flat.shape[1] // 2).expand_as(flat)
    partial = torch.where(seen, flat, strangers(model, batch)).reshape(batch.x.shape)
    observed = seen.reshape(batch.x.shape)
    options = model.sampling_defaults() if isinstance(model, CanSample) else None
    fields = options.__dataclass_fields__ if options else ()
    few = {name: count for name, count in FEW.items() if name in fields}
    try:
        x = model.complete(
            replace(batch, x=partial, observed=observed),
            options and replace(options, **few),
            make_generator(0),
        )
    except DataError as reason:
        raise SkipIdentity(str(reason)) from reason
    kept = float((x[observed] != batch.x[observed]).sum())
    return Residual(most(kept, float(not x.isfinite().all())), 0.0)
