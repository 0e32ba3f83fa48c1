"""Numbers made nearly normal: a broken line through quantiles, between bounds."""

from __future__ import annotations

import torch

from monge.core.space import Space
from monge.prob.marginal_map import KNOTS, MAX_STRETCH, MarginalMap, piecewise_linear

PARTS = (
    Space(kind="real", mean=(2.0,), scale=(3.0,)),
    Space(kind="real", mean=(2.0,), scale=(3.0,), lower=0.0),
    Space(kind="real", mean=(0.4,), scale=(0.2,), lower=0.0, upper=1.0, atoms=(0.5,)),
)


def normal(n: int = 2000) -> torch.Tensor:
    return torch.special.ndtri((torch.arange(n, dtype=torch.float64) + 0.5) / n)


def rows() -> torch.Tensor:
    z = normal()
    return torch.stack([2 + z.sinh(), (0.8 * z).exp(), (z + 0.3 * z**3).sigmoid()], 1)


def test_as_made_it_standardises():
    line = MarginalMap(PARTS[:1]).double()
    x = torch.linspace(-9, 13, 50, dtype=torch.float64)[:, None]
    y, slope = line(x)
    torch.testing.assert_close(y, (x - 2) / 3, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(slope.exp(), torch.full_like(x, 1 / 3), atol=1e-4, rtol=1e-4)
    bounded = MarginalMap(PARTS).double()
    centre = torch.tensor([[2.0, 2.0, 0.4]]).double()
    y, slope = bounded(centre)
    assert y.abs().max().item() < 1e-5
    due = torch.tensor([[1 / 3, 1 / 3, 1 / 0.2]]).double()
    torch.testing.assert_close(slope.exp(), due, rtol=1e-3, atol=0)


def test_quantiles_go_to_those_of_the_normal_and_come_back():
    x = rows()
    seen = torch.ones_like(x, dtype=torch.bool)
    line = MarginalMap(PARTS).double()
    line.fit(x, seen)
    y, slope = line(x)
    inner = slice(100, 1900)
    assert (y - normal()[:, None])[inner].abs().max().item() < 0.05
    torch.testing.assert_close(line.inverse(y), x, rtol=1e-5, atol=1e-6)
    assert bool((y.diff(dim=0) > 0).all())
    live = x.clone().requires_grad_()
    (each,) = torch.autograd.grad(line(live)[0].sum(), live)
    torch.testing.assert_close(slope.exp()[inner], each[inner])
    levels = (torch.arange(KNOTS, dtype=torch.float64) + 0.5) / KNOTS
    t, _ = line.unbound(x)
    due = torch.quantile(t, levels, dim=0).T  # linear between the order statistics
    torch.testing.assert_close(line.knots[:, 1:-1], due, rtol=1e-4, atol=1e-4)
    scores = torch.special.ndtri(levels).expand(3, -1)
    torch.testing.assert_close(line.scores[:, 1:-1], scores, rtol=1e-4, atol=1e-4)


def test_beyond_the_quantiles_it_standardises():
    x = rows()[:, :1]
    line = MarginalMap(PARTS[:1]).double()
    line.fit(x, torch.ones_like(x, dtype=torch.bool))
    spread = float(x.std(correction=0))
    for end in (-100.0, 100.0):
        _, slope = line(torch.tensor([[end]]).double())
        assert abs(slope.exp().item() * spread - 1) < 1e-4
        near, far = line(torch.tensor([[end], [2 * end]]).double())[0][:, 0]
        assert abs((far - near).item() * spread / end - 1) < 1e-4


def test_slopes_are_bounded_and_what_is_not_seen_is_left_out():
    x = torch.cat([torch.zeros(900), torch.linspace(-5, 5, 100)]).double()[:, None]
    line = MarginalMap(PARTS[:1]).double()
    line.fit(x, torch.ones_like(x, dtype=torch.bool))
    spread = float(x.std(correction=0))
    slopes = line.scores.diff() / line.knots.diff() * spread
    assert (slopes <= MAX_STRETCH * 1.01).all()
    assert (slopes >= 0.99 / MAX_STRETCH).all()
    assert bool((line.knots.diff() > 0).all())
    assert bool((line.scores.diff() > 0).all())
    middle = line(torch.zeros(1, 1).double())[0].item()
    assert abs(middle) < 0.1
    plain = rows()[:, 2:]
    wide = torch.cat([plain, torch.full((500, 1), 0.5).double(), torch.full((9, 1), 0.9).double()])
    wide = torch.cat([wide, torch.full((4, 1), torch.nan).double()])
    seen = torch.ones_like(wide, dtype=torch.bool)
    seen[2500:2509] = False
    one, other = MarginalMap(PARTS[2:]).double(), MarginalMap(PARTS[2:]).double()
    one.fit(plain, torch.ones_like(plain, dtype=torch.bool))
    other.fit(wide, seen)
    torch.testing.assert_close(one.knots, other.knots)
    torch.testing.assert_close(one.scores, other.scores)
    fresh = MarginalMap(PARTS[2:]).double()
    before = fresh.knots.clone()
    fresh.fit(plain[:1], torch.ones(1, 1, dtype=torch.bool))
    assert torch.equal(fresh.knots, before)
    fresh.fit(plain[:2], torch.ones(2, 1, dtype=torch.bool))
    assert not torch.equal(fresh.knots, before)


def test_a_broken_line():
    starts, ends = torch.tensor([[0.0, 1, 3], [0, 1, 2]]), torch.tensor([[0.0, 2, 3], [5, 6, 8]])
    x = torch.tensor([[0.5, -1.0], [2.0, 1.5], [5.0, 4.0]])
    y, slope = piecewise_linear(x, starts, ends)
    assert y.tolist() == [[1.0, 4.0], [2.5, 7.0], [4.0, 12.0]]
    torch.testing.assert_close(slope.exp(), torch.tensor([[2.0, 1.0], [0.5, 2.0], [0.5, 2.0]]))
