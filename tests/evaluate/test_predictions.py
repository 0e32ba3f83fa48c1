"""Measures of predictions against numbers worked out by hand."""

import pytest
import torch

from monge import registry
from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.predictions import TargetPrediction, predict, prediction_metrics, reliability


def classes(probabilities, truth, seen=None):
    p, truth = torch.tensor(probabilities).double(), torch.tensor(truth)
    blank = torch.zeros(len(p))
    return TargetPrediction(
        Space(kind="label", size=p.shape[1], name="y"),
        0.9,
        blank,
        p.argmax(1),
        blank,
        blank,
        p,
        truth,
        torch.ones(len(p), dtype=torch.bool) if seen is None else torch.tensor(seen),
        blank,
    )


def numbers(mean, truth, half):
    mean, truth = torch.tensor(mean).double(), torch.tensor(truth).double()
    below = torch.special.ndtr((truth - mean) / half * 1.6448536)
    return TargetPrediction(
        Space(kind="real", name="y"),
        0.9,
        mean,
        mean,
        mean - half,
        mean + half,
        mean[:, None][:, :0],
        truth,
        torch.ones(len(mean), dtype=torch.bool),
        below,
    )


def test_classes_by_hand():
    prediction = classes([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.95, 0.05]], [0, 1, 1, 0])
    found = prediction_metrics([prediction])
    assert found["accuracy"].value == 0.75
    assert found["accuracy"].stderr == pytest.approx(0.25)
    right = torch.tensor([0.9, 0.2, 0.6, 0.95]).double()
    assert found["nll"].value == pytest.approx(-right.log().mean().item())
    # Bins of a fifteenth: 0.6, 0.8 and 0.9 stand alone, 0.95 too.
    gaps = [abs(0.6 - 1), abs(0.8 - 0), abs(0.9 - 1), abs(0.95 - 1)]
    assert found["calibration_error"].value == pytest.approx(sum(gaps) / 4)


def test_numbers_by_hand():
    found = prediction_metrics([numbers([1.0, 2.0, 5.0], [2.0, 2.0, 1.0], half=1.5)])
    assert found["rmse"].value == pytest.approx((17 / 3) ** 0.5)
    assert found["mae"].value == pytest.approx(5 / 3)
    assert found["coverage_0.9"].value == pytest.approx(2 / 3)
    assert found["interval_width"].value == pytest.approx(3.0)


def test_a_calibrated_model_lies_on_the_diagonal_and_an_overconfident_one_does_not():
    p = torch.rand(20000, generator=make_generator(0)) / 2 + 0.5
    truth = (torch.rand(20000, generator=make_generator(1)) < p).long()
    honest = classes(torch.stack([1 - p, p], 1).tolist(), truth.tolist())
    assert prediction_metrics([honest])["calibration_error"].value < 0.02
    vain = classes(torch.stack([(1 - p) ** 3, 1 - (1 - p) ** 3], 1).tolist(), truth.tolist())
    assert prediction_metrics([vain])["calibration_error"].value > 0.1
    x = torch.randn(5000, generator=make_generator(2))
    level, share, _ = reliability(numbers([0.0] * 5000, x.tolist(), half=1.6448536))
    assert (level - share).abs().max() < 0.03
    level, share, _ = reliability(numbers([0.0] * 5000, x.tolist(), half=0.5))
    assert (level - share).abs().max() > 0.1


def test_rows_without_a_truth_are_left_out_and_none_at_all_refused():
    prediction = classes([[0.9, 0.1], [0.8, 0.2]], [0, 1], seen=[True, False])
    assert prediction_metrics([prediction])["accuracy"].value == 1.0
    with pytest.raises(DataError, match=r"\by\b"):
        prediction_metrics([classes([[0.9, 0.1]], [0], seen=[False])])


def test_several_targets_have_their_names_before():
    both = prediction_metrics(
        [classes([[0.9, 0.1]] * 3, [0, 0, 1]), numbers([1.0, 2.0], [1.0, 2.0], 1.0)]
    )
    assert {"1.accuracy", "2.rmse"} <= set(both)


def test_half_of_what_is_as_large_as_a_whole_number_lies_below_it():
    """So that the ranks of whole numbers are as even as those of reals."""
    torch.manual_seed(0)
    inputs = Space(kind="real", shape=(2,), name="inputs")
    space = Space(kind="levels", size=4, name="y", rows=50, given={"inputs": inputs})
    model = registry.find("predict.mlp").smallest_config(space).build(space).eval()
    batch = Batch(torch.arange(20.0) % 4, {"inputs": Batch(torch.randn(20, 2))})
    (prediction,) = predict(model, [batch])
    place = prediction.truth.long()[:, None]
    own = prediction.probabilities.gather(1, place)[:, 0]
    less = prediction.probabilities.cumsum(1).gather(1, place)[:, 0] - own
    torch.testing.assert_close(prediction.below, less + own / 2)
