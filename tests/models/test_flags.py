"""Steps of reals and a flag, as of a pen that is lifted: densities, samples, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import monge
from monge import registry
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


@pytest.mark.parametrize("name", ["wavenet", "gpt", "vrnn", "stcn"])
def test_other_sequence_models_have_flags_too(name):
    view = data.open(STROKES).view()
    torch.manual_seed(0)
    kind = registry.find(name)
    model = kind.smallest_config(view.space).build(view.space)
    batch = view.split("train").whole()
    model.initialise_from_data(batch)
    assert all(bool(term.isfinite().all()) for term in model.loss(batch).values())
    model.eval()
    rows = model.sample(300, options=model.SamplingConfig(steps=4))
    lifted = rows[..., 2]
    share = float(batch.x[..., 2][torch.arange(batch.x.shape[1]) < batch.length[:, None]].mean())
    assert set(lifted.unique().tolist()) == {0.0, 1.0}
    assert abs(float(lifted.mean()) - share) < 0.1  # at first the marginals of the data
    assert len(rows[..., 0].unique()) > 1000


@pytest.mark.parametrize("name", ["vrnn", "stcn"])
def test_a_frame_has_a_probability_of_its_flag(name):
    space = data.open(STROKES).view().space
    torch.manual_seed(0)
    model = registry.find(name).smallest_config(space).override("frame=1").build(space)
    params = torch.randn(5, model.head.width)
    x = torch.randn(5, 3)
    each = []
    for value in (0.0, 1.0):
        x[:, 2] = value
        each.append(model.head.log_prob(params, x)[:, 2])
    torch.testing.assert_close(torch.stack(each).exp().sum(0), torch.ones(5))


def test_a_model_of_reals_alone_refuses_a_flag(tmp_path, monkeypatch):
    monkeypatch.setattr(RNN, "supports_flags", False)
    with pytest.raises(DataError, match="channel 3"):
        monge.fit("rnn", STROKES, budget="1steps", out=tmp_path / "run")
