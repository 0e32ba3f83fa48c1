"""Models that fit in memory: a large one is first built from the shapes of its tensors alone.

It is built of fake tensors, which have shapes but no values, so that nothing is computed. Some
models read values nevertheless: masks, orders, statistics of the data. Small tensors are therefore
also computed, and what reads other values gets assumed ones (see `KnownValues`). Torch imports its
compiler for fake tensors, which takes longer than most models do to be built.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
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

from ..core.config import Config, title_of
from ..core.errors import UsageError
from ..core.model import Model
from ..core.space import Space
from ..core.train_config import TrainConfig
from .step_memory import MemoryGauge, TooLargeError, bytes_of, is_too_large, state_slots

aten = torch.ops.aten
Answer = TypeVar("Answer")
SMALL_MODEL = 1 << 30
"""Bytes up to which a model is built without a look at its shapes."""
MAX_KNOWN_ELEMENTS = 1 << 16
"""Largest tensor whose values are computed."""
MAX_ASSUMED_VALUES = 2_000
"""Values that may be read by assumption: a loop that waits for a value would never end."""
MAX_OPERATIONS = 10_000
"""Operations that are traced, about a second of them."""


class LongTraceError(Exception):
    """A model has more operations than are traced."""


UNTRACEABLE = (
    LongTraceError,
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""What is raised for an operation that needs values or has no rule for shapes, or for too many."""


def built_within(
    available: int,
    build: Callable[[], Model],
    config: Config,
    space: Space,
    parts: Mapping[str, Model],
    train_config: TrainConfig,
) -> Model:
    """The model that `build` makes; UsageError if with its gradients and optimiser state it needs
    more than the `available` bytes. One that is found to be large is first built from shapes
    alone."""

    def needed(model: Model, gauge: MemoryGauge) -> int:
        trainable = sum(bytes_of(param) for param in model.parameters() if param.requires_grad)
        slots = state_slots(train_config) + bool(train_config.ema_decay) + 1
        return gauge.now + slots * trainable

    try:
        gauge = MemoryGauge(min(SMALL_MODEL, available), foreseen=True)
        try:
            with gauge:
                model = build()
        except (TooLargeError, OverflowError, RuntimeError) as error:
            if not is_too_large(error):
                raise
            check_shapes(config, space, parts, needed, available)
            return build()
        if needed(model, gauge) > available:
            raise TooLargeError
    except (TooLargeError, OverflowError, RuntimeError) as error:
        if is_too_large(error):
            raise UsageError(
                f"expected a model that fits in the {available / 1e9:.3g} GB of free memory, "
                f"found {title_of(type(config))} with larger weights, gradients and optimiser "
                "state; choose smaller settings such as width"
            ) from None
        raise
    return model


def check_shapes(
    config: Config,
    space: Space,
    parts: Mapping[str, Model],
    needed: Callable[[Model, MemoryGauge], int],
    available: int,
) -> None:
    """TooLargeError, or what torch raises for sizes it cannot count, if the model needs more than
    the `available` bytes; it is built no further than shapes allow."""
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    known, gauge = KnownValues(fake_mode), MemoryGauge(available)
    copies = [{name: known.copy(part) for name, part in parts.items()}] if parts else []
    with torch.random.fork_rng(devices=[]), fake_mode, known, ReadsAndCopies(known):
        try:
            with gauge:
                model = config.build(space, *copies)
                if needed(model, gauge) > available:
                    raise TooLargeError
        except UNTRACEABLE:
            return  # the part that was built fits


class KnownValues(TorchDispatchMode):
    """Computes the values of small fake tensors, and answers when values of others are read.

    Known are small buffers, constants and random numbers, and whatever is computed from them. Of
    other tensors `all()` is true, whole numbers that are read are 0 and reals 1; an unknown mask
    selects every entry, and the unknown entries of a tensor are all equal.
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

    def learn(self, fake: Tensor, real: Tensor) -> None:
        """Store a copy of a small tensor as the value of a fake one."""
        if real.numel() <= MAX_KNOWN_ELEMENTS:
            self.values[fake] = real.detach().clone()

    def value(self, tensor: Tensor) -> Tensor | None:
        """The value of a tensor, None if it is unknown."""
        if not isinstance(tensor, FakeTensor):  # a constant
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
    """0, which is a valid index, and 1 for reals, by which a model may divide."""
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
