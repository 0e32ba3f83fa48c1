"""State-space layers: taps beside torch's convolution, causality over chunks, any decay."""

import math

import pytest
import torch
import torch.nn.functional as F

from monge.core.errors import UsageError
from monge.nn.state_space import (
    CHUNK,
    FIRST_STEPS,
    S4D,
    Mamba,
    causal_taps,
    selective_scan,
)

NETS = {
    "s4d": S4D.Config(width=4, depth=2, state=4),
    "mamba": Mamba.Config(width=4, depth=2, state=3, heads=2),
}
STEPS = 2 * CHUNK + 3

pytestmark = pytest.mark.usefixtures("doubles")


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_taps_are_a_convolution_of_each_channel(steps):
    x, taps, bias = torch.randn(2, steps, 3), torch.randn(4, 3), torch.randn(3)
    parts = [each.requires_grad_() for each in (x, taps, bias)]
    found = causal_taps(*parts)
    due = F.conv1d(F.pad(x.mT, (3, 0)), taps.T[:, None], bias, groups=3).mT
    torch.testing.assert_close(found, due)
    slope = torch.randn_like(due)
    ours, theirs = (torch.autograd.grad(y, parts, slope) for y in (found, due))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_no_chunk_reads_a_later_one(name):
    net = NETS[name].build(5)
    x = torch.randn(1, STEPS, 4)
    for cut in (CHUNK - 1, CHUNK, 2 * CHUNK):
        other = torch.cat([x[:, :cut], torch.randn(1, STEPS - cut, 4)], 1)
        assert torch.equal(net(other)[:, :cut], net(x)[:, :cut])
    first = torch.cat([torch.randn(1, 1, 4), x[:, 1:]], 1)
    assert (net(first) - net(x))[:, -1].abs().max() > 0  # the first chunk reaches the last


@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_the_state_has_a_constant_size(name):
    net = NETS[name].build(5)
    state, sizes = net.start(2, STEPS), []
    for x in torch.randn(STEPS, 2, 4):
        net.step(state, x)
        sizes.append([part.shape for layer in state.layers for part in layer])
    assert sizes[0] == sizes[-1]


@pytest.mark.parametrize("decay", [0.0, -1e-6, -30.0, -1e4])
def test_any_decay_has_a_finite_scan_and_gradient(decay):
    """Without decay every input counts fully; with the strongest only the last one."""
    b = c = torch.ones(1, STEPS, 1, dtype=torch.float32)
    u = torch.randn(1, STEPS, 1, 2, dtype=torch.float32)
    log_decay = torch.full((1, STEPS, 1), decay, dtype=torch.float32, requires_grad=True)
    y = selective_scan(u, log_decay, b, c)
    if decay == 0:
        torch.testing.assert_close(y, u.cumsum(1), rtol=1e-4, atol=1e-4)
    if decay == -1e4:
        torch.testing.assert_close(y, u)
    (slope,) = torch.autograd.grad(y.square().sum(), log_decay)
    assert y.isfinite().all()
    assert slope.isfinite().all()


def test_initial_spectra_are_those_of_the_paper():
    n = torch.arange(4)
    lin, inv = (
        S4D.Config(width=1, depth=1, state=8, spectrum=name).build(1).blocks[0].space
        for name in ("lin", "inv")
    )
    torch.testing.assert_close(lin.turn[0], math.pi * n)
    torch.testing.assert_close(inv.turn[0], 8 / math.pi * (8 / (2 * n + 1) - 1))
    for space in (lin, inv):
        torch.testing.assert_close(space.log_rate.exp(), torch.full_like(space.log_rate, 0.5))
        assert FIRST_STEPS[0] <= space.log_step.exp().item() <= FIRST_STEPS[1]


def test_a_selective_layer_starts_with_these_step_sizes():
    block = Mamba.Config(width=64, depth=1, heads=64).build(1).blocks[0]
    sizes = F.softplus(block.step_bias)
    assert FIRST_STEPS[0] <= sizes.min() < 5e-3 < 5e-2 < sizes.max() <= FIRST_STEPS[1]


def test_heads_share_the_channels():
    with pytest.raises(UsageError, match=r"\b8\b.*\b3\b|\b3\b.*\b8\b"):
        Mamba.Config(width=4, heads=3).build(5)
