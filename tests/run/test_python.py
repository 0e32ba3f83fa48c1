"""Python does with frames and arrays what the command line does with files."""

import inspect

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import monge
from monge.comparison.plan import make_plan
from monge.comparison.runner import Comparison
from monge.core.config import as_settings
from monge.core.errors import DataError, RunError, UsageError
from monge.data import loading as data
from monge.report.table import column_chart, column_charts, table_sections
from monge.run.run import Run

N = 240


def table(n=N):
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b", "c"], n)
    size = rng.gamma(2.0, 3.0, n).round(2) + 3 * (kind == "b")
    return pd.DataFrame(
        {
            "kind": kind,
            "flag": np.where(size + rng.normal(size=n) > 7, "yes", "no"),
            "count": rng.poisson(size),
            "size": size,
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D"),
        }
    )


@pytest.fixture(scope="module")
def frame():
    return table()


@pytest.fixture(scope="module")
def gaussian(frame, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "gaussian"
    return monge.fit("gaussian", frame, "data.time=none", budget="1steps", out=out)


def test_settings_are_keyword_arguments_too():
    fields = {"latent": 8, "net": {"width": 64}, "train": {"lr": 1e-3}, "on": True, "off": None}
    found = list(as_settings({**fields, "data": {"drop": ["a", "b"], "seed": 1}}))
    assert found == [
        "latent=8", "net.width=64", "train.lr=0.001", "on=true", "off=none", "data.drop=a,b",
        "data.seed=1",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="net"):
        list(as_settings({"net": monge.TrainConfig()}))


def test_keyword_arguments_reach_model_training_data_and_sampling(tmp_path):
    run = monge.fit(
        "vae", "iris", latent=3, train={"lr": 0.02}, data={"seed": 5}, budget="2steps",
        name="mine", threads=1, progress=False,
    )  # fmt: skip
    assert run.folder.name == "mine"
    assert run.metadata["config"]["latent"] == 3
    assert run.train_config.lr == 0.02
    assert run.metadata["data"]["overrides"][0] == "seed=5"
    assert monge.fit("gaussian", "iris", budget="1steps", name="mine").folder.name == "mine-2"
    code = run.log_likelihood(samples=2, seed=1).value
    np.testing.assert_array_equal(code, run.log_likelihood(None, "samples=2", seed=1).value)
    with pytest.raises(UsageError, match="latent"):
        monge.fit("vae", "iris", latnet=3, budget="1steps")
    with pytest.raises(UsageError, match="steps"):
        run.sample(3, steps=20)
    with pytest.raises(UsageError, match="mine"):
        monge.fit("gaussian", "iris", name="mine", out=tmp_path / "mine")


def test_samples_differ_unless_a_seed_is_given(gaussian):
    assert not gaussian.sample(20).equals(gaussian.sample(20))
    pd.testing.assert_frame_equal(gaussian.sample(20, seed=3), gaussian.sample(20, seed=3))
    torch.manual_seed(0)
    first = gaussian.sample(20)
    torch.manual_seed(0)
    pd.testing.assert_frame_equal(first, gaussian.sample(20))


def test_progress_is_a_line_per_evaluation_if_asked_for(capsys, tmp_path):
    monge.fit("made", "iris", "train.eval_every=2", budget="4steps", out=tmp_path / "silent")
    assert capsys.readouterr().err == ""
    options = {"budget": "4steps", "out": tmp_path / "loud", "progress": True}
    monge.fit("made", "iris", "train.eval_every=2", **options)
    assert capsys.readouterr().err.count("held-out") == 2


def test_results_are_short_in_text_and_tables_in_notebooks(gaussian, frame):
    scored = gaussian.log_likelihood(frame)
    for shown in (gaussian, scored):
        assert len(repr(shown)) < 250
        assert "nats" in repr(shown)
        assert shown._repr_html_().startswith("<table")
    assert str(N) in repr(scored)
    metrics = monge.distance(frame.dropna()[["size"]], gaussian.sample(40, seed=0)[["size"]])
    assert all(name in repr(metrics) for name in metrics)
    assert "Metric(" not in repr(metrics)
    assert metrics._repr_html_().startswith("<table")


def test_help_states_parameters_types_and_an_example():
    for name in ("fit", "compare", "describe", "distance"):
        function = getattr(monge, name)
        text = inspect.getdoc(function)
        assert "Parameters" in text
        assert ">>> " in text
        for parameter in inspect.signature(function).parameters:
            assert parameter in text or parameter == "fields", (name, parameter)


def test_samples_in_the_observed_range(gaussian, frame):
    free, kept = gaussian.sample(400, seed=0), gaussian.sample(400, seed=0, range="observed")
    low, high = (getattr(frame["size"], end)() for end in ("min", "max"))
    assert not free["size"].between(low, high).all()
    assert len(kept) == 400
    assert kept["size"].between(low, high).all()
    assert any("not of the distribution" in note for note in gaussian.notes)
    with pytest.raises(UsageError, match="narrow"):
        gaussian.sample(3, range="narrow")


@pytest.fixture(scope="module")
def sales(tmp_path_factory):
    rng = np.random.default_rng(1)
    months = pd.date_range("2000-01-01", periods=180, freq="MS")
    rows = pd.DataFrame({"month": months, "sold": rng.poisson(0.7, 180).astype(float) ** 2 / 4})
    out = tmp_path_factory.mktemp("runs") / "sales"
    return monge.fit("linear_ar", rows, "data.horizon=12", budget="3steps", out=out), rows


def test_forecasts_respect_natural_bounds_and_the_observed_range(sales):
    run, rows = sales
    paths = run.forecast(30, rows, n=60, paths=True)
    assert paths["sold"].min() == 0
    assert any("bounds" in note for note in run.notes)
    assert run.forecast(30, rows, n=60)["sold_low"].min() >= 0
    kept = run.forecast(30, rows, n=20, paths=True, range="observed")
    assert kept["sold"].between(0, rows["sold"].max()).all()
    assert any("observed range" in note for note in run.notes)
    assert len(paths) == 60 * 30


def test_a_trend_is_held_at_the_end_of_the_observed_range(tmp_path):
    months = pd.date_range("2000-01-01", periods=120, freq="MS")
    noise = np.random.default_rng(0).normal(size=120)
    rows = pd.DataFrame({"month": months, "sold": 200 + 10.0 * np.arange(120) + noise})
    options = {"budget": "3steps", "out": tmp_path / "run"}
    run = monge.fit("linear_ar", rows, "data.horizon=6", **options)
    assert (run.forecast(6, n=20, paths=True)["sold"] > rows["sold"].max()).mean() > 0.9
    kept = run.forecast(6, n=20, paths=True, range="observed")
    assert (kept["sold"] <= np.float32(rows["sold"].max())).all()
    assert any("set to its ends" in note for note in run.notes)


def test_the_mean_of_the_decoder_instead_of_a_sample(tmp_path):
    run = monge.fit("vae", "digits", latent=2, budget="2steps", out=tmp_path / "run")
    rough, smooth = (run.sample_tensor(8, None, f"mean={mean}") for mean in ("no", "yes"))
    assert rough.shape == smooth.shape
    assert (rough == rough.round()).all()
    assert not (smooth == smooth.round()).all()
    assert smooth.double().diff(dim=-1).abs().mean() < rough.double().diff(dim=-1).abs().mean()


def test_loaders_are_read_row_by_row():
    x, y = torch.randn(64, 4), torch.arange(64) % 3
    plain = data.open(TensorDataset(x, y)).fingerprint
    for loader in (DataLoader(TensorDataset(x, y), 16, shuffle=True),
                   DataLoader(TensorDataset(x, y), 30, drop_last=True)):  # fmt: skip
        assert data.open(loader).fingerprint == plain
    assert len(data.open(DataLoader(Subset(TensorDataset(x), range(20)), 16))) == 20
    with pytest.raises(DataError, match="collate_fn"):
        data.open(DataLoader(TensorDataset(x), 16, collate_fn=lambda rows: rows))


def test_rows_with_a_new_name_are_refused_by_number(gaussian, frame):
    new = frame.head(10).copy()
    new.loc[3, "kind"] = "z"
    scored = gaussian.log_likelihood(new)
    assert list(scored.numbers) == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert list(scored.series.index) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert any("row 4" in note and "'z'" in note for note in gaussian.notes)
    with pytest.raises(DataError, match="row 4"):
        gaussian.complete(new)
    with pytest.raises(DataError, match="row 1"):
        gaussian.log_likelihood(new[3:4])


def test_new_names_of_columns_that_follow_from_others(tmp_path):
    """In a column that is computed they are those of the row; one that is left out has none."""
    rng = np.random.default_rng(0)
    town = rng.integers(0, 3, 90)
    table = pd.DataFrame(
        {
            "code": np.array(["C", "Q", "S"])[town],
            "town": np.array(["Cherbourg", "Queenstown", "Southampton"])[town],
            "fare": np.round(rng.gamma(2, 9, 90), 2),
            "class": rng.choice(["first", "second"], 90),
        }
    )
    new = table.head(6).copy()
    new.loc[2, ["code", "town"]] = "O", "Oslo"
    predictor = monge.fit("logistic", table, target="class", budget="2steps", out=tmp_path / "p")
    assert len(predictor.predict(new)) == 6
    assert ["'O'" in note for note in predictor.notes] == [True]
    density = monge.fit("chow_liu", table, budget="2steps", out=tmp_path / "d")
    assert list(density.log_likelihood(new).numbers) == [1, 2, 4, 5, 6]
    with pytest.raises(DataError, match="row 1"):
        density.log_likelihood(new[:2].assign(town="Oslo"))


TARGETS = {
    "label": "kind",
    "flag": "flag",
    "count": "count",
    "real": "size",
    "date": "day",
    "two": ["kind", "size"],
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_kind_of_target_is_evaluated(frame, target, tmp_path):
    few = frame.head(80)
    run = monge.fit(
        "predict.mlp", few, "data.time=none", target=target, budget="2steps", out=tmp_path / "run",
        width=8,
    )  # fmt: skip
    metrics = run.evaluate()
    assert np.isfinite(metrics["log_likelihood"].value)
    names = [target] if isinstance(target, str) else target
    found = run.predict(few, keep_columns=True)
    assert {*names, *(f"{name}_true" for name in names)} <= {*found}
    assert found.index.equals(few.index)
    plan = make_plan(str(saved(few, tmp_path)), settings=["data.time=none"], target=names)
    assert "predict.mlp" in plan.models


def saved(frame, folder):
    path = folder / "table.csv"
    frame.to_csv(path, index=False)
    return path


def test_distances_of_frames_and_arrays(frame):
    same = monge.distance(frame[::2], frame[1::2], rows=60, data={"time": "none"})
    assert same["p_value"].value > 0.001
    x = np.random.default_rng(0).normal(size=(30, 2))
    apart = monge.distance(x, x + 3)
    assert apart["energy"].value > 1 > same["energy"].value
    assert apart["p_value"].value < 0.01
    with pytest.raises(UsageError, match="width"):
        monge.distance(x, x, width=3)


def test_a_report_shows_new_rows_beside_real_ones(gaussian, frame):
    sections = table_sections(gaussian)
    page = "".join(part for parts in sections.values() for part in parts)
    for name in frame:
        assert f"<figcaption>{name} (TV" in page
    assert page.count("10 ") >= 2
    assert page.count('<tr><th scope="row" class="number">10</th>') == 2
    assert "Pairs that differ most" in page


def test_a_report_of_text_shows_texts_and_says_nothing_of_what_is_not_there(tmp_path):
    lines = [f"{'ab' * (i % 4)}c{i % 10}" for i in range(60)]
    run = monge.fit(
        "rnn", lines, "data.tokens=chars", budget="1steps", out=tmp_path / "run", net={"width": 8}
    )
    page = monge.write_report(run).read_text()
    test = run.view.decode(run.split(None, "test").whole().x)
    assert sum(f">{each}</pre>" in page for each in test) >= 3
    assert page.count("<pre") == 1 + 2 * 3
    assert "per character" in page
    assert "peak memory" in page  # among the metrics, which have no reference
    assert "deviation" not in page  # of symbols
    assert "1 step in" in page
    assert "nan" not in page.replace("nano", "")


def test_a_single_row_has_no_error(frame, tmp_path, capsys):
    from monge.cli.main import main

    few = frame.head(12)
    run = monge.fit("independent", few, "data.time=none", budget="1steps", out=tmp_path / "run")
    assert "±" not in monge.write_report(run).read_text().partition("<h2")[0]
    few.head(1).to_csv(tmp_path / "one.csv", index=False)
    with pytest.raises(SystemExit) as end:
        main(["score", str(tmp_path / "run"), str(tmp_path / "one.csv")])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "nan" not in shown
    assert "1 row\n" in shown


def test_columns_that_hold_nothing_have_no_chart():
    numbers, none = pd.Series(np.arange(50.0)), pd.Series([np.nan] * 50)
    frame = pd.DataFrame({"full": numbers, "none": none})
    found = column_charts({}, frame, frame)
    assert len(found) == 1
    assert "full (TV 0.00)" in found[0]
    shifted = column_chart("full", numbers, numbers + 100)
    assert "TV 0.8" in shifted  # all new values are in the last bar, where some real ones are


def test_a_second_comparison_gets_a_number_and_models_that_refuse_are_skipped(frame, tmp_path):
    path = str(saved(frame, tmp_path))
    plan = make_plan(path, ["made", "pixelcnn"], ["data.time=none"], "1steps")
    assert list(plan.refused) == ["autoregressive.pixelcnn"]
    assert "autoregressive.made" in plan.models
    assert len(plan.left_out) == 1
    with pytest.raises(DataError):
        make_plan(path, ["pixelcnn"], ["data.time=none"], "1steps")
    plan = make_plan(path, ["made", "predict.mlp"], ["data.time=none"], "1steps")
    assert "--target" in plan.refused["predict.mlp"]
    with pytest.raises(UsageError, match="--target"):
        make_plan(path, ["predict.mlp"], ["data.time=none"], "1steps")
    first = Comparison.create(plan)
    assert Comparison.create(plan).folder == first.folder
    other = make_plan(path, ["made"], ["data.time=none"], "2steps")
    assert Comparison.create(other).folder.name == f"{first.folder.name}-2"
    assert Comparison.create(other).folder.name == f"{first.folder.name}-2"
    with pytest.raises(RunError):
        Comparison.create(other, first.folder)


def test_a_frame_is_described_with_models_for_it(frame):
    found = monge.describe(frame, time="none")
    assert list(found.frame["column"]) == list(frame)
    assert found.recommended[0].models[0] == "baseline.chow_liu"
    assert "baseline.chow_liu" in repr(found)
    assert found._repr_html_().count("<tr") > len(frame.columns)


def test_runs_have_what_the_command_line_has():
    methods = (
        "complete log_likelihood score predict sample encode decode forecast translate evaluate"
    )
    assert {*methods.split()} <= {*dir(Run)}
    assert {"compare", "describe", "distance", "write_report"} <= {*monge.__all__}


def test_a_model_is_a_module_for_a_loop_of_ones_own(tmp_path):
    """The loop of docs/guides/tools.md: the model of a run learns in it like any other module."""
    model = monge.fit("vae", "iris", budget="2steps", out=tmp_path / "run").model
    assert isinstance(model, torch.nn.Module)
    rows = monge.open("iris").view().split("train").whole()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(0)
    values = []
    for _ in range(60):
        loss = sum(term.mean() for term in model.train().loss(rows).values())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        values.append(loss.item())
    assert np.mean(values[-10:]) < np.mean(values[:10]) - 0.5
    again = torch.nn.ModuleDict({"density": model})
    assert any(name.startswith("density.") for name in again.state_dict())
