"""Tables: marginals, pairs of columns and what samples teach, against scipy and by hand."""

import numpy as np
import pytest
import small_data
import torch
from scipy.stats import ks_2samp

from monge.core.abilities import CanSample
from monge.core.batch import Batch
from monge.core.model import Model
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.suite import all_metrics
from monge.evaluate.tabular import (
    cells,
    columns_of,
    correlations,
    marginal,
    marginals,
    table_metrics,
)
from monge.evaluate.tstr import explained, fit_and_predict, right, targets, tstr_scores
from monge.nn.inputs.features import Features

REAL, NAME = Space(kind="real", name="size"), Space(kind="label", size=3, name="colour")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=make_generator(seed), dtype=torch.float64)


def test_marginals_are_scipys_and_tables_of_names():
    x, y = normal(80).round(decimals=1), normal(50, seed=1) + 0.4
    assert float(marginal(x, y, REAL)) == pytest.approx(ks_2samp(x, y).statistic, abs=1e-7)
    names = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 1])
    assert float(marginal(*(side.double() for side in names), NAME)) == pytest.approx(0.5)


def test_unseen_cells_count_nowhere():
    space = Space(kind="columns", shape=(2,), columns=(REAL, NAME))
    x = torch.stack([normal(60), torch.arange(60).double() % 3], 1)
    holes = x.clone()
    holes[::3, 0], holes[1::4, 1] = torch.nan, torch.nan
    assert float(marginals(holes, x, space)[0]) == pytest.approx(
        ks_2samp(holes[:, 0][~holes[:, 0].isnan()], x[:, 0]).statistic, abs=1e-7
    )
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
    ideal = table_metrics(train, held, table)
    moved = train + torch.tensor([0.0, 0.0, 3.0])
    found = table_metrics(moved, held, table)
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
    lost = table_metrics(loose, held, table)
    assert lost["marginals"].value == pytest.approx(ideal["marginals"].value)
    assert lost["pair_correlations"].value > 3 * ideal["pair_correlations"].value


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
    names = {"marginals", "worst_marginal", "pair_correlations", "tstr_name", "tstr_number"}
    assert names | {f"{name}_of_real_rows" for name in names} <= set(found)
    assert found["pair_correlations"].value > 2 * found["pair_correlations_of_real_rows"].value
    assert found["tstr_number"].value < found["tstr_number_of_real_rows"].value - 0.3
    assert "tstr_x1" not in found
