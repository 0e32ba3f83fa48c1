"""Conditions on the columns of samples, rejection, constraints and completion."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.data import loading as data
from monge.evaluate import completion, suite
from monge.evaluate.energy_distance import sample_timed
from monge.evaluate.likelihood import RowLikelihoods
from monge.run.metrics import run_metrics
from monge.run.run import fit
from monge.run.where import RARE, Acceptance, given_constraints, parse_where, sample_where

N = 600


def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    job = rng.choice(["cook", "clerk", "smith"], N, p=[0.5, 0.4, 0.1])
    frame = pd.DataFrame(
        {
            "id": np.arange(1, N + 1),
            "age": rng.integers(17, 80, N),
            "pay": rng.gamma(3.0, 1.0, N).round(2),
            "job": job,
            "ok": rng.random(N) < 0.3,
            "share": rng.beta(1.2, 1.2, N),
        }
    )
    frame["grade"] = frame["job"].map({"cook": 1, "clerk": 2, "smith": 7})
    frame["team"] = pd.Series(np.where(rng.random(N) < 0.3, None, rng.choice(["x", "y"], N)))
    return frame


@pytest.fixture(scope="module")
def view():
    return data.open(people()).view()


class Resampler:
    """Samples rows of the data, and completes rows by rows that agree with them."""

    def __init__(self, view):
        self.rows = view.split("all").whole().x

    def sample(self, n, generator):
        return self.rows[torch.randint(len(self.rows), (n,), generator=generator)]


def chosen(view, where, n=50, rows=None):
    model = Resampler(view)
    if rows is not None:
        model.rows = rows
    generator = torch.Generator().manual_seed(0)
    conditions = parse_where(view, where)
    return sample_where(model, view, conditions, n, model.sample, None, generator)


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("age>60", lambda f: f.age > 60),
        ("age>=60.5", lambda f: f.age > 60),
        ("age!=20,21", lambda f: ~f.age.isin([20, 21])),
        (["age>=30", "age<40"], lambda f: f.age.between(30, 39)),
        ("30 <= age < 40", lambda f: f.age.between(30, 39)),
        ("40 > age >= 30", lambda f: f.age.between(30, 39)),
        ("60 < age", lambda f: f.age > 60),
        ("30>=age", lambda f: f.age <= 30),
        ({"job": ["cook", "smith"]}, lambda f: f.job.isin(["cook", "smith"])),
        ({"job": "clerk", "pay": "<2"}, lambda f: (f.job == "clerk") & (f.pay < 2)),
        ("grade=7", lambda f: f.job == "smith"),
        ("grade<=2", lambda f: f.job != "smith"),
        ("grade!=2", lambda f: f.job != "clerk"),
        ("team!=x", lambda f: f.team == "y"),  # an empty cell satisfies nothing
        ("ok=True", lambda f: f.ok),
    ],
)
def test_samples_satisfy_conditions(view, where, holds):
    found = chosen(view, where)
    frame = view.decode(found.x)
    assert len(frame) == 50
    assert holds(frame).all()
    share = float(holds(people()).mean())
    assert found.acceptance == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / 2000))


def odd_names() -> pd.DataFrame:
    frame = people()[["age", "pay", "ok", "job"]]
    frame.columns = ["a=b", "a", "a<b", "income, net"]
    people_of = {"cook": ">50, K", "clerk": "<=50", "smith": ">50"}
    start = pd.Timestamp("2001-02-03")
    return frame.assign(
        **{"income, net": frame["income, net"].map(people_of)},
        born=start + pd.to_timedelta(frame["a=b"] * 40, "D"),
    )


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("a=b>60", lambda f: f["a=b"] > 60),
        ("30<=a=b<40", lambda f: f["a=b"].between(30, 39)),
        ("a>2", lambda f: f["a"] > 2),
        ("2<a", lambda f: f["a"] > 2),
        ("a<b=True", lambda f: f["a<b"]),
        ("income, net=>50, K", lambda f: f["income, net"] == ">50, K"),
        ("income, net=<=50,>50, K", lambda f: f["income, net"] != ">50"),
        ({"income, net": ">50"}, lambda f: f["income, net"] == ">50"),
        ({"income, net": [">50, K", "<=50"]}, lambda f: f["income, net"] != ">50"),
        ("2004-01-01<=born<2005-01-01", lambda f: pd.to_datetime(f.born).dt.year == 2004),
        ({"born": pd.Timestamp("2003-01-24")}, lambda f: f["a=b"] == 18),
    ],
)
def test_columns_and_names_may_hold_signs_and_commas(where, holds):
    frame = view_of_odd_names().decode(chosen(view_of_odd_names(), where, 20).x)
    assert len(frame) == 20
    assert holds(frame).all()


@functools.cache
def view_of_odd_names():
    return data.open(odd_names()).view()


@pytest.mark.parametrize(
    ("where", "match"),
    [
        ("wage>3", "'wage'.*age"),
        ("id>3", "id is a key"),
        ("job>cook", "job holds names"),
        ("job=baker", "job=baker .*clerk"),
        ("team=(missing)", "team="),
        ("age=", "'age='"),
        ("age", "'age'"),
        ("age=20.5", "whole number.*'age=20.5'"),
        ("age>old", "number.*'age>old'"),
        ("ok=maybe", "True.*'ok=maybe'"),
        (["age>60", "age<50"], "'age>60' and 'age<50'"),
        ("60<age<=50", "'age>60' and 'age<=50'"),
        ("3<wage<4", "'wage'.*age"),
        (["age>20", "age<22", "age!=21"], "'age>20' and 'age<22' and 'age!=21'"),
        (["job=cook", "job=clerk"], "'job=cook' and 'job=clerk'"),
        (["job!=cook", "job!=clerk", "job!=smith"], "'job!=cook' and"),
        ("share>1.5", "share.*at most 1.*'share>1.5'"),
        ("pay<-1", "pay.*at least 0.*'pay<-1'"),
        (["pay>1", "pay<=1"], "'pay>1' and 'pay<=1'"),
        (["grade=7", "job=cook"], "'grade=7' and 'job=cook'"),  # grade is a function of job
        ("2<grade<7", "job.*'grade>2' and 'grade<7'"),
    ],
)
def test_conditions_that_make_no_sense(view, where, match):
    with pytest.raises(UsageError, match=match):
        parse_where(view, where)


def test_open_ranges_are_no_contradiction(view):
    for where in (["pay>1", "pay<1.001"], ["age>20", "age<22"], ["share>=1", "share<=1"]):
        assert len(parse_where(view, where)) == 2


def test_a_condition_of_probability_zero_ends_after_a_known_number_of_tries(view, monkeypatch):
    with pytest.raises(DataError, match=r"none of 32000 .*'age>5000'"):  # 6 / 32000 is too little
        chosen(view, "age>5000")
    with pytest.raises(DataError, match=r"none of 200000 .*'age>5000'"):
        chosen(view, "age>5000", n=1)
    monkeypatch.setattr("monge.run.where.MAX_TRIES", 8000)
    monkeypatch.setattr("monge.run.where.TRIES_PER_ROW", 1)
    with pytest.raises(DataError, match=r"only \d+ of 2000 .*'age=33'"):
        chosen(view, "age=33", n=5000)


def test_slow_samples_of_what_never_holds_end_in_time(view, monkeypatch):
    monkeypatch.setattr("monge.run.where.PATIENCE", 0.0)
    with pytest.raises(DataError, match=r"none of 2000 .*'age>5000'"):
        chosen(view, "age>5000", n=1)
    assert len(chosen(view, "age=33", n=200).x) == 200  # what holds is waited for


def test_many_rows_may_need_more_tries_than_few(view, monkeypatch):
    monkeypatch.setattr("monge.run.where.MAX_TRIES", 3000)
    found = chosen(view, "age>60", n=3000)
    assert len(found.x) == 3000 < found.kept + 1
    assert found.tried > 3000


def test_the_likelihood_is_raised_by_the_acceptance():
    exact = RowLikelihoods(np.array([-3.0, -4.0]), "exact", 2.0)
    found = given_constraints(exact, Acceptance(2500, 10_000))
    assert found.value.tolist() == pytest.approx([-3 + np.log(4), -4 + np.log(4)])
    assert found.kind == "estimate"
    expected = np.sqrt(0.75 / 2500)  # the delta method
    assert found.stderr.tolist() == pytest.approx([expected, expected])
    noisy = RowLikelihoods(np.array([-3.0]), "estimate", 2.0, np.array([0.5]))
    both = given_constraints(noisy, Acceptance(2500, 10_000)).stderr
    assert both[0] == pytest.approx(np.hypot(0.5, expected))
    assert given_constraints(exact, None).kind == "bound"
    with pytest.raises(DataError, match="10000"):
        given_constraints(exact, Acceptance(0, 10_000))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    frame = people()
    frame = frame[frame["pay"] + 4 * frame["share"] >= 3].reset_index(drop=True)
    frame["id"] = np.arange(1, len(frame) + 1)
    frame["half"] = frame["pay"] / 2
    frame.loc[::7, "pay"] = np.nan
    frame.loc[::7, "half"] = np.nan
    path = tmp_path_factory.mktemp("data") / "people.csv"
    frame.to_csv(path, index=False)
    return fit(
        "deep_nade",
        path,
        "width=16",
        "depth=1",
        "data.constraints=half=pay/2;pay+4*share>=3;age>=17",
        budget="40steps",
        out=tmp_path_factory.mktemp("runs") / "run",
    ), frame


def test_samples_of_a_run_obey_its_constraints(fitted):
    model, frame = fitted
    made = model.sample(500)
    known = made.dropna(subset=["pay"])
    assert (known["pay"] + 4 * known["share"] >= 3).all()
    assert np.allclose(known["half"], known["pay"] / 2, atol=1e-5)
    assert made["half"].isna().equals(made["pay"].isna())
    assert (made["age"] >= 17).all()
    assert made["id"].tolist() == list(range(len(frame) + 1, len(frame) + 501))
    assert list(made) == list(frame)
    assert (made["grade"] == made["job"].map({"cook": 1, "clerk": 2, "smith": 7})).all()
    raw = model.view.obeys(model.model.sample(2000, None, None, torch.Generator().manual_seed(1)))
    assert 0 < float(raw.double().mean()) < 1  # so that rejection is what makes them obey


def test_the_score_of_a_run_counts_its_acceptance(fitted):
    model, _ = fitted
    found = model.log_likelihood()
    assert found.kind == "estimate"
    assert str(model.acceptance.kept) in found.description
    rows = model.split(None, "test").whole()
    own = model.model.likelihood(rows).value.detach().double().numpy()
    assert np.allclose(found.value - own, -np.log(model.acceptance.kept / 10_000), atol=1e-6)


def test_evaluation_compares_samples_that_obey(fitted, monkeypatch):
    """As `sample` and `complete` draw them, and the log-likelihood is the raised one."""
    model, _ = fitted
    seen = []

    def watch(owner, name, rows):
        def watched(first, *args):
            seen.append(rows(first))
            return {}

        monkeypatch.setattr(owner, name, watched)

    watch(suite, "sample_metrics", lambda compared: compared.x)
    watch(completion, "completion_scores", lambda filled: filled.draws.flatten(0, 1))
    for name in ("as_table", "privacy_metrics"):
        monkeypatch.setattr(suite, name, lambda *args: {})
    monkeypatch.setattr(completion, "MAX_ROWS", 10)
    groups = run_metrics(model)
    assert len(seen) == 1 + len(completion.PERCENTAGES)
    for x in seen:
        assert model.view.obeys(x).all()
    found = groups["likelihood"]["log_likelihood"]
    assert found.kind == "estimate"
    assert found.value == pytest.approx(model.log_likelihood().mean.value)


def test_evaluation_says_when_no_sample_obeys():
    class Constant(torch.nn.Module):
        def sample(self, n, given=None, options=None, generator=None):
            return torch.zeros(n, 2)

    with pytest.raises(DataError, match=r"none of 200 .* row 1"):
        sample_timed(Constant(), Batch(torch.zeros(4, 2)), 0, lambda x: x[:, 0] > 0)


def test_completed_rows_obey_and_keep_what_is_known(fitted):
    model, frame = fitted
    full = model.complete(frame, draws=2, seed=3)
    assert full["id"].tolist() == frame["id"].repeat(2).tolist()
    assert not full.isna().any().any()
    twice = frame.loc[frame.index.repeat(2)]
    for name in frame:
        known = twice[name].notna().to_numpy()
        pd.testing.assert_series_equal(
            full[name][known], twice[name][known], rtol=1e-6, check_dtype=False, check_index=False
        )
    assert (full["pay"] + 4 * full["share"] >= 3).all()


def test_a_row_with_nothing_known_is_sampled(fitted):
    model, frame = fitted
    other = frame.head(30).astype({"age": "float64", "ok": "object"})
    other.loc[2, [name for name in frame if name != "id"]] = None
    full = model.complete(other, seed=1)
    assert not full.isna().any().any()


def test_rare_rows_are_completed_only_where_sampling_takes_many_more_tries(fitted, monkeypatch):
    model, _ = fitted
    conditions = ["job=smith", "age>76"]
    few = model.sample_where(20, conditions, seed=1)
    assert few.method == "rejection"
    assert few.acceptance < RARE
    monkeypatch.setattr("monge.run.where.FEW_TRIES", 100)
    assert model.sample_where(20, conditions, seed=1).method == "rejection"
    monkeypatch.setattr("monge.run.where.COMPLETION_COST", 1)
    assert model.sample_where(20, conditions, seed=1).method != "rejection"
