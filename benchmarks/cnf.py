"""Continuous flows beside torchdiffeq at matched error, and flow matching beside torchcfm.

All sides share one perceptron and its weights. torchdiffeq is given the same state, x and its
log-density, with the exact trace by one derivative per entry, as its own examples have it, and is
differentiated through its steps. Every side tries tolerances (or numbers of steps) from loose to
tight and keeps the loosest whose root mean square error, against a solution in float64, is at most
the one asked for. One thread, CPU time, alternately, median of rounds. Beside flow matching runs
the network alone, with its gradients and Adam, which both sides need: the time of the peer over
its is the limit of any ratio.

    python -m benchmarks cnf
    build/bench/flows/bin/python -m benchmarks.cnf [--rounds 9]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.space import Space
from monge.models.flow._continuous import ContinuousBijection
from monge.models.flow.cnf import CNF
from monge.nn.mlp import MLP
from monge.solve.jacobian_trace import exact_trace
from monge.solve.ode import Solver

from .clock import Work, alternate, measured, show
from .results import keep
from .sides import by_torch, installed, stepper

ERROR = 1e-4
"""Root mean square error of log-determinants and of samples."""
LADDER = [10 ** (-exponent / 5) for exponent in range(8, 33)]
WAYS = [Solver(tolerance=tolerance, control="batch") for tolerance in LADDER]
FIXED = [Solver("rk4", steps=steps) for steps in (3, 4, 5, 6, 8, 10, 12, 16, 24, 32)]
Answer = Callable[[], Tensor]


def flow(dims: int, width: int) -> ContinuousBijection:
    """A non-linear flow: random weights, the same for all sides."""
    torch.manual_seed(0)
    made = ContinuousBijection(MLP.Config(width=width, depth=3), (dims,), 0, Solver())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def ours(made: ContinuousBijection, x: Tensor, options: Solver) -> tuple[Answer, Answer]:
    def score() -> Tensor:
        z, total = made.solve(x, None, (0.0, 1.0), options)
        return total[:, 0] - z.square().sum(1) / 2

    def sample() -> Tensor:
        with torch.no_grad():
            *_, last = made.path(x, None, (1.0, 0.0), options)
        return last

    return score, sample


def torchdiffeq(made: ContinuousBijection, x: Tensor, tolerance: float) -> tuple[Answer, Answer]:
    from torchdiffeq import odeint

    velocity = made.velocity
    settings = {"rtol": tolerance, "atol": tolerance, "method": "dopri5"}

    def augmented(t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return exact_trace(lambda y: velocity(y, t, None), state[0])

    def score() -> Tensor:
        start = (x, x.new_zeros(len(x)))
        z, total = odeint(augmented, start, x.new_tensor([0.0, 1.0]), **settings)
        return total[-1] - z[-1].square().sum(1) / 2

    def sample() -> Tensor:
        with torch.no_grad():
            return odeint(
                lambda t, y: velocity(y, t, None), x, x.new_tensor([1.0, 0.0]), **settings
            )[-1]

    return score, sample


def cheapest(make: Callable, ladder: list, which: int, truth: Tensor) -> tuple[Answer, float]:
    """The cheapest of a ladder that reaches the error, and that error."""
    for rung in ladder:
        answer = make(rung)[which]
        with torch.no_grad():
            error = float((answer().double() - truth).square().mean().sqrt())
        if error <= ERROR:
            break
    return answer, error


def trained(score: Answer, made: ContinuousBijection) -> Work:
    def step() -> None:
        made.zero_grad()
        (-score().mean()).backward()

    return step


def against_torchdiffeq(dims: int, width: int, rows: int, rounds: int) -> None:
    made, x = flow(dims, width), torch.randn(rows, dims)
    truths = ours(copy.deepcopy(made).double(), x.double(), Solver(tolerance=1e-11))
    makers: dict[str, tuple[Callable, list]] = {
        "monge": (lambda options: ours(made, x, options), WAYS),
        "monge rk4": (lambda options: ours(made, x, options), FIXED),
        "monge rows": (
            lambda options: ours(made, x, options),
            [replace(w, control="row") for w in WAYS],
        ),
    }
    theirs = by_torch(made)
    if installed("torchdiffeq"):
        makers["torchdiffeq"] = (lambda tolerance: torchdiffeq(theirs, x, tolerance), LADDER)
    for which, title in enumerate(("train", "sample")):
        with torch.no_grad():
            truth = truths[which]()
        found = {
            name: cheapest(make, ladder, which, truth) for name, (make, ladder) in makers.items()
        }
        notes = {name: f"error {error:.1e}" for name, (_, error) in found.items()}
        sides = {
            name: trained(answer, theirs if name == "torchdiffeq" else made)
            if title == "train"
            else answer
            for name, (answer, _) in found.items()
        }
        print(f"{title} D={dims} 3x{width} B={rows}")
        show(alternate(sides, rounds, warm=2), notes, 2, name=f"{title} D{dims}")


def against_torchcfm(dims: int, width: int, rows: int, rounds: int, coupling: str) -> None:
    """Forward, backward and Adam."""
    space = Space(kind="real", shape=(dims,), rows=rows)
    config = CNF.Config(net=MLP.Config(width=width, depth=3)).override(f"coupling={coupling}")
    sides: dict[str, Work] = {}
    x = 3.4 * torch.rand(rows, dims) - 1.7
    for name in ("monge", *["torchcfm"] * installed("torchcfm")):
        torch.manual_seed(0)
        model = config.build(space)
        model = by_torch(model) if name == "torchcfm" else model
        loss = (
            peer_loss(model, x, coupling)
            if name == "torchcfm"
            else (lambda model=model: model.loss(Batch(x))["matching"])
        )
        sides[name] = stepper(model, loss)
    model, t = config.build(space), torch.rand(rows)
    sides["network alone"] = stepper(
        model, lambda: model.flow.velocity(x, t, None).square().mean(1)
    )
    print(f"matching {coupling} D={dims}")
    times = alternate(sides, rounds, warm=2)
    show(times, digits=2, name=f"matching {coupling}", shared="network alone")


def peer_loss(model: CNF, x: Tensor, coupling: str) -> Answer:
    from torchcfm.conditional_flow_matching import (
        ConditionalFlowMatcher,
        ExactOptimalTransportConditionalFlowMatcher,
    )

    kind = (
        ConditionalFlowMatcher
        if coupling == "independent"
        else ExactOptimalTransportConditionalFlowMatcher
    )
    matcher = kind(sigma=0.0)

    def loss() -> Tensor:
        t, middle, line = matcher.sample_location_and_conditional_flow(x, torch.randn_like(x))
        return (model.flow.velocity(middle, t, None) - line).square().mean(1)

    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    against_torchdiffeq(2, 64, 512, chosen.rounds)
    against_torchdiffeq(8, 128, 256, chosen.rounds)
    against_torchcfm(2, 128, 256, 10 * chosen.rounds, "independent")
    against_torchcfm(2, 128, 256, 10 * chosen.rounds, "optimal")
    keep("cnf", measured, peers=["torchdiffeq", "torchcfm"])


if __name__ == "__main__":
    main()
