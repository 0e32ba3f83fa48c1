"""Maps between unpaired data sets: closed forms, samples, refusals, whole runs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import monge
from monge.cli.main import attempt
from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.data import loading as data
from monge.evaluate.energy_distance import distance
from monge.models.transport.entropic_map import EntropicMap
from monge.models.transport.neural_map import NeuralMap
from monge.train.trainer import Trainer

N = 400
SOURCE = Space(kind="real", shape=(2,), rows=N, name="source")
SPACE = Space(
    kind="real",
    shape=(2,),
    mean=(3.0, -1.0),
    scale=(2.0, 0.5),
    rows=N,
    name="target",
    given={"source": SOURCE},
)


def rows() -> tuple[Tensor, Batch]:
    """Standard normal sources, and targets N((3, -1), diag(4, 1/4)) in an order of their own."""
    x, y = (
        torch.randn(N, 2, generator=make_generator(seed), dtype=torch.float64) for seed in (0, 1)
    )
    y = torch.tensor([3.0, -1.0]) + y * torch.tensor([2.0, 0.5])
    return x, Batch(y, {"source": Batch(x)})


def entropic(epsilon: float = 0.02, anchors: int = N) -> EntropicMap:
    model = EntropicMap.Config(epsilon=epsilon, anchors=anchors).build(SPACE).double()
    model.plan(rows()[1])
    return model


def test_its_mean_is_the_map_between_gaussians():
    """T(x) = m + S^(1/2) x is optimal under any diagonal scaling of a diagonal problem."""
    x, batch = rows()
    close = x.norm(dim=1) < 1.5
    truth = torch.tensor([3.0, -1.0]) + x * torch.tensor([2.0, 0.5])
    found = entropic().mean(batch.given)
    error = ((found - truth) / torch.tensor([2.0, 0.5]))[close]
    assert error.square().mean().sqrt() < 0.25
    spread = ((batch.x - truth) / torch.tensor([2.0, 0.5]))[close]  # rows as they stand
    assert spread.square().mean().sqrt() > 1


def test_its_weights_are_the_rows_of_the_plan():
    _, batch = rows()
    model = entropic(0.1)
    weights = model.weights(model.sources(batch.given, N))
    torch.testing.assert_close(weights.sum(1), torch.ones(N).double())
    torch.testing.assert_close(
        weights.mean(0), torch.full((N,), 1 / N).double(), rtol=0, atol=1e-4
    )
    assert model.loss(batch)["cost"].shape == (N,)


def test_samples_are_targets_that_were_seen_with_the_right_mean():
    _, batch = rows()
    model = entropic(0.2)
    one = {"source": batch.given["source"][:1]}
    samples = model.sample(4000, one, generator=make_generator(0))
    assert bool((samples[:50, None] == batch.x).all(-1).any(1).all())
    error = samples.std(0) / 4000**0.5
    assert bool(((samples.mean(0) - model.mean(one)[0]).abs() < 4 * error).all())
    assert torch.equal(samples, model.sample(4000, one, generator=make_generator(0)))
    with pytest.raises(DataError, match="'source'"):
        model.sample(3)


def test_a_shift_of_either_side_changes_nothing_but_the_shift():
    _, batch = rows()
    far = replace(SPACE, given={"source": replace(SOURCE, mean=(100.0, 0.0))})
    model = EntropicMap.Config(anchors=N).build(far).double()
    moved = {"source": Batch(batch.given["source"].x + torch.tensor([100.0, 0.0]))}
    model.plan(replace(batch, given=moved))
    torch.testing.assert_close(model.mean(moved), entropic().mean(batch.given), rtol=0, atol=1e-3)


class Rows:
    row_bytes = 0

    def __len__(self) -> int:
        return N

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        return replace(rows()[1][index], row=index)

    def whole(self) -> Batch:
        return self.batch(torch.arange(N))


def test_a_network_learns_the_map_between_gaussians():
    x, batch = rows()
    torch.manual_seed(0)
    trainer = Trainer(
        NeuralMap.Config().build(SPACE).double(),
        Rows(),
        replace(NeuralMap.defaults(SPACE).train, batch_size=200, ema_decay=0.0, lr=3e-3, warmup=5),
        seed=0,
    )
    before = distance(trainer.model, SPACE, batch).value
    for _ in range(60):
        trainer.train_step(1.0)
    assert distance(trainer.model, SPACE, batch).value < before / 3
    truth = torch.tensor([3.0, -1.0]) + x * torch.tensor([2.0, 0.5])
    error = (trainer.model.mean(batch.given) - truth) / torch.tensor([2.0, 0.5])
    assert error[x.norm(dim=1) < 1.5].square().mean().sqrt() < 0.35


def test_held_out_distance_ignores_how_rows_happen_to_be_paired():
    """Targets in another order are the same unpaired data."""
    _, batch = rows()
    model, turned = entropic(), replace(batch, x=batch.x.flip(0))
    assert distance(model, SPACE, batch).value == pytest.approx(
        distance(model, SPACE, turned).value, abs=1e-9
    )
    assert distance(model, SPACE, batch).value < 0.01


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({}, ["0 conditions", "SOURCE~TARGET"]),
        (
            {"source": replace(SOURCE, shape=(3,))},
            ["source", "shape 3", "target", "shape 2"],
        ),
        ({"source": replace(SOURCE, kind="levels", size=4)}, ["4 levels", "real numbers"]),
    ],
)
def test_what_cannot_be_moved_is_refused(given, values):
    for owner in (EntropicMap, NeuralMap):
        reason = owner.unsupported_reason(replace(SPACE, given=given))
        assert [value for value in values if value not in reason] == []


def test_a_run_maps_other_data(tmp_path, capsys):
    run = monge.fit("entropic_map", "moons~rings", "data.rows=300", "anchors=200")
    assert run.result["held_out"]["kind"] == "distance"
    assert run.result["held_out"]["value"] < 0.05
    assert set(run.evaluate()) >= {"energy_distance", "energy_distance_of_real_rows"}
    new = tmp_path / "new.npy"
    np.save(new, np.zeros((7, 2), np.float32))
    assert attempt(["sample", str(run.folder), "--given", str(new), "--json"]) == 0
    assert np.array(json.loads(capsys.readouterr().out)["samples"]).shape == (7, 2)
    assert "energy_distance" in run.evaluate("pinwheel~rings")


def test_pairs_from_python_are_two_data_sets_too():
    x, y = np.random.default_rng(0).normal(size=(2, 200, 2))
    run = monge.fit("entropic_map", (x, 2 * y + 3), "anchors=100")
    given = {"x": data.open(x).view().split("all").whole()}
    assert run.model.mean(given).mean(0).tolist() == pytest.approx([3, 3], abs=0.5)
