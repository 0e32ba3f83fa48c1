"""Sampling from MADE: the degree-sorted cached pass against one full pass for each entry.

Both sides sample the same rows from the same noise with the same weights, in one process,
alternately (A/B/A/B), after one unmeasured round; the larger setting repeats its slow side less
often. Reported are the median and the spread (lowest to highest) of the CPU time of one thread,
their ratio, and the share of entries on which both agree: every one but those where rounding
decides. The time of an average full pass over the same rows is shown for comparison. A full pass
multiplies by whole masked matrices, as public code does; `log_prob` leaves out most of the zeros.
Last, how the cost grows with the number of entries D: the exponent of a power law over D =
64..1024 for cached sampling and for one full pass, which should be similar.

    python -m benchmarks.sampling            # D=64, 3x512, 1024 rows
    python -m benchmarks.sampling --large    # D=784, 1x1000 too, which takes minutes
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch

from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive.made import MADE

from .clock import alternate, measured, power, show, timed
from .results import keep


def built(dims: int, width: int, depth: int, kind: str) -> MADE:
    space = Space(kind=kind, shape=(dims,), mean=(0.5,), scale=(0.5,))  # type: ignore[arg-type]
    torch.manual_seed(0)
    config = MADE.Config(width=width, depth=depth, residual=False, direct=False, components=1)
    return config.build(space).eval()


def compare(dims: int, width: int, depth: int, rows: int, repeats: int, kind: str) -> None:
    model = built(dims, width, depth, kind)
    ways = {
        "cached": MADE.SamplingConfig(cached=True),
        "full passes": MADE.SamplingConfig(cached=False),
    }
    one, other = (model.sample(rows, None, how, make_generator(1)) for how in ways.values())
    agree = (one - other).abs().le(1e-3).double().mean()
    times = alternate(
        {
            name: partial(model.sample, rows, None, how, make_generator(1))
            for name, how in ways.items()
        },
        repeats,
        warm=0,
    )
    with torch.no_grad():
        times |= alternate({"one log_prob": lambda: model.log_prob(one)}, 5)
    print(
        f"MADE D={dims}, {depth}x{width}, {kind}, {rows} rows, {repeats} rounds, one thread; "
        f"the samples agree on {agree:.4%} of the entries"
    )
    show(times, name=f"D{dims} {kind}")


def grow(width: int, rows: int, repeats: int) -> None:
    sizes = (64, 128, 256, 512, 1024)
    samples, passes = [], []
    for dims in sizes:
        model = built(dims, width, 1, "binary")
        x = model.sample(rows, generator=make_generator(0))
        full = model.stepper(0, cached=False)(torch.zeros(rows, 0))
        for place, values in enumerate(x.T):
            full.feed(place, 2 * values[:, None] - 1)
        with torch.no_grad():
            samples.append(
                statistics.median(
                    timed(lambda model=model: model.sample(rows, generator=make_generator(1)))
                    for _ in range(repeats)
                )
            )
            passes.append(
                statistics.median(
                    timed(lambda full=full: full.parameters(0)) for _ in range(repeats)
                )
            )
    print(f"MADE 1x{width}, binary, {rows} rows, D = {', '.join(map(str, sizes))}")
    for name, times in (("cached", samples), ("full pass", passes)):
        each = ", ".join(f"{1e3 * spent:.1f}" for spent in times)
        print(f"  {name:12}{each} ms: D to the power {power(sizes, times):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1024, help="rows sampled at once")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of A/B")
    parser.add_argument("--large", action="store_true", help="also D=784 with 1000 units")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for kind in ("binary", "real"):
        compare(64, 512, 3, options.rows, options.repeats, kind)
    grow(1000, options.rows, options.repeats)
    if options.large:
        compare(784, 1000, 1, options.rows, 2, "binary")
    keep("sampling", measured)


if __name__ == "__main__":
    main()
