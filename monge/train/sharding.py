"""Weights that are cut over the processes which train together (`monge fit --workers 2 --shard`).

`torch.distributed.fsdp.fully_shard` cuts every weight along its first axis. A process holds its
part of the weights, of their gradients, of their moments and of their moving average; the modules
into which the model is divided have whole weights only while they compute. Gradients are computed
on a copy of the model, since `fully_shard` changes modules for good. The model itself has weights
without values, and gets whole ones to be evaluated and for updates that are no optimiser steps.

A module can be a unit of its own if its weights are used only while it is called, which is seen by
computing every loss once. The others, and all of a model whose loss computes derivatives itself,
are gathered for the whole loss.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..core.model import Model
from .distributed import Workers, naming_lost_workers

T = TypeVar("T")
UNITS = 16
"""A module with more than one in so many of the weights is divided further, if it can be."""
SMALLEST_UNIT = 200
"""A module with fewer than one in so many of the weights is gathered with those around it."""


class Root(nn.Module):
    """What the processes call: whole weights of modules that are no units are there inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Any]) -> Any:
        return compute()


class ShardedModel:
    """A model whose weights are cut over all processes.

    `live` is the copy that computes losses. `local` has the part of each weight that this process
    holds, by name; a weight that is one number is not cut, and is the same in all.
    """

    def __init__(self, model: Model, workers: Workers, compute_losses: Callable[[], Any]) -> None:
        self.plain, self.workers = model, workers
        units = choose_units(model, compute_losses)
        params = dict(model.named_parameters())
        shared = {id(t): t for t in [*params.values(), *model.buffers()]}
        self.live = copy.deepcopy(model, shared)
        self.root = Root(self.live)
        device = next(iter(params.values())).device
        self.mesh = init_device_mesh(device.type, (workers.size,))
        uncut = {param for param in params.values() if param.ndim == 0}
        with naming_lost_workers():
            for module in (*map(self.live.get_submodule, units), self.root):
                fully_shard(module, mesh=self.mesh, ignored_params=uncut)
        for module in self.root.modules():
            if isinstance(module, FSDPModule):  # sums, since the pieces are weighted by their rows
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self.params = dict(self.live.named_parameters(remove_duplicate=False))
        self.parts = {
            id(param): nn.Parameter(local_part(param).detach(), param.requires_grad)
            if isinstance(param, DTensor)
            else param
            for param in self.live.parameters()
        }
        self.local = {name: self.parts[id(p)] for name, p in self.live.named_parameters()}
        self.empty = {
            id(param): nn.Parameter(torch.empty_like(param, device="meta"), param.requires_grad)
            for param in params.values()
        }
        self.places = [
            (module, name, self.empty[id(param)])
            for module in model.modules()
            for name, param in module._parameters.items()
            if param is not None
        ]
        self.requires_grad = {
            name: param.requires_grad
            for name, param in model.named_parameters(remove_duplicate=False)
        }
        self.largest_unit = size_of_largest(units, params)
        self.empty_plain()

    def compute(self, loss: Callable[..., T], *batch: Any) -> T:
        """A loss of the live copy."""
        with naming_lost_workers(computing=True), warnings.catch_warnings():
            # no unit returns a view that is changed in place: see `UseProbe`
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
            found: T = self.root(lambda: loss(*batch))
            return found

    def backward(self, total: Tensor) -> None:
        """Compute gradients of the live copy. torch computes none of weights that are cut if the
        inputs are named, so that those of other updates are computed too, and dropped."""
        with naming_lost_workers(computing=True):
            total.backward()

    def own(self, params: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """The local parts of parameters of the live copy."""
        return [self.parts[id(param)] for param in params]

    def uncut(self, params: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Those of these parameters that every process has as a whole."""
        return [param for param in params if not isinstance(param, DTensor)]

    def norm(self, params: Sequence[nn.Parameter]) -> Tensor:
        """The norm of the gradients of these parameters of the live copy."""
        squares = torch.zeros(2, dtype=torch.float64)  # of weights that are cut, and of others
        for param, part in zip(params, self.own(params), strict=True):
            if part.grad is not None:
                squares[int(not isinstance(param, DTensor))] += part.grad.square().sum().cpu()
        (cut,) = self.workers.sum([squares[0]])
        return (cut + squares[1]).sqrt()

    def take_gradients(self, params: Sequence[nn.Parameter]) -> None:
        """Give the local parts the gradients of these parameters."""
        for param, part in zip(params, self.own(params), strict=True):
            if isinstance(param, DTensor):
                part.grad = None if param.grad is None else local_part(param.grad)
                param.grad = None

    def drop_gradients(self) -> None:
        for param in (*self.params.values(), *self.parts.values()):
            param.grad = None

    def is_cut(self, name: str) -> bool:
        return isinstance(self.params.get(name), DTensor)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """A copy of the part of a tensor like the weight `name` that this process holds."""
        if not self.is_cut(name) or whole.shape != self.params[name].shape:
            return whole
        parts = whole.chunk(self.workers.size)
        return (parts[self.workers.rank] if self.workers.rank < len(parts) else whole[:0]).clone()

    def joined(self, name: str, part: Tensor) -> Tensor:
        """The tensor like the weight `name` whose part in this process is given; its values are
        exchanged when it is read by `whole`."""
        like = self.params.get(name)
        if not isinstance(like, DTensor) or part.shape != self.parts[id(like)].shape:
            return part
        return DTensor.from_local(
            part,
            self.mesh,
            [Shard(0)],
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def state(self) -> dict[str, Tensor]:
        """The weights and buffers by name; tied weights are one object."""
        return dict(self.live.state_dict(keep_vars=True))

    def snapshot(self, instead: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of the state, with the parts of some weights that are given instead."""
        found: dict[int, Tensor] = {}
        names = {}
        for name, tensor in self.state().items():
            if id(tensor) not in found:
                part = instead.get(name, local_part(tensor))
                found[id(tensor)] = self.joined(name, part.detach().clone())
            names[name] = found[id(tensor)]
        return names

    def is_true_everywhere(self, fact: bool) -> bool:
        (count,) = self.workers.sum([torch.tensor(float(fact))])
        return int(count) == self.workers.size

    @contextmanager
    def gathered(self, state: Mapping[str, Tensor], everywhere: bool = False) -> Iterator[None]:
        """The model has these whole weights and buffers inside the block: in the first process, or
        in all. All processes must enter it."""
        here = everywhere or self.workers.is_first
        whole: dict[int, Tensor] = {}
        buffers = buffer_places(self.live)
        for tensor in state.values():
            if id(tensor) not in whole:
                whole[id(tensor)] = read_whole(tensor)
            if not here:
                whole[id(tensor)] = torch.empty(0)
        if here:
            for place, buffer in buffers.items():
                set_buffer(self.plain, place, buffer)
            held: dict[int, nn.Parameter] = {}
            for name, tensor in state.items():
                if name in buffers:
                    set_buffer(self.plain, name, tensor.detach())
                    continue
                module, leaf = owner(self.plain, name)
                if id(tensor) not in held:
                    value = whole.pop(id(tensor)).detach()
                    held[id(tensor)] = nn.Parameter(value, self.requires_grad[name])
                module._parameters[leaf] = held[id(tensor)]
        try:
            yield
        finally:
            self.empty_plain()

    @contextmanager
    def changed_as_a_whole(self) -> Iterator[None]:
        """The model has whole weights inside the block, in every process, and what it makes of
        them is taken over."""
        with self.gathered(self.state(), everywhere=True):
            yield
            with torch.no_grad():
                for name, param in self.plain.named_parameters():
                    self.local[name].copy_(self.part(name, param))
            for place, buffer in buffer_places(self.plain).items():
                set_buffer(self.live, place, buffer)

    def empty_plain(self) -> None:
        """Take the values of all weights from the model."""
        for module, name, empty in self.places:
            module._parameters[name] = empty


def size_of_largest(units: Sequence[str], params: Mapping[str, nn.Parameter]) -> int:
    """Weights of the largest unit, or of those that are in none."""
    sizes = dict.fromkeys((*units, ""), 0)
    for name, param in params.items():
        inside = [unit for unit in units if name.startswith(f"{unit}.")]
        sizes[max(inside, key=len, default="")] += param.numel()
    return max(sizes.values())


def read_whole(tensor: Tensor) -> Tensor:
    """The tensor with the values of all processes, all of which must call this."""
    if not isinstance(tensor, DTensor):
        return tensor
    with naming_lost_workers(), torch.no_grad():
        return cast(DTensor, tensor.detach()).full_tensor()


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, in the same memory."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def buffer_places(model: nn.Module) -> dict[str, Tensor]:
    """All buffers by name, those that are not saved too."""
    return dict(model.named_buffers(remove_duplicate=False))


def set_buffer(model: nn.Module, name: str, value: Tensor) -> None:
    module, leaf = owner(model, name)
    module._buffers[leaf] = value


class UseProbe(TorchDispatchMode):
    """Watches in which modules weights are used while losses are computed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inside: list[str] = []  # the modules that are being called
        self.unfit: set[str] = set()  # those that cannot be units
        self.derives = False  # whether a loss computes derivatives
        self.in_backward = False
        self.called: set[str] = set()
        self.views: dict[int, set[str]] = {}  # by memory, the modules that returned a view of it
        paths: dict[int, list[str]] = {}
        for name, param in model.named_parameters(remove_duplicate=False):
            paths.setdefault(memory(param), []).append(name)
        self.holders = {place: holders_of(names) for place, names in paths.items()}
        for names in paths.values():  # a tied weight is in one unit only if all its names are
            everywhere = set.intersection(*({*prefixes(name)} for name in names))
            self.unfit |= {each for name in names for each in prefixes(name)} - everywhere

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.derives = self.derives or (not self.in_backward and is_in_backward())
        if not self.in_backward:
            if func._schema.is_mutable and isinstance(args[0], Tensor):
                self.unfit |= self.views.get(memory(args[0]), set())  # see `note_return`
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    self.unfit |= self.holders.get(memory(leaf), frozenset()) - {*self.inside}
        return func(*args, **(kwargs or {}))

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Know which modules are being called inside the block."""
        handles = []
        for name, module in model.named_modules():
            if name:
                handles += [
                    module.register_forward_pre_hook(lambda *_, name=name: self.note_call(name)),
                    module.register_forward_hook(
                        lambda *found, name=name: self.note_return(name, found)
                    ),
                ]
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def note_call(self, name: str) -> None:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            self.unfit.add(name)
        self.derives = self.derives or is_in_backward()
        self.called.add(name)
        self.inside.append(name)

    def note_return(self, name: str, found: tuple[Any, ...]) -> None:
        """A module whose output is not made of tensors, or is a view that is changed later, cannot
        be a unit: nothing would gather its weights before its gradients are computed."""
        self.inside.remove(name)
        leaves = tree_leaves(found[-1])
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not tensors or len(tensors) < sum(leaf is not None for leaf in leaves):
            self.unfit.add(name)
        for tensor in tensors:
            if tensor._is_view():
                self.views.setdefault(memory(tensor), set()).add(name)


def memory(tensor: Tensor) -> int:
    """Identifies the memory of a tensor and of its views."""
    return tensor.untyped_storage()._cdata


def is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def prefixes(name: str) -> list[str]:
    """The modules that hold a parameter, the model itself left out."""
    parts = name.split(".")
    return [".".join(parts[:size]) for size in range(1, len(parts))]


def holders_of(names: Sequence[str]) -> frozenset[str]:
    return frozenset(each for name in names for each in prefixes(name))


def choose_units(model: nn.Module, compute_losses: Callable[[], Any]) -> list[str]:
    """The modules that are gathered on their own, inner ones first."""
    probe = UseProbe(model)
    before = {name: (buffer, buffer.clone()) for name, buffer in buffer_places(model).items()}
    params = [param for param in model.parameters() if param.requires_grad]
    with probe.watching(model):
        for losses in compute_losses():
            total = torch.stack([term.mean() for term in losses.values()]).sum()
            probe.in_backward = True
            torch.autograd.grad(total, params, allow_unused=True)
            probe.in_backward = False
    for name, (buffer, value) in before.items():
        set_buffer(model, name, buffer.copy_(value))
    if probe.derives:
        return []
    counts = {
        name: sum(param.numel() for param in module.parameters())
        for name, module in model.named_modules(remove_duplicate=False)
    }
    fit = [name for name in counts if name in probe.called - probe.unfit]
    return pick_units(model, counts, fit)


def pick_units(model: nn.Module, counts: Mapping[str, int], fit: Sequence[str]) -> list[str]:
    """Modules of at most one in `UNITS` of the weights, and larger ones around them."""
    chosen: list[str] = []

    def visit(name: str, module: nn.Module) -> None:
        total = counts[""]
        if counts[name] * SMALLEST_UNIT < total:
            return
        if name not in fit or counts[name] * UNITS > total:
            for leaf, child in module.named_children():
                visit(f"{name}.{leaf}" if name else leaf, child)
        if name in fit and name not in chosen:
            chosen.append(name)

    for leaf, child in model.named_children():
        visit(leaf, child)
    seen: dict[int, str] = {}
    for name in chosen:
        seen.setdefault(id(model.get_submodule(name)), name)
    return list(seen.values())
