"""Solutions with known answers, the order of each method, steps of rows, and two gradients."""

import math
from contextlib import nullcontext

import pytest
import torch

from monge.core.errors import DivergenceError, UsageError
from monge.solve.adjoint import integrate_adjoint
from monge.solve.ode import (
    MAX_STEPS,
    TABLEAUX,
    Solver,
    Tally,
    check_step,
    first_step,
    integrate,
    integrate_one,
    next_step,
    walk,
)

METHODS = list(TABLEAUX)
FIXED = [name for name in METHODS if name != "dopri5"]


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def logistic(t, y):
    """dy/dt = y (1 - y) cos t, of solution 1 / (1 + (1/y0 - 1) exp(-sin t))."""
    t = t.reshape(-1, *(1,) * (y.ndim - 1)) if t.ndim else t
    return y * (1 - y) * torch.cos(t)


def truth(y, t):
    return 1 / (1 + (1 / y - 1) * math.exp(-math.sin(t)))


@pytest.mark.parametrize("name", METHODS)
def test_a_tableau_is_consistent_and_of_its_order(name):
    """The conditions of order up to four that a quadrature must meet: sum b c^(q-1) = 1 / q."""
    table = TABLEAUX[name]
    for node, row in zip(table.nodes[1:], table.rows, strict=True):
        assert sum(row) == pytest.approx(node, abs=1e-14)
    for q in range(1, table.order + 1):
        total = sum(b * c ** (q - 1) for b, c in zip(table.weights, table.nodes, strict=True))
        assert total == pytest.approx(1 / q, abs=1e-14)
    assert sum(table.error) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("times", [(0.0, 2.0), (2.0, -1.0)])
def test_halving_the_step_divides_the_error_by_two_to_the_order(name, times):
    start = truth(double(0.1, 0.4, 0.8)[:, None], times[0])
    errors = [
        (
            integrate_one(logistic, start, times, Solver(name, steps=n))
            - truth(double(0.1, 0.4, 0.8)[:, None], times[1])
        )
        .abs()
        .max()
        for n in (20, 40)
    ]
    order = math.log2(errors[0] / errors[1])
    assert order == pytest.approx(TABLEAUX[name].order, abs=0.3)


@pytest.mark.parametrize("control", ["row", "batch"])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-8, 1e-12])
def test_the_error_of_an_adaptive_solution_follows_its_tolerance(control, tolerance):
    start = double(0.1, 0.4, 0.8)[:, None]
    options = Solver(tolerance=tolerance, control=control)
    found = integrate(lambda t, y: (logistic(t, y[0]),), (start,), (0.0, 2.0), options)
    assert (found.end[0] - truth(start, 2.0)).abs().max() < 10 * tolerance
    back = integrate_one(logistic, found.end[0], (2.0, 0.0), options)
    assert (back - start).abs().max() < 100 * tolerance
    assert found.tally.evaluations == 2 + 6 * found.tally.steps


def test_a_looser_tolerance_takes_fewer_steps():
    start = double(0.1, 0.4)[:, None]
    steps = [
        integrate(
            lambda t, y: (logistic(t, y[0]),), (start,), (0.0, 6.0), Solver(tolerance=tol)
        ).tally.steps
        for tol in (1e-3, 1e-6, 1e-9)
    ]
    assert steps == sorted(set(steps))


def test_rows_do_not_see_one_another_and_a_batch_does():
    """A row beside a stiff one: bit for bit as if it were alone, unless steps are shared."""

    def field(t, y):
        return -y[0] * y[1], torch.zeros_like(y[1])

    both = double(1.0, 1.0)[:, None], double(1.0, 60.0)[:, None]
    for control, same in (("row", True), ("batch", False)):
        options = Solver(tolerance=1e-6, control=control)
        together = integrate(field, both, (0.0, 1.0), options).end[0][0]
        alone = integrate(field, tuple(part[:1] for part in both), (0.0, 1.0), options).end[0][0]
        assert torch.equal(together, alone) is same
        assert together.item() == pytest.approx(math.exp(-1), abs=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_the_path_passes_through_every_time_asked_for(name):
    start, times = double(0.2, 0.6)[:, None], (0.0, 0.3, 0.3, 1.1, 2.0)
    options = Solver(name, steps=400, tolerance=1e-9)
    found = integrate(lambda t, y: (logistic(t, y[0]),), (start,), times, options)
    assert len(found.path) == len(times)
    for t, (y,) in zip(times, found.path, strict=True):
        assert (y - truth(start, t)).abs().max() < (2e-3 if name == "euler" else 1e-5)


def test_float32_reaches_its_own_precision():
    start = torch.tensor([[0.1], [0.7]])
    found = integrate_one(logistic, start, (0.0, 2.0), Solver(tolerance=1e-6))
    assert found.dtype == torch.float32
    assert (found - truth(start, 2.0)).abs().max() < 1e-5


def test_a_time_of_no_length_changes_nothing():
    start = double(0.2)[:, None]
    for name in METHODS:
        assert torch.equal(integrate_one(logistic, start, (1.0, 1.0), Solver(name)), start)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-9), (torch.float64, 1e-17), (torch.float64, math.nan)],
)
def test_a_tolerance_below_machine_precision_is_refused(dtype, tolerance):
    start = torch.ones(1, 1, dtype=dtype)
    with pytest.raises(UsageError, match=f"tolerance={tolerance:g}"):
        integrate_one(logistic, start, options=Solver(tolerance=tolerance))
    for units, refused in ((3.9, True), (4.1, False)):
        solver = Solver(tolerance=units * torch.finfo(dtype).eps)
        with pytest.raises(UsageError) if refused else nullcontext():
            solver.check(dtype)


def test_times_that_reverse_are_refused():
    with pytest.raises(UsageError, match=r"0\.0, 1\.0, 0\.5"):
        integrate_one(logistic, double(0.2)[:, None], (0.0, 1.0, 0.5))


@pytest.mark.parametrize(
    ("field", "time"), [(lambda t, y: y * math.nan, r"t=0\b"), (lambda t, y: y**2, r"t=0\.5\b")]
)
def test_a_field_that_explodes_is_reported(field, time):
    """dy/dt = y^2 from 2 is infinite at t = 0.5."""
    with pytest.raises(DivergenceError, match=time):
        integrate_one(field, double(2.0)[:, None])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(3, 8), torch.nn.Linear(8, 2)
        self.double()

    def forward(self, t, state):
        x, _ = state
        t = t.expand(len(x))[:, None]
        v = self.b(torch.tanh(self.a(torch.cat([x, t], 1))))
        return v, v.square().sum(1)


@pytest.mark.parametrize(
    "options",
    [Solver("rk4", steps=40), Solver(tolerance=1e-10), Solver(tolerance=1e-10, control="batch")],
)
def test_the_adjoint_agrees_with_back_propagation(options):
    net, x = Net(), torch.randn(5, 2, dtype=torch.float64).requires_grad_()
    start = (x, torch.zeros(5, dtype=torch.float64))
    weights, wanted = torch.randn(5, 2, dtype=torch.float64), [x, *net.parameters()]
    ends = [
        integrate(net, start, (0.0, 1.0), options).end,
        integrate_adjoint(net, start, list(net.parameters()), 0.0, 1.0, options),
    ]
    grads = [
        torch.autograd.grad((end[0] * weights).sum() + end[1].square().sum(), wanted)
        for end in ends
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_gradients_through_steps_are_those_of_differences():
    start = double(0.2, 0.6)[:, None].requires_grad_()
    for name in METHODS:
        assert torch.autograd.gradcheck(
            lambda y, name=name: integrate_one(logistic, y, (0.0, 1.0), Solver(name, steps=3)),
            (start,),
            atol=1e-4,
        )


def test_the_adjoint_keeps_no_step():
    """What back-propagation saves grows with the steps; what the adjoint saves does not."""
    net, kept = Net(), []
    start = (torch.randn(5, 2, dtype=torch.float64), torch.zeros(5, dtype=torch.float64))

    def count(solve):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(1) or t, lambda t: t):
            solve()
        return len(kept)

    steps = [
        count(lambda n=n: integrate(net, start, options=Solver("rk4", steps=n))) for n in (4, 8)
    ]
    adjoint = [
        count(
            lambda n=n: integrate_adjoint(
                net, start, list(net.parameters()), options=Solver("rk4", steps=n)
            )
        )
        for n in (4, 8)
    ]
    assert steps[1] > 1.9 * steps[0]
    assert adjoint[0] == adjoint[1] <= 2


def test_steps_that_are_repeated_are_counted():
    def steep(t, y):
        return (torch.where(t < 0.5, torch.zeros_like(y[0]), -200 * y[0]),)

    found = integrate(steep, (double(1.0),), (0.0, 1.0))
    assert 0 < found.tally.rejected < found.tally.steps
    smooth = integrate(lambda t, y: (-y[0],), (double(1.0),), (0.0, 1.0))
    assert smooth.tally.rejected == 0


def rms(values):
    return math.sqrt(sum(v * v for v in values) / len(values))


@pytest.mark.parametrize("length", [2.0, -2.0, 1e-3])
@pytest.mark.parametrize("control", ["row", "batch"])
def test_the_first_step_is_that_of_hairer(length, control):
    """Norsett and Wanner (1993, II.4), row by row or for the batch."""
    tolerance, sign = 1e-4, math.copysign(1.0, length)
    options = Solver(tolerance=tolerance, control=control)
    y = double([1.0, -2.0], [0.0, 0.0], [30.0, 40.0], [0.3, 0.1], [5e-5, 5e-5])
    slow = double([-0.2 + 3e-5, 0.2 / 3 - 1e-5])  # beside where nothing moves
    y = torch.cat([y, slow])
    extra = torch.ones(6, dtype=torch.float64)

    def field(t, state):
        turn = torch.tensor([[0.0, 1.0], [-3.0, 0.0]], dtype=torch.float64)
        return state[0] @ turn + 0.2, 1e9 * state[1]

    def slopes(rows):
        return [[-3 * b + 0.2, a + 0.2] for a, b in rows]

    rows = y.tolist()
    groups = [[row] for row in rows] if control == "row" else [rows]
    due = []
    for group in groups:
        scale = [[tolerance * (1 + abs(v)) for v in row] for row in group]

        def norm(values, scale=scale):
            pairs = zip(values, scale, strict=True)
            return rms([v / s for vs, ss in pairs for v, s in zip(vs, ss, strict=True)])

        k = slopes(group)
        d0, d1 = norm(group), norm(k)
        h0 = 0.01 * d0 / d1 if d0 > 1e-5 and d1 > 1e-5 else 1e-6
        h0 = sign * min(h0, abs(length))
        ahead = [
            [v + h0 * s for v, s in zip(vs, ss, strict=True)]
            for vs, ss in zip(group, k, strict=True)
        ]
        later = slopes(ahead)
        turn = [
            [b - a for a, b in zip(first, last, strict=True)]
            for first, last in zip(k, later, strict=True)
        ]
        d2 = norm(turn) / abs(h0)
        h1 = (0.01 / max(d1, d2)) ** (1 / 5)
        due.append(sign * min(100 * abs(h0), h1, abs(length)))
    t = torch.zeros(6 if control == "row" else (), dtype=torch.float64)
    state = (y, extra)
    found = first_step(field, t, state, field(t, state), length, options, 1)
    torch.testing.assert_close(found.flatten(), torch.tensor(due, dtype=torch.float64))


def test_a_field_that_is_nothing_takes_small_first_steps():
    y = (torch.zeros(1, 2, dtype=torch.float64),)
    still = first_step(lambda t, s: (0 * s[0],), torch.zeros(1), y, y, 5.0, Solver(), None)
    assert still.item() == pytest.approx(1e-4)  # a hundred times the smallest trial


def test_the_next_step_follows_its_error():
    def following(ratio, before=1.0, good=True, cut=False, step=0.5, h=0.5):
        each = [torch.tensor([v], dtype=torch.float64) for v in (h, step, ratio, before)]
        flags = [torch.tensor([v]) for v in (good, cut)]
        return next_step(*each, *flags).item()

    assert following(1.0) == pytest.approx(0.9 * 0.5)
    assert following(0.5) == pytest.approx(0.9 * 0.5 * 0.5 ** (-0.7 / 5))
    assert following(0.5, 0.3) == pytest.approx(0.9 * 0.5 * 0.5 ** (-0.7 / 5) * 0.3 ** (0.4 / 5))
    assert following(0.0) == pytest.approx(5.0)  # ten times at most
    assert following(1e12) == pytest.approx(0.1)  # a fifth at least
    assert following(1e-9, good=False) == 0.5  # a step that failed does not grow
    assert following(math.nan, good=False) == pytest.approx(0.1)
    assert following(1.0, cut=True, step=0.1) == 0.5  # it was cut short
    assert following(0.0, cut=True, step=0.1, h=0.5) == pytest.approx(1.0)
    assert following(9.0, cut=True, good=False, step=0.1) < 0.1


@pytest.mark.parametrize("name", METHODS)
def test_a_late_start_is_only_a_shift_of_time(name):
    """Also in the number of steps, and backwards."""
    y = double(0.2, 0.6)[:, None]
    options = Solver(name, steps=8, tolerance=1e-6)
    for times in ((0.0, 0.25, 1.0), (1.0, 0.0)):
        early = integrate(lambda t, s: (logistic(t, s[0]),), (y,), times, options)
        late = integrate(
            lambda t, s: (logistic(t - 3, s[0]),), (y,), [t + 3 for t in times], options
        )
        torch.testing.assert_close(early.end[0], late.end[0], rtol=1e-6, atol=1e-9)
        assert early.tally.steps == late.tally.steps
        if name != "dopri5":
            assert early.tally.steps == 8


@pytest.mark.parametrize("control", ["row", "batch"])
def test_steps_are_repeated_grow_and_shrink_by_the_errors_of_two(control):
    """A solution by hand, with numbers instead of tensors, step by step."""
    table, tolerance, ends = TABLEAUX["dopri5"], 1e-3, (0.0, 0.7, 6.0)

    def slope(t, y):
        return -30 * y * (1 if t > 3 else 0) + math.cos(t)

    def field(t, state):
        late = torch.where(t > 3, 30.0, 0.0).double()
        return (-late * state[0] + torch.cos(t),)

    options, tally = Solver(tolerance=tolerance, control=control), Tally()
    taken = walk(field, (double(1.0),), ends, options, tally)
    found = [y[0].item() for reached, y in taken if not reached]
    t, y, due, rejected = torch.zeros(1 if control == "row" else ()), 1.0, [], 0
    state = (double(1.0),)
    h = first_step(field, t.double(), state, field(t, state), 6.0, options, None).item()
    t, before = 0.0, 1.0
    for end in ends[1:]:
        while t != end:
            step = min(h, end - t)
            k = []
            for node, row in zip(table.nodes, ((), *table.rows), strict=True):
                inner = y + step * sum(a * b for a, b in zip(row, k, strict=True))
                k.append(slope(t + node * step, inner))
            new = y + step * sum(b * each for b, each in zip(table.weights, k, strict=True))
            k.append(slope(t + step, new))
            error = step * sum(e * each for e, each in zip(table.error, k, strict=True))
            ratio = abs(error) / (tolerance * (1 + max(abs(y), abs(new))))
            factor = 0.9 * ratio ** (-0.7 / 5) * before ** (0.4 / 5) if ratio else 10.0
            good, cut = ratio <= 1, step == end - t
            factor = min(max(factor, 0.2), 10.0 if good else 1.0)
            h = max(h, factor * step) if good and cut else factor * step
            if good:
                t, y, before = end if cut else t + step, new, max(ratio, 1e-4)
            rejected += not good
            due.append(y)
    assert rejected > 2
    assert tally.rejected == rejected
    assert found == pytest.approx(due, rel=1e-6)  # small errors are of rounding too


def test_a_step_fails_where_it_cannot_be_smaller():
    eps = torch.finfo(torch.float64).eps

    def check(t, step, steps=1, good=False):
        flags = torch.tensor([True, good])
        check_step(double(5.0, t), double(1.0, step), Tally(steps=steps), flags)

    check(2.0, 8 * eps)  # as small as can be at 2
    check(2.0, 7 * eps, good=True)
    with pytest.raises(DivergenceError, match=r"t=2\b"):
        check(2.0, -7 * eps)
    check(0.0, 4e-3 * eps)
    with pytest.raises(DivergenceError, match=r"t=0\b"):
        check(0.0, 3e-3 * eps)
    check(1.0, 1.0, steps=MAX_STEPS)
    with pytest.raises(DivergenceError):
        check(1.0, 1.0, steps=MAX_STEPS + 1)
