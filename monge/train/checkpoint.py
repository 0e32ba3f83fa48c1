"""One file a checkpoint, so that tensors and counters change together or not at all.

safetensors with the counters as JSON in the header: no code can hide in it. The file is written
whole under another name, flushed, and renamed over the old one; a process killed at any instant
leaves either the old file or the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.error import RunError


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
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(unique, fresh, {"about": json.dumps(about), "alias": json.dumps(alias)})
        fresh.chmod(0o644)  # the library writes for its owner alone; a run may be shared
        with open(fresh, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write {path} ({error}); the checkpoint before it is untouched, "
                       "so free some space or mend the folder and resume") from error
    finally:
        fresh.unlink(missing_ok=True)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system lets a folder be flushed."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and counters of a checkpoint, or one sentence why it cannot be read."""
    if not path.is_file():
        raise RunError(f"{path} is missing; the run has not reached its first checkpoint")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = file.metadata() or {}
        about, alias = json.loads(header["about"]), json.loads(header["alias"])
        return tensors | {name: tensors[source] for name, source in alias.items()}, about
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunError(f"{path} is damaged or not a checkpoint of Monge's ({error}); restore it "
                       "from a copy, or fit again") from error


def about(path: Path) -> dict[str, Any]:
    """The counters alone, without the tensors."""
    if not path.is_file():
        raise RunError(f"{path} is missing; the run has not reached its first checkpoint")
    try:
        with safe_open(path, "pt") as file:
            return json.loads((file.metadata() or {})["about"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunError(f"{path} is damaged or not a checkpoint of Monge's ({error})") from error
