"""Random numbers: derived seeds, generators, and noise keyed by (seed, row, position).

A likelihood bound is random. With noise from a stream, the value of a row would depend on the rows
before it; with keyed noise it does not depend on batching. The keyed generator is a counter hash
(the finaliser of SplitMix64) on int64 tensors.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from .errors import MAX_SEED, UsageError, shown

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer


def check_seed(seed: int) -> None:
    """Refuse a seed that no generator takes."""
    if not 0 <= seed <= MAX_SEED:
        raise UsageError(
            f"expected a seed from 0 to {MAX_SEED}, found {shown(seed)}; choose another"
        )


def derive_seed(*keys: int | str) -> int:
    """A seed from keys: the same keys give the same seed on every machine."""
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


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
    start = scramble(rows.long() * GOLDEN + derive_seed(seed, "rows"))
    state = scramble(start[:, None] + (positions + 1) * GOLDEN)  # (B, prod(shape))
    bits = (state >> 11) & ((1 << 53) - 1)
    return ((bits.double() + 0.5) * 2.0**-53).reshape(len(rows), *shape)


def keyed_normal(rows: Tensor, shape: Sequence[int], seed: int = 0) -> Tensor:
    """Standard normals, float64, (B, *shape), keyed by (seed, row, position)."""
    return torch.special.ndtri(keyed_uniform(rows, shape, seed))


def scramble(z: Tensor) -> Tensor:
    """The finaliser of SplitMix64; shifts are logical, products wrap."""
    z = (z ^ logical_shift(z, 30)) * -4658895280553007687
    z = (z ^ logical_shift(z, 27)) * -7723592293110705685
    return z ^ logical_shift(z, 31)


def logical_shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)
