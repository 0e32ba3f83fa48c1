"""Entropic and exact transport beside POT and ott-jax, at equal achieved marginal error.

Every side is given points (or, for the exact plan, a cost matrix), builds its own cost and returns
a plan whose row sums miss their weights by at most the same L1 error, which is checked afterwards
in float64; a side that misses it is marked. One thread, CPU time, alternately, median of rounds;
each side solves once more, unmeasured, right before every measured call, since a system may take
longer to hand out the memory of a kernel than any side takes to compute with it.
ott-jax is compiled before it is measured, and at n=4096 it is asked for ten times the error: in
float32 its passes stall near 5e-4 there. Beside them run the kernel and its products alone, in as
many passes as we take: the costs, their exponentials and two products of a matrix and a vector a
pass. The time of a peer over theirs is the limit of any ratio in as many passes. The last lines
show how our time grows with n, what a problem of 20000 points takes in time and memory, and a
batch of small problems against a loop.

    python -m benchmarks transport
    build/bench/transport/bin/python -m benchmarks.transport [--quick]
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from monge.solve.transport.exact import exact
from monge.solve.transport.gibbs_kernel import PointKernel
from monge.solve.transport.ground_cost import squared
from monge.solve.transport.sinkhorn import sinkhorn

from .clock import alternate, measured, power, show, timed
from .results import keep
from .sides import installed

Solver = Callable[[], Tensor]
"""Solves once and gives the error of its plan."""
Makers = dict[str, Callable[[Tensor, Tensor, float], Solver]]
ERROR = 1e-4
MOST = {True: 2_000, False: 1_000}
"""Passes that a peer may take, with the easy and with the small epsilon."""


def clouds(n: int, d: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=g), torch.randn(n, d, generator=g) * 0.5 + 1


def ours(x: Tensor, y: Tensor, part: float) -> Solver:
    def solve() -> Tensor:
        plan = sinkhorn(x, y, part, relative=True, tolerance=ERROR)
        return torch.as_tensor([plan.error])

    return solve


def pot(x: Tensor, y: Tensor, part: float) -> Solver:
    import ot

    n = len(x)
    weights = torch.full((n,), 1 / n)
    method = "sinkhorn" if part > 0.01 else "sinkhorn_log"

    def solve() -> Tensor:
        cost = ot.dist(x, y)
        # POT stops on the L2 error of the columns, checked every ten passes.
        plan = ot.sinkhorn(
            weights,
            weights,
            cost,
            float(part * cost.mean()),
            method=method,
            stopThr=ERROR / math.sqrt(n),
            numItermax=MOST[part > 0.01],
            warn=False,
        )
        return (plan.sum(1) - weights).abs().sum() + (plan.sum(0) - weights).abs().sum()

    return solve


def ott(x: Tensor, y: Tensor, part: float) -> Solver:
    import jax
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn as other

    a, b = jax.numpy.asarray(x.numpy()), jax.numpy.asarray(y.numpy())

    def run(a, b):  # type: ignore[no-untyped-def]
        geometry = pointcloud.PointCloud(a, b, epsilon=part, relative_epsilon="mean")
        threshold = ERROR if len(a) < 4096 else 10 * ERROR
        solver = other.Sinkhorn(
            threshold=threshold, max_iterations=MOST[part > 0.01], lse_mode=part <= 0.01
        )
        found = solver(linear_problem.LinearProblem(geometry))
        return abs(found.marginal(1) - 1 / len(a)).sum()

    compiled = jax.jit(run).lower(a, b).compile()

    def solve() -> Tensor:
        return torch.tensor(float(compiled(a, b).block_until_ready()))

    return solve


PRODUCTS = "products alone"


def products(x: Tensor, y: Tensor, part: float) -> Solver:
    """What every solver computes, in our number of passes."""
    passes = sinkhorn(x, y, part, relative=True, tolerance=ERROR).passes

    def solve() -> Tensor:
        built = PointKernel(x, y, squared)
        zeros = x.new_zeros(len(x)), y.new_zeros(len(y))
        built.set(*zeros, part * built.mean())
        v = torch.full((len(y),), 1 / len(y))
        for _ in range(passes):
            sums = torch.zeros_like(v)
            for _, block in built.blocks():  # read from memory once for both products
                sums += block.mT.mv(block.mv(v).reciprocal_().mul_(1 / len(x)))
            v = sums.reciprocal_().mul_(1 / len(v))
        return torch.zeros(1)

    return solve


PEERS = (("POT", "ot", pot), ("ott-jax", "ott", ott))


def race(title: str, sides: dict[str, Solver], rounds: int) -> None:
    """Turn about; a side with a larger error has used up its passes or was asked for less, so its
    ratio is a lower bound."""
    errors: dict[str, float] = {}

    def solved(name: str) -> None:
        errors[name] = float(sides[name]().sum())

    print(title)
    times = alternate({name: partial(solved, name) for name in sides}, rounds, 0, again=rounds > 1)
    show(
        times,
        {
            name: f"error {error:.1e}{', a larger one' * (error > 1.5 * ERROR)}"
            for name, error in errors.items()
        },
        name=title,
        shared=PRODUCTS,
    )


def entropic(rounds: int, quick: bool, makers: Makers) -> None:
    for n, d, part in [(1024, 2, 0.05), (4096, 2, 0.05), (1024, 64, 0.05), (1024, 2, 0.001)]:
        if quick and n > 1024:
            continue
        x, y = clouds(n, d)
        sides = {"monge": ours(x, y, part)}
        if part > 0.01:  # a smaller epsilon is approached by stages
            sides[PRODUCTS] = products(x, y, part)  # before peers, which may leave no large pages
        sides |= {name: make(x, y, part) for name, make in makers.items()}
        often = 1 if part < 0.01 else min(rounds, 5) if n > 4000 else rounds
        race(f"n={n} d={d} epsilon {part} of the mean", sides, often)


def batches(rounds: int, makers: Makers) -> None:
    x, y = (torch.randn(64, 128, 2, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
    sides: dict[str, Solver] = {"monge": ours(x, y, 0.05)}
    if "POT" in makers:
        singles = [pot(a, b, 0.05) for a, b in zip(x, y, strict=True)]
        sides["POT"] = lambda: torch.stack([solve() for solve in singles]).amax()
    race("64 problems of n=128", sides, rounds)


def assignments(rounds: int, makers: Makers) -> None:
    from scipy.optimize import linear_sum_assignment

    cost = squared(*clouds(1000, 2)).double()
    zero = torch.zeros(1)
    sides: dict[str, Solver] = {
        "monge": lambda: exact(cost).cost * 0,
        "scipy": lambda: zero + 0 * linear_sum_assignment(cost.numpy())[0][0],
    }
    if "POT" in makers:
        import ot

        weights = torch.full((1000,), 1e-3, dtype=torch.float64).numpy()
        sides["POT"] = lambda: zero + 0 * float(ot.emd(weights, weights, cost.numpy())[0, 0])
        known = ot.emd2(weights, weights, cost.numpy())
        print(f"exact n=1000: value over POT's - 1 = {float(exact(cost).cost) / known - 1:.1e}")
    race("exact n=1000", sides, rounds)


def growth() -> None:
    sizes, times = [512, 1024, 2048, 4096, 8192], []
    for n in sizes:
        solve = ours(*clouds(n, 2), 0.05)
        solve()
        times.append(timed(solve))
    print(f"time grows as n^{power(sizes, times):.2f} over n = 512..8192")


def large() -> None:
    x, y = clouds(20_000, 2)
    started = time.perf_counter()
    plan = sinkhorn(x, y, 0.05, relative=True, tolerance=ERROR)
    spent = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"n=20000: {spent:.1f} s, {plan.passes} passes, error {plan.error:.1e}, peak memory of "
        f"the process {peak:.2f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="n = 1024 alone")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    makers: Makers = {name: make for name, module, make in PEERS if installed(name, module)}
    entropic(chosen.rounds, chosen.quick, makers)
    batches(chosen.rounds, makers)
    assignments(chosen.rounds, makers)
    if not chosen.quick:
        growth()
        large()
    keep("transport", measured, peers=["POT", "ott-jax", "jax"])


if __name__ == "__main__":
    main()
