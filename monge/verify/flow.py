r"""Identities of invertible maps: $\log p(x) = \log p(z) + \log|\det \partial z/\partial x|$.

Those about a model hold for every flow, a trained one included; the others are about layers with
random networks. Jacobians are taken by automatic differentiation, row by row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.abilities import CanEnlarge, CanSample, HasBijection, HasLikelihood
from ..core.batch import Batch
from ..core.model import Model
from ..core.noise import fresh
from ..core.space import Space
from ..models.flow.superres import Superres
from ..nn.masked import Masked
from ..nn.mlp import MLP
from ..prob.bijections.base import Bijection, Compose, Inverse
from ..prob.bijections.coupling import Coupling
from ..prob.bijections.fixed import ActNorm
from ..prob.bijections.linear import Mix, Squeeze
from ..prob.bijections.masked import Autoregressive
from ..prob.bijections.spline import Spline
from ..prob.bijections.warps import WIDEST, Additive, Affine, Warp
from ..solve.quadrature import integral
from .gaps import gap, most, normal
from .identity import Residual, Skip
from .law import rows

ROUNDING = 1e-9
"""What is left of numbers that went through a flow and back."""
MASS = 1e-4
"""What an integral over the plane may miss."""
LARGEST = 64
"""Entries of which a whole Jacobian is taken."""
DIMS = 5
"""Entries that layers are examined on."""


def x75_codes_come_back(model: HasBijection, batch: Batch) -> Residual:
    """z = pull(push(z)), and the two log-determinants cancel. [002:290-298]"""
    z = normal(len(batch), *model.latent.shape)
    y, there = model.push(z, batch.given)
    again, back = model.pull(y, batch.given)
    return Residual(most(gap(again, z), gap(there, -back)), tolerance(model))


def x75_log_determinant_is_the_jacobians(model: HasBijection, batch: Batch) -> Residual:
    """log |det dz/dx| = slogdet of the Jacobian by autograd. [002:290-298]"""
    if model.latent.dims > LARGEST:
        raise Skip(f"needs at most {LARGEST} entries, not {model.latent.dims}")
    y, _ = model.push(normal(len(batch), *model.latent.shape), batch.given)
    matrix = jacobian(lambda x: model.pull(x, batch.given)[0].flatten(1), y)
    _, found = model.pull(y, batch.given)
    return Residual(gap(torch.linalg.slogdet(matrix)[1], found), tolerance(model))


def x76_density_of_the_plane_has_mass_one(model: HasBijection, batch: Batch) -> Residual:
    """A density of two reals integrates to 1. [002:298]"""
    assert isinstance(model, Model)
    space = model.space
    if space.kind != "real" or space.dims != 2:
        raise Skip(f"needs two real entries, not {space}")
    mean, scale = (space.spread(name).flatten().double() for name in ("mean", "scale"))

    def density(t: Tensor) -> Tensor:  # (N, 2) -> (N, 1)
        pieces = (mean + scale * part for part in t.split(1 << 16))
        log_p = [density_of(model, rows(piece, space, batch[:1].given)) for piece in pieces]
        return torch.cat(log_p).exp()[:, None] * scale.prod()

    found, error = integral(density, 2, MASS / 2)
    if MASS < error < math.inf:
        raise Skip(f"its integral cannot be had to better than {error:.0e}")
    return Residual(abs(float(found) - 1), MASS)


def x78_base_is_counted_once(model: HasBijection, batch: Batch) -> Residual:
    """log p of a drawn x = log N(z; 0, I) - log |det dx/dz|, the base once. [002:308-311]"""
    assert isinstance(model, Model)
    if not isinstance(model, HasLikelihood):
        raise Skip("it has no likelihood")
    kind = model.likelihood(batch).kind
    if kind != "exact":
        raise Skip(f"its likelihood is a{'n' if kind == 'estimate' else ''} {kind}")
    z = normal(len(batch), *model.latent.shape)
    y, log_det = model.push(z, batch.given)
    drawn = Batch(y.reshape(batch.x.shape), batch.given)
    return Residual(gap(model.likelihood(drawn).value, log_base(z) - log_det), tolerance(model))


def x64_log_scales_of_a_stack_add_up() -> Residual:
    """Inverse autoregressive maps: sum of log-slopes = log |det dz_T/de|. [002:242]"""
    stack = Compose([Inverse(autoregressive(Affine(), back=bool(t % 2))) for t in range(3)])
    noise = normal(4, DIMS)
    matrix = jacobian(lambda e: stack(e)[0], noise)
    return Residual(gap(torch.linalg.slogdet(matrix)[1], stack(noise)[1]), 1e-12)


def x77_jacobian_of_a_coupling_has_its_zeros() -> Residual:
    """Coupling: dx/dz = [[I, 0], [h' beta', diag h']] with exact zeros. [002:300-305]"""
    missed = []
    for warp, flip in itertools.product((Additive(), Affine(), Spline(4)), (False, True)):
        layer, z = coupling(warp, flip), normal(4, DIMS)
        matrix = jacobian(lambda v, layer=layer: layer(v)[0], z)  # type: ignore[misc]
        stays, moves = (entries.long()[0] for entries in layer.parts(torch.arange(DIMS)[None]))
        eye, square = torch.eye(len(stays)), matrix[:, moves][:, :, moves]
        missed += [gap(matrix[:, stays][:, :, stays], eye),
                   float(matrix[:, stays][:, :, moves].abs().amax()),
                   gap(square, torch.diag_embed(square.diagonal(dim1=1, dim2=2)))]
    return Residual(most(missed), 0.0)


def x80_affine_map_is_a_product_of_gaussians() -> Residual:
    """Masked affine map: log p(x) = sum_i log N(x_i; mu_i, e^(2 alpha_i)). [003:821-826]"""
    layer, x = autoregressive(Affine()), normal(4, DIMS)
    z, log_det = layer.inverse(x)
    mean, raw = layer.net(x).unflatten(1, (DIMS, 2)).unbind(-1)
    scale = (WIDEST * torch.tanh(raw / WIDEST)).exp()
    product = torch.distributions.Normal(mean, scale).log_prob(x).sum(1)
    return Residual(gap(log_base(z) + log_det, product), 1e-12)


def x80_entry_by_entry_is_exact() -> Residual:
    """z -> x by cached steps = by D full passes, and x -> z undoes both. [003:821-826]"""
    missed = []
    for warp, back in itertools.product((Additive(), Affine(), Spline(4)), (False, True)):
        layer, z = autoregressive(warp, back), normal(4, DIMS)
        nothing = z.new_zeros(len(z), 0)
        (x, there), (plain, _) = layer.step(z, nothing), layer.step(z, nothing, cached=False)
        again, log_det = layer.inverse(x)
        missed += [gap(x, plain), gap(again, z), gap(there, -log_det)]
    return Residual(most(missed), 1e-10)


def x80_gradient_of_the_root_is_exact() -> Residual:
    """Gradients of z -> x through its triangular root = through D passes. [003:821-826]"""
    layer, z = autoregressive(Spline(4)), normal(4, DIMS)
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
    return Residual(most(map(gap, found, other)), 1e-9)


def x80_coupling_is_a_map_with_block_masks() -> Residual:
    """Coupling = masked map whose first block stays and is all that is read. [003:821-826]"""
    missed: list[float] = []
    for warp in (Affine(), Spline(4)):
        layer, x = coupling(warp, flip=False), normal(4, DIMS)
        masked = Autoregressive(_Blocks(layer), warp, torch.arange(DIMS))
        missed += map(gap, layer.inverse(x), masked.inverse(x))
    return Residual(most(missed), 1e-12)


def x81_linear_maps_know_their_volume() -> Residual:
    """1x1: H W log |det W|; squeeze: a permutation; scaling: H W sum log s. [002:317]"""
    shape, z = (4, 2, 3), normal(3, 4, 2, 3)
    mix, scale, squeeze = Mix(4).double(), ActNorm(4).double(), Squeeze()
    shake(mix)
    shake(scale)
    single = jacobian(lambda v: mix.inverse(v)[0], normal(1, 4))[0]  # W
    missed = [gap(mix.inverse(z)[1], 6 * torch.linalg.slogdet(single)[1]),
              gap(scale(z)[1], 6 * scale.log_scale.sum()),
              gap(squeeze(z)[0].flatten(1).sort(1)[0], z.flatten(1).sort(1)[0])]
    for layer in (mix, scale, squeeze):
        matrix = jacobian(lambda v, f=layer: f(v.reshape(-1, *shape))[0].flatten(1),  # type: ignore
                          z.flatten(1))
        missed += [gap(torch.linalg.slogdet(matrix)[1], layer(z)[1]),
                   gap(layer.inverse(layer(z)[0])[0], z)]
    return Residual(most(missed), 1e-12)


def x114_small_pictures_of_draws_are_given(model: CanEnlarge, batch: Batch) -> Residual:
    """Super-resolution: the shrunk sample is what was given, up to rounding. [002:323]"""
    assert isinstance(model, CanSample)
    wanted = batch.given[model.source].x
    draws = [model.shrink(model.sample(len(batch), batch.given, generator=fresh(seed)))
             for seed in range(3)]
    return Residual(most(float((x - wanted).abs().amax()) for x in draws), model.slack)


def x114_any_code_has_its_small_picture() -> Residual:
    """Super-resolution with random weights: every code keeps the means. [002:323]

    Statistics are float32, and so is the length of the interval."""
    small = Space(kind="levels", shape=(1, 4, 4), size=256, mean=(99.0,), scale=(60.0,))
    space = replace(small, shape=(1, 8, 8), given={"source": small})
    model = Superres.tiny(space).build(space).double().eval()
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    low = torch.randint(0, 256, (8, 1, 4, 4)).double()
    y, _ = model.push(3 * normal(8, 64), {"source": Batch(low)})
    off = model.shrink(y.reshape(8, 1, 8, 8)) - low - 0.5  # of the middle of its interval
    x = model.decode(3 * normal(8, 64), {"source": Batch(low)})
    missed = float((model.shrink(x) - low).abs().amax()) - model.slack
    return Residual(max(float(off.abs().amax()) - 0.5 - model.slack, missed, 0.0), 1e-6)


class _Blocks(nn.Module):
    """The network of a coupling as that of a masked map: zeros for the entries that stay."""

    def __init__(self, layer: Coupling) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        size = self.layer.size
        moving = self.layer.params(x[:, :size], None)  # (B, d, count)
        still = x.new_zeros(len(x), size, self.layer.warp.count)
        return torch.cat([still, moving], 1).flatten(1)


class _Reads(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.net(x)


def coupling(warp: Warp, flip: bool) -> Coupling:
    """A coupling of DIMS entries with a random network."""
    size = DIMS // 2
    stays, moves = (DIMS - size, size) if flip else (size, DIMS - size)
    net = MLP.Config(width=8, depth=1).build(stays, moves * warp.count)
    return Coupling(_Reads(net), warp, size, flip).double()


def autoregressive(warp: Warp, back: bool = False) -> Autoregressive:
    """A masked map of DIMS entries with a random network, in one order or against it."""
    entries = torch.arange(DIMS)
    places = entries.flip(0) if back else entries
    net = Masked.Config(width=16).build(entries, entries.repeat_interleave(warp.count),
                                        places[None])
    return Autoregressive(net, warp, places).double()


def shake(layer: Bijection) -> None:
    for parameter in layer.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))


def jacobian(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """df/dx of each row, (B, D, D), where no row of f reads another."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        columns = f(x).sum(0)
        each = [torch.autograd.grad(column, x, retain_graph=True)[0] for column in columns]
    return torch.stack(each, 1)


def log_base(z: Tensor) -> Tensor:
    z = z.flatten(1)
    return -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)


def density_of(model: HasBijection, batch: Batch) -> Tensor:
    z, log_det = model.pull(batch.x.flatten(1), batch.given)
    return log_base(z) + log_det


def tolerance(model: HasBijection) -> float:
    """Rounding in proportion to the size of an event, or what the model itself promises."""
    return max(ROUNDING * max(model.latent.dims, 10), model.precision)
