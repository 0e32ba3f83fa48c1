"""Sources and views: splits, statistics, fingerprints, names, and what a run sees."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monge.core.errors import DataError, RunError, UsageError
from monge.data import loading as data
from monge.data.builtin import catalogue
from monge.data.dataset import View

rng = np.random.default_rng(0)


@given(st.integers(3, 60), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_splits_are_disjoint_cover_and_are_seeded(n, seed):
    x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    source = data.open(x, f"seed={seed}")
    splits = source.splits
    assert torch.cat(list(splits.values())).sort().values.tolist() == list(range(n))
    assert min(map(len, splits.values())) >= 1
    assert len(splits["valid"]) == max(1, round(n / 10))
    again = data.open(x, f"seed={seed}").splits
    assert all(torch.equal(splits[name], again[name]) for name in splits)


def test_another_seed_splits_otherwise():
    x = rng.normal(size=(100, 2))
    assert not torch.equal(data.open(x).splits["test"], data.open(x, "seed=1").splits["test"])
    sized = data.open(x, "valid=0.2", "test=0.3").splits
    assert [len(sized[name]) for name in ("train", "valid", "test")] == [50, 20, 30]


def test_statistics_come_from_training_rows():
    x = rng.normal(size=(200, 2))
    source = data.open(x)
    train = x[source.splits["train"].numpy()].astype(np.float32).astype(float)
    space = source.view().space
    np.testing.assert_allclose(space.mean, train.mean(0), rtol=1e-9)
    np.testing.assert_allclose(space.scale, train.std(0), rtol=1e-9)
    assert space.low == tuple(train.min(0))
    assert space.rows == len(train)
    x[source.splits["test"].numpy()] += 100
    assert data.open(x).view().space == space
    images = rng.integers(0, 256, (50, 4, 4, 3), dtype=np.uint8)
    source = data.open(images)
    train = images[source.splits["train"].numpy()]
    np.testing.assert_allclose(source.view().space.mean, train.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(source.view().space.scale, train.std((0, 1, 2)), rtol=1e-12)


def test_the_fingerprint_is_that_of_the_rows_in_their_order():
    x = rng.normal(size=(20, 2))
    print_of = lambda *args: data.open(*args).fingerprint  # noqa: E731
    assert print_of(x) == print_of(x.copy())
    assert print_of(x) == print_of(x, "seed=3")
    changed = x.copy()
    changed[3, 1] += 1e-3
    assert print_of(x) != print_of(changed)
    assert print_of(x) != print_of(x[::-1].copy())
    assert print_of("digits") != print_of("digits+binarise")
    frame = pd.DataFrame({"a": list("xyz")})
    assert print_of(frame) != print_of(frame.replace("z", "w"))


def test_rows_words_thin_the_data():
    x = rng.normal(size=(100, 2))
    kept = data.open(x, "rows=30")
    assert len(kept) == 30
    assert set(map(tuple, kept.tensors["x"].tolist())) <= set(
        map(tuple, x.astype(np.float32).tolist())
    )


def test_batches_are_rows():
    view = data.open("digits").view(given=["label"])
    rows = view.split("valid")
    index = torch.tensor([5, 2, 2])
    batch = rows.batch(index)
    assert torch.equal(batch.row, index)
    assert torch.equal(batch.x, rows.whole().x[index])
    assert torch.equal(batch.given["label"].x, rows.whole().given["label"].x[index])
    assert batch.x.dtype == torch.float32
    assert batch.given["label"].x.dtype == torch.int64
    assert rows.space == view.space
    assert len(view.split("all")) == 1797


def test_built_in_fields():
    digits = data.open("digits")
    assert (list(digits.fields), digits.main, digits.target) == (
        ["image", "label"],
        ("image",),
        "label",
    )
    assert (digits.view().space.size, digits.view().space.shape) == (17, (1, 8, 8))
    assert digits.view().decode(digits.view().split("all").batch(torch.tensor([0])).x).max() <= 16
    iris = data.open("iris")
    assert iris.fields["label"].codec.names == ("setosa", "versicolor", "virginica")
    assert iris.view().columns[0] == "sepal length (cm)"
    assert data.open("diabetes").view(target="y").space.kind == "real"
    for name in ("wine", "breast_cancer"):
        assert data.open(name).view(target="label").space.given["x"].kind == "real"


def test_every_built_in_name_opens():
    listed = catalogue.names()
    assert all(summary for _, summary in listed)
    assert {"moons", "grid", "digits", "diabetes"} <= {name for name, _ in listed}
    for name, _ in listed:
        source = data.open(name)
        assert source.name == name
        assert data.open(source) is source


def test_listing_needs_neither_torch_nor_scikit_learn():
    code = (
        "import sys; from monge.data.builtin import catalogue; catalogue.names(); "
        "sys.exit(bool({'torch', 'sklearn', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def frame():
    n = 40
    return pd.DataFrame(
        {
            "age": np.arange(n) + 20,
            "pay": np.arange(n) / 7,
            "job": ["cook", "smith"] * (n // 2),
            "old": np.arange(n) > 20,
        }
    )


def test_events_and_conditions_of_a_table():
    source = data.open(frame())
    assert source.view().space.shape == (4,)
    given = source.view(given=["job"])
    assert [c.name for c in given.space.columns] == ["age", "pay", "old"]
    assert (given.space.given["job"].kind, given.space.given["job"].shape) == ("label", ())
    target = source.view(target="job")
    assert target.space.kind == "label"
    assert list(target.space.given) == ["inputs"]
    assert target.space.given["inputs"].kind == "columns"
    assert target.split("train").whole().given["inputs"].x.shape == (32, 3)
    assert source.view(event="pay").space.shape == ()
    assert source.view(event="pay").space.given == {}
    assert source.view(target="job", given=["age"]).space.given["age"].kind == "counts"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"event": "agee"}, "'agee'.* age"),
        ({"given": ["jobb"]}, "'jobb'.* job"),
        ({"target": "zzz"}, "choose from age, pay, job, old"),
        ({"event": "age", "given": ["age"]}, "age "),
        ({"event": "age", "target": "pay"}, "'age' .*'pay'"),
        ({"given": ["age", "pay", "job", "old"]}, "age, pay, job, old"),
    ],
)
def test_words_about_fields(asked, sentence):
    with pytest.raises(UsageError, match=sentence):
        data.open(frame()).view(**asked)
    with pytest.raises(UsageError, match="nothing beside"):
        data.open(np.ones((5, 2))).view(target="x")


def test_typed_conditions():
    view = data.open(frame()).view(event="pay", given=["job", "age", "old"])
    assert view.encode_given("job", "smith").x.tolist() == [1]
    assert view.encode_given("age", "31").x.tolist() == [31.0]
    assert view.encode_given("old", "true").x.tolist() == [1.0]
    for name, text, sentence in (
        ("job", "baker", "choose from cook, smith"),
        ("age", "young", "text where a number belongs"),
        ("hat", "1", "'hat'"),
    ):
        with pytest.raises(DataError, match=sentence):
            view.encode_given(name, text)
    digits = data.open("digits").view(given=["label"])
    assert digits.encode_given("label", "3").x.tolist() == [3]
    with pytest.raises(DataError, match="cannot be typed"):
        data.open("digits").view(target="label").encode_given("image", "3")


def test_a_view_survives_json_without_the_data():
    view = data.open(frame()).view(given=["job"])
    stored = View.from_dict(json.loads(json.dumps(view.to_dict())))
    assert stored.space == view.space
    x = view.split("all").whole().x
    pd.testing.assert_frame_equal(stored.decode(x), frame().drop(columns="job"))
    assert stored.encode_given("job", "cook").x.tolist() == [0]
    with pytest.raises(RunError, match="open the data first"):
        stored.split("train")


def test_summary_says_how_data_were_understood():
    table = frame()
    table.loc[3, "pay"] = np.nan
    summary = {entry["name"]: entry for entry in data.open(table).summary()}
    assert summary["pay"]["missing"] == 1
    assert summary["age"]["kind"] == "counts"
    assert summary["age"]["example"] == 20
    assert summary["job"]["names"] == ["cook", "smith"]
    assert json.loads(json.dumps(list(summary.values())))
    assert math.isfinite(summary["pay"]["mean"])
    assert data.open("digits").summary()[0]["size"] == 17


def test_names_are_found_on_the_search_path(tmp_path, monkeypatch):
    (tmp_path / "shelf" / "mine").mkdir(parents=True)
    np.save(tmp_path / "shelf" / "mine" / "rows.npy", np.ones((5, 2)))
    monkeypatch.setenv("MONGE_DATA", str(tmp_path))
    assert data.open("shelf/mine").view().space.shape == (2,)
    with pytest.raises(DataError, match="did you mean shelf/mine"):
        data.open("shelf/mime")
    with pytest.raises(DataError, match="did you mean digits"):
        data.open("digts")
    (tmp_path / "a+b.csv").write_text("1,2\n3,4\n5,7\n")
    assert data.open(tmp_path / "a+b.csv").name == "a+b"
    np.save(tmp_path / "shelf" / "mine" / "more.npy", np.ones((5, 2)))
    with pytest.raises(DataError, match="name one of them"):
        data.open("shelf/mine")
    (tmp_path / "film.mp4").write_text("x")
    with pytest.raises(DataError, match=r"found .*film.mp4"):
        data.open(tmp_path / "film.mp4")


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("sed=1", "did you mean seed"),
        ("missing=keep", "not a choice"),
        ("valid=0", "must be above 0"),
        ("rows=-1", "must be at least 0"),
        ("seed", "name=value.*seed"),
    ],
)
def test_words_about_data(word, sentence):
    with pytest.raises(UsageError, match=sentence):
        data.open("moons", word)
    with pytest.raises(UsageError, match="leave no training rows"):
        data.open("moons", "valid=0.6", "test=0.6")
    with pytest.raises(UsageError, match=r"'tets'.* test"):
        data.open("moons").view().split("tets")
