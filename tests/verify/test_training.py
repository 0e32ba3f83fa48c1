"""The identities of training, foundations and codes hold, and fail where something is spoilt."""

import math

import torch
from torch import nn

from monge.core.train_config import OptimiserConfig
from monge.nn.mlp import MLP
from monge.train.trainer import Trainer
from monge.verify import _linear_regions, likelihood_losses, represent, training, training_loop
from monge.verify import likelihood_losses as foundations
from monge.verify.framework import examine, identities

GROUPS = ("training", "training_loop", "likelihood_losses", "represent")
OURS = [each for each in identities() if each.listing.group in GROUPS]


def test_they_are_all_there():
    assert {each.listing.id for each in OURS} >= {
        "X12",
        "X13",
        "X14",
        "X15",
        "X17",
        "X18",
        "X41",
        "X42",
        "X43",
        "X44",
        "X45",
        "X48",
        "X113",
    }


def fails(name):
    (each,) = (each for each in OURS if each.listing.name == name)
    return examine(each).passed is False


def test_epsilon_inside_the_root_fails_x42(monkeypatch):
    def inside(mover: OptimiserConfig, params, factors=None):
        class Inside(torch.optim.SGD):
            def step(self):
                for p in params:
                    p.sub_(mover.lr * p.grad / (p.grad.square() + 1e-8).sqrt())

        return Inside(params, mover.lr)

    monkeypatch.setattr(training, "make_optimiser", inside)
    assert fails("x42_epsilon_of_adam_stands_outside_the_root")
    assert fails("x42_optimisers_follow_their_rules")


def test_a_sum_where_the_mean_belongs_fails_x45(monkeypatch):
    right = training_loop.LineModel.loss
    monkeypatch.setattr(
        training_loop.LineModel,
        "loss",
        lambda self, batch: {"square": right(self, batch)["square"].sum()[None]},
    )
    assert fails("x45_minibatch_gradients_average_to_the_whole")


def test_rows_drawn_with_replacement_fail_x45(monkeypatch):
    monkeypatch.setattr(Trainer, "index", lambda self, number: torch.randint(60, (20,)))
    assert fails("x45_an_epoch_visits_each_row_once")


def test_a_loop_that_keeps_the_last_fails_x44(monkeypatch):
    right = Trainer.update_best

    def keep(self, score):
        better = right(self, score)
        self.best_step = self.step
        return better

    monkeypatch.setattr(Trainer, "update_best", keep)
    assert fails("x44_early_stopping_returns_the_best")


def test_a_threshold_twice_too_large_fails_x43(monkeypatch):
    right = training.l1_prox
    monkeypatch.setattr(training, "l1_prox", lambda mover, cut: right(mover, 2 * cut))
    assert fails("x43_soft_threshold_minimises_the_l1_problem")


def test_a_slope_forgotten_on_the_way_back_fails_x41(monkeypatch):
    right = training.backward

    def linear(net, x, y):
        slope = torch.Tensor.square
        monkeypatch.setattr(torch.Tensor, "square", torch.zeros_like)
        found = right(net, x, y)
        monkeypatch.setattr(torch.Tensor, "square", slope)
        return found

    monkeypatch.setattr(training, "backward", linear)
    assert fails("x41_backpropagation_by_hand_is_autograd")


def test_pieces_are_counted():
    net = _linear_regions.rectified(4)
    with torch.no_grad():
        net.hidden[0].weight.fill_(1.0)
        net.hidden[0].bias.copy_(-torch.tensor([0.0, 1.0, 1.5, 9.0]))
    assert _linear_regions.pieces(net, -5.0, 5.0) == 4  # the joint at 9 lies outside
    assert _linear_regions.cells_at_most(6, 2) == 22
    assert _linear_regions.cells_at_most(3, 5) == 2**3


def test_a_folding_network_folds():
    net = _linear_regions.fold(3, 2)
    x = torch.linspace(0, 1, 1001, dtype=torch.float64)[:, None]
    y = net(x)[:, 0].detach()
    assert y.min() > -1e-9
    assert y.max() < 1 + 1e-9
    turns = (y.diff().sign().diff() != 0).sum()
    assert 15 <= turns <= 30  # a grid point beside a joint may turn twice


def test_a_smooth_activation_has_no_place_in_x17():
    net: MLP = MLP.Config(width=6, depth=1, activation="tanh").build(1, 1).double()
    nn.init.zeros_(net.hidden[0].weight)
    assert _linear_regions.pieces(net, -1.0, 1.0) == 1


def test_a_bound_that_forgets_the_positive_fails_x113(monkeypatch):
    monkeypatch.setattr(represent, "info_nce", lambda scores: -scores.diagonal())
    assert fails("x113_info_nce_is_below_the_mutual_information")
    assert math.isfinite(float(represent.bound().mean()))


def test_a_law_without_its_constant_fails_x12(monkeypatch):
    right = likelihood_losses.gaussian
    monkeypatch.setattr(foundations, "gaussian", lambda *args: right(*args) - 0.9)
    assert fails("x12_gaussian_likelihood_is_a_squared_error")
