r"""Identities of samplers of few steps: a consistency function is where the probability flow ends,
a flow along straight lines needs one step, and a distilled step is two of its teacher.

For normal data $N(m, s^2 I)$ the flow keeps the place of z within its distribution,
$\frac{z_t - \alpha_t m}{\sqrt{\alpha_t^2 s^2 + \sigma_t^2}}$, so that the function is known:
$f(z, t) = \alpha_0 m + \sqrt{\frac{\alpha_0^2 s^2 + \sigma_0^2}{\alpha_t^2 s^2 + \sigma_t^2}}\,
(z - \alpha_t m)$.

The flow of matching from N(0, 1) to $N(m, s^2)$ moves z to $x = m + s z$, and its reflow along the
line $x_t = (1 - t) x + t z$, so that $v(x_t, t) = z - x$ with
$z = \frac{x_t - (1 - t) m}{(1 - t) s + t}$.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.config import RunRef
from ..core.space import Space
from ..models.diffusion._ode_samplers import ODE
from ..models.diffusion._samplers import ddim
from ..models.diffusion.consistency import Consistency, flow_step
from ..models.diffusion.distilled import two_step_target
from ..models.flow._velocity import Velocity
from ..models.flow.cnf import CNF
from ..nn.mlp import MLP
from ..prob.noise_schedule import Family, NoiseProcess, NoiseSchedule
from ..solve.ode import Solver
from ._helpers import gap, most, normal
from ._noisy_mixtures import NoisyGaussianMixture, plane
from .diffusion_sampling import noisings
from .framework import Residual

TIMES = (0.2, 0.5, 0.8, 1.0)
"""Times from which the flow is followed to the data."""
COARSE = 64
"""Steps along the flow whose error is compared with that of twice as many."""


def x128_f_at_the_data_is_the_identity(model: Consistency, batch: Batch) -> Residual:
    """f(z, 0) = z whatever the network is.

    Source: Song et al. 2023, Consistency Models, sec. 3."""
    z, conditions = (
        model.diffusion.to_units(batch),
        model.diffusion.encode_conditions(batch.given, len(batch)),
    )
    return Residual(gap(model.consistency(z, z.new_zeros(len(z)), conditions), z), 1e-10)


def normal_data() -> NoisyGaussianMixture:
    return NoisyGaussianMixture(
        torch.ones(1).double(), torch.tensor([[0.7, -0.4]]).double(), torch.tensor([0.5]).double()
    )


def exact(noising: NoiseProcess, z: Tensor, t: Tensor) -> Tensor:
    """f(z, t) of that data, for z (B, 2) and t ()."""
    data = normal_data()
    mean, times = data.means[0], torch.stack([torch.zeros_like(t), t])
    alpha, sigma = noising.alpha(times), noising.sigma(times)
    spread = ((alpha * data.scales).square() + sigma.square()).sqrt()
    return alpha[0] * mean + spread[0] / spread[1] * (z - alpha[1] * mean)


def x128_the_flow_ends_at_f() -> Residual:
    """The flow through z_t ends at f(z_t, t), the same from every z_s on it.

    Examines: models.diffusion._ode_samplers.

    Source: Song et al. 2023, Consistency Models, def. 1."""
    missed, sampler = [], ODE.Config(tolerance=1e-9).build()
    for family in get_args(Family):
        noising = NoiseSchedule.Config(family=family).build()
        predict = normal_data().denoiser(noising)
        for start in TIMES:
            t = torch.tensor(start).double()
            z = noising.spread(t) * normal(8, 2)
            *_, (end, _) = sampler.sample(predict, noising, z, start=start)
            missed.append(gap(end, exact(noising, z, t)))
    return Residual(most(missed), 1e-6)


def x128_a_step_of_the_teacher_is_of_order_two() -> Residual:
    """Twice the steps of a teacher miss f by a quarter: log2 of it, less 2.

    Examines: models.diffusion.consistency.

    Source: Song et al. 2023, Consistency Models, sec. 4; Karras et al. 2022, Elucidating the
    Design Space of Diffusion-Based Generative Models, sec. 3."""
    away = []
    for family in get_args(Family):
        noising = NoiseSchedule.Config(family=family, high=4.0, low=-4.0).build()
        first = noising.spread(torch.ones(()).double()) * normal(8, 2)
        wanted, errors = exact(noising, first, torch.ones(()).double()), []
        predict = normal_data().denoiser(noising)
        for count in (COARSE, 2 * COARSE):
            z, times = first, torch.linspace(1, 0, count + 1, dtype=torch.float64)
            for t, s in itertools.pairwise(times):
                z = flow_step(predict, noising, z, s.expand(8), t.expand(8))
            errors.append(gap(z, wanted))
        away.append(abs(math.log2(errors[0] / errors[1]) - 2))
    return Residual(most(away), 0.2)


def x130_a_distilled_step_is_two_of_the_teacher() -> Residual:
    """A step of DDIM with the target of a student is two of its teacher.

    Examines: models.diffusion.distilled, models.diffusion._samplers.

    Source: Salimans & Ho 2022, Progressive Distillation for Fast Sampling of Diffusion Models,
    app. G."""
    missed = []
    for noising in noisings():
        predict, z = plane().denoiser(noising), normal(20, 2)
        s, middle, t = torch.rand(3, 20, 1, dtype=torch.float64).sort(0).values
        z = noising.spread(t) * z
        half = ddim(predict(z, t[:, 0]), noising, middle, t, 0, None)
        end = ddim(predict(half, middle[:, 0]), noising, s, middle, 0, None)
        target = two_step_target(predict, noising, z, s, middle, t)
        distilled = replace(predict(z, t[:, 0]), of="x0", value=target)
        found = ddim(distilled, noising, s, t, 0, None)
        missed.append(gap(found, end) / float(end.abs().amax()))
    return Residual(most(missed), 1e-10)


MEAN, SCALE = 0.7, 0.5
"""Of the data that flows lead to."""


NET = MLP.Config(width=1, depth=1)


def matched(x: Tensor, t: Tensor) -> Tensor:
    """The velocity of flow matching from N(MEAN, SCALE^2) to N(0, 1) with independent pairs."""
    variance = ((1 - t) * SCALE).square() + t.square()
    slope = (t - (1 - t) * SCALE**2) / variance
    return slope * (x - (1 - t) * MEAN) - MEAN


def straight(x: Tensor, t: Tensor) -> Tensor:
    """The velocity of its reflow."""
    z = (x - (1 - t) * MEAN) / ((1 - t) * SCALE + t)
    return z - (MEAN + SCALE * z)


class KnownVelocity(Velocity):
    """A velocity that is a known function of x (B, 2) and t (B, 1)."""

    def __init__(self, known: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(NET, (2,), 0)
        self.known = known

    def forward(self, x: Tensor, t: Tensor, context: Tensor | None) -> Tensor:
        return self.known(x, t.reshape(-1, 1))


def reflowed() -> CNF:
    """The reflow of a flow with the exact velocity, itself with the exact one."""
    space = Space(kind="real", shape=(2,))
    start: CNF = CNF.Config(net=NET).build(space)
    config = CNF.Config(net=NET, coupling="reflow", start=RunRef("exact"))
    model: CNF = config.build(space, {"start": start})
    start.flow.velocity, model.flow.velocity = KnownVelocity(matched), KnownVelocity(straight)
    return model.double()


def x129_a_straight_flow_needs_one_step() -> Residual:
    """One step of Euler's method solves a straight flow.

    Examines: models.flow._continuous.

    Source: Liu, Gong & Liu 2023, Flow Straight and Fast, sec. 2.1."""
    model, z = reflowed(), normal(8, 2)
    *_, found = model.flow.path(z, None, (1.0, 0.0), Solver("euler", steps=1))
    return Residual(gap(found, MEAN + SCALE * z), 1e-12)


def x129_the_loss_of_reflow_is_zero_at_straight_paths() -> Residual:
    """The loss of reflow is 0 at z - x of the pairs of the start.

    Examines: models.flow.cnf.

    Source: Liu, Gong & Liu 2023, Flow Straight and Fast, sec. 2.1."""
    loss = reflowed().loss(Batch(normal(64, 2)))
    return Residual(float(loss["matching"]), 1e-6)
