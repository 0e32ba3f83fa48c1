r"""Identities of models with an exact likelihood, and of products of conditionals.

$\log p(x) = \log \frac1K \sum_k \prod_i p(x_i | x_{<i})$ with "before" meant in the order of
member k; a model that is no such product is checked by the identities that need no order.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.abilities import CanSample, HasConditionals, HasLikelihood, HasPosterior
from ..core.batch import Batch, broadcast_conditions
from ..core.model import Model
from ..core.rng import make_generator
from ..nn.autoregressive.masked_mlp import MaskedLinear, MaskedMLP
from ._density import Density, decoded, exact, marginal
from .framework import Residual, SkipIdentity
from .subjects import strangers

ROUNDING = 1e-12
"""What float64 leaves of a sum over all states."""
QUADRATURE = 1e-4
"""What may be left of an integral, or of a sum over a window of counts that has tails."""
MOMENTS = 1e-3
"""Error allowed in an integral that samples are compared with, whose errors are larger."""
SAMPLES = 50_000
"""Samples that are compared with a distribution."""
MAX_STANDARD_ERRORS = 5.0
"""Standard errors by which samples may be off: by chance, one comparison in a million is."""
FEWEST = 25.0
"""Expected count beneath which states are counted together."""
CODES = 3
"""Latent codes whose decoded distributions are summed."""


def x50_sums_to_one(model: HasLikelihood, batch: Batch) -> Residual:
    """sum_x p(x) = 1.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2."""
    return mass(exact(model, batch))


def x50_decoder_sums_to_one(model: HasPosterior, batch: Batch) -> Residual:
    """sum_x p(x | z) = 1 for every latent code z.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2."""
    z = torch.randn(CODES, *model.latent.shape, dtype=torch.float64)
    found = [mass(decoded(model, batch, code)) for code in z]
    return max(found, key=lambda residual: (math.isnan(residual.value), residual.value))


def mass(distribution: Density) -> Residual:
    on_a_line = sum(part.kind == "real" for part in distribution.space.parts) == 1
    total, error = distribution.mean(
        lambda x, log_p: torch.ones_like(log_p)[:, None], QUADRATURE / (1000 if on_a_line else 10)
    )  # at the steps of a density the error is larger than estimated, and a line needs few points
    tolerance = ROUNDING if distribution.is_finite else max(QUADRATURE, error)
    return Residual(abs(float(total[0]) - 1), tolerance)


def x52_jacobian_is_strictly_triangular(model: HasConditionals, batch: Batch) -> Residual:
    """d parameters_i / d x_j = 0 exactly unless j comes before i.

    Source: Germain et al. 2015, MADE: Masked Autoencoder for Distribution Estimation."""
    if not batch.x.is_floating_point():
        raise SkipIdentity("labels have no derivative; X22 changes them instead")
    leak, reach = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for member, order in enumerate(model.orders):
        slopes = jacobian(model, batch, member)  # (D, D)
        late = order[:, None] <= order  # entry j is not before entry i
        leak = torch.maximum(leak, (slopes * late).amax())
        reach = torch.maximum(reach, (slopes * ~late).amax())
    if len(order) > 1 and float(leak) == float(reach) == 0:
        raise SkipIdentity("no conditional depends on an entry before it")
    return Residual(float(leak), 0.0)


@torch.enable_grad()
def jacobian(model: HasConditionals, batch: Batch, member: int) -> Tensor:
    """Largest slope over rows of a random mixture of entry i's parameters along x_j, (D, D)."""
    x = batch.x.clone().requires_grad_()
    parameters = model.parameters_of_conditionals(replace(batch, x=x), member)
    if not parameters.requires_grad:
        raise SkipIdentity(
            "its conditionals are tables without a derivative; X22 changes entries instead"
        )
    mixed = (parameters * torch.randn_like(parameters)).sum((0, 2))  # (D,)
    rows = [
        torch.autograd.grad(entry, x, retain_graph=True, materialize_grads=True)[0]
        for entry in mixed
    ]
    return torch.stack([row.reshape(len(batch), -1).abs().amax(0) for row in rows])


def x52_masks_leave_no_path(model: HasConditionals) -> Residual:
    """No path through the masks leads from an entry to one not after it.

    Source: Germain et al. 2015, MADE: Masked Autoencoder for Distribution Estimation."""
    assert isinstance(model, nn.Module)
    networks = [module for module in model.modules() if isinstance(module, MaskedMLP)]
    if not networks:
        raise SkipIdentity("it has no masks")
    return Residual(sum(wrong_paths(network) for network in networks), 0.0)


def wrong_paths(network: MaskedMLP) -> float:
    """How many paths lead from an input to an output that does not come after it."""
    wrong = 0.0
    for member in range(network.members):
        paths = masks_of(network, member)
        inputs = network.maps()[0].degrees_in[member]
        outputs = network.out.degrees_out[member]
        outputs = outputs - outputs.min() + 1  # places from 1, however a mask stores its degrees
        wrong += float((paths * (outputs[:, None] <= inputs)).sum())
    return wrong


def masks_of(network: MaskedMLP, member: int) -> Tensor:
    """How many paths lead from each input (conditions first) to each output."""
    first, *rest = (mask_of(layer, member) for layer in network.maps())
    *hidden, last = rest
    conditions = torch.eye(network.context, first.shape[1], dtype=first.dtype)
    paths = first
    for mask in hidden:
        new = mask @ torch.cat([conditions, paths])
        paths = paths + new if network.config.residual else new
    paths = last @ torch.cat([conditions, paths])
    return paths if network.direct is None else paths + mask_of(network.direct, member)


def mask_of(layer: MaskedLinear, member: int) -> Tensor:
    return layer.mask(member) if layer.masks is None else layer.masks[member]


def x56_steps_equal_the_parallel_pass(model: HasConditionals, batch: Batch) -> Residual:
    """log p(x) = sum_i log p(x_i | x_<i), one conditional at a time.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 20.10.7."""
    if not isinstance(model, HasLikelihood):
        raise SkipIdentity("it has no likelihood")
    other = strangers(model, batch)
    members = range(len(model.orders))
    steps = torch.stack([step_by_step(model, batch, other, member) for member in members])
    apart = torch.logsumexp(steps, 0) - math.log(len(steps))  # (B,)
    whole = model.likelihood(batch).value
    size = max(float(whole.abs().amax()), 1.0)
    return Residual(float((apart - whole).abs().amax()), ROUNDING * size)


def step_by_step(model: HasConditionals, batch: Batch, other: Tensor, member: int) -> Tensor:
    """The sum of conditionals, each from rows whose later entries are strangers', (B,)."""
    order, x = model.orders[member], batch.x.reshape(len(batch), -1)
    total = torch.zeros(len(batch), dtype=torch.float64)
    for entry, place in enumerate(order.tolist()):
        known = torch.where(order > place, other, x).reshape(batch.x.shape)
        total += model.conditionals(replace(batch, x=known), member)[:, entry]
    return total


def x57_samples_follow_the_distribution(model: HasLikelihood, batch: Batch) -> Residual:
    """Samples follow p: their counts or moments, in standard errors.

    For a distribution with finitely many states, the counts of samples are compared with p by
    Pearson's chi-squared test; for any other, the mean log p and the moments of samples are
    compared with those of p.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 8.1.2."""
    distribution = sampled_distribution(model, batch)
    return (
        counts_of(model, batch, distribution)
        if distribution.is_finite
        else moments_of(model, batch, distribution)
    )


def counts_of(model: HasLikelihood, batch: Batch, distribution: Density) -> Residual:
    states = distribution.states()
    found = counts(samples_of(model, batch), states)
    expected = SAMPLES * distribution.log_p(states).exp()
    return Residual(chi_squared(found, expected), MAX_STANDARD_ERRORS)


def moments_of(model: HasLikelihood, batch: Batch, distribution: Density) -> Residual:
    shift = distribution.space.spread("mean").flatten().double()
    scale = distribution.space.spread("scale").flatten().double()
    pairs = torch.triu_indices(len(shift), len(shift))

    def statistic(x: Tensor, log_p: Tensor) -> Tensor:
        """log p, the entries and their products, squashed so that no tail dominates."""
        y = torch.tanh((x - shift) / scale)  # (N, D)
        return torch.cat([log_p[:, None], y, y[:, pairs[0]] * y[:, pairs[1]]], 1)

    expected, uncertain = distribution.mean(statistic, MOMENTS)
    x = samples_of(model, batch)
    samples = statistic(x, distribution.log_p(x))
    error = (samples.std(0) / math.sqrt(SAMPLES)).clamp(min=max(QUADRATURE, uncertain))
    gaps = (samples.mean(0) - expected).abs() / error
    return Residual(float(gaps.amax()), MAX_STANDARD_ERRORS)


def sampled_distribution(model: HasLikelihood, batch: Batch) -> Density:
    """What samples are compared with: the likelihood if it is exact, otherwise the integral
    over the latent code."""
    if not isinstance(model, CanSample):
        raise SkipIdentity("it cannot sample")
    if isinstance(model, HasPosterior) and model.likelihood(batch).kind != "exact":
        found = marginal(model, batch)
        if not found.is_finite:
            raise SkipIdentity("its likelihood is a bound")
        return found
    return exact(model, batch)


def samples_of(model: HasLikelihood, batch: Batch) -> Tensor:
    """Samples given the condition of the first row, flattened, (SAMPLES, D)."""
    assert isinstance(model, Model)
    assert isinstance(model, CanSample)
    given = broadcast_conditions(batch[:1].given, model.space, SAMPLES)
    return model.sample(SAMPLES, given, generator=make_generator(4)).reshape(SAMPLES, -1).double()


def counts(x: Tensor, states: Tensor) -> Tensor:
    """How many rows are in each state, and last how many are in none, (K + 1,)."""
    sizes = states.amax(0) + 1
    place = torch.cat([sizes.flip(0).cumprod(0).flip(0)[1:], torch.ones(1, dtype=torch.float64)])
    inside = ((x >= 0) & (x < sizes) & (x == x.floor())).all(1)
    codes = torch.where(inside, (x @ place).long(), len(states))
    return torch.bincount(codes, minlength=len(states) + 1).double()


def chi_squared(found: Tensor, expected: Tensor) -> float:
    """The standard errors by which a normal variable exceeds its mean as rarely as Pearson's
    chi-squared exceeds that of counts (K + 1,) whose expected values are (K,).

    The rarest states are counted together, since the distribution of the statistic holds for
    large counts; no row may be in none of the states.
    """
    if found[-1]:
        return math.inf
    order = expected.argsort()
    expected, found = expected[order], found[:-1][order]
    rare = int((expected.cumsum(0) < FEWEST).sum()) + 1  # the fewest that are enough together
    expected, found = (
        torch.cat([each[:rare].sum(0, keepdim=True), each[rare:]]) for each in (expected, found)
    )
    statistic = ((found - expected).square() / expected).sum()
    freedom = torch.full_like(statistic, max(len(expected) - 1, 1))
    chance = torch.special.gammaincc(freedom / 2, statistic / 2)
    return float((-torch.special.ndtri(chance)).clamp(min=0.0))
