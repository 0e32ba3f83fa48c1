"""Evaluation of tables with holes, atoms and bounds, and of targets of a single column."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

import monge
from monge.cli.main import attempt
from monge.core.space import Space
from monge.evaluate.meanings import meaning
from monge.evaluate.suite import unbounded
from monge.report.run import write_report

TARGETS = [
    *(("made", name) for name in ("kind", "children", "age", "deck", "member")),
    *(
        pytest.param(model, name, marks=pytest.mark.slow)
        for model in ("mlp", "vae")
        for name in ("kind", "children", "age", "deck", "member")
        if (model, name) not in (("vae", "kind"), ("vae", "deck"))
    ),
    *(pytest.param(model, "member", marks=pytest.mark.slow) for model in ("maf", "rnn")),
]
"""Models and targets: a name, a whole number, a number, a name that may be empty, and a truth
value."""
SMALL = {"made": ["width=16"]}
"""Settings by which a model answers soon: what is examined is the evaluation."""


def troubled(n: int = 200) -> pd.DataFrame:
    """Names, whole numbers, an atom, bounds and empty cells."""
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])
    age = (20 + 10 * (kind == "a") + rng.gamma(4.0, 3.0, n)).round(1)
    table = pd.DataFrame(
        {
            "kind": kind,
            "age": np.where(rng.random(n) < 0.2, np.nan, age),
            "children": rng.poisson(1.5, n).astype(float),
            "tip": np.where(rng.random(n) < 0.4, 0.0, rng.gamma(2.0, 2.0, n).round(2)),
            "member": rng.random(n) < 0.5,
        }
    )
    hidden = rng.random(n) < 0.5
    table["deck"] = pd.Series(np.where(hidden, None, rng.choice(["x", "y"], n)))
    table.loc[hidden & (rng.random(n) < 0.3), "children"] = np.nan
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    troubled().to_csv(folder / "people.csv", index=False)
    return folder


@pytest.mark.parametrize("model", ["made", pytest.param("vae", marks=pytest.mark.slow)])
def test_every_metric_of_a_table_with_holes_is_finite(model, folder, capsys):
    data = (str(folder / "people.csv"), "data.test=0.3")
    monge.fit(model, *data, *SMALL.get(model, ()), budget="30steps", out=folder / model)
    assert attempt(["evaluate", str(folder / model), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    metrics = report["metrics"]
    assert all(math.isfinite(score["value"]) for score in metrics.values())
    groups = report["groups"]
    assert {"likelihood", "samples", "table", "privacy", "cost"} <= set(groups)
    assert sum(map(len, groups.values())) == len(metrics)
    for name in ("energy_distance", "c2st", "coverage", "empty_cells", "empty_pairs", "pairs"):
        assert f"{name}_of_real_rows" in metrics
    for group in ("table", "privacy", "completion"):
        for name in groups.get(group, ()):
            assert meaning(name.removesuffix("_of_real_rows"))[1], name
    low, high = report["membership_auc_interval"]
    assert low < metrics["membership_auc"]["value"] < high
    if model == "vae":
        assert "hidden_30_mae" in groups["completion"]
        page = write_report(str(folder / model)).read_text()
        assert meaning("exact_copies")[1] in page


@pytest.mark.parametrize(("model", "target"), TARGETS)
def test_a_target_of_one_column_is_evaluated(model, target, folder):
    run = monge.fit(
        model,
        str(folder / "people.csv"),
        "data.test=0.3",
        *SMALL.get(model, ()),
        target=target,
        budget="5steps",
        out=folder / f"{model}-{target}",
    )
    assert run.space.shape == ()
    found = run.evaluate()
    assert found
    assert all(math.isfinite(score.value) for score in found.values()), found


@pytest.mark.slow
def test_predictors_of_one_column_are_compared(folder, monkeypatch):
    monkeypatch.setenv("MONGE_RUNS", str(folder / "runs"))
    board = monge.compare(
        str(folder / "people.csv"),
        "mlp",
        "logistic",
        "made",
        "data.test=0.3",
        target="kind",
        budget="5steps",
        out=folder / "comparison",
    )
    assert not board.failures
    assert {row.model.partition(".")[2] for row in board.rows} == {"mlp", "logistic", "made"}


def test_infinite_samples_are_reported_and_empty_ones_are_not():
    columns = (Space(kind="real", name="a", optional=True), Space(kind="real", name="b"))
    space = Space(kind="columns", shape=(2,), columns=columns)
    x = torch.tensor([[math.nan, 1.0], [0.0, 1.0]])
    assert unbounded(x, space) == {}
    for wrong in (math.nan, math.inf):
        x[1, 1] = wrong
        assert unbounded(x, space)["samples_not_finite"].value == 0.5
    assert unbounded(torch.tensor([1.0, math.nan]), Space(kind="real"))
    assert unbounded(torch.tensor([1.0, math.nan]), Space(kind="real", optional=True)) == {}
