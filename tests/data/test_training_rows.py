"""Which rows train: few labels, balanced classes, several targets, splits that come with data."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from monge.core.errors import DataError, UsageError
from monge.data import loading as data
from monge.run.run import start

rng = np.random.default_rng(0)


def uneven(n=300):
    """Three classes of 80, 15 and 5 percent."""
    y = np.repeat([0, 1, 2], [n * 80 // 100, n * 15 // 100, n * 5 // 100])
    return rng.normal(size=(n, 2)), y


def counts(rows):
    return rows.whole().x.unique(return_counts=True)[1].tolist()


def test_few_labels_are_balanced_seeded_and_leave_the_rest_alone():
    few = data.open("digits", "labels=100").view(target="label")
    rows = few.split("train")
    assert counts(rows) == [10] * 10
    assert (len(few.training()), few.space.rows) == (100, 100)
    every = data.open("digits").view(target="label")
    assert len(few.split("valid")) == len(every.split("valid"))
    assert len(few.split("train+valid")) == 100 + len(every.split("valid"))
    assert set(rows.index.tolist()) <= set(every.split("train").index.tolist())
    again, other = (
        data.open("digits", "labels=100", f"seed={s}").view(target="label") for s in (0, 1)
    )
    assert torch.equal(again.split("train").index, rows.index)
    assert not torch.equal(other.split("train").index, rows.index)
    assert data.open("digits", "labels=100").fingerprint == data.open("digits").fingerprint
    given = data.open("digits", "labels=20").view(given=["label"])
    assert len(given.split("train")) == 20


def test_a_rare_class_gives_all_it_has():
    source = data.open(uneven(), "labels=60")
    assert counts(source.view(target="y").split("train"))[2] <= 15
    assert len(source.view(target="y").split("train")) == 60


@pytest.mark.parametrize(
    ("settings", "asked", "sentence"),
    [
        (["labels=5"], {"target": "label"}, "labels=5 .* 10 classes"),
        (["labels=50"], {}, "data.labels=50 .*none"),
        (["balance=true"], {}, "data.balance=true .*none"),
    ],
)
def test_words_without_a_label_to_stand_on(settings, asked, sentence):
    with pytest.raises(UsageError, match=sentence):
        data.open("digits", *settings).view(**asked).training()


def test_balance_repeats_rows_until_classes_are_equal():
    source = data.open(uneven(), "balance=true")
    view = source.view(target="y")
    rows = view.training()
    assert len(set(counts(rows))) == 1
    assert set(rows.index.tolist()) == set(view.split("train").index.tolist())
    _, often = rows.index[view.classes("")[rows.index] == 2].unique(return_counts=True)
    assert often.max() - often.min() <= 1
    assert len(view.split("train")) == len(data.open(uneven()).view().split("train"))
    assert rows.batch(torch.arange(4), train=True).row.tolist() == [0, 1, 2, 3]


def test_a_binary_target_is_a_class_too():
    x, y = uneven()
    view = data.open(pd.DataFrame({"x": x[:, 0], "y": y > 0}), "balance=true").view(target="y")
    assert view.space.kind == "binary"
    assert len(set(counts(view.training()))) == 1
    assert counts(
        data.open(pd.DataFrame({"x": x[:, 0], "y": y > 0}), "labels=30")
        .view(target="y")
        .split("train")
    ) == [15, 15]


def frame(n=60):
    x = rng.normal(size=n)
    return pd.DataFrame(
        {
            "a": x,
            "b": rng.normal(size=n),
            "kind": rng.choice(["p", "q"], n),
            "y": x * 2,
            "z": x > 0,
        }
    )


def test_several_targets_are_one_event_given_the_rest():
    source = data.open(frame())
    for target in (["y", "kind"], "y,kind", ("kind", "y,kind")):
        view = source.view(target=target)
        assert set(view.selection.event) == {"y", "kind"}
        assert view.space.kind == "columns"
        assert [c.name for c in view.space.given["inputs"].columns] == ["a", "b", "z"]
    view = source.view(target=["y", "kind"])
    x = view.split("all").whole().x
    pd.testing.assert_frame_equal(
        view.decode(x), frame_of(source)[["y", "kind"]], check_exact=False, rtol=1e-6
    )
    kept = json.loads(json.dumps(view.to_dict()))
    bare = data.open(frame()[["a", "b", "z"]], fields=kept)  # targets need not be there
    view = bare.view(target=["y", "kind"])
    assert not view.split("all", every=True).whole().observed.any()
    with pytest.raises(DataError, match="y, kind"):
        view.split("all")
    with pytest.raises(DataError, match="lacks a"):
        data.open(frame()[["b", "z"]], fields=kept)


def frame_of(source):
    view = source.view()
    return view.decode(view.split("all").whole().x)


def test_targets_of_arrays_stand_side_by_side_where_they_are_single(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        x=rng.normal(size=(30, 3)),
        u=rng.normal(size=30),
        v=rng.normal(size=30),
    )
    source = data.open(tmp_path / "a.npz")
    view = source.view(target=["u", "v"])
    assert (view.space.kind, view.space.shape) == ("real", (2,))
    assert list(view.decode(view.split("all").whole().x).columns) == ["u", "v"]
    with pytest.raises(UsageError, match="x is not a single value"):
        source.view(target=["x", "u"])


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("why", "has no field 'why'"),
        (["y", "why"], "has no field 'why'"),
        ("a,b,kind,y,z", "nothing beside"),
    ],
)
def test_targets_that_are_absent(target, sentence):
    with pytest.raises(UsageError, match=sentence):
        data.open(frame()).view(target=target)


def test_a_constant_target_is_refused_when_a_run_starts(tmp_path):
    for column, value, value_text in (("flat", 3.5, "3.5"), ("word", "same", "same")):
        table = frame().assign(**{column: value})
        with pytest.raises(
            DataError, match=f"target '{column}' is {value_text} in every training row"
        ):
            start("baseline.independent", table, target=column, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    few = data.open(frame().assign(word="same"))
    assert few.view().space.shape == (5,)  # as a part of a table it is written back, not modelled


@pytest.fixture
def numbered(tmp_path):
    """Twenty rows of four columns, of which the third is no input and the last the target."""
    folder = tmp_path / "yacht"
    folder.mkdir()
    np.savetxt(folder / "data.txt", rng.normal(size=(20, 4)).round(3))
    np.savetxt(folder / "index_features.txt", [0, 1])
    np.savetxt(folder / "index_target.txt", [3])
    for k in range(3):
        order = rng.permutation(20)
        np.savetxt(folder / f"index_test_{k}.txt", order[:4])
        np.savetxt(folder / f"index_train_{k}.txt", order[4:])
    return folder


def test_numbered_splits_are_kept(numbered):
    table = np.loadtxt(numbered / "data.txt").astype(np.float32)
    for k in range(3):
        source = data.open(numbered, f"split={k}")
        assert (source.name, source.target, source.has_splits) == ("yacht", "c4", True)
        assert list(source.fields) == ["c1", "c2", "c4"]
        view = source.view(target="c4")
        test = np.loadtxt(numbered / f"index_test_{k}.txt").astype(int)
        rows = view.split("test").whole()
        assert sorted(rows.x.tolist()) == sorted(table[test, 3].tolist())
        assert rows.given["inputs"].x.shape == (4, 2)
        assert len(view.split("train")) + len(view.split("valid")) == 16
    assert torch.equal(
        data.open(numbered).splits["test"], data.open(numbered, "split=0").splits["test"]
    )


def test_numbered_folders_that_are_wrong_get_one_sentence(numbered):
    with pytest.raises(UsageError, match=r"split=7: .*index_train_7.txt; choose from 0 to 2"):
        data.open(numbered, "split=7")
    with pytest.raises(UsageError, match=r"data\.split=1: digits"):
        data.open("digits", "split=1")
    (numbered / "index_test_1.txt").write_text("3\n99\n")
    with pytest.raises(DataError, match=r"index_test_1.txt .* 0 to 19"):
        data.open(numbered, "split=1")
    (numbered / "index_test_1.txt").write_text("three\n")
    with pytest.raises(DataError, match=r"index_\w+.txt"):
        data.open(numbered, "split=1")
    np.savetxt(numbered / "index_target.txt", [2, 3])
    with pytest.raises(DataError, match=r"index_target\.txt .* 2 columns"):
        data.open(numbered)
