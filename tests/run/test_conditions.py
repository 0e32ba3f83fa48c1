"""Conditions given from Python, and those that are refused."""

import numpy as np
import pytest
import torch

import monge
from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    rng = np.random.default_rng(0)
    names = np.array(["cook", "clerk", "smith"])[np.arange(90) % 3]
    pairs = (rng.normal(size=(90, 2)).astype("float32"), names)
    return monge.fit("made", pairs, "width=8", "depth=1", budget="3steps", given=["y"], out=out)


def test_a_value_stands_for_all_and_several_for_each(run):
    one = run.sample(3, {"y": "cook"}, seed=0)
    assert np.array_equal(one, run.sample(3, given={"y": ["cook"] * 3}, seed=0))
    assert np.array_equal(one, run.sample(3, {"y": Batch(torch.tensor([1]))}, seed=0))
    assert not np.array_equal(
        one, run.sample(3, {"y": np.array(["cook", "smith", "clerk"])}, seed=0)
    )


@pytest.mark.parametrize(
    ("error", "call", "values"),
    [
        (DataError, lambda run: run.sample(2), r"'y'.*given=\{'y'"),
        (UsageError, lambda run: run.sample(2, "steps=5"), "'steps=5'"),
        (DataError, lambda run: run.sample(2, {"x": 3}), r"'x'.*\by\b"),
        (DataError, lambda run: run.sample(2, {"job": ["cook"]}), "'job'"),
        (DataError, lambda run: run.sample(2, {"y": "nurse"}), r"nurse.*\b3\b"),
        (DataError, lambda run: run.sample(2, {"y": ["nurse", "cook"]}), r"y\b.*\b1\b.*nurse"),
        (
            DataError,
            lambda run: run.sample(3, {"y": ["cook", "smith"]}),
            r"\b3\b.*\b2\b",
        ),
        (UsageError, lambda run: run.sample(-1, {"y": "cook"}), "n=-1"),
        (UsageError, lambda run: monge.fit("made", "iris", budget=5), "'5'"),
    ],
)
def test_invalid_conditions_are_refused(run, error, call, values):
    with pytest.raises(error, match=values):
        call(run)


@pytest.fixture(scope="module")
def simulations(tmp_path_factory):
    """theta given the columns a and b of a table, or given a vector."""
    import pandas as pd

    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("runs")
    frame = pd.DataFrame(rng.normal(size=(90, 3)), columns=["theta", "a", "b"])
    settings = ("net.width=8", "layers=1")
    table = monge.fit("maf", frame, *settings, budget="2steps", target="theta", out=folder / "t")
    vector = monge.fit(
        "maf", "linear_gaussian", *settings, budget="2steps", target="theta", out=folder / "v"
    )
    return table, vector


def test_columns_are_given_by_name_and_vectors_by_their_numbers(simulations):
    table, vector = simulations
    whole = Batch(torch.tensor([[0.5, -1.0]]))
    (name,) = table.view.given
    one = table.sample(3, {"a": 0.5, "b": -1.0}, seed=0)
    assert one.equals(table.sample(3, {name: whole}, seed=0))
    assert one.equals(table.sample(3, {"b": [-1.0] * 3, "a": "0.5"}, seed=0))
    assert not one.equals(table.sample(3, {"a": -1.0, "b": 0.5}, seed=0))
    typed = vector.sample(2, {"x": "1,2,3"}, seed=0)
    exact = Batch(torch.tensor([[1.0, 2.0, 3.0]]))
    assert np.array_equal(typed, vector.sample(2, {"x": exact}, seed=0))


@pytest.mark.parametrize(
    ("which", "given", "values"),
    [
        (0, {"a": 1}, r"\ba, b\b.*\bb\b"),
        (0, {"a": 1, "b": "low"}, r"b.*'low'"),
        (0, {"a": [1, 2], "b": [1, 2, 3]}, r"2.*3"),
        (0, {"a": 1, "c": 2}, r"'c'.*\ba\b"),
        (1, {"x": "1,2"}, r"\b3\b.*x=1,2"),
        (1, {"x": "1,2,many"}, r"\b3\b.*x=1,2,many"),
    ],
)
def test_columns_and_vectors_that_are_not_whole_are_refused(simulations, which, given, values):
    with pytest.raises(DataError, match=values):
        simulations[which].sample(2, given)
