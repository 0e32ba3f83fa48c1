"""Common errors on training: initial weights, steps, losses, early stopping."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...core.train_config import OptimiserConfig
from ...data.loading import open as open_data
from ...nn.inputs.features import Features
from ...nn.layers.activation import activation
from ...nn.mlp import MLP
from ...prob.distributions import CategoricalDistribution
from ...train.optimiser import make_optimiser
from .._helpers import gap, normal
from ..convolution import count
from ..framework import Control
from ..likelihood_losses import gaussian, logistic, logistic_loss
from ..norm_dropout_init import MAX_STANDARD_ERRORS, growth
from ..training import BETA, GAMMA, RATE, adam
from ..training_loop import STOPPING, LineModel, play

ROUNDING = 1e-12


def r5_he_initialises_with_two_over_the_inputs() -> Control:
    """Common error: He's variance for ReLU is 4 / D_in; correct: 2 / D_in, generally alpha / D_in.

    Examines: nn.layers.init.

    Source: He et al. 2015, Delving Deep into Rectifiers, sec. 2.2."""
    wrong, right = (growth("relu", "he", times) for times in (2.0, 1.0))
    return Control(wrong, right, MAX_STANDARD_ERRORS)


def r6_epsilon_of_adam_stands_outside_the_root() -> Control:
    """Common error: Adam has m / sqrt(v + eps); correct: m / (sqrt(v) + eps).

    Examines: train.optimiser.

    Source: Kingma & Ba 2015, Adam: A Method for Stochastic Optimization, algorithm 1."""
    param, g = nn.Parameter(torch.zeros(1, dtype=torch.float64)), 1e-6
    param.grad = torch.full_like(param, g)
    make_optimiser(OptimiserConfig(lr=RATE), [param]).step()
    m, v = (1 - BETA) * g / (1 - BETA), (1 - GAMMA) * g**2 / (1 - GAMMA)
    inside, outside = m / math.sqrt(v + 1e-8), m / (math.sqrt(v) + 1e-8)
    moved = -param.item() / RATE
    return Control(abs(moved - inside), abs(moved - outside), 1e-9)


def r35_hidden_layers_have_one_map_less_between_them() -> Control:
    """Common error: K hidden layers have K (D^2 + D) between them; correct: (K - 1)(D^2 + D).

    Examines: nn.mlp.

    Source: Prince 2023, Understanding Deep Learning, ch. 4."""
    width, depth = 6, 3
    found = count(MLP.Config(width=width, depth=depth).build(1, 1))
    ends, between = 3 * width + 1, width**2 + width
    return Control(
        abs(found - ends - depth * between), abs(found - ends - (depth - 1) * between), 0.0
    )


def r36_tanh_is_a_sigmoid() -> Control:
    """Common error: tanh(x) = 2 / cosh(2x) - 1; correct: 2 sigmoid(2x) - 1.

    Examines: nn.layers.activation.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 6.3.2."""
    x = torch.linspace(-3, 3, 601, dtype=torch.float64)
    found, share = activation("tanh")(x), activation("sigmoid")
    wrong, right = 2 / torch.cosh(2 * x) - 1, 2 * share(2 * x) - 1
    return Control(gap(wrong, found), gap(right, found), ROUNDING)


def r53_a_negative_log_likelihood_is_negative() -> Control:
    """Common error: -log P = sum y log pi + (1 - y) log(1 - pi); correct: minus that sum.

    Examines: prob.distributions.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 4.3.2."""
    x, y, w = logistic()
    pi, whole = (x @ w).sigmoid(), logistic_loss(x, y, w)
    log_p = (y * pi.log() + (1 - y) * (1 - pi).log()).sum()
    # log(1 - pi) by hand loses digits where pi is near 1
    return Control(gap(log_p, whole), gap(-log_p, whole), 1e-9)


def r54_a_mean_is_divided_by_n() -> Control:
    """Common error: rows are standardised with mu = sum x_i; correct: sum x_i / n.

    Examines: data.dataset, nn.inputs.features.

    Source: LeCun et al. 1998, Efficient BackProp, sec. 4.3."""
    rows = open_data((5 + 3 * normal(400, 3)).float()).view().split("train")
    x, features = rows.whole().x.double(), Features(rows.space).double()(rows.whole().double())
    scale = x.std(0, correction=0)
    wrong, right = ((x - mean) / scale for mean in (x.sum(0), x.mean(0)))
    return Control(gap(features, wrong), gap(features, right), 1e-5)


def r55_the_best_is_kept_beside_the_latest() -> Control:
    """Common error: early stopping has one v for best and latest; correct: one for each.

    Examines: train.loop, train.trainer.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, algorithm 7.1."""
    trainer, history = play(STOPPING)
    held = [(p.held_out.value, p.step) for p in history if p.held_out]
    found, v = 0, math.inf
    for latest, step in held:
        v = latest
        if latest < v:
            found = step
    best = min(held)[1]
    return Control(abs(found - best), abs(trainer.best_step - best), 0.0)


def r96_a_step_follows_the_mean_at_its_rate() -> Control:
    """Common error: SGD: w - sum of gradients; correct: w - lr times their mean.

    Examines: train.loop, train.trainer.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, algorithm 8.1."""
    trainer, _ = play(replace(STOPPING, max_steps=1))
    model, batch = LineModel(LineModel.Config(), trainer.model.space), trainer.batch(0)
    with torch.enable_grad():
        loss = model.loss(batch)["square"]
        (total,) = torch.autograd.grad(loss.sum(), model.slope)
    moved = trainer.model.state_dict()["slope"]
    return Control(gap(moved, -total), gap(moved, -RATE * total / len(batch)), ROUNDING)


def r97_names_of_one_class_are_not_independent() -> Control:
    """Common error: one-hot y has prod_d Ber(y_d; pi_d); correct: prod_d pi_d^y_d.

    Examines: prob.distributions.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 2.2."""
    z, y = normal(20, 1, 5), torch.arange(20)[:, None] % 5
    found = CategoricalDistribution(1, 5, False).double().log_prob(z, y)[:, 0]
    pi, hot = z[:, 0].softmax(1), nn.functional.one_hot(y[:, 0], 5)
    apart = (hot * pi.log() + (1 - hot) * (1 - pi).log()).sum(1)
    return Control(gap(apart, found), gap((hot * pi.log()).sum(1), found), ROUNDING)


def r122_a_negative_log_likelihood_is_of_its_distribution() -> Control:
    """Common error: every NLL is -sum y log f; correct: -log p(y), e.g. of a normal y.

    Examines: prob.distributions.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 5.5 and 6.2.1."""
    y, mean, scale = normal(20), normal(20).exp(), torch.ones(20).double()
    found = gaussian(y, mean, scale)
    printed = -y * mean.log()
    proper = 0.5 * ((y - mean).square() + math.log(2 * math.pi))
    return Control(gap(printed, found), gap(proper, found), ROUNDING)


def r123_adam_averages_gradients_of_batches() -> Control:
    """Common error: Adam's moments are of one row's gradient; correct: of the mean of a batch.

    Examines: train.loop, train.trainer.

    Source: Kingma & Ba 2015, Adam: A Method for Stochastic Optimization, algorithm 1."""
    steps = 5
    trainer, _ = play(replace(STOPPING, optimiser="adam", max_steps=steps, patience=0))
    found, ends = trainer.model.state_dict()["slope"], []
    for rows in (1, trainer.batch_size):
        model, memory = LineModel(LineModel.Config(), trainer.model.space), dict[str, Any]()
        for step in range(steps):
            with torch.enable_grad():
                loss = model.loss(trainer.batch(step)[:rows])["square"].mean()
                (g,) = torch.autograd.grad(loss, model.slope)
            model.slope.copy_(adam(model.slope.detach().clone(), g, memory, step + 1))
        ends.append(model.slope.detach())
    return Control(gap(found, ends[0]), gap(found, ends[1]), ROUNDING)


def r124_a_scale_is_divided_by_n() -> Control:
    """Common error: rows are standardised by n - 1; correct: by n here, as by batch norm.

    Either is a scale; what matters is that all rows are divided by the same one.

    Examines: nn.inputs.features, data.dataset.

    Source: LeCun et al. 1998, Efficient BackProp, sec. 4.3; Ioffe & Szegedy 2015, Batch
    Normalization, algorithm 1."""
    rows = open_data((5 + 3 * normal(400, 3)).float()).view().split("train")
    x, features = rows.whole().x.double(), Features(rows.space).double()(rows.whole().double())
    wrong, right = ((x - x.mean(0)) / x.std(0, correction=k) for k in (1, 0))
    return Control(gap(features, wrong), gap(features, right), 1e-5)
