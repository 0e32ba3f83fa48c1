"""Keyed noise depends on the seed, the row and the position alone, and is uniform."""

import hashlib

import pytest
import torch

from monge.core.errors import UsageError
from monge.core.keyed_bits import scramble
from monge.core.rng import (
    MAX_SEED,
    check_seed,
    derive_seed,
    keyed_normal,
    keyed_uniform,
    make_generator,
    reseed,
    seed_of,
)


def split_mix(z):
    """The finaliser of SplitMix64 on Python integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_bits_are_those_of_split_mix():
    values = [0, 1, 12345678901234567, 2**63 - 1, -1, -(2**63)]
    found = [int(z) % 2**64 for z in scramble(torch.tensor(values))]
    assert found == [split_mix(z % 2**64) for z in values]


def test_noise_does_not_depend_on_the_rows_beside_it():
    rows = torch.tensor([5, 0, 7])
    whole = keyed_uniform(rows, (2, 3), 4)
    assert whole.shape == (3, 2, 3)
    assert whole.dtype == torch.float64
    for place, row in enumerate(rows):
        assert torch.equal(keyed_uniform(row[None], (2, 3), 4)[0], whole[place])
    assert torch.equal(keyed_uniform(rows, (2,), 4).flatten(), whole.flatten(1)[:, :2].flatten())
    assert not (keyed_uniform(rows, (2, 3), 5) == whole).any()


def test_noise_is_uniform_and_normal():
    u = keyed_uniform(torch.arange(200), (500,))
    assert 0 < float(u.min()) < 1e-3
    assert 1 - 1e-3 < float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=5 * (12e5) ** -0.5)
    assert float(u.var()) == pytest.approx(1 / 12, rel=0.02)
    assert u.unique().numel() == u.numel()
    assert abs(float(torch.corrcoef(u[:, :2].T)[0, 1])) < 0.4
    z = keyed_normal(torch.arange(200), (500,), 3)
    assert float(z.mean()) == pytest.approx(0, abs=0.02)
    assert float(z.std()) == pytest.approx(1, abs=0.02)


def test_seeds():
    assert derive_seed(1, "a") == derive_seed(1, "a") != derive_seed("1", "a")
    assert all(0 <= derive_seed(n) <= MAX_SEED for n in range(50))
    assert len({derive_seed(n) for n in range(50)}) == 50
    assert seed_of(None) == 0
    assert seed_of(make_generator(9)) == 9
    for seed in (0, MAX_SEED):
        check_seed(seed)
    for seed in (-1, MAX_SEED + 1):
        for refuse in (check_seed, make_generator):
            with pytest.raises(UsageError, match=str(seed)):
                refuse(seed)
    with torch.random.fork_rng():
        reseed(3, torch.device("cpu"))
        assert torch.equal(torch.rand(2), torch.rand(2, generator=make_generator(3)))


def test_noise_is_a_counter_hash():
    golden, mask = 0x9E3779B97F4A7C15, 2**64
    rows = torch.tensor([0, 3, 10**12])
    found = keyed_uniform(rows, (2, 2), 7).flatten(1)
    for place, row in enumerate(rows.tolist()):
        start = split_mix((row * golden + derive_seed(7, "rows")) % mask)
        for k in range(4):
            bits = split_mix((start + (k + 1) * golden) % mask) >> 11
            assert found[place, k].item() == (bits + 0.5) * 2.0**-53
    assert (
        derive_seed(7, "rows")
        == int.from_bytes(hashlib.blake2b(b"(7, 'rows')", digest_size=8).digest(), "little") // 2
    )
