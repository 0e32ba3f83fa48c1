r"""Identities of single families of conditionals: running sums, tables, subsets, images.

Of the D! orders o and the places d of an orderless model, only the set $S = \{o_1, ..., o_{d-1}\}$
has a part in the objective, so that its mean over all of them needs the 2^D - 1 subsets alone.

Identities of layers: what may depend on what.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.abilities import HasConditionals, HasSubsets
from ..core.batch import Batch
from ..core.model import Model
from ..core.rng import make_generator
from ..models.autoregressive.count_table import CountTable
from ..models.autoregressive.deep_nade import DeepNADE
from ..models.autoregressive.fvsbn import FVSBN
from ..models.autoregressive.nade import NADE
from ..nn.autoregressive.pixel import RasterNet
from ..nn.autoregressive.pixelcnn import PixelCNNStack, PlainPixelCNN
from ..nn.autoregressive.pixelrnn import RowLSTM
from ._helpers import most
from .autoregressive import MAX_STANDARD_ERRORS, chi_squared
from .framework import Residual, SkipIdentity
from .subjects import FITTED, random_rows, strangers

ROUNDING = 1e-12
"""What float64 leaves of a mean over all orders, for each nat."""
SUBSETS = 20_000
"""Subsets whose counts are compared."""
MAX_ENTRIES = 6
"""Entries whose orders are listed."""


def x54_orderless_objective_is_unbiased(model: HasSubsets, batch: Batch) -> Residual:
    """E_od D/(D-d+1) sum_{i>=d} log p(x_oi | x_o<d) = E_o log p_o(x).

    Source: Uria, Murray & Larochelle 2014, A Deep and Tractable Density Estimator."""
    assert isinstance(model, Model)
    dims = model.space.dims
    if dims > MAX_ENTRIES:
        raise SkipIdentity(f"needs at most {MAX_ENTRIES} entries, not {dims}")
    sets = [subset for size in range(dims) for subset in itertools.combinations(range(dims), size)]
    seen = {subset: shown(subset, batch, dims) for subset in sets}
    objective = {subset: model.orderless(batch, seen[subset]) for subset in sets}  # (B,) each
    log_p = {subset: model.predictions(batch, seen[subset]) for subset in sets}  # (B, D) each
    orderless, along = [], []
    for order in itertools.permutations(range(dims)):
        before = [tuple(sorted(order[:place])) for place in range(dims)]
        orderless.append(torch.stack([objective[subset] for subset in before]).mean(0))
        steps = zip(before, order, strict=True)
        along.append(torch.stack([log_p[subset][:, entry] for subset, entry in steps]).sum(0))
    mean = torch.stack(along).mean(0)  # (B,)
    gap = (torch.stack(orderless).mean(0) - mean).abs().amax()
    return Residual(float(gap), ROUNDING * max(float(mean.abs().amax()), 1.0))


def shown(subset: tuple[int, ...], batch: Batch, dims: int) -> Tensor:
    """The subset as a mask, the same for every row, (B, D)."""
    seen = torch.zeros(len(batch), dims, dtype=torch.bool)
    seen[:, list(subset)] = True
    return seen


def x54_subsets_are_drawn_evenly(model: DeepNADE) -> Residual:
    """Training subsets: every size alike, every set of a size alike.

    Their counts are compared with 1 / (D binomial(D, size)) by Pearson's chi-squared test.

    Source: Uria, Murray & Larochelle 2014, A Deep and Tractable Density Estimator."""
    dims = model.space.dims
    if not 1 < dims <= MAX_ENTRIES:
        raise SkipIdentity(f"needs two to {MAX_ENTRIES} entries, not {dims}")
    seen = torch.cat([model.random_subsets(SUBSETS // 100) for _ in range(100)])
    place = 2 ** torch.arange(dims)
    found = torch.bincount((seen * place).sum(1), minlength=2**dims).double()
    sizes = torch.tensor([number.bit_count() for number in range(2**dims - 1)])
    chances = [1 / (dims * math.comb(dims, size)) for size in sizes.tolist()]
    return Residual(
        chi_squared(found, SUBSETS * torch.tensor(chances, dtype=torch.float64)),
        MAX_STANDARD_ERRORS,
    )


def x51_running_sums_equal_direct_ones(model: HasConditionals, batch: Batch) -> Residual:
    """NADE: a_{i+1} = a_i + W_i x_i equals b + W_<=i x_<=i, computed directly.

    Source: Larochelle & Murray 2011, The Neural Autoregressive Distribution Estimator."""
    if not isinstance(model, NADE):
        raise SkipIdentity("it has no running sums")
    worst, size = torch.zeros(2, dtype=torch.float64)
    for member in range(len(model.orders)):
        running = model.outputs(batch, member)  # (B, P)
        direct = torch.cat([afresh(model, batch, member, i) for i in range(model.space.dims)], 1)
        worst = torch.maximum(worst, (running - direct).abs().amax())
        size = torch.maximum(size, direct.abs().amax())
    return Residual(float(worst), ROUNDING * max(float(size), 1.0))


def afresh(model: NADE, batch: Batch, member: int, entry: int) -> Tensor:
    """The parameters of one entry (B, P_i) from all the entries before it at once."""
    net, order, own = model.net, model.orders[member], model.head.slices[entry]
    before = order[model.features.owner] < order[entry]  # (F,)
    total = net.first + model.features(batch)[:, before] @ net.into[before]  # (B, H)
    if net.given is not None:
        total = total + net.given(model.context(batch))
    place = int(order[entry])
    rho = 1.0 if net.log_rho is None or place == 0 else net.log_rho[place - 1].exp()
    hidden = total.sigmoid() if net.smooth else (rho * total).relu()
    return net.bias[own] + hidden @ net.out[own].T


def x53_parameter_count_matches_the_formula(model: HasConditionals) -> Residual:
    """Tables of n bits have 2^n - 1 parameters, an FVSBN n(n+1)/2 or n.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 20.10; Neal 1992,
    Connectionist Learning of Belief Networks."""
    if not isinstance(model, CountTable | FVSBN):
        raise SkipIdentity("theory does not count its parameters")
    if model.space.kind != "binary" or model.space.given:
        raise SkipIdentity("it is counted for bits that are given nothing")
    n = model.space.dims
    if isinstance(model, CountTable):
        return Residual(abs(model.parameter_count - (2**n - 1)), 0.0)
    due = len(model.orders) * (n if model.config.shared else n * (n + 1) // 2)
    found = (model.parameter_count, moving(model))
    return Residual(most(abs(count - due) for count in found), 0.0)


@torch.enable_grad()
def moving(model: FVSBN) -> int:
    """How many parameters the likelihood of random rows depends on."""
    rows = random_rows(model.space, FITTED, make_generator(7))
    terms = [model.conditionals(rows, member) for member in range(len(model.orders))]
    mixed = torch.stack([(term * torch.randn_like(term)).sum() for term in terms]).sum()
    slopes = torch.autograd.grad(mixed, list(model.parameters()))
    return sum(int(slope.count_nonzero()) for slope in slopes)


def x55_two_stacks_leave_no_blind_spot(model: HasConditionals) -> Residual:
    """In a 9x9, one stack of 6 layers is blind to 6 pixels, two to none.

    Source: van den Oord et al. 2016, Conditional Image Generation with PixelCNN Decoders, sec.
    2.2."""
    network = raster_of(model, (1, 9, 9))
    seen = network.support(4, 4)[0].flatten()  # (81,)
    before = torch.arange(81) < 40
    due = 6 if isinstance(network, PlainPixelCNN | RowLSTM) else 0
    blind, leaks = int((before & ~seen).sum()), int((seen & ~before).sum())
    return Residual(abs(blind - due) + leaks, 0.0)


def x55_colours_come_in_their_order(model: HasConditionals) -> Residual:
    """Within a pixel, R reads nothing, G reads R alone, B reads R and G.

    Source: van den Oord, Kalchbrenner & Kavukcuoglu 2016, Pixel Recurrent Neural Networks, sec.
    3.4."""
    network, colours = raster_of(model, (3, 3, 3)), torch.arange(3)
    seen = torch.stack([network.support(1, 1, colour)[:, 1, 1] for colour in range(3)])
    return Residual(int((seen != (colours < colours[:, None])).sum()), 0.0)


def raster_of(model: HasConditionals, shape: tuple[int, int, int]) -> RasterNet:
    """A network like the model's own over images of this shape, with random weights."""
    assert isinstance(model, nn.Module)
    found = next((part for part in model.modules() if isinstance(part, RasterNet)), None)
    if found is None:
        raise SkipIdentity("it does not read images in raster order")
    config = replace(found.config, width=12, depth=6, first=3, dropout=0.0)
    if isinstance(config, PixelCNNStack.Config | RowLSTM.Config):
        config = replace(config, kernel=3)
    network: RasterNet = config.build(shape, 2).double()
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.3)
    return network


def x22_the_future_has_no_influence(model: HasConditionals, batch: Batch) -> Residual:
    """Entries from t on do not change conditionals up to t, bit for bit.

    Source: Germain et al. 2015, MADE: Masked Autoencoder for Distribution Estimation."""
    x, other = batch.x.reshape(len(batch), -1), strangers(model, batch)
    worst = torch.zeros((), dtype=torch.float64)
    for member, order in enumerate(model.orders):
        before = model.parameters_of_conditionals(batch, member)  # (B, D, parameters)
        for place in range(len(order)):
            changed = torch.where(order >= place, other, x).reshape(batch.x.shape)
            after = model.parameters_of_conditionals(replace(batch, x=changed), member)
            gap = (after - before)[:, order <= place].abs().amax()
            worst = torch.maximum(worst, gap)  # keeps a NaN
    return Residual(float(worst), 0.0)
