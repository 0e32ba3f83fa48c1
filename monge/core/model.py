"""The contract: a model is a law p(x | given) that says how it is trained and knows nothing else.

It owns its networks, its loss and its sampler, is built by `config.build(space)`, and is
immutable but for its weights. Optimisers, files and screens are other people's business.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from .batch import Batch
from .config import Config as BaseConfig
from .config import Configured
from .space import Space
from .train_config import TrainConfig

Losses = dict[str, Tensor]
"""Named terms, each (B,) or (); the mean of their sum is minimised."""


@dataclass(frozen=True)
class Update:
    """One move of the training game: lower `loss` by moving `params`, `repeat` times a step, each
    time on a fresh batch.

    Without params the move is closed-form (EM, counting, clipping): `loss` edits the model's own
    state and its values are only logged.
    """

    name: str
    loss: Callable[[Batch], Losses]
    params: Sequence[nn.Parameter] = ()
    repeat: int = 1
    every: int = 1
    whole: bool = False  # wants the whole training split (counting, EM, least squares)
    batches: int = 1  # fresh batches it takes at once, one after the other in one Batch
    rows: Callable[[Tensor, int], Tensor] | None = None  # those of n that stand for the drawn ones


@dataclass(frozen=True)
class Defaults:
    """A configuration and a recipe chosen for some data.

    `data` are words of data.* that concern training batches alone, such as
    "augment=shift2,rotate10" or "balance=true"; what the user says of the same name wins.
    """

    config: BaseConfig
    recipe: TrainConfig
    data: tuple[str, ...] = ()


class Model(Configured, nn.Module, abc.ABC):
    """A law p(x | given). Batch and Space are trees through `given`."""

    events: ClassVar[set[str]] = set()
    """Kinds of event it takes: a literal, since the registry reads it without importing."""
    givens: ClassVar[set[str]] = set()
    """Kinds of condition it takes; empty means none."""
    supports_missing: ClassVar[bool] = False
    """Whether a value that was not seen is marginalised; otherwise such data are refused."""
    supports_variable_length: ClassVar[bool] = False
    """Whether event and conditions may have a length in each row; otherwise they are refused."""
    is_predictor: ClassVar[bool] = False
    """Whether its event is what the data call their target, given the rest."""
    is_unpaired: ClassVar[bool] = False
    """Whether events and conditions are rows of two data sets that nobody paired, so that only
    the law of events alone can be compared with data."""
    family_priority: ClassVar[int] = 0
    """Which of its family stands for it where one of each is compared: the highest that takes the
    data."""
    supports_vmap: ClassVar[bool] = False
    """Whether the losses of several such models can be one batched pass: one turn, which neither
    branches on values nor changes a buffer."""

    presets: ClassVar[Mapping[str, str]] = {}
    """Configurations that have a name, such as a paper's, with a line about each."""
    optimal_values: ClassVar[Mapping[str, float]] = {}
    """Where curves of the log ("turn/term") would end at the optimum; drawn beside them."""

    class Config(BaseConfig):
        """What defines the model besides its data."""

        tag = "model/"

    config: BaseConfig

    def __init__(
        self, config: BaseConfig, space: Space, parts: Mapping[str, Model] | None = None
    ) -> None:
        super().__init__()
        self.config, self.space = config, space
        self.parts = nn.ModuleDict(dict(parts or {}))

    @abc.abstractmethod
    def loss(self, batch: Batch) -> Losses:
        """What training lowers; noise comes from torch's global generator."""

    def updates(self) -> Sequence[Update]:
        return [Update("model", self.loss, [p for p in self.parameters() if p.requires_grad])]

    def initialise_from_data(self, batch: Batch) -> None:
        """Called once before step 0 with training rows: scales, codebooks, first centres."""

    @property
    def evals_per_score(self) -> int:
        """How many times, about, the score of a row asks a network."""
        return 1

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        """None, or one sentence why this data does not fit, beyond what `events` says."""
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Configuration and recipe that do well on data of this kind and size."""
        return Defaults(cls.Config(), TrainConfig())

    @classmethod
    def preset(cls, name: str, space: Space) -> Any:
        """The configuration of one of `presets` for these data: the word preset=NAME."""
        return cls.defaults(space).config

    @classmethod
    @abc.abstractmethod
    def smallest_config(cls, space: Space) -> Any:
        """The smallest honest configuration; what the contract test builds."""
