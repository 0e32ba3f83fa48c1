"""Seeds from keys, and random bits that are a function of (seed, row, position).

The bits are those of a counter hash, the finaliser of SplitMix64, on int64: arrays of numpy and
tensors of torch give the same, as both wrap products.
"""

from __future__ import annotations

import hashlib
from typing import Any

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer


def derive_seed(*keys: int | str) -> int:
    """A seed from keys: the same keys give the same seed on every machine."""
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def keyed_bits(rows: Any, positions: Any, seed: int) -> Any:
    """53 random bits, int64, (B, P), for each of the rows (B,) and positions (P,), int64."""
    start = scramble(rows * GOLDEN + derive_seed(seed, "rows"))
    state = scramble(start[:, None] + (positions + 1) * GOLDEN)  # (B, P)
    return (state >> 11) & ((1 << 53) - 1)


def scramble(z: Any) -> Any:
    """The finaliser of SplitMix64; shifts are logical, products wrap."""
    z = (z ^ logical_shift(z, 30)) * -4658895280553007687
    z = (z ^ logical_shift(z, 27)) * -7723592293110705685
    return z ^ logical_shift(z, 31)


def logical_shift(z: Any, bits: int) -> Any:
    return (z >> bits) & ((1 << (64 - bits)) - 1)
