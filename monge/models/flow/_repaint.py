r"""Hidden entries by walking a continuous flow (Lugmayr et al. 2022, for straight paths).

From noise at t = 1 to data at t = 0 the velocity moves every entry; what was seen is put back at
each time as $(1 - t) x_o + t z_o$. A step is taken several times, its end being led back to its
start by noise, $x_t = a x_s + b \epsilon$ with $a = (1 - t)/(1 - s)$ and $b^2 = t^2 - a^2 s^2$,
so that what is hidden comes to agree with what was seen. Where this converges the entries agree,
but it is no draw from the exact conditional.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Generator, Tensor

STEPS = 40
"""Times between noise and data."""
AGAIN = 4
"""How often a step is taken."""


def repaint(velocity: Callable[[Tensor, Tensor], Tensor], x: Tensor, seen: Tensor,
            generator: Generator | None) -> Tensor:
    """x (B, D) with what is not seen drawn, by v(x, t)."""
    def noise() -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)

    still, here = noise(), noise()
    times = torch.linspace(1, 0, STEPS + 1, dtype=x.dtype, device=x.device)
    for t, s in itertools.pairwise(times):
        for turn in range(AGAIN if s > 0 and t < 1 else 1):
            if turn:
                a = (1 - t) / (1 - s)
                here = a * here + (t.square() - (a * s).square()).sqrt() * noise()
            here = torch.where(seen, torch.lerp(x, still, t), here)
            here = here + (s - t) * velocity(here, t)
    return torch.where(seen, x, here)
