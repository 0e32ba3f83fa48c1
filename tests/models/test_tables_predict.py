"""Predictors on tables as people have them: empty inputs, empty targets, names that were not in
training, and targets with atoms and bounds."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.data import loading as data
from monge.evaluate.predictions import next_below
from monge.models.predict.logistic import Logistic
from monge.prob.heads import Head, HeadMarginals
from monge.run import run

QUICK = ("net.width=16", "train.lr=2e-2", "train.warmup=5", "train.ema_decay=0.9")
ROWS, HOLES = 200, 40


def people(n=ROWS):
    """Whether `age` is empty decides `kind`; both targets have empty cells, `tip` has zeros."""
    rng = np.random.default_rng(0)
    empty = rng.random(n) < 0.5
    age = np.where(empty, np.nan, rng.gamma(4.0, 9.0, n).round(1))
    kind = np.where(empty, "guest", "member").astype(object)
    tip = np.where(rng.random(n) < 0.4, 0.0, rng.gamma(2.0, 2.0, n).round(2))
    job = rng.choice(["cook", "clerk"], n).astype(object)
    kind[:HOLES], tip[-HOLES:] = None, np.nan
    return pd.DataFrame({"age": age, "job": job, "tip": tip, "kind": kind})


@pytest.fixture(scope="module")
def table():
    return people()


@pytest.fixture(scope="module")
def fitted(table, tmp_path_factory):
    """A classifier of `kind` from the other columns."""
    out = tmp_path_factory.mktemp("runs") / "kind"
    return run.fit("predict.mlp", table, *QUICK, target="kind", budget="80steps", out=out)


@pytest.fixture(scope="module")
def tips(table, tmp_path_factory):
    """A regressor of `tip`, which has zeros and a lower bound."""
    out = tmp_path_factory.mktemp("runs") / "tip"
    return run.fit("predict.mlp", table, *QUICK, target="tip", budget="40steps", out=out)


@pytest.mark.parametrize("target", ["kind", "tip"])
def test_rows_without_a_target_are_left_out_and_counted(table, target):
    source = data.open(table)
    view = source.view(target=target)
    parts = [view.split(split) for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) == ROWS - HOLES
    assert len(view.training()) == len(parts[0]) == view.space.rows
    assert len(view.split("all", every=True)) == ROWS
    for part in parts:
        batch = part.whole()
        assert bool(batch.observed_mask.all())
        assert not bool(batch.x.isnan().any())
    assert view.space.is_plain == (target == "kind")
    assert not view.space.optional
    assert not view.space.missing
    assert [note for note in view.notes if f"{HOLES} rows" in note and target in note]
    assert view.split("all").notes == view.left_out("all")
    assert not view.split("all", every=True).notes
    # the empty cells of the other columns are values of their own
    assert source.view().space.columns[3].optional


def test_a_class_of_empty_cells_does_not_exist(table):
    view = data.open(table).view(target="kind")
    assert view.space.size == 2
    assert list(view.event.fields[0].codec.names) == ["guest", "member"]
    x = view.split("all").whole().x
    assert list(view.decode(x)["kind"]) == list(table["kind"].dropna())
    empty = view.split("all", every=True).batch(torch.arange(HOLES))
    assert not bool(empty.observed_mask.any())


def test_one_of_several_targets_may_be_empty(table):
    view = data.open(table).view(target=["kind", "tip"])
    batch = view.split("all").whole()
    assert len(batch) == ROWS  # no row lacks both
    assert (~batch.observed_mask).sum(0).tolist() == [HOLES, HOLES]
    assert not view.notes
    assert not any(column.optional for column in view.space.columns)


def test_a_table_without_any_target_is_refused_by_name(table):
    fields = data.open(table).view(target="kind").to_dict()
    other = data.open(table.drop(columns="kind"), fields=fields).view(target="kind")
    with pytest.raises(DataError, match="kind"):
        other.split("all")
    assert len(other.split("all", every=True)) == ROWS


def test_a_target_that_is_constant_apart_from_empty_cells_is_refused(table):
    with pytest.raises(DataError, match="guest"):
        data.open(table.assign(kind=table["kind"].where(table["kind"] == "guest"))).view(
            target="kind"
        ).check_target_varies()


def test_an_empty_input_is_an_input(fitted, table):
    predicted = fitted.predict(table)
    assert len(predicted) == ROWS  # rows without the target are predicted too
    truth = np.where(table["age"].isna(), "guest", "member")
    assert (predicted["kind"] == truth).mean() > 0.95
    assert set(predicted) >= {"kind_p_guest", "kind_p_member"}
    assert not [name for name in predicted if "missing" in name]


def test_scores_are_of_the_rows_with_a_target(fitted, table):
    scores = fitted.log_likelihood(table)
    assert len(scores.value) == ROWS - HOLES
    assert scores.numbers.tolist() == list(range(HOLES + 1, ROWS + 1))
    assert [note for note in fitted.notes if f"{HOLES} rows" in note]
    known = fitted.log_likelihood(table.dropna(subset=["kind"]))
    np.testing.assert_allclose(scores.value, known.value)


def test_a_name_that_was_not_in_training_is_an_empty_input(fitted, table):
    strange = table.copy()
    strange.loc[[5, 9], "job"] = ["pilot", "judge"]
    empty = table.copy()
    empty.loc[[5, 9], "job"] = None
    one, other = fitted.predict(strange), fitted.predict(empty)
    pd.testing.assert_frame_equal(one, other)
    fitted.predict(strange)
    noted = [note for note in fitted.notes if "pilot" in note]
    assert len(noted) == 1
    assert "row 6" in noted[0]
    assert "2 of 200" in noted[0]


def test_a_target_that_was_not_in_training_is_unknown(fitted, table):
    known = fitted.log_likelihood(table)
    strange = table.assign(kind=table["kind"].where(table.index != 49, "tourist"))
    found = fitted.log_likelihood(strange)
    assert set(known.numbers.tolist()) - set(found.numbers.tolist()) == {50}
    assert [note for note in fitted.notes if "row 50" in note and "'tourist'" in note]


def test_names_of_an_event_are_refused_by_row(table):
    view = data.open(table).view()
    strange = table.assign(job=table["job"].where(table.index != 3, "pilot"))
    opened = data.open(strange, fields=view.to_dict())
    assert [note for note in opened.notes if "row 4" in note and "'pilot'" in note]
    found = opened.view()
    assert found.split("all").numbers.tolist() == [1, 2, 3, *range(5, len(table) + 1)]
    with pytest.raises(DataError, match="row 4"):
        found.split("all", every=True)


def test_intervals_stay_within_bounds_and_on_atoms(tips, table):
    assert tips.space.atoms == (0.0,)
    assert tips.space.lower == 0.0
    found = tips.predict(table, interval=0.5)
    assert (found["tip_low"] == 0).mean() > 0.9  # zeros have a probability of 0.4
    assert (found["tip_low"] >= 0).all()
    assert (found["tip_high"] > found["tip_low"]).all()
    assert found["tip"].between(0, 50).all()


def test_an_event_of_a_predictor_is_its_target(table):
    setup = run.resolve_setup(
        "predict.logistic",
        table,
        run.Overrides.parse(()),
        event="kind",
        given=["age"],
        target=None,
        ensemble=0,
        bag=False,
    )
    assert setup.metadata["target"] == ["kind"]
    assert setup.view.space.size == 2


SPACES = [
    Space(kind="real", atoms=(0.0,), lower=0.0, mean=(3.0,), scale=(2.0,), high=(9.0,)),
    Space(
        kind="real",
        atoms=(0.0, 37.5, 100.0),
        lower=0.0,
        upper=100.0,
        mean=(40.0,),
        scale=(20.0,),
        high=(100.0,),
    ),
    Space(kind="real", atoms=(-1.0, 0.0, 2.0), mean=(0.5,), scale=(2.0,), low=(-5.0,)),
    Space(kind="counts", lower=0.0, mean=(3.0,), scale=(2.0,), high=(12.0,)),
]


def marginals(space, spread=2.0):
    torch.manual_seed(0)
    head = Head(space, 2).double()
    noise = torch.randn(200, head.width, generator=make_generator(0), dtype=torch.float64)
    return HeadMarginals(space, head, head.initial_params() + spread * noise)


@pytest.mark.parametrize("space", SPACES, ids=["lower", "both", "atoms", "counts"])
@pytest.mark.parametrize("level", [0.01, 0.3, 0.5, 0.9, 0.99])
def test_a_quantile_is_the_smallest_value_with_that_probability(space, level):
    found = marginals(space)
    q = found.quantile(level)
    assert bool((found.cumulative(q) >= level - 1e-9).all())
    step = 1.0 if space.kind == "counts" else 1e-6
    assert bool((found.cumulative(q - step) < level + 1e-9).all())
    assert space.lower is None or bool((q >= space.lower).all())
    assert space.upper is None or bool((q <= space.upper).all())
    for atom in space.atoms:
        at = torch.full_like(q, atom)
        before = found.cumulative(next_below(at, space))
        jumps = (before < level - 1e-6) & (found.cumulative(at) > level + 1e-6)
        assert bool((q[jumps] == atom).all())  # exactly
        assert level in (0.01, 0.99) or bool(jumps.any())


def test_quantiles_of_columns_are_those_of_each():
    level = 0.4
    columns = (*SPACES, Space(kind="label", size=3), Space(kind="binary"))
    space = Space(kind="columns", shape=(len(columns),), columns=columns)
    found = marginals(space)
    q = found.quantile(level)
    for place, column in enumerate(columns[:4]):
        head = Head(column, 2).double()
        own = HeadMarginals(column, head, found.params[:, found.head.slices[place]])
        torch.testing.assert_close(q[:, place], own.quantile(level)[:, 0], atol=1e-9, rtol=1e-9)


def test_no_probability_lies_beyond_the_bounds():
    space = SPACES[1]
    found = marginals(space, spread=8.0)  # much of it next to the bounds
    for t, expected in ((-1e-3, 0.0), (100.0, 1.0), (1e4, 1.0)):
        values = found.cumulative(torch.full((200, 1), t, dtype=torch.float64))
        torch.testing.assert_close(values, torch.full_like(values, expected))


def test_half_of_an_atom_is_below_it():
    space = SPACES[0]
    found = marginals(space)
    zero = torch.zeros(200, 1, dtype=torch.float64)
    assert bool((found.cumulative(next_below(zero, space)) == 0).all())
    assert bool((found.cumulative(zero) > 0).all())
    plain = Space(kind="real")
    assert torch.equal(next_below(zero, plain), zero)
    assert torch.equal(next_below(zero, SPACES[3]), zero - 1)


def test_likelihoods_of_a_mixed_target_sum_to_one():
    space = SPACES[1]
    space = replace(space, given={"x": Space(kind="real", shape=(1,), rows=9)})
    torch.manual_seed(0)
    model = Logistic.Config(spread="mixture", components=2).build(space).double()
    torch.nn.init.normal_(model.out.weight)
    x = torch.linspace(-1, 1, 3, dtype=torch.float64)[:, None]
    params = model.params({"x": Batch(x)}, 3)
    t = torch.linspace(-13.8, 13.8, 200_001, dtype=torch.float64)  # 100 sigmoid(t) is the value
    y = 100 * t.sigmoid()
    slope = 100 * t.sigmoid() * (-t).sigmoid()
    for row in params:
        log_p = model.head.log_prob(row.expand(len(y), -1), y[:, None])[:, 0]
        inside = torch.trapezoid(log_p.exp() * slope, t)
        atoms = torch.tensor(space.atoms, dtype=torch.float64)[:, None]
        at = model.head.log_prob(row.expand(len(atoms), -1), atoms)[:, 0].exp().sum()
        torch.testing.assert_close(inside + at, torch.ones_like(at), atol=1e-5, rtol=0)
