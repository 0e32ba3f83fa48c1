"""One file a checkpoint, so that tensors and counters change together or not at all.

safetensors with the counters as JSON in the header: no code can hide in it. The file is written
whole under another name, flushed, and renamed over the old one; a process killed at any instant
leaves either the old file or the new one. Checksums in the header show whether any bit of the
tensors or of the counters has changed since.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import RunError
from ..core.files import replacing

COUNTERS, TENSORS = "crc32_counters", "crc32_tensors"
"""Names of the checksums in the header. CRC-32 finds every burst of up to 32 wrong bits and is
three times as fast as BLAKE2; it does not protect from someone who means harm."""


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
    header |= {COUNTERS: sum_of_counters(header), TENSORS: sum_of_tensors(unique)}
    try:
        with replacing(path) as fresh:
            save_file(unique, fresh, header)
            fresh.chmod(0o644)  # the library writes for its owner alone; a run may be shared
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"cannot write {path} ({error}); the checkpoint before it is untouched, "
            "so free some space or repair the folder and resume"
        ) from error


def sum_of_counters(header: Mapping[str, str]) -> str:
    return f"{zlib.crc32(header['alias'].encode(), zlib.crc32(header['about'].encode())):08x}"


def sum_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and values."""
    found = 0
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def compare(header: Mapping[str, str], name: str, found: str) -> None:
    if header.get(name) != found:
        raise ValueError(f"expected {name} {header.get(name)}, found {found}")


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and counters of a checkpoint, or one sentence why it cannot be read."""
    if not path.is_file():
        raise RunError(f"{path} is missing; the run has not reached its first checkpoint")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = file.metadata() or {}
        compare(header, COUNTERS, sum_of_counters(header))
        compare(header, TENSORS, sum_of_tensors(tensors))
        about, alias = json.loads(header["about"]), json.loads(header["alias"])
        return tensors | {name: tensors[source] for name, source in alias.items()}, about
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunError(
            f"{path} is damaged or not a checkpoint of Monge's ({error}); restore it "
            "from a copy, or fit again"
        ) from error


def about(path: Path) -> dict[str, Any]:
    """The counters alone; the tensors are neither read nor checked."""
    if not path.is_file():
        raise RunError(f"{path} is missing; the run has not reached its first checkpoint")
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
        compare(header, COUNTERS, sum_of_counters(header))
        return json.loads(header["about"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunError(
            f"{path} is damaged or not a checkpoint of Monge's ({error}); restore it "
            "from a copy, or fit again"
        ) from error
