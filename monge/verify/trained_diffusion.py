r"""Identities of a diffusion model with its own schedule, network and guidance, trained or not.

What `diffusion`, `score_matching` and `diffusion_sampling` check for known distributions holds for
a model too:
its bound is a sum of divergences between normals, its four parametrisations agree,
$E[\epsilon \cdot s(z)] = \sigma E\, \mathrm{tr} \nabla s(z)$ for any network s (Stein), and its
flow is invertible. A guided score is that of no noised distribution: with $v = \sigma / \alpha$
the densities of $z / \alpha$ obey
$\partial_{v^2 / 2} \log p = \Delta \log p + |\nabla \log p|^2$, which the weighted score misses by
$\gamma (\gamma - 1) |s_y - s|^2$, constant in trivial cases only.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..core.batch import Batch
from ..models.diffusion._base import Diffusion
from ..models.diffusion._guidance import Guidance, guided_predictor
from ..models.diffusion._likelihood import (
    alpha_sigma_columns,
    denoising_bound,
    sample_diffusion_term,
)
from ..models.diffusion._parameterisation import DenoiserPrediction, regression_target
from ..models.diffusion._samplers import ancestral, ddim
from ..models.diffusion._units import Units
from ..models.diffusion.vdm import VDM
from ..prob.noise_schedule import NoiseProcess
from ..solve.jacobian_trace import hutchinson_trace, sample_probes
from ..solve.ode import Solver, State, integrate
from ._helpers import gap, most, normal, relative, standard_errors
from .diffusion import TARGETS, diffusion_term, log_normal
from .framework import Residual, SkipIdentity

STEPS = 12
"""Steps from data to noise, for models that have more of them or continuous time."""
PATHS, SAMPLES = 32, 64
"""Noising paths of each row, and samples of noise for a mean."""
STANDARD_ERRORS = 5.0
"""Standard errors within which a mean is, and beyond which it is not."""
GAMMAS = (0.0, 1.0, 3.0)
MANY = 100_000
"""Steps that are nearly continuous time."""
DROPPED, REPEATS = 20_000, 200
"""Rows whose conditions may be dropped, and batches over which a loss is averaged."""


def noised(model: Diffusion, batch: Batch) -> tuple[Tensor, Tensor, Tensor, DenoiserPrediction]:
    """Rows y, the noise in them and times over the unit interval, with the predictions."""
    y, t = model.to_units(batch), torch.linspace(0.05, 0.95, len(batch), dtype=torch.float64)
    noise = normal(*y.shape)
    prediction = model.predict_noised(
        y, noise, model.schedule.log_snr(t), model.encode_conditions(batch.given, len(batch))
    )
    return y, noise, t, prediction


def ways(noising: NoiseProcess, y: Tensor) -> list[Tensor]:
    """z at rising times from data to noise, (B, D) each."""
    times = noising.grid(STEPS, y)
    path = [noising.alpha(times[0]) * y + noising.sigma(times[0]) * normal(*y.shape)]
    for s, t in pairwise(times):
        ratio, spread = noising.alpha(t) / noising.alpha(s), noising.step(s, t).forward.sqrt()
        path.append(ratio * path[-1] + spread * normal(*y.shape))
    return path


def x91_own_steps_compose(model: Diffusion) -> Residual:
    """The steps of the model's noising compose to q(z_1 | x).

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 4; Kingma et al.
    2021, Variational Diffusion Models, sec. 3.1."""
    noising, t = model.schedule, model.schedule.grid(model.steps or STEPS, normal(1))
    steps = noising.step(t[:-1], t[1:])
    onward = noising.alpha(t[-1]) / noising.alpha(t)  # what is left at the end of noise at each
    whole = (onward * noising.sigma(t)).square()[0] + (onward[1:].square() * steps.forward).sum()
    return Residual(relative(whole, noising.sigma(t[-1]).square()), 1e-10)


def x92_own_ways_are_as_likely_back(model: Diffusion, batch: Batch) -> Residual:
    """q(z_0|x) prod q(z_t|z_s) = q(z_1|x) prod q(z_s|z_t, x) along a path.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 6-7."""
    noising, y = model.schedule, model.to_units(batch)
    times, path = noising.grid(STEPS, y), ways(noising, y)

    def marginal(place: int) -> Tensor:
        t = times[place]
        return log_normal(path[place], noising.alpha(t) * y, noising.sigma(t).square()).sum(1)

    forth, back = marginal(0), marginal(-1)
    for i, (s, t) in enumerate(pairwise(times)):
        step, ratio = noising.step(s, t), noising.alpha(t) / noising.alpha(s)
        forth = forth + log_normal(path[i + 1], ratio * path[i], step.forward).sum(1)
        mean = step.on_z * path[i + 1] + step.on_x * y
        back = back + log_normal(path[i], mean, step.variance).sum(1)
    return Residual(gap(forth, back) / float(back.abs().amax()), 1e-10)


def reverse(
    model: Diffusion, prediction: DenoiserPrediction, z: Tensor, s: Tensor, t: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean and the variance of the model's p(z_s | z_t), (B, D)."""
    step = model.schedule.step(s, t)
    mean, spread = step.on_z * z + step.on_x * prediction.x0, step.variance.expand_as(z)
    if model.variance == "forward":
        spread = step.forward.expand_as(z)
    elif prediction.share is not None:
        spread = step.variance ** (1 - prediction.share) * step.forward**prediction.share
    return mean, spread


def x93_scored_steps_are_divergences(model: Diffusion, batch: Batch) -> Residual:
    """Each term of the model's bound is KL(q(z_s|z_t, x) | p(z_s|z_t)).

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 5."""
    inputs, seen = (
        replace(model.likelihood_inputs(batch, 0), steps=STEPS),
        list[tuple[Tensor, DenoiserPrediction]](),
    )

    def predict(z: Tensor, log_snr: Tensor) -> DenoiserPrediction:
        seen.append((z, inputs.predict(z, log_snr)))
        return seen[-1][1]

    error, _, _, weight, log_snr = sample_diffusion_term(replace(inputs, predict=predict), 0, 0, 1)
    ((z, prediction),) = seen
    t = (model.schedule.time(log_snr) * STEPS).round() / STEPS
    s, t = (t - 1 / STEPS)[:, None], t[:, None]
    mean, spread = reverse(model, prediction, z, s, t)
    step = model.schedule.step(s, t)
    apart = (step.on_z * z + step.on_x * inputs.y - mean).square()
    kl = 0.5 * ((spread / step.variance).log() - 1 + (step.variance + apart) / spread).sum(1)
    # In units of the largest term: where a cell is certain, both sides vanish.
    scored, kl = error * weight, STEPS * kl
    return Residual(float((scored - kl).abs().amax() / kl.abs().amax()), 1e-7)


def x94_consistency_form_is_not_the_bound(model: Diffusion, batch: Batch) -> Residual:
    """The KL consistency form is not the model's bound: -gap in its errors.

    Source: Luo 2022, Understanding Diffusion Models: A Unified Perspective, section on variational
    diffusion models."""
    noising, y = model.schedule, model.to_units(batch).repeat_interleave(PATHS, 0)
    times, path = noising.grid(STEPS, y), ways(noising, y)
    context = model.encode_conditions(
        {
            name: part[torch.arange(len(batch)).repeat_interleave(PATHS)]
            for name, part in batch.given.items()
        },
        len(y),
    )
    lost = y.new_zeros(len(y))
    for i in range(1, STEPS):
        before, s, t = times[i - 1 : i + 2]
        prediction = model.predict(path[i + 1], t.expand(len(y)), context)
        mean, spread = reverse(model, prediction, path[i + 1], s, t)
        start, wide = (
            noising.alpha(s) / noising.alpha(before) * path[i - 1],
            noising.step(before, s).forward,
        )
        ratio = log_normal(path[i], start, wide) - log_normal(path[i], mean, spread)
        kl = 0.5 * ((spread / wide).log() - 1 + (wide + (start - mean).square()) / spread)
        lost = lost + (kl - ratio).sum(1)
    return Residual(-float(lost.mean() / lost.std() * len(lost) ** 0.5), -STANDARD_ERRORS)


def x95_own_parameterisations_agree(model: Diffusion, batch: Batch) -> Residual:
    """The model's x0, noise, score, velocity agree, and so do their losses.

    Source: Salimans & Ho 2022, Progressive Distillation for Fast Sampling of Diffusion Models; Luo
    2022, Understanding Diffusion Models: A Unified Perspective."""
    y, noise, _, prediction = noised(model, batch)
    values = {
        "x0": prediction.x0,
        "noise": prediction.noise,
        "score": prediction.score,
        "velocity": prediction.velocity,
    }
    loss, missed = (noise - prediction.noise).square(), []
    for of in TARGETS:
        other = DenoiserPrediction(
            prediction.z, prediction.alpha, prediction.sigma, of, values[of]
        )
        error = other.value - regression_target(of, y, noise, prediction.alpha, prediction.sigma)
        missed += [
            gap(other.x0, prediction.x0) / float(1 + prediction.x0.abs().amax()),
            gap((other.noise_error_scale * error).square(), loss) / float(1 + loss.amax()),
        ]
    return Residual(most(missed), 1e-8)


def x96_own_weights_sum_to_the_ends(model: Diffusion) -> Residual:
    """Weights of |x - x_hat|^2 over the model's steps sum to its SNR change.

    Source: Kingma et al. 2021, Variational Diffusion Models."""
    t = model.schedule.grid(model.steps or STEPS, normal(1))
    step, snr = model.schedule.step(t[:-1], t[1:]), model.schedule.snr(t[[0, -1]])
    return Residual(
        relative((step.on_x.square() / (2 * step.variance)).sum(), (snr[0] - snr[1]) / 2), 1e-10
    )


def x97_own_score_denoises(model: Diffusion, batch: Batch) -> Residual:
    """alpha x_hat = z + sigma^2 s with the score that the model returns.

    Source: Efron 2011, Tweedie's Formula and Selection Bias."""
    if not isinstance(model.units, Units):
        raise SkipIdentity("names have no gradient")
    y, _, t, prediction = noised(model, batch)
    prediction = model.predict(
        prediction.alpha * y, t, model.encode_conditions(batch.given, len(y))
    )
    score = model.score(batch, t).reshape(y.shape) * model.units.scale / prediction.alpha
    return Residual(
        gap(prediction.alpha * prediction.x0, prediction.z + prediction.sigma.square() * score)
        / float(1 + prediction.x0.abs().amax()),
        1e-9,
    )


def x100_implicit_is_denoising_score_matching(model: Diffusion, batch: Batch) -> Residual:
    """E[sigma^2 tr grad s - sigma eps s] = 0 for the model's s, in errors.

    Source: Vincent 2011, A Connection Between Score Matching and Denoising Autoencoders; Stein
    1981, Estimation of the Mean of a Multivariate Normal Distribution."""
    row = batch[torch.zeros(SAMPLES, dtype=torch.long)]
    y, noise = model.to_units(row), normal(SAMPLES, model.units.width)
    log_snr = model.schedule.log_snr(y.new_full((SAMPLES,), 0.5))
    context, (alpha, sigma) = (
        model.encode_conditions(row.given, SAMPLES),
        alpha_sigma_columns(model.schedule, log_snr),
    )
    probes = sample_probes(torch.arange(SAMPLES), 1, y.shape[1:], 0).to(y.dtype)
    s, trace = hutchinson_trace(
        lambda z: model.predict_at(z, log_snr, context).score, alpha * y + sigma * noise, probes
    )
    apart = sigma[:, 0].square() * trace[:, 0] - (sigma * noise * s).sum(1)
    error = apart.std() / SAMPLES**0.5
    return Residual(float(apart.mean().abs() / error.clamp_min(1e-12)), STANDARD_ERRORS)


def guiding(model: Diffusion) -> None:
    """Skip models without a condition to guide by."""
    if not model.space.given:
        raise SkipIdentity("it is given nothing")
    if not model.config.drop:
        raise SkipIdentity("it was fitted with drop=0")


def x102_own_guidance_mixes_predictions(model: Diffusion, batch: Batch) -> Residual:
    """Guided noise = gamma cond + (1 - gamma) uncond; gamma 0 and 1 are these.

    Source: Ho & Salimans 2022, Classifier-Free Diffusion Guidance."""
    guiding(model)
    _, _, t, prediction = noised(model, batch)
    plain, missed = model.predict(prediction.z, t), []
    for gamma in GAMMAS:
        options = model.SamplingConfig(guidance=Guidance(gamma=gamma), clip=False)
        found = guided_predictor(model, batch.given, len(batch), options)(prediction.z, t)
        for mixed, own, other in (
            (found.noise, prediction.noise, plain.noise),
            (found.x0, prediction.x0, plain.x0),
        ):
            wanted = gamma * own + (1 - gamma) * other
            missed.append(gap(mixed, wanted) / float(1 + wanted.abs().amax()))
    return Residual(most(missed), 1e-9)


def x103_guidance_leaves_noising(model: Diffusion, batch: Batch) -> Residual:
    """|s_y - s|^2 varies, so no noised distribution is guided: -its spread.

    Source: Bradley & Nakkiran 2024, Classifier-Free Guidance Is a Predictor-Corrector."""
    guiding(model)
    row, t = batch[torch.zeros(SAMPLES, dtype=torch.long)], torch.full((SAMPLES,), 0.5).double()
    noise, log_snr = normal(SAMPLES, model.units.width), model.schedule.log_snr(t)
    prediction = model.predict_noised(
        model.to_units(row), noise, log_snr, model.encode_conditions(row.given, SAMPLES)
    )
    apart = (prediction.noise - model.predict(prediction.z, t).noise).square().sum(1)
    if not float(apart.mean()):
        raise SkipIdentity("its prediction does not depend on the condition")
    return Residual(-float(apart.std() / apart.mean()), -1e-3)


def x104_own_schedule_falls(model: Diffusion) -> Residual:
    """The model's SNR decreases with t and equals alpha^2 / sigma^2.

    Source: Kingma et al. 2021, Variational Diffusion Models, sec. 3.1."""
    t = torch.linspace(0, 1, 401, dtype=torch.float64)
    noising, log_snr = model.schedule, model.schedule.log_snr(t)
    return Residual(
        most(
            float((log_snr.diff() >= 0).any()),
            gap(noising.log_snr(noising.time(log_snr)), log_snr),
            relative(noising.alpha_bar(t) / noising.sigma(t).square(), noising.snr(t)),
        ),
        1e-8,
    )


def x105_own_bound_has_its_weights(model: Diffusion) -> Residual:
    """The model's weights of a known error integrate to 1/2 int err dlambda.

    In continuous time and over very many steps.

    Source: Kingma et al. 2021, Variational Diffusion Models, sec. 4."""
    high, low = model.schedule.log_snr(torch.tensor([0.0, 1.0]).double())
    due = 0.5 * float(softplus(high) - softplus(low))  # of the error sigmoid(lambda)
    endless = diffusion_term(model.schedule, torch.sigmoid, 0)
    many = diffusion_term(model.schedule, torch.sigmoid, MANY)
    return Residual(most(abs(endless / due - 1), abs(many / due - 1)), 1e-2)


def x105_own_loss_is_the_bound(model: VDM, batch: Batch) -> Residual:
    """E of the trained diffusion term is that of the bound, in its errors.

    Source: Kingma et al. 2021, Variational Diffusion Models, eq. 17."""
    if model.space.given and model.config.drop:
        raise SkipIdentity("it is trained without conditions too, which its bound is not")
    row = batch[torch.zeros(SAMPLES, dtype=torch.long)]
    y = model.to_units(row)
    found = torch.stack([model.diffusion_loss(row, y).mean() for _ in range(REPEATS)])
    inputs = model.likelihood_inputs(replace(row, row=torch.arange(SAMPLES)), 0)
    due = denoising_bound(inputs, SAMPLES).diffusion
    error = (found.var() / REPEATS + due.var() / SAMPLES).sqrt().clamp_min(1e-12)
    return Residual(float((found.mean() - due.mean()).abs() / error), STANDARD_ERRORS)


def x102_conditions_are_dropped_at_their_rate(model: Diffusion, batch: Batch) -> Residual:
    """In training the condition is left out in a share `drop` of the rows.

    Source: Ho & Salimans 2022, Classifier-Free Diffusion Guidance, algorithm 1."""
    guiding(model)
    many = batch[torch.zeros(DROPPED, dtype=torch.long)]
    whole, kept = model.encode_conditions(many.given, DROPPED), model.drop_conditions(many)
    flags = kept.vector[:, 0]
    changed = gap(kept.vector, whole.vector * flags[:, None])
    off = standard_errors(1 - flags, torch.tensor(model.config.drop).double())
    return Residual(off if changed == 0 else float("nan"), STANDARD_ERRORS)


def x106_own_ddim_with_eta_one_is_ancestral(model: Diffusion, batch: Batch) -> Residual:
    """DDIM with eta = 1 takes the model's ancestral step, with sigma_q^2.

    Source: Song, Meng & Ermon 2021, Denoising Diffusion Implicit Models, sec. 4.1."""
    y, anew = model.to_units(batch), normal(len(batch), model.units.width)
    s, t = torch.tensor([0.3, 0.8]).double()
    z = model.schedule.alpha(t) * y + model.schedule.sigma(t) * normal(*y.shape)
    prediction = model.predict(z, t.expand(len(y)), model.encode_conditions(batch.given, len(y)))
    one = ddim(prediction, model.schedule, s, t, 1.0, anew)
    two = ancestral(prediction, model.schedule, z, s, t, anew, "posterior")
    return Residual(gap(one, two) / float(1 + two.abs().amax()), 1e-9)


def x107_own_flow_leads_back(model: Diffusion, batch: Batch) -> Residual:
    """The model's probability flow to noise and back returns to the data.

    Source: Song et al. 2021, Score-Based Generative Modeling through SDEs, sec. 4.3."""
    y, context = model.to_units(batch), model.encode_conditions(batch.given, len(batch))
    begin, end = (-0.5 * model.schedule.log_snr(y.new_tensor([0.2, 0.8]))).tolist()

    def field(tau: Tensor, state: State) -> State:
        """sigma eps - sigma^2 z in tau, minus half the log-SNR, if variance is preserved."""
        log_snr = (-2 * tau).expand(len(y))
        scale = torch.hypot(*alpha_sigma_columns(model.schedule, log_snr))
        noise = model.predict_at(scale * state[0], log_snr, context).noise
        sigma = torch.sigmoid(-log_snr).sqrt()[:, None]
        return (sigma * noise - sigma.square() * state[0],)

    solver = Solver(tolerance=1e-8)
    there = integrate(field, (y,), (begin, end), solver).end
    (back,) = integrate(field, there, (end, begin), solver).end
    return Residual(gap(back, y), 1e-3)
