"""How to train, as plain values: a model's `suit` proposes, the user's `train.*` words decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from .config import Config, Range


class OptimiserConfig(Config):
    """How the parameters of one turn are moved."""

    tag = "train/optimiser"
    optimiser: Literal["adam", "adamw", "sgd", "rmsprop", "adagrad", "lbfgs"] = "adam"
    """Rule that turns gradients into steps; lbfgs reads all rows at each and finds its length."""
    lr: Annotated[float, Range(0, open=True)] = 1e-3
    """Learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam: decay of the first and second moment; RMSProp takes the second as its decay."""
    momentum: Annotated[float, Range(0, 1)] = 0.0
    """SGD and RMSProp: momentum."""
    nesterov: bool = False
    """SGD: look ahead along the momentum."""
    weight_decay: Annotated[float, Range(0)] = 0.0
    """Weight decay: decoupled for adamw, w <- (1 - rate decay) w beside its step; for the others
    the L2 penalty decay / 2 |w|^2, which is the same for plain sgd and no other."""
    l1: Annotated[float, Range(0)] = 0.0
    """L1 penalty of weights, not of biases: each step is followed by the soft threshold
    rate lasso, so that what is not needed becomes exactly 0."""
    weight_noise: Annotated[float, Range(0)] = 0.0
    """Standard deviation of noise on the weights while gradients are computed."""
    grad_clip: Annotated[float, Range(0)] = 0.0
    """Largest norm of the gradient, which is logged as it was before; 0 leaves it as it is."""


class TrainConfig(OptimiserConfig):
    """The whole of training but its budget."""

    tag = "train/settings"
    batch_size: Annotated[int, Range(1)] = 128
    """Rows a step; fewer rows than this are taken whole."""
    bucket_by_length: bool = False
    """Whether the rows of a batch are of like length, so that little of it is padding; which rows
    they are, and the order of batches, is drawn anew in each epoch."""
    schedule: Literal["constant", "cosine", "linear", "inverse"] = "constant"
    """Rate after the warm-up: constant, down to zero along a cosine or a line over `horizon`
    steps, or the inverse square root of the step."""
    warmup: Annotated[int, Range(0)] = 100
    """Steps over which the rate rises from zero."""
    schedule_steps: Annotated[int, Range(0)] = 0
    """Length of cosine or line in steps; 0 takes the budget's, then in steps or epochs."""
    ema_decay: Annotated[float, Range(0, 1)] = 0.0
    """Decay of the moving average of the weights that is scored and kept; 0 for none."""
    eval_every: Annotated[int, Range(0)] = 0
    """Steps between held-out scores; 0 means once an epoch, but no sooner than 50 steps."""
    patience: Annotated[int, Range(0)] = 20
    """Held-out scores without a new best before training stops; 0 never stops early."""
    refit: Literal["none", "same", "continue"] = "none"
    """Once patience has ended the fit at its best step, train on all rows but the test's: new
    weights for as many steps, or the best weights on until they fit the held-out rows too."""
    input_noise: Annotated[float, Range(0)] = 0.0
    """Noise on the real inputs a model is given, in their standard deviations."""
    freeze: tuple[str, ...] = ()
    """Beginnings of names of parameters that stay as they are: a part of the model, such as
    trunk."""
    lr_multipliers: Mapping[str, Annotated[float, Range(0, open=True)]] = field(
        default_factory=dict
    )
    """Factors of the rate by the beginning of a parameter's name: train.lr_multipliers.trunk=0.1."""
    max_steps: Annotated[int, Range(0)] = 0
    """Steps after which the fit is complete, whatever the budget; 0 for no such end."""
    updates: Mapping[str, OptimiserConfig] = field(default_factory=dict)
    """Settings of single turns, by the turn's name, where they differ."""

    def mover(self, turn: str) -> OptimiserConfig:
        """The settings that move the parameters of this turn."""
        return self.updates.get(turn, self)
