"""Prepared folders: the same rows, schema and weights as a table that is held in memory."""

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock

from monge.core.errors import DataError, UsageError
from monge.data import batches, derived, frames, loading, packed, prepared
from monge.data import loading as data
from monge.data.codecs import scalar
from monge.data.derived import is_function
from monge.data.packed import levels
from monge.data.readers import base, columns, decoding, delimited, long_text, stored, tables
from monge.data.schema_fit import MAX_ATOMS, describe_key, frequent_values
from monge.run.run import start

N = 600


def mixed(n: int = N) -> pd.DataFrame:
    """Every kind of column, with what is found in them: a key, a constant, a function of names, an
    atom, bounds, empty cells, dates, large whole numbers, quoted names."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": np.arange(1, n + 1)})
    table["age"] = rng.integers(18, 90, n).astype(float)
    table["gain"] = np.where(rng.random(n) < 0.5, 0, rng.lognormal(8, 1, n).round(2))
    table["city"] = rng.choice(["Rome", " Oslo", "Bern", "Cairo, EG"], n)
    table["land"] = table["city"].map({"Rome": "I", " Oslo": "N", "Bern": "H", "Cairo, EG": "E"})
    table["x"] = rng.normal(size=n)
    table["start"] = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D")
    table["end"] = table["start"] + pd.to_timedelta(rng.integers(0, 90, n), "D")
    table["flag"] = rng.choice(["yes", "no"], n)
    table["big"] = rng.integers(0, 5, n) + 2**60
    table["one"] = 7
    table["share"] = rng.random(n)
    table["member"] = rng.random(n) < 0.5
    table["maybe"] = pd.array(rng.random(n) < 0.3, dtype="boolean")
    late = rng.normal(size=n).tolist()
    table["late"] = pd.Series([3] * (n // 2) + late[n // 2 :], dtype=object)  # whole at first
    for name, share in (("age", 0.1), ("city", 0.1), ("x", 0.05), ("end", 0.2), ("maybe", 0.1)):
        table.loc[rng.random(n) < share, name] = None
    return table


@pytest.fixture
def in_pieces(monkeypatch):
    """Blocks and pieces so small that there are many of each."""
    for name, value in (("OPENING", 2**11), ("BLOCK", 2**10), ("LARGEST", 2**11)):
        monkeypatch.setattr(delimited, name, value)
    monkeypatch.setattr(delimited, "PER_COLUMN", 1)
    for module in (packed, scalar):
        monkeypatch.setattr(module, "PIECE", 100)
    for module in (derived, scalar):
        monkeypatch.setattr(module, "FIRST", 7)


def same(one: data.Dataset, other: data.Dataset) -> None:
    assert one.schema.to_dict() == other.schema.to_dict()
    assert one.fingerprint == other.fingerprint == other.copy().fingerprint
    assert one.notes == other.notes
    assert all(torch.equal(one.splits[name], other.splits[name]) for name in one.splits)
    assert {*one.row_keys} == {*other.row_keys}
    for name, cells in one.row_keys.items():
        assert (cells == other.row_keys[name]).all()


@pytest.mark.parametrize(
    "settings", [(), ("space=plain",), ("missing=drop", "rows=300"), ("names=age", "drop=gain")]
)
def test_a_prepared_table_is_the_table(tmp_path, in_pieces, settings):
    mixed().to_csv(tmp_path / "t.csv", index=False)
    settings = ("time=none", *settings)
    found = data.prepare(tmp_path / "t.csv", tmp_path / "t.monge", *settings)
    same(data.open(tmp_path / "t.csv", *settings), found)
    same(found, data.open(tmp_path / "t.monge"))
    if not settings[1:]:
        assert [key.name for key in found.schema.row_keys] == ["id"]
        assert {each.name for each in found.schema.derived} >= {"one"}
        assert [each.name for each in found.schema.differences] == ["end"]
        assert found.fields["gain"].space.atoms == (0.0,)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.monge"]


def test_weights_and_scores_are_those_of_the_table(tmp_path, monkeypatch):
    mixed(80).to_csv(tmp_path / "t.csv", index=False)
    data.prepare(tmp_path / "t.csv", tmp_path / "t.monge", "time=none")
    monkeypatch.setattr(batches, "MAX_TOGETHER", 0)  # columns are put together for each batch
    made = start("made", str(tmp_path / "t.monge"), out=tmp_path / "a")
    list(made.train("2steps"))
    monkeypatch.undo()
    table = str(tmp_path / "t.csv")
    plain = start("made", table, "data.time=none", out=tmp_path / "b")
    list(plain.train("2steps"))
    ours, theirs = made.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    scores = plain.log_likelihood(table).value
    assert np.array_equal(
        made.log_likelihood(str(tmp_path / "t.monge"), split="all").value, scores
    )
    assert np.array_equal(made.log_likelihood(table).value, scores)
    # read with the fields of a run that was fitted to other rows
    mixed(60).to_csv(tmp_path / "u.csv", index=False)
    data.prepare(tmp_path / "u.csv", tmp_path / "u.monge", "time=none")
    direct = made.log_likelihood(str(tmp_path / "u.csv")).value
    assert np.array_equal(made.log_likelihood(str(tmp_path / "u.monge")).value, direct)


class Killed(BaseException):
    """The end of a process."""


def test_a_killed_preparation_goes_on_or_starts_again(tmp_path, monkeypatch):
    mixed(100).to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "t.monge"

    def killed(*args, **options):
        raise Killed

    monkeypatch.setattr(columns.StoredColumn, "put", killed)
    with pytest.raises(Killed):
        data.prepare(tmp_path / "t.csv", out, "time=none")
    monkeypatch.undo()
    assert not out.exists()
    monkeypatch.setattr(prepared.Store, "encode", killed)
    with pytest.raises(Killed):
        data.prepare(tmp_path / "t.csv", out, "time=none")
    monkeypatch.undo()
    assert not out.exists()
    (tmp_path / ".t.monge.part" / ".read.0123abcd.json").touch()  # was being written
    monkeypatch.setattr(tables, "read_files", killed)  # what was read is used
    found = data.prepare(tmp_path / "t.csv", out, "time=none")
    monkeypatch.undo()
    assert not list(out.rglob(".*"))
    same(data.open(tmp_path / "t.csv", "time=none"), found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.monge"]


def test_a_preparation_that_is_killed_while_it_tidies_up_is_made_again(tmp_path, monkeypatch):
    mixed(100).to_csv(tmp_path / "t.csv", index=False)
    remove = shutil.rmtree

    def killed(path, **options):
        if path.name != "cells":
            return remove(path, **options)
        (path / "lines.npy").unlink()
        raise Killed

    monkeypatch.setattr(prepared.shutil, "rmtree", killed)
    with pytest.raises(Killed):
        data.prepare(tmp_path / "t.csv", tmp_path / "t.monge", "time=none")
    monkeypatch.undo()
    found = data.prepare(tmp_path / "t.csv", tmp_path / "t.monge", "time=none")
    same(data.open(tmp_path / "t.csv", "time=none"), found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.monge"]


def test_a_table_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path, read = tmp_path / "t.csv", tables.read_files
    mixed(100).to_csv(path, index=False)

    def growing(*args):
        found = read(*args)
        path.write_text(path.read_text() + "\n")
        return found

    monkeypatch.setattr(tables, "read_files", growing)
    with pytest.raises(DataError, match=rf"t.csv.*{path.stat().st_size}"):
        data.prepare(path, tmp_path / "t.monge", "time=none")
    assert [each.name for each in tmp_path.iterdir()] == ["t.csv"]


def test_no_room_says_how_much_is_needed_and_where(tmp_path, monkeypatch):
    mixed(100).to_csv(tmp_path / "t.csv", index=False)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(1000))
    with pytest.raises(DataError, match=r"GB.*MONGE_CACHE"):
        data.prepare(tmp_path / "t.csv", tmp_path / "t.monge", "time=none")
    assert not (tmp_path / "t.monge").exists()


def test_large_tables_are_prepared_in_the_cache(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    mixed(100).to_csv(path, index=False)
    plain = data.open(path, "time=none")
    monkeypatch.setenv("MONGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(base, "LARGE", 1)
    assert str(tmp_path / "cache") in loading.announcement(str(path), ["time=none"])
    found = data.open(path, "time=none")
    assert found.schema.to_dict() == plain.schema.to_dict()
    assert found.fingerprint == plain.fingerprint
    assert any(str(tmp_path / "cache") in note for note in found.notes)
    assert not loading.announcement(str(path), ["time=none"])
    monkeypatch.setattr(tables, "read_files", None)
    assert data.open(path, "time=none").fingerprint == plain.fingerprint  # not read again
    monkeypatch.setattr(tables, "read_files", lambda *args: pytest.fail("read"))
    mixed(90).to_csv(path, index=False)
    with pytest.raises(pytest.fail.Exception):
        data.open(path, "time=none")  # another table of this name is


def test_what_is_not_a_table_is_held_in_memory(tmp_path, monkeypatch):
    times = pd.date_range("2020-01-01", periods=200, freq="D")
    pd.DataFrame({"t": times, "y": np.sin(np.arange(200))}).to_csv(tmp_path / "t.csv", index=False)
    plain = data.open(tmp_path / "t.csv")
    monkeypatch.setenv("MONGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(base, "LARGE", 1)
    assert data.open(tmp_path / "t.csv").fingerprint == plain.fingerprint
    with pytest.raises(DataError, match="time=none"):
        data.prepare(tmp_path / "t.csv", tmp_path / "t.monge")


def test_settings_of_a_prepared_folder_are_those_it_was_made_with(tmp_path):
    mixed(100).to_csv(tmp_path / "t.csv", index=False)
    data.prepare(tmp_path / "t.csv", tmp_path / "t.monge", "time=none", "seed=3")
    assert data.open(tmp_path / "t.monge", "seed=3", "balance=true").options.balance
    with pytest.raises(UsageError, match=r"data\.seed=4"):
        data.open(tmp_path / "t.monge", "seed=4")
    with pytest.raises(UsageError, match=r"t\.monge"):
        data.prepare(tmp_path / "t.csv", tmp_path / "t.monge")
    with pytest.raises(UsageError, match="out"):
        data.prepare(tmp_path / "t.csv", tmp_path / "out")


@pytest.mark.parametrize("damage", ["field", "json", "split", "beyond", "keys", "rows"])
def test_a_damaged_folder_is_refused(tmp_path, damage):
    mixed(100).to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "t.monge"
    data.prepare(tmp_path / "t.csv", out, "time=none")
    about = out / "prepared.json"
    if damage == "field":
        (out / "fields" / "1.bin").write_bytes(b"1234")
    elif damage == "json":
        about.write_text("{")
    elif damage == "split":
        (out / "splits" / "test.npy").unlink()
    elif damage == "beyond":
        np.save(out / "splits" / "test.npy", np.array([5, 100]))
    elif damage == "keys":
        np.save(out / "keys" / "0.npy", np.arange(99))
    else:
        about.write_text(json.dumps(json.loads(about.read_text()) | {"rows": "many"}))
    with pytest.raises(DataError, match=r"t\.monge"):
        data.open(out)


def test_many_files_are_one_table(tmp_path, in_pieces):
    whole = mixed().drop(columns="id")
    (tmp_path / "d").mkdir()
    whole.to_csv(tmp_path / "t.csv", index=False)
    whole[:200].to_csv(tmp_path / "d" / "a.csv", index=False)
    whole[200:].iloc[:, ::-1].to_csv(tmp_path / "d" / "b.csv", index=False)
    one, many = (
        data.open(tmp_path / "t.csv", "time=none"),
        data.open(tmp_path / "d/*.csv", "time=none"),
    )
    assert one.fingerprint == many.fingerprint
    made = data.prepare(tmp_path / "d/*.csv", tmp_path / "d.monge", "time=none")
    same(many, made)
    listed = [tmp_path / "d" / "a.csv", tmp_path / "d" / "b.csv"]
    assert data.prepare(listed, tmp_path / "e.monge", "time=none").fingerprint == made.fingerprint
    whole.drop(columns="x").to_csv(tmp_path / "d" / "c.csv", index=False)
    with pytest.raises(DataError, match=r"c\.csv.*a\.csv.*x"):
        data.open(tmp_path / "d/*.csv")
    (tmp_path / "d" / "c.csv").write_text("\n".join([",".join(whole), *["nonsense"] * 3]))
    with pytest.raises(DataError, match=rf"c\.csv, line 2.*{whole.shape[1]}.*1;"):
        data.open(tmp_path / "d/*.csv")


def test_a_wrong_cell_is_named_by_row_and_file(tmp_path, in_pieces):
    for place in range(3):
        cells = [f"{row * 0.5},{row % 7}" for row in range(200)]
        if place == 1:
            cells[150] = "inf,2"
        (tmp_path / f"{place}.csv").write_text("\n".join(["a,b", *cells]) + "\n")
    with pytest.raises(DataError, match=r"'a', row 152 of 1\.csv.*inf"):
        data.prepare(tmp_path / "*.csv", tmp_path / "t.monge")
    assert not (tmp_path / "t.monge").exists()


def test_arrow_files_are_tables(tmp_path, in_pieces):
    pq = pytest.importorskip("pyarrow.parquet")
    whole = mixed().drop(columns="id")
    whole.to_csv(tmp_path / "t.csv", index=False)
    plain = data.open(tmp_path / "t.csv", "time=none")
    typed = whole.astype({"city": "category"})
    for name in ("start", "end"):  # times are written with their hours
        typed[name] = typed[name].dt.strftime("%Y-%m-%d")
    typed.to_parquet(tmp_path / "t.parquet", row_group_size=100)
    typed.to_feather(tmp_path / "t.feather")
    for suffix in ("parquet", "feather"):
        found = data.open(tmp_path / f"t.{suffix}", "time=none")
        assert found.fingerprint == plain.fingerprint
        out = tmp_path / f"{suffix}.monge"
        same(found, data.prepare(tmp_path / f"t.{suffix}", out, "time=none"))
    (tmp_path / "d").mkdir()
    typed[:300].to_parquet(tmp_path / "d" / "a.parquet")
    typed[300:].to_parquet(tmp_path / "d" / "b.parquet")
    assert data.open(tmp_path / "d/*.parquet", "time=none").fingerprint == plain.fingerprint
    whole.to_parquet(tmp_path / "times.parquet")
    times = data.open(tmp_path / "times.parquet", "time=none")
    assert torch.equal(times.tensors["start"], plain.tensors["start"])
    typed.astype({"x": str}).to_parquet(tmp_path / "d" / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet.*'x'.*a\.parquet"):
        data.open(tmp_path / "d/*.parquet", "time=none")
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "torn.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"torn\.parquet"):
        data.open(tmp_path / "torn.parquet")
    nested = pd.DataFrame({"a": [[1], [2]] * 10, "b": range(20)})
    nested.to_parquet(tmp_path / "nested.parquet")
    with pytest.raises(DataError, match=r"nested\.parquet.*'a'.*list"):
        data.open(tmp_path / "nested.parquet")
    assert pq.read_table(tmp_path / "t.parquet").num_rows == N


def atoms(seen: torch.Tensor) -> list[float]:
    """What `frequent_values` finds, from the counts of all values."""
    values, counts = seen.unique(return_counts=True)
    if len(values) <= MAX_ATOMS + 1:
        return []
    counts, order = counts.sort(descending=True)
    found: list[float] = []
    for place in range(MAX_ATOMS):
        if counts[place] < 0.03 * len(seen):
            break
        if counts[place] >= 4.0 * counts[place + 1]:
            found = values[order[: place + 1]].tolist()
    return found


def test_frequent_values_are_those_of_all_counts(in_pieces):
    generator = torch.Generator().manual_seed(0)
    found = []
    for trial in range(60):
        x = torch.randn(500, generator=generator)
        x = x.round(decimals=1) if trial % 3 == 0 else x.round() if trial % 3 == 1 else x
        for value, share in ((0.0, trial % 7 / 20), (-0.0, 0.02), (5.0, trial % 5 / 30)):
            x[torch.rand(500, generator=generator) < share] = value
        expected = atoms(x)
        assert sorted(frequent_values(x.numpy())) == sorted(expected)
        found.append(len(expected))
    assert {*found} >= {0, 1, 2}


def test_functions_are_those_of_all_pairs(in_pieces):
    source = np.random.default_rng(0).integers(-1, 6, 400)
    table = np.array([2.0, np.nan, 1.0, 1.0, 0.0, 3.0, 5.0], np.float32)
    column = table[source]
    assert is_function(source, column)
    assert not is_function(np.nan_to_num(column, nan=-1), source.astype(np.float32))
    broken = column.copy()
    broken[-1] += 1
    assert not is_function(source, broken)
    values, counts = levels(column, 400)
    assert values.tolist() == [0, 1, 2, 3, 5, np.inf]
    assert counts.sum() == 400
    assert levels(column, 5) is None


def test_columns_side_by_side_are_rows(monkeypatch):
    view = data.open(mixed(60), "missing=ignore", "time=none").view()
    monkeypatch.setattr(batches, "MAX_TOGETHER", 0)
    apart = data.open(mixed(60), "missing=ignore", "time=none").view()
    index = torch.tensor([5, 0, 40, 5])
    one, other = (each.split("train").batch(index) for each in (view, apart))
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.observed, other.observed)
    assert not one.observed.all()


def pictures(folder, n: int = 40, side: int = 6, grey=lambda i: False) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(n):
        shape = (side, side + 1) if grey(i) else (side, side + 1, 3)
        place = folder / f"class{i % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(place / f"{i}.png")


@pytest.mark.parametrize("grey", ["none", "all", "first", "later"])
def test_prepared_pictures_are_the_pictures(tmp_path, monkeypatch, grey):
    which = {"none": 0, "all": 99, "first": 10, "later": -10}[grey]
    pictures(tmp_path / "p", grey=lambda i: i < which or 40 + which <= i < 40 + min(which, 0) + 9)
    monkeypatch.setattr(decoding, "CHUNK", 7)
    found = data.prepare(tmp_path / "p", tmp_path / "p.monge")
    plain = data.open(tmp_path / "p")
    same(plain, found)
    index = torch.tensor([3, 0, 11])
    one, other = (each.view().split("train").batch(index) for each in (plain, found))
    assert torch.equal(one.x, other.x)
    resized = data.prepare(f"{tmp_path / 'p'}+resize4", tmp_path / "r.monge")
    same(data.open(f"{tmp_path / 'p'}+resize4"), resized)


def test_pictures_are_decoded_by_workers_and_not_twice(tmp_path, monkeypatch):
    pictures(tmp_path / "p")
    monkeypatch.setattr(decoding, "FEW", 0)
    monkeypatch.setattr(decoding.os, "cpu_count", lambda: 2)
    chunks = decoding.decoded_chunks

    def killed(*args):
        for place, chunk in enumerate(chunks(*args)):
            yield chunk
            if place == 1:
                raise Killed

    # two workers, each of which decodes the one chunk that there is
    monkeypatch.setattr(decoding, "decoded_chunks", lambda *args: iter(chunks(*args[:4], [0, 0])))
    same(data.open(tmp_path / "p"), data.prepare(tmp_path / "p", tmp_path / "w.monge"))
    monkeypatch.setattr(decoding, "FEW", 10**6)
    monkeypatch.setattr(decoding, "CHUNK", 8)
    monkeypatch.setattr(decoding, "decoded_chunks", killed)
    with pytest.raises(Killed):
        data.prepare(tmp_path / "p", tmp_path / "p.monge")
    seen = []
    monkeypatch.setattr(
        decoding, "decoded_chunks", lambda *args: seen.extend(args[-1]) or chunks(*args)
    )
    same(data.open(tmp_path / "p"), data.prepare(tmp_path / "p", tmp_path / "p.monge"))
    assert seen == [2, 3, 4]


def test_pictures_stay_in_their_files_where_there_is_no_room(tmp_path, monkeypatch):
    pictures(tmp_path / "p", grey=lambda i: i < 5)
    plain = data.open(tmp_path / "p")
    monkeypatch.setenv("MONGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(base, "LARGE", 1)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(1000))
    found = data.open(tmp_path / "p")
    assert found.schema.to_dict() == plain.schema.to_dict()
    assert found.fingerprint == plain.fingerprint == found.copy().fingerprint
    assert not any(
        path.suffix == ".bin" and path.stat().st_size > 4000
        for path in (tmp_path / "cache").rglob("*")
    )
    index = torch.tensor([3, 0, 11])
    one, other = (each.view().split("train").batch(index) for each in (plain, found))
    assert torch.equal(one.x, other.x)
    with pytest.raises(DataError, match=r"GB.*MONGE_CACHE"):
        data.prepare(tmp_path / "p", tmp_path / "p.monge")


def test_a_picture_that_cannot_be_used_is_named(tmp_path):
    from PIL import Image

    pictures(tmp_path / "p")
    Image.new("RGB", (3, 3)).save(tmp_path / "p" / "class1" / "odd.png")
    with pytest.raises(DataError, match=r"7x6.*odd\.png.*3x3"):
        data.prepare(tmp_path / "p", tmp_path / "p.monge")
    (tmp_path / "p" / "class1" / "odd.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"odd\.png"):
        data.prepare(tmp_path / "p", tmp_path / "p.monge")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize(
    "array",
    [
        np.random.default_rng(0).normal(size=(300, 5)),
        np.random.default_rng(0).normal(size=(300, 4, 5)).astype(np.float32),
        np.random.default_rng(0).integers(0, 256, (300, 4, 5), dtype=np.uint8),
        np.random.default_rng(0).integers(0, 256, (300, 4, 5, 3), dtype=np.uint8),
        np.random.default_rng(0).integers(0, 2, (300, 6)),
        np.random.default_rng(0).integers(-5, 99, (300, 3)),
        np.arange(300) * 0.5,
    ],
    ids=["reals", "float32", "levels", "colours", "binary", "counts", "column"],
)
def test_prepared_arrays_are_the_arrays(tmp_path, monkeypatch, array):
    monkeypatch.setattr(stored, "PIECE", 200)
    monkeypatch.setattr(packed, "PIECE", 200)
    np.save(tmp_path / "a.npy", array)
    same(data.open(tmp_path / "a.npy"), data.prepare(tmp_path / "a.npy", tmp_path / "a.monge"))
    split = {"x_train": array[:200], "x_test": array[200:], "y_train": np.arange(200) % 3}
    np.savez_compressed(tmp_path / "b.npz", **split, y_test=np.arange(100) % 3)
    same(data.open(tmp_path / "b.npz"), data.prepare(tmp_path / "b.npz", tmp_path / "b.monge"))


def test_numbers_that_float32_blurs_are_named_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "PIECE", 20)
    array = np.random.default_rng(0).normal(size=(100, 3))
    array[:, 1] += 1e9
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=r"row 1: (99999999|10000000)"):
        data.prepare(tmp_path / "a.npy", tmp_path / "a.monge")
    array[:, 1] = 0
    array[57, 2] = np.inf
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=r"row 58.*inf"):
        data.prepare(tmp_path / "a.npy", tmp_path / "a.monge")


PROSE = "".join(
    f"Line {i}: the {'quick' if i % 3 else 'slow'} fox's cub, naïve as ever,  leaps {i * 7}!\n"
    + ("\n" if i % 5 == 0 else "")
    for i in range(300)
)


@pytest.mark.parametrize("unit", ["chars", "words", "bytes", "bpe"])
@pytest.mark.parametrize("kind", ["running", "lines", "folder"])
def test_prepared_text_is_the_text(tmp_path, monkeypatch, unit, kind):
    monkeypatch.setattr(long_text, "BYTES", 97)
    monkeypatch.setattr(long_text, "LINES", 7)
    settings = [f"tokens={unit}", "context=50", *(["vocabulary=300"] if unit == "bpe" else [])]
    what = tmp_path / "t.txt"
    if kind == "folder":
        what = tmp_path / "t"
        what.mkdir()
        (what / "train.txt").write_bytes(b"\xef\xbb\xbf" + PROSE.encode())
        (what / "test.txt").write_text(PROSE[2000:5000])
    elif kind == "lines":
        what.write_text(PROSE.replace("\n\n", "\n").replace("\n", "\r\n"), newline="")
    else:
        what.write_text(PROSE)
    plain = data.open(what, *settings)
    found = data.prepare(what, tmp_path / "t.monge", *settings)
    same(plain, found)
    one, other = (each.view().training() for each in (plain, found))
    assert torch.equal(one.batch(torch.arange(9)).x, other.batch(torch.arange(9)).x)
    assert (one.crop_limits is None) == (other.crop_limits is None)
    if one.crop_limits is not None:
        assert torch.equal(one.crop_limits, other.crop_limits)
    run_fields = plain.view().to_dict()
    monkeypatch.setenv("MONGE_CACHE", str(tmp_path / "cache"))
    as_run = data.open(what, *settings, fields=run_fields)
    monkeypatch.setattr(base, "LARGE", 1)
    assert data.open(what, *settings, fields=run_fields).fingerprint == as_run.fingerprint


def test_long_text_says_what_its_vocabulary_is_learned_from(tmp_path, monkeypatch):
    monkeypatch.setattr(long_text, "BYTES", 97)
    monkeypatch.setattr(long_text, "SAMPLE", 5000)
    (tmp_path / "t.txt").write_text(PROSE)
    found = data.prepare(tmp_path / "t.txt", tmp_path / "t.monge", "tokens=words")
    assert any("one in 3" in note for note in found.notes)
    (tmp_path / "bad.txt").write_bytes(PROSE.encode() + b"\xff" + PROSE.encode())
    with pytest.raises(DataError, match=rf"bad\.txt.*0xff.*{len(PROSE.encode())}"):
        data.prepare(tmp_path / "bad.txt", tmp_path / "b.monge", "tokens=words")


def arrow_files(folder, whole: pd.DataFrame):
    """The table as a stream, as a file, and as the library `datasets` saves it."""
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pandas(whole, preserve_index=False)

    def write(path, some, kind=pa.ipc.new_stream):
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as file, kind(file, table.schema) as out:
            out.write_table(some, max_chunksize=50)

    write(folder / "s.arrow", table)
    write(folder / "f.ipc", table, pa.ipc.new_file)
    for place, part in enumerate((table[:100], table[100:])):
        write(folder / "saved" / f"data-{place:05}-of-00002.arrow", part)
    (folder / "saved" / "state.json").write_text("{}")
    for split, part in (("train", table[:200]), ("test", table[200:])):
        write(folder / "splits" / split / "data-00000-of-00001.arrow", part)
        (folder / "splits" / split / "state.json").write_text("{}")
    (folder / "splits" / "dataset_dict.json").write_text("{}")
    return table


def test_streams_of_arrow_and_saved_datasets_are_tables(tmp_path, monkeypatch):
    whole = mixed(300)[["age", "city", "x", "flag"]]
    table = arrow_files(tmp_path, whole)
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "t.parquet")
    plain = data.open(tmp_path / "t.parquet")
    for name in ("s.arrow", "f.ipc", "saved"):
        found = data.open(tmp_path / name)
        assert found.fingerprint == plain.fingerprint
        same(found, data.prepare(tmp_path / name, tmp_path / f"{name}.monge"))
    split = data.open(tmp_path / "splits")
    assert split.has_splits
    assert split.splits["test"].tolist() == list(range(200, 300))
    content = (tmp_path / "f.ipc").read_bytes()
    (tmp_path / "torn.ipc").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"torn\.ipc"):
        data.open(tmp_path / "torn.ipc")


def test_a_large_arrow_dataset_is_read_from_its_files(tmp_path, monkeypatch):
    ds = pytest.importorskip("pyarrow.dataset")
    arrow_files(tmp_path, mixed(300)[["age", "city", "x", "flag"]])
    plain = data.open(tmp_path / "f.ipc")
    monkeypatch.setenv("MONGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(base, "LARGE", 1)
    monkeypatch.setattr(frames, "LARGE", 1)
    found = data.open(ds.dataset(tmp_path / "f.ipc", format="ipc"))
    assert found.fingerprint == plain.fingerprint
    assert any("cache" in note for note in found.notes)


def test_the_cache_is_listed_and_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("MONGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(base, "LARGE", 1)
    assert prepared.cached() == []
    for name in ("a", "b"):
        mixed(60).to_csv(tmp_path / f"{name}.csv", index=False)
        data.open(tmp_path / f"{name}.csv", "time=none")
    (tmp_path / "cache" / ".c.monge.part").mkdir()
    for each in prepared.cached():
        os.utime(each.path / "prepared.json" if each.whole else each.path, (0, 10 - each.whole))
    data.open(tmp_path / "a.csv", "time=none")
    found = {Path(each.source).name: each for each in prepared.cached()}
    assert [*found] == ["b.csv", "", "a.csv"]  # a was used last
    assert found["a.csv"].bytes > 1000
    lock = FileLock(prepared.lock_of(tmp_path / "cache" / "c.monge"))
    with lock, pytest.raises(DataError, match=r"c\.monge"):
        prepared.remove(found[""])
    for each in found.values():
        prepared.remove(each)
    assert prepared.cached() == []


def test_pictures_that_change_while_they_are_read_are_refused(tmp_path, monkeypatch):
    pictures(tmp_path / "p")
    monkeypatch.setattr(prepared, "MANY", 10)
    decode = decoding.decode

    def changing(*args):
        decode(*args)
        (tmp_path / "p" / "class0" / "0.png").touch()

    monkeypatch.setattr(decoding, "decode", changing)
    with pytest.raises(DataError, match="40"):
        data.prepare(tmp_path / "p", tmp_path / "p.monge")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_folders_of_the_first_format_are_read(tmp_path):
    mixed(100).to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "t.monge"
    found = data.prepare(tmp_path / "t.csv", out, "time=none")
    about = json.loads((out / "prepared.json").read_text())
    about["kinds"] = {name: each["kind"] for name, each in about["kinds"].items()}
    del about["changes"]
    (out / "prepared.json").write_text(json.dumps(about | {"format": 1}))
    same(found, data.open(out))


def test_a_column_that_repeats_is_not_read_whole_to_see_that_it_is_no_key(monkeypatch):
    column = columns.TextColumn(np.array([1, 2, 1, 2], np.int32), ["a1", "b2"])
    assert (
        describe_key("id", columns.TextColumn(np.array([1, 2], np.int32), ["a1", "a2"]))
        is not None
    )

    def refuse(self, name):
        raise AssertionError(f"{name} makes every cell")

    monkeypatch.setattr(columns.TextColumn, "__getattr__", refuse)
    assert describe_key("id", column) is None
