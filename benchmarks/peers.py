"""MADE with Gaussian conditionals beside the one-transform MAF of zuko and of nflows.

All three are the same model: a masked network of the same width and depth whose outputs are a mean
and a scale for each entry. Measured are `log_prob` without gradients and a step of training
(forward, backward, Adam). The sides alternate (A/B/C/A/B/C) in one process on one thread, after
unmeasured rounds; reported are the median and the spread (lowest to highest) of CPU time and the
ratio of the medians, peer by ours. The numbers of weights are printed to show that the sizes
agree.

    python -m benchmarks peers
    build/bench/flows/bin/python -m benchmarks.peers            # D=64, 3x512, 1024 rows
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from monge.core.space import Space
from monge.models.autoregressive.made import MADE

from .clock import Work, alternate, ratios, show
from .results import keep
from .sides import installed, stepper, weights


@dataclass(frozen=True)
class Side:
    """A model under measurement."""

    module: nn.Module
    log_prob: Callable[[Tensor], Tensor]


def ours(dims: int, width: int, depth: int) -> Side:
    space = Space(kind="real", shape=(dims,), low=(-5.0,), high=(5.0,))
    model = MADE.Config(
        width=width, depth=depth, residual=False, direct=False, components=1
    ).build(space)
    return Side(model, model.log_prob)


def zuko(dims: int, width: int, depth: int) -> Side:
    from zuko.flows import MAF

    flow = MAF(dims, 0, transforms=1, hidden_features=[width] * depth)
    return Side(flow, lambda x: flow().log_prob(x))


def nflows(dims: int, width: int, depth: int) -> Side:
    from nflows.flows import MaskedAutoregressiveFlow

    flow = MaskedAutoregressiveFlow(
        dims, width, num_layers=1, num_blocks_per_layer=depth - 1, use_residual_blocks=False
    )
    return Side(flow, flow.log_prob)


PEERS = {"zuko": zuko, "nflows": nflows}


def compare(sides: dict[str, Side], rows: int, dims: int, repeats: int) -> None:
    x = torch.randn(rows, dims)

    @torch.no_grad()
    def score(side: Side) -> Tensor:
        return side.log_prob(x)

    tasks: dict[str, dict[str, Work]] = {
        "log_prob": {name: lambda side=side: score(side) for name, side in sides.items()},
        "train step": {
            name: stepper(side.module, lambda side=side: -side.log_prob(x))
            for name, side in sides.items()
        },
    }
    found = {}
    for what, works in tasks.items():
        print(what)
        times = alternate(works, repeats, warm=3)
        show(times, digits=2)
        for name, ratio in ratios(times).items():
            found[f"{what.replace(' ', '_')}_{name}"] = ratio
    keep("peers", found, peers=PEERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dims", type=int, default=64, help="entries of a row")
    parser.add_argument("--width", type=int, default=512, help="units of a hidden layer")
    parser.add_argument("--depth", type=int, default=3, help="hidden layers")
    parser.add_argument("--rows", type=int, default=1024, help="rows of a batch")
    parser.add_argument("--repeats", type=int, default=15, help="rounds of each side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = (options.dims, options.width, options.depth)
    sides = {"monge": ours(*size)}
    sides |= {name: build(*size) for name, build in PEERS.items() if installed(name)}
    print(
        f"D={options.dims}, {options.depth}x{options.width}, {options.rows} rows, "
        f"{options.repeats} rounds, one thread; weights: "
        + ", ".join(f"{name} {weights(side.module)}" for name, side in sides.items())
    )
    compare(sides, options.rows, options.dims, options.repeats)


if __name__ == "__main__":
    main()
