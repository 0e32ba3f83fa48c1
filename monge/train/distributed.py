"""Several processes that train one model: torchrun starts them, or `monge fit --workers N` here.

A batch is cut into pieces (`train.shards` times `train.accumulate`), each with noise of its own
and batch statistics of its own, and the gradients of a step are the mean over its rows. Which
process computes which pieces does not matter, so that a step is the same for every number of
processes that divides them: with one process it is gradient accumulation, with several it is data
parallelism. All processes hold the same weights, since they apply the same gradients. The first
process alone decides when to stop, evaluates and writes files.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import mmap
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..core.errors import LostWorkerError, MongeError, RunError, UsageError

T = TypeVar("T")
LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process that it starts."""
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
MESSAGE_BYTES = 512
"""Bytes of an agreed value that are sent at once; a longer one takes a second message."""
TIMEOUT = timedelta(days=7)
"""How long a process waits for the others, for example while the first one evaluates. One that
ended is noticed at once, since its connections close."""


@dataclass(frozen=True)
class Workers:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> range:
        """Which of `count` pieces this process computes."""
        each = count // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def agree(self, compute: Callable[[], T]) -> T:
        """The value that the first process computes, as JSON holds it; its error, if it fails."""
        if self.size == 1:
            return compute()
        error: MongeError | None = None
        message: dict[str, Any] = {}
        if self.is_first:
            try:
                message = {"value": compute()}
            except MongeError as problem:
                error, message = problem, {"error": str(problem)}
        found = json.loads(self.send_bytes(json.dumps(message).encode()))
        if "error" in found:
            raise error or LostWorkerError(found["error"])
        return found["value"]

    @contextmanager
    def together(self) -> Iterator[None]:
        """If the block fails in one process it fails in all: the first one raises the error, its
        own or that of another, and the others end without a word."""
        error: MongeError | None = None
        try:
            yield
        except MongeError as problem:
            if self.size == 1 or isinstance(problem, LostWorkerError):
                raise
            error = problem
        if self.size == 1:
            return
        failed = torch.zeros(self.size)
        failed[self.rank] = error is not None
        (failed,) = self.sum([failed])
        if not failed.any():
            return
        source = int(failed.argmax())
        sentence = self.send_bytes(str(error).encode(), source).decode()
        if not self.is_first:
            raise LostWorkerError(sentence) from error
        raise error or RunError(f"worker {source}: {sentence}")

    def send_bytes(self, message: bytes, source: int = 0) -> bytes:
        """The message of the process `source`, by default the first."""
        head = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
        if self.rank == source:
            start = (len(message).to_bytes(8, "little") + message)[:MESSAGE_BYTES]
            head[: len(start)] = torch.frombuffer(bytearray(start), dtype=torch.uint8)
        self.broadcast([head], source)
        length = int.from_bytes(bytes(head[:8].tolist()), "little")
        if length <= MESSAGE_BYTES - 8:
            return bytes(head[8 : 8 + length].tolist())
        whole = torch.zeros(length, dtype=torch.uint8)
        if self.rank == source:
            whole.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
        self.broadcast([whole], source)
        return whole.numpy().tobytes()

    def broadcast(self, tensors: Sequence[Tensor], source: int = 0) -> None:
        """Give every process the values that these tensors have in the process `source`."""
        if self.size > 1:
            with naming_lost_workers(), torch.no_grad():
                for tensor in tensors:
                    dense = tensor.detach().contiguous()
                    dist.broadcast(dense, source)
                    tensor.copy_(dense)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums of the tensors over all processes, computed in one message."""
        if self.size == 1 or not tensors:
            return list(tensors)
        with naming_lost_workers(), torch.no_grad():
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            dist.all_reduce(flat)
        pieces = flat.split([tensor.numel() for tensor in tensors])
        return [
            piece.view_as(tensor).to(tensor.dtype)
            for piece, tensor in zip(pieces, tensors, strict=True)
        ]

    def barrier(self) -> None:
        """Wait until every process is here."""
        self.sum([torch.zeros(1)])

    def check_same(self, about: Mapping[str, Any]) -> None:
        """Raise RunError unless all processes have the same of each thing, such as code and
        data; the first one says which differs, and the others end without a word."""
        if self.size == 1:
            return
        own = [digest(json.dumps(value, sort_keys=True)) for value in about.values()]
        own_tensor = torch.tensor(own)
        with naming_lost_workers():
            others = [torch.empty_like(own_tensor) for _ in range(self.size)]
            dist.all_gather(others, own_tensor)
        for rank, other in enumerate(others):
            for place, name in enumerate(about):
                if other[place] != others[0][place]:
                    kind = RunError if self.is_first else LostWorkerError
                    raise kind(
                        f"expected the same {name} in every worker, found another in worker "
                        f"{rank} than in worker 0; start them all with the same version of the "
                        "library, the same files and the same settings"
                    )


ALONE = Workers()
EARLY_BYTES = 2 * 2**20
"""Bytes of gradients in a message that is sent before the others are computed. Gradients of fewer
than twice as many go in one message at the end."""


class GradientMessages:
    """Gradients that are summed over all processes while the others are still computed. They are
    sent from the last parameter to the first, about as the backward pass finishes them, and in
    the same order in every process."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.waiting: list[list[nn.Parameter]] = [[]]
        for param in reversed(params):
            last = self.waiting[-1]
            size = sum(each.numel() * each.element_size() for each in last)
            if last and (size >= EARLY_BYTES or last[0].dtype != param.dtype):
                self.waiting.append([])
            self.waiting[-1].append(param)
        self.done: set[int] = set()  # parameters whose gradients are complete
        self.sent: list[tuple[list[nn.Parameter], Tensor, Any]] = []

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send the gradients that the last backward pass finishes inside the block."""
        handles = [
            param.register_post_accumulate_grad_hook(self.finish)
            for message in self.waiting
            for param in message
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self, param: Tensor) -> None:
        self.done.add(id(param))
        while self.waiting and all(id(each) in self.done for each in self.waiting[0]):
            self.send(self.waiting.pop(0))

    def send(self, params: list[nn.Parameter]) -> None:
        with naming_lost_workers(), torch.no_grad():
            flat = torch.cat([value_of_grad(param).reshape(-1) for param in params])
            self.sent.append((params, flat, dist.all_reduce(flat, async_op=True)))

    def sums(self) -> dict[int, Tensor]:
        """The sums by parameter (its id), once all have come; a gradient that is None is 0."""
        while self.waiting:
            self.send(self.waiting.pop(0))
        found: dict[int, Tensor] = {}
        for params, flat, work in self.sent:
            with naming_lost_workers():
                work.wait()
            pieces = flat.split([param.numel() for param in params])
            found |= {id(p): piece.view_as(p) for p, piece in zip(params, pieces, strict=True)}
        return found


def value_of_grad(param: nn.Parameter) -> Tensor:
    return torch.zeros_like(param) if param.grad is None else param.grad


def early_messages(params: Sequence[nn.Parameter], workers: Workers) -> GradientMessages | None:
    """Messages for gradients that are worth more than one."""
    size = sum(param.numel() * param.element_size() for param in params)
    return GradientMessages(params) if workers.size > 1 and size >= 2 * EARLY_BYTES else None


SHARED_BYTES = 2**18
"""Bytes of gradients from which processes of one machine sum them in memory that they share; fewer
are sent in one message with the losses, which takes no longer."""
ALIGNMENT = 64
"""Bytes of a line of the processor's cache, at multiples of which gradients begin."""


class SharedGradients:
    """Gradients that processes of one machine sum in memory that they share. Each writes its own
    into a part of the memory and, once all have, adds all parts in the order of the processes, so
    that the sums are the same to the last bit in every process. Messages only say that all are
    done: a connection of the processor to itself copies each byte several times. Every other sum
    has memory of its own: who may write it again has heard of all that they are done with the sum
    in between, hence with the one before."""

    def __init__(
        self, params: Sequence[nn.Parameter], workers: Workers, memory: Sequence[Tensor]
    ) -> None:
        """`memory` has two parts of `shared_bytes` for each process, those of one sum after those
        of the other."""
        self.params, self.workers = params, workers
        parts = [list(views(part, params)) for part in memory]
        self.parts, self.other = parts[: workers.size], parts[workers.size :]

    def write(self) -> None:
        """Write the gradients of this process; a gradient that is None is 0. All processes must
        have heard of one another after it and before `sums`."""
        self.parts, self.other = self.other, self.parts
        with torch.no_grad():
            for place, param in zip(self.parts[self.workers.rank], self.params, strict=True):
                if param.grad is None:
                    place.zero_()
                else:
                    place.copy_(param.grad)

    def sums(self) -> list[Tensor]:
        """The sums, which replace the gradients of this process, once all have written theirs."""
        found = []
        with torch.no_grad():
            for param, first, second, *others in zip(self.params, *self.parts, strict=True):
                out = torch.empty_like(param) if param.grad is None else param.grad
                torch.add(first, second, out=out)
                for other in others:
                    out.add_(other)
                found.append(out)
        return found


def shared_bytes(params: Sequence[nn.Parameter]) -> int:
    """Bytes of these parameters, each from a multiple of ALIGNMENT on."""
    sizes = (param.numel() * param.element_size() for param in params)
    return sum(size + -size % ALIGNMENT for size in sizes)


def views(memory: Tensor, params: Sequence[nn.Parameter]) -> Iterator[Tensor]:
    """Tensors in the bytes of `memory` for values of each parameter."""
    start = 0
    for param in params:
        size = param.numel() * param.element_size()
        yield memory[start : start + size].view(param.dtype).view(param.shape)
        start += size + -size % ALIGNMENT


def shared_gradients(params: Sequence[nn.Parameter], workers: Workers) -> SharedGradients | None:
    """Shared memory for gradients that are worth it, if all processes run on one machine; all of
    them must call this."""
    size = shared_bytes(params)
    on_processor = all(param.device.type == "cpu" for param in params)
    if workers.size == 1 or size < SHARED_BYTES or not on_processor:
        return None
    memory = share_memory(2 * workers.size * size, workers)
    if memory is None:
        return None
    parts = torch.frombuffer(memory, dtype=torch.uint8).split(size)
    return SharedGradients(params, workers, parts)


def share_memory(size: int, workers: Workers) -> mmap.mmap | None:
    """Bytes that all processes map, if the others can open those of the first, as they can on one
    machine. They have no name in a folder, so that nothing is left of them when a process dies."""
    handle, name = -1, f"gradients-{secrets.token_hex(16)}"
    memory: mmap.mmap | None = None

    def create() -> tuple[str, str] | None:
        nonlocal handle, memory
        try:
            handle = os.memfd_create(name)
            os.ftruncate(handle, size)
            memory = mmap.mmap(handle, size)
        except (AttributeError, OSError):  # a system without such memory, or with too little
            return None
        return f"/proc/{os.getpid()}/fd/{handle}", name

    found = workers.agree(create)
    if found and not workers.is_first:
        memory = open_memory(*found, size)
    (missing,) = workers.sum([torch.tensor(float(memory is None))])
    if handle >= 0:
        os.close(handle)
    return None if missing else memory


def open_memory(path: str, name: str, size: int) -> mmap.mmap | None:
    """The memory that another process created under this name, if it is a process of this
    machine."""
    try:
        if name not in os.readlink(path):
            return None
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), size)
    except OSError:
        return None


CONNECTION_WORDS = ("gloo", "NCCL", "Connection reset", "Connection closed")
"""Words in what torch raises when a connection to another process has ended."""


@contextmanager
def naming_lost_workers(computing: bool = False) -> Iterator[None]:
    """A sentence for what torch raises when another process has ended. A block that is `computing`
    between its messages may fail for other reasons, which are not named so."""
    try:
        yield
    except RuntimeError as error:
        if computing and not any(word in str(error) for word in CONNECTION_WORDS):
            raise
        raise LostWorkerError(
            "a worker of this fit ended before it was done; "
            "`monge fit --resume RUN` goes on from its last checkpoint, if it wrote one"
        ) from error


def digest(text: str) -> int:
    """A whole number that identifies a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")


@cache
def code_digest() -> int:
    """A whole number that identifies the source of this library, as it is when a process first
    asks."""
    root = Path(__file__).parent.parent
    found = hashlib.blake2b(digest_size=7)
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\n".encode())
        found.update(path.read_bytes())
    return int.from_bytes(found.digest(), "little")


def join_workers() -> Workers:
    """This process among those that torchrun started, connected to them; alone otherwise."""
    if not all(name in os.environ for name in LAUNCH_VARIABLES):
        return ALONE
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size == 1:
        return ALONE
    if not dist.is_available():
        raise UsageError(
            f"expected a build of torch that supports several processes, found one that does not "
            f"and WORLD_SIZE={size}; install another, or start one process"
        )
    if not dist.is_initialized():
        with naming_lost_workers():
            store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=TIMEOUT))
            # torchrun keeps one store over restarts, and with it the addresses of dead workers
            store = dist.PrefixStore(f"attempt {os.environ.get(RESTARTS, '0')}", store)
            dist.init_process_group(store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        atexit.register(leave_workers)
    return Workers(rank, size)


def leave_workers() -> None:
    """End the connection before the interpreter ends: threads of it that are still there then
    abort the process after all its work is done."""
    if dist.is_initialized():
        dist.destroy_process_group()


def was_restarted() -> bool:
    """Whether torchrun started this process again after a worker had ended."""
    return os.environ.get(RESTARTS, "0") != "0"


LAUNCHED = "MONGE_LAUNCHED"
"""Set for workers that `launch` started: they stop when their standard input ends."""
MOST_PER_PROCESSOR = 4
"""Workers that `launch` starts for each processor at most; each takes memory of its own."""
GRACE_SECONDS = 10.0
"""Seconds that the other workers have to end by themselves once one has failed."""


def launch(command: Sequence[str], count: int, threads: int) -> int:
    """Run the command as `count` workers on this machine, as torchrun would, with `threads` CPU
    threads each, and return its exit code. Signals go to the first worker, which stops all; if
    this process is killed they stop too. RunError if a worker ends without saying why."""
    processors = os.cpu_count() or 1
    if count > (most := MOST_PER_PROCESSOR * processors):
        raise UsageError(
            f"expected at most {most} workers on this machine of {processors} processors, found "
            f"{count}; start fewer, or some on other machines by torchrun"
        )
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is the one of this process
        LAUNCHED: "1",
    }
    shared |= {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}
    workers = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(count)
    ]

    def forward(number: int, frame: FrameType | None) -> None:
        if workers[0].poll() is None:
            workers[0].send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        return wait_for(workers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for(workers: Sequence[subprocess.Popen[bytes]]) -> int:
    """The exit code of the workers once all have ended; after the first failure the others are
    ended if they do not end by themselves."""
    failed, since = None, 0.0
    while None in (codes := [worker.poll() for worker in workers]):
        if failed is None and any(codes):
            failed, since = next(rank for rank, code in enumerate(codes) if code), time.monotonic()
        if failed is not None and time.monotonic() - since > GRACE_SECONDS:
            for worker in workers:
                worker.kill()
        time.sleep(0.05)
    ended = [worker.returncode for worker in workers]
    if ended[0] > 0 or not any(ended):
        return ended[0]
    rank = next(rank for rank, code in enumerate(ended) if code) if failed is None else failed
    how = f"signal {-ended[rank]}" if ended[rank] < 0 else f"code {ended[rank]}"
    raise RunError(
        f"worker {rank} of {len(workers)} ended with {how}; "
        "`monge fit --resume RUN` goes on from its last checkpoint, if it wrote one"
    )


def stop_with_launcher() -> None:
    """If `launch` started this process and it is the first worker, ask it to stop when the process
    that started it ends."""
    if os.environ.get(LAUNCHED) and os.environ.get("RANK") == "0" and sys.stdin is not None:
        threading.Thread(target=watch_parent, args=(sys.stdin,), daemon=True).start()


def watch_parent(parent: IO[str]) -> None:
    """Ask this process to stop when its parent exits or closes the pipe."""
    parent.read()
    signal.raise_signal(signal.SIGTERM)
