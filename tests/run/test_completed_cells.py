"""Completed rows keep every known cell as it is: in frames, arrays, files and the server."""

import csv

import numpy as np
import pandas as pd
import pytest
import torch

import monge
import monge.cli.complete
from monge.cli.main import attempt
from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.space import Space
from monge.data.readers import base, delimited
from monge.run import completion, writers
from monge.run.completion import POINT_DRAWS, complete_rows
from monge.serve.served import ServedRun

N = 60
SEEN = [
    ("large", "120345678.25"),  # more digits than float32 has
    ("whole", "987654321"),
    ("huge", str(2**60 + 5)),  # beyond what float64 holds
    ("price", "1.50"),
    ("date", "2024-02-29"),
    ("paid", "TRUE"),
    ("kind", "a b "),
]


def table() -> pd.DataFrame:
    """Cells as text; every column but the first has some empty ones."""
    rng = np.random.default_rng(0)
    cents = rng.integers(0, 100, N)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(N) * 3 % 170, unit="D")
    found = pd.DataFrame(
        {
            "order": [f"N-{i:03d}" for i in range(N)],
            "code": [f"{i * 7919 % 997:05d}" for i in range(N)],
            "large": [f"{120_000_000 + 7919 * i * i}.{c:02d}" for i, c in enumerate(cents)],
            "whole": [str(900_000_001 + 1_234_567 * i) for i in range(N)],
            "huge": [str(2**60 + i * i) for i in range(N)],
            "price": [f"{c / 10:.2f}" for c in cents],
            "date": [f"{day:%Y-%m-%d}" for day in days],
            "paid": rng.choice(["TRUE", "FALSE"], N),
            "kind": rng.choice(["a b ", "c,d", "e"], N),
        }
    )
    for place, (name, value) in enumerate(SEEN):
        found.loc[3, name] = value
        found.loc[place + 10 : place + 14, name] = ""
    return found


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """The same with the types that people give columns."""
    cells = frame.astype(object).where(frame != "", None)
    return pd.DataFrame(
        {
            "order": cells["order"],
            "code": cells["code"],
            "large": cells["large"].astype(float),
            "whole": pd.array([c and int(c) for c in cells["whole"]], "Int64"),
            "huge": pd.array([c and int(c) for c in cells["huge"]], "Int64"),
            "price": cells["price"].astype(float),
            "date": pd.to_datetime(cells["date"]),
            "paid": cells["paid"].map({"TRUE": True, "FALSE": False}),
            "kind": pd.Categorical(cells["kind"]),
        }
    ).set_axis([f"row {i}" for i in range(N)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    rows = table()
    rows.to_csv(folder / "rows.csv", index=False)
    rows.insert(3, "note", [f"row {i}, which no run uses" for i in range(N)])
    rows.to_csv(folder / "wider.csv", index=False)
    monge.fit("independent", folder / "rows.csv", "data.time=none", out=folder / "run")
    return folder


def read(path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("words", [("-n", "2"), ("--mean", "--interval", "0.8")])
def test_a_csv_file_keeps_the_text_of_its_cells(folder, tmp_path, monkeypatch, words, large):
    monkeypatch.setattr(delimited, "OPENING", 1000)  # several blocks
    monkeypatch.setattr(monge.cli.complete, "PART", 16)
    if large:  # prepared in the cache
        monkeypatch.setattr(base, "LARGE", 1)
        monkeypatch.setenv("MONGE_CACHE", str(tmp_path / "cache"))
    given, out = folder / "wider.csv", tmp_path / "full.csv"
    assert attempt(["complete", f"{folder}/run", f"{given}", "-o", f"{out}", *words]) == 0
    (names, *known), (head, *made) = read(given), read(out)
    assert head[: len(names)] == names
    draws = len(made) // len(known)
    for row, cells in enumerate(made):
        for before, cell in zip(known[row // draws], cells, strict=False):
            assert cell == before if before else cell
    columns = dict(zip(head, zip(*made, strict=True), strict=True))
    assert all(len(cell.partition(".")[2]) == 2 for cell in columns["price"])
    assert {*columns["paid"]} == {"TRUE", "FALSE"}


@pytest.mark.parametrize("change", ["none", "changed", "gone"])
def test_a_prepared_folder_has_the_cells_of_its_file_while_it_is_there(folder, tmp_path, change):
    given, out = tmp_path / "given.csv", tmp_path / "full.csv"
    table().to_csv(given, index=False)
    assert attempt(["data", "prepare", f"{given}", "-o", f"{tmp_path / 'rows.monge'}"]) == 0
    if change == "changed":
        given.write_text(given.read_text() + "\n")
    elif change == "gone":
        given.unlink()
    run = monge.load(folder / "run")
    made = run.complete(tmp_path / "rows.monge")
    assert (str(made["large"][3]) == SEEN[0][1]) == (change == "none")
    assert any("seven digits" in note for note in run.notes) == (change != "none")
    assert attempt(["complete", f"{folder}/run", f"{tmp_path}/rows.monge", "-o", f"{out}"]) == 0
    full = pd.read_csv(out, dtype=str, keep_default_na=False)
    known = (table() != "").to_numpy()
    same = (full.to_numpy()[known] == table().to_numpy()[known]).all()
    assert same == (change == "none")


def test_rows_of_several_files_keep_their_cells(folder, tmp_path):
    rows = table()
    for name, part in (("train", rows[:8]), ("valid", rows[8:9]), ("test", rows[9:16])):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    out = tmp_path / "out" / "full.csv"
    assert attempt(["complete", f"{folder}/run", f"{tmp_path}", "-o", f"{out}"]) == 0
    full = pd.read_csv(out, dtype=str, keep_default_na=False)
    known = (rows[9:16] != "").to_numpy()
    assert (full.to_numpy()[known] == rows[9:16].to_numpy()[known]).all()


def test_holes_that_are_kept_stay_as_they_are_written(folder, tmp_path):
    rows = table()
    rows.loc[10:14, "large"] = ["NA", "", "nan", "NULL", "n/a"]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    words = ("--keep-holes", "large", "-o", f"{tmp_path}/full.csv")
    assert attempt(["complete", f"{folder}/run", f"{tmp_path}/rows.csv", *words]) == 0
    full = pd.read_csv(tmp_path / "full.csv", dtype=str, keep_default_na=False)
    assert full["large"].tolist() == rows["large"].tolist()
    assert (full["huge"] != "").all()


def test_a_frame_keeps_its_cells_and_columns(folder):
    run = monge.load(folder / "run")
    frame = typed(table()).assign(note="unused")
    for draws in (1, 2):
        full = run.complete(frame, draws=draws)
        given = frame.loc[frame.index.repeat(draws)]
        assert list(full) == list(frame)
        assert full.index.equals(given.index)
        assert not full.isna().any().any()
        for name in frame:
            known = given[name].notna().to_numpy()
            left, right = full[name][known].tolist(), given[name][known].tolist()
            assert left == right, name
    assert full["whole"].dtype.kind == "i"
    polars = pytest.importorskip("polars")
    cells = frame.astype(object).where(frame.notna(), None)
    other = polars.DataFrame({name: cells[name].tolist() for name in frame})
    full = run.complete(other)
    for name in ("huge", "large", "date"):
        seen = other[name].is_not_null()
        assert full[name].filter(seen).equals(other[name].filter(seen))


def test_rows_that_cannot_be_and_rows_without_a_cell_are_named(folder):
    run = monge.load(folder / "run")
    frame = typed(table())
    frame.iloc[5, 1:] = None
    run.complete(frame)
    assert any(note.startswith("1 row") for note in run.notes)
    strange = frame.astype({"kind": object})
    strange.iloc[7, -1] = "other"
    with pytest.raises(monge.DataError, match=r"row 8 .*'other'.*'kind'"):
        run.complete(strange)


def test_the_run_s_own_rows_keep_their_cells(folder):
    run = monge.load(folder / "run")
    own = typed(table())["large"].dropna().to_numpy()
    kept = run.complete()["large"].isin(own).to_numpy()
    assert kept.sum() >= len(kept) - 5


@pytest.mark.parametrize("as_text", [False, True])
def test_a_file_that_changed_since_it_was_opened_is_refused(folder, tmp_path, as_text):
    run, path = monge.load(folder / "run"), tmp_path / "rows.csv"
    table().to_csv(path, index=False)
    rows = run.split(path, "all", every=True)
    done = run.complete_batch(rows.whole(), seed=0, implied=rows.implied)
    table()[::-1].to_csv(path, index=False)  # as many rows of the same size
    with pytest.raises(DataError, match=r"rows\.csv"):
        completion.completed_table(run.view, rows, done, as_text=as_text)


def test_arrays_keep_their_entries(tmp_path):
    x = np.random.default_rng(0).normal(1.2e8, 1e6, (40, 3)).round(2)
    run = monge.fit("gaussian", x, out=tmp_path / "run")
    holed = x.copy()
    holed[::4, 1] = np.nan
    for given in (holed, pd.DataFrame(holed)):
        full = np.asarray(run.complete(given))
        assert np.array_equal(full[~np.isnan(holed)], x[~np.isnan(holed)])
        assert np.isfinite(full).all()


def test_the_server_keeps_the_cells_of_a_request(folder):
    served = ServedRun(monge.load(folder / "run"))
    known = {"large": 120345678.25, "whole": 987654321, "paid": True, "date": "2024-02-29"}
    rows = [{**known, "code": 7, "huge": None, "price": None, "kind": None}]
    task = served.tasks["complete"]
    (made,) = task.answer(task.request.model_validate({"rows": rows}))["rows"]
    assert {name: made[name] for name in known} == known
    assert made["kind"] in ("a b", "c,d", "e")
    assert made["price"] is not None


def test_rows_that_are_made_anew_change_where_they_are_known_too(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": range(1, N + 1), "a": rng.normal(size=N), "b": rng.normal(size=N)})
    frame.loc[N // 2 :: 3, "b"] = np.nan  # the first half has no empty cell
    frame.to_csv(tmp_path / "rows.csv", index=False)
    run = monge.fit("ddpm", tmp_path / "rows.csv", budget="1steps", out=tmp_path / "run")
    given = frame.assign(note="n")
    full = run.complete(given, edit=0.5, steps=2, keep_holes=["b"])
    assert full[["id", "note"]].equals(given[["id", "note"]])
    assert not np.isclose(full[["a", "b"]], frame[["a", "b"]]).any()
    monkeypatch.setattr(completion, "MAX_CHUNK", 8)
    texts = []
    for part in (writers.PART, 8):
        monkeypatch.setattr(monge.cli.complete, "PART", part)
        words = ["--edit", "0.5", "--keep-holes", "b", "steps=2", "-o", f"{tmp_path}/full.csv"]
        assert attempt(["complete", f"{tmp_path}/run", f"{tmp_path}/rows.csv", *words]) == 0
        texts.append((tmp_path / "full.csv").read_text())
    assert texts[0] == texts[1]
    edited = pd.read_csv(tmp_path / "full.csv")
    assert not np.isclose(edited[["a", "b"]], frame[["a", "b"]]).any()


def test_known_cells_of_rows_with_holes_change_only_if_a_model_says_so():
    x = torch.arange(12.0).reshape(4, 3)
    seen = torch.tensor([[True] * 3, [False, True, True], [True] * 3, [True, True, False]])
    space = Space(kind="real", shape=(3,))

    def negative(rows, count):
        return -1 - rows.x[:, None].repeat_interleave(count, 1)

    kept, made = (
        complete_rows(Batch(x, observed=seen), space, negative, keeps_observed=keeps)
        for keeps in (True, False)
    )
    assert torch.equal(kept.x, torch.where(seen, x, -1 - x))
    assert torch.equal(kept.replaced, ~seen)
    assert torch.equal(made.x, -1 - x)
    assert made.replaced.all()
    assert torch.equal(made.filled, ~seen)


@pytest.mark.parametrize("rows", [0, 40_000])
def test_medians_and_intervals_of_no_rows_and_of_many(rows):
    space = Space(kind="real", shape=(5,), mean=(0.0,), scale=(1.0,))
    x = torch.zeros(max(rows, 3), 5)
    seen = torch.full_like(x, rows == 0, dtype=torch.bool)

    def complete(batch, draws):  # of every cell: 0, 1, 2, ...
        return torch.arange(draws).float()[None, :, None].expand(len(batch), draws, 5)

    done = complete_rows(Batch(x, observed=seen), space, complete, "median", interval=0.5)
    middle = (POINT_DRAWS - 1) / 2
    for found, level in ((done.low, 0.25), (done.x, 0.5), (done.high, 0.75)):
        due = 2 * level * middle if rows else 0.0
        torch.testing.assert_close(found, torch.full_like(x, due))
