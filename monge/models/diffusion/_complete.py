r"""What is hidden, noisy or to be changed, drawn by noising what is known.

Replacement (Song et al. 2021) puts $\alpha_s y + \sigma_s n$ where y was seen after each step down
to s. What is hidden was then drawn without regard to it, so RePaint (Lugmayr et al. 2022) goes
back to t by the forward step $q(z_t | z_s)$ and down again, several times. Where this converges
the entries agree, but it is no draw from the exact conditional.

A datum with noise of known deviation is a z_t at the t whose $\sigma / \alpha$ is that deviation,
and sampling from there draws from p(x | noisy x). A datum that is noised to t on purpose and
brought back keeps what noise at t leaves of it (SDEdit: Meng et al. 2022).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from ...core.error import DataError
from ...prob.schedule import Noising
from ._samplers import Path, Predict, ancestral, noise_like


def repaint(predict: Predict, noising: Noising, times: Tensor, y: Tensor, seen: Tensor,
            again: int, jump: int, generator: Generator | None) -> Path:
    """z and the estimate of x (B, D) along falling times, with what is seen of y put in its
    place; stretches of `jump` steps are gone through `again` times."""
    def known(z: Tensor, t: Tensor) -> Tensor:
        noisy = noising.alpha(t) * y + noising.sigma(t) * noise_like(y, generator)
        return torch.where(seen, noisy, z)

    z = known(noising.spread(times[0]) * noise_like(y, generator), times[0])
    for a, b in itertools.pairwise(route(len(times) - 1, again, jump)):
        t, s = times[a], times[b]
        if b < a:  # back towards noise
            gone = noising.step(t, s).forward
            z = noising.alpha(s) / noising.alpha(t) * z + gone.sqrt() * noise_like(z, generator)
            continue
        told = predict(z, t.expand(len(z)))
        z = known(ancestral(told, noising, z, s, t, noise_like(z, generator)), s)
        yield z, told.x0


def route(steps: int, again: int, jump: int) -> Iterator[int]:
    """Places 0 (noise) to `steps` (data) in the order they are visited."""
    yield 0
    for start in range(0, steps, jump):
        end = min(start + jump, steps)
        for turn in range(again):
            if turn:
                yield start
            yield from range(start + 1, end + 1)


def matched(noising: Noising, y: Tensor, deviation: Tensor, grid: int,
            generator: Generator | None) -> tuple[Tensor, float]:
    """z_t and t of noisy y (B, D) whose entries have noise of deviations (D,): those that have
    less than the noisiest, or than the next time of a grid, are given what they lack."""
    most = deviation.amax()
    level = (-2 * most.log()).to(y)
    top, low = noising.log_snr(y.new_tensor([0.0, 1.0]))
    if not low <= level <= top:
        least, largest = (-top / 2).exp().item(), (-low / 2).exp().item()
        raise DataError(f"noise of {most:.3g} deviations of the data has no time in this "
                        f"schedule; give between {least:.2g} and {largest:.2g} deviations")
    t = noising.time(level)
    t = (t * grid).ceil().clamp_min(1) / grid if grid else t
    whole = torch.maximum((-noising.log_snr(t)).exp(), most.square())
    lack = (whole - deviation.square()).sqrt()
    return noising.alpha(t) * (y + lack * noise_like(y, generator)), t.item()


def noised(noising: Noising, y: Tensor, t: float, grid: int, generator: Generator | None
           ) -> tuple[Tensor, float]:
    """z_t of y (B, D), and t, which is the nearest of a grid."""
    t = max(1, round(t * grid)) / grid if grid else t
    here = y.new_tensor(t)
    return noising.alpha(here) * y + noising.sigma(here) * noise_like(y, generator), t
