"""Sampling from WaveNet: queues against recomputing what is already known.

One side samples whole sequences step by step, each layer with a queue. The others recompute for
each step: all that was sampled so far (`cached=false`, what public code does), or only as much of
it as the stack reaches, the least that a network without queues must do. Since recomputing takes
long, steps spread over the sequence are timed and multiplied. All run alternately in one process
on one thread, after one unmeasured round. Reported are the median and the spread (lowest to
highest) of CPU time, and the ratios of the medians. Then a short sequence is sampled both ways
from the same noise and compared; last, how the time grows with the length.

    python -m benchmarks.wavenet             # 10 layers of 32 channels, 1000 steps, 1 and 16 rows
"""

from __future__ import annotations

import argparse
import statistics

import torch

from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models._sequence_sampling import row_groups, unobserved_rows
from monge.models.autoregressive.wavenet import WaveNet
from monge.nn import dilated

from .clock import measured, power, show, timed
from .results import keep


def built(layers: int, width: int, steps: int) -> WaveNet:
    torch.manual_seed(0)
    space = Space(
        kind="levels",
        shape=(steps,),
        size=256,
        varies=True,
        mean=(128.0,),
        scale=(40.0,),
        high=(255.0,),
    )
    net = dilated.WaveNetStack.Config(layers=layers, width=width)
    return WaveNet.Config(net=net, levels="categorical").build(space).eval()


@torch.no_grad()
def compare(model: WaveNet, steps: int, rows: int, repeats: int, passes: int) -> None:
    options, net = WaveNet.SamplingConfig(steps=steps), model.net
    assert isinstance(net, dilated.DilatedStack)
    plain = WaveNet.SamplingConfig(steps=steps, cached=False)
    (state,) = row_groups(
        model, unobserved_rows(model, rows, None, plain), plain, make_generator(1)
    )
    state.x.copy_(model.sample(rows, None, options, make_generator(1)).T)
    past = torch.randint(0, 256, (rows, net.reach)).float()
    spread = range(steps // (2 * passes), steps, max(steps // passes, 1))

    def within(step: int) -> None:
        params = net.window(model.entries(past, torch.zeros(1, dtype=torch.long)))[:, 0]
        state.homes[0][0].sample(params + model.offset[0], state.noise[step], 0)

    times: dict[str, list[float]] = {
        "queues": [],
        "recomputing all": [],
        "recomputing the reach": [],
    }
    for _ in range(repeats + 1):
        times["queues"].append(timed(lambda: model.sample(rows, None, options, make_generator(1))))
        for name, one in (("recomputing all", state.advance), ("recomputing the reach", within)):
            each = [timed(lambda t=t, one=one: one(t)) for t in spread]
            times[name].append(statistics.mean(each) * steps)
    print(
        f"WaveNet {len(net.blocks)}x{net.inputs}, reach {net.reach}, {steps} steps, {rows} rows,"
        f" {repeats} rounds, one thread"
    )
    times = {name: found[1:] for name, found in times.items()}
    notes = {"queues": f"{statistics.median(times['queues']) / steps * 1e6:.0f} us per step"}
    show(times, notes, name=f"rows {rows}")


def agree(model: WaveNet, steps: int, rows: int) -> None:
    model = model.double()
    quick, slow = (
        model.sample(
            rows, None, WaveNet.SamplingConfig(steps=steps, cached=cached), make_generator(2)
        )
        for cached in (True, False)
    )
    share = (quick == slow).double().mean()
    print(f"  both ways agree on {share:.4%} of {quick.numel()} steps")
    model.float()


def grow(model: WaveNet, rows: int) -> None:
    lengths = [250, 500, 1000, 2000]
    model.sample(rows, None, WaveNet.SamplingConfig(steps=50), make_generator(0))
    times = [
        min(
            timed(
                lambda n=n: model.sample(
                    rows, None, WaveNet.SamplingConfig(steps=n), make_generator(0)
                )
            )
            for _ in range(3)
        )
        for n in lengths
    ]
    print(
        f"  time grows as length^{power(lengths, times):.2f} from {lengths[0]} to "
        f"{lengths[-1]} steps"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--passes", type=int, default=10)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model = built(chosen.layers, chosen.width, chosen.steps)
    for rows in chosen.rows:
        compare(model, chosen.steps, rows, chosen.repeats, chosen.passes)
    agree(model, 60, 4)
    grow(model, chosen.rows[0])
    keep("wavenet", measured)


if __name__ == "__main__":
    main()
