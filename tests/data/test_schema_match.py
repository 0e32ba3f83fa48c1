"""Other data read in the terms of a run, or refused in a sentence."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from monge.core.errors import DataError
from monge.data import loading as data

FRAME = pd.DataFrame(
    {
        "age": [30, 41, 52, 63] * 5,
        "pay": [1.5, 2.5, 3.5, 4.5] * 5,
        "job": ["cook", "smith", "cook", "judge"] * 5,
        "old": [0, 1] * 10,
    }
)


def stored(**asked):
    return json.loads(json.dumps(data.open(FRAME).view(**asked).to_dict()))


def written(tmp_path, text):
    path = tmp_path / "other.csv"
    path.write_text(text)
    return path


def test_codecs_and_statistics_are_the_runs(tmp_path):
    path = written(tmp_path, "job,old,pay,age,id\nsmith,1,9.5,44,7\n")
    source = data.open(path, fields=stored())
    view = source.view()
    assert len(source) == 1
    assert view.split("all").whole().x.tolist() == [[44.0, 9.5, 2.0, 1.0]]
    assert view.space.columns[0].mean == data.open(FRAME).view().space.columns[0].mean
    assert "id" in source.notes[0]
    assert view.space == data.open(FRAME).view().space
    assert not source.has_splits


def test_columns_without_names_are_taken_in_order(tmp_path):
    source = data.open(written(tmp_path, "44,9.5,smith,1\n45,1.25,cook,0\n"), fields=stored())
    assert source.view().split("all").whole().x.tolist() == [
        [44.0, 9.5, 2.0, 1.0],
        [45.0, 1.25, 0.0, 0.0],
    ]


def test_a_target_that_is_not_there_is_unseen(tmp_path):
    path = written(tmp_path, "age,pay,old\n44,9.5,1\n45,1.25,0\n")
    view = data.open(path, fields=stored(target="job")).view(target="job")
    batch = view.split("all", every=True).whole()
    assert batch.observed.tolist() == [False, False]
    assert batch.given["inputs"].x.shape == (2, 3)


def test_missing_cells_are_owned_up_to(tmp_path):
    view = data.open(written(tmp_path, "44,,smith,1\n45,1.25,,0\n"), fields=stored()).view()
    assert view.space.missing
    assert view.split("all").whole().observed.tolist() == [
        [True, False, True, True],
        [True, True, False, True],
    ]


HEAD = "age,pay,job,old\n44,9.5,smith,1\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD + "44,9.5,cook,2\n", "column 'old', row 3 of other.csv: 2 is neither 0 nor 1"),
        (HEAD + "44.5,9.5,cook,1\n", "column 'age', row 3 .*: 44.5 has a fraction"),
        (HEAD + "44,much,cook,1\n", "column 'pay', row 3 .*: 'much' is text where a number"),
        (HEAD + "44,inf,cook,1\n", "column 'pay', row 3 .*: inf is not finite"),
        ("age,pay,old\n44,9.5,1\n", "lacks job, which the run was fitted on"),
        ("44,9.5,1\n", "3 columns without names where the run has 4"),
    ],
)
def test_what_does_not_fit_gets_one_sentence(tmp_path, text, sentence):
    with pytest.raises(DataError, match=sentence):
        data.open(written(tmp_path, text), fields=stored())


def test_pictures_in_the_terms_of_a_run():
    fields = data.open("digits").fields_dict()
    images = np.random.default_rng(0).integers(0, 17, (1, 8, 8), dtype=np.uint8)
    view = data.open(images, fields=fields).view()
    assert torch.equal(view.split("all").whole().x[0, 0], torch.from_numpy(images[0]).float())
    assert view.space.size == 17
    with pytest.raises(DataError, match=r"image, row 1: \d+ .* 0 to 16"):
        data.open(images + 50, fields=fields)
    with pytest.raises(DataError, match=r"1x5x5 .* 1x8x8.*\+resize8"):
        data.open(np.ones((1, 5, 5), np.uint8), fields=fields)
    with pytest.raises(DataError, match="single values"):
        data.open(np.ones(4), fields=fields)


def test_binarised_pictures_in_the_terms_of_a_run():
    source = data.open("digits+binarise")
    fields, chosen = source.fields_dict(), torch.arange(20)
    same = data.open("digits+binarise", fields=fields).view().split("all").batch(chosen).x
    assert torch.equal(same, source.view().split("all").batch(chosen).x)
    with pytest.raises(DataError, match=r"17 levels .*\+binarise"):
        data.open("digits", fields=fields)
    samples = source.view().decode(same)  # what the run drew scores as itself
    for word in ("binarise", "binarise-fixed"):
        again = data.open(samples, fields=data.open(f"digits+{word}").fields_dict())
        assert torch.equal(again.view().split("all").whole().x, same)
    fixed = data.open("digits+binarise", fields=data.open("digits+threshold").fields_dict())
    assert torch.equal(fixed.view().split("all").batch(chosen).x, same)


def test_arrays_and_tables_stand_in_for_one_another(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 2))
    run = data.open((x, np.arange(20) % 2)).fields_dict()
    other = data.open(pd.DataFrame({"a": [1.5, 2.5], "b": [0.5, 4.5]}), fields=run)
    assert other.view().split("all").whole().x.tolist() == [[1.5, 0.5], [2.5, 4.5]]
    table = data.open(FRAME[["age", "pay"]]).fields_dict()
    rows = data.open(np.array([[30.0, 1.25]]), fields=table).view().split("all").whole().x
    assert rows.tolist() == [[30.0, 1.25]]
    with pytest.raises(DataError, match=r"3 columns .* 2"):
        data.open(np.ones((2, 3)), fields=table)
    with pytest.raises(DataError, match="not numbers where the run has vectors"):
        data.open(pd.DataFrame({"a": ["x"], "b": ["y"]}), fields=run)
    with pytest.raises(DataError, match=r"shape 3 .* 2"):
        data.open(np.ones((2, 3)), fields=run)
