"""Python does what the command line does, and returns in kind: frames keep their index, and frames
of other libraries are read as tables."""

import numpy as np
import pandas as pd
import pytest

import monge
from monge import data
from monge.core.errors import DataError
from monge.data.readers.tables import as_pandas
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
    for found in (vae.complete(part), vae.encode(part), vae.log_likelihood(part).series):
        assert found.index.equals(part.index)
    seen = part["size"].notna()
    pd.testing.assert_frame_equal(vae.complete(part)[seen], part[seen], check_exact=False)
    assert not vae.complete(part).isna().any().any()
    draws = vae.complete(part, draws=3)
    assert list(draws.index) == list(part.index.repeat(3))
    assert list(vae.encode(part))[:2] == ["z1", "z2"]
    assert isinstance(vae.encode(), np.ndarray)
    scores = vae.log_likelihood()
    assert list(scores.series.index) == list(range(1, len(scores.value) + 1))


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


class NeedsArrow(Foreign):
    """It converts by way of a package that is not there, but lists its columns."""

    def to_pandas(self):
        raise ModuleNotFoundError("No module named 'pyarrow'")

    def to_dict(self, as_series=True):
        assert not as_series
        return {name: self.frame[name].to_list() for name in self.frame}


class Lazy:
    """A query over a frame that has not been run."""

    def __init__(self, frame):
        self.frame = frame

    def lazy(self):
        return self

    def collect(self):
        return Foreign(self.frame)


@pytest.mark.parametrize("kind", [Foreign, NeedsArrow, Lazy])
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


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_the_libraries_themselves(frame, library):
    module = pytest.importorskip(library)
    plain = frame.reset_index(drop=True)
    table = (
        module.DataFrame({name: plain[name].to_list() for name in plain}, strict=False)
        if library == "polars"
        else module.Table.from_pandas(plain)
    )
    several = [table, table.lazy()] if library == "polars" else [table]
    for one in several:
        read = as_pandas(one)
        assert list(read) == list(plain)
        assert data.open(one).view().space.shape == (3,)
