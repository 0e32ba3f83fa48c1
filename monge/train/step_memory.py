"""The peak memory of a training step, from the shapes of its tensors alone.

The losses run on fake tensors, which have shapes but no values, so that nothing is computed. Some
losses read values nevertheless: lengths, masks, orders, codes of conditions. Small tensors that
depend on neither the data nor the weights are therefore also computed, and a loss that reads other
values gets assumed ones (see `KnownValues`). Models are built the same way to find, before they
are, whether they fit in memory.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from ..core.batch import Batch
from ..core.config import Config, title_of
from ..core.errors import MongeError, UsageError
from ..core.model import Model, Update
from ..core.space import Space
from ..core.train_config import OptimiserConfig, TrainConfig
from .batch_sampler import RowSource
from .optimiser import LBFGS_HISTORY

aten = torch.ops.aten
Answer = TypeVar("Answer")
MAX_KNOWN_ELEMENTS = 1 << 16
"""Largest tensor whose values are computed while a loss is traced."""
LSTM_WORKSPACE = 16
"""Numbers per output in the workspace that oneDNN saves for the gradients of an LSTM, as measured
from 16 to 512 units."""
MAX_ASSUMED_VALUES = 2_000
"""Values that a loss may read by assumption: a loop that waits for a value would never end."""
MAX_OPERATIONS = 10_000
"""Operations that are traced, about a second of them; the peak up to there is then a lower
bound."""


class LongTraceError(Exception):
    """A step has more operations than are traced."""


UNTRACEABLE = (
    LongTraceError,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""What is raised for an operation that needs values or has no rule for shapes, or for too many."""
MISLED = (MongeError, ArithmeticError, ValueError)
"""What a loss raises that refuses values or divides by them; after an assumed value it says
nothing about the loss, which raises it again in the step itself if real values are so. Any other
error is one of the loss."""


@dataclass(frozen=True)
class StepMemory:
    """Peak bytes that a step allocates."""

    peak: int
    is_lower_bound: bool = False  # the trace of the shapes ended before the step did


def step_memory(
    model: Model,
    rows: RowSource,
    updates: Sequence[Update],
    batch_size: int,
    precision: str,
    pieces: int = 1,
) -> StepMemory:
    """Peak bytes of batches, activations and gradients in one step of these updates, whose batches
    are cut into `pieces`. Neither the model nor torch's random state changes."""
    example = rows.batch(torch.zeros(1, dtype=torch.long))
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    known, gauge = KnownValues(fake_mode), MemoryGauge()
    traced = known.copy(model)
    with torch.random.fork_rng(devices=[]), fake_mode, known, ReadsAndCopies(known):
        torch.manual_seed(0)
        try:
            pairs = list(matching(traced.updates(), updates))
            with gauge:  # the gradients of the step before
                for update, _ in pairs:
                    for param in update.params:
                        param.grad = torch.empty_like(param)
            for update, own in pairs:
                count = len(rows) if own.whole else batch_size
                count = own.batches * (math.ceil(count / pieces) if own.params else count)
                with gauge:
                    trace(update, known.batch(example, count), precision)
        except (*UNTRACEABLE, *MISLED) as error:
            if isinstance(error, MISLED) and not known.assumed:
                raise
            least = sum(bytes_of(param) for own in updates for param in own.params)
            return StepMemory(max(gauge.peak, least), is_lower_bound=True)
    return StepMemory(gauge.peak)


class TooLargeError(Exception):
    """A model needs more memory than there is."""


def check_model_memory(
    config: Config,
    space: Space,
    parts: Mapping[str, Model],
    train_config: TrainConfig,
    available: int,
) -> None:
    """Raise UsageError if the model with its gradients and optimiser state needs more than the
    `available` bytes; it is built from shapes alone, and no further than they allow."""
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    known, gauge = KnownValues(fake_mode), MemoryGauge(available)
    copies = [{name: known.copy(part) for name, part in parts.items()}] if parts else []
    with torch.random.fork_rng(devices=[]), fake_mode, known, ReadsAndCopies(known):
        try:
            with gauge:
                model = config.build(space, *copies)
                trainable = [param for param in model.parameters() if param.requires_grad]
                slots = state_slots(train_config) + bool(train_config.ema_decay) + 1
                if gauge.now + slots * sum(map(bytes_of, trainable)) > available:
                    raise TooLargeError
        except UNTRACEABLE:
            return  # the part that was built fits
        except (TooLargeError, OverflowError, RuntimeError) as error:
            if is_too_large(error):
                raise UsageError(
                    f"expected a model that fits in the {available / 1e9:.3g} GB of free memory, "
                    f"found {title_of(type(config))} with larger weights, gradients and optimiser "
                    "state; choose smaller settings such as width"
                ) from None
            raise


def is_too_large(error: Exception) -> bool:
    """Whether a size was refused, by a gauge or because torch cannot count its bytes."""
    return isinstance(error, TooLargeError | OverflowError) or (
        isinstance(error, RuntimeError) and "overflow" in str(error).lower()
    )


def state_slots(config: OptimiserConfig) -> int:
    """Tensors of the size of the parameters that an optimiser stores."""
    if config.optimiser in ("adam", "adamw"):
        return 2
    if config.optimiser == "lbfgs":
        return 2 * LBFGS_HISTORY + 2
    return int(config.optimiser != "sgd") + int(
        config.momentum > 0 and config.optimiser in ("sgd", "rmsprop")
    )


def matching(
    traced: Sequence[Update], updates: Sequence[Update]
) -> Iterator[tuple[Update, Update]]:
    """Each update of the traced model with the update of the same name of the real one, which may
    have fewer parameters or use the whole split."""
    by_name = {update.name: update for update in updates}
    for update in traced:
        if update.name in by_name:
            free = [param for param in update.params if param.requires_grad]
            yield replace(update, params=free), by_name[update.name]


def trace(update: Update, batch: Batch, precision: str) -> None:
    """The loss of one update and its gradients, which replace those of the step before."""
    device = batch.x.device.type
    with torch.set_grad_enabled(bool(update.params)):
        with torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext():
            losses = update.loss(batch)
        if update.params:
            total = torch.stack([term.mean() for term in losses.values()]).sum()
            for param in update.params:
                param.grad = None
            total.backward(inputs=list(update.params))


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class KnownValues(TorchDispatchMode):
    """Computes the values of small fake tensors that depend on neither data nor weights, and
    answers when a loss reads other values.

    Known are buffers, constants, random numbers, lengths (all as long as the event), masks (all
    observed) and whole numbers of the batch (all 0), and whatever is computed from them. Of other
    tensors `all()` is true, whole numbers that are read are 0 and reals 1; an unknown mask selects
    every entry, and the unknown entries of a tensor are all equal.
    """

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self.values: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # fake -> real
        self.outdated: dict[int, torch.UntypedStorage] = {}  # overwritten with unknown values
        self.assumed = 0  # how many values were read by assumption
        self.operations = 0

    def copy(self, model: Model) -> Model:
        """The model with fake parameters and buffers, the values of small buffers known."""
        memo: dict[int, Any] = {}
        for tensor in (*model.parameters(), *model.buffers()):
            memo[id(tensor)] = self.fake_mode.from_tensor(tensor)
        for buffer in model.buffers():
            self.learn(memo[id(buffer)], buffer)
        return copy.deepcopy(model, memo)

    def batch(self, example: Batch, count: int) -> Batch:
        """A batch of `count` rows in the shapes of the example."""

        def empty(value: Tensor) -> Tensor:
            shape = (count, *value.shape[1:])
            create = torch.empty if value.is_floating_point() else torch.zeros
            return create(shape, dtype=value.dtype, device=value.device)

        def part(each: Batch) -> Batch:
            shaped = replace(each, given={}).map(empty)
            return replace(
                shaped,
                given={name: part(given) for name, given in each.given.items()},
                observed=None if shaped.observed is None else torch.ones_like(shaped.observed),
                length=(
                    None
                    if shaped.length is None
                    else torch.full_like(shaped.length, each.x.shape[1])
                ),
            )

        return part(example)

    def learn(self, fake: Tensor, real: Tensor) -> None:
        """Store a copy of a small tensor as the value of a fake one."""
        if real.numel() <= MAX_KNOWN_ELEMENTS:
            self.values[fake] = real.detach().clone()

    def value(self, tensor: Tensor) -> Tensor | None:
        """The value of a tensor, None if it is unknown."""
        if not isinstance(tensor, FakeTensor):  # a constant of the loss
            return tensor if tensor.numel() <= MAX_KNOWN_ELEMENTS else None
        known = self.values.get(tensor)
        outdated = known is not None and known.untyped_storage()._cdata in self.outdated
        return None if outdated else known

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.count_operation()
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name = func.overloadpacket
        is_known = name not in UNINITIALISED and (
            name in CONSTANT_LIKE or all(self.value(tensor) is not None for tensor in tensors)
        )
        if name in NEED_VALUES:
            if is_known:
                return self.wrap(self.compute(func, args, kwargs))
            with self:
                return self.assume(NEED_VALUES[name](*args, **kwargs))
        if name in INDEXED:
            with self:
                args = (args[0], indices_of(args[1]), *args[2:])
        try:
            made = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            if is_known:
                return self.wrap(self.compute(func, args, kwargs))
            raise
        if name is aten.mkldnn_rnn_layer:  # of whose workspace torch gives no shape
            workspace = made[0].new_empty(LSTM_WORKSPACE * made[0].numel())
            made = (*made[:3], workspace)
        if is_known and is_small(made):
            self.learn_all(made, self.compute(func, args, kwargs))
        elif func._schema.is_mutable:
            self.forget(written(func, args, kwargs))
        elif name in FULL_REDUCTIONS and made.numel() == 1:
            with _disable_current_modes():
                self.values[made] = torch.full(made.shape, self.assume(FULL_REDUCTIONS[name]))
        return made

    def count_operation(self) -> None:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise LongTraceError

    def assume(self, answer: Answer) -> Answer:
        """Count a value that is assumed."""
        self.assumed += 1
        if self.assumed > MAX_ASSUMED_VALUES:
            raise DataDependentOutputException(aten._local_scalar_dense.default)
        return answer

    def compute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation on known values."""

        def real(tensor: Tensor) -> Tensor:
            known = self.value(tensor)
            if known is None:  # only its shape matters
                known = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            return known

        with _disable_current_modes(), torch.no_grad():
            args, kwargs = tree_map_only(Tensor, real, (tuple(args), dict(kwargs)))
            return func(*args, **kwargs)

    def wrap(self, computed: Any) -> Any:
        """Fake tensors in place of the computed ones, whose values they know."""

        def fake(real: Tensor) -> Tensor:
            made = self.fake_mode.from_tensor(real)
            self.values[made] = real
            return made

        return tree_map_only(Tensor, fake, computed)

    def learn_all(self, made: Any, computed: Any) -> None:
        """Store the values of the results; views share the storage of the values they view."""
        for fake, real in zip(tree_leaves(made), tree_leaves(computed), strict=True):
            if isinstance(fake, Tensor):
                self.values[fake] = real

    def forget(self, tensors: Sequence[Tensor]) -> None:
        """The values of these tensors and of their views are unknown from now on."""
        for tensor in tensors:
            if (value := self.value(tensor)) is not None:
                storage = value.untyped_storage()
                self.outdated[storage._cdata] = storage


def indices_of(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices with masks replaced by the indices they select, so that the shape of what they
    select does not depend on values."""
    found: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            found += index.nonzero().unbind(1)
        else:
            found.append(index)
    return found


class ReadsAndCopies(TorchFunctionMode):
    """What a fake tensor cannot do: arrays of known values, and of zeros for unknown ones, and
    deep copies, for which torch copies the tensor's modes too, and crashes when it frees them."""

    def __init__(self, known: KnownValues) -> None:
        super().__init__()
        self.known = known

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.__deepcopy__:
            source, memo = args
            if id(source) not in memo:
                made = source.detach().clone().requires_grad_(source.requires_grad)
                memo[id(source)] = made
            return memo[id(source)]
        if func not in (Tensor.numpy, Tensor.__array__):
            return func(*args, **(kwargs or {}))
        value = self.known.value(args[0])
        with _disable_current_modes():
            if value is None:
                value = self.known.assume(torch.zeros(args[0].shape, dtype=args[0].dtype))
            return value.numpy().copy()


def is_small(made: Any) -> bool:
    return all(
        leaf.numel() <= MAX_KNOWN_ELEMENTS
        for leaf in tree_leaves(made)
        if isinstance(leaf, Tensor)
    )


def written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that an operation writes to."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    return [
        leaf
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for leaf in tree_leaves(given.get(argument.name))
        if isinstance(leaf, Tensor)
    ]


def all_indices(mask: Tensor) -> Tensor:
    """The indices of every entry, as `nonzero` returns them."""
    return mask.new_empty((mask.numel(), mask.ndim), dtype=torch.long)


def one_value(x: Tensor, *options: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What `unique` returns if all entries are equal."""
    return (
        x.new_empty(min(x.numel(), 1)),
        torch.zeros_like(x, dtype=torch.long),
        torch.full((min(x.numel(), 1),), x.numel(), device=x.device),
    )


def one_slice(x: Tensor, dim: int, *options: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What `unique` along a dimension returns if all slices are equal."""
    size = x.shape[dim]
    return (
        x.narrow(dim, 0, min(size, 1)).clone(),
        torch.zeros(size, dtype=torch.long, device=x.device),
        torch.full((min(size, 1),), size, device=x.device),
    )


def one_each(repeats: Tensor, output_size: int | None = None) -> Tensor:
    """The indices of `repeat_interleave` if nothing is repeated."""
    return torch.arange(output_size or repeats.numel(), device=repeats.device)


def assumed_value(dtype: torch.dtype) -> bool | int | float | complex:
    """0, which is a valid index, and 1 for reals, by which a loss may divide."""
    if dtype == torch.bool:
        return False
    return 1 + 0j if dtype.is_complex else 1.0 if dtype.is_floating_point else 0


def empty_bins(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    dtype = torch.long if weights is None else torch.double
    return x.new_empty(max(minlength, min(x.numel(), 1)), dtype=dtype)


NEED_VALUES: dict[Any, Callable[..., Any]] = {
    aten._local_scalar_dense: lambda x: assumed_value(x.dtype),
    aten.equal: lambda x, y: x.shape == y.shape,
    aten.nonzero: all_indices,
    aten.masked_select: lambda x, mask: x.new_empty(torch.broadcast_shapes(x.shape, mask.shape)),
    aten._unique2: one_value,
    aten.unique_consecutive: one_value,
    aten.unique_dim: one_slice,
    aten.bincount: empty_bins,
    aten.repeat_interleave: one_each,
}
"""Operations that need values, with what they return if the values are unknown."""
FULL_REDUCTIONS = {aten.all: True, aten.any: False}
"""Reductions of unknown values to one that decide about whole tensors: all entries are valid."""
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
"""Operations that take masks."""
CONSTANT_LIKE = {
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.rand_like,
    aten.randn_like,
    aten.new_zeros,
    aten.new_ones,
    aten.new_full,
}
"""Operations that need only the shape of a tensor."""
UNINITIALISED = {aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided}


class MemoryGauge(TorchDispatchMode):
    """Records the peak bytes of the tensors that are created inside it and not yet freed."""

    def __init__(self, limit: float = math.inf) -> None:
        super().__init__()
        self.allocated: dict[int, int] = {}  # bytes by storage
        self.now = self.peak = 0
        self.limit = limit  # bytes above which TooLargeError is raised

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        before = {
            id(leaf.untyped_storage())
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self.allocate(leaf.untyped_storage(), before)
        return made

    def allocate(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        key = id(storage)
        if key in self.allocated or key in before:
            return
        self.allocated[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, key)
        if self.now > self.limit:
            raise TooLargeError

    def free(self, key: int) -> None:
        self.now -= self.allocated.pop(key, 0)
