"""Parameters by the beginning of their names: `trunk` is every parameter inside model.trunk.

Who plays in the game of training, once the recipe has had its say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import nn

from ..core.errors import UsageError, nearest
from ..core.model import Model, Update
from ..core.train_config import TrainConfig
from .regularisation import reals


def within(name: str, head: str) -> bool:
    return name == head or name.startswith(f"{head}.")


def param_prefixes(names: Iterable[str]) -> Iterator[str]:
    """Every beginning of the names that ends where a dot stands, and the names."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:size]) for size in range(1, len(parts) + 1))


def check(heads: Iterable[str], model: Model, word: str) -> None:
    """Refuse what begins no parameter's name."""
    names = [name for name, _ in model.named_parameters()]
    for head in heads:
        if not any(within(name, head) for name in names):
            known = dict.fromkeys(param_prefixes(names))
            close = nearest(head, known)
            if "did you mean" not in close:
                close = nearest(head, dict.fromkeys(name.split(".")[0] for name in names))
            raise UsageError(f"{word}: no parameter's name begins with {head!r}{close}")


def freeze(model: Model, heads: tuple[str, ...]) -> list[nn.Module]:
    """Hold the parameters under `heads` still; the modules that are still as a whole, and so are
    used as they would be after training: without dropout, with the statistics they have."""
    check(heads, model, "train.freeze")
    for name, param in model.named_parameters():
        if any(within(name, head) for head in heads):
            param.requires_grad_(False)
    return [model.parts, *(module for name, module in model.named_modules() if name in heads)]


def lr_factors(model: Model, rates: Mapping[str, float]) -> dict[int, float]:
    """What multiplies the rate of each parameter (by its id) that the longest of the beginnings
    fits."""
    check(rates, model, "train.lr_multipliers")
    found = {}
    for name, param in model.named_parameters():
        fitting = [head for head in rates if within(name, head)]
        if fitting:
            found[id(param)] = rates[max(fitting, key=len)]
    return found


def trainable_updates(model: Model, recipe: TrainConfig) -> tuple[list[Update], list[nn.Module]]:
    """The model's turns without what is frozen, and the modules that are; L-BFGS plays on the
    whole training split."""
    turns, still = list(model.updates()), freeze(model, recipe.freeze)
    known = [turn.name for turn in turns]
    for name in recipe.updates:
        if name not in known:
            raise UsageError(
                f"train.updates.{name}: the model has no such turn{nearest(name, known)}"
            )
    if recipe.input_noise and not any(
        reals(part) is not None for part in model.space.given.values()
    ):
        raise UsageError(
            f"train.input_noise={recipe.input_noise} disturbs real inputs, and this model is "
            "given none; noise on the event would change its law"
        )
    if recipe.refit != "none" and not recipe.patience:
        raise UsageError(
            f"train.refit={recipe.refit} follows a fit that patience has ended, and "
            "train.patience=0 never ends one; give it some"
        )
    left = []
    for turn in turns:
        free = [param for param in turn.params if param.requires_grad]
        if free or not turn.params:
            line = bool(free) and recipe.mover(turn.name).optimiser == "lbfgs"
            left.append(replace(turn, params=free, whole=turn.whole or line))
    if not left:
        raise UsageError(
            f"train.freeze={','.join(recipe.freeze)} leaves nothing to train; freeze less"
        )
    return left, still


def epoch_steps(rows: int, size: int, updates: Sequence[Update]) -> int:
    """Steps that read all rows once, `size` at each; those that take them whole need one."""
    return 1 if all(turn.whole for turn in updates) else max(rows // size, 1)
