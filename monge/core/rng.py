"""Random numbers: derived seeds, generators, and noise keyed by (seed, row, position).

A likelihood bound is random. With noise from a stream, the value of a row would depend on the rows
before it; with keyed noise it does not depend on batching.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from .errors import MAX_SEED, UsageError, shown
from .keyed_bits import derive_seed as derive_seed
from .keyed_bits import keyed_bits


def check_seed(seed: int) -> None:
    """Refuse a seed that no generator takes."""
    if not 0 <= seed <= MAX_SEED:
        raise UsageError(
            f"expected a seed from 0 to {MAX_SEED}, found {shown(seed)}; choose another"
        )


def make_generator(seed: int, device: torch.device | str = "cpu") -> Generator:
    """A generator at the start of the stream of `seed`."""
    check_seed(seed)
    return torch.Generator(device).manual_seed(seed)


def reseed(seed: int, device: torch.device) -> None:
    """Put torch's global generators at the start of the stream of `seed`: the CPU's and the
    device's. `torch.manual_seed` would visit every kind of device and cost a millisecond."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def seed_of(generator: Generator | None) -> int:
    """The seed of keyed noise: the generator's initial seed, not its position; 0 without one."""
    return 0 if generator is None else generator.initial_seed()


def keyed_uniform(rows: Tensor, shape: Sequence[int], seed: int = 0) -> Tensor:
    """Uniforms in (0, 1), float64, (B, *shape), keyed by (seed, row, position)."""
    positions = torch.arange(math.prod(shape), device=rows.device)
    bits = keyed_bits(rows.long(), positions, seed)  # (B, prod(shape))
    return ((bits.double() + 0.5) * 2.0**-53).reshape(len(rows), *shape)


def keyed_normal(rows: Tensor, shape: Sequence[int], seed: int = 0) -> Tensor:
    """Standard normals, float64, (B, *shape), keyed by (seed, row, position)."""
    return torch.special.ndtri(keyed_uniform(rows, shape, seed))
