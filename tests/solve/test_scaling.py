"""The inner loop of entropic transport piece by piece, each against dense matrices."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from monge.solve.transport import gibbs_kernel
from monge.solve.transport.gibbs_kernel import Kernel, MatrixKernel, PointKernel
from monge.solve.transport.ground_cost import Power, squared
from monge.solve.transport.scaling import (
    MIN_STEP_LENGTH,
    NEWTON_RESIDUAL,
    STEP_REDUCTION,
    Leap,
    Scaling,
    across,
    conjugate,
)
from monge.solve.transport.sinkhorn import sinkhorn, unrolled

EPSILON = 0.3


def clouds(n: int = 9, m: int = 7, d: int = 2) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(n, d, generator=g).double(), torch.randn(m, d, generator=g).double()
    return x, 0.5 * y + 1


def weights(n: int, seed: int) -> Tensor:
    each = torch.rand(n, generator=torch.Generator().manual_seed(seed)).double() + 0.2
    return each / each.sum()


def kernels() -> dict[str, Kernel]:
    x, y = clouds()
    return {
        "matrix": MatrixKernel(squared(x, y)),
        "squared": PointKernel(x, y, squared),
        "power": PointKernel(x, y, Power(1.5)),
        "recomputed": PointKernel(x, y, squared, room=0),
    }


def dense(name: str) -> Tensor:
    return (Power(1.5) if name == "power" else squared)(*clouds())


@pytest.fixture(params=["matrix", "squared", "power", "recomputed"])
def name(request, monkeypatch):
    monkeypatch.setattr(gibbs_kernel, "BLOCK_ENTRIES", 20)  # two rows of seven a block
    return request.param


def test_a_kernel_is_its_exponents_block_by_block(name):
    kernel, cost = kernels()[name], dense(name)
    assert [(rows.start, rows.stop) for rows in kernel.rows] == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
        (8, 9),
    ]
    assert kernel.is_stored == (name != "recomputed")
    f, g = torch.randn(9).double(), torch.randn(7).double()
    kernel.set(f, g, EPSILON)
    due = ((f[:, None] + g - cost) / EPSILON).exp()
    found = torch.cat([block for _, block in kernel.blocks()])
    torch.testing.assert_close(found, due)
    torch.testing.assert_close(torch.cat([kernel.costs(rows) for rows in kernel.rows]), cost)
    assert kernel.mean() == pytest.approx(float(cost.mean()))
    start, end = kernel.guess()
    assert (start[:, None] + end <= cost + 1e-9).all()
    single = kernel.to(torch.float32)
    single.set(f.float(), g.float(), EPSILON)
    torch.testing.assert_close(next(single.blocks())[1], due[:2].float(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("advised", [True, False])
def test_large_memory_is_that_of_a_kernel(advised, monkeypatch):
    """Also where the system refuses large pages."""
    if not advised:
        monkeypatch.setattr(gibbs_kernel.mmap, "MADV_HUGEPAGE", -1, raising=False)
    monkeypatch.setattr(gibbs_kernel, "LARGE_BYTES", 0)
    made = [gibbs_kernel.allocate(torch.Size([3, 5]), like) for like in (clouds()[0],) * 2]
    made[0].fill_(1.0)
    made[1].fill_(2.0)
    assert made[0].shape == (3, 5)
    assert made[0].dtype == torch.float64
    assert made[0].tolist() == [[1.0] * 5] * 3  # each has its own
    x, y = (points.float() for points in clouds())
    stored = sinkhorn(x, y, EPSILON)
    monkeypatch.undo()
    torch.testing.assert_close(stored.f, sinkhorn(x, y, EPSILON).f)


def test_exponents_are_held_where_their_exponentials_would_be_denormal():
    for dtype, lowest in ((torch.float32, -60.0), (torch.float64, -480.0)):
        kernel = MatrixKernel(torch.tensor([[1e6, 0.0]], dtype=dtype))
        kernel.take(torch.zeros(1, dtype=dtype), torch.zeros(2, dtype=dtype), 1.0)
        assert kernel.held(slice(0, 1)).tolist() == [[lowest, 0.0]]


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (2.0, 3.0), (0.5, -1.0)])
def test_the_guess_solves_a_shift_and_a_scale(scale, shift):
    """Every point is matched with its image, where potentials touch the cost."""
    x, _ = clouds()
    y = scale * x + torch.tensor([shift, 0.5]).double()
    f, g = PointKernel(x, y, squared).guess()
    cost = squared(x, y)
    torch.testing.assert_close(f + g, cost.diagonal())
    assert (f[:, None] + g <= cost + 1e-9).all()
    one, other = PointKernel(x[:1], y[:1], squared).guess()
    torch.testing.assert_close(one + other, cost.diagonal()[:1])


def made(name: str) -> tuple[Scaling, Tensor, Tensor, Tensor]:
    a, b = weights(9, 2), weights(7, 3)
    work = Scaling(kernels()[name], a, b, (torch.zeros(9).double(), torch.zeros(7).double()))
    work.epsilon = EPSILON
    work.load()
    work.v = torch.rand(7, generator=torch.Generator().manual_seed(4)).double() + 0.5
    return work, (-dense(name) / EPSILON).exp(), a, b


def test_a_pass_makes_rows_exact_and_measures_the_columns(name):
    work, k, a, b = made(name)
    v = work.v.clone()
    c, error = work.balance()
    u = 1 / (k @ (b * v))
    torch.testing.assert_close(work.u, u)
    torch.testing.assert_close(c, k.T @ (a * u))
    plan = (a * u)[:, None] * k * (b * v)
    torch.testing.assert_close(plan.sum(1), a)
    assert error == pytest.approx(float((plan.sum(0) - b).abs().sum()))
    vector, scale = torch.randn(7).double(), torch.rand(9).double()
    torch.testing.assert_close(work.around(vector, scale), k.T @ (scale * (k @ vector)))
    work.close(c)
    plan = a[:, None] * ((work.f[:, None] + work.g - dense(name)) / EPSILON).exp() * b
    torch.testing.assert_close(plan.sum(0), b)
    assert work.error == pytest.approx(float((plan.sum(1) - a).abs().sum()))


def test_a_newton_step_solves_its_system(name):
    work, k, a, b = made(name)
    for _ in range(20):  # near the solution steps are short enough to be made whole
        work.v = work.balance()[0].reciprocal()
    c, error = work.balance()
    leap = work.leap(c, error, 1e-12, 400)
    plan = (a * work.u)[:, None] * k * (b * work.v)
    sums = plan.sum(0)
    matrix = sums.diag() - plan.T @ (plan / a[:, None])
    left = (matrix @ leap.y - (b - sums)).abs().sum()
    assert float(left) <= NEWTON_RESIDUAL * float((b - sums).abs().sum()) * 1.001
    assert leap.error == error
    torch.testing.assert_close(leap.plain, 1 / c)
    torch.testing.assert_close(leap.end(), work.v * leap.y.exp())


@pytest.mark.parametrize("sound", [True, False])
def test_scalings_are_absorbed_by_one_pass_on_logarithms(name, sound):
    work, _, a, b = made(name)
    c, _ = work.balance()
    f, g = torch.zeros(9).double(), torch.zeros(7).double()
    if sound:
        f, g = EPSILON * work.u.log(), -EPSILON * c.log()
    work.rest(c, sound)
    cost = dense(name)
    f = -EPSILON * torch.logsumexp((g - cost) / EPSILON + b.log(), 1)
    g = -EPSILON * torch.logsumexp((f[:, None] - cost) / EPSILON + a.log()[:, None], 0)
    torch.testing.assert_close(work.f, f)
    torch.testing.assert_close(work.g, g)
    assert torch.equal(work.v, torch.ones_like(b))
    block = next(work.kernel.blocks())[1]
    torch.testing.assert_close(block, ((f[:2, None] + g - cost[:2]) / EPSILON).exp())
    assert not work.grown(torch.full_like(b, math.exp(29.9)))
    assert work.grown(torch.full_like(b, math.exp(-30.1)))
    work.u = torch.full_like(a, math.exp(30.1))
    assert work.grown(torch.ones_like(b))


def test_a_step_is_shortened_and_then_abandoned():
    v, y, plain = torch.ones(2), torch.tensor([1.0, -2.0]), torch.tensor([5.0, 6.0])
    leap = Leap(v, plain, y, 0.5, 3)
    lengths, tried = [], []
    for _ in range(6):
        tried.append(leap.shorten())
        lengths.append(leap.length)
        if leap.error == math.inf:
            break
    kept = [length for length in lengths if length >= MIN_STEP_LENGTH]
    assert kept == pytest.approx([STEP_REDUCTION**k for k in range(1, len(kept) + 1)])
    assert len(lengths) == len(kept) + 1
    for length, value in zip(kept, tried, strict=False):
        torch.testing.assert_close(value, (length * y).exp())
    assert tried[-1] is plain


def test_conjugate_gradients_solve_a_batch():
    g = torch.Generator().manual_seed(0)
    root = torch.randn(3, 6, 6, generator=g).double()
    matrix = root @ root.mT + 6 * torch.eye(6).double()
    right = torch.randn(3, 6, generator=g).double()
    right[2] = 0.0
    scale = matrix.diagonal(dim1=1, dim2=2)
    y, steps = conjugate(lambda v: across(matrix, v), right, scale, 1e-9, 50)
    left = (right - across(matrix, y)).abs().sum(-1)
    assert (left <= NEWTON_RESIDUAL * right.abs().sum(-1) + 1e-12).all()
    assert not y[2].any()
    assert 1 <= steps <= 6
    for few in (0, 1, 2):
        assert conjugate(lambda v: across(matrix, v), right, scale, 0.0, few)[1] == few
    exact, one = conjugate(lambda v: scale * v, right, scale, 0.0, 50)
    torch.testing.assert_close(exact, right / scale)
    assert one == 1
    far, none = conjugate(lambda v: across(matrix, v), right, scale, 1e9, 50)
    assert none == 1  # enough after the first step
    empty = torch.where(torch.arange(6) == 0, 0.0, scale)
    kept, _ = conjugate(lambda v: across(matrix, v), right, empty, 1e-9, 50)
    assert not kept[:, 0].any()
    assert far.isfinite().all()
    down, _ = conjugate(lambda v: -v, right, scale, 1e-9, 50)
    assert not down.any()  # no step where the curve has no minimum


def test_stages_and_passes_are_counted():
    x, y = clouds(40, 30)
    plan = sinkhorn(x, y, 0.001, tolerance=1e-8)
    assert plan.converged
    stages = list(dict.fromkeys(point.epsilon for point in plan.trace))
    assert stages == pytest.approx([0.001 * 4**k for k in reversed(range(len(stages)))])
    mean = float(squared(x, y).mean())
    assert stages[0] >= 0.02 * mean > stages[1]
    passes = [point.passes for point in plan.trace]
    assert passes[0] == 1
    assert passes == sorted(passes)
    assert len(set(passes)) == len(passes)
    assert passes[-1] < plan.passes <= passes[-1] + 2
    direct = sinkhorn(x, y, 0.001, tolerance=1e-8, start=(plan.f, plan.g))
    assert {point.epsilon for point in direct.trace} == {0.001}
    assert direct.passes < plan.passes
    few = sinkhorn(x, y, 0.001, tolerance=1e-12, passes=5)
    assert not few.converged
    assert few.passes <= 5 + 2 * len(stages) + 2
    relative = sinkhorn(x, y, 0.1, relative=True)
    assert relative.epsilon == pytest.approx(0.1 * mean)
    torch.testing.assert_close(
        unrolled(x, y, 0.3, passes=300), sinkhorn(x, y, 0.3, tolerance=1e-12).value
    )


class Scripted(Scaling):
    """The loop with errors that are given instead of computed, and a log of what it does."""

    def __init__(self, errors, grown=()):
        self.errors, self.large, self.log = iter(errors), set(grown), []
        self.trace, self.v = [], torch.ones(1)
        self.passed = 0

    def load(self):
        self.log.append("load")

    def balance(self):
        self.passed += 1
        return torch.full((1,), 4.0), next(self.errors)

    def grown(self, c):
        return self.passed in self.large

    def rest(self, c, sound):
        self.log.append(f"rest {sound}")

    def leap(self, c, error, tolerance, passes):
        self.log.append(f"leap {error} {passes}")
        return Leap(torch.ones(1), torch.full((1,), 9.0), torch.ones(1), error, 5)

    def close(self, c):
        self.log.append(f"close {self.v.item():.3g}")


def ran(errors, tolerance=1e-3, passes=1000, **rest) -> tuple[int, list[str], list[float]]:
    work = Scripted(errors, **rest)
    done = work.run(EPSILON, tolerance, passes)
    assert work.trace[0][:2] == (EPSILON, 1)
    return done, work.log, [error for _, _, error in work.trace_from(0)]


def test_passes_end_at_the_tolerance():
    done, log, errors = ran([0.5, 0.4, 1e-3, 0.0])
    assert (done, log, errors) == (4, ["load", "close 0.25"], [0.5, 0.4, 1e-3])
    assert ran([1e-3])[0] == 2
    assert ran([0.9] * 9, passes=3)[0] == 4


def test_passes_end_where_rounding_is_the_limit():
    """A hundred passes that lower the least error by less than a hundredth."""
    assert ran([0.5] * 300)[0] == 1 + 101 + 1
    slow, quick = ([2.0] * 90 for _ in range(2))
    for _ in range(200):
        slow.append(0.99 * slow[-1])
        quick.append(0.98 * quick[-1])
    assert ran(slow)[0] == 1 + 101 + 1
    assert len(ran(quick, tolerance=0.4)[2]) == 90 + math.ceil(math.log(0.2) / math.log(0.98))
    low = [0.5, *[0.49] * 50, 0.4, *[0.6] * 300]
    assert ran(low)[0] == 1 + 50 + 1 + 101 + 1


def test_newton_steps_are_tried_near_the_solution_and_undone():
    done, log, errors = ran([0.4, 0.1, 0.08, 0.09, 0.05, 1e-4], passes=50)
    assert errors == [0.4, 0.1, 0.08, 0.09, 0.05, 1e-4]
    assert log == [
        "load",
        "leap 0.1 48",  # after two passes
        "leap 0.08 42",  # five steps of the system were passes too
        "leap 0.05 35",  # the one before was shortened once
        f"close {math.e:.3g}",
    ]
    assert done == 6 + 3 * 5 + 1
    worse = ran([0.08, *[0.3] * 4, 0.09, 0.0])
    assert worse[1] == ["load", "leap 0.08 999", "leap 0.09 989", f"close {math.e:.3g}"]
    assert ran([0.08, 0.3, 0.3], passes=2)[0] == 1 + 5 + 1 + 1  # no pass is left to undo it


def test_scalings_that_grow_or_overflow_are_absorbed():
    done, log, _ = ran([0.08, 0.05, 1e-4], grown={2})
    assert log == ["load", "leap 0.08 999", "rest True", f"close {math.e:.3g}"]
    assert done == 3 + 5 + 1
    done, log, _ = ran([math.nan, 0.5, math.inf, 1e-4])
    assert log == ["load", "rest False", "rest False", "close 0.25"]
    assert done == 5
    done, log, errors = ran([math.nan] * 300, passes=20)  # what never becomes a number
    assert len(errors) == 20 + 100
    assert log.count("rest False") == 119


def test_errors_are_counted_on_from_earlier_runs():
    work = Scripted([0.5, 1e-4])
    work.run(EPSILON, 1e-3, 10)
    assert work.trace_from(7) == [(EPSILON, 8, 0.5), (EPSILON, 9, 1e-4)]
    assert work.trace_from(7) == []
