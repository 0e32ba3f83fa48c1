"""Optimisers: learning-rate schedules, parameter groups, and optimiser state as named tensors.

The learning-rate factor is a function of the step and of a length that is stored with the run, so
that later budgets do not change it:

    constant  1
    cosine    (1 + cos(pi step / schedule_steps)) / 2
    linear    1 - step / schedule_steps
    inverse   sqrt(warmup / step) once the warm-up is over (Vaswani et al. 2017)

each times a linear warm-up. Parameters are chosen by prefixes of their names: `trunk` is every
parameter inside model.trunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ..core.errors import UsageError, nearest
from ..core.model import Model, Update, new_optimiser, take_step
from ..core.train_config import OptimiserConfig, TrainConfig
from .checkpoint import check_same_names
from .regularisation import real_scale


def lr_factor(train_config: TrainConfig, step: int, schedule_steps: int) -> float:
    """The factor of the learning rate at this step."""
    rise = min(1.0, (step + 1) / train_config.warmup) if train_config.warmup else 1.0
    if train_config.schedule == "constant":
        return rise
    if train_config.schedule == "inverse":
        return rise * min(1.0, math.sqrt(max(train_config.warmup, 1) / (step + 1)))
    done = min(step / schedule_steps, 1.0)
    return rise * (
        1 - done if train_config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    )


def schedule_length(train_config: TrainConfig, stored: int, steps: float) -> int:
    """Steps over which the learning rate decays: `schedule_steps`, or else `max_steps`, or else
    the `steps` of the first budget, which a resumed run has `stored`. No later budget changes it,
    so that a resumed run equals one that was not interrupted. 0 for a rate that does not decay."""
    if train_config.schedule not in ("cosine", "linear"):
        return 0
    length = train_config.schedule_steps or train_config.max_steps or stored or steps
    if not math.isfinite(length):
        raise UsageError(
            f"train.schedule={train_config.schedule} needs a length; give the budget in steps or "
            "epochs, or set train.schedule_steps=5000"
        )
    if length == stored < steps < math.inf:
        raise UsageError(
            f"expected a budget up to step {stored}, at which the learning rate of this run "
            f"reaches 0, found {steps:g} steps; start a new run with "
            f"train.schedule_steps={steps:g}"
        )
    return math.ceil(length)


MAX_LINE_SEARCH_EVALS = 25
"""Function evaluations allowed in one line search of L-BFGS."""
LBFGS_HISTORY = 10
"""Pairs of vectors in the state of L-BFGS."""
LBFGS_SCRATCH_SLOT = "al"
"""State that L-BFGS holds only to avoid an allocation; it is not saved."""


def make_optimiser(
    config: OptimiserConfig,
    params: Sequence[nn.Parameter],
    factors: Mapping[int, float] | None = None,
) -> Optimizer:
    """The configured optimiser, its learning rate times `factors` (by id of the parameter); fused
    where torch supports it, which is 3 to 6 times faster on a CPU."""
    if config.optimiser == "lbfgs":
        return lbfgs(config, params, bool(factors))
    groups = param_groups(params, factors or {})
    optim, rate, decay = torch.optim, config.lr, config.weight_decay
    if config.optimiser == "adam":
        return new_optimiser(
            optim.Adam, groups, rate, config.betas, weight_decay=decay, fused=True
        )
    if config.optimiser == "adamw":
        return new_optimiser(
            optim.AdamW, groups, rate, config.betas, weight_decay=decay, fused=True
        )
    if config.optimiser == "sgd":
        if config.nesterov and not config.momentum:
            raise UsageError(
                "train.nesterov=true needs train.momentum above 0; set train.momentum=0.9"
            )
        return new_optimiser(
            optim.SGD,
            groups,
            rate,
            config.momentum,
            weight_decay=decay,
            nesterov=config.nesterov,
            fused=True,
        )
    if config.optimiser == "adagrad":
        return new_optimiser(optim.Adagrad, groups, rate, weight_decay=decay, fused=True)
    return new_optimiser(
        optim.RMSprop,
        groups,
        rate,
        config.betas[1],
        weight_decay=decay,
        momentum=config.momentum,
        foreach=True,
    )


def param_groups(
    params: Sequence[nn.Parameter], factors: Mapping[int, float]
) -> list[dict[str, Any]]:
    """Parameter groups of equal learning-rate factor, stored in each group as `factor`."""
    groups: dict[float, list[nn.Parameter]] = {}
    for param in params:
        groups.setdefault(factors.get(id(param), 1.0), []).append(param)
    return [{"params": members, "factor": factor} for factor, members in groups.items()]


def lbfgs(config: OptimiserConfig, params: Sequence[nn.Parameter], factors: bool) -> LBFGS:
    """L-BFGS with one iteration per step, a history of ten and a strong-Wolfe line search, which
    replaces the learning rate (Liu & Nocedal 1989)."""
    unsupported = {
        "train.grad_clip": config.grad_clip,
        "train.l1": config.l1,
        "train.lr_multipliers": factors,
    }
    for setting, value in unsupported.items():
        if value:
            raise UsageError(
                f"train.optimiser=lbfgs chooses its step length by line search and cannot use "
                f"{setting}; remove {setting} or use train.optimiser=adam"
            )
    return new_optimiser(
        LBFGS,
        params,
        1.0,
        max_iter=1,
        max_eval=MAX_LINE_SEARCH_EVALS,
        history_size=LBFGS_HISTORY,
        line_search_fn="strong_wolfe",
    )


def lbfgs_iteration(optim: LBFGS, closure: Callable[[], Tensor]) -> None:
    """One iteration of L-BFGS. It has converged if the loss changed by no more than rounding or no
    step was taken; the flag is part of its state."""
    first = optim.param_groups[0]["params"][0]
    state, evaluations = optim.state[first], 0
    before = state.get("prev_loss", torch.inf)

    def counted() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        return closure()

    now = float(optim.step(counted))
    gained = abs(before - now) > torch.finfo(first.dtype).eps * abs(now)
    state["settled"] = int(evaluations == 1 or not gained)


def has_converged(optim: Optimizer | None) -> bool:
    """Whether further steps would change nothing; known only of L-BFGS."""
    return isinstance(optim, LBFGS) and any(slots.get("settled") for slots in optim.state.values())


def has_prefix(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def param_prefixes(names: Iterable[str]) -> Iterator[str]:
    """Every prefix of the names that ends at a dot, and the names themselves."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:size]) for size in range(1, len(parts) + 1))


def check_prefixes(prefixes: Iterable[str], model: Model, setting: str) -> None:
    """Raise UsageError for a prefix that no parameter has."""
    names = [name for name, _ in model.named_parameters()]
    for prefix in prefixes:
        if not any(has_prefix(name, prefix) for name in names):
            known = dict.fromkeys(param_prefixes(names))
            close = nearest(prefix, known)
            if "did you mean" not in close:
                close = nearest(prefix, dict.fromkeys(name.split(".")[0] for name in names))
            raise UsageError(f"{setting}: no parameter name begins with {prefix!r}{close}")


def freeze(model: Model, prefixes: tuple[str, ...]) -> list[nn.Module]:
    """Freeze the parameters with these prefixes. Returns the modules frozen as a whole, which stay
    in evaluation mode: no dropout, fixed batch-norm statistics."""
    check_prefixes(prefixes, model, "train.freeze")
    for name, param in model.named_parameters():
        if any(has_prefix(name, prefix) for prefix in prefixes):
            param.requires_grad_(False)
    return [model.parts, *(module for name, module in model.named_modules() if name in prefixes)]


def lr_multiplier_of(model: Model, multipliers: Mapping[str, float]) -> dict[str, float]:
    """The learning-rate multiplier of each parameter (by name) that a prefix matches; the longest
    matching prefix wins."""
    check_prefixes(multipliers, model, "train.lr_multipliers")
    found = {}
    for name, _ in model.named_parameters():
        matching = [prefix for prefix in multipliers if has_prefix(name, prefix)]
        if matching:
            found[name] = multipliers[max(matching, key=len)]
    return found


def trainable_updates(
    model: Model, train_config: TrainConfig
) -> tuple[list[Update], list[nn.Module]]:
    """The model's updates without frozen parameters, and the frozen modules; updates by L-BFGS use
    the whole training split."""
    updates, frozen = list(model.updates()), freeze(model, train_config.freeze)
    known = [update.name for update in updates]
    for name in train_config.updates:
        if name not in known:
            raise UsageError(
                f"train.updates.{name}: the model has no such update{nearest(name, known)}"
            )
    if train_config.input_noise and not any(
        real_scale(part) is not None for part in model.space.given.values()
    ):
        raise UsageError(
            f"train.input_noise={train_config.input_noise} adds noise to real-valued conditions, "
            "and this model has none; remove it"
        )
    if train_config.refit != "none" and not train_config.patience:
        raise UsageError(
            f"train.refit={train_config.refit} needs early stopping, which train.patience=0 "
            "disables; set train.patience=20"
        )
    left = []
    for update in updates:
        free = [param for param in update.params if param.requires_grad]
        if free or not update.params:
            lbfgs = bool(free) and train_config.optimiser_config(update.name).optimiser == "lbfgs"
            left.append(replace(update, params=free, whole=update.whole or lbfgs))
    if not left:
        raise UsageError(
            f"train.freeze={','.join(train_config.freeze)} leaves nothing to train; freeze less"
        )
    return left, frozen


@torch.no_grad()
def flush_denormals(optim: Optimizer) -> None:
    """Set negligible moments to 0. Moments of parameters whose gradients have become 0 decay to
    denormal numbers, and even a few of these double the time of an Adam step."""
    for param, slots in optim.state.items():
        for value in slots.values():
            if isinstance(value, Tensor) and value.shape == param.shape:
                value.masked_fill_(value.abs() < 1e8 * torch.finfo(value.dtype).tiny, 0.0)


def pack(optim: Optimizer, names: Mapping[int, str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state by `parameter/slot`: tensors, and numbers. A slot that is a list of
    tensors is stored as `slot.0`, `slot.1`, ..., with its length in brackets as its number."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for param, slots in optim.state.items():
        for slot, value in slots.items():
            path = f"{names[id(param)]}/{slot}"
            if isinstance(value, Tensor):
                tensors[path] = value
            elif isinstance(value, list) and slot != LBFGS_SCRATCH_SLOT:
                tensors |= {f"{path}.{place}": each for place, each in enumerate(value)}
                numbers[path] = [len(value)]
            elif isinstance(value, int | float):
                numbers[path] = value
    return tensors, numbers


def unpack(
    optim: Optimizer,
    params: Mapping[str, nn.Parameter],
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
) -> None:
    """Load the state that `pack` returned."""
    lists = {
        path: [f"{path}.{place}" for place in range(count[0])]
        for path, count in numbers.items()
        if isinstance(count, list)
    }
    inside = {name for members in lists.values() for name in members}
    values: Iterator[tuple[str, Any]] = iter(
        [
            *((path, value.clone()) for path, value in tensors.items() if path not in inside),
            *(
                (path, [tensors[name].clone() for name in members])
                for path, members in lists.items()
            ),
            *((path, value) for path, value in numbers.items() if path not in lists),
        ]
    )
    for path, value in values:
        name, _, slot = path.rpartition("/")
        optim.state[params[name]][slot] = value


def check_slots(optim: Optimizer, settings: OptimiserConfig) -> None:
    """Raise ValueError unless each parameter's state has the slots that a step of an optimiser
    with these settings creates."""
    if isinstance(optim, LBFGS):  # its slots depend on how its line searches went
        return
    param = nn.Parameter(torch.zeros(1))
    param.grad = torch.ones(1)
    example = make_optimiser(settings, [param])
    take_step(example)
    for slots in optim.state.values():
        check_same_names("optimiser slots", slots, example.state[param])
