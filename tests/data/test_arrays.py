"""Arrays, tensors, pairs, datasets and rows: the type decides what they hold."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from monge.core.errors import DataError
from monge.data import loading as data

rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("array", "kind", "shape", "size"),
    [
        (rng.normal(size=(20, 3)), "real", (3,), 0),
        (rng.normal(size=(20, 3)).astype(np.float32), "real", (3,), 0),
        (rng.normal(size=20), "real", (), 0),
        (rng.integers(0, 2, (20, 3)), "binary", (3,), 0),
        (rng.random((20, 3)) < 0.5, "binary", (3,), 0),
        (rng.integers(-5, 9, (20, 3)), "columns", (3,), 0),
        (rng.integers(-5, 9, 20), "counts", (), 0),
        (rng.integers(0, 256, (20, 3), dtype=np.uint8), "levels", (3,), 256),
        (rng.integers(0, 256, (20, 5, 4), dtype=np.uint8), "levels", (1, 5, 4), 256),
        (rng.integers(0, 256, (20, 3, 5, 4), dtype=np.uint8), "levels", (3, 5, 4), 256),
        (rng.integers(0, 256, (20, 5, 4, 3), dtype=np.uint8), "levels", (3, 5, 4), 256),
        (rng.integers(0, 256, (20, 5, 4)), "levels", (1, 5, 4), 256),
        (rng.integers(0, 2, (20, 5, 4), dtype=np.uint8), "binary", (1, 5, 4), 0),
        (rng.normal(size=(20, 1, 5, 4)), "real", (1, 5, 4), 0),
        (rng.normal(size=(20, 6, 7)), "real", (6, 7), 0),
        (np.array(list("abc") * 5), "label", (), 3),
    ],
)
def test_the_type_of_an_array_says_what_it_holds(array, kind, shape, size):
    view = data.open(array).view()
    assert (view.space.kind, view.space.shape, view.space.size) == (kind, shape, size)
    batch = view.split("all").whole()
    assert batch.x.shape == (len(array), *shape)
    back = view.decode(batch.x)
    assert back.shape == array.shape
    if array.dtype.kind != "U":
        assert back.dtype == array.dtype
        np.testing.assert_allclose(back.astype(float), array.astype(float), rtol=1e-6)
    else:
        assert back.tolist() == array.tolist()


def test_what_was_opened_does_not_change_with_the_array():
    images = rng.integers(0, 256, (5, 4, 4), dtype=np.uint8)
    source = data.open(images)
    before = source.view().split("all").whole().x.clone()
    images[:] = 0
    assert torch.equal(source.view().split("all").whole().x, before)


def test_pairs_have_an_event_and_a_target():
    source = data.open((rng.normal(size=(30, 2)), np.arange(30) % 3))
    assert (source.main, source.target) == (("x",), "y")
    view = source.view(target="y")
    assert view.space.kind == "label"
    assert view.space.given["x"].kind == "real"
    assert view.decode(torch.tensor([2, 0])).tolist() == [2, 0]
    assert (
        data.open((rng.normal(size=(30, 2)), rng.normal(size=30))).fields["y"].space.kind == "real"
    )
    frame = data.open((pd.DataFrame({"a": range(9)}), pd.Series(list("uvw") * 3, name="kind")))
    assert (frame.main, frame.target) == (("a",), "kind")
    assert list(frame.view(target="kind").space.given) == ["inputs"]
    truth = data.open((rng.normal(size=(9, 2)), np.arange(9) % 2 == 0)).view(target="y")
    assert truth.decode(truth.split("all").whole().x).tolist() == (np.arange(9) % 2 == 0).tolist()
    many = data.open((rng.normal(size=(300, 2)), np.arange(300)))
    assert many.fields["y"].space.kind == "counts"


def test_tensors_datasets_and_rows():
    x, y = torch.randn(12, 2), torch.arange(12) % 2
    assert torch.equal(data.open(x).view().split("all").whole().x, x)
    labelled = data.open(TensorDataset(x, y))
    assert labelled.name == "tensordataset"
    assert torch.equal(labelled.view().split("all").whole().x, x)
    assert torch.equal(labelled.view(target="y").split("all").whole().x, y)
    assert data.open(TensorDataset(x)).view().space.shape == (2,)
    assert data.open([[1.5, 2.5]] * 4).view().space.shape == (2,)
    assert data.open(row for row in x).view().space.shape == (2,)
    assert list(data.open([{"a": 1.5, "b": "x"}] * 4).fields) == ["a", "b"]
    assert data.open([("x", 1.5), ("y", 2.5), ("x", 3.5)]).view().space.kind == "columns"
    assert list(data.open({"a": [1.5, 2, 3], "b": [1, 2, 3]}).fields) == ["a", "b"]


def test_missing_entries_of_an_array():
    x = rng.normal(size=(20, 3))
    x[4, 1] = np.nan
    view = data.open(x).view()
    batch = view.split("all").whole()
    assert view.space.missing
    assert (~batch.observed).nonzero().tolist() == [[4, 1]]
    assert batch.x.isfinite().all()


def test_files_of_arrays(tmp_path):
    x, y = rng.normal(size=(20, 3)), np.arange(20) % 2
    np.save(tmp_path / "one.npy", x)
    np.savez(tmp_path / "two.npz", x=x, y=y)
    np.savez(tmp_path / "four.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    assert data.open(tmp_path / "one.npy").name == "one"
    assert data.open(tmp_path / "two.npz").target == "y"
    four = data.open(str(tmp_path / "four.npz"))
    assert four.has_splits
    assert len(four.splits["test"]) == 5


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (np.array([[1.0, 2], [np.inf, 1], [2, 2]]), "x, row 2: inf is not finite"),
        (np.empty((0, 2)), "no rows"),
        (np.empty((4, 0), "U2"), "column"),
        ([{"t": np.datetime64(f"2020-01-0{k}"), "x": {"a": k}} for k in range(1, 6)], "dict"),
        (np.ones((2, 2)), "at least 3"),
        (np.array(5.0), "shape"),
        (np.ones((4, 2)) + 1j, "complex"),
        ((np.ones((4, 2)), np.ones(3)), "x has 4, y has 3"),
        ([[1.0, 2.0], [1.0], [2.0, 3.0]], "have the shapes"),
        ([["a", 1], ["b"], ["c", 3]], "have the shapes"),
        ({"a": [1, 2, 3], "b": [1, 2]}, "equally long"),
        ((pd.DataFrame({"a": [1, 2, 3]}), [1, 2]), "as many rows"),
        (rng.integers(0, 900, (5, 4, 4)), "levels from 0 to 255"),
        (np.zeros((5, 7, 6, 6), np.uint8), "channels"),
        (1e9 + np.array([[0.1], [0.2], [0.3]]), "subtract an offset"),
        (object(), "found a object"),
    ],
)
def test_bad_arrays_get_one_sentence(what, sentence):
    with pytest.raises(DataError, match=sentence):
        data.open(what)


def test_bad_files_of_arrays_get_one_sentence(tmp_path):
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    np.save(tmp_path / "objects.npy", np.array([object()]), allow_pickle=True)
    np.savez(tmp_path / "none.npz")
    for name in ("bad.npy", "objects.npy", "none.npz"):
        with pytest.raises(DataError, match=name):
            data.open(tmp_path / name)
