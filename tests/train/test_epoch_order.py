"""The order of an epoch: one permutation, or blocks and then rows within a window."""

from dataclasses import dataclass

import pytest
import torch

from monge.core.rng import derive_seed, make_generator
from monge.train import batch_sampler
from monge.train.batch_sampler import BatchSequence, EpochBatches, EpochOrder, bucketed


@dataclass
class Rows:
    """As many rows as the order asks about."""

    count: int
    row_bytes: int = 8
    lengths: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.count


@pytest.fixture
def two_levels(monkeypatch):
    """Windows of 4 blocks of 3 rows."""
    for name, value in (("LONG", 1), ("WINDOW", 12), ("FEWEST", 1), ("BLOCKS", 4)):
        monkeypatch.setattr(batch_sampler, name, value)


def order(count: int, seed: int = 0, size: int = 5, **about) -> EpochOrder:
    rows = Rows(count, **about)
    return EpochOrder(rows, size, rows.lengths is not None, (seed, "epoch", 0))


@pytest.mark.parametrize("count", [1, 2, 11, 12, 13, 24, 100, 101])
@pytest.mark.parametrize("size", [1, 5, 12, 40])
def test_every_row_occurs_once(two_levels, count, size):
    found = order(count)
    batches = EpochBatches(count, size)
    rows = torch.cat([found[batches.part(place)] for place in range(batches.count)])
    assert torch.equal(rows.sort().values, torch.arange(count))
    # wherever reading begins, the batch is the same
    fresh = order(count)
    last = batches.part(batches.count - 1)
    assert torch.equal(fresh[last], rows[last])


def test_a_short_epoch_is_one_permutation_as_before():
    generator = make_generator(derive_seed(3, "epoch", 0))
    expected = torch.randperm(1000, generator=generator)
    assert torch.equal(order(1000, 3)[0:1000], expected)
    lengths = torch.arange(1000)[:, None] % 7
    generator = make_generator(derive_seed(3, "epoch", 0))
    expected = bucketed(torch.randperm(1000, generator=generator), lengths, 5, generator)
    assert torch.equal(order(1000, 3, lengths=lengths)[0:1000], expected)


def test_size_alone_decides_about_two_levels():
    assert order(2**24 - 1).block == 0
    assert order(2**24).block == 2**12
    assert order(2**20, row_bytes=2**12).block == 2**16 // 2**8
    assert order(2**20, row_bytes=2**11).block == 0


def test_windows_are_blocks_and_rows_are_uniform_within(two_levels):
    """The probabilities that the documentation states, each within 5 standard errors."""
    trials, count = 4000, 48  # 16 blocks, 4 windows
    place = torch.empty(trials, count, dtype=torch.long)
    for seed in range(trials):
        place[seed, order(count, seed)[0:count]] = torch.arange(count)
    window = place // 12
    assert (window[:, 0] == window[:, 2]).all()  # rows of one block
    together = (window[:, 0] == window[:, 3]).double().mean()
    expected = 3 / 15
    assert abs(together - expected) < 5 * (expected * (1 - expected) / trials) ** 0.5
    share = torch.stack([(place == at).double().mean(0) for at in (0, 13, 47)])  # of each row
    assert (share - 1 / count).abs().max() < 5 * (1 / count / trials) ** 0.5
    first = (place[:, 0] < place[:, 1]).double().mean()  # within a block
    assert abs(first - 0.5) < 5 * 0.5 / trials**0.5


def test_rows_of_similar_length_are_together_in_each_window(two_levels):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 100, (96, 1), generator=generator)
    sequence = BatchSequence(Rows(96, lengths=lengths), EpochBatches(96, 4), 0, 0, True)
    plain = BatchSequence(Rows(96), EpochBatches(96, 4), 0, 0)

    def padding(batches: BatchSequence) -> int:
        rows = [lengths[batches.index(k), 0] for k in range(24)]
        return sum(int((some.max() - some).sum()) for some in rows)

    assert padding(sequence) < 0.6 * padding(plain)


def test_a_long_order_takes_little_memory():
    found = order(10**9)
    assert found.starts.numel() + found.sizes.numel() + found.ends.numel() < 10**6
    some = found[999_999_000:1_000_000_000]
    assert len(some.unique()) == 1000
    assert found.window[1].numel() <= 2**20 + 2**8
