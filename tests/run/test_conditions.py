"""Conditions as Python holds them, and what they are not."""

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
    one = run.sample(3, {"y": "cook"})
    assert np.array_equal(one, run.sample(3, given={"y": ["cook"] * 3}))
    assert np.array_equal(one, run.sample(3, {"y": Batch(torch.tensor([1]))}))
    assert not np.array_equal(one, run.sample(3, {"y": np.array(["cook", "smith", "clerk"])}))


@pytest.mark.parametrize(
    ("kind", "call", "sentence"),
    [
        (DataError, lambda run: run.sample(2), r"needs a value of 'y' .* given=\{'y': VALUE\}"),
        (UsageError, lambda run: run.sample(2, "steps=5"), "'steps=5'"),
        (DataError, lambda run: run.sample(2, {"x": 3}), "'x'; choose from y"),
        (DataError, lambda run: run.sample(2, {"job": ["cook"]}), "'job'"),
        (DataError, lambda run: run.sample(2, {"y": "nurse"}), "nurse is none of its 3 names"),
        (DataError, lambda run: run.sample(2, {"y": ["nurse", "cook"]}), "y, row 1: 'nurse'"),
        (
            DataError,
            lambda run: run.sample(3, {"y": ["cook", "smith"]}),
            "2 rows; it needs 1 or 3",
        ),
        (UsageError, lambda run: run.sample(-1, {"y": "cook"}), "n=-1"),
        (UsageError, lambda run: monge.fit("made", "iris", budget=5), "budget '5'"),
    ],
)
def test_what_is_no_condition_is_refused(run, kind, call, sentence):
    with pytest.raises(kind, match=sentence):
        call(run)
