"""Series: times, gaps, windows, splits without leakage, and every refusal."""

import numpy as np
import pandas as pd
import pytest
import torch

from monge.core.errors import DataError, UsageError
from monge.data import loading as data
from monge.data.codecs import time_index
from monge.data.codecs.window import Window


def frame(n=200, freq="h", form="%Y-%m-%d %H:%M:%S", seed=0):
    rng = np.random.default_rng(seed)
    times = pd.date_range("2020-01-31", periods=n, freq=freq).strftime(form)
    return pd.DataFrame({"when": times, "a": np.arange(n) * 1.0, "b": rng.normal(size=n)})


@pytest.mark.parametrize(
    ("freq", "form", "season"),
    [
        ("h", "%Y-%m-%d %H:%M:%S", 24),
        ("15min", "%Y-%m-%d %H:%M", 96),
        ("D", "%Y-%m-%d", 7),
        ("W", "%Y-%m-%d", 52),
        ("B", "%Y-%m-%d", 5),
        ("MS", "%Y-%m", 12),
        ("ME", "%Y-%m-%d", 12),
        ("QS", "%Y-%m-%d", 4),
        ("YS", "%Y-%m-%d", 1),
        ("D", "%Y-%m-%dT%H:%M:%S.%fZ", 7),
        ("MS", "%Y-%m-%d %H:%M:%S.%f", 12),
    ],
)
def test_clocks_find_the_frequency_and_write_times_as_they_were(freq, form, season):
    cells = np.array(pd.date_range("2019-11-30", periods=60, freq=freq).strftime(form), object)
    assert time_index.is_dates(cells)
    own = time_index.fit(*time_index.read(cells, "t"))
    assert own.season == season
    ticks = np.arange(60.0)
    np.testing.assert_array_equal(own.ticks(time_index.read(cells, "t")[0]), ticks)
    np.testing.assert_array_equal(own.written(ticks), cells)


def test_a_table_with_times_becomes_windows_of_one_array():
    source = data.open(frame(), "lookback=20", "horizon=5")
    assert set(source.fields) == {"series", "past", "future", "time"}
    assert (source.main, source.target) == (("series",), "future")
    view = source.view(target="future")
    assert list(view.given) == ["past"]
    batch = view.split("all").whole()
    assert batch.x.shape[1:] == (5, 2)
    assert batch.given["past"].x.shape[1:] == (20, 2)
    a = batch.given["past"].x[:, -1, 0]
    assert torch.equal(batch.x[:, 0, 0], a + 1)  # the future begins where the past ends
    flats = {source.tensors[name].flat.data_ptr() for name in ("series", "past", "future")}
    assert len(flats) == 1
    series = source.view().split("all").whole().x
    assert torch.equal(series, torch.cat([batch.given["past"].x, batch.x], 1))
    first = source.fields["time"].codec.decode(source.tensors["time"][:1].numpy())[0]
    assert first == "2020-01-31 20:00:00"


def test_splits_are_by_time_and_no_future_is_in_two():
    source = data.open(frame(), "lookback=20", "horizon=5")
    future = source.view(target="future").split("all").whole().x[..., 0]  # channel a is the step
    touched = {
        split: set(future[rows].flatten().tolist()) for split, rows in source.splits.items()
    }
    assert max(touched["train"]) < min(touched["valid"])
    assert max(touched["valid"]) < min(touched["test"])
    assert max(touched["test"]) == 199
    assert source.has_splits


def test_statistics_are_those_of_training_steps_each_counted_once():
    source = data.open(frame(), "lookback=20", "horizon=5")
    train = np.arange(160.0)  # 200 less 20 and 20
    for name in ("past", "future", "series"):
        space = source.fields[name].space
        np.testing.assert_allclose(space.mean[0], train.mean())
        np.testing.assert_allclose(space.scale[0], train.std())
        assert space.rows == len(source.splits["train"])


def test_borders_set_the_splits_whatever_the_data_are_called():
    source = data.open(frame(), "lookback=20", "horizon=5", "borders=100,50,30")
    assert {split: len(rows) for split, rows in source.splits.items()} == {
        "train": 76,
        "valid": 46,
        "test": 26,
    }
    with pytest.raises(UsageError, match=" 200 "):
        data.open(frame(), "lookback=20", "horizon=5", "borders=100,50,60")


def test_the_name_of_a_file_sets_no_borders(tmp_path):
    """ETT benchmarks have customary borders, which only data.borders sets."""
    for name in ("ETTh1", "other"):
        frame(15_000).to_csv(tmp_path / f"{name}.csv", index=False)
    splits = [
        data.open(tmp_path / f"{name}.csv", "lookback=20", "horizon=5").splits
        for name in ("ETTh1", "other")
    ]
    assert all(torch.equal(splits[0][split], splits[1][split]) for split in splits[0])


def test_defaults_follow_the_season():
    source = data.open(frame(1000))
    past, future = (source.fields[name].codec for name in ("past", "future"))
    assert (past.steps, future.steps, past.season) == (264, 24, 24)
    assert data.open(frame(), "season=12").fields["future"].codec.steps == 12


def test_one_channel_is_a_sequence_of_numbers(tmp_path):
    frame()[["when", "b"]].to_csv(tmp_path / "x.csv", index=False)
    source = data.open(tmp_path / "x.csv", "horizon=4", "lookback=8")
    assert source.fields["future"].space.shape == (4,)
    assert source.view().split("test").whole().x.shape[1:] == (12,)


def test_packed_files_need_no_ending(tmp_path):
    frame().to_csv(tmp_path / "x.csv.gz", index=False)
    assert len(data.open(tmp_path / "x.csv", "horizon=4", "lookback=8"))


def test_arrays_and_sound_are_series_where_words_say_so(tmp_path):
    from scipy.io import wavfile

    x = np.sin(np.arange(300) / 5)
    source = data.open(x, "horizon=4", "lookback=8")
    assert source.fields["series"].space.shape == (12,)
    wavfile.write(tmp_path / "x.wav", 100, (x * 2**14).astype(np.int16))
    sound = data.open(tmp_path / "x.wav", "horizon=4", "lookback=8")
    np.testing.assert_allclose(sound.tensors["series"].flat, x / 2, atol=1e-4)
    assert sound.fields["time"].codec.decode(np.array([8.0]))[0] == pytest.approx(0.08)


def test_what_is_known_and_the_calendar_are_fields_over_the_future():
    table = frame().assign(price=np.arange(200) % 7 * 1.0)
    source = data.open(table, "horizon=5", "lookback=20", "known=price", "calendar=true")
    view = source.view(target="future")
    assert list(view.given) == ["past", "known", "calendar"]
    batch = view.split("all").whole()
    assert torch.equal(batch.given["known"].x[..., 0], batch.x[..., 0] % 7)
    day = batch.given["calendar"].x
    assert day.shape[1:] == (5, 6)
    torch.testing.assert_close(
        day[:, :, 0], torch.sin(2 * torch.pi * batch.x[..., 0] / 24), atol=1e-4, rtol=0
    )


def test_rows_beyond_the_end_hold_what_is_known_of_the_future():
    table = frame().assign(price=1.0)
    table.loc[190:, ["a", "b"]] = np.nan
    source = data.open(table, "horizon=5", "lookback=20", "known=price")
    assert len(source.tensors["series"].flat) == 190
    assert len(source.tensors["known"].flat) == 200


@pytest.mark.parametrize("freq", ["D", "MS"])
@pytest.mark.parametrize("is_text", [True, False])
def test_days_of_a_zone_with_summer_time_are_equal_steps(freq, is_text):
    times = pd.date_range("2019-12-01", periods=200, freq=freq, tz="Europe/Paris")
    table = pd.DataFrame({"when": times.astype(str) if is_text else times, "a": np.arange(200.0)})
    source = data.open(table, "lookback=8", "horizon=2")
    assert len(source.tensors["series"].flat) == 200
    clock = source.fields["time"].codec
    written = pd.Series(clock.written(np.arange(200.0)))
    assert (written == times.strftime("%Y-%m-%d %H:%M:%S")).all()
    assert any("zone" in note for note in source.notes) == is_text
    later = table.iloc[120:140]  # the offset of a part of a year is the same, or not
    again = data.open_series(later, (), source.view(target="future").to_dict())
    assert clock.ticks(again.clock.start) == 120


def test_hours_of_a_zone_with_summer_time_are_equal_steps_in_utc():
    times = pd.date_range("2020-03-28", periods=200, freq="h", tz="Europe/Paris")
    table = pd.DataFrame({"when": times, "a": np.arange(200.0)})
    clock = data.open(table, "lookback=8", "horizon=2").fields["time"].codec
    assert not clock.is_local
    assert clock.written(np.zeros(1))[0] == "2020-03-27 23:00:00"


SPOILT = {
    "1 gap: 2 steps": lambda t: t.drop(index=[50, 51]),
    "occurs twice": lambda t: pd.concat([t[:50], t[49:]]),
    "comes after": lambda t: t.iloc[[1, 0, *range(2, 200)]],
    "no value at": lambda t: t.assign(a=t["a"].mask(t.index == 3)),
}


@pytest.mark.parametrize("sentence", SPOILT)
def test_what_is_irregular_is_told_and_mended_only_on_request(sentence):
    table = SPOILT[sentence](frame()).reset_index(drop=True)
    with pytest.raises(DataError, match=f"{sentence}.*data.gaps=fill"):
        data.open(table, "horizon=5", "lookback=20")
    source = data.open(table, "horizon=5", "lookback=20", "gaps=fill")
    np.testing.assert_allclose(source.tensors["series"].flat[:, 0], np.arange(200.0), atol=1e-5)
    assert source.notes


def test_times_off_the_grid_are_refused():
    table = frame()
    table.loc[7, "when"] = "2020-01-31 07:30:00"
    with pytest.raises(DataError, match=r"07:30:00 .* 1 hour"):
        data.open(table)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (("lookback=150", "horizon=60"), "200 steps.* lookback 150 and horizon 60"),
        (("time=whn",), " when"),
        (("known=prise",), "data.known=prise"),
        (("horizon=0",), "horizon=0"),
        (("lookback=0",), "lookback=0"),
    ],
)
def test_words_that_do_not_fit_get_one_sentence(settings, sentence):
    with pytest.raises((DataError, UsageError), match=sentence):
        data.open(frame(), *settings)


def test_names_are_no_channel_and_dates_may_be_left_out():
    table = frame().assign(c=["x", "y"] * 100)
    with pytest.raises(DataError, match=r"data\.drop=c"):
        data.open(table, "time=when", "horizon=2")
    alone = data.open(table)
    assert alone.schema.table
    assert "'c'" in alone.notes[0]
    assert "data.time=when" in alone.notes[0]
    assert data.open(table, "drop=c").target == "future"
    assert data.open(table, "drop=when").schema.table
    with pytest.raises(UsageError, match=r"data\.time"):
        data.open(np.arange(99.0), "time=when")
    with pytest.raises(DataError, match=r"data\.calendar"):
        data.open(np.arange(99.0), "calendar=true", "horizon=3")


def test_a_table_whose_dates_repeat_stays_a_table():
    days = np.repeat(pd.date_range("2020-01-01", periods=20).strftime("%Y-%m-%d"), 10)
    source = data.open(pd.DataFrame({"day": days, "a": np.arange(200.0)}))
    assert source.schema.table


def panel(late=0):
    """Two prices of three symbols by month; one of them begins `late` months after the others."""
    months = pd.date_range("2001-01-01", periods=60, freq="MS").strftime("%b %Y")
    rows = [
        (symbol, month, 10.0 * place + i, -1.0 * i)
        for place, symbol in enumerate(("X", "Y", "Z"))
        for i, month in enumerate(months)
        if symbol != "Y" or i >= late
    ]
    return pd.DataFrame(rows, columns=["symbol", "month", "open", "close"])


def test_a_panel_is_rows_until_told_and_then_a_channel_for_each_series():
    alone = data.open(panel())
    assert alone.schema.table
    assert "data.series=symbol" in alone.notes[0]
    source = data.open(panel(late=10), "series=symbol", "lookback=6", "horizon=2")
    window = source.fields["series"].codec
    assert window.channels == tuple(f"{x} {y}" for x in ("open", "close") for y in "XYZ")
    flat = source.tensors["series"].flat.reshape(50, 6)
    np.testing.assert_array_equal(flat[:, 1], 10 + np.arange(10.0, 60))
    np.testing.assert_array_equal(flat[:, 5], -np.arange(10.0, 60))
    assert source.fields["time"].codec.written(np.zeros(1))[0] == "Nov 2001"
    assert any("20 rows" in note for note in source.notes)


def test_a_panel_is_read_in_the_terms_of_a_run():
    table = panel().drop(columns="close")
    own = data.open(table, "series=symbol", "lookback=6", "horizon=2")
    assert own.fields["series"].codec.channels == ("X", "Y", "Z")
    again = data.open(table.sample(frac=1, random_state=0), fields=own.view().to_dict())
    assert torch.equal(again.tensors["series"].flat, own.tensors["series"].flat)
    with pytest.raises(DataError, match="Y"):
        data.open(table[table.symbol != "Y"], fields=own.view().to_dict())


@pytest.mark.parametrize(
    ("changed", "settings", "named"),
    [
        ({}, ["series=sumbol"], "symbol"),
        ({"open": "x"}, ["series=symbol"], "data.drop=open"),
        ({"month": 1.0}, ["series=symbol"], "data.time"),
        ({"month": "Jan 2001"}, ["series=symbol"], "row 2"),
    ],
)
def test_a_panel_that_is_none_is_refused(changed, settings, named):
    with pytest.raises((DataError, UsageError), match=named):
        data.open(panel().assign(**changed), *settings)
    with pytest.raises(UsageError, match="series"):
        data.open(np.arange(99.0), "series=symbol")


@pytest.mark.parametrize("month", [int, lambda x: f"{pd.Timestamp(2000, x, 1):%b}"])
def test_a_year_and_a_month_in_columns_of_their_own_are_one_time(month):
    years, months = np.divmod(np.arange(240), 12)
    table = pd.DataFrame(
        {"Year": 1990 + years, "Month": [month(x + 1) for x in months], "y": np.arange(240.0)}
    )
    source = data.open(table, "lookback=12")
    clock = source.fields["time"].codec
    assert (source.fields["time"].key, clock.unit, clock.season) == ("Year-Month", "month", 12)
    assert clock.written(np.array([0.0, 239.0])).tolist() == ["1990-01", "2009-12"]
    again = data.open(table.iloc[24:], fields=source.view().to_dict())
    assert len(again) == 216 - 12 - 12 + 1
    assert data.open(table, "time=none").schema.table
    assert data.open(table.iloc[::-1]).schema.table  # not in order
    assert data.open(table.assign(c=["u", "v"] * 120)).schema.table


def test_other_data_are_read_in_the_terms_of_a_run():
    own = data.open(frame(), "horizon=5", "lookback=20")
    terms = own.view(target="future").to_dict()
    other = data.open(frame(60, seed=1), fields=terms)
    assert len(other) == 60 - 24
    assert not other.has_splits
    assert isinstance(other.fields["past"].codec, Window)
    assert other.fields["past"].space.mean == own.fields["past"].space.mean
    late = frame(60)
    late["when"] = pd.date_range("2021-05-01", periods=60, freq="h").strftime("%Y-%m-%d %H:%M:%S")
    moved = data.open(late, fields=terms)
    first = moved.fields["time"].codec.decode(moved.tensors["time"][:1].numpy())[0]
    assert first == "2021-05-01 20:00:00"
    with pytest.raises(DataError, match=r"1 day .* 1 hour"):
        data.open(frame(60, "D", "%Y-%m-%d"), fields=terms)
    with pytest.raises(DataError, match=r"24 steps .* 25"):
        data.open(frame(24), fields=terms)
    with pytest.raises(DataError, match="lacks b"):
        data.open(frame().drop(columns="b"), fields=terms)


def test_holes_and_fingerprints_do_not_copy_windows_out():
    source = data.open(frame(), "horizon=5", "lookback=20")
    again = data.open(frame(), "horizon=5", "lookback=20")
    assert source.fingerprint == again.fingerprint
    assert source.fingerprint != data.open(frame(seed=1), "horizon=5", "lookback=20").fingerprint
    assert [part.shape[0] for part in source.tensors["past"].parts][:1] == [200]
    assert source.missing("past") == 0
