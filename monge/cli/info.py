"""Show versions, threads, devices, memory, disk and extras, and what to do about each"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ..core.machine import processor_name
from ..core.memory import available, gigabytes
from ..run import storage
from ._output import Console, common

PACKAGES = ("torch", "numpy", "pandas", "scikit-learn", "scipy")
NOT_EXTRAS = {"dev"}
LITTLE = 2 * 10**9
"""Bytes of memory or disk below which long fits are in danger."""


@click.command("info")
@common
def command(console: Console) -> None:
    """Print what Monge finds on this machine, and remarks where something can be better."""
    found = facts()
    rows = [(name, shown(value)) for name, value in found.items()]
    notes = list(remarks(found))
    text = [console.table(("what", "found"), rows), *(f"- {note}" for note in notes)]
    console.result(found | {"remarks": notes}, "\n".join(text))


def facts() -> dict[str, Any]:
    """What this machine has, by name."""
    import torch

    runs = storage.home()
    place = next(p for p in (runs, *runs.absolute().parents) if p.exists())
    return {
        "monge": version("monge"),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": devices(),
        "memory": available(),
        "runs": str(runs),
        "disk": shutil.disk_usage(place).free,
        "data": os.environ.get("MONGE_DATA", ""),
        "extras": extras(),
    }


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The name of the processor, and the instructions that torch uses of it."""
    import torch

    return f"{processor_name()} ({torch.backends.cpu.get_cpu_capability()})"


def devices() -> list[str]:
    """Where a model can compute."""
    import torch

    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def extras() -> dict[str, list[str]]:
    """The packages that are not installed of each extra; none if it is complete."""
    found: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("monge") or []:
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if match and match[2] not in NOT_EXTRAS:
            missing = found.setdefault(match[2], [])
            missing += [match[1]] if version(match[1]) is None else []
    return dict(sorted(found.items()))


def shown(value: Any) -> str:
    if isinstance(value, dict):
        whole = [name for name, missing in value.items() if not missing]
        return ", ".join(whole) or "none"
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, int) and value > 10**6:
        return gigabytes(value)
    return "none" if value in (None, "") else str(value)


def remarks(found: dict[str, Any]) -> Iterator[str]:
    """What to do about what was found."""
    if found["devices"] == ["cpu"]:
        yield "no accelerator: fits run on the processor; give them larger budgets"
    if found["threads"] < (found["cores"] or 1):
        yield (
            f"{found['threads']} of {found['cores']} cores are used: OMP_NUM_THREADS or --threads "
            "sets the number"
        )
    if found["memory"] < LITTLE:
        yield (
            f"{gigabytes(found['memory'])} of memory are free: lower train.batch_size, or use "
            "--dry-run before a fit"
        )
    if found["disk"] < LITTLE:
        yield (
            f"{gigabytes(found['disk'])} of disk are free at {found['runs']}: "
            "`monge runs --compact` frees some, or set MONGE_RUNS"
        )
    lacking = {name: names for name, names in found["extras"].items() if names}
    for name, names in lacking.items():
        yield f"extra {name} lacks {', '.join(names)}: pip install 'monge[{name}]'"
    data = [part for part in found["data"].split(os.pathsep) if part]
    for part in data:
        if not Path(part).is_dir():
            yield f"MONGE_DATA names {part}, which is no folder: correct it"
