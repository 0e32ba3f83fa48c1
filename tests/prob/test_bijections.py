"""Maps that can be undone: they are, with the log-determinants of their Jacobians."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from monge.core.model import exporting
from monge.nn.autoregressive.masked_mlp import MaskedMLP
from monge.prob.bijections.autoregressive import AutoregressiveBijection
from monge.prob.bijections.base import Bijection, Compose, Inverse
from monge.prob.bijections.coupling import (
    CheckerboardCoupling,
    ConditionalBijection,
    CouplingBijection,
)
from monge.prob.bijections.detail_split import SquareDetails, square_rotation
from monge.prob.bijections.elementwise import ActNorm, Logit, Standardise
from monge.prob.bijections.linear import LULinear, Permutation, Reshape, Squeeze
from monge.prob.bijections.multiscale import EvenPart, MultiScale
from monge.prob.bijections.residual import (
    CERTAIN_TERMS,
    SLOPE,
    STOP,
    ContractiveNet,
    ResidualBijection,
    series_length,
)
from monge.prob.bijections.spline import SplineMap
from monge.prob.bijections.univariate import AdditiveMap, AffineMap

WARPS = {"additive": AdditiveMap(), "affine": AffineMap(), "spline": SplineMap(6, 3.0)}


class Net(nn.Module):
    """A random function of x and the context, of any number of outputs, at each place."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, x, context=None):
        return torch.einsum("oi,bi...->bo...", self.weight, x).sin() * 2


class Neighbours(nn.Conv2d):
    """A function of the pixels around each."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, 3, padding=1)

    def forward(self, x, context=None):
        return super().forward(x)


class Given(Bijection):
    """A map whose context is the same for every row."""

    def __init__(self, inside, context):
        super().__init__()
        self.inside = inside
        self.register_buffer("context", context)

    def forward(self, z, context=None):
        return self.inside(z, self.context.expand(len(z), -1))

    def inverse(self, x, context=None):
        return self.inside.inverse(x, self.context.expand(len(x), -1))


def autoregressive(warp):
    entries = torch.arange(4)
    net = MaskedMLP.Config(width=16).build(
        entries, entries.repeat_interleave(warp.count), entries.flip(0)[None]
    )
    return AutoregressiveBijection(net, warp, entries.flip(0))


def layers():
    torch.manual_seed(0)
    vector = (4,)
    for name, warp in WARPS.items():
        yield f"coupling {name}", CouplingBijection(Net(2, 2 * warp.count), warp, 2), vector
        yield f"flipped {name}", CouplingBijection(Net(3, warp.count), warp, 1, True), vector
        yield f"masked {name}", autoregressive(warp), vector
        yield f"unmasked {name}", Inverse(autoregressive(warp)), vector
    yield "permutation", Permutation(torch.randperm(4)), vector
    yield "mix", LULinear(4), vector
    yield "mix of images", LULinear(4), (4, 2, 2)
    yield "actnorm", ActNorm(4), vector
    yield "actnorm of images", ActNorm(4), (4, 2, 2)
    yield "squeeze", Squeeze(), (4, 1, 2)
    yield "reshape", Compose([Reshape((4, 1, 1)), ActNorm(4)]), vector
    yield "standardise", Standardise(torch.randn(4), torch.rand(4) + 0.1), vector
    yield "logit", Logit(torch.full((4,), 17.0), 0.05), vector
    levels = [
        Compose([CouplingBijection(Net(2, 4), AffineMap(), 2), LULinear(4), Squeeze()]),
        Compose([LULinear(8), Squeeze()]),
    ]
    small = (2, 1, 2)
    for factor in (2, 3):
        for length in (torch.tensor([1.5, 0.5]), torch.full((2,), torch.inf)):
            details = SquareDetails(small, length, factor)
            name = f"details {factor} {'free' if length.isinf().any() else 'bounded'}"
            yield name, Given(details, torch.randn(7)), (2 * factor**2, 1, 2)
    for odd in (False, True):
        board = CheckerboardCoupling(Neighbours(2, 4), AffineMap(), odd)
        yield f"board {'odd' if odd else 'even'}", board, (2, 2, 3)
    yield "border", EvenPart(MultiScale([LULinear(2)], [(2, 2, 2)]), (2, 3, 3)), (18,)
    yield "contraction", Given(ResidualBijection(ContractiveNet(3, 2, 8, 2)), torch.ones(2)), (3,)
    yield "scales", MultiScale(levels, [(4, 2, 4), (8, 1, 2)]), (32,)


def test_the_network_of_a_board_reads_nothing_of_pixels_that_move():
    """They are 0, the mean of codes, whatever they hold."""
    read = []

    class Reader(Neighbours):
        def forward(self, x, context=None):
            read.append(x)
            return super().forward(x, context)

    board = CheckerboardCoupling(Reader(2, 4), AffineMap(), False)
    x = 2 + torch.rand(3, 2, 2, 3)
    board(x)
    moves = board.moving(x)
    assert (read[0][..., moves] == 0).all()
    assert torch.equal(read[0][..., ~moves], x[..., ~moves])


with torch.random.fork_rng(devices=[]):
    torch.manual_seed(1)  # any weights do, unless a spline is nearly flat somewhere, as with 0
    LAYERS = {name: (layer.double(), shape) for name, layer, shape in layers()}
    for layer, _ in LAYERS.values():
        for parameter in layer.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), size=st.floats(0.1, 5.0))
def test_there_and_back_again(name, seed, size):
    layer, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(seed)
    z = size * torch.randn(5, *shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        x, there = layer(z)
        again, back = layer.inverse(x)
    # where a spline is nearly flat, its inverse magnifies rounding by its slope
    slopes = torch.autograd.functional.jacobian(lambda v: layer.inverse(v)[0].sum(0), x)
    room = 1e-11 * max(1.0, float(slopes.abs().amax()))
    torch.testing.assert_close(again, z, rtol=1e-11, atol=room)
    torch.testing.assert_close(there, -back, rtol=1e-11, atol=room)


@pytest.mark.parametrize("name", LAYERS)
def test_log_determinants_are_those_of_the_jacobian(name):
    layer, shape = LAYERS[name]
    z = torch.randn(1, *shape, dtype=torch.float64)
    x = layer(z)[0].detach()
    product = torch.eye(z.numel(), dtype=torch.float64)
    for f, point in ((layer, z), (layer.inverse, x)):
        matrix = torch.autograd.functional.jacobian(lambda v, f=f: f(v)[0], point)
        matrix = matrix.reshape(z.numel(), z.numel())
        product = matrix @ product
        torch.testing.assert_close(
            torch.linalg.slogdet(matrix)[1], f(point)[1][0].detach(), rtol=1e-9, atol=1e-9
        )
    torch.testing.assert_close(product, torch.eye(len(product)).double(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("warp", WARPS.values(), ids=WARPS)
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), size=st.floats(0, 100))
def test_warps_increase_and_stay_finite(warp, seed, size):
    """In float32, whatever the network gives, for numbers of any size."""
    generator = torch.Generator().manual_seed(seed)
    params = (size * torch.randn(warp.count, generator=generator)).expand(2001, -1)
    x = torch.cat([torch.linspace(-4, 4, 1997), torch.tensor([-1e6, 1e6, -3.0, 3.0])]).sort()[0]
    for move in (warp, warp.inverse):
        y, log_slope = move(params, x)
        assert y.isfinite().all()
        assert log_slope.isfinite().all()
        exact = move(params.double(), x.double())[0]
        assert (exact.diff() >= 0).all()
        if size < 5:  # beyond, slopes are so steep that float32 shows it
            assert (y.diff() >= -1e-4 * (1 + y[1:].abs())).all()


def test_a_spline_is_the_identity_far_out_and_at_zero_parameters():
    spline = SplineMap(6, 3.0)
    x = torch.tensor([-1e30, -1e6, -3.0, -1.0, 0.0, 2.9, 3.0, 1e6, 1e30])
    for move in (spline, spline.inverse):
        y, log_slope = move(torch.randn(9, spline.count), x)
        far = x.abs() >= 3
        assert torch.equal(y[far], x[far])
        assert torch.equal(log_slope[far], torch.zeros(int(far.sum())))
        y, log_slope = move(torch.zeros(9, spline.count), x)
        torch.testing.assert_close(y, x, atol=1e-5, rtol=1e-6)
        torch.testing.assert_close(log_slope, torch.zeros(9), atol=1e-5, rtol=0)


def test_the_gradient_of_a_spline_is_finite_everywhere():
    spline = SplineMap(6, 3.0)
    x = torch.tensor([-1e6, -3.0, 0.0, 3.0, 1e6], requires_grad=True)
    params = torch.zeros(5, spline.count, requires_grad=True)
    for move in (spline, spline.inverse):
        y, log_slope = move(params, x)
        found = torch.autograd.grad((y.clamp(-9, 9) + log_slope).sum(), [x, params])
        assert all(gradient.isfinite().all() for gradient in found)


def test_actnorm_begins_with_the_scales_of_the_data_and_leaves_constants():
    layer = ActNorm(3)
    x = torch.randn(500, 3) * torch.tensor([5.0, 1e-3, 0.0]) + torch.tensor([1.0, 2.0, 7.0])
    layer.initialise_from_data(x)
    z, _ = layer.inverse(x)
    torch.testing.assert_close(z.mean(0), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(z[:, :2].std(0), torch.ones(2), atol=0.01, rtol=0)
    assert torch.equal(z[:, 2], torch.zeros(500))


def test_a_stack_begins_from_the_data_on():
    stack = Compose([ActNorm(2), Permutation(torch.tensor([1, 0])), ActNorm(2)])
    stack.initialise_from_data(torch.randn(500, 2) * torch.tensor([1.0, 10.0]))
    first, _, last = stack.each()
    torch.testing.assert_close(last.log_scale.exp(), torch.tensor([1.0, 10.0]), rtol=0.1, atol=0)
    torch.testing.assert_close(first.log_scale, torch.zeros(2), atol=1e-5, rtol=0)


def test_a_conditional_map_is_the_normal_distribution_of_the_context():
    net = nn.Linear(2, 6).double()
    layer, context = ConditionalBijection(net, AffineMap()), torch.randn(4, 2, dtype=torch.float64)
    x = torch.randn(4, 3, dtype=torch.float64)
    z, log_det = layer.inverse(x, context)
    mean, raw = net(context).reshape(4, 2, 3).unbind(1)
    distribution = torch.distributions.Normal(mean, (5 * (raw / 5).tanh()).exp())
    own = -0.5 * (z.square() + math.log(2 * math.pi)).sum(1) + log_det
    torch.testing.assert_close(own, distribution.log_prob(x).sum(1))


def test_nothing_is_sampled_from_no_rows():
    x, log_det = autoregressive(AffineMap())(torch.zeros(1, 4)[:0])
    assert x.shape == (0, 4)
    assert log_det.shape == (0,)


def test_the_last_map_to_begin_is_not_undone():
    class Unasked(Permutation):
        def inverse(self, x, context=None):
            raise AssertionError("unexpected call")

    scale = ActNorm(2, learned=False)
    x = 3 + 2 * torch.randn(50, 2, dtype=torch.float64)
    Compose([Unasked(torch.tensor([1, 0])), scale.double()]).initialise_from_data(x)
    torch.testing.assert_close(scale.shift, x.mean(0))
    assert not list(scale.parameters())
    assert set(scale.state_dict()) == {"shift", "log_scale"}


def test_a_matrix_begins_so_that_entries_are_uncorrelated():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 4, dtype=torch.float64, generator=g)
    x[:, 1] += 0.9 * x[:, 0]
    x[:, 3] = 0.0  # never varies
    mix = LULinear(4, rotate=False).double()
    mix.initialise_from_data(x)
    z, log_det = mix.inverse(x)
    cov = torch.cov(z.T)
    assert (cov - cov.diagonal().diag()).abs().max() < 0.05
    assert abs(log_det[0] - mix.log_scale.sum()) < 1e-12
    assert mix.log_scale.abs().max() < 1.5
    torch.testing.assert_close(mix(z)[0], x)


def test_a_matrix_gives_the_same_for_a_few_rows_as_for_many():
    torch.manual_seed(0)
    mix, x = LULinear(5).double(), torch.randn(9, 5, dtype=torch.float64)
    for move in (mix, mix.inverse):
        whole, parts = move(x)[0], [move(some)[0] for some in x.split(3)]
        torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-13)


def test_the_gradient_of_a_permutation_is_put_back_in_order():
    torch.manual_seed(0)
    part, x = Permutation(torch.randperm(5)), torch.randn(2, 5, dtype=torch.float64)
    x.requires_grad_()
    for move in (part, part.inverse):
        assert torch.autograd.gradcheck(lambda y: move(y)[0], x)  # noqa: B023
        assert torch.autograd.gradgradcheck(lambda y: move(y)[0].square(), x)  # noqa: B023


@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 2, 2)])
def test_an_affine_warp_has_one_gradient_however_its_parameters_lie(shape):
    torch.manual_seed(0)
    rows, x = torch.randn(*shape, 2).double(), torch.randn(shape).double()
    found = []
    for lies in (rows, rows.movedim(-1, 1).contiguous().movedim(1, -1)):
        params = lies.requires_grad_()
        z, log_slope = AffineMap().inverse(params, x)
        found.append(torch.autograd.grad((z.square() + 3 * log_slope).sum(), params)[0])
    torch.testing.assert_close(*found)


def test_what_a_map_is_undone_to_is_its_inverse_without_the_volume():
    x = torch.randn(4, 3)
    for part in (Standardise(torch.arange(3.0), torch.full((3,), 2.0)), ActNorm(3)):
        assert torch.equal(part.inverse_only(x), part.inverse(x)[0])


def test_details_keep_the_means_of_the_small_image():
    """Whatever the code; where means are not bounded, the code moves them by its first entries."""
    small, length = (2, 1, 2), torch.tensor([1.5, 0.5]).double()
    lowest = torch.randn(5, 4, dtype=torch.float64)
    for factor in (2, 3):
        rotation = square_rotation(factor)
        torch.testing.assert_close(rotation @ rotation.T, torch.eye(factor**2).double())
        torch.testing.assert_close(rotation[0], torch.full((factor**2,), 1 / factor).double())
        z = 9 * torch.randn(5, 2 * factor**2, 1, 2, dtype=torch.float64)
        context = torch.cat([torch.randn(5, 3, dtype=torch.float64), lowest], 1)
        for bounded in (True, False):
            bound = length if bounded else torch.full_like(length, torch.inf)
            x, _ = SquareDetails(small, bound, factor)(z, context)
            above = nn.functional.avg_pool2d(x, factor) - lowest.reshape(5, *small)
            v = z.unflatten(1, (2, -1))[:, :, 0]
            due = length[:, None, None] * v.sigmoid() if bounded else v / factor
            torch.testing.assert_close(above, due)


def test_a_series_of_random_length_has_its_mean():
    torch.manual_seed(0)
    net = ContractiveNet(3, 0, 8, 0).double()
    net.layers[0].weight.data.normal_()
    layer, (matrix,) = ResidualBijection(net), net.weights()
    assert torch.linalg.matrix_norm(matrix, 2).item() == pytest.approx(SLOPE)
    x, probes = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, 3, dtype=torch.float64)
    z, found = layer.estimated_inverse(x, None, probes, [1, 6])
    torch.testing.assert_close(z, layer.inverse(x)[0].detach())
    torch.testing.assert_close(z, layer.inverse_only(x).detach())
    for place, count in enumerate((1, 6)):
        v, due = probes[:, place], torch.zeros(4, dtype=torch.float64)
        for k in range(1, count + 1):
            power = torch.linalg.matrix_power(matrix, k)
            reached = (1 - STOP) ** max(k - CERTAIN_TERMS, 0)
            due += (-1) ** (k + 1) / k * torch.einsum("bi,ij,bj->b", v, power, v) / reached
        torch.testing.assert_close(found[:, place].detach(), due.detach())
    lengths = torch.tensor([series_length((k + 0.5) / 1024) for k in range(1024)])
    for k in range(1, 9):
        reached = (1 - STOP) ** max(k - CERTAIN_TERMS, 0)
        assert (lengths >= k).double().mean().item() == reached


def test_a_spline_is_the_rational_quadratic_through_its_knots():
    """By the formulas of Durkan et al. (2019), bin by bin."""
    bins, reach = 5, 3.0
    warp, share = SplineMap(bins, reach), 1e-3
    params = torch.randn(3 * bins - 1, generator=torch.Generator().manual_seed(2)).double()
    widths, heights = (
        2 * reach * (share + (1 - share * bins) * each.softmax(0))
        for each in (params[:bins], params[bins : 2 * bins])
    )
    xs, zs = (nn.functional.pad(each.cumsum(0), (1, 0)) - reach for each in (widths, heights))
    start = math.log(math.expm1(1 - share))
    inner = share + nn.functional.softplus(params[2 * bins :] + start)
    d = torch.cat([torch.ones(1).double(), inner, torch.ones(1).double()])
    x = torch.cat([torch.linspace(-2.99, 2.99, 301).double(), xs[1:-1]])
    k = torch.searchsorted(xs, x, right=True) - 1
    t, slope = (x - xs[k]) / widths[k], heights[k] / widths[k]
    mixed = t * (1 - t)
    below = slope + (d[k] + d[k + 1] - 2 * slope) * mixed
    z = zs[k] + heights[k] * (slope * t**2 + d[k] * mixed) / below
    top = d[k + 1] * t**2 + 2 * slope * mixed + d[k] * (1 - t) ** 2
    found, log_slope = warp.inverse(params.expand(len(x), -1), x)
    torch.testing.assert_close(found, z)
    torch.testing.assert_close(log_slope, (slope**2 * top / below**2).log())
    back, minus = warp(params.expand(len(x), -1), z)
    torch.testing.assert_close(back, x)
    torch.testing.assert_close(minus, -log_slope)


def test_an_affine_map_has_a_bounded_scale():
    raw = torch.linspace(-40, 40, 9, dtype=torch.float64)
    params = torch.stack([torch.full_like(raw, 0.3), raw], -1)
    x, log_slope = AffineMap()(params, torch.ones_like(raw))
    torch.testing.assert_close(log_slope, 5 * torch.tanh(raw / 5))
    torch.testing.assert_close(x, 0.3 + log_slope.exp())
    z, back = AffineMap().inverse(params, x)
    torch.testing.assert_close(z, torch.ones_like(raw))
    torch.testing.assert_close(back, -log_slope)


def test_a_board_moves_the_pixels_of_one_colour():
    """And reads those of the other."""
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    colour = (torch.arange(3)[:, None] + torch.arange(4)) % 2
    for odd in (False, True):
        layer = LAYERS[f"board {'odd' if odd else 'even'}"][0]
        z, _ = layer.inverse(x)
        moves = colour == int(odd)
        assert torch.equal((z != x).all(1)[0], moves)
        other, _ = layer.inverse(torch.where(moves, x, x + 1))
        assert not (other == z).any(1)[0][moves].any()
        same, _ = layer.inverse(torch.where(moves, x + 1, x))
        slope = (same - z)[0][:, moves]
        _, log_det = layer.inverse(x)
        torch.testing.assert_close(slope.log().sum(), log_det[0])


@pytest.mark.parametrize("warp", WARPS.values(), ids=WARPS)
def test_passes_of_the_whole_network_equal_steps(warp):
    layer = autoregressive(warp).double()
    z = torch.randn(5, 4, dtype=torch.float64)
    none = z.new_zeros(5, 0)
    for found, due in zip(layer.passes(z, none), layer.step(z, none), strict=True):
        torch.testing.assert_close(found, due)
    for found, due in zip(layer.step(z, none, cached=False), layer.step(z, none), strict=True):
        torch.testing.assert_close(found, due)


@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 3, 2), (2, 2, 3), (1, 3, 5)])
def test_borders_of_odd_sides_become_code(shape):
    channels, height, width = shape
    even = (channels, height - height % 2, width - width % 2)
    layer = EvenPart(MultiScale([ActNorm(channels)], [even]), shape).double()
    x = torch.randn(3, *shape, dtype=torch.float64)
    z, _ = layer.inverse(x)
    assert z.shape == (3, math.prod(shape))
    torch.testing.assert_close(layer(z)[0], x)
    layer.initialise_from_data(x)
    inside, _ = layer.inside.inverse(x[:, :, : even[1], : even[2]])
    torch.testing.assert_close(layer.inverse(x)[0][:, : math.prod(even)], inside)
    border = layer.inverse(x)[0][:, math.prod(even) :]
    outside = torch.ones(height, width, dtype=torch.bool)
    outside[: even[1], : even[2]] = False
    torch.testing.assert_close(border.sort(1).values, x[:, :, outside].flatten(1).sort(1).values)


def test_a_matrix_begins_with_the_scales_of_the_entries():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5000, 3, dtype=torch.float64, generator=g)
    x = x @ torch.tensor([[3.0, 0.3, 0.0], [0.0, 0.6, 0.5], [0.0, 0.0, 4.0]]).double()
    mix = LULinear(3, rotate=False).double()
    mix.initialise_from_data(x)
    cov = torch.cov(mix.inverse(x)[0].T)
    torch.testing.assert_close(cov, torch.eye(3).double(), atol=0.05, rtol=0)
    for few in (x[:3], x.reshape(-1, 3, 4)[:, :, :2]):  # no more rows than entries, or images
        same = LULinear(3, rotate=False).double()
        before = {name: value.clone() for name, value in same.state_dict().items()}
        same.initialise_from_data(few)
        assert all(torch.equal(value, before[name]) for name, value in same.state_dict().items())


def test_exported_steps_are_passes():
    layer = autoregressive(AffineMap()).double()
    z = torch.randn(5, 4, dtype=torch.float64)
    plain = layer.step(z, z.new_zeros(5, 0))
    with exporting():
        found = layer.step(z, z.new_zeros(5, 0))
    torch.testing.assert_close(found, plain)


def test_a_contractive_network_reads_its_context_in_the_first_layer():
    torch.manual_seed(0)
    net = ContractiveNet(2, 3, 5, 2).double()
    for parameter in net.parameters():
        parameter.data.normal_()
    x, context = torch.randn(4, 2).double(), torch.randn(4, 3).double()
    first, second, last = net.weights()
    h = x @ first.T + net.layers[0].bias + context @ net.reads.weight.T
    for place, (weight, layer) in enumerate(((second, net.layers[1]), (last, net.layers[2]))):
        rate = nn.functional.softplus(net.rates[place])
        h = (h * torch.sigmoid(rate * h) / 1.1) @ weight.T + layer.bias
    torch.testing.assert_close(net(x, context, net.weights()), h)
    assert all(torch.linalg.matrix_norm(w, 2).item() < SLOPE + 1e-9 for w in net.weights())
    assert ContractiveNet(2, 0, 5, 2).reads is None
    assert ContractiveNet(2, 3, 5, 0).reads is None


def test_a_matrix_begins_as_a_rotation_or_a_permutation():
    torch.manual_seed(0)
    for rotate in (True, False):
        mix = LULinear(6, rotate=rotate).double()
        matrix = mix.inverse(torch.eye(6, dtype=torch.float64))[0]
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(6).double(), rtol=0, atol=1e-6)
        assert rotate == bool((matrix.abs() - matrix.abs().round()).abs().max() > 1e-3)


@pytest.mark.parametrize(("context", "depth"), [(0, 0), (0, 1), (2, 1), (2, 3)])
def test_an_exported_contraction_has_the_same_log_determinant(context, depth):
    """Its slope is a product of layers there, and a gradient elsewhere."""
    torch.manual_seed(0)
    net = ContractiveNet(3, context, 8, depth).double()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter)
    layer, x = ResidualBijection(net), torch.randn(5, 3).double()
    given = torch.randn(5, context).double() if context else None
    expected = layer.inverse(x, given)
    with exporting():
        found = layer.inverse(x, given)
    torch.testing.assert_close(found, expected)
