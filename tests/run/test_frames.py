"""Python does what the command line does, and returns in kind: frames keep their index, and frames
of other libraries are read as tables."""

from datetime import datetime, timedelta

import narwhals as nw
import numpy as np
import pandas as pd
import pytest

import monge
from monge.core.errors import DataError, UsageError
from monge.data import frames
from monge.data import loading as data
from monge.data.frames import in_kind, opened
from monge.run import run

N = 60


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b"], N).astype(object)
    size = np.where(rng.random(N) < 0.2, np.nan, rng.normal(size=N).round(3))
    rows = pd.DataFrame({"kind": kind, "size": size, "weight": rng.normal(size=N)})
    return rows.set_index(pd.Index([f"row {i * 7 % N}" for i in range(N)], name="id"))


@pytest.fixture(scope="module")
def vae(frame, tmp_path_factory):
    return run.fit("vae", frame, budget="3steps", out=tmp_path_factory.mktemp("runs") / "vae")


def test_the_index_of_a_frame_stays(vae, frame):
    part = frame[::-1][:20]
    scores = vae.log_likelihood(part).series
    for found in (vae.complete(part), vae.encode(part), vae.score(part), scores):
        assert found.index.equals(part.index)
    seen = part["size"].notna()
    pd.testing.assert_frame_equal(vae.complete(part)[seen], part[seen], check_exact=False)
    assert not vae.complete(part).isna().any().any()
    draws = vae.complete(part, draws=3)
    assert list(draws.index) == list(part.index.repeat(3))
    assert list(vae.encode(part))[:2] == ["z1", "z2"]
    assert isinstance(vae.encode(), np.ndarray)
    assert vae.decode(vae.encode(part)).index.equals(part.index)
    scores = vae.log_likelihood()
    assert list(scores.series.index) == list(range(1, len(scores.value) + 1))


def test_no_draw_is_refused(vae, frame):
    with pytest.raises(UsageError, match=r"\b0\b"):
        vae.complete(frame, draws=0)
    with pytest.raises(UsageError, match="memory"):
        vae.complete(frame, draws=10**12)


def test_predictions_have_the_index_and_scores_only_rows_with_a_target(frame, tmp_path):
    holed = frame.assign(kind=frame["kind"].where(np.arange(N) % 5 != 0, None))
    fitted = run.fit(
        "predict.logistic", holed, target="kind", budget="3steps", out=tmp_path / "run"
    )
    assert fitted.predict(holed).index.equals(frame.index)
    assert fitted.predict(holed.drop(columns="kind")).index.equals(frame.index)
    scored = fitted.log_likelihood(holed).series
    assert scored.index.equals(frame.index[np.arange(N) % 5 != 0])


class Foreign:
    """A frame of another library, which pandas would read wrongly: iteration gives its columns."""

    def __init__(self, frame):
        self.frame = frame

    def __iter__(self):
        return (self.frame[name].to_list() for name in self.frame)

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, name):
        return self.frame[name]

    def to_pandas(self):
        return self.frame.reset_index(drop=True)


@pytest.mark.parametrize("kind", [Foreign, nw.from_native])
def test_frames_of_other_libraries_are_tables(vae, frame, kind):
    plain = frame.reset_index(drop=True)
    assert data.open(kind(plain)).fingerprint == data.open(plain).fingerprint
    np.testing.assert_array_equal(
        vae.log_likelihood(kind(frame)).value, vae.log_likelihood(frame).value
    )
    y = plain["weight"] > 0
    pair = (kind(plain[["kind", "size"]]), y)
    assert data.open(pair).fingerprint == data.open((plain[["kind", "size"]], y)).fingerprint
    model = monge.Estimator("predict.logistic", budget="3steps", random_state=0)
    assert len(model.fit(kind(plain[["kind", "size"]]), y).predict(kind(plain[["kind", "size"]])))


def test_a_frame_that_cannot_be_converted_is_refused(frame):
    class Stuck(Foreign):
        def to_pandas(self):
            raise ImportError("arrow is missing")

    with pytest.raises(DataError, match="arrow is missing"):
        data.open(Stuck(frame))


def every_type():
    """A polars frame with a column of every type that is read, and empty cells in most."""
    pl = pytest.importorskip("polars")
    rng, hours = np.random.default_rng(1), np.arange(N) * 7919 % 5000
    empty = rng.random((8, N)) < 0.15

    def holed(place, cells):
        return [None if gap else cell for gap, cell in zip(empty[place], cells, strict=True)]

    times = [datetime(2024, 1, 1) + timedelta(hours=int(hour)) for hour in hours]
    zoned = pl.Series(times).dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")
    ranks = pl.Series(holed(6, rng.choice(["low", "high"], N).tolist()))
    return pl.DataFrame(
        {
            "count": holed(0, rng.poisson(4, N).tolist()),
            "small": pl.Series(holed(1, rng.poisson(4, N).tolist()), dtype=pl.UInt8),
            "real": holed(2, rng.normal(size=N).round(2).tolist()),
            "flag": holed(3, (rng.random(N) < 0.5).tolist()),
            "name": holed(4, rng.choice(["a", "b", "c"], N).tolist()),
            "category": pl.Series(holed(5, ["x", "y"] * (N // 2)), dtype=pl.Categorical),
            "rank": ranks.cast(pl.Enum(["low", "high"])),
            "day": [time.date() for time in times],
            "moment": holed(7, times),
            "zoned": zoned,
            "price": pl.Series(rng.poisson(40, N).astype(str).tolist()).cast(pl.Decimal(8, 2)),
        }
    )


def test_polars_frames_come_back_as_they_were():
    frame = every_type()
    for what in (frame, frame.lazy()):
        plain, form = opened(what)
        assert in_kind(plain, form).equals(frame)
        assert in_kind(plain, form).schema == frame.schema


@pytest.mark.parametrize("library", ["polars", "lazy", "pyarrow"])
def test_a_frame_of_a_library_gives_frames_of_it(library, tmp_path):
    frame = every_type()
    if library == "pyarrow":
        pytest.importorskip("pyarrow")
        frame = frame.drop("rank", "price").to_arrow()
    what, kind = (frame.lazy() if library == "lazy" else frame), type(frame)
    fitted = run.fit(
        "vae", what, data={"time": "none"}, latent=2, budget="3steps", out=tmp_path / "run"
    )
    for rows in (fitted.sample(5), fitted.complete(what)):
        assert isinstance(rows, kind)
        assert rows.schema == (frame.schema if library != "pyarrow" else rows.schema)
    codes = fitted.encode(what)
    assert isinstance(codes, kind)
    assert codes.shape == (N, 2)
    assert isinstance(fitted.decode(codes), kind)
    assert len(fitted.log_likelihood(what).value) == N
    scores = fitted.score(what)
    assert isinstance(scores, kind)
    assert sorted(scores["rank"].to_numpy()) == list(range(1, N + 1))
    assert frames.is_frame(monge.load(fitted.folder).sample(5))
    predictor = run.fit(
        "predict.mlp", what, "data.time=none", target="name", budget="3steps", out=tmp_path / "p"
    )
    found = predictor.predict(what, keep_columns=True)
    assert isinstance(found, kind)
    names = getattr(found, "column_names", None) or found.columns
    assert {"name_true", "name", "name_p_a", "count"} <= {*names}


def test_times_with_a_zone_and_objects_of_dates(tmp_path):
    hours = pd.to_timedelta(np.arange(N) * 7919 % 5000, unit="h")
    times = pd.Timestamp("2024-03-01", tz="Europe/Paris") + hours
    rng = np.random.default_rng(2)
    rows = pd.DataFrame(
        {
            "zoned": times,
            "date": pd.Series([time.date() for time in times], dtype=object),
            "count": pd.array(np.arange(N) % 7, "Int16"),
            "flag": pd.array(rng.permutation([None, True, False] * (N // 3)), "boolean"),
            "text": pd.array(rng.permutation(["a", None, "b"] * (N // 3)), "string"),
            "category": pd.Categorical(rng.permutation(["u", "v", None] * (N // 3))),
        }
    )
    fitted = run.fit("independent", rows, "data.time=none", budget="1steps", out=tmp_path / "run")
    new = fitted.sample(40, seed=0)
    kinds = {name: str(kind) for name, kind in new.dtypes.items()}
    wanted = {name: str(kind) for name, kind in rows.dtypes.items()}
    assert kinds | {"date": ""} == wanted | {"date": ""}
    assert new["date"].dtype.kind == "M"
    assert new["zoned"].between(times.min(), times.max() + pd.Timedelta("1h")).mean() > 0.9
    filled = fitted.complete(rows)
    assert (filled["zoned"] == rows["zoned"]).all()
    assert not filled.isna().any().any()
    for name in ("count", "flag", "text", "category"):
        known = rows[name].notna()
        assert (filled[name][known] == rows[name][known]).all()


def test_series_of_other_libraries_are_frames_with_a_column_of_times():
    days = pd.period_range("2024-03-01", periods=5, freq="D")
    table = pd.DataFrame({"left": np.arange(5.0), "right": 1.0}, index=days)
    plain = table.reset_index(drop=True)
    plain.insert(0, "time", days.to_timestamp())

    class TimeSeries:
        """As darts has it: no frame, but it gives one."""

        def to_dataframe(self):
            return table.set_axis(days.to_timestamp().rename("time"))

    TimeSeries.__module__ = "darts.timeseries"
    entries = [
        {"item_id": "left", "start": days[0], "target": np.arange(5.0)},
        {"item_id": "right", "start": days[0] - 2, "target": np.ones(8)},
    ]
    panel = pd.concat(
        {"left": table["left"], "right": table["right"]}
    )  # (instance, time), as sktime has it
    for given in (table, TimeSeries(), entries, panel):
        found = opened(given)[0]
        pd.testing.assert_frame_equal(found, plain, check_names=False, check_freq=False)
    assert list(opened(table["left"])[0]) == ["time", "left"]
    both = pd.concat({"shop": table})
    assert list(opened(both)[0]) == ["time", "shop left", "shop right"]
    assert list(opened(table["left"].set_axis(days.to_timestamp()))[0]) == ["time", "left"]
    moments = table.set_axis(days.to_timestamp())  # rows of a table may have a time
    assert all(opened(given)[0] is given for given in (plain, moments))
    pair = (table, table["left"])
    assert all(a is b for a, b in zip(opened(pair)[0], pair, strict=True))
    with pytest.raises(DataError, match="entry 0"):
        opened([{"start": "2024-03-01", "target": np.ones(3)}])


def test_a_series_with_times_as_its_index_is_forecast(tmp_path):
    days = pd.period_range("2024-01-01", periods=120, freq="D")
    sold = pd.Series(50 + 10 * np.sin(2 * np.pi * np.arange(120) / 7), days, name="sold")
    fitted = run.fit("linear_ar", sold, budget="3steps", out=tmp_path / "run")
    found = fitted.forecast(3, n=20)
    assert str(found.iloc[0, 0])[:10] == "2024-04-30"
    assert len(found) == 3


@pytest.mark.parametrize("freq", ["D", "h"])
def test_forecasts_have_times_of_the_type_and_zone_of_the_data(freq, tmp_path):
    """By the clock of the zone over a change to summer time, which an hour of it skips."""
    times = pd.date_range("2024-01-31", periods=60, freq=freq, tz="Europe/Paris")
    if freq == "h":
        times = times + (pd.Timestamp("2024-03-31", tz="Europe/Paris") - times[-1])
    sold = pd.DataFrame({"when": times, "sold": np.arange(60) % 7 + 0.5})
    fitted = run.fit(
        "linear_ar", sold, "data.lookback=14", "data.horizon=7", budget="3steps",
        out=tmp_path / "run",
    )  # fmt: skip
    after = pd.date_range(times[-1], periods=8, freq=freq)[1:]
    for found in (fitted.forecast(n=5), run.load(tmp_path / "run").forecast(7, sold, n=5)):
        assert found["when"].dtype == sold["when"].dtype
        assert (found["when"] == after).all()
    paths = fitted.forecast(2, n=3, paths=True)
    assert paths["when"].nunique() == 2
