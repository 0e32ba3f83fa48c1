"""Checkpoints: tensors and counters in one file, which change together or not at all.

The format is safetensors with the counters as JSON in the header, which cannot hold code. The file
is written under another name, flushed and renamed over the old one: a process killed at any time
leaves either the old file or the new one. Checksums in the header detect any changed bit of
the tensors or the counters.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import RunError, shown
from ..core.files import replacing

COUNTERS_CHECKSUM, TENSORS_CHECKSUM = "crc32_counters", "crc32_tensors"
"""Names of the checksums in the header. CRC-32 detects every burst of up to 32 wrong bits and is
three times as fast as BLAKE2; it does not protect against deliberate changes."""


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
        raise RunError(
            f"cannot write {path} ({error}); the previous checkpoint is intact: free disk space "
            "or fix the permissions, then resume"
        ) from error


def counters_checksum(header: Mapping[str, str]) -> str:
    return f"{zlib.crc32(header['alias'].encode(), zlib.crc32(header['about'].encode())):08x}"


def tensors_checksum(tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 of names, types, shapes and values."""
    found = 0
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def verify_checksum(header: Mapping[str, str], name: str, found: str) -> None:
    if header.get(name) != found:
        raise ValueError(f"expected {name} {header.get(name)}, found {found}")


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and counters of a checkpoint; RunError if it cannot be read."""
    if not path.is_file():
        raise RunError(f"{path} is missing; the run has not reached its first checkpoint")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = file.metadata() or {}
        verify_checksum(header, COUNTERS_CHECKSUM, counters_checksum(header))
        verify_checksum(header, TENSORS_CHECKSUM, tensors_checksum(tensors))
        about, alias = read_object(header, "about"), read_object(header, "alias")
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
