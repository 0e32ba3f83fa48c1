"""Who plays in the game of training, once the recipe has had its say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from ..core.error import WordError, nearest
from ..core.model import Model, Turn
from ..core.recipe import Recipe
from .disturb import reals
from .naming import freeze


def players(model: Model, recipe: Recipe) -> tuple[list[Turn], list[nn.Module]]:
    """The model's turns without what is frozen, and the modules that are; L-BFGS plays on the
    whole training split."""
    turns, still = list(model.turns()), freeze(model, recipe.freeze)
    known = [turn.name for turn in turns]
    for name in recipe.turns:
        if name not in known:
            raise WordError(f"train.turns.{name}: the model has no such turn"
                            f"{nearest(name, known)}")
    if recipe.noise and not any(reals(part) is not None for part in model.space.given.values()):
        raise WordError(f"train.noise={recipe.noise} disturbs real inputs, and this model is "
                        "given none; noise on the event would change its law")
    if recipe.refit != "none" and not recipe.patience:
        raise WordError(f"train.refit={recipe.refit} follows a fit that patience has ended, and "
                        "train.patience=0 never ends one; give it some")
    left = []
    for turn in turns:
        free = [param for param in turn.params if param.requires_grad]
        if free or not turn.params:
            line = bool(free) and recipe.mover(turn.name).optimiser == "lbfgs"
            left.append(replace(turn, params=free, whole=turn.whole or line))
    if not left:
        raise WordError(f"train.freeze={','.join(recipe.freeze)} leaves nothing to train; freeze "
                        "less")
    return left, still


def epoch_steps(rows: int, size: int, turns: Sequence[Turn]) -> int:
    """Steps that read all rows once, `size` at each; those that take them whole need one."""
    return 1 if all(turn.whole for turn in turns) else max(rows // size, 1)
