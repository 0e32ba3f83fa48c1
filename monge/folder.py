"""A run is a folder of plain files: naming it, making it whole at once, reading what it says.

    run.json  fields.json  last.safetensors  best.safetensors  log.jsonl  card.md  parts/  tokens/
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .core.error import RunError, nearest, shown

FORMAT = 2
"""Of every JSON file of a run or a comparison; from 2 on a new format reads the older ones."""
LONGEST = 150
"""Bytes of a name that is made up from data; file systems take 255, and names get additions."""


def home() -> Path:
    """Where runs go."""
    return Path(os.environ.get("MONGE_RUNS", "runs"))


def named(title: str) -> Path:
    """The place of a run or comparison with this title, which comes from data: always directly in
    the folder of runs, with a name of letters, digits and . _ + - that any file system takes."""
    name = re.sub(r"[^\w.+-]+", "-", title).lstrip(".") or "-"
    if len(name.encode()) > LONGEST:
        digest = hashlib.sha256(title.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        name = f"{name.encode()[:LONGEST - 9].decode('utf-8', 'ignore')}-{digest}"
    return home() / name


def create(wanted: Path, numbered: bool, files: Mapping[str, Any],
           parts: Mapping[str, Path]) -> Path:
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
            shutil.copytree(run, draft / "parts" / field,
                            ignore=shutil.ignore_patterns("last.safetensors", ".*", "pictures"))
    except OSError as error:
        raise RunError(f"cannot make a run folder at {wanted} ({error.strerror}); choose another "
                       "place with --out or MONGE_RUNS") from error
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
    raise RunError(where + (nearest(Path(name).name, known) if known else
                            "; `monge fit MODEL DATA` makes one"))


def listing() -> list[Path]:
    """Every run, oldest first."""
    found = [path.parent for path in home().glob("*/run.json") if path.parent.name[0] != "."]
    return sorted(found, key=lambda folder: (folder / "run.json").stat().st_mtime)


def read(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run."""
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{folder / name} cannot be read ({error}); the run is damaged") from error
    return unstamped(folder / name, content)


def stamped(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON file with the format it is written in."""
    return {"format": FORMAT, **content}


def unstamped(path: Path, content: Any) -> dict[str, Any]:
    """What `stamped` was given, or a sentence about a format that this version does not read."""
    if not isinstance(content, dict):
        raise RunError(f"{path}: expected an object, found {shown(content)}; the run is damaged")
    found = content.pop("format", 1)  # format 1 had a number in run.json alone
    if found == 1:
        raise RunError(f"{path} was written by an older version (format 1); refit it")
    if found != FORMAT:
        raise RunError(f"{path}: expected format {FORMAT}, found {shown(found)}; use a newer "
                       "version of Monge")
    return content


def write(path: Path, text: str) -> None:
    """Replace a small file whole."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)
    except OSError as error:
        raise RunError(f"cannot write {path} ({error.strerror})") from error


def size(folder: Path) -> int:
    """Bytes of all its files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
