"""Privacy: samples that copy training rows are seen, and new rows of the distribution are not."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import pairwise_distances

from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.privacy import Points, closest, copies, neighbour_ratio, privacy_metrics

COLUMNS = (
    Space(kind="real", name="a", optional=True),
    Space(kind="real", name="b"),
    Space(kind="label", size=6, name="c", optional=True),
    Space(kind="binary", size=2, name="d", mean=(0.5,), scale=(0.5,)),
)
SPACE = Space(kind="columns", shape=(4,), columns=COLUMNS, rows=500)


def table(n: int, seed: int) -> torch.Tensor:
    g = make_generator(seed)
    x = torch.randn(n, 4, generator=g, dtype=torch.float64)
    x[:, 2] = torch.randint(6, (n,), generator=g)
    x[:, 3] = (torch.rand(n, generator=g) < 0.5).double()
    x[torch.rand(n, generator=g) < 0.2, 0] = torch.nan
    return x


TRAIN, HELD = table(500, 0), table(300, 1)


def test_new_rows_are_like_held_out_rows():
    found = privacy_metrics(table(800, 2), HELD, TRAIN, SPACE)
    for name in ("closest_record_distance", "nearest_neighbour_ratio", "closer_than_held_out"):
        score, real = found[name], found[f"{name}_of_real_rows"]
        assert abs(score.value - real.value) < 3.5 * math.hypot(score.stderr, real.stderr), name
    assert found["closer_than_held_out_of_real_rows"].value == pytest.approx(0.05, abs=0.01)
    assert found["exact_copies"].value == 0
    for name, fair in (("membership_auc", 0.5), ("closest_record_ratio", 1.0)):
        assert abs(found[name].value - fair) < 3.5 * found[name].stderr, name
    known, new = (found[f"attribute_disclosure{end}"] for end in ("", "_of_real_rows"))
    assert abs(known.value - new.value) < 3.5 * math.hypot(known.stderr, new.stderr)
    assert found["training_rows_searched"].value == 500
    assert all(math.isfinite(score.value) for score in found.values())


def test_copies_are_seen_by_every_figure():
    noise = 0.01 * torch.randn(500, 2, dtype=torch.float64, generator=make_generator(3))
    fake = TRAIN.clone()
    fake[250:, :2] += noise[250:]
    found = privacy_metrics(fake, HELD, TRAIN, SPACE)
    assert found["exact_copies"].value == 0.5
    assert found["exact_copies_of_real_rows"].value == 0
    assert found["closest_record_ratio"].value < 0.2
    assert found["closer_than_held_out"].value > 0.9
    assert found["nearest_neighbour_ratio"].value < 0.2
    assert found["membership_auc"].value > 0.9
    known, new = (found[f"attribute_disclosure{end}"] for end in ("", "_of_real_rows"))
    assert known.value > 0.9
    assert new.value < 0.6


def test_points_give_empty_cells_an_indicator_and_unknown_ones_the_mean():
    row = torch.tensor([[torch.nan, torch.nan, 5.0, 1.0]]).double()
    assert Points(SPACE)(row).tolist() == [[0, 1, 0, 0, 0, 0, 0, 0, 1, 1]]


def test_distances_are_those_of_scikit_learn_and_equal_points_are_at_0():
    points = Points(SPACE)
    x, y = points(HELD), points(torch.cat([HELD[:5], TRAIN]))
    expected = np.sort(pairwise_distances(x.numpy(), y.numpy()), 1)[:, :2]
    np.testing.assert_allclose(closest(x, y).numpy(), expected, atol=1e-6)
    assert closest(x, y)[:5, 0].tolist() == [0.0] * 5
    assert neighbour_ratio(torch.tensor([[0.0, 0.0], [1.0, 4.0]])).tolist() == [1.0, 0.25]


def test_a_copy_has_the_same_empty_cells():
    train = torch.tensor([[torch.nan, 1.0], [0.0, 2.0]]).double()
    rows = torch.tensor([[torch.nan, 1.0], [0.0, 1.0], [-0.0, 2.0], [torch.nan, 2.0]]).double()
    assert copies(rows, train).tolist() == [True, False, True, False]


def test_a_table_without_names_has_no_attribute_to_disclose():
    space = Space(kind="columns", shape=(2,), columns=COLUMNS[:2], rows=500)
    found = privacy_metrics(TRAIN[:, :2], HELD[:, :2], TRAIN[:, :2], space)
    assert "attribute_disclosure" not in found
    assert found["exact_copies"].value == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_the_error_of_a_ratio_of_medians_is_calibrated(seed):
    values = [
        privacy_metrics(table(200, 10 + k), table(150, 50 + k), table(200, 90 + k), SPACE, seed)
        for k in range(12)
    ]
    ratios = torch.tensor([found["closest_record_ratio"].value for found in values])
    errors = torch.tensor([found["closest_record_ratio"].stderr for found in values])
    assert 0.5 < float(errors.mean() / ratios.std()) < 2
