"""Numbers that a function reads from tensors without depending on its inputs.

torch.export refuses `if mask.all():` and `sizes.tolist()`, since a tensor that is traced has no
values. Many such reads are of constants: of a buffer, of a mask of ones. `record` runs a function
and keeps what it reads from tensors that no input has entered; `replayed` answers the same reads
while the function is traced. A read of anything that depends on an input is left to the tracer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = tuple(
    getattr(Tensor, name)
    for name in ("__bool__", "__int__", "__float__", "__index__", "item", "tolist")
)
SHAPE_ONLY = ("_like", "new_")
"""Operators that read no more than the shape and the type of their inputs."""
UNKNOWN = object()
"""In place of a read that depends on the inputs."""


class Dependence(TorchDispatchMode):
    """Keeps the memory that values of the inputs have entered."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        # a tensor of each is held, so that its memory is not given to another
        self.entered = {x.untyped_storage()._cdata: x for x in inputs}

    def depends(self, x: Tensor) -> bool:
        return x.untyped_storage()._cdata in self.entered

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if any(part in name for part in SHAPE_ONLY):
            return result
        if any(self.depends(x) for x in tensors_of((args, kwargs))):
            for x in tensors_of((written(func, args, kwargs), result)):
                self.entered[x.untyped_storage()._cdata] = x
        return result


def tensors_of(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operator changes in place."""
    declared = func._schema.arguments
    named = {**dict(zip([each.name for each in declared], args, strict=False)), **kwargs}
    return [
        named[each.name]
        for each in declared
        if each.name in named and each.alias_info is not None and each.alias_info.is_write
    ]


class Recorder(TorchFunctionMode):
    """Keeps what is read from tensors, in order."""

    def __init__(self, dependence: Dependence) -> None:
        super().__init__()
        self.dependence = dependence
        self.found: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        if func in READS:
            known = not self.dependence.depends(args[0])
            self.found.append((func, place_of_caller(), value if known else UNKNOWN))
        return value


class Replayer(TorchFunctionMode):
    """Answers reads as they were recorded: those of one line in their order, and again if all were
    equal, since what is kept between calls is not read twice."""

    def __init__(self, recorded: Sequence[Any]) -> None:
        super().__init__()
        self.answers: dict[Any, list[Any]] = {}
        for func, place, value in recorded:
            self.answers.setdefault((func, place), []).append(value)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = self.answer(func) if func in READS else UNKNOWN
        return func(*args, **(kwargs or {})) if answer is UNKNOWN else answer

    def answer(self, func: Any) -> Any:
        known = self.answers.get((func, place_of_caller(3)), [])
        if not known or any(value is UNKNOWN for value in known):
            return UNKNOWN
        same = all(value == known[0] for value in known)
        return known[0] if same else known.pop(0)


def place_of_caller(depth: int = 2) -> tuple[str, int]:
    """The line that reads, so that no answer is taken for that of another question."""
    frame = sys._getframe(depth)
    return frame.f_code.co_filename, frame.f_lineno


def record(function: Callable[..., Any], *inputs: Tensor) -> list[Any]:
    """What a function reads from tensors that do not depend on its inputs, in order."""
    own = [x.clone() for x in inputs]
    dependence = Dependence(own)
    with dependence, Recorder(dependence) as recorder:
        function(*own)
    return recorder.found


@contextmanager
def replayed(recorded: Sequence[Any]) -> Iterator[None]:
    """With the recorded answers to reads from tensors."""
    replayer, own = Replayer(recorded), FakeTensor.tolist

    def tolist(self: FakeTensor) -> Any:  # the tracer's own, which asks for one number at a time
        answer = replayer.answer(Tensor.tolist)
        return own(self) if answer is UNKNOWN else answer

    try:
        FakeTensor.tolist = tolist  # type: ignore[method-assign]
        with replayer:
            yield
    finally:
        FakeTensor.tolist = own  # type: ignore[method-assign]
