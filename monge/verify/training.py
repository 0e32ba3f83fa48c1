r"""Identities of training: gradients, the rules that follow them, and when they stop.

Back-propagation: with $z_l = W_l h_{l-1} + b_l$, $h_l = a(z_l)$ and $\delta_l = \partial L /
\partial z_l$, $\delta_l = (W_{l+1}^T \delta_{l+1}) \odot a'(z_l)$, $\partial L / \partial W_l =
\delta_l h_{l-1}^T$ and $\partial L / \partial b_l = \delta_l$. The rules of the optimisers are
written out here step by step and held against those that training builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.config import Config
from ..core.model import Losses, Model
from ..core.recipe import Mover, Recipe
from ..core.score import Score
from ..core.space import Space
from ..data import open as open_data
from ..nn.embed import Features
from ..nn.mlp import MLP
from ..train.budget import Budget
from ..train.disturb import shrink
from ..train.fit import Progress, fit
from ..train.optimiser import optimiser
from ..train.trainer import Trainer
from .gaps import gap, most, normal
from .identity import Residual

STEPS = 20
RATE, MOMENTUM, DECAY = 0.05, 0.9, 0.3
BETA, GAMMA = 0.9, 0.999
ROWS = 60


def gradients(loss: Tensor, net: nn.Module) -> Tensor:
    """Of every parameter, laid out flat."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])


def backward(net: MLP, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of 1/2 |net(x) - y|^2 for a tanh network by hand, laid out flat."""
    signals = [x]
    for layer in net.linears[:-1]:
        signals.append((signals[-1] @ layer.weight.T + layer.bias).tanh())
    delta, found = net.out(signals[-1]) - y, []
    for layer, h in zip(reversed(net.linears), reversed(signals), strict=True):
        found.append(torch.cat([(delta.T @ h).flatten(), delta.sum(0)]))
        delta = (delta @ layer.weight) * (1 - h.square())
    return torch.cat(found[::-1])


def network() -> tuple[MLP, Tensor, Tensor]:
    net: MLP = MLP.Config(widths=(5, 4), activation="tanh").build(3, 2).double()
    return net, normal(7, 3), normal(7, 2)


def x41_backpropagation_by_hand_is_autograd() -> Residual:
    """Back-propagation written out equals autograd."""
    net, x, y = network()
    with torch.enable_grad():
        found = gradients((net(x) - y).square().sum() / 2, net)
    return Residual(gap(found, backward(net, x, y)), 1e-12)


def x41_backpropagation_is_a_difference_quotient() -> Residual:
    """Back-propagation written out equals central differences."""
    net, x, y = network()
    by_hand, step = backward(net, x, y), 1e-5
    vector = nn.utils.parameters_to_vector(net.parameters())

    def loss(weights: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(weights, net.parameters())
        return (net(x) - y).square().sum() / 2

    quotients = [(loss(vector + step * unit) - loss(vector - step * unit)) / (2 * step)
                 for unit in torch.eye(len(vector), dtype=vector.dtype)]
    return Residual(gap(torch.stack(quotients), by_hand), 1e-6)


Rule = Callable[[Tensor, Tensor, dict[str, Any], int], Tensor]


def sgd(w: Tensor, g: Tensor, memory: dict[str, Any], step: int) -> Tensor:
    return w - RATE * g


def momentum(w: Tensor, g: Tensor, memory: dict[str, Any], step: int) -> Tensor:
    memory["v"] = MOMENTUM * memory.get("v", 0) + g
    return w - RATE * memory["v"]


def nesterov(w: Tensor, g: Tensor, memory: dict[str, Any], step: int) -> Tensor:
    memory["v"] = MOMENTUM * memory.get("v", 0) + g
    return w - RATE * (g + MOMENTUM * memory["v"])


def adagrad(w: Tensor, g: Tensor, memory: dict[str, Any], step: int) -> Tensor:
    memory["s"] = memory.get("s", 0) + g.square()
    return w - RATE * g / (memory["s"].sqrt() + 1e-10)


def rmsprop(w: Tensor, g: Tensor, memory: dict[str, Any], step: int) -> Tensor:
    memory["s"] = GAMMA * memory.get("s", 0) + (1 - GAMMA) * g.square()
    return w - RATE * g / (memory["s"].sqrt() + 1e-8)


def adam(w: Tensor, g: Tensor, memory: dict[str, Any], step: int) -> Tensor:
    """Bias corrections count steps from 1; epsilon stands outside the root (Kingma & Ba 2015)."""
    memory["m"] = BETA * memory.get("m", 0) + (1 - BETA) * g
    memory["v"] = GAMMA * memory.get("v", 0) + (1 - GAMMA) * g.square()
    first, second = memory["m"] / (1 - BETA**step), memory["v"] / (1 - GAMMA**step)
    return w - RATE * first / (second.sqrt() + 1e-8)


def follow(mover: Mover, rule: Rule) -> float:
    """The largest gap between an optimiser of training and a rule over the same gradients."""
    param = nn.Parameter(normal(6))
    tool, w, memory = optimiser(mover, [param]), param.detach().clone(), dict[str, Any]()
    worst = 0.0
    for step in range(1, STEPS + 1):
        g = normal(6)
        param.grad = g.clone()
        tool.step()
        w = rule(w, g, memory, step)
        worst = most(worst, gap(w, param.detach()))
    return worst


def x42_optimisers_follow_their_rules() -> Residual:
    """SGD, momentum, Nesterov, AdaGrad, RMSProp, Adam equal their rules."""
    base = Mover(optimiser="sgd", rate=RATE)
    rules: list[tuple[Mover, Rule]] = [
        (base, sgd), (replace(base, momentum=MOMENTUM), momentum),
        (replace(base, momentum=MOMENTUM, nesterov=True), nesterov),
        (replace(base, optimiser="adagrad"), adagrad),
        (replace(base, optimiser="rmsprop"), rmsprop), (replace(base, optimiser="adam"), adam)]
    return Residual(most(follow(mover, rule) for mover, rule in rules), 1e-12)


def x42_epsilon_of_adam_stands_outside_the_root() -> Residual:
    """A gradient of 1e-6 moves Adam by 0.99 of the rate, not by 0.01."""
    param = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    param.grad = torch.full_like(param, 1e-6)
    optimiser(Mover(rate=RATE), [param]).step()
    return Residual(abs(-param.item() / RATE - 1e-6 / (1e-6 + 1e-8)), 1e-9)


def step_of(mover: Mover, w: Tensor, g: Tensor, steps: int = 1) -> Tensor:
    param = nn.Parameter(w.clone())
    tool = optimiser(mover, [param])
    for _ in range(steps):
        param.grad = g.clone()
        tool.step()
    return param.detach()


def x43_decay_of_sgd_is_the_l2_penalty() -> Residual:
    """SGD: w (1 - rate decay) - rate g is the step on L + decay/2 |w|^2."""
    w, g, mover = normal(6), normal(6), Mover(optimiser="sgd", rate=RATE)
    with torch.enable_grad():
        leaf = w.clone().requires_grad_()
        (slope,) = torch.autograd.grad(DECAY / 2 * leaf.square().sum(), leaf)
    penalised = step_of(mover, w, g + slope)
    decayed = step_of(replace(mover, decay=DECAY), w, g)
    by_hand = (1 - RATE * DECAY) * w - RATE * g
    return Residual(most(gap(penalised, decayed), gap(by_hand, decayed)), 1e-14)


def x43_decay_of_adam_is_not_the_l2_penalty() -> Residual:
    """Adam: an L2 penalty and decoupled decay part by more than 0.01."""
    w, g, mover = normal(6), normal(6), Mover(rate=RATE, decay=DECAY)
    apart = gap(step_of(mover, w, g, STEPS), step_of(replace(mover, optimiser="adamw"), w, g,
                                                     STEPS))
    return Residual(1e-2 - apart, 0.0)


def x43_soft_threshold_minimises_the_l1_problem() -> Residual:
    """The threshold solves min |w - v|^2 / 2 + c |w|: 0 in its subgradient."""
    v, cut = 0.3 * normal(4, 50), RATE * DECAY * 20
    param = nn.Parameter(v.clone())
    shrink(optimiser(Mover(optimiser="sgd", rate=RATE), [param]), DECAY * 20)
    w = param.detach()
    inside = (w - v + cut * w.sign()).abs().where(w != 0, (v.abs() - cut).clamp(min=0))
    mixed = bool((w == 0).any() and (w != 0).any())
    return Residual(float(inside.amax()) if mixed else float("nan"), 1e-14)


class Line(Model):
    """y = a x + b by least squares: x and y are the entries of an event."""

    events = {"real"}

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.slope = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def loss(self, batch: Batch) -> Losses:
        x, y = batch.x.unbind(1)
        return {"square": (self.slope[0] * x + self.slope[1] - y).square() / 2}

    @classmethod
    def tiny(cls, space: Space) -> Config:
        return cls.Config()


class Points:
    """Rows near a line, as the loop sees them."""

    lengths = None

    def __init__(self) -> None:
        x = normal(ROWS)
        self.x = torch.stack([x, 2 * x - 1 + 0.5 * normal(ROWS)], 1)

    def __len__(self) -> int:
        return ROWS

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        return Batch(self.x[index], row=index)

    def whole(self) -> Batch:
        return self.batch(torch.arange(ROWS))


def play(recipe: Recipe) -> tuple[Trainer, list[Progress]]:
    """Fit the line under the eyes of a judge with other rows of its own, until patience ends."""
    trainer = Trainer(Line(Line.Config(), Space(kind="real", shape=(2,))), Points(), recipe)
    others = Batch(Points().x[:8])

    def judge() -> Score:
        return Score(trainer.model.loss(others)["square"].mean().item(), "loss")

    with torch.enable_grad():
        return trainer, list(fit(trainer, Budget(steps=5000), judge, pause=1e9))


STOPPING = Recipe(optimiser="sgd", rate=RATE, warmup=0, batch=20, check=3, patience=4)


def x44_early_stopping_returns_the_best() -> Residual:
    """The loop keeps the argmin of the held-out losses, and its step."""
    trainer, told = play(STOPPING)
    held = [(p.held_out.value, p.step) for p in told if p.held_out]
    best, step = min(held)
    late = held[-1][1] - step != STOPPING.check * STOPPING.patience
    kept = trainer.best.value if trainer.best else float("nan")
    return Residual(abs(kept - best) + (late or trainer.best_step != step), 0.0)


def x44_early_stopping_bounds_the_way() -> Residual:
    """|w_0 - w_best| <= K rate steps where gradients are at most K."""
    largest = 0.5
    trainer, _ = play(replace(STOPPING, clip=largest))
    way = trainer.kept["slope"].norm().item()  # from 0
    return Residual(way - largest * RATE * trainer.best_step, 1e-6)


def epoch(trainer: Trainer, number: int) -> Iterator[Batch]:
    first = number * trainer.epoch_steps
    return (trainer.batch(first + place) for place in range(trainer.epoch_steps))


def x45_an_epoch_visits_each_row_once() -> Residual:
    """Every row is in exactly one batch of an epoch, each time in new order."""
    trainer, _ = play(replace(STOPPING, steps=1))
    orders = [torch.cat([batch.rows for batch in epoch(trainer, number)]) for number in range(3)]
    missed = sum(int((torch.bincount(order, minlength=ROWS) != 1).sum()) for order in orders)
    return Residual(missed + float(torch.equal(orders[0], orders[1])), 0.0)


def x45_minibatch_gradients_average_to_the_whole() -> Residual:
    """The mean of an epoch's minibatch gradients is the full gradient."""
    trainer, _ = play(replace(STOPPING, steps=1))
    model = trainer.model
    with torch.enable_grad():
        each = [gradients(model.loss(batch)["square"].mean(), model)
                for batch in epoch(trainer, 0)]
        full = gradients(model.loss(trainer.rows.whole())["square"].mean(), model)
    return Residual(gap(torch.stack(each).mean(0), full), 1e-14)


def x48_standardised_training_rows_have_mean_0_and_scale_1() -> Residual:
    """Features of training rows: mean 0, standard deviation 1 (float32)."""
    rows = open_data((5 + 3 * normal(400, 3)).float()).view().rows("train")
    features = Features(rows.space).double()(rows.whole().double())
    return Residual(most(float(features.mean(0).abs().amax()),
                        gap(features.std(0, correction=0), torch.ones(3))), 1e-5)


def x48_test_rows_are_read_with_training_statistics() -> Residual:
    """Features of test rows invert by the mean and scale of training rows."""
    source = open_data((5 + 3 * normal(400, 3)).float())
    view = source.view()
    train, test = (view.rows(split).whole().x.double() for split in ("train", "test"))
    features = Features(view.space).double()(Batch(test))
    back = features * train.std(0, correction=0) + train.mean(0)
    return Residual(gap(back, test), 1e-5)
