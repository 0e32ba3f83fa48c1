"""Sampling from PixelCNN and PixelRNN: the row-cached scan against one full pass for each pixel.

One side samples whole images. The other is what public code does, a full pass of the network for
every pixel; since that takes minutes, a few passes at random pixels are timed and multiplied by
the number of pixels, without the cost of sampling. Both run alternately (A/B/A/B) in one process
on one thread, after one unmeasured round. Reported are the median and the spread (lowest to
highest) of CPU time, and the ratio of the medians. At a small size every pixel of both ways is
sampled from the same noise and compared. Last, how the time of a scan grows with the number of
pixels: the exponent of a power law, 1 for a cost that grows as one pass does.

    python -m benchmarks.pixelcnn            # 7 layers of 64 channels, 28 x 28, 16 images
    python -m benchmarks.pixelcnn --nets row diagonal        # PixelRNN alone, 3 layers of 64
"""

from __future__ import annotations

import argparse
import random
import statistics

import torch

from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive.pixelcnn import PixelCNN
from monge.models.autoregressive.pixelrnn import PixelRNN
from monge.nn.autoregressive.pixel import RasterNet
from monge.nn.autoregressive.pixelcnn import GatedPixelCNN, PlainPixelCNN
from monge.nn.autoregressive.pixelrnn import DiagonalBiLSTM, PixelRNNStack, RowLSTM

from .clock import measured, power, show, timed
from .results import keep

NETS: dict[str, RasterNet.Config] = {
    "gated": GatedPixelCNN.Config(width=64, depth=7),
    "plain": PlainPixelCNN.Config(width=64, depth=7),
    "row": RowLSTM.Config(width=64, depth=3),
    "diagonal": DiagonalBiLSTM.Config(width=64, depth=3),
}


def owner(net: RasterNet.Config) -> type[PixelCNN] | type[PixelRNN]:
    return PixelRNN if isinstance(net, PixelRNNStack.Config) else PixelCNN


def built(net: RasterNet.Config, side: int) -> PixelCNN | PixelRNN:
    torch.manual_seed(0)
    space = Space(kind="binary", shape=(1, side, side), size=2, mean=(0.3,), scale=(0.5,))
    model = owner(net).Config(net=net).build(space).eval()
    torch.nn.init.normal_(model.net.out.weight, std=0.1)  # a fresh network ignores the image
    return model


@torch.no_grad()
def compare(net: RasterNet.Config, side: int, rows: int, repeats: int, passes: int) -> None:
    model, pixels, choice = built(net, side), side * side, random.Random(0)
    x = model.sample(rows, generator=make_generator(0))
    full = model.net.stepper(cached=False)(torch.zeros(rows, 0))
    for place, values in enumerate(x.flatten(1).T):
        full.feed(place, 2 * values[:, None] - 1)
    full.parameters(0)
    scans, each, scores = [], [], []
    for _ in range(repeats):
        scans.append(timed(lambda: model.sample(rows, generator=make_generator(1))))
        for place in choice.sample(range(pixels), passes):
            each.append(timed(lambda compute=place: full.parameters(compute)) * pixels)
        scores.append(timed(lambda: model.log_prob(x)))
    name = type(net).__qualname__.partition(".")[0]
    print(
        f"{name} {owner(net).__name__} {net.depth}x{net.width}, {side}x{side}, {rows} images, "
        f"{repeats} rounds, one thread"
    )
    show({"cached": scans, "full passes": each, "one log_prob": scores}, name=name)


def agree(net: RasterNet.Config, side: int, rows: int) -> None:
    model = built(net, side)
    quick, slow = (
        model.sample(rows, None, model.SamplingConfig(cached=cached), make_generator(2))
        for cached in (True, False)
    )
    share = (quick == slow).double().mean()
    print(f"  both ways agree on {share:.4%} of {quick.numel()} pixels ({side}x{side})")


def grow(net: RasterNet.Config, rows: int, repeats: int) -> None:
    sides, times = (14, 28, 56), []
    for side in sides:
        model = built(net, side)
        model.sample(rows, generator=make_generator(0))
        spent = [
            timed(lambda model=model: model.sample(rows, generator=make_generator(1)))
            for _ in range(repeats)
        ]
        times.append(statistics.median(spent))
    exponent = power([side * side for side in sides], times)
    each = ", ".join(
        f"{side}x{side} {1e3 * spent:.0f} ms" for side, spent in zip(sides, times, strict=True)
    )
    print(f"  {each}: pixels to the power {exponent:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=16, help="images sampled at once")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of A/B")
    parser.add_argument("--passes", type=int, default=2, help="full passes timed per round")
    parser.add_argument("--nets", nargs="*", default=list(NETS), choices=list(NETS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for net in (NETS[name] for name in options.nets):
        compare(net, 28, options.rows, options.repeats, options.passes)
        agree(net, 10, options.rows)
        grow(net, options.rows, 3)
    keep("pixelcnn", measured)


if __name__ == "__main__":
    main()
