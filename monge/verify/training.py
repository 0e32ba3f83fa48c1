r"""Identities of training: gradients, and the rules that follow them.

Back-propagation: with $z_l = W_l h_{l-1} + b_l$, $h_l = a(z_l)$ and $\delta_l = \partial L /
\partial z_l$, $\delta_l = (W_{l+1}^T \delta_{l+1}) \odot a'(z_l)$, $\partial L / \partial W_l =
\delta_l h_{l-1}^T$ and $\partial L / \partial b_l = \delta_l$. The rules of the optimisers are
written out here step by step and compared with those that training builds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.train_config import OptimiserConfig
from ..nn.mlp import MLP
from ..train.optimiser import make_optimiser
from ..train.regularisation import l1_prox
from ._helpers import gap, most, normal
from .framework import Residual

STEPS = 20
RATE, MOMENTUM, DECAY = 0.05, 0.9, 0.3
BETA, GAMMA = 0.9, 0.999


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
    """Back-propagation written out equals autograd.

    Examines: nn.mlp.

    Source: Rumelhart, Hinton & Williams 1986, Learning Representations by Back-Propagating
    Errors."""
    net, x, y = network()
    with torch.enable_grad():
        found = gradients((net(x) - y).square().sum() / 2, net)
    return Residual(gap(found, backward(net, x, y)), 1e-12)


def x41_backpropagation_is_a_difference_quotient() -> Residual:
    """Back-propagation written out equals central differences.

    Examines: nn.mlp.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 5.3.3."""
    net, x, y = network()
    by_hand, step = backward(net, x, y), 1e-5
    vector = nn.utils.parameters_to_vector(net.parameters())

    def loss(weights: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(weights, net.parameters())
        return (net(x) - y).square().sum() / 2

    quotients = [
        (loss(vector + step * unit) - loss(vector - step * unit)) / (2 * step)
        for unit in torch.eye(len(vector), dtype=vector.dtype)
    ]
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
    """Bias corrections count steps from 1; epsilon is outside the root (Kingma & Ba 2015)."""
    memory["m"] = BETA * memory.get("m", 0) + (1 - BETA) * g
    memory["v"] = GAMMA * memory.get("v", 0) + (1 - GAMMA) * g.square()
    first, second = memory["m"] / (1 - BETA**step), memory["v"] / (1 - GAMMA**step)
    return w - RATE * first / (second.sqrt() + 1e-8)


def follow(settings: OptimiserConfig, rule: Rule) -> float:
    """The largest gap between an optimiser of training and a rule over the same gradients."""
    param = nn.Parameter(normal(6))
    tool, w, memory = make_optimiser(settings, [param]), param.detach().clone(), dict[str, Any]()
    worst = 0.0
    for step in range(1, STEPS + 1):
        g = normal(6)
        param.grad = g.clone()
        tool.step()
        w = rule(w, g, memory, step)
        worst = most(worst, gap(w, param.detach()))
    return worst


def x42_optimisers_follow_their_rules() -> Residual:
    """SGD, momentum, Nesterov, AdaGrad, RMSProp, Adam equal their formulas.

    Examines: train.optimiser.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 8.3 and 8.5."""
    base = OptimiserConfig(optimiser="sgd", lr=RATE)
    rules: list[tuple[OptimiserConfig, Rule]] = [
        (base, sgd),
        (replace(base, momentum=MOMENTUM), momentum),
        (replace(base, momentum=MOMENTUM, nesterov=True), nesterov),
        (replace(base, optimiser="adagrad"), adagrad),
        (replace(base, optimiser="rmsprop"), rmsprop),
        (replace(base, optimiser="adam"), adam),
    ]
    return Residual(most(follow(settings, rule) for settings, rule in rules), 1e-12)


def x42_epsilon_of_adam_stands_outside_the_root() -> Residual:
    """A gradient of 1e-6 moves Adam by 0.99 lr, not by 0.01 lr.

    Examines: train.optimiser.

    Source: Kingma & Ba 2015, Adam: A Method for Stochastic Optimization, algorithm 1."""
    param = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    param.grad = torch.full_like(param, 1e-6)
    make_optimiser(OptimiserConfig(lr=RATE), [param]).step()
    return Residual(abs(-param.item() / RATE - 1e-6 / (1e-6 + 1e-8)), 1e-9)


def step_of(settings: OptimiserConfig, w: Tensor, g: Tensor, steps: int = 1) -> Tensor:
    param = nn.Parameter(w.clone())
    tool = make_optimiser(settings, [param])
    for _ in range(steps):
        param.grad = g.clone()
        tool.step()
    return param.detach()


def x43_decay_of_sgd_is_the_l2_penalty() -> Residual:
    """SGD: w (1 - lr decay) - lr g is the step on L + decay/2 |w|^2.

    Examines: train.optimiser.

    Source: Loshchilov & Hutter 2019, Decoupled Weight Decay Regularization, sec. 2."""
    w, g, settings = normal(6), normal(6), OptimiserConfig(optimiser="sgd", lr=RATE)
    with torch.enable_grad():
        leaf = w.clone().requires_grad_()
        (slope,) = torch.autograd.grad(DECAY / 2 * leaf.square().sum(), leaf)
    penalised = step_of(settings, w, g + slope)
    decayed = step_of(replace(settings, weight_decay=DECAY), w, g)
    by_hand = (1 - RATE * DECAY) * w - RATE * g
    return Residual(most(gap(penalised, decayed), gap(by_hand, decayed)), 1e-14)


def x43_decay_of_adam_is_not_the_l2_penalty() -> Residual:
    """Adam: an L2 penalty and decoupled decay differ by more than 0.01.

    Examines: train.optimiser.

    Source: Loshchilov & Hutter 2019, Decoupled Weight Decay Regularization, sec. 2."""
    w, g, settings = normal(6), normal(6), OptimiserConfig(lr=RATE, weight_decay=DECAY)
    apart = gap(
        step_of(settings, w, g, STEPS), step_of(replace(settings, optimiser="adamw"), w, g, STEPS)
    )
    return Residual(1e-2 - apart, 0.0)


def x43_soft_threshold_minimises_the_l1_problem() -> Residual:
    """Soft thresholding solves min |w - v|^2 / 2 + c |w|: 0 in its subgradient.

    Examines: train.optimiser, train.regularisation.

    Source: Parikh & Boyd 2014, Proximal Algorithms, sec. 6.5."""
    v, cut = 0.3 * normal(4, 50), RATE * DECAY * 20
    param = nn.Parameter(v.clone())
    l1_prox(make_optimiser(OptimiserConfig(optimiser="sgd", lr=RATE), [param]), DECAY * 20)
    w = param.detach()
    inside = (w - v + cut * w.sign()).abs().where(w != 0, (v.abs() - cut).clamp(min=0))
    mixed = bool((w == 0).any() and (w != 0).any())
    return Residual(float(inside.amax()) if mixed else float("nan"), 1e-14)
