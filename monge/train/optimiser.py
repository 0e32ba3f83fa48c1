"""The rate as a function of the step alone, so that a resumed fit needs no state for it.

    constant  1
    cosine    (1 + cos(pi step / horizon)) / 2
    linear    1 - step / horizon
    inverse   sqrt(warmup / step) once the warm-up is over (Vaswani et al. 2017)

each times a linear warm-up.

torch's optimisers in their fused forms, each with its memory as named tensors and numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ..core.errors import UsageError
from ..core.train_config import OptimiserConfig, TrainConfig
from .ema import same_names


def lr_factor(recipe: TrainConfig, step: int, horizon: float) -> float:
    """What multiplies the rate at this step."""
    rise = min(1.0, (step + 1) / recipe.warmup) if recipe.warmup else 1.0
    if recipe.schedule == "constant":
        return rise
    if recipe.schedule == "inverse":
        return rise * min(1.0, math.sqrt(max(recipe.warmup, 1) / (step + 1)))
    done = min(step / horizon, 1.0)
    return rise * (1 - done if recipe.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


def schedule_length(recipe: TrainConfig, steps: float) -> float:
    """Steps over which the schedule runs, given the steps of the budget."""
    length = recipe.schedule_steps or steps
    if recipe.schedule in ("cosine", "linear") and not math.isfinite(length):
        raise UsageError(
            f"train.schedule={recipe.schedule} needs its length: give the budget in "
            "steps or epochs, or add train.schedule_steps=5000"
        )
    return length


LOOKS = 25
"""Points at which a line search of L-BFGS may look."""
SCRATCH = "al"
"""What L-BFGS keeps between calls only to spare itself an allocation."""


def optimiser(
    mover: OptimiserConfig,
    params: Sequence[nn.Parameter],
    factors: Mapping[int, float] | None = None,
) -> Optimizer:
    """The optimiser a mover describes, its rate times `factors` (by id of the parameter); fused
    where torch has it, since its loop is 3 to 6 times slower on a CPU."""
    if mover.optimiser == "lbfgs":
        return lbfgs(mover, params, bool(factors))
    groups = grouped(params, factors or {})
    optim, rate, decay = torch.optim, mover.lr, mover.weight_decay
    if mover.optimiser == "adam":
        return optim.Adam(groups, rate, mover.betas, weight_decay=decay, fused=True)
    if mover.optimiser == "adamw":
        return optim.AdamW(groups, rate, mover.betas, weight_decay=decay, fused=True)
    if mover.optimiser == "sgd":
        if mover.nesterov and not mover.momentum:
            raise UsageError("nesterov=true needs a momentum; add train.momentum=0.9")
        return optim.SGD(
            groups, rate, mover.momentum, weight_decay=decay, nesterov=mover.nesterov, fused=True
        )
    if mover.optimiser == "adagrad":
        return optim.Adagrad(groups, rate, weight_decay=decay, fused=True)
    return optim.RMSprop(
        groups, rate, mover.betas[1], weight_decay=decay, momentum=mover.momentum, foreach=True
    )


def grouped(params: Sequence[nn.Parameter], factors: Mapping[int, float]) -> list[dict[str, Any]]:
    """Parameters of one factor together; `factor` is what multiplies their rate."""
    groups: dict[float, list[nn.Parameter]] = {}
    for param in params:
        groups.setdefault(factors.get(id(param), 1.0), []).append(param)
    return [{"params": members, "factor": factor} for factor, members in groups.items()]


def lbfgs(mover: OptimiserConfig, params: Sequence[nn.Parameter], factors: bool) -> LBFGS:
    """One iteration a step: ten pairs of differences, a line search to the strong Wolfe conditions
    (Liu & Nocedal 1989), no rate."""
    refused = {
        "train.grad_clip": mover.grad_clip,
        "train.l1": mover.l1,
        "train.lr_multipliers": factors,
    }
    for word, value in refused.items():
        if value:
            raise UsageError(
                f"train.optimiser=lbfgs finds the length of its steps itself, so "
                f"{word} means nothing to it; leave it out or take adam"
            )
    return LBFGS(
        params, 1.0, max_iter=1, max_eval=LOOKS, history_size=10, line_search_fn="strong_wolfe"
    )


def iterate(mover: LBFGS, look: Callable[[], Tensor]) -> None:
    """One iteration of L-BFGS. It has settled where the one before gained no more than rounding,
    or no step was worth a second look; that it has is part of its memory."""
    first = mover.param_groups[0]["params"][0]
    memory, looks = mover.state[first], 0
    before = memory.get("prev_loss", torch.inf)

    def counted() -> Tensor:
        nonlocal looks
        looks += 1
        return look()

    now = float(mover.step(counted))
    gained = abs(before - now) > torch.finfo(first.dtype).eps * abs(now)
    memory["settled"] = int(looks == 1 or not gained)


def is_settled(mover: Optimizer | None) -> bool:
    """Whether another step would change nothing; only L-BFGS can tell."""
    return isinstance(mover, LBFGS) and any(slots.get("settled") for slots in mover.state.values())


@torch.no_grad()
def flush_denormals(mover: Optimizer) -> None:
    """Make 0 of moments too small to matter. Those of parameters whose gradients have ceased decay
    to denormal numbers and stay there, and arithmetic with few of them makes Adam's step twice as
    dear."""
    for param, slots in mover.state.items():
        for value in slots.values():
            if isinstance(value, Tensor) and value.shape == param.shape:
                value.masked_fill_(value.abs() < 1e8 * torch.finfo(value.dtype).tiny, 0.0)


Numbers = dict[str, Any]


def pack(mover: Optimizer, names: Mapping[int, str]) -> tuple[dict[str, Tensor], Numbers]:
    """An optimiser's memory as `parameter/slot`: tensors, and what is a number or, where a slot is
    a list of tensors `slot.0`, `slot.1`, ..., its length in brackets."""
    tensors: dict[str, Tensor] = {}
    numbers: Numbers = {}
    for param, slots in mover.state.items():
        for slot, value in slots.items():
            path = f"{names[id(param)]}/{slot}"
            if isinstance(value, Tensor):
                tensors[path] = value
            elif isinstance(value, list) and slot != SCRATCH:
                tensors |= {f"{path}.{place}": each for place, each in enumerate(value)}
                numbers[path] = [len(value)]
            elif isinstance(value, int | float):
                numbers[path] = value
    return tensors, numbers


def unpack(
    mover: Optimizer,
    params: Mapping[str, nn.Parameter],
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
) -> None:
    """Give an optimiser the memory that `pack` took."""
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
        mover.state[params[name]][slot] = value


def check_slots(mover: Optimizer, settings: OptimiserConfig) -> None:
    """Refuse a memory that is not one of these settings: each parameter with a memory has what a
    step of such an optimiser leaves behind."""
    if isinstance(mover, LBFGS):  # what its memory holds depends on how its search went
        return
    param = nn.Parameter(torch.zeros(1))
    param.grad = torch.ones(1)
    small = optimiser(settings, [param])
    small.step()
    for slots in mover.state.values():
        same_names("slots of the optimiser", slots, small.state[param])
