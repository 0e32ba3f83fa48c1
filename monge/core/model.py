"""The model contract: a distribution p(x | given) with its networks, loss and sampler.

A model is built by `config.build(space)` and does not change but for its weights. Optimisers,
files and output belong to other packages.
"""

from __future__ import annotations

import abc
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from .batch import Batch
from .config import Config as BaseConfig
from .config import Configured
from .limits import exceeded
from .space import Space
from .train_config import TrainConfig

Losses = dict[str, Tensor]
"""Named terms, each (B,) or (); the mean of their sum is minimised."""


@dataclass(frozen=True)
class Update:
    """One optimiser update: which loss moves which parameters, `repeat` times per step, each time
    on a new batch.

    Without params the update is closed-form (EM, counting, clipping): `loss` changes the model's
    state and its values are only logged.

    Examples
    --------
    >>> import torch
    >>> from monge import Update
    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> Update("only", lambda batch: {"nll": w.sum()}, [w]).repeat
    1
    """

    name: str
    loss: Callable[[Batch], Losses]
    params: Sequence[nn.Parameter] = ()
    repeat: int = 1
    every: int = 1
    until: int | None = None  # the step from which on it is not applied any more
    whole: bool = False  # uses the whole training split (counting, EM, least squares)
    batches: int = 1  # batches it takes at once, one after the other, each in an order of its own
    rows: Callable[[Tensor, int], Tensor] | None = None  # maps batch indices of n rows (bagging)


Optimiser = TypeVar("Optimiser", bound=torch.optim.Optimizer)


def new_optimiser(kind: Callable[..., Optimiser], *args: Any, **options: Any) -> Optimiser:
    """An optimiser, made without importing torch's compiler, which takes longer than many fits.

    Torch imports it when parameters are first added to an optimiser, to mark that method as not to
    be compiled, unless the mark is there.
    """
    method = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    if "torch._dynamo" in sys.modules or "__dynamo_disable" in vars(method):
        return kind(*args, **options)
    vars(method)["__dynamo_disable"] = method
    try:
        return kind(*args, **options)
    finally:
        del vars(method)["__dynamo_disable"]


@functools.cache
def plain_step(kind: Any) -> Callable[[Any], None]:
    """The step of a class of optimisers without what torch's compiler and profiler put around
    it."""
    return torch.no_grad()(inspect.unwrap(kind.step))


def take_step(optimiser: torch.optim.Optimizer) -> None:
    """One step along the gradients that the parameters have."""
    kind: Any = type(optimiser)
    plain_step(kind)(optimiser)


@dataclass(frozen=True)
class Defaults:
    """Default model and training settings for some data.

    `data` are overrides of data.* that concern training batches only, such as
    "augment=shift2,rotate10" or "balance=true"; those of the user take precedence.

    Examples
    --------
    >>> from monge import Space, registry
    >>> made = registry.find("made")
    >>> made.defaults(Space(kind="real", shape=(4,), rows=100)).train.lr > 0
    True
    """

    config: BaseConfig
    train: TrainConfig
    data: tuple[str, ...] = ()


class Model(Configured, nn.Module, abc.ABC):
    """A distribution p(x | given). Batch and Space are trees through `given`.

    A subclass states its loss and inherits what it can do from the abilities; `monge fit mine.py
    DATA` fits the one in a file.

    Examples
    --------
    >>> import monge
    >>> model = monge.fit("gaussian", "iris", progress=False).model
    >>> isinstance(model, monge.Model), model.space.shape
    (True, (4,))
    """

    events: ClassVar[set[str]] = set()
    """Kinds of event it supports: a literal, since the registry reads it without importing."""
    givens: ClassVar[set[str]] = set()
    """Kinds of condition it supports; empty means none."""
    supports_missing: ClassVar[bool] = False
    """Whether missing values are marginalised; otherwise such data are rejected."""
    supports_variable_length: ClassVar[bool] = False
    """Whether rows may differ in length; otherwise such data are rejected."""
    supports_flags: ClassVar[bool] = False
    """Whether steps of real numbers may hold channels of 0 and 1; otherwise such data are
    rejected, as a density of such a channel has no bound."""
    is_predictor: ClassVar[bool] = False
    """Whether it models the target column given the others."""
    needs_given: ClassVar[bool] = False
    """Whether data without conditions are rejected."""
    max_codes: ClassVar[int] = 0
    """Most codes of all entries together, numbers in as many bins as the data ask for; 0 for no
    limit."""
    max_label_combinations: ClassVar[int] = 0
    """Most combinations of labels among the conditions; 0 for no limit."""
    uses_unlabelled: ClassVar[bool] = False
    """Whether it learns from training rows without a value of the target or of the label among
    its conditions too, in which `observed` is false; for others such rows are left out."""
    is_unpaired: ClassVar[bool] = False
    """Whether events and conditions are unpaired rows of two datasets, so that only the marginal
    distribution of events can be compared with data."""
    family_priority: ClassVar[int] = 0
    """Rank within its family: `compare --one` takes the highest that supports the data."""
    supports_vmap: ClassVar[bool] = False
    """Whether the losses of several such models can be one batched pass: a single update that
    neither branches on values nor changes a buffer."""

    loss_per_step: ClassVar[bool] = False
    """Whether the loss is of a step of a sequence rather than of a row."""

    presets: ClassVar[Mapping[str, str]] = {}
    """Named configurations, such as a paper's, with a one-line description each."""
    optimal_values: ClassVar[Mapping[str, float]] = {}
    """Values of logged curves ("update/term") at the optimum, plotted beside them."""

    class Config(BaseConfig):
        """Settings of the model."""

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
        """The loss terms to minimise; noise comes from torch's global generator."""

    def updates(self) -> Sequence[Update]:
        """The losses that a step minimises in order, each with the parameters that it moves; by
        default one update of all."""
        return [Update("model", self.loss, [p for p in self.parameters() if p.requires_grad])]

    def initialise_from_data(self, batch: Batch) -> None:
        """Data-dependent initialisation, before step 0: scales, codebooks, cluster centres."""

    def count_rows(self, batches: Iterable[Batch]) -> None:
        """Statistics of all training rows, after the initialisation and before step 0. The rows
        come in chunks, which are read anew by each pass over them; by default none is read."""

    @property
    def evals_per_score(self) -> int:
        """Approximate number of network evaluations per log-likelihood of a row."""
        return 1

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        """Why this data is not supported, beyond `events` and `givens`; None if it is. By default
        the limits that the class declares; a model whose rule is more than these extends it."""
        return exceeded(cls.Config.tag.removeprefix("model/"), cls, space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Model and training settings that work well on data of this kind and size."""
        return Defaults(cls.Config(), TrainConfig())

    @classmethod
    def defaults_with(cls, space: Space, chosen: Mapping[str, str]) -> Defaults:
        """`defaults` where some settings are chosen, by name (`{"constraint": "clipping"}`): for
        models in which a choice needs other settings or another training config."""
        return cls.defaults(space)

    @classmethod
    def preset(cls, name: str, space: Space) -> Any:
        """The configuration of one of `presets` for this data (preset=NAME)."""
        return cls.defaults(space).config

    @classmethod
    @abc.abstractmethod
    def smallest_config(cls, space: Space) -> Any:
        """The smallest useful configuration, used by tests."""


def device_of(model: Any) -> torch.device:
    """The device of a model."""
    return next((t.device for t in [*model.buffers(), *model.parameters()]), torch.device("cpu"))


_exporting: ContextVar[bool] = ContextVar("exporting", default=False)


def is_exporting() -> bool:
    """Whether a function is being exported: what it computes may then depend on the values of its
    inputs only through operators, so that checks of them are left out."""
    return _exporting.get()


@contextmanager
def exporting() -> Iterator[None]:
    before = _exporting.set(True)
    try:
        yield
    finally:
        _exporting.reset(before)
