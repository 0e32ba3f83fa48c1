"""A~B: two unpaired datasets as one dataset."""

import numpy as np
import pytest
import torch

from monge.core.errors import DataError, UsageError
from monge.data import loading as data


def save(folder, name, n, dims=2, start=0):
    rows = start + np.arange(n * dims, dtype=np.float32).reshape(n, dims)
    np.save(folder / f"{name}.npy", rows)
    return rows


@pytest.fixture
def name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path, "a", 50)
    save(tmp_path, "b", 80, start=1000)
    return "a.npy~b.npy"


def test_it_has_a_source_and_a_target_of_equal_length(name):
    source = data.open(name)
    assert list(source.fields) == ["source", "target"]
    assert (source.main, source.target, source.name) == (("source",), "target", "a-to-b")
    assert len(source) == 50
    view = source.view(target="target")
    assert view.event.name == "target"
    assert list(view.space.given) == ["source"]
    assert view.space.rows == len(source.splits["train"])
    train = view.split("train").whole()
    torch.testing.assert_close(view.space.statistic("mean"), train.x.mean(0))


def test_no_row_is_taken_twice_and_splits_are_those_of_each_side(name):
    both, sides = data.open(name), [data.open("a.npy"), data.open("b.npy")]
    for split in ("train", "valid", "test"):
        rows = both.view(target="target").split(split).whole()
        found = [rows.given["source"].x, rows.x]
        for side, values in zip(sides, found, strict=True):
            own = {tuple(row) for row in side.view().split(split).whole().x.tolist()}
            taken = [tuple(row) for row in values.tolist()]
            assert len(set(taken)) == len(taken)
            assert set(taken) <= own


def test_the_order_is_random_and_depends_on_the_seed(name):
    def rows(*settings):
        return data.open(name, *settings).view(target="target").split("train").whole()

    first, again, other = rows(), rows(), rows("seed=1")
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    ranks = torch.stack([first.given["source"].x[:, 0], first.x[:, 0]])
    assert abs(torch.corrcoef(ranks)[0, 1]) < 0.5
    assert data.open(name).fingerprint == data.open(name).fingerprint


def test_transforms_belong_to_their_side():
    source = data.open("digits+resize4~digits", "rows=200")
    assert source.fields["source"].space.shape == (1, 4, 4)
    assert source.fields["target"].space.shape == (1, 8, 8)


def test_it_is_read_in_the_terms_of_a_run(name, tmp_path):
    terms = data.open(name).view(target="target").to_dict()
    save(tmp_path, "c", 9, start=5)
    other = data.open("c.npy~b.npy", fields=terms)
    assert list(other.fields) == ["source", "target"]
    alone = data.open("c.npy", fields=terms).view(target="target").split("all", every=True).whole()
    np.testing.assert_array_equal(alone.given["source"].x.numpy(), np.load("c.npy"))
    with pytest.raises(UsageError, match="unpaired"):
        data.open(name, fields=data.open("a.npy").view().to_dict())


def test_a_table_is_no_side(name, tmp_path):
    (tmp_path / "t.csv").write_text("age,size\n" + "1,2.5\n3,4.5\n" * 20)
    with pytest.raises(DataError, match="t has 2 columns"):
        data.open("t.csv~a.npy")


def test_a_path_may_hold_the_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path, "x~y", 20)
    assert list(data.open("x~y.npy").fields) == ["x"]
    with pytest.raises(DataError, match="'nothing'"):
        data.open("nothing~moons")
