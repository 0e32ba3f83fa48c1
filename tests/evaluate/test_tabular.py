"""Tables: marginals, pairs of columns, empty cells, detection and what samples teach, against
scikit-learn, pandas and by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import small_data
import torch
from sklearn.metrics import roc_auc_score

from monge.core.abilities import CanSample
from monge.core.batch import Batch
from monge.core.model import Model
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.suite import all_metrics
from monge.evaluate.tabular import (
    Coding,
    cells,
    columns_of,
    correlations,
    detection,
    empty_rates,
    marginals,
    pairs,
    roc_area,
    table_metrics,
)
from monge.evaluate.tstr import divided, explained, fit_and_predict, right, targets, tstr_scores
from monge.nn.inputs.features import Features

REAL, NAME = Space(kind="real", name="size"), Space(kind="label", size=3, name="colour")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=make_generator(seed), dtype=torch.float64)


def optional_table(n: int = 60) -> tuple[Space, torch.Tensor]:
    """A number and a name of three that may be empty, a name that may not; NaN and code 3."""
    columns = (
        Space(kind="real", name="size", optional=True),
        Space(kind="label", size=4, name="colour", optional=True),
        Space(kind="label", size=3, name="shape"),
    )
    space = Space(kind="columns", shape=(3,), columns=columns)
    x = torch.stack([normal(n), torch.arange(n).double() % 4, torch.arange(n).double() % 3], 1)
    x[::5, 0] = torch.nan
    return space, x


def test_cells_are_names_bins_of_quantiles_and_empty():
    space, x = optional_table()
    coding = Coding.of(x, space)
    codes = coding(x)
    values = x[:, 0][~x[:, 0].isnan()]
    edges = np.quantile(values.numpy(), np.arange(1, 10) / 10)
    assert coding.sizes == (11, 5, 4)
    np.testing.assert_array_equal(
        codes[:, 0], np.where(x[:, 0].isnan(), 10, np.searchsorted(edges, x[:, 0].numpy()))
    )
    assert torch.equal(codes[:, 1], torch.where(x[:, 1] == 3, 4, x[:, 1]).long())
    assert torch.equal(codes[:, 2], x[:, 2].long())
    new = torch.tensor([[100.0, 1.0, 2.0], [-100.0, 3.0, torch.nan]]).double()
    assert coding(new).tolist() == [[9, 1, 2], [0, 4, -1]]


def test_rare_names_share_a_category_and_an_unseen_column_has_one():
    space = Space(
        kind="columns",
        shape=(2,),
        columns=(Space(kind="label", size=200, name="a"), Space(kind="label", size=3, name="b")),
    )
    x = torch.cat([torch.arange(200), torch.arange(100)]).double()
    rows = torch.stack([x, torch.full((300,), torch.nan).double()], 1)
    codes = Coding.of(rows, space)(rows)
    assert torch.equal(codes[:100, 0], torch.arange(100))
    assert set(codes[100:200, 0].tolist()) == {100}
    assert set(codes[:, 1].tolist()) == {-1}


def test_marginals_and_pairs_are_total_variations_of_frequencies():
    space, x = optional_table()
    y = optional_table(80)[1].flip(0)[:70]
    y[3, 2] = torch.nan  # unknown: the column is never empty
    coding = Coding.of(x, space)
    frames = [pd.DataFrame(coding(side).numpy()).replace(-1, np.nan) for side in (x, y)]

    def variation(columns: list[int]) -> float:
        shares = [f.dropna(subset=columns).value_counts(columns, normalize=True) for f in frames]
        return float(shares[0].sub(shares[1], fill_value=0).abs().sum() / 2)

    codes = [coding(side) for side in (x, y)]
    assert marginals(*codes, coding).tolist() == pytest.approx([variation([i]) for i in range(3)])
    assert pairs(*codes, coding).tolist() == pytest.approx(
        [variation(pair) for pair in ([0, 1], [0, 2], [1, 2])]
    )


def test_rates_of_empty_cells_and_of_common_holes():
    space, x = optional_table(200)
    y = x.clone()
    y[:20, 0] = torch.nan  # 4 of these 20 were empty, so 8 points more
    found = empty_rates(y, x, space)
    assert found["empty_cells"].value == pytest.approx(8.0)
    assert empty_rates(x, y, space)["empty_cells"].value == pytest.approx(8.0)
    assert found["empty_cells"].unit == "points in size"
    both = [float(((side[:, 0].isnan()) & (side[:, 1] == 3)).double().mean()) for side in (y, x)]
    assert found["empty_pairs"].value == pytest.approx(100 * (both[0] - both[1]))
    assert found["empty_pairs"].unit == "points in size, colour"
    one = replace(space, shape=(1,), columns=space.columns[2:])
    assert empty_rates(x[:, 2:], y[:, 2:], one) == {}


def test_trees_detect_a_lost_dependence_and_no_equal_distribution():
    space, batch = small_data.make("columns", 1600)
    rows = cells(batch, space)
    same = detection(rows[:800], rows[800:], columns_of(space))
    assert abs(same.value - 0.5) < 3 * same.stderr
    loose = rows[:800].clone()
    loose[:, 2] = loose[:, 2].roll(1)
    found = detection(loose, rows[800:], columns_of(space))
    assert found.value > 0.5 + 5 * found.stderr


def test_trees_detect_holes_in_the_wrong_rows():
    space, x = optional_table(600)
    moved = x.clone()
    x[:, 0] = torch.where(x[:, 1] == 1, torch.nan, normal(600))
    moved[:, 0] = torch.where(x[:, 1] == 2, torch.nan, normal(600, seed=1))
    assert detection(moved, x, space).value > 0.6


def test_the_area_under_the_curve_is_that_of_scikit_learn():
    a, b = normal(70).round(decimals=1), normal(50, seed=1).round(decimals=1) - 0.5
    found = roc_area(a, b)
    label = [1] * 70 + [0] * 50
    assert found.value == pytest.approx(roc_auc_score(label, torch.cat([a, b])))
    again = [
        float(roc_area(a[pick], b[other]).value)
        for seed in range(400)
        for pick, other in [
            (
                torch.randint(70, (70,), generator=make_generator(seed)),
                torch.randint(50, (50,), generator=make_generator(seed + 1000)),
            )
        ]
    ]
    assert found.stderr == pytest.approx(float(np.std(again)), rel=0.15)


def test_correlations_count_values_where_they_are_and_indicators_everywhere():
    space, x = optional_table(300)
    x[:, 0] = torch.where(x[:, 2] == 0, torch.nan, x[:, 0])
    read = Features(space).double()
    pairs_ = correlations(x, read)
    assert not pairs_.isnan().any()
    known = ~x[:, 0].isnan()
    expected = np.corrcoef(x[known, 0], (x[known, 2] == 1).double())[0, 1]
    last = read.width - 3  # the first indicator of the last column
    assert float(pairs_[0, last + 1]) == pytest.approx(expected, abs=1e-9)
    empty = np.corrcoef((~known).double(), (x[:, 2] == 0).double())[0, 1]
    assert float(pairs_[1, last]) == pytest.approx(empty, abs=1e-9)


def test_unseen_cells_count_nowhere():
    space = Space(kind="columns", shape=(2,), columns=(REAL, NAME))
    x = torch.stack([normal(60), torch.arange(60).double() % 3], 1)
    holes = x.clone()
    holes[::3, 0], holes[1::4, 1] = torch.nan, torch.nan
    coding, whole = Coding.of(x, space), holes[~holes[:, 0].isnan()]
    found, expected = (marginals(coding(side), coding(x), coding)[0] for side in (holes, whole))
    assert float(found) == pytest.approx(float(expected))
    read = Features(space).double()
    both = ~holes.isnan().any(1)
    pairs = correlations(holes, read)
    expected = np.corrcoef(x[both, 0], (x[both, 1] == 1).double())[0, 1]
    assert float(pairs[0, 2]) == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(
        correlations(x, read)[0, 1:].numpy(),
        [np.corrcoef(x[:, 0], (x[:, 1] == k).double())[0, 1] for k in range(3)],
        atol=1e-9,
    )


def test_a_column_that_never_varies_leans_on_nothing():
    space = Space(kind="real", shape=(2,), name="x")
    x = torch.stack([normal(40), torch.full((40,), 5.0).double()], 1)
    table = columns_of(space)
    assert [part.name for part in table.columns] == ["x1", "x2"]
    assert correlations(x, Features(table).double())[0, 1] == 0
    assert targets(x, x, table) == [0]


def test_event_and_plain_conditions_are_columns_of_one_table():
    space, batch = small_data.conditioned(*small_data.make("columns", 60))
    table = columns_of(space)
    assert [part.name for part in table.columns] == ["flag", "name", "number", "label"]
    rows = cells(Batch(batch.x, batch.given, observed=torch.ones(60, 3).bool().tril(1)), space)
    assert rows.shape == (60, 4)
    assert rows[0].isnan().tolist() == [False, False, True, False]
    assert columns_of(small_data.make("levels", 10)[0]) is None
    given = columns_of(
        small_data.conditioned(*small_data.make("real", 60), "picture")[0], ("a", "b")
    )
    assert [part.name for part in given.columns] == ["a", "b"]


def test_a_wrong_column_and_a_lost_bond_are_seen_and_named():
    space, batch = small_data.make("columns", 600)
    table, rows = columns_of(space), cells(batch, space)
    held, train = rows[:300], rows[300:]
    coding = Coding.of(train, table)
    ideal = table_metrics(train, held, coding)
    moved = train + torch.tensor([0.0, 0.0, 3.0])
    found = table_metrics(moved, held, coding)
    assert found["worst_marginal"].unit == "in number"
    assert found["worst_marginal"].value > ideal["worst_marginal"].value + 0.1
    assert found["pair_correlations"].value == pytest.approx(ideal["pair_correlations"].value)
    loose = torch.stack(
        [
            column[torch.randperm(300, generator=make_generator(i))]
            for i, column in enumerate(train.unbind(1))
        ],
        1,
    )
    lost = table_metrics(loose, held, coding)
    assert lost["marginals"].value == pytest.approx(ideal["marginals"].value)
    assert lost["pair_correlations"].value > 3 * ideal["pair_correlations"].value
    assert lost["pairs"].value > 1.5 * ideal["pairs"].value


def test_what_samples_teach_is_evaluated_on_real_rows():
    space, batch = small_data.make("columns", 600)
    table, rows = columns_of(space), cells(batch, space)
    held, train = rows[:300], rows[300:]
    chosen = targets(train, held, table)
    assert [table.columns[i].name for i in chosen] == ["name", "flag", "number"]
    real = tstr_scores(train, held, table, chosen)
    loose = torch.stack(
        [
            column[torch.randperm(300, generator=make_generator(i))]
            for i, column in enumerate(train.unbind(1))
        ],
        1,
    )
    lost = tstr_scores(loose, held, table, chosen)
    assert real["tstr_number"].unit == "R²"
    assert real["tstr_number"].value > 0.6 > 0.2 > lost["tstr_number"].value
    assert real["tstr_name"].unit == "accuracy"
    assert real["tstr_name"].value > lost["tstr_name"].value + 3 * lost["tstr_name"].stderr


def test_empty_cells_are_inputs_and_not_targets():
    space, x = optional_table(400)
    x[:, 0] = torch.where(x[:, 2] == 1, torch.nan, x[:, 0])  # emptiness predicts the last column
    chosen = targets(x[:200], x[200:], space)
    assert sorted(chosen) == [0, 1, 2]
    inputs, values = divided(x, 1, space)
    assert inputs.shape == (300, 2)  # one row in four has no colour
    assert 3 not in values
    assert bool(inputs[:, 0].isnan().any())
    found = tstr_scores(x[:200], x[200:], space, [2])
    assert found["tstr_shape"].value > 1 / 3 + 3 * found["tstr_shape"].stderr
    x[:, 0] = torch.nan
    assert 0 not in targets(x[:200], x[200:], space)


def test_one_name_alone_teaches_that_name():
    x = normal(30, 1)
    assert (
        fit_and_predict(x, torch.ones(30).double(), x[:5], [REAL], True, 0).tolist() == [1.0] * 5
    )


def test_scores_of_what_was_taught():
    truth = torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    assert explained(truth, truth).value == 1
    assert explained(truth.mean().expand(4), truth).value == pytest.approx(0)
    assert right(truth, torch.tensor([1.0, 2.0, 0.0, 0.0])).value == 0.5


class Bonds(Model, CanSample):
    """Samples the columns of a table, together or each for itself."""

    events = {"columns"}

    def __init__(self, space, rows, loose):
        super().__init__(Bonds.Config(), space)
        self.rows, self.loose = rows, loose

    def loss(self, batch):
        return {}

    def sample(self, n, given=None, options=None, generator=None):
        pick = torch.randint(len(self.rows), (n, self.rows.shape[1]), generator=generator)
        return self.rows.gather(0, pick if self.loose else pick[:, :1].expand_as(pick))

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


def test_evaluation_reports_tables_beside_real_rows():
    space, batch = small_data.make("columns", 400)
    rows, others = small_data.Rows(batch[:150]), small_data.Rows(batch[150:])
    found = all_metrics(Bonds(space, batch[150:].x, True), rows, others)
    names = {
        "marginals",
        "worst_marginal",
        "pairs",
        "pair_correlations",
        "detection_auc",
        "tstr_name",
        "tstr_number",
    }
    assert names | {f"{name}_of_real_rows" for name in names} <= set(found)
    assert found["pair_correlations"].value > 2 * found["pair_correlations_of_real_rows"].value
    assert found["detection_auc"].value > found["detection_auc_of_real_rows"].value + 0.1
    assert found["tstr_number"].value < found["tstr_number_of_real_rows"].value - 0.3
    assert "tstr_x1" not in found
