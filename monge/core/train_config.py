"""Training settings: a model's `defaults` proposes them, `train.*` overrides change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from .config import MAX_LAYERS, Config, Range
from .errors import UsageError


class OptimiserConfig(Config):
    """Settings of the optimiser of one update.

    Examples
    --------
    >>> import monge
    >>> monge.OptimiserConfig(optimiser="sgd", lr=0.1).lr
    0.1
    """

    tag = "train/optimiser"
    aliases = {
        "rate": "lr",
        "learning_rate": "lr",
        "step_size": "lr",
        "decay": "weight_decay",
        "wd": "weight_decay",
        "l2": "weight_decay",
        "lasso": "l1",
        "clip": "grad_clip",
        "clip_norm": "grad_clip",
        "max_grad_norm": "grad_clip",
        "opt": "optimiser",
        "optimizer": "optimiser",
    }
    optimiser: Literal["adam", "adamw", "sgd", "rmsprop", "adagrad", "lbfgs"] = "adam"
    """Optimiser; lbfgs uses all training rows at each step and a line search."""
    lr: Annotated[float, Range(0, open=True)] = 1e-3
    """Learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam: decay of the first and second moment; RMSProp takes the second as its decay."""
    momentum: Annotated[float, Range(0, 1)] = 0.0
    """SGD and RMSProp: momentum."""
    nesterov: bool = False
    """SGD: Nesterov momentum."""
    weight_decay: Annotated[float, Range(0)] = 0.0
    """Weight decay: decoupled for adamw, w <- (1 - lr * weight_decay) w; for the others the L2
    penalty weight_decay / 2 |w|^2, which is equivalent only for plain sgd."""
    l1: Annotated[float, Range(0)] = 0.0
    """L1 penalty of weights, not of biases: each step is followed by soft thresholding at lr * l1,
    which makes weights exactly 0."""
    weight_noise: Annotated[float, Range(0)] = 0.0
    """Standard deviation of Gaussian noise added to the weights while gradients are computed."""
    grad_clip: Annotated[float, Range(0)] = 0.0
    """Largest norm of the gradient; the norm before clipping is logged; 0 for no clipping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(
                f"expected train.betas of at least 0 and below 1, found "
                f"{','.join(f'{beta:g}' for beta in self.betas)}; write train.betas=0.9,0.999"
            )


class TrainConfig(OptimiserConfig):
    """All training settings but the budget.

    Examples
    --------
    >>> import monge
    >>> monge.TrainConfig(batch_size=32, patience=5).batch_size
    32
    """

    tag = "train/settings"
    aliases = OptimiserConfig.aliases | {
        "rates": "lr_multipliers",
        "batch": "batch_size",
        "bs": "batch_size",
        "accumulation": "accumulate",
        "accumulate_grad_batches": "accumulate",
        "gradient_accumulation_steps": "accumulate",
        "scheduler": "schedule",
        "lr_schedule": "schedule",
        "average": "ema_decay",
        "ema": "ema_decay",
        "check": "eval_every",
        "eval_interval": "eval_every",
        "early_stopping": "patience",
        "steps": "max_steps",
        "frozen": "freeze",
        "noise": "input_noise",
    }
    batch_size: Annotated[int, Range(1)] = 128
    """Rows per step; at most the number of training rows. The last batch of an epoch has the rows
    that are left, or joins the one before it if they are fewer than two a piece."""
    shards: Annotated[int, Range(1, MAX_LAYERS)] = 1
    """Pieces that a batch is cut into, each with its own noise and batch statistics; as many
    processes as divide them train together (--workers). By default the number of processes."""
    accumulate: Annotated[int, Range(1, MAX_LAYERS)] = 1
    """Pieces that each shard is cut into in turn, one after the other, which need less memory; the
    gradient is the mean over all rows of the batch."""
    bucket_by_length: bool = False
    """Whether batches hold rows of similar length, which reduces padding; rows and batches are
    shuffled in each epoch."""
    schedule: Literal["constant", "cosine", "linear", "inverse"] = "constant"
    """Learning rate after the warm-up: constant, decaying to zero by a cosine or linearly over
    `schedule_steps`, or the inverse square root of the step."""
    warmup: Annotated[int, Range(0)] = 100
    """Steps over which the learning rate rises linearly from zero."""
    schedule_steps: Annotated[int, Range(0)] = 0
    """Length of the cosine or linear schedule in steps; 0 takes max_steps, or else the first
    budget, which must then be in steps or epochs."""
    ema_decay: Annotated[float, Range(0, 1)] = 0.0
    """Decay of the exponential moving average of the weights, which is evaluated and saved as the
    best checkpoint; 0 for none."""
    eval_every: Annotated[int, Range(0)] = 0
    """Steps between held-out evaluations; 0 means once per epoch, but every 50 to 1000 steps."""
    patience: Annotated[int, Range(0)] = 20
    """Held-out evaluations without a new best before training stops; 0 for no early stopping."""
    patience_on: Literal["held_out", "critic"] = "held_out"
    """What patience counts: evaluations without a better held-out metric, or, of adversarial
    models, without a lower distance of held-out rows and samples by their own critic."""
    refit: Literal["none", "same", "continue"] = "none"
    """After early stopping, train on all rows but the test split: same: new weights for as many
    steps as the best had; continue: the best weights until they fit the held-out rows as well."""
    input_noise: Annotated[float, Range(0)] = 0.0
    """Noise on real-valued conditions, in their standard deviations."""
    freeze: tuple[str, ...] = ()
    """Prefixes of the names of parameters that are not trained, such as trunk."""
    lr_multipliers: Mapping[str, Annotated[float, Range(0, open=True)]] = field(
        default_factory=dict
    )
    """Learning-rate factors by prefix of the parameter name: train.lr_multipliers.trunk=0.1."""
    max_steps: Annotated[int, Range(0)] = 0
    """Steps after which training is complete, whatever the budget; 0 for no limit."""
    updates: Mapping[str, OptimiserConfig] = field(default_factory=dict)
    """Optimiser settings of single updates by name: train.updates.critic.lr=2e-4."""

    @property
    def pieces(self) -> int:
        """Pieces that the batch of an update with parameters is cut into."""
        return self.shards * self.accumulate

    def optimiser_config(self, update: str) -> OptimiserConfig:
        """The optimiser settings of the update of this name."""
        return self.updates.get(update, self)
