"""Rows as vectors: cells come back, points are centred, and chances are those of each column."""

from __future__ import annotations

import pytest
import torch

from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.prob.row_embedding import (
    LADDER_LENGTH,
    NAME_DISTANCE,
    RUNS,
    RowEmbedding,
    column_points,
    name_points,
)

COLUMNS = (
    Space(kind="binary", size=2, name="flag"),
    Space(kind="label", size=3, name="name"),
    Space(kind="counts", mean=(5.0,), scale=(3.0,), optional=True, name="children"),
    Space(kind="real", mean=(2.0,), scale=(3.0,), atoms=(0.0, 9.0), optional=True, name="price"),
    Space(kind="counts", mean=(5.0,), scale=(3.0,), name="rooms"),
    Space(kind="real", mean=(2.0,), scale=(3.0,), name="width"),
    Space(kind="label", size=70, name="town"),
)
SIZES = [2, 3, RUNS + 1, 4, RUNS, 1, 70]
AXES = [1, 3, 2, 5, 1, 1, 64]
ROWS = 300


def rows() -> torch.Tensor:
    g = make_generator(4)
    n = torch.arange(ROWS, dtype=torch.float64)
    normal = torch.randn(ROWS, 4, generator=g, dtype=torch.float64)
    counts = (40 * normal[:, :2].abs()).floor()
    x = torch.stack(
        [
            n % 2,
            n % 3,
            counts[:, 0],
            3 * normal[:, 2],
            counts[:, 1] // 9,
            2 + normal[:, 3],
            n % 70,
        ],
        1,
    )
    x[::6, 2], x[::5, 3], x[1::5, 3], x[2::10, 3] = torch.nan, torch.nan, 0.0, 9.0
    return x


def made() -> tuple[RowEmbedding, torch.Tensor]:
    table = Space(kind="columns", shape=(len(COLUMNS),), columns=COLUMNS)
    embedding, x = RowEmbedding(table).double(), rows()
    embedding.fit(x)
    return embedding, x


@pytest.fixture(scope="module")
def fitted():
    return made()


def own(embedding: RowEmbedding, i: int) -> slice:
    return slice(int(embedding.start[i]), int(embedding.start[i]) + SIZES[i])


def test_components_and_dimensions_are_laid_out_by_column(fitted):
    embedding, _ = fitted
    assert embedding.sizes == SIZES
    assert (embedding.components, embedding.width) == (sum(SIZES), sum(AXES))
    assert embedding.column.bincount().tolist() == SIZES
    assert embedding.axis_column.bincount().tolist() == AXES
    assert embedding.start.tolist() == [sum(SIZES[:i]) for i in range(7)]
    assert embedding.first_axis.tolist() == [sum(AXES[:i]) for i in range(7)]
    empty = [int(embedding.start[i]) + SIZES[i] - 1 for i in (2, 3)]
    assert embedding.empty.nonzero()[:, 0].tolist() == empty
    assert embedding.number_axes.tolist() == [embedding.first_axis[i] for i in (3, 5)]


def test_points_of_names_are_apart():
    for size in (2, 3, 64):
        away = torch.pdist(name_points(size))
        torch.testing.assert_close(away, torch.full_like(away, NAME_DISTANCE))
    assert name_points(1).tolist() == [[0.0]]
    many = name_points(70)
    assert many.shape == (70, 64)
    length = torch.full((70,), NAME_DISTANCE * 0.5**0.5)
    torch.testing.assert_close(many.norm(dim=1), length)
    assert torch.equal(many, name_points(70))
    assert column_points(COLUMNS[5]).shape == (1, 1)
    flag = column_points(COLUMNS[2])
    assert len(flag[:RUNS, 1].unique()) == 1
    assert float(flag[RUNS, 1] - flag[0, 1]) == NAME_DISTANCE
    with pytest.raises(DataError, match="town"):
        column_points(Space(kind="tokens", shape=(3,), size=4, name="town"))


def test_an_empty_cell_is_farther_from_values_than_they_are_from_one_another():
    for part in COLUMNS:
        near, far = column_points(part), column_points(part, 6.0)
        if not part.optional:
            assert torch.equal(near, far)
            continue
        away = torch.cdist(far[-1:], far[:-1])[0]
        torch.testing.assert_close(away, torch.full_like(away, 6.0))
        assert torch.equal(
            near[:-1, :1], far[:-1, :1]
        )  # the line of a count, the number of a real
        torch.testing.assert_close(torch.pdist(near[:-1]), torch.pdist(far[:-1]))
    name = Space(kind="label", size=4, optional=True)
    torch.testing.assert_close(
        torch.pdist(column_points(name, 6.0)), torch.tensor([2.0, 2.0, 6.0, 2.0, 6.0, 6.0])
    )


def test_shares_are_smoothed_counts_and_points_have_mean_zero(fitted):
    embedding, x = fitted
    count = embedding.components_of(x).flatten().bincount(minlength=embedding.components)
    share = embedding.log_share.exp()
    torch.testing.assert_close(share @ embedding.points, torch.zeros(sum(AXES)).double())
    for i in range(7):
        used = share[own(embedding, i)] > 0
        due = count[own(embedding, i)].double() + 1 / used.sum()
        torch.testing.assert_close(share[own(embedding, i)][used], (due / (ROWS + 1))[used])
        outside = embedding.axis_column != i
        assert not embedding.points[own(embedding, i)][:, outside].any()
    for i, j in ((2, 0), (4, 1)):
        live = embedding.runs.live[j]
        ladder = embedding.points[own(embedding, i)][:RUNS][live, int(embedding.first_axis[i])]
        step = min(NAME_DISTANCE, LADDER_LENGTH / (len(ladder) - 1))
        torch.testing.assert_close(  # the ladder is laid in float32
            ladder.diff(), torch.full_like(ladder[1:], step), rtol=1e-5, atol=0
        )
        assert torch.equal(share[own(embedding, i)][:RUNS] > 0, live)


def test_two_runs_of_a_count_are_no_farther_than_names():
    part = Space(kind="counts", mean=(0.0,), scale=(1.0,))
    embedding = RowEmbedding(Space(kind="columns", shape=(1,), columns=(part,))).double()
    embedding.fit(torch.zeros(9, 1, dtype=torch.float64))
    used = embedding.log_share.isfinite()
    ladder = embedding.points[used, 0]
    assert len(ladder) == 3  # below, at and above the one value
    torch.testing.assert_close(ladder.diff(), torch.full((2,), NAME_DISTANCE).double())


def test_rows_become_vectors_and_come_back(fitted):
    embedding, x = fitted
    cells, y = embedding.components_of(x), embedding(x)
    names = [0, 1, 2, 4, 6]
    assert torch.equal(embedding.nearest(y)[:, names], cells[:, names])
    u = torch.rand(x.shape, generator=make_generator(0), dtype=torch.float64)
    again = embedding.decode(cells, y, u)
    torch.testing.assert_close(again[:, [0, 1, 3, 5, 6]], x[:, [0, 1, 3, 5, 6]], equal_nan=True)
    assert torch.equal(again.isnan(), x.isnan())
    assert torch.equal(embedding.components_of(again), cells)
    local = cells - embedding.start
    assert torch.equal(local[:, 3] == 3, x[:, 3].isnan())
    assert torch.equal(local[:, 3] == 2, x[:, 3] == 9)
    assert torch.equal(local[:, 3] == 1, x[:, 3] == 0)
    assert torch.equal(local[:, 2] == RUNS, x[:, 2].isnan())
    spread = y[:, embedding.number_axes]
    assert not spread[:, 0][local[:, 3] > 0].any()
    numbers = spread[:, 1]
    assert abs(float(numbers.mean())) < 0.3
    assert 0.6 < float(numbers.std()) < 1.5


def test_the_detail_is_the_place_in_a_run_and_the_slope_of_a_number(fitted):
    embedding, x = fitted
    step = 1e-5
    slopes = torch.zeros(ROWS, dtype=torch.float64)
    for i, axis in zip((3, 5), embedding.number_axes.tolist(), strict=True):
        here = embedding.components_of(x)[:, i] == embedding.start[i]
        up, down = x.clone(), x.clone()
        up[:, i] += step
        down[:, i] -= step
        slope = (embedding(up)[:, axis] - embedding(down)[:, axis]) / (2 * step)
        slopes += torch.where(here, slope.abs().log(), 0.0)
    inside = embedding.runs.encode(x[:, [2, 4]].nan_to_num(0.0))[1]
    inside[:, 0] = inside[:, 0].masked_fill(x[:, 2].isnan(), 0.0)
    found = embedding.detail(x)
    close = (found - slopes - inside.sum(1)).abs() < 1e-4
    assert close.double().mean() > 0.97  # a few steps cross a knot of the map
    only = RowEmbedding(Space(kind="label", size=3)).double()
    assert only.atoms.shape == (0, 0)
    assert not only.detail(torch.tensor([[1.0], [2.0]])).any()


def test_chances_are_those_of_each_column(fitted):
    embedding, _ = fitted
    g = make_generator(2)
    logits = torch.randn(5, embedding.components, generator=g, dtype=torch.float64)
    soft, log_soft = embedding.softmax(logits), embedding.log_softmax(logits)
    largest = embedding.largest(logits)
    for i in range(7):
        part = logits[:, own(embedding, i)]
        torch.testing.assert_close(soft[:, own(embedding, i)], part.softmax(1))
        torch.testing.assert_close(log_soft[:, own(embedding, i)], part.log_softmax(1))
        assert torch.equal(largest[:, i], part.amax(1))
    z = torch.randn(5, embedding.width, generator=g, dtype=torch.float64)
    alpha, sigma = torch.tensor(0.8).double(), torch.tensor(0.6).double()
    evidence = embedding.log_softmax(embedding.evidence(z, alpha, sigma))
    for i in range(7):
        axes, mine = embedding.axis_column == i, own(embedding, i)
        away = z[:, None, axes] - alpha * embedding.points[mine][:, axes]
        due = embedding.log_share[mine] - away.square().sum(2) / (2 * sigma**2)
        torch.testing.assert_close(evidence[:, mine], due.log_softmax(1))
    y = embedding(rows()[:40]) + 0.3 * torch.randn(40, embedding.width, generator=g).double()
    near = embedding.nearest(y)
    for i in range(7):
        axes, mine = embedding.axis_column == i, own(embedding, i)
        used = embedding.log_share[mine].isfinite()
        away = (y[:, None, axes] - embedding.points[mine][:, axes]).square().sum(2)
        away = away.masked_fill(~used, torch.inf)
        due = away.argmin(1)
        assert torch.equal(near[:, i] - embedding.start[i], due)


def test_components_are_chosen_by_their_cumulative(fitted):
    embedding, _ = fitted
    g = make_generator(3)
    p = embedding.softmax(torch.randn(50, embedding.components, generator=g).double())
    u = torch.rand(50, 7, generator=g, dtype=torch.float64)
    u[0], u[1] = 0.0, 1.0
    chosen, left = embedding.choose(p, u)
    for i in range(7):
        each = p[:, own(embedding, i)]
        total = each.cumsum(1)
        place = u[:, i : i + 1].clamp(max=1 - 1e-9)
        due = (total <= place).sum(1, keepdim=True)
        assert torch.equal(chosen[:, i : i + 1] - embedding.start[i], due)
        rest = (place - (total.gather(1, due) - each.gather(1, due))) / each.gather(1, due)
        torch.testing.assert_close(left[:, i], rest[:, 0].clamp(0, 1 - 1e-9), atol=1e-6, rtol=0)


def test_impossible_components_are_never_chosen(fitted):
    embedding, _ = fitted
    p = torch.zeros(2, embedding.components, dtype=torch.float64)
    only = embedding.start + torch.tensor(SIZES).clamp(max=2) - 1  # the second, if there is one
    p[:, only] = 1.0
    chosen, left = embedding.choose(p, torch.tensor([[0.0] * 7, [1.0] * 7]).double())
    assert torch.equal(chosen, only.expand(2, -1))
    assert ((left >= 0) & (left < 1)).all()


def test_impossible_components_are_never_the_nearest():
    embedding, _ = made()
    first = int(embedding.start[1])
    y = embedding.points[first : first + 1]
    assert int(embedding.nearest(y)[0, 1]) == first
    embedding.log_share[first] = -torch.inf
    assert int(embedding.nearest(y)[0, 1]) == first + 1


def test_a_typical_row_is_the_most_frequent_without_empty_cells(fitted):
    embedding, _ = fitted
    row = embedding.typical
    assert row.isfinite().all()
    cells = embedding.components_of(row)
    share = embedding.log_share.masked_fill(embedding.empty, -torch.inf)
    for i in range(7):
        assert cells[0, i] - embedding.start[i] == share[own(embedding, i)].argmax()


def test_cells_that_cannot_be_are_refused(fitted):
    embedding, x = fitted
    for column, value, name in ((1, 3.0, "name"), (1, -1.0, "name"), (4, torch.nan, "rooms")):
        wrong = x[:4].clone()
        wrong[2, column] = value
        with pytest.raises(DataError, match=name):
            embedding(wrong)
    nothing = embedding(x[:0])
    assert nothing.shape == (0, embedding.width)


def test_a_count_that_is_never_known_leaves_its_runs_as_they_were():
    table = Space(kind="columns", shape=(2,), columns=(COLUMNS[2], COLUMNS[0]))
    embedding = RowEmbedding(table).double()
    before = embedding.runs.low.clone()
    x = torch.stack([torch.full((6,), torch.nan), torch.arange(6) % 2.0], 1)
    embedding.fit(x)
    assert torch.equal(embedding.runs.low, before)
    assert int(embedding.log_share[:-2].argmax()) == RUNS  # the component of an empty cell
