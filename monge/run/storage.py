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
from contextlib import contextmanager, suppress
from pathlib import Path
from types import NoneType
from typing import Any

from filelock import FileLock, Timeout

from ..core.errors import RunError, UsageError, nearest, shown
from ..core.files import DRAFT, leaks, replacing


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for as long as the block lasts."""
    lock = FileLock(folder / ".lock", blocking=False, fallback_to_soft=False)
    try:
        os.stat(os.path.join(folder, ""))  # filelock would make a folder that is not there
        hold = lock.acquire()
    except Timeout:
        raise RunError(
            f"{folder} is in use by another process, which trains there; wait for it, or choose "
            "another folder with --out"
        ) from None
    except OSError as error:
        raise RunError(
            f"cannot write in {folder} ({error.strerror}); choose another with --out or MONGE_RUNS"
        ) from error
    with hold:
        sweep(folder)
        yield


def sweep(folder: Path) -> None:
    """Remove what killed processes left half written in a folder whose lock is held; figures are
    written without the lock, so that theirs must be old."""
    for path in (*folder.glob(".*"), *folder.glob("figures/.*")):
        with suppress(OSError):  # removed by another process
            old = time.time() - path.lstat().st_mtime > LOCK_SECONDS
            if DRAFT.fullmatch(path.name) and (old or path.parent == folder):
                path.unlink()


def is_locked(path: Path) -> bool:
    """Whether a process holds this lock file. Linux lists who holds what, so that asking takes no
    lock from anyone; elsewhere it is taken for an instant."""
    try:
        about = os.stat(path)
        held = Path("/proc/locks").read_text(encoding="ascii")
    except FileNotFoundError:
        if not os.path.exists(path):
            return False
    except OSError:
        return False
    else:
        place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
        return any(
            place in words and "->" not in words for words in map(str.split, held.splitlines())
        )
    lock = FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        with lock.acquire():
            return False
    except (Timeout, OSError):
        return True


FORMAT = 2
"""Of every JSON file of a run or a comparison; from 2 on a new format reads the older ones."""
MAX_NAME_BYTES = 150
"""Bytes of a name made from data; file systems take 255, and names get additions."""
KEYS: dict[str, tuple[type, ...]] = {
    "monge": (str,),
    "model": (str,),
    "config": (dict,),
    "train": (dict,),
    "space": (dict,),
    "data": (dict,),
    "event": (str, list, NoneType),
    "given": (list,),
    "target": (str, list, NoneType),
    "seed": (int,),
    "precision": (str,),
    "python": (str,),
    "torch": (str,),
}
"""Required keys of run.json with their types."""
DATA_KEYS: dict[str, tuple[type, ...]] = {
    "what": (str, NoneType),
    "name": (str,),
    "overrides": (list,),
    "fingerprint": (str,),
}
"""Required keys of its entry `data`."""
OPTIONAL_DATA_KEYS: dict[str, tuple[type, ...]] = {
    "path": (str, NoneType),
    "bytes": (int, NoneType),
}
"""Keys of its entry `data` that early runs lack."""
TYPE_NAMES = {
    str: "text",
    dict: "an object",
    list: "a list",
    int: "a whole number",
    float: "a number",
}
FILES = (
    "run.json",
    "fields.json",
    "log.jsonl",
    "card.md",
    "findings.json",
    "metrics.json",
    "rows.npy",
    "compare.json",
    "tune.json",
    "journal.jsonl",
    "parts",
    "tokens",
    ".lock",
)
"""Files of runs, comparisons and searches, besides checkpoints."""
OWN_FOLDER = ("run.json", "compare.json", "tune.json")
"""Files that show that a folder is a run, a comparison or a search."""
DRAFT_RUN, LOCK_SECONDS = ".draft-", 60
"""Prefix of a run folder that is being made, and the age at which it is certainly locked, unless
it is abandoned."""
FEATURES = "features.safetensors"
"""The network whose features compare samples with data, trained when a run is evaluated."""
TRASH = ".trash"
"""Directory beside the runs that deleted runs are moved to."""


SHARED_WEIGHTS = "model.safetensors"
"""The weights in a folder for a model hub."""


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
    check_writable_name(wanted)
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        sweep_drafts(wanted.parent)
        draft = Path(tempfile.mkdtemp(prefix=DRAFT_RUN, dir=wanted.parent))
        with locked(draft):  # the lock moves with the folder
            fill(draft, files, parts)
            for folder in candidates(wanted) if numbered else [wanted]:
                if folder.exists():
                    continue
                try:
                    os.rename(draft, folder)
                except OSError:  # someone else took the name in this instant
                    continue
                return folder
            shutil.rmtree(draft)
    except OSError as error:
        raise RunError(
            f"cannot make a run folder at {wanted} ({error.strerror}); choose another "
            "place with --out or MONGE_RUNS"
        ) from error
    raise RunError(f"{wanted} exists; give --out another name, or --resume {wanted} to go on")


def fill(draft: Path, files: Mapping[str, Any], parts: Mapping[str, Path]) -> None:
    """Write the files of a new folder; if that fails, the folder is removed."""
    try:
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
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def check_writable_name(folder: Path) -> None:
    """Refuse a name that checkpoints cannot be written under, before there is anything in it."""
    try:
        os.fspath(folder).encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(
            f"expected a folder whose name is UTF-8, found {str(folder)!a}; give --out or "
            "MONGE_RUNS another"
        ) from None


def find_same(wanted: Path, numbered: bool, metadata: Mapping[str, Any]) -> Path | None:
    """The newest run with this name, or a number where `numbered`, that has this metadata."""
    found = None
    for folder in candidates(wanted) if numbered else [wanted]:
        if not (folder / "run.json").exists():
            break
        if read(folder, "run.json") == json.loads(json.dumps(metadata)):
            found = folder
        if not numbered:
            break
    return found


def sweep_drafts(folder: Path) -> None:
    """Remove the drafts of run folders that killed processes left here: nobody holds them."""
    for draft in folder.glob(f"{DRAFT_RUN}*"):
        with suppress(RunError, OSError):  # in use, or removed by another process
            if time.time() - draft.lstat().st_mtime > LOCK_SECONDS and not draft.is_symlink():
                with locked(draft):
                    shutil.rmtree(draft, ignore_errors=True)


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
    """What `with_format` was given; RunError for a format that this version does not read."""
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


def check_types(path: Path, content: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    """Refuse a saved object that lacks a key, or has one of another type."""
    if lacking := [key for key in keys if key not in content]:
        raise RunError(
            f"{path} lacks {', '.join(lacking)}; the run is damaged, or not one of Monge's"
        )
    for key, kinds in keys.items():
        if type(content[key]) not in kinds:
            raise RunError(
                f"{path}: expected {key} to be {TYPE_NAMES[kinds[0]]}, found "
                f"{shown(content[key])}; the run is damaged"
            )


def read_metadata(folder: Path) -> dict[str, Any]:
    """The run.json of a run, with all that every run has."""
    path, about = folder / "run.json", read(folder, "run.json")
    check_types(path, about, KEYS)
    known = {key: kinds for key, kinds in OPTIONAL_DATA_KEYS.items() if key in about["data"]}
    check_types(path, about["data"], DATA_KEYS | known)
    for key in ("event", "given", "target"):
        names = about[key] if isinstance(about[key], list) else []
        if not all(isinstance(name, str) for name in names):
            raise RunError(
                f"{path}: expected names in {key}, found {shown(about[key])}; the run is damaged"
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
        if own and any((folder / name).is_file() for name in OWN_FOLDER):
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


def compact(folder: Path) -> int:
    """Delete what only resuming needs, and what evaluating makes anew; bytes that are free now.
    The run can no longer be resumed, and its date stays."""
    before, path = size(folder), folder / "run.json"
    changed = os.stat(path)
    about = read(folder, "run.json")
    write(path, json.dumps(with_format({**about, "compacted": True}), indent=1) + "\n")
    os.utime(path, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    for name in ("last.safetensors", FEATURES):
        (folder / name).unlink(missing_ok=True)
    return before - size(folder)


def size(folder: Path) -> int:
    """Bytes of all its files; what links point to is not among them."""
    return sum(
        os.lstat(Path(where, name)).st_size
        for where, _, files in os.walk(folder)
        for name in files
    )


MEASURE_OPTIONS = ("missing", "space", "constraints")
"""Options of data that decide what a log-likelihood is of, so that values are comparable only if
they are equal: part of the data's name."""


def data_name(about: Mapping[str, Any]) -> str:
    """The name of a run's data with the options that decide what is modelled of it, as in
    `titanic (missing=ignore)`."""
    origin = about["data"]
    chosen = sorted(
        option
        for option in origin.get("overrides", ())
        if option.partition("=")[0] in MEASURE_OPTIONS
    )
    return origin["name"] + (f" ({', '.join(chosen)})" if chosen else "")


class Log:
    """log.jsonl: one JSON object per line, truncated to the step of the checkpoint on resuming."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: Mapping[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def cut(self, step: int) -> None:
        """Remove the records after `step` and a half-written last line."""
        text = "".join(json.dumps(r) + "\n" for r in self if r["step"] <= step)
        with replacing(self.path) as fresh:
            fresh.write_text(text, encoding="utf-8")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                return
            if not is_record(record):
                return
            yield record


def is_record(found: Any) -> bool:
    """Whether a line of the log is one that a run wrote: counters and means, each a number."""
    if not isinstance(found, dict):
        return False
    terms, norms = found.get("terms"), found.get("norms")
    if not isinstance(terms, dict) or not isinstance(norms, dict):
        return False
    counters = [found.get(name) for name in ("step", "epoch", "seconds")]
    return all(map(is_number, [*terms.values(), *norms.values(), *counters])) and isinstance(
        found.get("held_out", ""), dict | NoneType
    )


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
