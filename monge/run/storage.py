"""Run directories: naming, atomic creation, locking, reading and deleting.

    run.json  fields.json  last.safetensors  best.safetensors  log.jsonl  card.md  parts/  tokens/

One process writes at a time, under a lock that the system releases when the process ends:
filelock uses flock (msvcrt on Windows). Its soft lock, a file that a killed process would leave
behind, is never used: a file system without locks is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..core.errors import RunError, UsageError, nearest, shown
from ..core.files import leaks, replacing


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for as long as the block lasts."""
    lock = FileLock(folder / ".lock", blocking=False, fallback_to_soft=False)
    try:
        os.stat(os.path.join(folder, ""))  # filelock would make a folder that is not there
        hold = lock.acquire()
    except Timeout:
        raise RunError(
            f"{folder} is being trained by another process; wait for it, or start "
            "a run of its own with --out"
        ) from None
    except OSError as error:
        raise RunError(
            f"cannot write in {folder} ({error.strerror}); choose another with --out or MONGE_RUNS"
        ) from error
    with hold:
        yield


FORMAT = 2
"""Of every JSON file of a run or a comparison; from 2 on a new format reads the older ones."""
MAX_NAME_BYTES = 150
"""Bytes of a name made from data; file systems take 255, and names get additions."""
KEYS = (
    "monge",
    "model",
    "config",
    "train",
    "space",
    "data",
    "event",
    "given",
    "target",
    "seed",
    "precision",
)
"""Required keys of run.json."""
FILES = (
    "run.json",
    "fields.json",
    "log.jsonl",
    "card.md",
    "findings.json",
    "metrics.json",
    "rows.npy",
    "compare.json",
    "parts",
    "tokens",
    ".lock",
)
"""Files of runs and comparisons, besides checkpoints."""
TRASH = ".trash"
"""Directory beside the runs that deleted runs are moved to."""


def home() -> Path:
    """The directory of runs: MONGE_RUNS, or runs/."""
    return Path(os.environ.get("MONGE_RUNS", "runs"))


def default_path(title: str) -> Path:
    """The place of a run or comparison with this title, which comes from data: always directly in
    the folder of runs, with a name of letters, digits and . _ + - that any file system takes."""
    name = re.sub(r"[^\w.+-]+", "-", title).lstrip(".") or "-"
    if len(name.encode()) > MAX_NAME_BYTES:
        digest = hashlib.sha256(title.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        name = f"{name.encode()[: MAX_NAME_BYTES - 9].decode('utf-8', 'ignore')}-{digest}"
    return home() / name


def create(
    wanted: Path, numbered: bool, files: Mapping[str, Any], parts: Mapping[str, Path]
) -> Path:
    """A new folder with these JSON files and copies of these runs in it, there whole or not at
    all; a taken name gets -2, -3, ... where `numbered`, and is refused otherwise."""
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{wanted.name}.", dir=wanted.parent))
        draft.chmod(0o755)
        for name, content in files.items():
            (draft / name).parent.mkdir(exist_ok=True)
            (draft / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        for field, run in parts.items():
            shutil.copytree(
                run,
                draft / "parts" / field,
                ignore=shutil.ignore_patterns("last.safetensors", ".*", "figures"),
            )
    except OSError as error:
        raise RunError(
            f"cannot make a run folder at {wanted} ({error.strerror}); choose another "
            "place with --out or MONGE_RUNS"
        ) from error
    for folder in candidates(wanted) if numbered else [wanted]:
        if folder.exists():
            continue
        try:
            os.rename(draft, folder)
        except OSError:  # someone else took the name in this instant
            continue
        return folder
    shutil.rmtree(draft)
    raise RunError(f"{wanted} exists; give --out another name, or --resume {wanted} to go on")


def candidates(wanted: Path) -> Iterator[Path]:
    yield wanted
    number = 2
    while True:
        yield wanted.with_name(f"{wanted.name}-{number}")
        number += 1


def locate(name: str | Path) -> Path:
    """The folder of a run named by path, or by its name among the runs."""
    for folder in (Path(name), home() / name):
        if os.path.isfile(folder / "run.json"):  # a name too long is none
            return folder
    known = [folder.name for folder in listing()]
    where = f"{name} is not a run" if os.path.exists(name) else f"there is no run {str(name)!r}"
    raise RunError(
        where
        + (nearest(Path(name).name, known) if known else "; `monge fit MODEL DATA` makes one")
    )


def listing() -> list[Path]:
    """Every run, damaged ones too, oldest first."""
    found = {
        path.parent: os.lstat(path).st_mtime
        for name in ("fields.json", "run.json")
        for path in home().glob(f"*/{name}")
        if path.parent.name[0] != "."
    }
    return sorted(found, key=found.__getitem__)


def read(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run, none of whose files lies elsewhere."""
    for link in leaks(folder):
        raise RunError(
            f"{link} is a link that leads out of {folder}; put the file itself there, "
            "or remove the link"
        )
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{folder / name} cannot be read ({error}); the run is damaged") from error
    return check_format(folder / name, content)


def with_format(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON file with the format it is written in."""
    return {"format": FORMAT, **content}


def check_format(path: Path, content: Any) -> dict[str, Any]:
    """What `stamped` was given, or a sentence about a format that this version does not read."""
    if not isinstance(content, dict):
        raise RunError(f"{path}: expected an object, found {shown(content)}; the run is damaged")
    found = content.pop("format", 1)  # format 1 had a number in run.json alone
    if found == 1:
        raise RunError(f"{path} was written by an older version (format 1); refit it")
    if found != FORMAT:
        raise RunError(
            f"{path}: expected format {FORMAT}, found {shown(found)}; use a newer version of Monge"
        )
    return content


def read_metadata(folder: Path) -> dict[str, Any]:
    """The run.json of a run, with all that every run has."""
    about = read(folder, "run.json")
    if lacking := [key for key in KEYS if key not in about]:
        raise RunError(
            f"{folder / 'run.json'} lacks {', '.join(lacking)}; the run is damaged, or "
            "not one of Monge's"
        )
    return about


def write(path: Path, text: str) -> None:
    """Replace a small file atomically."""
    try:
        with replacing(path) as fresh:
            fresh.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"cannot write {path} ({error.strerror}); free some space, or choose a "
            "place where you may write"
        ) from error


def check_output_path(out: Path) -> Path:
    """A file to write that someone named, unless a run or a comparison needs what it replaces."""
    path = Path(os.path.realpath(out.parent), out.name)
    for folder in path.parents:
        first = path.relative_to(folder).parts[0].casefold()
        own = first in FILES or path.suffix.casefold() == ".safetensors"
        if own and any((folder / name).is_file() for name in ("run.json", "compare.json")):
            raise UsageError(f"{out} is part of the run in {folder}; choose another file to write")
    return out


def discard(folder: Path) -> Path:
    """Move a run to the trash beside it, under its name and the time; where it is now."""
    trash = folder.parent / TRASH
    wanted = trash / f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        trash.mkdir(exist_ok=True)
        place = next(place for place in candidates(wanted) if not place.exists())
        os.rename(folder, place)
        return place
    except OSError as error:
        raise RunError(
            f"cannot move {folder} to {trash} ({error.strerror}); check its permissions"
        ) from error


def size(folder: Path) -> int:
    """Bytes of all its files; what links point to is not among them."""
    return sum(
        os.lstat(Path(where, name)).st_size
        for where, _, files in os.walk(folder)
        for name in files
    )
