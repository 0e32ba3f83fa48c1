"""Rows of unequal length: padding, lengths, statistics, fingerprints, other data."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monge.core.errors import DataError
from monge.data import loading as data
from monge.data.packed import Ragged, missing_counts
from monge.run.run import start

rng = np.random.default_rng(0)


def walks(lengths, *step, dtype=np.float64):
    return [rng.normal(3, 2, (n, *step)).astype(dtype) for n in lengths]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
@settings(max_examples=60, deadline=None)
def test_padding_is_zero_after_the_end_of_each_row(lengths, drawn):
    rows = [torch.arange(1, n + 1) + 10 * i for i, n in enumerate(lengths)]
    ragged = Ragged.join(rows, base=5)
    index = drawn.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))
    x, length = ragged.pad(torch.tensor(index))
    assert x.shape == (len(index), max(lengths[i] for i in index))
    for place, i in enumerate(index):
        assert length[place] == lengths[i]
        assert x[place, : lengths[i]].tolist() == (rows[i] + 5.0).tolist()
        assert not x[place, lengths[i] :].any()
    some = ragged[torch.tensor(index)]
    assert torch.equal(some.steps, torch.cat([rows[i] for i in index]))


@pytest.mark.parametrize("step", [(), (2,)])
def test_arrays_of_unequal_length_are_sequences(step):
    rows = walks([5, 9, 3, 7, 6, 8], *step)
    source = data.open(rows)
    view = source.view()
    assert (view.space.kind, view.space.shape, view.space.varies) == ("real", (9, *step), True)
    batch = view.split("all").batch(torch.tensor([2, 0]))
    assert batch.x.shape == (2, 5, *step)  # the longest of these two
    assert batch.length.tolist() == [3, 5]
    assert np.array_equal(view.decode(batch.x)[0][:3], rows[2].astype(np.float32))
    train = np.concatenate([rows[i] for i in source.splits["train"]]).astype(np.float32)
    np.testing.assert_allclose(view.space.mean, np.atleast_1d(train.mean(0, np.float64)))
    np.testing.assert_allclose(view.space.scale, np.atleast_1d(train.std(0, np.float64)))
    np.testing.assert_allclose(view.space.low, np.atleast_1d(train.min(0)))
    assert view.space.rows == len(source.splits["train"])


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (lambda n: rng.integers(0, 2, n), "binary"),
        (lambda n: rng.integers(-50, 900, n), "counts"),
        (lambda n: rng.integers(0, 256, n, dtype=np.uint8), "levels"),
        (lambda n: torch.randn(n), "real"),
        (lambda n: rng.random(n) < 0.5, "binary"),
    ],
)
def test_kinds_and_back(rows, kind):
    values = [rows(n) for n in (40, 20, 30, 10)]
    view = data.open(values).view()
    assert view.space.kind == kind
    batch = view.split("all").whole()
    for found, length, value in zip(view.decode(batch.x), batch.length, values, strict=True):
        assert found.dtype == np.asarray(value).dtype
        assert np.array_equal(found[:length], np.asarray(value))


def test_pairs_and_datasets_may_be_uneven():
    rows, labels = walks([5, 9, 3, 7, 6, 8]), [0, 1, 0, 1, 1, 0]
    for what in ((rows, labels), list(zip(rows, labels, strict=True))):
        view = data.open(what).view(target="y")
        batch = view.split("all").whole()
        assert batch.x.tolist() == labels
        assert batch.given["x"].length.tolist() == [5, 9, 3, 7, 6, 8]
        assert batch.length is None
        part = view.split("all").batch(torch.tensor([2, 3]))
        assert part.given["x"].x.shape == (2, 7)


def test_equal_lengths_stay_vectors_and_lists_are_not_guessed_at():
    assert data.open(walks([4, 4, 4])).view().space.varies is False
    with pytest.raises(DataError, match=r"\(1,\), \(2,\)"):
        data.open([[1.0, 2.0], [1.0], [2.0, 3.0]])
    with pytest.raises(DataError, match="have the shapes"):
        data.open([np.ones((3, 2)), np.ones((4, 3)), np.ones((3, 2))])
    with pytest.raises(DataError, match="x, row 2"):
        data.open([np.ones(3), np.ones(0), np.ones(2)])
    with pytest.raises(DataError, match="x, row 3: inf"):
        data.open([np.ones(3), np.ones(4), np.array([1.0, np.inf])])


def test_the_fingerprint_knows_where_rows_end():
    a, b = np.arange(5.0), np.arange(5.0, 9.0)
    joined = np.concatenate([a, b])
    prints = {
        data.open(rows).fingerprint
        for rows in ([a, b, a], [joined[:4], joined[4:], a], [b, a, a], [a, b + 1e-3, a])
    }
    assert len(prints) == 4
    assert data.open([a, b, a]).fingerprint == data.open([a.copy(), b, a], "seed=4").fingerprint


def test_rows_can_be_thinned_and_holes_are_unseen():
    rows = walks([5, 9, 3, 7, 6, 8, 4, 5])
    rows[2][1] = np.nan
    source = data.open(rows)
    assert source.missing("x") == 1
    assert missing_counts(source.tensors["x"]).tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    view = source.view()
    assert view.space.missing
    batch = view.split("all").batch(torch.tensor([2, 1]))
    assert batch.observed_mask[0].tolist() == [True, False] + [True] * 7
    assert batch.x[0, 1] == pytest.approx(view.space.mean[0])
    assert len(data.open(rows, "missing=drop")) == 7
    thin = data.open(rows, "rows=4", "missing=drop")
    assert len(thin) == 4
    assert thin.view().split("all").whole().length.max() <= 9


def test_other_rows_in_the_terms_of_a_run():
    rows = [rng.integers(0, 200, n, dtype=np.uint8) for n in (5, 9, 3, 7, 6, 8)]
    kept = json.loads(json.dumps(data.open(rows).view().to_dict()))
    even = data.open([row[:3] for row in rows], fields=kept)  # equally long, and so an array
    batch = even.view().split("all").whole()
    assert batch.length.tolist() == [3] * 6
    assert batch.x[0].tolist() == rows[0][:3].tolist()
    low = data.open([np.array([0, 1, 1]), np.array([1, 0]), np.array([0])], fields=kept)
    assert low.view().space.kind == "levels"
    with pytest.raises(DataError, match=r"300 .* 0 to 255"):
        data.open([np.array([0, 300]), np.array([1, 0, 2]), np.array([0])], fields=kept)
    with pytest.raises(DataError, match=r"0\.5 "):
        data.open([np.array([0, 0.5]), np.array([1, 0, 2.0])], fields=kept)
    with pytest.raises(DataError, match=r"10 steps .* 9"):
        data.open([np.ones(10, int), np.ones(3, int)], fields=kept)
    with pytest.raises(DataError, match="steps of shape"):
        data.open([np.ones((3, 2), int), np.ones((4, 2), int)], fields=kept)


def test_batches_of_a_split_keep_length_under_indexing():
    batch = data.open(walks([5, 9, 3, 7, 6, 8])).view().split("all").whole()
    part = batch[torch.tensor([2, 4])]
    assert part.length.tolist() == [3, 6]
    assert [len(piece) for piece in batch.chunk(2)] == [3, 3]
    assert batch.double().length.dtype == torch.int64


def test_models_that_take_one_length_say_who_takes_more(tmp_path):
    rows = [rng.normal(size=n) for n in (5, 9, 3, 7, 6, 8)]
    with pytest.raises(
        DataError,
        match=r"made .* x .*autoregressive\.wavenet",
    ):
        start("made", rows, out=tmp_path / "run")
    with pytest.raises(DataError, match=r"mlp .* x "):
        start("predict.mlp", (rows, [0, 1, 0, 1, 0, 1]), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
