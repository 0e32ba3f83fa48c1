"""The peak memory of a training step, from steps of few rows.

A step is computed for two small numbers of rows on a copy of the model. Each tensor of a loss has
a size that is fixed or follows a power of the number of rows, so the sizes at the rows of a batch
are extrapolated one by one, and the peak is that of their sum over the operations. Where the
operations differ between the two, as in a solver that adapts its steps, the peaks are
extrapolated. A step that is found to need little memory is then computed as it is: losses may
choose their operations by the number of rows.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ..core.batch import Batch
from ..core.errors import MongeError
from ..core.model import Model, Update
from ..core.train_config import OptimiserConfig
from .batch_sampler import RowSource
from .optimiser import LBFGS_HISTORY

SMALLEST_PART, LARGEST_PART = 8, 4
"""The two numbers of rows are these parts of a batch."""
FEW_ROWS = 4
"""Rows of the smaller number at least."""
MANY_ROWS = 256
"""Rows of the larger number at most, of updates that use the whole training split."""
LITTLE = 1 << 26
"""Bytes up to which a step is computed as it is."""
MANY_NUMBERS = 1 << 20
"""Numbers beyond which the size of a result is found before it is computed."""
MAX_POWER = 2.0
"""Largest power of the number of rows by which the size of a tensor is extrapolated."""
REFUSED = (MongeError, ArithmeticError, RuntimeError, ValueError)
"""What a loss raises that refuses so few rows; the step itself raises it again if it refuses
more."""


@dataclass(frozen=True)
class StepMemory:
    """Peak bytes that a step allocates."""

    peak: int
    is_lower_bound: bool = False  # no step of few rows could be computed


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
    gradients = sum(bytes_of(param) for own in updates for param in own.params)
    tensors = (*model.parameters(), *model.buffers())
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    tried, peak = copy.deepcopy(model), 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            for update, own in matching(tried.updates(), updates):
                count = len(rows) if own.whole else batch_size
                count = math.ceil(count / pieces) if own.params else count
                others = gradients - sum(map(bytes_of, update.params))
                peak = max(peak, others + update_peak(update, rows, count, precision, device))
        except REFUSED:
            return StepMemory(gradients, is_lower_bound=True)
    return StepMemory(peak)


def update_peak(
    update: Update, rows: RowSource, count: int, precision: str, device: torch.device
) -> int:
    """Peak bytes of an update of `count` rows, with the gradients of its parameters."""
    sizes = tried_sizes(count, update.whole)
    found = [measure(update, rows, size, precision, device) for size in sizes]
    peak = peak_of(found, sizes, count)
    if sizes == [count] or peak > LITTLE:
        return peak
    return measure(update, rows, count, precision, device).peak


def tried_sizes(count: int, whole: bool) -> list[int]:
    """The numbers of rows that are tried for a step of `count`, in ascending order."""
    most = min(count, MANY_ROWS) if whole else count
    small, large = (max(most // part, FEW_ROWS) for part in (SMALLEST_PART, LARGEST_PART))
    large = max(large, 2 * small)
    return [small, large] if large < count else [count]


def measure(
    update: Update, rows: RowSource, count: int, precision: str, device: torch.device
) -> MemoryGauge:
    """The memory of an update of `count` rows."""
    gauge = MemoryGauge()
    torch.manual_seed(0)
    with gauge:
        for param in update.params:  # the gradients of the step before
            param.grad = torch.empty_like(param)
        batch = rows.batch(widest(rows, count).repeat(update.batches), train=True).sent_to(device)
        compute(update, replace(batch, step=0), precision)
    gauge.numbers.clear()  # what is freed from now on does not count
    return gauge


def widest(rows: RowSource, count: int) -> Tensor:
    """The indices of `count` rows: the longest ones, or evenly spaced ones if all are as long."""
    if rows.lengths is not None:
        return rows.lengths.amax(1).topk(count).indices
    return torch.arange(count) * len(rows) // count


def compute(update: Update, batch: Batch, precision: str) -> None:
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


def peak_of(found: Sequence[MemoryGauge], sizes: Sequence[int], count: int) -> int:
    """The peak of a step of `count` rows, given one or two smaller steps."""
    *fewer, more = found
    if not fewer:
        return more.peak
    (few,) = fewer

    def grown(small: int, large: int) -> float:
        """The bytes at `count` rows of what has these at the smaller numbers."""
        if large <= small:
            return large
        power = min(math.log(large / small, sizes[1] / sizes[0]), MAX_POWER) if small else 1.0
        if power > 1:
            return large * (count / sizes[1]) ** power
        return large + (count - sizes[1]) / (sizes[1] - sizes[0]) * (large - small)

    if few.order != more.order:
        return round(grown(few.peak, more.peak))
    now, peak = 0.0, 0.0
    expected = [grown(*pair) for pair in zip(few.sizes, more.sizes, strict=True)]
    for number in more.order:
        now += expected[number] if number >= 0 else -expected[~number]
        peak = max(peak, now)
    return round(peak)


class TooLargeError(Exception):
    """A model needs more memory than there is."""


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
    tried: Sequence[Update], updates: Sequence[Update]
) -> Iterator[tuple[Update, Update]]:
    """Each update of the copied model with the update of the same name of the real one, which may
    have fewer parameters or use the whole split."""
    by_name = {update.name: update for update in updates}
    for update in tried:
        if update.name in by_name:
            free = [param for param in update.params if param.requires_grad]
            yield replace(update, params=free), by_name[update.name]


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class MemoryGauge(TorchDispatchMode):
    """Records the bytes of the tensors that are created inside it and not yet freed, `now` and at
    the `peak`, and in which `order` they are allocated, k for the k-th, and freed, ~k. A result
    beyond the limit raises TooLargeError, with `foreseen` before it is computed."""

    def __init__(self, limit: float = math.inf, foreseen: bool = False) -> None:
        super().__init__()
        self.numbers: dict[int, int] = {}  # of allocations that are not freed, by storage
        self.sizes: list[int] = []  # of all allocations
        self.order: list[int] = []
        self.now = self.peak = 0
        self.limit, self.foreseen = limit, foreseen

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch imports its compiler, which takes longer than many fits, to exclude a mode that
        says so from what is compiled."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.foreseen and self.now + result_bytes(func, args, kwargs) > self.limit:
            raise TooLargeError
        made = func(*args, **kwargs)
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
        if key in self.numbers or key in before:
            return
        self.numbers[key] = len(self.sizes)
        self.order.append(len(self.sizes))
        self.sizes.append(storage.nbytes())
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, key)
        if self.now > self.limit:
            raise TooLargeError

    def free(self, key: int) -> None:
        if (number := self.numbers.pop(key, None)) is not None:
            self.order.append(~number)
            self.now -= self.sizes[number]


def result_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Bytes of what an operation makes, from the shapes of what it takes; 0 if it writes into what
    there is, needs values, or makes few numbers, as the product of all sizes says."""
    leaves = tree_leaves((args, kwargs))
    sizes: list[float] = [leaf.numel() for leaf in leaves if isinstance(leaf, Tensor)]
    sizes += [leaf for leaf in leaves if isinstance(leaf, int | float) and leaf > 1]
    if func._schema.is_mutable or math.prod(sizes) <= MANY_NUMBERS:
        return 0

    def shape(tensor: Tensor) -> Tensor:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
        )

    shapes, named = tree_map_only(Tensor, shape, (tuple(args), dict(kwargs)))
    if "device" in named or not any(isinstance(leaf, Tensor) for leaf in leaves):
        named["device"] = torch.device("meta")
    try:
        made = func(*shapes, **named)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        if is_too_large(error):
            raise
        return 0
    return sum(bytes_of(leaf) for leaf in tree_leaves(made) if isinstance(leaf, Tensor))
