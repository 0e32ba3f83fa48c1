"""The profile of signals and gradients over layers, and when it alarms."""

import pytest
import small_data
import torch
from torch import nn

from monge.core.model import Model, Update
from monge.train.gradient_profile import (
    MIN_DEAD,
    MIN_DEAD_UNITS,
    LayerProfile,
    alarms,
    dead_units,
    profile,
    root_mean_square,
)


class Deep(Model):
    """A chain of linear maps, each `gain` times an orthogonal one."""

    events = {"real"}

    def __init__(self, space, gain, depth=12):
        super().__init__(Deep.Config(), space)
        self.layers = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(depth))
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight, gain)

    def loss(self, batch):
        y = batch.x
        for layer in self.layers:
            y = layer(y)
        return {"sum": y.sum(1)}

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


@pytest.mark.parametrize(
    ("gain", "name"), [(0.3, "vanishing gradients"), (1.0, None), (4.0, "exploding gradients")]
)
def test_gains_multiply_along_the_depth(gain, name):
    space, batch = small_data.make("real")
    torch.manual_seed(0)
    model = Deep(space, gain)
    layers = profile(model, batch)
    assert [layer.name for layer in layers] == [f"layers.{k}" for k in range(12)]
    ratio = layers[0].gradient / layers[-1].gradient
    assert ratio == pytest.approx(gain**11, rel=1e-4)  # orthogonal maps keep lengths
    assert layers[3].signal / layers[0].signal == pytest.approx(gain**3, rel=1e-4)
    assert [finding.name for finding in alarms(layers)] == ([name] if name else [])
    assert all(p.grad is None for p in model.parameters())


class Dying(Model):
    """relu of a linear map whose first units never leave 0."""

    events = {"real"}

    def __init__(self, space, dead, units=20):
        super().__init__(Dying.Config(), space)
        self.hidden, self.out = nn.Linear(2, units), nn.Linear(units, 1)
        with torch.no_grad():
            self.hidden.bias[:dead] = -1e3
            self.hidden.bias[dead:] = 1e3

    def loss(self, batch):
        return {"sum": self.out(self.hidden(batch.x).relu())[:, 0]}

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


@pytest.mark.parametrize(("dead", "names"), [(3, []), (18, ["dead units"]), (20, [])])
def test_units_that_no_row_moves_are_dead(dead, names):
    """Where all are, the loss does not depend on the layer."""
    space, batch = small_data.make("real")
    layers = profile(Dying(space, dead), batch)
    assert (layers[0].units, layers[0].dead) == (20, pytest.approx(dead / 20))
    assert layers[-1].dead == 0
    assert [finding.name for finding in alarms(layers)] == names


def test_the_units_of_a_convolution_are_its_channels():
    gradient = torch.zeros(5, 4, 3, 3)
    gradient[2, 1, 0, 0] = 1.0
    assert dead_units([gradient], 1) == (4, 0.75)


def test_what_has_no_layers_raises_no_alarm():
    assert alarms([]) == []
    assert alarms([LayerProfile("one", 1.0, 1.0)]) == []


class Parts(Deep):
    """Two maps, of which the second is frozen, a scale without rows, and two updates."""

    def __init__(self, space, batches=1):
        super().__init__(space, 1.0, 2)
        self.norm = nn.LayerNorm(2)
        self.aside = nn.Linear(2, 2)
        self.batches = batches
        self.layers[1].weight.requires_grad_(False)

    def loss(self, batch):
        self.rows = len(batch)
        self.aside(batch.x)  # which no loss depends on
        return {"sum": self.layers[1](self.norm(self.layers[0](batch.x))).sum(1)}

    def updates(self):
        return [
            Update("model", self.loss, list(self.layers[0].parameters()), batches=self.batches),
            Update("closed form", None, []),
        ]


def test_only_trained_matrices_are_layers():
    space, batch = small_data.make("real")
    model = Parts(space, batches=3)
    before = torch.get_rng_state()
    assert [layer.name for layer in profile(model, batch[:10])] == ["layers.0"]
    assert torch.equal(torch.get_rng_state(), before)
    assert model.rows == 9
    assert profile(model, batch[:2]) == []
    model.layers[0].weight.requires_grad_(False)
    assert profile(model, batch) == []


def test_an_alarm_needs_two_layers_with_gradients():
    far, near, dead = (LayerProfile("x", 1.0, gradient) for gradient in (1e-6, 1.0, 0.0))
    assert [found.name for found in alarms([dead, far, near])] == ["vanishing gradients"]
    assert [found.name for found in alarms([near, far, dead])] == ["exploding gradients"]
    assert alarms([dead, near]) == []
    close = LayerProfile("x", 1.0, 1.1e-5)
    assert alarms([close, near]) == alarms([near, close]) == []
    assert root_mean_square([torch.tensor([3.0]), torch.tensor([4.0, 5.0])]) == pytest.approx(
        (50 / 3) ** 0.5
    )
    assert root_mean_square([]) == 0.0


def test_a_layer_that_is_all_dead_does_not_hide_another():
    layers = [
        LayerProfile(name, 1.0, 1.0, units=20, dead=dead)
        for name, dead in zip("ab", (1.0, 0.9), strict=True)
    ]
    [found] = alarms(layers)
    assert found.name == "dead units"
    assert " b " in found.sentence


def test_a_share_and_a_number_of_dead_units_suffice_at_their_bounds():
    def dead(share, units):
        return alarms([LayerProfile("x", 1.0, 1.0, units, share)])

    assert [found.name for found in dead(MIN_DEAD, MIN_DEAD_UNITS)] == ["dead units"]
    assert dead(MIN_DEAD - 1e-6, MIN_DEAD_UNITS) == dead(MIN_DEAD, MIN_DEAD_UNITS - 1) == []
    assert root_mean_square([torch.tensor([3.0])]) == 3.0
    assert root_mean_square([]) == 0.0
