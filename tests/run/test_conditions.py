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
