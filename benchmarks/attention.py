"""Causal attention: linear in chunks against torch's softmax kernel, forward, one thread.

Both sides get the same queries, keys and values, laid out as a layer makes them. They run turn
about (A/B/A/B) in one process after an unmeasured round; reported are medians of CPU time and the
ratio. The two are different models: what is compared is their cost over the length n, and where
they cross. A second table shows what the size of a chunk does at the greatest length.

    python -m benchmarks.attention           # 4 heads of 32, then 8 heads of 64
"""

from __future__ import annotations

import argparse
import statistics

import torch
import torch.nn.functional as F
from torch import Tensor

from monge.nn.attention.linear import CHUNK, causal_linear_attention

from .clock import alternate
from .results import keep

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
CHUNKS = (16, 32, 64, 128, 256)


def parts(heads: int, width: int, steps: int) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(1, steps, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)


@torch.no_grad()
def compare(heads: int, width: int, repeats: int) -> float:
    """Prints times; how many times faster linear attention is at the largest length."""
    print(f"{heads} heads of {width}, causal, forward, one thread; median of {repeats}")
    crossing = None
    for steps in LENGTHS:
        q, k, v = parts(heads, width, steps)
        times = alternate(
            {
                "softmax": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(
                    q, k, v, is_causal=True
                ),
                "linear": lambda q=q, k=k, v=v: causal_linear_attention(q, k, v),
            },
            repeats,
        )
        soft, linear = (1e3 * statistics.median(each) for each in times.values())
        crossing = crossing or (steps if linear < soft else None)
        print(
            f"  n={steps:5}  softmax {soft:8.2f} ms  linear {linear:8.2f} ms  ratio "
            f"{soft / linear:5.1f}"
        )
    print(f"  linear is the quicker from n={crossing} on")
    times = alternate(
        {f"{c}": lambda c=c: causal_linear_attention(q, k, v, c) for c in CHUNKS}, repeats
    )
    each = [f"{c}: {1e3 * statistics.median(spent):.1f} ms" for c, spent in times.items()]
    print(f"  chunks at n={steps}: {', '.join(each)}; {CHUNK} is used")
    return soft / linear


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="rounds of A/B")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = ((4, 32), (8, 64))
    found = {f"heads_{heads}": compare(heads, width, options.repeats) for heads, width in sizes}
    keep("attention", found)


if __name__ == "__main__":
    main()
