"""Checkpoints: tensors and counters in one file, which change together or not at all.

The format is safetensors with the counters as JSON in the header, which cannot hold code. The file
is written under another name, flushed and renamed over the old one: a process killed at any time
leaves either the old file or the new one. Checksums in the header detect any changed bit of
the tensors or the counters.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import RunError, shown
from ..core.files import replacing

COUNTERS_CHECKSUM, TENSORS_CHECKSUM = "crc32_counters", "crc32_tensors"
"""Names of the checksums in the header. CRC-32 detects every burst of up to 32 wrong bits and is
three times as fast as BLAKE2; it does not protect against deliberate changes."""
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of the types of numbers in safetensors."""


class Opened(Mapping[str, Tensor]):
    """The tensors of a file, each of which is read when it is asked for."""

    def __init__(self, path: Path, names: Mapping[str, str]) -> None:
        self.path, self.names = path, names  # names of tensors in the file by their names

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self.path, "pt") as file:
            return file.get_tensor(self.names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def save(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write `tensors` and `about` as one file; tied tensors are written once."""
    unique, alias = {}, {}
    seen: dict[Any, str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else name
        if key in seen:
            alias[name] = seen[key]
        else:
            seen[key] = name
            unique[name] = tensor.detach().cpu().contiguous()
    header = {"about": json.dumps(about), "alias": json.dumps(alias)}
    header |= {
        COUNTERS_CHECKSUM: counters_checksum(header),
        TENSORS_CHECKSUM: tensors_checksum(unique),
    }
    try:
        with replacing(path) as fresh:
            save_file(unique, fresh, header)
            fresh.chmod(
                0o644
            )  # safetensors makes it readable for its owner only; a run may be shared
    except (OSError, SafetensorError) as error:
        raise unwritable(path, error) from error


def save_in_turn(
    path: Path,
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any],
    read: Callable[[Tensor], Tensor],
    write: bool = True,
) -> None:
    """The file that `save` writes, with one tensor at a time in memory: `read` gives its values,
    and is called for the same tensors in every process, one of which is to `write`."""
    first: dict[int, str] = {}
    alias = {
        name: found
        for name, tensor in tensors.items()
        if (found := first.setdefault(id(tensor), name)) != name
    }
    unique = {name: tensor for name, tensor in sorted(tensors.items()) if name not in alias}
    header = {"about": json.dumps(about), "alias": json.dumps(alias)}
    values = ((name, read(tensor)) for name, tensor in unique.items())
    problem: OSError | None = None
    if write:
        try:
            with replacing(path) as fresh, open(fresh, "wb") as file:
                write_in_turn(file, unique, header, values)
        except OSError as error:
            problem = error
    for _ in values:  # the other processes exchange the rest
        pass
    if problem:
        raise unwritable(path, problem) from problem


def write_in_turn(
    file: IO[bytes],
    tensors: Mapping[str, Tensor],
    header: Mapping[str, str],
    values: Iterable[tuple[str, Tensor]],
) -> None:
    """Write the format of safetensors: the length of a header, the header as JSON with the place
    of each tensor, and the `values` of the tensors, those with the widest numbers first."""
    places, end = {}, 0
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        start, end = end, end + tensor.numel() * tensor.element_size()
        kind = DTYPES[tensor.dtype]
        places[name] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [start, end]}
    sums = {COUNTERS_CHECKSUM: counters_checksum(header), TENSORS_CHECKSUM: "0" * 8}

    def begin() -> int:
        text = json.dumps({"__metadata__": {**header, **sums}, **places}).encode()
        text += b" " * (-len(text) % 8)
        file.seek(0)
        file.write(len(text).to_bytes(8, "little") + text)
        return 8 + len(text)

    head, found = begin(), 0
    file.truncate(head + end)
    for name, value in values:
        whole = value.detach().cpu().contiguous()
        found = extended_checksum(found, name, whole)
        file.seek(head + places[name]["data_offsets"][0])
        file.write(bytes_of(whole))
    sums[TENSORS_CHECKSUM] = f"{found:08x}"
    begin()


def unwritable(path: Path, error: Exception) -> RunError:
    return RunError(
        f"cannot write {path} ({error}); the previous checkpoint is intact: free disk space "
        "or fix the permissions, then resume"
    )


def counters_checksum(header: Mapping[str, str]) -> str:
    return f"{zlib.crc32(header['alias'].encode(), zlib.crc32(header['about'].encode())):08x}"


def tensors_checksum(tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 of names, types, shapes and values."""
    found = 0
    for name in sorted(tensors):
        found = extended_checksum(found, name, tensors[name])
    return f"{found:08x}"


def extended_checksum(found: int, name: str, tensor: Tensor) -> int:
    found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
    return zlib.crc32(bytes_of(tensor), found)


def bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def verify_checksum(header: Mapping[str, str], name: str, found: str) -> None:
    if header.get(name) != found:
        raise ValueError(f"expected {name} {header.get(name)}, found {found}")


def load(path: Path, in_turn: bool = False) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
    """The tensors and counters of a checkpoint; RunError if it cannot be read. If `in_turn` each
    tensor is read when it is asked for."""
    if not path.is_file():
        raise RunError(f"{path} is missing; the run has not reached its first checkpoint")
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            tensors = {} if in_turn else {name: file.get_tensor(name) for name in names}
            header = file.metadata() or {}
        verify_checksum(header, COUNTERS_CHECKSUM, counters_checksum(header))
        about, alias = read_object(header, "about"), read_object(header, "alias")
        own = {name: name for name in names}
        found = tensors_checksum(Opened(path, own) if in_turn else tensors)
        verify_checksum(header, TENSORS_CHECKSUM, found)
        if in_turn:
            return Opened(path, own | alias), about
        return tensors | {name: tensors[source] for name, source in alias.items()}, about
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunError(
            f"{path} is damaged or not a Monge checkpoint ({error}); restore it from a copy, or "
            "fit again"
        ) from error


def read_object(header: Mapping[str, str], name: str) -> dict[str, Any]:
    found = json.loads(header[name])
    if not isinstance(found, dict):
        raise ValueError(f"expected an object as {name}, found {shown(found)}")
    return found


def about(path: Path) -> dict[str, Any]:
    """The counters alone; the tensors are neither read nor checked."""
    if not path.is_file():
        raise RunError(f"{path} is missing; the run has not reached its first checkpoint")
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
        verify_checksum(header, COUNTERS_CHECKSUM, counters_checksum(header))
        return read_object(header, "about")
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise RunError(
            f"{path} is damaged or not a Monge checkpoint ({error}); restore it from a copy, or "
            "fit again"
        ) from error


def check_same_names(what: str, found: Collection[str], expected: Collection[str]) -> None:
    """Raise ValueError unless the names found are those expected."""
    if missing := sorted({*expected} - {*found}):
        raise ValueError(f"{what}: {missing[0]} is missing")
    if others := sorted({*found} - {*expected}):
        raise ValueError(f"{what}: {others[0]} is not expected")
