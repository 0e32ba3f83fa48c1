"""Batches and spaces: trees of rows, hidden cells, conditions, parts, lists of tensors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from monge.core.batch import Batch, as_batch, broadcast_conditions, join_batches
from monge.core.errors import DataError, UsageError, nearest, shorten_words, shown
from monge.core.marginals import Marginals
from monge.core.positional import batches, example_inputs, input_names
from monge.core.space import Space

LABEL = Space(kind="label", size=3, name="label")
TABLE = Space(
    kind="columns",
    shape=(4,),
    columns=(
        Space(kind="real", mean=(2.5,), scale=(2.0,), low=(-1.0,), high=(6.0,), name="width"),
        Space(kind="counts", mean=(2.6,), low=(1.0,), high=(8.0,), name="rooms", optional=True),
        Space(kind="label", size=3, name="town", optional=True),
        Space(kind="binary", size=2, mean=(0.25,), name="flag"),
    ),
)


def tree() -> Batch:
    return Batch(
        torch.arange(12.0).reshape(6, 2),
        given={"label": Batch(torch.arange(6), row=torch.arange(6))},
        observed=torch.arange(6) % 2 == 0,
        length=torch.arange(6) + 1,
        row=torch.arange(10, 16),
        step=7,
        weight=torch.arange(6.0),
    )


def test_rows_of_a_tree_are_chosen_together():
    batch = tree()[torch.tensor([4, 1])]
    assert batch.x.tolist() == [[8, 9], [2, 3]]
    assert batch.given["label"].x.tolist() == [4, 1]
    assert batch.observed.tolist() == [True, False]
    assert batch.length.tolist() == [5, 2]
    assert batch.row.tolist() == [14, 11]
    assert batch.weight.tolist() == [4, 1]
    assert (len(batch), batch.step) == (2, 7)
    pieces = tree().chunk(4)
    assert [len(piece) for piece in pieces] == [2, 2, 2]
    assert torch.equal(join_batches(pieces).given["label"].x, tree().given["label"].x)
    double = tree().double()
    assert double.x.dtype == torch.float64
    assert double.length.dtype == torch.int64
    assert double.given["label"].x.dtype == torch.int64
    assert torch.equal(join_batches([tree()]).x, tree().x)
    joined = join_batches([tree(), tree()[:1]])
    assert len(joined) == len(joined.row) == len(joined.length) == len(joined.observed) == 7
    assert join_batches([Batch(torch.zeros(2, 1))] * 2).observed is None


def test_masks_and_row_numbers_have_defaults():
    batch = tree()
    assert batch.observed_mask.tolist() == [[k % 2 == 0] * 2 for k in range(6)]
    plain = Batch(torch.zeros(3, 2))
    assert plain.observed_mask.all()
    assert plain.observed_mask.shape == (3, 2)
    assert plain.rows.tolist() == [0, 1, 2]
    assert batch.rows.tolist() == list(range(10, 16))
    assert as_batch(plain) is plain
    assert as_batch(torch.ones(2)).x.tolist() == [1, 1]


def test_hidden_cells_hold_a_value_of_the_support():
    x = torch.full((2, 4), 1.0)
    hidden = torch.tensor([[True] * 4, [False, True, False, False]])
    batch = Batch(x, observed=torch.tensor([[True] * 4, [True] * 3 + [False]]))
    found = batch.hide(hidden, TABLE)
    assert found.x.tolist() == [[2.5, 3.0, 0.0, 0.0], [1.0, 3.0, 1.0, 1.0]]
    assert found.observed.tolist() == [[False] * 4, [True, False, True, False]]
    counts = Space(kind="counts", shape=(2,), mean=(2.6,))
    assert Batch(x[:, :2]).hide(hidden[:, :2], counts).x[0].tolist() == [3.0, 3.0]


def test_conditions_are_repeated_and_refused():
    space = Space(kind="real", shape=(2,), given={"label": LABEL})
    one, three = Batch(torch.tensor([2])), Batch(torch.arange(3))
    assert broadcast_conditions({"label": one}, space, 3)["label"].x.tolist() == [2, 2, 2]
    assert broadcast_conditions({"label": three}, space, 3)["label"] is three
    assert len(broadcast_conditions({"label": one}, space, 1)["label"]) == 1
    assert len(broadcast_conditions({"label": Batch(torch.zeros(0))}, space, 0)["label"]) == 0
    for given, n, name in (
        ({"label": three}, 2, "label"),
        ({"label": three}, 1, "label"),
        ({}, 2, "label"),
        ({"label": one, "age": one}, 2, "age"),
    ):
        with pytest.raises(DataError, match=name):
            broadcast_conditions(given, space, n)


def test_statistics_have_the_layout_of_an_event():
    picture = Space(kind="levels", shape=(2, 3, 4), size=5, mean=(1.0, 2.0), high=(4.0,))
    assert picture.dims == 24
    assert picture.statistic("mean").shape == (2, 1, 1)
    assert picture.statistic("high").shape == (1, 1, 1)
    assert picture.spread("mean")[1].unique().tolist() == [2.0]
    assert [part.mean[0] for part in picture.parts] == [1.0] * 12 + [2.0] * 12
    assert {part.size for part in picture.parts} == {5}
    assert picture.is_image
    assert not replace(picture, varies=True).is_image
    assert not replace(picture, kind="counts").is_image
    vector = Space(kind="real", shape=(3,), mean=(1.0, 2.0, 3.0), lower=0.0)
    assert vector.statistic("mean").tolist() == [1.0, 2.0, 3.0]
    assert not vector.is_image
    assert [part.lower for part in vector.parts] == [0.0] * 3
    assert TABLE.statistic("mean").tolist() == pytest.approx([2.5, 2.6, 0.0, 0.25])
    assert TABLE.parts == TABLE.columns
    sequence = Space(kind="real", shape=(9, 2), mean=(1.0, 2.0))
    assert sequence.spread("mean").shape == (9, 2)
    assert Space(kind="real").dims == 1
    for wrong in (
        {"kind": "real", "shape": (3,), "mean": (1.0, 2.0)},
        {"kind": "levels", "shape": (2, 3, 4), "scale": (1.0,) * 4},
        {"kind": "real", "low": (math.nan,)},
        {"kind": "counts", "high": (2.0**64,)},
        {"kind": "columns", "shape": (2,), "columns": TABLE.columns},
    ):
        with pytest.raises(UsageError):
            Space(**wrong)
    assert Space(kind="counts", high=(2.0**63,)).high == (2.0**63,)
    assert Space(kind="real", high=(2.0**64,)).high == (2.0**64,)


def test_empty_cells_and_plain_spaces():
    x = torch.tensor([[1.0, torch.nan, 2.0, 0.0], [torch.nan, 1.0, 1.0, torch.nan]])
    assert TABLE.empty(x).tolist() == [[False, True, True, False], [False] * 4]
    assert not TABLE.is_plain
    assert not Space(kind="real", shape=(3,)).empty(x[:, :3]).any()
    number = Space(kind="real", optional=True)
    assert number.empty(torch.tensor([1.0, torch.nan])).tolist() == [False, True]
    label = Space(kind="label", size=3, optional=True)
    assert label.empty(torch.tensor([1.0, 2.0])).tolist() == [False, True]
    plain = replace(TABLE, columns=tuple(replace(c, optional=False) for c in TABLE.columns))
    assert plain.is_plain
    for change in ({"optional": True}, {"atoms": (0.0,)}, {"lower": 0.0}, {"upper": 0.0}):
        assert not Space(kind="real", **change).is_plain


def test_spaces_are_described():
    assert str(Space(kind="real")) != str(Space(kind="real", shape=(1,)))
    assert "12" in str(Space(kind="levels", size=12))
    assert "2x3" in str(Space(kind="binary", shape=(2, 3)))
    assert str(TABLE).endswith("columns")
    assert str(Space(kind="columns", shape=(1,), columns=(LABEL,))).endswith("column")
    longest, fixed = (
        str(Space(kind="tokens", size=3, shape=(7,), varies=varies)) for varies in (True, False)
    )
    assert longest != fixed
    assert "7" in longest


def test_exported_inputs_are_rows_of_their_spaces():
    text = Space(kind="tokens", size=6, shape=(4,), varies=True)
    number = Space(kind="real", low=(10.0,), high=(11.0,))
    spaces = {"x": TABLE, "text": text, "label": LABEL, "number": number}
    assert input_names(spaces) == ("x", "text", "text_length", "label", "number")
    like = torch.zeros((), dtype=torch.float32)
    table, tokens, lengths, label, numbers = example_inputs(spaces, like, rows=200)
    assert (table.dtype, tokens.dtype, label.dtype) == (torch.float32, torch.int64, torch.int64)
    assert table.shape == (200, 4)
    assert label.shape == numbers.shape == (200,)
    assert tokens.unique().tolist() == list(range(6))
    assert label.unique().tolist() == [0, 1, 2]
    assert lengths.unique().tolist() == [1, 2, 3, 4]
    assert -1 <= table[:, 0].min() < 0 < 5 < table[:, 0].max() <= 6
    assert table[:, 1].unique().tolist() == list(range(1, 9))
    assert table[:, 2].unique().tolist() == [0, 1, 2]
    assert table[:, 3].unique().tolist() == [0, 1]
    assert 10 <= numbers.min() < 10.1 < 10.9 < numbers.max() <= 11
    found = batches(spaces, (table, tokens, lengths, label, numbers))
    assert found["text"].length is lengths
    assert found["x"].length is None
    assert len(example_inputs(spaces, like)[0]) == 3


def test_messages_name_what_is_near_and_cut_what_is_long():
    names = [f"model{k}" for k in range(12)]
    assert nearest("modle3", names).endswith("model3?")
    assert all(name in nearest("zzz", names) for name in names)
    many = nearest("zzz", [*names, "last"])
    assert "13" in many
    assert 0 < sum(name in many.replace(",", " ").split() for name in [*names, "last"]) <= 5
    assert nearest("x", []) != nearest("x", ["abc"])
    word = "a" * 201
    assert shorten_words(f"found {word}'; do\nthis") == f"found {'a' * 100}...'; do this"
    assert shorten_words(f"{word}')?;") == f"{'a' * 100}...)?;"
    assert shorten_words("a" * 200) == "a" * 200
    assert shown("short") == "'short'"
    long = shown({f"key {k}": "v" * 500 for k in range(50)})
    assert len(long) <= 163
    assert str(UsageError("one\ntwo")) == "one two"


class Uniform(Marginals):
    """P(x <= t) = t / 8 on 0 to 8, with an atom of one half at 3 if there is one."""

    def __init__(self, space: Space, rows: int = 2) -> None:
        self.space, self.rows = space, rows

    @property
    def probabilities(self):
        return [torch.zeros(self.rows, 0, dtype=torch.float64)]

    def cumulative(self, t):
        even = (t / 8).clamp(0, 1)
        return even / 2 + 0.5 * (t >= 3) if self.space.atoms else even


@pytest.mark.parametrize("level", [0.001, 0.3, 0.9, 0.999])
def test_quantiles_lie_on_atoms_and_between_bounds(level):
    """The search starts far from the values, on either side of them."""
    for low, high in ((0.0, 8.0), (100.0, 101.0), (-101.0, -100.0)):
        space = Space(kind="real", low=(low,), high=(high,))
        assert Uniform(space).quantile(level).tolist() == [[pytest.approx(8 * level)]] * 2
        bounded = Uniform(replace(space, lower=1.0, upper=5.0)).quantile(level)
        assert bounded[0, 0].item() == pytest.approx(min(max(8 * level, 1.0), 5.0))
        spike = Uniform(replace(space, atoms=(20.0, 3.0))).quantile(level)
        under, over = 3 / 16, 3 / 16 + 0.5
        due = 16 * level if level <= under else 3.0 if level <= over else 16 * (level - 0.5)
        assert spike[0, 0].item() == pytest.approx(due, abs=1e-9)


class Several(Uniform):
    """The same for three columns with two, one and no atoms."""

    @property
    def probabilities(self):
        return [torch.zeros(self.rows, 0, dtype=torch.float64)] * 3

    def cumulative(self, t):
        even = (t / 8).clamp(0, 1)
        two = even / 2 + 0.25 * (t >= 3).double() + 0.25 * (t >= 5)
        one = even / 2 + 0.5 * (t >= 3)
        return torch.stack([two[:, 0], one[:, 1], even[:, 2]], 1)


def test_columns_may_have_as_many_atoms_as_they_like():
    real = Space(kind="real", high=(8.0,))
    columns = (replace(real, atoms=(3.0, 5.0)), replace(real, atoms=(3.0,)), real)
    found = Several(Space(kind="columns", shape=(3,), columns=columns)).quantile(0.6)
    due = [5.0, 3.0, 4.8]  # at 5 the first has jumped from 0.56 to 0.81, the second at 3 to 0.69
    assert found.tolist() == [pytest.approx(due)] * 2


def test_statistics_are_one_number_or_one_for_each_entry():
    Space(kind="real", shape=(3,), mean=(0.0, 1.0, 2.0))
    for shape, mean in (((3,), (0.0, 1.0)), ((), (0.0, 1.0)), ((2, 4, 4), (0.0,) * 4)):
        with pytest.raises(UsageError):
            Space(kind="real", shape=shape, mean=mean)


def test_a_statistic_of_channels_broadcasts_against_an_image():
    space = Space(kind="real", shape=(3, 2, 5), mean=(1.0, 2.0, 3.0), scale=(4.0,))
    assert space.array("mean").shape == (3, 1, 1)
    assert space.array("scale").shape == (1, 1, 1)
    assert space.array("mean")[:, 0, 0].tolist() == [1.0, 2.0, 3.0]
