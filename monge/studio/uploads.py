"""Files that people bring: named safely, bounded, and unpacked if they are a zip."""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

from ..core.errors import DataError, RunError
from ..run import storage

FOLDER = "uploads"
MAX_UPLOAD = 512 << 20
"""Bytes of an upload."""
MAX_UNPACKED = 2 << 30
"""Bytes of all files of a zip."""
MAX_FILES = 200_000
MAX_RATIO = 200
"""Most bytes that a byte of a zip may become: pictures and text stay far below."""
RATIO_FROM = 10 << 20
"""Bytes below which the ratio does not matter."""
TABLES = (".csv", ".tsv", ".txt", ".npy", ".npz", ".wav", ".parquet", ".gz")
INSIDE = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".webp")
"""Suffixes of files, and of further files in a zip."""
CHUNK = 1 << 20


def home() -> Path:
    return storage.home() / FOLDER


def safe_name(name: str) -> str:
    """The name of a file, with letters, digits and . _ - alone; never hidden, never a path."""
    last = re.split(r"[/\\]", name)[-1]
    found = re.sub(r"[^\w.-]+", "-", last, flags=re.ASCII).lstrip(".-")[-100:]
    return found.lstrip(".-") or "data"


def listing() -> list[Path]:
    try:
        return sorted(path for path in home().iterdir() if path.name[0] != ".")
    except OSError:
        return []


def free_path(name: str) -> Path:
    stem, dot, rest = name.partition(".")
    number = 1
    while True:
        path = home() / (name if number == 1 else f"{stem}-{number}{dot}{rest}")
        if not path.exists():
            return path
        number += 1


def save(name: str, content: IO[bytes]) -> Path:
    """Write an upload below the runs, whole or not at all; a zip becomes a folder."""
    name = safe_name(name)
    suffix = Path(name).suffix.lower()
    if suffix not in (*TABLES, ".zip"):
        raise DataError(
            f"expected a file that ends in {', '.join(TABLES)} or .zip, found {name!r}; rename "
            "it, or pack pictures or sounds into a zip"
        )
    try:
        home().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".upload-", dir=home()) as scratch:
            draft = Path(scratch) / name
            copy(content, draft, MAX_UPLOAD, name)
            if suffix == ".zip":
                inner = Path(scratch) / "unpacked"
                unpack(draft, inner, name)
                draft, name = single_folder(inner), name[: -len(".zip")] or "data"
            path = free_path(name)
            shutil.move(draft, path)
            return path
    except OSError as error:
        raise RunError(
            f"cannot write below {home()} ({error.strerror}); free some space, or choose another "
            "folder with --runs"
        ) from error


def copy(content: IO[bytes], path: Path, limit: int, name: str) -> int:
    """Copy at most `limit` bytes; a sentence if there are more."""
    size = 0
    with open(path, "xb") as file:
        while piece := content.read(CHUNK):
            size += len(piece)
            if size > limit:
                raise DataError(
                    f"expected at most {limit >> 20} MB in {name}, found more; give the path on "
                    "the command line instead, or fewer rows"
                )
            file.write(piece)
    return size


def unpack(archive: Path, folder: Path, name: str) -> None:
    """The data files of a zip. What they claim to hold is checked first, and what they really
    hold while they are written, as a claim may be false."""
    folder.mkdir()
    try:
        with zipfile.ZipFile(archive) as found:
            entries = [entry for entry in found.infolist() if is_data(entry)]
            check_claims(entries, archive, name)
            left = MAX_UNPACKED
            for entry in entries:
                parts = [safe_name(part) for part in PurePosixPath(entry.filename).parts]
                path = folder.joinpath(*parts[-4:])
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists():
                    continue
                with found.open(entry) as content:
                    left -= copy(content, path, min(left, entry.file_size), entry.filename)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{name} cannot be unpacked ({error}); pack it again as a plain zip without a password"
        ) from error


def is_data(entry: zipfile.ZipInfo) -> bool:
    """Whether a file of a zip is data: pictures, sounds, text; no links, no hidden files."""
    path = PurePosixPath(entry.filename.replace("\\", "/"))
    is_link = (entry.external_attr >> 16) & 0o170000 == 0o120000
    plain = not any(part.startswith((".", "__MACOSX")) for part in path.parts)
    return (
        plain
        and not entry.is_dir()
        and not is_link
        and path.suffix.lower() in (*TABLES, *INSIDE)
        and not path.is_absolute()
    )


def check_claims(entries: list[zipfile.ZipInfo], archive: Path, name: str) -> None:
    size = sum(entry.file_size for entry in entries)
    if not entries:
        raise DataError(
            f"expected pictures, sounds, text or tables in {name}, found none; pack such files"
        )
    if len(entries) > MAX_FILES or size > MAX_UNPACKED:
        raise DataError(
            f"expected at most {MAX_FILES} files and {MAX_UNPACKED >> 20} MB in {name}, found "
            f"{len(entries)} files and {size >> 20} MB; pack fewer"
        )
    if size > RATIO_FROM and size > MAX_RATIO * archive.stat().st_size:
        raise DataError(
            f"{name} would grow {size // max(archive.stat().st_size, 1)}-fold when unpacked, "
            f"expected at most {MAX_RATIO}-fold; unpack it yourself and give the folder"
        )


def single_folder(folder: Path) -> Path:
    """The folder in a folder that holds nothing else."""
    inside = list(folder.iterdir())
    if len(inside) == 1 and (inside[0].is_dir() or inside[0].suffix.lower() in TABLES):
        return single_folder(inside[0]) if inside[0].is_dir() else folder
    return folder
