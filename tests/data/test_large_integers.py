"""Whole numbers beyond 2^53 come back exactly, or are refused."""

import numpy as np
import pandas as pd
import pytest

import monge
from monge.core.errors import DataError
from monge.data import loading as data

LARGE = 2**60 + 1
"""Odd, so that float64 cannot hold it."""

MARGIN = 50
"""How far samples may lie outside the range of the data: far less than float64 rounds by."""


def sampled(source, tmp_path, *settings):
    """The rows of the data decoded, and samples of a run that was saved and loaded."""
    opened = data.open(source, *settings)
    view = opened.view()
    rows = view.decode(view.split("all").whole().x)
    run = monge.fit("baseline.independent", source, *[f"data.{s}" for s in settings], out=tmp_path)
    samples = monge.load(tmp_path).sample(50, seed=1)
    return rows, samples, run


def frame(missing=False):
    rng = np.random.default_rng(0)
    numbers = [LARGE + int(step) for step in rng.integers(0, 40, 60)]
    column = pd.array([None if missing and i % 7 == 0 else n for i, n in enumerate(numbers)])
    return pd.DataFrame({"id": column.astype("Int64"), "x": rng.normal(size=60)})


@pytest.mark.parametrize("missing", [False, True])
def test_a_column_of_large_integers_comes_back_exactly(tmp_path, missing):
    table = frame(missing)
    seen = set(table["id"].dropna())
    rows, samples, _ = sampled(table, tmp_path / "run")
    kept = table["id"].notna().tolist()
    assert [int(v) for v, k in zip(rows["id"], kept, strict=True) if k] == [
        int(v) for v, k in zip(table["id"], kept, strict=True) if k
    ]
    found = {int(value) for value in samples["id"].dropna()}
    assert found
    assert min(seen) - MARGIN <= min(found)
    assert max(found) <= max(seen) + MARGIN
    assert any(value % 2 for value in found)  # odd ones are no float64


def test_a_csv_with_missing_large_integers_is_read_exactly(tmp_path):
    path = tmp_path / "a.csv"
    frame(missing=True).to_csv(path, index=False)
    codec = data.open(path).fields["id"].codec
    values = np.array([LARGE, None, LARGE + 2], object)
    decoded = codec.decode(codec.encode(values, lambda row: f"row {row}"))
    assert decoded.tolist() == [LARGE, None, LARGE + 2]


@pytest.mark.parametrize("high", [2**63 - 1, -(2**63)])
def test_large_integers_of_a_wide_range_are_refused(high):
    wide = np.array([0, high, *range(30)])
    with pytest.raises(DataError, match="id"):
        data.open(pd.DataFrame({"id": wide, "x": np.arange(32) % 5}))
    with pytest.raises(DataError, match=str(high)):
        data.open(wide)
    with pytest.raises(DataError, match=str(high)):
        data.open(np.stack([wide, wide], 1))


@pytest.mark.parametrize("start", [LARGE, 2**64 - 100])
def test_an_array_of_large_integers_comes_back_exactly(tmp_path, start):
    values = np.array([start + i % 40 for i in range(60)], np.uint64)
    rows, samples, _ = sampled(values, tmp_path / "run")
    assert rows.dtype == np.uint64
    assert np.array_equal(rows, values)
    assert samples.dtype == np.uint64
    assert start - MARGIN <= int(samples.min())
    assert int(samples.max()) <= start + 40 + MARGIN


def test_other_data_far_from_the_run_are_refused():
    codec = data.open(frame()).fields["id"].codec
    with pytest.raises(DataError, match="row 0"):
        codec.encode(np.array([LARGE + 2**30], object), lambda row: f"row {row}")
