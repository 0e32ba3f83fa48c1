"""Reading files safely: refuses what is not a plain file or does not fit into memory.

A small compressed file may unpack to terabytes, so its unpacked size is found first: from the list
in a zip archive, or by counting the bytes of a .gz without storing them. The limit is a quarter of
the memory available at that time.
"""

from __future__ import annotations

import gzip
import os
import stat
import zipfile
import zlib
from pathlib import Path

from ..core.errors import DataError

COPIES = 4
"""Copies of the unpacked content that reading needs at least."""
SMALL = 1 << 26
"""Bytes that always fit into memory."""
RATIO = 1032
"""The largest compression ratio of deflate."""
PIECE = 1 << 20
"""Bytes unpacked at once when counting."""
ARCHIVES = (".npy", ".npz")
"""Suffixes of files that numpy may read as zip archives."""
BOUNDS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""File with the memory limit of a Linux container."""
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


def available() -> int:
    """Bytes of memory available."""
    try:
        listed = dict(
            line.split(":")
            for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        )
        free = 1024 * int(listed["MemAvailable"].removesuffix("kB"))
    except (OSError, ValueError, KeyError):  # not on Linux
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in BOUNDS:
        if (
            os.path.isfile(path)
            and (bound := Path(path).read_text(encoding="ascii")).strip().isdigit()
        ):
            free = min(free, int(bound))
    return free


def check_kind(path: Path) -> None:
    """Refuse anything but regular files and folders: reading a pipe or device may never end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        what = "a broken link" if path.is_symlink() else f"none ({error.strerror})"
        raise DataError(
            f"expected a file or a folder at {path}, found {what}; remove or replace it"
        ) from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        found = KINDS.get(stat.S_IFMT(mode), "something else")
        raise DataError(
            f"expected a file or a folder at {path}, found {found}; copy its content to a file"
        )


def check(path: Path) -> None:
    """Refuse anything but plain files, and content that does not fit into memory."""
    check_kind(path)
    size, packed = path.stat().st_size, is_gz(path) or path.suffix.lower() in ARCHIVES
    if not packed and size <= SMALL:
        return
    free = available()
    if not is_gz(path) or size * RATIO > free // COPIES:
        whole = unpacked(path, free // COPIES) if packed else 0
        check_size(str(path), max(size, whole), free, whole > size)


def check_size(what: str, size: int, free: int, packed: bool = True) -> None:
    """Raise a DataError if `size` bytes do not fit into the `free` ones."""
    most = free // COPIES if packed else free
    if size > most:
        part = f"a quarter of the {shown(free)}" if packed else f"the {shown(free)}"
        raise DataError(
            f"{what} {'unpacks to' if packed else 'has'} more than {shown(most)}, "
            f"{part} of memory available; give a smaller part of the data, or more "
            "memory"
        )


def unpacked(path: Path, most: int) -> int:
    """Unpacked size of a file in bytes; counting stops above `most`."""
    try:
        if not is_gz(path):
            return (
                sum(entry.file_size for entry in zipfile.ZipFile(path).infolist())
                if zipfile.is_zipfile(path)
                else 0
            )
        size = 0
        with gzip.open(path) as file:
            while size <= most and (piece := file.read(PIECE)):
                size += len(piece)
        return size
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); download it again") from error


def read(path: Path) -> bytes:
    """The bytes of a file, unpacked if its name ends in .gz."""
    check(path)
    content = path.read_bytes()
    return gzip.decompress(content) if is_gz(path) else content


def start(path: Path, count: int) -> bytes:
    """The first bytes of a file, unpacked if its name ends in .gz."""
    check_kind(path)
    with gzip.open(path) if is_gz(path) else path.open("rb") as file:
        return file.read(count)


def is_gz(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def shown(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
