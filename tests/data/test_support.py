"""The support of columns: empty cells, atoms, natural bounds and whole numbers, and keys."""

import uuid

import numpy as np
import pandas as pd
import pytest

from monge.core.errors import DataError, UsageError
from monge.core.space import Space
from monge.data import loading as data
from monge.data.schema_fit import find_support, frequent_values, natural_bounds

N = 400


def table(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "height": rng.normal(170, 10, N).round(1),
            "tip": np.where(rng.random(N) < 0.3, 0.0, rng.gamma(3.0, 2.0, N)),
            "share": rng.beta(1.5, 1.5, N),
            "children": rng.poisson(1.5, N),
            "balance": rng.normal(size=N),
            "job": rng.choice(["cook", "clerk", "smith"], N),
        }
    )


def spaces(frame, *settings):
    return {name: field.space for name, field in data.open(frame, *settings).fields.items()}


def test_a_value_that_stands_out_is_an_atom_and_rounded_numbers_are_not():
    found = spaces(table())
    assert found["tip"].atoms == (0.0,)
    assert found["height"].atoms == ()  # rounded to a decimal, so that values repeat
    rng = np.random.default_rng(1)
    whole = rng.normal(0, 3, 4000).round()  # each value in up to 13 % of cells
    assert frequent_values(whole) == []
    capped = np.minimum(rng.gamma(2.0, 2.0, 2000), 5.0)
    assert frequent_values(capped) == [5.0]


def test_few_values_are_a_scale_without_atoms():
    assert frequent_values(np.array([0.5] * 90 + [1.5] * 5 + [2.5] * 5)) == []


def test_whole_numbers_have_bounds_but_no_atoms():
    found = spaces(table())
    assert found["children"].kind == "counts"
    assert found["children"].lower == 0
    assert found["children"].atoms == ()


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ([0.02, 0.5, 0.97], (0.0, 1.0)),
        ([1.0, 50.0, 99.0], (0.0, 100.0)),
        ([40.0, 80.0, 100.0], (0.0, 100.0)),  # reaches it
        ([16.0, 40.0, 95.0], (0.0, None)),  # ages: neither near 0 nor at 100
        ([0.0, 5.0, 500.0], (0.0, None)),
        ([-0.1, 0.5, 0.9], (None, None)),
    ],
)
def test_natural_bounds(values, bounds):
    x = np.array(values, np.float32)
    assert natural_bounds(x, float(x.std())) == bounds


def test_a_far_bound_is_none():
    assert spaces(table())["height"].lower is None
    assert spaces(table())["balance"].is_plain


def test_a_value_on_a_bound_has_a_probability():
    rng = np.random.default_rng(0)
    share = np.clip(rng.normal(0.5, 0.4, N), 0, 1)
    found = spaces(pd.DataFrame({"share": share, "x": rng.normal(size=N)}))["share"]
    assert (found.lower, found.upper) == (0.0, 1.0)
    assert found.atoms == (0.0, 1.0)


def test_rows_of_all_splits_decide():
    frame = table()
    source = data.open(frame)
    held_out = int(source.splits["test"][0])
    frame.loc[held_out, ["share", "balance"]] = [-0.5, None]
    found = data.open(frame).fields
    assert found["share"].space.lower is None
    assert found["balance"].space.optional
    train = frame["balance"].to_numpy()[source.splits["train"]]
    assert not np.isnan(train).any()
    assert found["balance"].space.mean[0] == pytest.approx(train.mean(), rel=1e-5)


def test_empty_cells_are_a_value_ignored_or_dropped():
    frame = table()
    frame.loc[::4, "balance"] = None
    frame.loc[::5, "job"] = None
    modelled, ignored = spaces(frame), spaces(frame, "missing=ignore")
    assert modelled["balance"].optional
    assert not modelled["balance"].missing
    assert modelled["job"].optional
    assert modelled["job"].size == 4
    assert ignored["balance"].missing
    assert not ignored["balance"].optional
    assert ignored["job"].size == 3
    dropped = data.open(frame, "missing=drop")
    assert len(dropped) == int(frame.notna().all(axis=1).sum())
    assert not any(field.space.missing for field in dropped.fields.values())


def test_plain_switches_all_of_it_off():
    frame = table().assign(id=np.arange(1, N + 1), same=3)
    frame["level"] = frame["job"].map({"cook": 1, "clerk": 2, "smith": 5})
    frame.loc[::4, "balance"] = None
    source = data.open(frame, "space=plain")
    assert all(field.space.is_plain for field in source.fields.values())
    assert set(source.main) == set(frame.columns)
    assert not source.notes
    auto = data.open(frame)
    assert set(frame.columns) - set(auto.main) == {"id", "same", "level"}


def test_dates_and_offsets_have_no_natural_bounds():
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2020-03-01") + pd.to_timedelta(rng.integers(0, 90, N), unit="D")
    frame = pd.DataFrame({"day": days.strftime("%Y-%m-%d"), "job": rng.choice(["a", "b"], N)})
    assert spaces(frame)["day"].is_plain


def test_bounds_given_replace_natural_ones():
    space = Space(kind="real", scale=(1.0,))
    x = np.array([0.2, 0.4, 0.9])
    assert find_support(space, x, True, (-1.0, None)).lower == -1
    assert find_support(space, x, True, (None, 5.0)).upper == 5
    assert find_support(space, x, True, has_zero=False).is_plain


def test_a_row_outside_natural_bounds_is_refused_by_its_number():
    source = data.open(table())
    other = table(1)
    other.loc[6, "share"] = 1.5
    with pytest.raises(DataError, match=r"'share', row 7.*1\.5 .*bound 1"):
        data.open(other, fields=source.view().to_dict())
    other.loc[6, "share"] = 0.5
    assert len(data.open(other, fields=source.view().to_dict())) == N
    other.loc[6, "share"] = 1.5  # an input of a predictor may be anything
    assert data.open(other, fields=source.view(target="job").to_dict())


KEYS = {
    "row": lambda n: np.arange(1, n + 1),
    "from_zero": lambda n: np.random.default_rng(0).permutation(n),
    "customer_id": lambda n: np.arange(7000, 7000 + n),
    "serial": lambda n: [f"A{i:04d}" for i in range(n)],
    "user": lambda n: [f"user{i}" for i in range(n)],
    "uuid": lambda n: [str(uuid.UUID(int=i * 7919 << 64 | i)) for i in range(n)],
    "hash": lambda n: [f"{i * 2654435761 % 2**32:08x}" for i in range(n)],
    "order_id": lambda n: np.random.default_rng(0).permutation(10**6)[:n],
    "userId": lambda n: np.arange(5, 5 + 3 * n, 3),
    "account": lambda n: [str(10**19 + i * 2654435761**2 % 10**18) for i in range(n)],
    "long": lambda n: 10**18 + np.random.default_rng(0).permutation(10**6)[:n] * 10**11,
    "longer": lambda n: np.array([10**19 + i * 7919**3 for i in range(n)], np.uint64),
    "plate": lambda n: [f"AB-{i * 37 % 9000 + 1000}-{'XYZ'[i % 3]}" for i in range(n)],
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_recognised_and_made_afresh(name):
    frame = table().assign(**{name: KEYS[name](N)})
    source = data.open(frame)
    (key,) = source.schema.row_keys
    assert key.name == name
    assert name not in source.fields
    assert f"{name} is a key" in source.notes[0]
    view = source.view()
    x = view.split("all").whole().x
    made = view.decode(x)
    assert list(made) == list(frame)
    assert made[name].is_unique
    assert not set(made[name]) & set(frame[name])
    if isinstance(frame[name][0], str):
        assert {len(cell) for cell in made[name]} <= {len(cell) for cell in frame[name]}
    if name in ("row", "serial", "user"):
        first = {"row": N + 1, "serial": f"A{N:04d}", "user": f"user{N}"}[name]
        assert made[name][0] == first
    kept = view.decode(x, view.split("all").repeated_keys(1))
    assert kept[name].tolist() == frame[name].tolist()


@pytest.mark.parametrize(
    "column",
    [
        np.arange(1900, 1900 + N),  # years
        np.append(np.arange(1, N), 1),  # one twice
        np.arange(1, 2 * N, 2),  # with gaps
        np.arange(N) / 7,
    ],
)
def test_other_numbers_are_no_keys(column):
    assert not data.open(table().assign(value=column)).schema.row_keys


@pytest.mark.parametrize("name", ["paid", "humid", "keys pressed", "id_count"])
def test_numbers_that_differ_are_no_keys_without_such_a_name(name):
    frame = table().assign(**{name: np.arange(5, 5 + 3 * N, 3)})
    assert not data.open(frame).schema.row_keys


def test_numbers_that_repeat_are_no_key():
    assert not data.open(table().assign(group_id=np.arange(N) // 2)).schema.row_keys


def test_few_rows_have_no_keys():
    assert not data.open(table().head(15).assign(id=np.arange(1, 16))).schema.row_keys


def test_keys_follow_the_rows_that_are_selected():
    frame = table().assign(id=np.arange(1, N + 1))
    frame.loc[::4, "balance"] = None
    source = data.open(frame, "missing=drop")
    expected = frame["id"][frame["balance"].notna()].tolist()
    assert source.row_keys["id"].tolist() == expected
    test = source.view().split("test")
    assert test.row_keys["id"].tolist() == np.array(expected)[source.splits["test"]].tolist()


def test_a_key_cannot_be_a_target_or_condition():
    source = data.open(table().assign(id=np.arange(1, N + 1)))
    with pytest.raises(UsageError, match=r"'id'.*data\.space=plain"):
        source.view(target="id")
    with pytest.raises(UsageError, match=r"'id'.*data\.space=plain"):
        source.view(given=["id"])


def test_bad_columns_and_several_tables_get_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"'void'.*data\.drop=void"):
        data.open(table().assign(void=np.nan))
    constant = data.open(table().assign(same=3))
    assert any("same is 3 in every row" in note for note in constant.notes)
    with pytest.raises(DataError, match=r"people, jobs.*merge"):
        data.open({"people": table(), "jobs": table()})
    for name in ("people", "jobs"):
        table().to_csv(tmp_path / f"{name}.csv", index=False)
    with pytest.raises(DataError, match=r"jobs\.csv, people\.csv.*merge"):
        data.open(tmp_path)
    table().assign(pay=1.5).to_csv(tmp_path / "jobs.csv", index=False)
    with pytest.raises(DataError, match=r"people\.csv.*jobs\.csv.*'?pay'?.*merge"):
        data.open(f"{tmp_path}/*.csv")


def test_the_summary_has_the_support():
    frame = table().assign(id=np.arange(1, N + 1), same=3)
    frame["level"] = frame["job"].map({"cook": 1, "clerk": 2, "smith": 5})
    frame.loc[::4, "balance"] = None
    frame.loc[::5, "job"] = None
    found = {entry["name"]: entry for entry in data.open(frame).summary()}
    assert list(found) == list(frame)
    assert found["balance"]["empty"] == 0.25
    assert found["job"]["empty"] == 0.2
    assert found["tip"]["atoms"] == [0.0]
    assert (found["share"]["lower"], found["share"]["upper"]) == (0.0, 1.0)
    assert found["id"]["role"] == "key"
    assert found["same"]["role"] == "constant"
    assert found["level"]["role"] is None  # it is known where the job is empty
    assert found["height"]["role"] is None
