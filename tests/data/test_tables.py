"""Tables: how columns are understood, that they come back as they were, and what is refused."""

import csv
import gzip
import io
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monge.core.errors import DataError, UsageError
from monge.data import loading as data
from monge.data.dataset import View
from monge.data.options import Options
from monge.data.readers import delimited, tables
from monge.run.writers import WrittenTable

MIXED = """age, work, income, flag, member
39, State-gov , 77516.5, 0, yes
50, Private, 83311.25, 1, no
38,, 215646, 0, yes
53, Private, , 1, no
28, ?, 338409.5, 1, yes
"""


def written(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def whole(view):
    """Every row with NaN (or -1) where nothing was seen, as `decode` takes it."""
    batch = view.split("all").whole()
    if batch.observed is None:
        return batch.x
    hole = torch.nan if batch.x.is_floating_point() else -1
    return torch.where(batch.observed, batch.x, hole)


def columns(n):
    cents = st.integers(-(10**6), 10**6).map(lambda v: v / 100)
    names = st.sampled_from(["red", "dark blue", "<=50K", "?", "ünder", "None", "x1"])
    return st.tuples(
        st.lists(st.integers(-(2**24), 2**24), min_size=n, max_size=n),
        st.lists(cents, min_size=n, max_size=n),
        st.lists(st.one_of(cents, st.just(float("nan"))), min_size=n, max_size=n),
        st.lists(st.one_of(names, st.none()), min_size=n, max_size=n),
        st.lists(st.booleans(), min_size=n, max_size=n),
        st.lists(names, min_size=n, max_size=n),
        st.lists(st.integers(0, 200), min_size=n, max_size=n),
    )


@given(st.integers(3, 15).flatmap(columns))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_frame_comes_back_as_it_was(lists):
    whole_numbers, real, holes, names, flags, category, small = lists
    frame = pd.DataFrame(
        {
            "whole": whole_numbers,
            "real": real,
            7: [0.5, *holes[1:]],
            "name": ["red", *names[1:]],
            "flag": flags,
            "category": pd.Categorical(category),
            "small": np.array(small, np.uint8),
            "single": np.array(real, np.float32),
        }
    )
    view = data.open(frame).view()
    pd.testing.assert_frame_equal(view.decode(whole(view)), frame, check_exact=True)
    stored = View.from_dict(view.to_dict())
    pd.testing.assert_frame_equal(stored.decode(whole(view)), frame, check_exact=True)


def test_kinds_of_columns(tmp_path):
    source = data.open(written(tmp_path, MIXED))
    kinds = {name: field.space.kind for name, field in source.fields.items()}
    assert kinds == {
        "age": "counts",
        "work": "label",
        "income": "real",
        "flag": "binary",
        "member": "binary",
    }
    assert source.name == "t"
    assert source.fields["work"].codec.names == ("?", "Private", "State-gov", "(missing)")
    assert source.view().space.kind == "columns"
    assert [c.name for c in source.view().space.columns] == list(kinds)
    frame = source.view().decode(whole(source.view()))
    assert list(frame.columns) == list(kinds)
    assert frame["age"].dtype == "int64"
    assert frame["member"].tolist() == ["yes", "no", "yes", "no", "yes"]
    assert frame["work"].isna().tolist() == [False, False, True, False, False]


def test_missing_cells_are_modelled_ignored_or_dropped(tmp_path):
    path = written(tmp_path, MIXED)
    view = data.open(path).view()
    batch = view.split("all").whole()
    assert batch.observed is None
    assert view.space.empty(batch.x).nonzero().tolist() == [[2, 1], [3, 2]]
    assert [column.name for column in view.space.columns if column.optional] == ["work", "income"]
    assert view.decode(whole(view)).isna().sum().sum() == 2
    for word in ("missing=ignore", "space=plain"):
        ignored = data.open(path, word).view().split("all").whole()
        assert (~ignored.observed).nonzero().tolist() == [[2, 1], [3, 2]]
        assert ignored.x.isfinite().all()
    dropped = data.open(path, "missing=drop")
    assert len(dropped) == 3
    assert dropped.summary()[0]["dropped"] == 2
    assert not dropped.view().space.missing


@pytest.mark.parametrize(
    ("text", "name", "columns"),
    [
        ("1,2\n3,4\n5,6\n", "a.csv", ["c1", "c2"]),
        ("a,b\n3,4\n5,6\n1,7\n", "a.csv", ["a", "b"]),
        ("a;b\n3;4\n5;6\n1;7\n", "a.csv", ["a", "b"]),
        ("a\tb\n3\t4\n5\t6\n1\t7\n", "a.tsv", ["a", "b"]),
        (" 1.5  2\n 3   4\n\n 5.5 6\n", "a.txt", ["c1", "c2"]),
        ("0,1\n1,1\n0,0\n", "a.data", ["c1", "c2"]),
        ("1,5;2,5\n3,5;4,5\n5,5;7,5\n", "a.csv", ["c1", "c2"]),
    ],
)
def test_separators_and_headers_are_found(tmp_path, text, name, columns):
    source = data.open(written(tmp_path, text, name))
    assert list(source.fields) == columns
    assert len(source) == 3


@pytest.mark.parametrize(
    ("first", "told"),
    [("country,1,2", True), ("a,2019,2020", False), ("2001-02-03,5.5,7.5", False)],
)
def test_a_first_line_with_numbers_that_may_name_the_columns_is_told_of(tmp_path, first, told):
    rows = "".join(f"{'abc'[i % 3]},{i}.5,{i * i}.25\n" for i in range(30))
    path = written(tmp_path, f"{first}\n{rows}")
    assert any("data.header=yes" in note for note in data.open(path).notes) == told
    assert not any("data.header=yes" in note for note in data.open(path, "header=no").notes)


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("country,2019,2020", "1.5,2.5", True),
        ("country,2020,2010", "1.5,2.5", True),
        ("country,2019,2020", "2018,2021", False),  # years stand below them
        ("France,2019,2020", "1.5,2.5", False),  # a word that stands below
        ("country,2019,2030,2031", "1.5,2.5,3.5", False),
        ("country,2019,64", "1.5,2.5", False),
        ("country,2019", "1.5", False),
    ],
)
def test_years_in_even_steps_name_columns(tmp_path, first, second, named):
    path = written(tmp_path, f"{first}\nFrance,{second}\nSpain,{second}\nPeru,{second}\n")
    assert (list(data.open(path).fields) == first.split(",")) == named


def test_years_name_columns_above_numbers_with_decimal_commas(tmp_path):
    rows = "".join(f"{name};1,5;2,5\n" for name in ("France", "Spain", "Peru"))
    source = data.open(written(tmp_path, f"country;2019;2020\n{rows}"))
    assert list(source.fields) == ["country", "2019", "2020"]


def test_header_words_decide(tmp_path):
    path = written(tmp_path, "red,blue\ngreen,red\nred,red\nblue,blue\n")
    assert list(data.open(path).fields) == ["red", "blue"]
    assert list(data.open(path, "header=no").fields) == ["c1", "c2"]
    assert list(data.open(written(tmp_path, "1,2\n3,4\n5,6\n7,8\n"), "header=yes").fields) == [
        "1",
        "2",
    ]


def test_first_rows_of_equal_cells_are_data_where_their_cells_occur_again(tmp_path):
    path = written(tmp_path, "p,x,p\ne,y,p\np,x,e\n")
    assert list(data.open(path).fields) == ["c1", "c2", "c3"]
    assert len(data.open(path)) == 3


def read(path, *settings):
    return delimited.read(path, Options().override(*settings))


def read_at_a_time(monkeypatch, size):
    """Blocks of as few bytes as may be."""
    for name, value in (("BLOCK", size), ("PER_COLUMN", 1), ("OPENING", size)):
        monkeypatch.setattr(delimited, name, value)


def test_a_quoted_name_keeps_its_line_break(tmp_path):
    sheet = read(written(tmp_path, '"pay\nper day",job\n1,x\n2,y\n'))
    assert list(sheet.frame) == ["pay\nper day", "job"]
    assert sheet.frame["job"].tolist() == ["x", "y"]
    assert sheet.lines.tolist() == [3, 4]


def by_csv(text):
    """The line each row that is not blank begins on, and its cells."""
    line, reader = 1, csv.reader(io.StringIO(text), skipinitialspace=True)
    for cells in reader:
        if len(cells) > 1 or any(map(str.strip, cells)):
            yield line, cells
        line = reader.line_num + 1


CELLS = [
    "1",
    "x",
    "",
    "NA",
    '"q"',
    '"a,b"',
    '"a""b"',
    '""',
    ' "s"',
    '5" pipe',
    '"m\nn"',
    "é",
    '"x"y"z',
]


@given(
    st.lists(st.lists(st.sampled_from(CELLS), min_size=2, max_size=2), min_size=1, max_size=6),
    st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"]),
    st.integers(1, 30),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_rows_are_those_of_the_csv_module(tmp_path, monkeypatch, rows, ending, block):
    read_at_a_time(monkeypatch, block)
    text = ending.join(map(",".join, [["first", "second"], *rows])) + ending
    sheet = read(written(tmp_path, text), "header=yes")
    wanted = list(by_csv(text.replace("\r\n", "\n")))[1:]
    found = [
        ["" if pd.isna(cell) else str(cell).strip() for cell in row]
        for row in sheet.frame.astype(object).to_numpy().tolist()
    ]
    assert found == [["" if cell == "NA" else cell.strip() for cell in row] for _, row in wanted]
    assert sheet.lines.tolist() == [line for line, _ in wanted]


def test_types_do_not_depend_on_how_many_rows_are_parsed_at_a_time(tmp_path, monkeypatch):
    path = written(
        tmp_path,
        "a,b,c,d,e\n1,1,true,18446744073709551615,\n"
        "2,2.5,false,1,\n07,3,0,2,\n4,,1,3,\nx,4,true,4,u\n",
    )
    whole = read(path).frame
    read_at_a_time(monkeypatch, 1)
    pd.testing.assert_frame_equal(read(path).frame, whole)
    assert whole["a"].tolist() == ["1", "2", "07", "4", "x"]
    assert whole["d"].tolist() == [2**64 - 1, 1, 2, 3, 4]


LARGE = "18446744073709551615"


@pytest.mark.parametrize(
    "cells",
    [
        ["", "", "true", "", "false"],
        ["", "x", "", "y"],
        ["", "1", "2.5", ""],
        ["1", "true"],
        [LARGE, "1", "2"],
        [LARGE, "", "1"],
        [LARGE, "1.5"],
        ["a", LARGE, "", "3"],
        ["9007199254740993", "1.5"],
        ["1.5", "9" * 25],
        ["9" * 25, "1.5"],
        ["", ""],
        ["\ufeffx", "\ufeffy"],
    ],
)
@pytest.mark.parametrize("size", [1, 12, 30])
def test_a_column_has_one_type_however_its_rows_are_read(tmp_path, monkeypatch, cells, size):
    path = written(tmp_path, "a,b\n" + "".join(f"{cell},0\n" for cell in cells))
    whole = read(path, "header=yes").frame
    read_at_a_time(monkeypatch, size)
    found = read(path, "header=yes").frame
    pd.testing.assert_frame_equal(found, whole, check_exact=True)
    assert len(found) == len(cells)


def test_a_byte_order_mark_is_part_of_a_cell_below_the_first_line(tmp_path):
    frame = read(written(tmp_path, "\ufeffa,b\n\ufeffx,1\ny,2\n")).frame
    assert frame.to_dict("list") == {"a": ["\ufeffx", "y"], "b": [1, 2]}


@pytest.mark.parametrize("size", [1, 8, 2**18])
@pytest.mark.parametrize("ending", ["\r", "\r\n"])
def test_rows_that_make_up_for_each_other_are_refused(tmp_path, monkeypatch, size, ending):
    read_at_a_time(monkeypatch, size)
    text = ending.join(["a,b,c", *["1,2,3"] * 5, "1,2", "3,4,5,6", ""])
    with pytest.raises(DataError, match=r"line 7: expected 3 cells, found 2"):
        read(written(tmp_path, text), "header=no")


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("a;b\n1,5;x\n2,5;y\n-3,25e2;z\n", [1.5, 2.5, -325.0]),
        ("a;b\n1,5;x\n2.5;y\n3;z\n", [1.5, 2.5, 3.0]),
        ("a;b\nAllee 3,4;x\n1,2,3;y\nPlatz;z\n", ["Allee 3,4", "1,2,3", "Platz"]),
    ],
)
def test_decimal_commas_are_those_of_numbers(tmp_path, text, column):
    assert read(written(tmp_path, text)).frame["a"].tolist() == column


def test_quoted_cells_between_blanks_keep_theirs(tmp_path):
    frame = read(written(tmp_path, ' a b\n"x  y"  1\n z 2\n', "t.txt")).frame
    assert frame.to_dict("list") == {"a": ["x  y", "z"], "b": [1, 2]}


@pytest.mark.parametrize(
    ("text", "name"),
    [("1 {} y\n2 z y\n", "t.txt"), ("1,{},y\n2,z,y\n", "t.txt"), ("1,z,y\n2,{},y\n", "t.csv")],
)
def test_cells_may_be_longer_than_the_csv_module_allows(tmp_path, text, name):
    limit = csv.field_size_limit()
    long = "x" * (limit + 1)
    frame = read(written(tmp_path, text.format(long), name)).frame
    assert sorted(frame["c2"]) == [long, "z"]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    "text", [" u,x\nv,y\n", "u,x\n v,y\n", "u, x\nv,y\n", 'u,"x"\nv, "y"\n', "u,x\nv, y\n"]
)
@pytest.mark.parametrize("block", [3, 4, 5, 2**20])
def test_a_space_before_a_cell_is_no_part_of_it(tmp_path, monkeypatch, text, block):
    read_at_a_time(monkeypatch, block)
    frame = read(written(tmp_path, text), "header=no").frame
    assert frame.to_dict("list") == {"c1": ["u", "v"], "c2": ["x", "y"]}


def test_a_full_stop_that_ends_every_line_is_no_part_of_a_name(tmp_path):
    source = data.open(written(tmp_path, "1, no.\n2, yes.\n3, no.\n"))
    assert source.fields["c2"].codec.values == ("no", "yes")
    assert "full stop" in source.notes[0]


def test_homogeneous_tables_are_one_space():
    real = data.open(pd.DataFrame({"a": [0.5, 1.5, -2.5], "b": [-1.5, 2.5, 4.5]})).view().space
    assert (real.kind, real.shape, len(real.mean)) == ("real", (2,), 2)
    binary = data.open(pd.DataFrame({"a": [0, 1, 1], "b": [True, False, True]})).view().space
    assert (binary.kind, binary.shape) == ("binary", (2,))
    single = data.open(pd.DataFrame({"a": ["x", "y", "x"]})).view()
    assert (single.space.kind, single.space.shape) == ("label", ())
    assert single.split("all").whole().x.dtype == torch.int64


def test_words_choose_columns():
    frame = pd.DataFrame({"id": range(5), "grade": [1, 2, 3, 1, 2]})
    source = data.open(frame, "drop=id", "names=grade")
    assert source.fields["grade"].codec.names == ("1", "2", "3")
    assert source.view().decode(torch.tensor([2, 0]))["grade"].tolist() == [3, 1]
    with pytest.raises(UsageError, match="did you mean grade"):
        data.open(frame, "drop=grad")
    with pytest.raises(UsageError, match="did you mean grade"):
        data.open(frame, "names=gradr")
    with pytest.raises(UsageError, match="keep at least one"):
        data.open(frame, "drop=id,grade")


def test_a_constant_column_is_kept_and_flagged():
    source = data.open(pd.DataFrame({"a": [0.1] * 5, "b": [1.5, 2.5, 3.5, 4.5, 5.5]}))
    assert source.fields["a"].space.scale == (1.0,)
    assert [entry["constant"] for entry in source.summary()] == [True, False]


def test_files_of_a_folder_keep_their_splits(tmp_path):
    for split, rows in (("train", 20), ("test", 5)):
        with gzip.open(tmp_path / f"toy-{split}.csv.gz", "wt") as file:
            file.write("".join(f"{i},{split}\n" for i in range(rows)))
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "toy.names").write_text("words")
    source = data.open(tmp_path)
    assert source.has_splits
    assert source.name == tmp_path.name
    assert {split: len(rows) for split, rows in source.splits.items()} == {
        "train": 18,
        "valid": 2,
        "test": 5,
    }
    assert source.splits["test"].tolist() == list(range(20, 25))


MOSTLY = "a,b\n" + "".join(f"{i},{i}.5\n" for i in range(20)) + "oops,1\n"
LONG = "a\n" + "".join(f"name{i}\n" for i in range(150))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("\n  \n", "is empty"),
        ("a,b\n", "data.header=no"),
        ("a,b\n1,2\n3\n", r"t\.csv, line 3: expected 2 cells, found 1; .* ','"),
        ("a,b\n1,2\n3,4,5\n", "line 3: expected 2 cells, found 3"),
        ('a,b\n"1\n1",2\n\n3,4,5\n', "line 5: expected 2 cells, found 3"),
        ('a,b\n5" pipe,2\n"a, ""b""",4\n3\n', "line 4: expected 2 cells, found 1"),
        ('a,b\n1,2\n3,"4\n5,6\n', "line 3: .*closing quote"),
        ("a,b\n1,2\n3,x\0y\n", "line 3: .*NUL"),
        ("a,b,a\nx,y,z\nu,v,w\n", "'a' at positions 1 and 3; .*data.header=no"),
        (MOSTLY, "column 'a', row 22 .*'oops' .*data.text=label"),
        ("a,b\n1,2\n\n3,inf\n4,5\n", "column 'b', row 4 .*: inf "),
        ("a\n1e300\n2.5\n3\n", "row 2 .*too large"),
        ("a,b\n1,2\n3,4\n", "at least 3"),
        ("a,b\n1,\n3,\n4,\n", "'b' .*data.drop=b"),
        (LONG, "'a' .*150 rows.*data.drop=a"),
    ],
)
def test_bad_tables_get_one_sentence(tmp_path, text, sentence):
    with pytest.raises(DataError, match=sentence) as caught:
        data.open(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_other_bad_tables_get_one_sentence(tmp_path):
    with pytest.raises(DataError, match="'a' at positions 1 and 2"):
        data.open(written(tmp_path, "a,a\n1,2\n3,4\n5,6\n"), "header=yes")
    (tmp_path / "latin.csv").write_bytes("a,b\ncafé,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        data.open(tmp_path / "latin.csv")
    (tmp_path / "bad.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"bad.csv.gz"):
        data.open(tmp_path / "bad.csv.gz")
    with pytest.raises(DataError, match="a list is neither"):
        data.open(pd.DataFrame({"t": [[1], [2], [3]]}))
    with pytest.raises(DataError, match=r"frame .*data\.missing=model"):
        data.open(pd.DataFrame({"a": [1.5, None, None], "b": [None, 2.5, 3.5]}), "missing=drop")
    with pytest.raises(DataError, match=" a, a"):
        data.open(pd.DataFrame([[1, 2]] * 4, columns=["a", "a"]))


def test_text_among_numbers_may_be_read_as_names(tmp_path):
    source = data.open(written(tmp_path, MOSTLY), "text=label")
    assert source.fields["a"].space.kind == "label"


def test_files_of_a_folder_must_agree(tmp_path):
    written(tmp_path, "a,b\n1,2\n", "train.csv")
    written(tmp_path, "a,c\n1,2\n", "test.csv")
    with pytest.raises(DataError, match="files of one folder must agree"):
        data.open(tmp_path)
    written(tmp_path, "1,2\n", "train-2.csv")
    with pytest.raises(DataError, match="could be the same split"):
        data.open(tmp_path)


def test_words_among_numbers_may_be_read_as_missing(tmp_path):
    source = data.open(written(tmp_path, MOSTLY), "text=missing")
    assert source.fields["a"].space.kind == "counts"
    assert source.missing("a") == 1
    other = data.open(written(tmp_path, "a,b\nnone at all,3.5\n"), fields=source.fields_dict())
    assert other.missing("a") == 1


@pytest.mark.parametrize(
    ("odd", "remedy"),
    [("high", "text=missing"), ("?", "text=missing"), ("1,%03d.5", "drop=a"), ("%d %%", "drop=a")],
)
def test_text_and_signs_among_numbers_are_told_apart(tmp_path, odd, remedy):
    cells = [odd % i if "%" in odd else odd for i in range(300)]
    cells = [cell if i % 5 == 0 else str(i) for i, cell in enumerate(cells)]
    table = "a,b\n" + "".join(f'"{cell}",{i % 3}.5\n' for i, cell in enumerate(cells))
    with pytest.raises(DataError, match="column 'a'") as caught:
        data.open(written(tmp_path, table))
    assert caught.value.settings == (remedy,)
    assert any(repr(cell) in str(caught.value) for cell in cells[::5])
    source = data.open(written(tmp_path, table), remedy)
    assert "a" not in source.fields or source.missing("a") == 60


def test_every_column_that_cannot_be_read_is_told_at_once(tmp_path):
    names = ["".join(letters) for letters in itertools.permutations("abcdef")]
    rows = "".join(f"{names[i]},{i if i else 'oops'},,{i % 7}.5\n" for i in range(150))
    with pytest.raises(
        DataError,
        match=r"3 columns.*'who'.* 150 .*'n'.*'oops'.*'e'.*data\.drop=who,e .*data\.text=missing",
    ):
        data.open(written(tmp_path, "who,n,e,x\n" + rows))


def test_whole_floats_with_missing_cells_are_counts(tmp_path):
    source = data.open(written(tmp_path, "a,b\n" + "18.0,1.5\n44.0,2.5\n,3.5\n" * 5))
    assert source.fields["a"].space.kind == "counts"


def test_a_column_that_numbers_the_rows_is_told_of(tmp_path):
    text = "id,x\n" + "".join(f"{1000 + i},{i % 5}.5\n" for i in range(30))
    source = data.open(written(tmp_path, text))
    assert "id is a key" in source.notes[0]
    assert source.main == ("x",)


def test_numbers_far_from_zero_keep_their_digits(tmp_path):
    rows = "".join(f"{1700000000 + 7 * i},{1e15 + i / 4:.17g},{2**40 * i}\n" for i in range(40))
    source = data.open(written(tmp_path, "t,x,wide\n" + rows))
    assert [field.space.kind for field in source.fields.values()] == ["counts", "real", "real"]
    view = source.view()
    decoded = view.decode(view.split("all").whole().x)
    assert decoded["t"].tolist() == [1700000000 + 7 * i for i in range(40)]
    np.testing.assert_allclose(decoded["x"] - 1e15, np.arange(40) / 4)
    assert source.summary()[0]["low"] >= 1700000000
    other = data.open(
        written(tmp_path, "t,x,wide\n1700000014,1e15,0\n"), fields=source.fields_dict()
    )
    assert view.decode(other.view().split("all").whole().x)["t"].tolist() == [1700000014]


@pytest.mark.parametrize(
    ("text", "first"),
    [("14695981039346656037", 14695981039346656037), ("1" + "0" * 30, "1" + "0" * 30)],
)
def test_integers_that_int64_cannot_hold_come_back_as_they_were(tmp_path, text, first):
    view = data.open(written(tmp_path, "a,b\n" + f"{text},1.5\n5,2.5\n7,3.5\n" * 4)).view()
    assert view.decode(view.split("all").whole().x)["a"][0] == first


def test_two_tables_are_refused_with_how_to_join_them(tmp_path):
    for name in ("customers.csv", "orders.csv"):
        (tmp_path / name).write_text("id,x\n1,2\n3,4\n")
    both = f"{tmp_path / 'customers.csv'},{tmp_path / 'orders.csv'}"
    with pytest.raises(DataError, match=r"customers\.csv and orders\.csv.*merge"):
        data.open(both)


def test_booleans_beside_empty_cells_come_back():
    rng = np.random.default_rng(0)
    column = pd.array(rng.random(60) < 0.5, dtype="boolean")
    column[::5] = pd.NA
    source = data.open(pd.DataFrame({"m": column, "x": rng.normal(size=60)}))
    cells = source.fields["m"].codec.decode(source.tensors["m"].numpy())
    assert pd.Series(cells).astype("boolean").equals(pd.Series(column))


@pytest.mark.parametrize("write", ["${:,.2f}", "{:.1f}%", "{:,.0f}", "{:.2f} kg", "€{:.2f}"])
def test_numbers_with_signs_are_not_called_identifiers(write):
    cells = [write.format(1000.5 + 37.31 * row) for row in range(150)]
    with pytest.raises(DataError, match=r"holds numbers.*data\.drop=price"):
        data.open(pd.DataFrame({"price": cells, "b": np.arange(150) % 7 / 4}))
    codes = [f"{row}-{row % 7}x" for row in range(1000, 1150)]
    with pytest.raises(DataError, match="identifier"):
        data.open(pd.DataFrame({"price": codes, "b": np.arange(150) % 7 / 4}), "space=plain")


def test_rows_of_mixed_objects_are_refused_in_a_sentence():
    for rows in ([{"a": 1}, (2, "x"), None, ([], 4)], {"a": [1, 2], "b": [1, 2, 3]}):
        with pytest.raises(DataError, match="table"):
            data.open(rows)


@pytest.mark.parametrize("mark", [",", ";", "\t", " "])
@pytest.mark.parametrize("before", ["\n", "  \n\n", "\r\n"])
def test_blank_lines_above_the_names_are_no_rows(tmp_path, mark, before):
    rows = [["a", "b"], ["1", "2"], ["3", "4"], ["5", "7"], ["8", "9"]]
    text = "".join(mark.join(row) + "\n" for row in rows)
    path = tmp_path / "t.txt"
    path.write_bytes((before + text).encode())
    source = data.open(path)
    assert list(source.fields) == ["a", "b"]
    assert len(source) == 4


@pytest.mark.parametrize(
    "target", [3, "abcd", np.array(3), [(None, 1), None, [], 2], [[1, 2]] * 4]
)
def test_a_target_that_is_no_column_is_refused(target):
    with pytest.raises(DataError):
        data.open((pd.DataFrame({"a": [1, 2, 3, 4], "b": list("xyxy")}), target))


def test_columns_are_written_as_pandas_writes_them():
    rng, n = np.random.default_rng(0), 60
    empty = rng.random(n) < 0.3
    words = np.array(["a", "b, c", 'say "d"', "e\nf", " g ", "ünï"])[rng.integers(0, 6, n)]
    numbers = rng.normal(0, 1, n) * 10.0 ** rng.integers(-9, 18, n)
    frame = pd.DataFrame(
        {
            "word": words,
            "some words": pd.Series(words, dtype=object).mask(empty),
            "number": numbers,
            "short": rng.normal(size=n).round(2),
            "some numbers": pd.Series(numbers).mask(empty),
            "nullable": pd.Series(numbers, dtype="Float64").mask(empty),
            "single": numbers.astype(np.float32),
            "whole": rng.integers(-5, 5000, n),
            "byte": rng.integers(0, 200, n).astype(np.uint8),
            "some whole": pd.Series(rng.integers(0, 50, n)).mask(empty).astype("Int64"),
            "truth": rng.random(n) < 0.5,
            "some truths": pd.Series(rng.random(n) < 0.5, dtype=object).mask(empty),
            "yes": rng.choice(["yes", "no"], n),
            "large": 2**60 + rng.integers(0, 1000, n),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, n), "D"),
            "category": pd.Categorical(words),
        }
    )
    source = data.open(frame, "space=plain", "time=none")
    plain = set()
    for field in source.schema.fields:
        values = field.codec.decode(source.stored[field.name])
        cells = tables.written_cells(values, field.codec)
        if cells is None:
            continue
        plain.add(field.name)
        file = io.StringIO()
        WrittenTable([(field.name, cells)]).to_csv(file)
        written = tables.assemble([(field.key, field.codec, values)])
        assert file.getvalue() == written.to_csv(index=False), field.name
    assert plain >= {*frame.columns} - {"day", "category", "large"}
