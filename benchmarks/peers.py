"""MADE with Gaussian conditionals beside the one-transform MAF of zuko and of nflows.

All three are the same law: a masked network of the same width and depth that puts out a mean and
a scale for each entry. Measured are `log_prob` without gradients and a step of training (forward,
backward, Adam). The sides take turns (A/B/C/A/B/C) in one process on one thread, after unmeasured
rounds; reported are the median and the spread (lowest to highest) of CPU time and the ratio of the
medians, peer by ours. The numbers of weights are printed to show that the sizes agree.

    pip install 'monge[bench]'
    python -m benchmarks.peers            # D=64, 3x512, 1024 rows
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from monge.core.space import Space
from monge.models.autoregressive.made import MADE

from .clock import timed, told


@dataclass(frozen=True)
class Side:
    """A law under measurement."""

    module: nn.Module
    log_prob: Callable[[Tensor], Tensor]

    @property
    def weights(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    def trainer(self) -> Callable[[Tensor], None]:
        """A step of training, with torch's fused Adam for every side."""
        optimiser = torch.optim.Adam(self.module.parameters(), 1e-4, fused=True)

        def step(x: Tensor) -> None:
            optimiser.zero_grad()
            (-self.log_prob(x).mean()).backward()
            optimiser.step()

        return step


def ours(dims: int, width: int, depth: int) -> Side:
    space = Space(kind="real", shape=(dims,), low=(-5.0,), high=(5.0,))
    model = MADE.Config(width=width, depth=depth, residual=False, direct=False,
                        components=1).build(space)
    return Side(model, model.log_prob)


def zuko(dims: int, width: int, depth: int) -> Side:
    from zuko.flows import MAF

    flow = MAF(dims, 0, transforms=1, hidden_features=[width] * depth)
    return Side(flow, lambda x: flow().log_prob(x))


def nflows(dims: int, width: int, depth: int) -> Side:
    from nflows.flows import MaskedAutoregressiveFlow

    flow = MaskedAutoregressiveFlow(dims, width, num_layers=1, num_blocks_per_layer=depth - 1,
                                    use_residual_blocks=False)
    return Side(flow, flow.log_prob)


PEERS = {"zuko": zuko, "nflows": nflows}


def turns(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """CPU times of works that take turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(repeats + 3):
        for name, work in works.items():
            spent = timed(work)
            if number >= 3:
                times[name].append(spent)
    return times


def compare(sides: dict[str, Side], rows: int, dims: int, repeats: int) -> None:
    x = torch.randn(rows, dims)

    @torch.no_grad()
    def score(side: Side) -> Tensor:
        return side.log_prob(x)

    steps = {name: side.trainer() for name, side in sides.items()}
    tasks: dict[str, dict[str, Callable[[], object]]] = {
        "log_prob": {name: lambda side=side: score(side) for name, side in sides.items()},
        "train step": {name: lambda step=step: step(x) for name, step in steps.items()}}
    for what, works in tasks.items():
        times = turns(works, repeats)
        print(what)
        for name, each in times.items():
            ratio = statistics.median(each) / statistics.median(times["monge"])
            print(f"  {name:8}{told(each, 2)}  ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dims", type=int, default=64, help="entries of a row")
    parser.add_argument("--width", type=int, default=512, help="units of a hidden layer")
    parser.add_argument("--depth", type=int, default=3, help="hidden layers")
    parser.add_argument("--rows", type=int, default=1024, help="rows of a batch")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each side")
    words = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = (words.dims, words.width, words.depth)
    sides = {"monge": ours(*size)}
    for name, build in PEERS.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed, so it is left out; install monge[bench]")
        else:
            sides[name] = build(*size)
    print(f"D={words.dims}, {words.depth}x{words.width}, {words.rows} rows, {words.repeats} "
          "turns, one thread; weights: "
          + ", ".join(f"{name} {side.weights}" for name, side in sides.items()))
    compare(sides, words.rows, words.dims, words.repeats)


if __name__ == "__main__":
    main()
