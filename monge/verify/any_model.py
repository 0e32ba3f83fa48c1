r"""Identities of every model, with random or trained weights: the slope of its losses, rows that
do not read each other, samples that repeat, weights that are the whole of it, and samples that
follow the density that is scored.

A model is its configuration, its space and its weights: built anew from them it gives the same
numbers. Updates follow $\nabla_\theta L$, so that
$L(\theta + h v) - L(\theta - h v) = 2 h\, v \cdot \nabla_\theta L + O(h^3)$ in any direction v.
A density sums to one for all weights, so that
$E_p \nabla_\theta \log p = \nabla_\theta \int p = 0$.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from ..core.abilities import (
    CanDecode,
    CanEncode,
    CanSample,
    CanStream,
    HasLikelihood,
    HasMean,
)
from ..core.batch import Batch, broadcast_conditions
from ..core.errors import MongeError
from ..core.model import Model, Update
from ..core.rng import make_generator
from ..core.space import Space
from ..models._generator import GeneratorModel
from ..models.diffusion.consistency import Consistency
from ..models.flow.cnf import CNF
from ..models.latent.vqvae import VQVAE
from ..models.sequence._forecaster import ForecastModel
from ..models.transport.sinkhorn_generator import SinkhornGenerator
from ._helpers import gap, most, standard_errors
from .framework import Residual, SkipIdentity

STEP = 1e-5
"""Length of the step in the weights by which a slope is compared."""
ROUNDING = 1e-9
"""What float64 leaves of sums in another order, in units of the largest number."""
FEW, MANY = 4, 2000
"""Samples that are compared one by one, and by their mean."""
HALF, PIECES, SLOPE_STEP = 500, 5, 1e-4
"""Samples that choose a direction of the weights, and as many that are tested along it; pieces in
which they are scored, and the length of the step by which slopes are taken."""
MAX_STANDARD_ERRORS = 5.0
"""Standard errors by which a mean may be off."""


def gradient_updates(model: Model) -> list[Update]:
    """The updates whose gradients are slopes of their losses."""
    if isinstance(model, SinkhornGenerator):
        raise SkipIdentity("its gradient is that of a plan which is found to a tolerance")
    if isinstance(model, GeneratorModel) and model.space.kind not in ("real", "levels"):
        raise SkipIdentity("gradients pass straight through its rounded values")
    if isinstance(model, CNF) and model.table:
        raise SkipIdentity("the layer of its table learns by a loss of its own")
    if isinstance(model, ForecastModel) and model.config.fit != "likelihood":
        raise SkipIdentity("its mean, margins and dependence learn by losses of their own")
    if isinstance(model, Consistency):
        raise SkipIdentity("its loss has no gradient through the side near the data")
    found = [update for update in model.updates() if update.params]
    if isinstance(model, VQVAE):  # others pass straight through its codes
        return [update for update in found if update.name == "prior"]
    if not found:
        raise SkipIdentity("it is fitted without gradients")
    return found


def total(update: Update, batch: Batch) -> Tensor:
    """The loss of an update as training adds it up, noise held fixed."""
    torch.manual_seed(1)
    return torch.stack([term.mean() for term in update.loss(batch).values()]).sum()


def gradient(update: Update, batch: Batch) -> list[Tensor]:
    with torch.enable_grad():
        slopes = torch.autograd.grad(
            total(update, batch), list(update.params), allow_unused=True, materialize_grads=True
        )
    return list(slopes)


@contextmanager
def displaced(params: Sequence[Tensor], way: Sequence[Tensor], size: float) -> Iterator[None]:
    """The weights moved along a direction inside the block, and put back."""
    saved = [param.detach().clone() for param in params]
    torch._foreach_add_(list(params), list(way), alpha=size)
    try:
        yield
    finally:
        for param, old in zip(params, saved, strict=True):
            param.copy_(old)


def moved(update: Update, batch: Batch, way: Sequence[Tensor], size: float) -> float:
    """The loss after a step of the update's weights."""
    with displaced(list(update.params), way, size):
        return float(total(update, batch))


def length(way: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(each.square().sum()) for each in way))


def x119_updates_follow_the_slope_of_their_loss(model: Model, batch: Batch) -> Residual:
    """Each update's gradient is the difference quotient of its loss.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 5.3.3."""
    worst = []
    for update in gradient_updates(model):
        way = [torch.randn_like(param) for param in update.params]
        way = [each / length(way) for each in way]
        slopes = gradient(update, batch)
        found = sum(float((g * w).sum()) for g, w in zip(slopes, way, strict=True))
        sides = [moved(update, batch, way, sign * STEP) for sign in (1, -1)]
        quotient = (sides[0] - sides[1]) / (2 * STEP)
        worst.append(abs(found - quotient) / max(length(slopes), *map(abs, sides), 1.0))
    return Residual(most(worst), 1e-5)


def x119_a_step_against_the_gradient_lowers_the_loss(model: Model, batch: Batch) -> Residual:
    """L(w - h g) falls by h |g|^2 to first order, as a ratio to it.

    Source: Boyd & Vandenberghe 2004, Convex Optimization, sec. 9.3."""
    worst = []
    for update in gradient_updates(model):
        slopes = gradient(update, batch)
        size = length(slopes)
        if size < 1e-9:
            continue  # at rest
        step = STEP / size
        fall = moved(update, batch, slopes, step) - moved(update, batch, slopes, -step)
        worst.append(abs(fall / (2 * step * size**2) - 1))
    if not worst:
        raise SkipIdentity("every gradient is nil")
    return Residual(most(worst), 1e-2)


def alone(rows: Batch, f: Callable[[Batch], Tensor]) -> float:
    """By how much f of rows together differs from f of each alone, relative to its size."""
    rows = replace(rows, row=torch.arange(len(rows)))  # noise is keyed by row
    together = f(rows)
    each = torch.cat([f(rows[i : i + 1]) for i in range(len(rows))])
    return gap(together, each) / max(float(together.abs().amax()), 1.0)


def x120_likelihoods_do_not_read_other_rows(model: HasLikelihood, batch: Batch) -> Residual:
    """log p of a row is the same alone and in a batch.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2.4."""
    return Residual(alone(batch, lambda rows: model.likelihood(rows).value), precision(model))


def x120_codes_do_not_read_other_rows(model: CanEncode, batch: Batch) -> Residual:
    """The code of a row is the same alone and in a batch.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2.4."""
    return Residual(alone(batch, model.encode), precision(model))


def x120_means_do_not_read_other_rows(model: HasMean, batch: Batch) -> Residual:
    """The mean that belongs to a condition is the same alone and in a batch.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2.4."""
    if not batch.given:
        raise SkipIdentity("it has no conditions, whose means could be compared")
    try:
        return Residual(
            alone(batch, lambda rows: model.mean(rows.given).double()), precision(model)
        )
    except MongeError as reason:
        raise SkipIdentity(str(reason)) from reason


def x120_decoded_codes_do_not_read_each_other(model: CanDecode, batch: Batch) -> Residual:
    """A code is decoded alike alone and in a batch.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 1.2.4."""
    z = torch.randn(len(batch), *model.latent.shape, dtype=torch.float64)
    codes = Batch(z, batch.given)
    return Residual(
        alone(codes, lambda rows: model.decode(rows.x, rows.given).double()), precision(model)
    )


def precision(model: object) -> float:
    """Rounding, or what the model itself promises, such as that of a solver."""
    return max(ROUNDING, float(getattr(model, "precision", 0.0)))


def drawn(model: CanSample, batch: Batch, n: int, seed: int) -> Tensor:
    assert isinstance(model, Model)
    given = broadcast_conditions(batch[:1].given, model.space, n)
    return model.sample(n, given, generator=make_generator(seed))


def x121_samples_repeat_and_lie_in_the_support(model: CanSample, batch: Batch) -> Residual:
    """A seed gives the same samples again, values that the data may have.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 11.1."""
    assert isinstance(model, Model)
    x, again = (drawn(model, batch, FEW, 4) for _ in range(2))
    shape = model.space.shape
    fits = x.shape[1:] == shape or (model.space.varies and x.dim() == 1 + len(shape))
    wrong = 0 if fits else FEW
    values = [x.reshape(FEW, -1)[:, i] for i in range(x[0].numel())]
    parts = list(model.space.parts) if fits and len(values) == model.space.dims else []
    wrong += sum(outside(part, each) for part, each in zip(parts, values, strict=bool(parts)))
    return Residual(wrong + float((x != again).sum() - (x.isnan() & again.isnan()).sum()), 0.0)


def outside(part: Space, x: Tensor) -> int:
    """How many values are none of an entry of this space."""
    if part.optional:
        x = x[~x.isnan()]
    if part.kind == "real":
        return int((~x.isfinite()).sum())
    size = 2 if part.kind == "binary" else part.size
    inside = x == x.round()
    if part.kind in ("binary", "label", "levels", "tokens"):
        inside = inside & (x >= 0) & (x < size)
    return int((~inside).sum())


def x121_a_stream_ends_in_the_sample(model: CanStream, batch: Batch) -> Residual:
    """The last state of a stream of samples is the sample of the same seed.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 11.1."""
    assert isinstance(model, Model)
    assert isinstance(model, CanSample)
    given = broadcast_conditions(batch[:1].given, model.space, FEW)
    last = None
    for last in model.stream(FEW, given, generator=make_generator(4)):  # noqa: B007
        pass
    assert last is not None
    whole = drawn(model, batch, FEW, 4)
    if last.shape != whole.shape:
        return Residual(math.inf, 0.0)
    same = (last == whole) | (last.isnan() & whole.isnan()) if last.is_floating_point() else None
    return Residual(float((~(last == whole if same is None else same)).sum()), 0.0)


def x122_samples_average_to_the_mean(model: HasMean, batch: Batch) -> Residual:
    """The mean that a model states is that of its samples, in standard errors.

    Source: Casella & Berger 2002, Statistical Inference, sec. 5.5."""
    assert isinstance(model, Model)
    if not isinstance(model, CanSample):
        raise SkipIdentity("it cannot sample")
    if any(part.kind in ("label", "tokens") or part.optional for part in model.space.parts):
        raise SkipIdentity("names and empty cells have no mean")
    given = broadcast_conditions(batch[:1].given, model.space, 1)
    try:
        mean = model.mean(given).double()[0]
    except MongeError as reason:
        raise SkipIdentity(str(reason)) from reason
    x = drawn(model, batch, MANY, 4).double()
    scale = model.space.spread("scale").double().reshape(mean.shape)
    error = x.std(0) / MANY**0.5 + scale / MANY  # a rare value may be in no sample
    return Residual(float(((x.mean(0) - mean).abs() / error).amax()), MAX_STANDARD_ERRORS)


def rebuilt(model: object) -> Model:
    """A model built anew from the configuration, the space and the weights of another."""
    assert isinstance(model, Model)
    if len(model.parts):
        raise SkipIdentity("it uses another run, which its own weights do not hold")
    torch.manual_seed(9)
    again: Model = model.config.build(model.space).double()
    again.load_state_dict(model.state_dict())
    return again.eval()


def apart(left: Tensor, right: Tensor) -> float:
    """How many numbers of two tensors differ; all if their shapes do."""
    if left.shape != right.shape:
        return math.inf
    same = left == right
    return float((~(same | (left.isnan() & right.isnan()))).sum())


def x123_rebuilt_models_have_the_same_loss(model: Model, batch: Batch) -> Residual:
    """Configuration, space and weights make the model: the same losses.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 5.2."""
    sides = []
    for each in (model, rebuilt(model)):
        torch.manual_seed(1)
        sides.append(each.loss(batch))
    names = sides[0].keys() == sides[1].keys()
    return Residual(
        most(apart(sides[0][key], sides[1][key]) for key in sides[0]) if names else math.inf, 0.0
    )


def x123_rebuilt_models_have_the_same_likelihood(model: HasLikelihood, batch: Batch) -> Residual:
    """Configuration, space and weights make the model: the same log p.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 5.2."""
    again = rebuilt(model)
    assert isinstance(again, HasLikelihood)
    return Residual(apart(model.likelihood(batch).value, again.likelihood(batch).value), 0.0)


def x123_rebuilt_models_have_the_same_codes(model: CanEncode, batch: Batch) -> Residual:
    """Configuration, space and weights make the model: the same codes.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 5.2."""
    again = rebuilt(model)
    assert isinstance(again, CanEncode)
    return Residual(apart(model.encode(batch), again.encode(batch)), 0.0)


def x123_rebuilt_models_decode_alike(model: CanDecode, batch: Batch) -> Residual:
    """Configuration, space and weights make the model: the same decoded codes.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 5.2."""
    again = rebuilt(model)
    assert isinstance(again, CanDecode)
    z = torch.randn(len(batch), *model.latent.shape, dtype=torch.float64)
    return Residual(apart(*(each.decode(z, batch.given) for each in (model, again))), 0.0)


def x123_rebuilt_models_give_the_same_samples(model: CanSample, batch: Batch) -> Residual:
    """Configuration, space and weights make the model: the same samples.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 5.2."""
    again = rebuilt(model)
    assert isinstance(again, CanSample)
    return Residual(apart(*(drawn(each, batch, FEW, 4) for each in (model, again))), 0.0)


def x150_log_p_has_no_slope_on_its_own_samples(model: HasLikelihood, batch: Batch) -> Residual:
    """E_p d log p(x) / d weights = 0 on the model's own samples.

    It holds in any dimension if p sums to one for all weights and samples follow p. The weights
    move along the mean gradient over half of the samples, which leans to what a sampler gets
    wrong; the slopes of log p at the other half are compared with 0, in standard errors.

    Source: Casella & Berger 2002, Statistical Inference, sec. 7.3.2."""
    assert isinstance(model, Model)
    if not isinstance(model, CanSample):
        raise SkipIdentity("it cannot sample")
    kind = model.likelihood(batch).kind
    if kind != "exact":
        raise SkipIdentity(f"its likelihood is a{'n' if kind == 'estimate' else ''} {kind}")
    params: list[Tensor] = [each for each in model.parameters() if each.requires_grad]
    if not params:
        raise SkipIdentity("it is fitted without gradients")
    x = drawn(model, batch, 2 * HALF, int(torch.randint(1 << 31, ())))
    rows = Batch(x, broadcast_conditions(batch[:1].given, model.space, 2 * HALF))
    rows = replace(rows, row=torch.arange(len(rows)))

    def log_p(rows: Batch) -> Tensor:
        return model.likelihood(rows).value

    way = mean_gradient(log_p, rows[:HALF], params)
    if length(way) == 0:
        way = [torch.randn_like(param) for param in params]
    sides = []
    for sign in (1, -1):
        with displaced(params, way, sign * SLOPE_STEP / length(way)):
            sides.append(torch.cat([log_p(piece) for piece in rows[HALF:].chunk(PIECES)]))
    slopes = sides[0] - sides[1]  # times twice the step
    if not slopes.any():
        raise SkipIdentity("its likelihood depends on no weight that gradients move")
    return Residual(standard_errors(slopes, torch.zeros(())), MAX_STANDARD_ERRORS)


def mean_gradient(
    log_p: Callable[[Batch], Tensor], rows: Batch, params: Sequence[Tensor]
) -> list[Tensor]:
    """The mean over rows of the gradient of log p; zeros if it is computed without gradients."""
    total = [torch.zeros_like(param) for param in params]
    for piece in rows.chunk(PIECES):
        with torch.enable_grad():
            value = log_p(piece).sum()
            if not value.requires_grad:
                break
            slopes = torch.autograd.grad(
                value, list(params), allow_unused=True, materialize_grads=True
            )
        torch._foreach_add_(total, list(slopes), alpha=1 / len(rows))
    return total
