r"""Identities of invertible maps: $\log p(x) = \log p(z) + \log|\det \partial z/\partial x|$.

Those about a model hold for every flow, a trained one included; the others are about layers with
random networks. Jacobians are taken by automatic differentiation, row by row.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import torch
from torch import Tensor

from ..core.abilities import CanEnlarge, CanSample, HasBijection, HasLikelihood
from ..core.batch import Batch
from ..core.model import Model
from ..core.rng import make_generator
from ..core.space import Space
from ..models.flow._base import Flow
from ..models.flow.cflow import CFlow
from ..models.flow.superres import Superres
from ..prob.bijections.autoregressive import AutoregressiveBijection
from ..prob.bijections.base import Compose, Inverse
from ..prob.bijections.coupling import CouplingBijection
from ..prob.bijections.elementwise import ActNorm
from ..prob.bijections.linear import LULinear, Squeeze
from ..prob.bijections.spline import SplineMap
from ..prob.bijections.univariate import MAX_LOG_SCALE, AdditiveMap, AffineMap
from ..solve.quadrature import integral
from ._density import USELESS, rows
from ._helpers import couplings, gap, jacobian, jacobian_of_row, most, normal
from ._random_flows import DIMS, Blocks, autoregressive, coupling, log_base, shake
from .framework import Residual, SkipIdentity

ROUNDING = 1e-9
"""What is left of numbers that went through a flow and back."""
MASS = 1e-4
"""What an integral over the plane may miss."""
LARGEST, WIDEST_ROW = 64, 1024
"""Entries of which whole Jacobians are taken, of every row and of one."""
POINTS = 1 << 19
"""Approximate number of points at which a density in the plane is evaluated."""


def x75_codes_come_back(model: HasBijection, batch: Batch) -> Residual:
    """z = pull(push(z)), and the two log-determinants cancel.

    Source: Papamakarios et al. 2021, Normalizing Flows for Probabilistic Modeling and Inference,
    sec. 2.1."""
    z = normal(len(batch), *model.latent.shape)
    y, there = model.push(z, batch.given)
    again, back = model.pull(y, batch.given)
    return Residual(most(gap(again, z), gap(there, -back)), tolerance(model))


def x75_log_determinant_is_the_jacobians(model: HasBijection, batch: Batch) -> Residual:
    """log |det dz/dx| = slogdet of the Jacobian by autograd.

    Source: Papamakarios et al. 2021, Normalizing Flows for Probabilistic Modeling and Inference,
    sec. 2.1."""
    dims = model.latent.dims
    if model.estimates or dims > WIDEST_ROW:
        raise SkipIdentity(
            "its log-determinant is an estimate"
            if model.estimates
            else f"needs at most {WIDEST_ROW} entries, not {dims}"
        )
    taken, rows = (jacobian, batch) if dims <= LARGEST else (jacobian_of_row, batch[:1])
    y, _ = model.push(normal(len(rows), *model.latent.shape), rows.given)
    matrix = taken(lambda x: model.pull(x, rows.given)[0].flatten(1), y)
    _, found = model.pull(y, rows.given)
    return Residual(gap(torch.linalg.slogdet(matrix)[1], found), tolerance(model))


def x76_density_of_the_plane_has_mass_one(model: HasBijection, batch: Batch) -> Residual:
    """A density of two reals integrates to 1.

    Source: Papamakarios et al. 2021, Normalizing Flows for Probabilistic Modeling and Inference,
    sec. 2.1."""
    assert isinstance(model, Model)
    space = model.space
    if space.kind != "real" or space.dims != 2:
        raise SkipIdentity(f"needs two real entries, not {space}")
    mean, scale = (space.spread(name).flatten().double() for name in ("mean", "scale"))

    def density(t: Tensor) -> Tensor:  # (N, 2) -> (N, 1)
        pieces = (mean + scale * part for part in t.split(1 << 16))
        log_p = [density_of(model, rows(piece, space, batch[:1].given)) for piece in pieces]
        return torch.cat(log_p).exp()[:, None] * scale.prod()

    found, error = integral(density, 2, MASS / 2, POINTS)
    if USELESS < error < math.inf:
        raise SkipIdentity(f"its integral has an error of {error:.0e}")
    return Residual(abs(float(found) - 1), max(MASS, error, model.precision))


def x78_base_is_counted_once(model: HasBijection, batch: Batch) -> Residual:
    """log p of a sample x = log N(z; 0, I) - log |det dx/dz|, the base once.

    For whole numbers it is the density of the dequantised values.

    Source: Rezende & Mohamed 2015, Variational Inference with Normalizing Flows, sec. 3."""
    assert isinstance(model, Model)
    if not isinstance(model, HasLikelihood):
        raise SkipIdentity("it has no likelihood")
    kind = model.likelihood(batch).kind
    if kind == "estimate" or model.estimates:
        raise SkipIdentity("its likelihood is an estimate")
    if isinstance(model, Flow) and kind == "bound":
        noise = torch.rand(len(batch), model.space.dims, dtype=torch.float64)
        y, log_q = model.dequantise(batch, noise)
        z, back = model.pull(y, batch.given)
        return Residual(
            gap(model.log_weight(batch, noise), log_base(z) + back - log_q), tolerance(model)
        )
    z = normal(len(batch), *model.latent.shape)
    y, log_det = model.push(z, batch.given)
    sampled = Batch(y.reshape(batch.x.shape), batch.given)
    return Residual(gap(model.likelihood(sampled).value, log_base(z) - log_det), tolerance(model))


def x64_log_scales_of_a_stack_add_up() -> Residual:
    """Inverse autoregressive maps: sum of log-slopes = log |det dz_T/de|.

    Examines: nn.autoregressive.masked_mlp, prob.bijections.autoregressive, prob.bijections.base.

    Source: Kingma et al. 2016, Improved Variational Inference with Inverse Autoregressive Flow,
    sec. 4."""
    stack = Compose([Inverse(autoregressive(AffineMap(), back=bool(t % 2))) for t in range(3)])
    noise = normal(4, DIMS)
    matrix = jacobian(lambda e: stack(e)[0], noise)
    return Residual(gap(torch.linalg.slogdet(matrix)[1], stack(noise)[1]), 1e-12)


def x77_jacobian_of_a_coupling_has_its_zeros() -> Residual:
    """Coupling: dx/dz = [[I, 0], [h' beta', diag h']] with exact zeros.

    Examines: prob.bijections.coupling, prob.bijections.spline.

    Source: Dinh, Sohl-Dickstein & Bengio 2017, Density Estimation Using Real NVP, sec. 3.3."""
    kinds = itertools.product((AdditiveMap(), AffineMap(), SplineMap(4)), (False, True))
    return Residual(
        most(astray(coupling(warp, flip), normal(4, DIMS)) for warp, flip in kinds), 0.0
    )


def x77_couplings_have_their_zeros(model: HasBijection, batch: Batch) -> Residual:
    """Every coupling of the model keeps its fixed entries, which read no other.

    Source: Dinh, Sohl-Dickstein & Bengio 2017, Density Estimation Using Real NVP, sec. 3.2."""
    z = normal(len(batch), *model.latent.shape)
    layers = [each for each in couplings(model, batch, z) if each[1][0].numel() <= LARGEST]
    if not layers:
        raise SkipIdentity(f"it has no coupling of at most {LARGEST} entries")
    return Residual(most(astray(*each) for each in layers), 0.0)


def astray(layer: CouplingBijection, z: Tensor, context: Tensor | None = None) -> float:
    """The largest deviation from the 1s and 0s that the Jacobian of a coupling must have at z."""
    shape = z.shape[1:]
    matrix = jacobian(lambda v: layer(v.reshape(-1, *shape), context)[0].flatten(1), z.flatten(1))
    places = torch.arange(shape.numel()).reshape(1, *shape)
    stays, moves = (part.flatten() for part in layer.parts(places))
    square = matrix[:, moves][:, :, moves]
    return most(
        gap(matrix[:, stays][:, :, stays], torch.eye(len(stays))),
        float(matrix[:, stays][:, :, moves].abs().amax()),
        gap(square, torch.diag_embed(square.diagonal(dim1=1, dim2=2))),
    )


def x81_volumes_of_linear_maps(model: HasBijection, batch: Batch) -> Residual:
    """The model's 1x1 convolutions, actnorm, squeeze: log |det| by autograd.

    Source: Kingma & Dhariwal 2018, Glow, table 1."""
    assert isinstance(model, Model)
    layers = [each for each in model.modules() if isinstance(each, LULinear | ActNorm | Squeeze)]
    if not layers:
        raise SkipIdentity("it has no linear map between couplings")
    missed = []
    for layer in layers:
        count = 4 if isinstance(layer, Squeeze) else len(layer.log_scale)
        z = normal(1, count, 2, 1)
        x, there = layer(z)
        again, back = layer.inverse(x)
        single = jacobian(
            lambda v, f=layer: f(v[..., None, None])[0].flatten(1),  # type: ignore
            z[:, :, 0, 0],
        )
        volume = 2 * torch.linalg.slogdet(single)[1]  # at each of two places
        missed += [gap(again, z), gap(there, volume), gap(back, -volume)]
    return Residual(most(missed), ROUNDING)


def x80_affine_map_is_a_product_of_gaussians() -> Residual:
    """Masked affine map: log p(x) = sum_i log N(x_i; mu_i, e^(2 alpha_i)).

    Examines: nn.autoregressive.masked_mlp, prob.bijections.autoregressive.

    Source: Papamakarios, Pavlakou & Murray 2017, Masked Autoregressive Flow, sec. 3.1."""
    layer, x = autoregressive(AffineMap()), normal(4, DIMS)
    z, log_det = layer.inverse(x)
    mean, raw = layer.net(x).unflatten(1, (DIMS, 2)).unbind(-1)
    scale = (MAX_LOG_SCALE * torch.tanh(raw / MAX_LOG_SCALE)).exp()
    product = torch.distributions.Normal(mean, scale).log_prob(x).sum(1)
    return Residual(gap(log_base(z) + log_det, product), 1e-12)


def x80_entry_by_entry_is_exact() -> Residual:
    """z -> x by cached steps = by D full passes, and x -> z inverts both.

    Examines: nn.autoregressive.masked_mlp, prob.bijections.autoregressive, prob.bijections.spline.

    Source: Papamakarios, Pavlakou & Murray 2017, Masked Autoregressive Flow, sec. 3.1."""
    missed = []
    for warp, back in itertools.product((AdditiveMap(), AffineMap(), SplineMap(4)), (False, True)):
        layer, z = autoregressive(warp, back), normal(4, DIMS)
        nothing = z.new_zeros(len(z), 0)
        (x, there), (plain, _) = layer.step(z, nothing), layer.step(z, nothing, cached=False)
        again, log_det = layer.inverse(x)
        missed += [gap(x, plain), gap(again, z), gap(there, -log_det)]
    return Residual(most(missed), 1e-10)


def x80_gradient_of_the_root_is_exact() -> Residual:
    """Gradients of z -> x by implicit differentiation = through D passes.

    Examines: nn.autoregressive.masked_mlp, prob.bijections.autoregressive, prob.bijections.spline.

    Source: Papamakarios et al. 2021, Normalizing Flows for Probabilistic Modeling and Inference,
    sec. 3.1."""
    layer, z = autoregressive(SplineMap(4)), normal(4, DIMS)
    with torch.enable_grad():
        z.requires_grad_()
        x, log_det = layer(z)
        plain: Tensor = z
        for _ in range(DIMS):  # an entry a round is settled
            out = layer.net(plain.clamp(-10, 10)).unflatten(1, (DIMS, -1))
            plain, slopes = layer.warp(out, z)
        wanted = [z, *layer.net.parameters()]
        found = torch.autograd.grad((x.sin().sum(1) * log_det).sum(), wanted)
        other = torch.autograd.grad((plain.sin().sum(1) * slopes.sum(1)).sum(), wanted)
    size = max(float(each.abs().amax()) for each in other)
    return Residual(most(map(gap, found, other)) / max(size, 1.0), 1e-7)


def x80_coupling_is_a_map_with_block_masks() -> Residual:
    """A coupling is a masked map that keeps, and reads only, its first block.

    Examines: prob.bijections.autoregressive, prob.bijections.coupling, prob.bijections.spline.

    Source: Papamakarios, Pavlakou & Murray 2017, Masked Autoregressive Flow, sec. 3.3."""
    missed: list[float] = []
    for warp in (AffineMap(), SplineMap(4)):
        layer, x = coupling(warp, flip=False), normal(4, DIMS)
        masked = AutoregressiveBijection(Blocks(layer), warp, torch.arange(DIMS))
        missed += map(gap, layer.inverse(x), masked.inverse(x))
    return Residual(most(missed), 1e-12)


def x81_linear_maps_know_their_volume() -> Residual:
    """1x1: H W log |det W|; squeeze: a permutation; actnorm: H W sum log s.

    Examines: prob.bijections.elementwise, prob.bijections.linear.

    Source: Kingma & Dhariwal 2018, Glow, table 1."""
    shape, z = (4, 2, 3), normal(3, 4, 2, 3)
    mix, scale, squeeze = LULinear(4).double(), ActNorm(4).double(), Squeeze()
    shake(mix)
    shake(scale)
    single = jacobian(lambda v: mix.inverse(v)[0], normal(1, 4))[0]  # W
    missed = [
        gap(mix.inverse(z)[1], 6 * torch.linalg.slogdet(single)[1]),
        gap(scale(z)[1], 6 * scale.log_scale.sum()),
        gap(squeeze(z)[0].flatten(1).sort(1)[0], z.flatten(1).sort(1)[0]),
    ]
    for layer in (mix, scale, squeeze):
        matrix = jacobian(
            lambda v, f=layer: f(v.reshape(-1, *shape))[0].flatten(1),  # type: ignore
            z.flatten(1),
        )
        missed += [
            gap(torch.linalg.slogdet(matrix)[1], layer(z)[1]),
            gap(layer.inverse(layer(z)[0])[0], z),
        ]
    return Residual(most(missed), 1e-12)


def x114_small_images_of_samples_are_given(model: CanEnlarge, batch: Batch) -> Residual:
    """Super-resolution: a sample, downsampled, is the condition to rounding.

    Source: Lugmayr et al. 2020, SRFlow."""
    assert isinstance(model, CanSample)
    wanted = batch.given[model.source].x
    samples = [
        model.shrink(model.sample(len(batch), batch.given, generator=make_generator(seed)))
        for seed in range(3)
    ]
    off = most(float((x - wanted).abs().amax()) for x in samples)
    return Residual(most(off - model.slack, 0.0), ROUNDING)


def x114_any_code_has_its_small_image() -> Residual:
    """Super-resolution with random weights: every latent keeps the means.

    Statistics are float32, and so is the length of the interval: levels are few, as both round in
    proportion to them.

    Examines: models.flow._base, models.flow.superres.

    Source: Lugmayr et al. 2020, SRFlow."""
    small = Space(kind="levels", shape=(1, 4, 4), size=16, mean=(7.0,), scale=(4.0,))
    space = replace(small, shape=(1, 8, 8), given={"source": small})
    model = Superres.smallest_config(space).build(space).double().eval()
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    low = torch.randint(0, 16, (8, 1, 4, 4)).double()
    y, _ = model.push(3 * normal(8, 64), {"source": Batch(low)})
    off = model.shrink(y.reshape(8, 1, 8, 8)) - low - 0.5  # of the middle of its interval
    x = model.decode(3 * normal(8, 64), {"source": Batch(low)})
    missed = float((model.shrink(x) - low).abs().amax()) - model.slack
    return Residual(max(float(off.abs().amax()) - 0.5 - model.slack, missed, 0.0), 1e-6)


def x118_a_cycle_decodes_the_middle_code(model: CFlow, batch: Batch) -> Residual:
    """The cycle loss is the weighted mean |g(0; a) - b| of standardised values.

    Source: Pumarola et al. 2020, C-Flow: Conditional Generative Flow Models for Images and 3D
    Point Clouds, sec. 3."""
    if model.space.kind != "real":
        raise SkipIdentity("its events are dequantised by noise")
    weight = 2.0
    asked = replace(model.config, cycle=weight)
    torch.manual_seed(1)
    own, model.config = model.config, asked
    try:
        found = model.loss(batch).get("cycle", torch.zeros(len(batch)).double())
    finally:
        model.config = own
    context = model.context(batch.given, len(batch))
    b = model.decode(torch.zeros(len(batch), model.space.dims).double(), batch.given)
    away = [model.outer.inverse(value.flatten(1), context)[0] for value in (b.double(), batch.x)]
    return Residual(gap(found, weight * (away[0] - away[1]).abs().mean(1)), ROUNDING * 10)


def density_of(model: HasBijection, batch: Batch) -> Tensor:
    z, log_det = model.pull(batch.x.flatten(1), batch.given)
    return log_base(z) + log_det


def tolerance(model: HasBijection) -> float:
    """Rounding in proportion to the size of an event, or what the model itself promises."""
    return max(ROUNDING * max(model.latent.dims, 10), model.precision)
