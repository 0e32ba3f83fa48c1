"""The recurrent predictor: padding is not read, and every cell and direction is normalised."""

import pytest
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.space import Space
from monge.models.predict.recurrent import RecurrentPredictor
from monge.nn.recurrent import GRU, LSTM, ElmanRNN

SERIES = Space(kind="real", shape=(6, 2), varies=True, name="series")
IMAGE = Space(kind="levels", shape=(1, 4, 3), size=17, mean=(8.0,), scale=(5.0,), high=(16.0,))
CLASS = Space(kind="label", size=3, name="class")
NETS = [
    ElmanRNN.Config(width=5),
    LSTM.Config(width=5, depth=2),
    GRU.Config(width=5),
    GRU.Config(width=5, depth=2, reset="before"),
]


def built(net, both, **given):
    torch.manual_seed(0)
    space = Space(kind="label", size=3, given=given)
    model = RecurrentPredictor.Config(net=net, both=both).build(space).double().eval()
    torch.nn.init.normal_(model.out.weight)
    return model


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("net", NETS, ids=lambda net: type(net).owner.__name__)
def test_padding_is_not_read_and_all_steps_are(net, both):
    model = built(net, both, series=SERIES)
    x, length = torch.randn(4, 6, 2, dtype=torch.float64), torch.tensor([2, 6, 3, 1])
    found = model.mean({"series": Batch(x, length=length)})
    torch.testing.assert_close(found.sum(1), torch.ones(4, dtype=torch.float64))
    for row, steps in enumerate(length.tolist()):
        alone = Batch(x[row : row + 1, :steps], length=length[row : row + 1])
        torch.testing.assert_close(model.mean({"series": alone}), found[row : row + 1])
        for step in range(6):
            other = x.clone()
            other[row, step] += 1.0
            moved = model.mean({"series": Batch(other, length=length)})[row]
            assert torch.allclose(moved, found[row], rtol=0, atol=1e-12) == (step >= steps)


def test_images_are_read_row_by_row_beside_what_is_no_sequence():
    model = built(GRU.Config(width=5), True, image=IMAGE, name=CLASS)
    x = torch.randint(17, (3, 1, 4, 3)).double()
    given = {"image": Batch(x), "name": Batch(torch.tensor([0, 1, 2]))}
    (reading,) = model.trunk.each
    torch.testing.assert_close(reading.steps(given["image"]), (x[:, 0] - 8) / 5)
    assert model.trunk.width == 10 + 3
    assert model.mean(given).shape == (3, 3)


def test_what_has_no_steps_is_refused():
    space = Space(kind="label", size=3, given={"name": CLASS})
    assert "name (" in RecurrentPredictor.unsupported_reason(space)
    assert "--target" in RecurrentPredictor.unsupported_reason(Space(kind="label", size=3))
    model = built(GRU.Config(width=5), True, series=SERIES)
    with pytest.raises(DataError, match=r"sequence 0\b.*length 0"):
        model.mean({"series": Batch(torch.zeros(1, 6, 2), length=torch.tensor([0]))})
