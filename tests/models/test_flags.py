"""Steps of reals and a flag, as of a pen that is lifted: densities, samples, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import monge
from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.data import loading as data
from monge.models.sequence.rnn import RNN

rng = np.random.default_rng(0)


def stroke() -> np.ndarray:
    """Steps (dx, dy, lifted); a lifted pen moves far."""
    lifted = rng.random(rng.integers(5, 9)) < 0.3
    moves = rng.normal(0, np.where(lifted, 5, 0.5)[:, None], (len(lifted), 2))
    return np.concatenate([moves, lifted[:, None]], 1)


STROKES = [stroke() for _ in range(80)]


def test_a_channel_of_0_and_1_beside_reals_is_a_flag():
    space = data.open(STROKES).view().space
    assert space.flags == (2,)
    assert data.open([row[:, :2] for row in STROKES]).view().space.flags == ()
    assert data.open([row[:, 2:] for row in STROKES]).view().space.flags == ()


def test_a_flag_has_probabilities_that_sum_to_one_and_is_sampled_so():
    space = data.open(STROKES).view().space
    torch.manual_seed(0)
    model = RNN.smallest_config(space).build(space).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.eval()
    x = torch.from_numpy(np.stack([row[:5] for row in STROKES[:4]]))
    each = []
    for value in (0.0, 1.0):
        x[:, 4, 2] = value
        each.append(model.conditionals(Batch(x, length=torch.full((4,), 5)))[:, -1])
    torch.testing.assert_close(torch.stack(each).exp().sum(0), torch.ones(4).double())
    rows = model.sample(4000, options=model.SamplingConfig(steps=1))
    assert set(rows[:, 0, 2].unique().tolist()) == {0.0, 1.0}
    share = float(rows[:, 0, 2].mean())
    rows[:, 0, 2] = 1.0
    log_p = model.conditionals(Batch(rows, length=torch.ones(4000, dtype=torch.long)))[:, 2]
    assert abs(share - float(log_p.detach().exp().mean())) < 0.03


def test_a_pen_is_fitted_sampled_and_scored(tmp_path):
    run = monge.fit("rnn", STROKES, "net.width=16", budget="40steps", out=tmp_path / "run")
    found = run.sample(50, None, "steps=6")
    lifted = np.concatenate([row[:, 2] for row in found])
    assert set(np.unique(lifted)) == {0.0, 1.0}
    assert 0.15 < lifted.mean() < 0.45
    assert np.isfinite(run.log_likelihood().value).all()
    broken = [row.copy() for row in STROKES[:20]]
    broken[3][1, 2] = 0.5
    with pytest.raises(DataError, match=r"0\.5"):
        run.log_likelihood(broken)


def test_a_model_of_reals_alone_refuses_a_flag(tmp_path):
    with pytest.raises(DataError, match="channel 3"):
        monge.fit("vrnn", STROKES, budget="1steps", out=tmp_path / "run")
