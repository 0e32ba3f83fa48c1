"""How to train, as plain values: a model's `suit` proposes, the user's `train.*` words decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from .config import Config, Range


class Mover(Config):
    """How the parameters of one turn are moved."""

    optimiser: Literal["adam", "adamw", "sgd", "rmsprop", "adagrad"] = "adam"
    """Rule that turns gradients into steps."""
    rate: Annotated[float, Range(0, open=True)] = 1e-3
    """Learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam: decay of the first and second moment; RMSProp takes the second as its decay."""
    momentum: Annotated[float, Range(0, 1)] = 0.0
    """SGD and RMSProp: momentum."""
    nesterov: bool = False
    """SGD: look ahead along the momentum."""
    decay: Annotated[float, Range(0)] = 0.0
    """Weight decay: decoupled for adamw, an L2 penalty for the others."""
    clip: Annotated[float, Range(0)] = 0.0
    """Largest norm of the gradient; 0 leaves it as it is."""


class Recipe(Mover):
    """The whole of training but its budget."""

    batch: Annotated[int, Range(1)] = 128
    """Rows a step; fewer rows than this are taken whole."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Rate after the warm-up: constant, or down to zero along a cosine over `horizon` steps."""
    warmup: Annotated[int, Range(0)] = 100
    """Steps over which the rate rises from zero."""
    horizon: Annotated[int, Range(0)] = 0
    """Length of the cosine in steps; 0 takes the budget's, which is then in steps or epochs."""
    average: Annotated[float, Range(0, 1)] = 0.0
    """Decay of the moving average of the weights that is scored and kept; 0 for none."""
    check: Annotated[int, Range(0)] = 0
    """Steps between held-out scores; 0 means once an epoch, but no sooner than 50 steps."""
    patience: Annotated[int, Range(0)] = 20
    """Held-out scores without a new best before training stops; 0 never stops early."""
    steps: Annotated[int, Range(0)] = 0
    """Steps after which the fit is complete, whatever the budget; 0 for no such end."""
    turns: Mapping[str, Mover] = field(default_factory=dict)
    """Settings of single turns, by the turn's name, where they differ."""

    def mover(self, turn: str) -> Mover:
        """The settings that move the parameters of this turn."""
        return self.turns.get(turn, self)
