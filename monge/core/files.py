"""Atomic replacement of files, and links that leave a directory."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy.typing import NDArray

DRAFT = re.compile(r"\..+\.[0-9a-f]{8}(\.\w+)?")
"""Names of the temporary files that `replacing` makes."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, with its suffix, renamed to `path` when the block succeeds.

    On an error `path` is unchanged. A link is replaced, not its target; devices and pipes, which
    cannot be replaced, are written directly.
    """
    if is_stream(path):
        yield path
        return
    fresh = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        fresh.touch(exist_ok=False)
        yield fresh
        flush(fresh, os.O_RDWR)  # a full disk may show only here
        os.replace(fresh, path)
    except OSError as error:
        if error.errno and error.filename in (None, fresh, str(fresh)):
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # makes the rename survive a power cut, where supported
        flush(path.parent, os.O_RDONLY)


def load_array(path: Path, mode: Literal["r", "c"] | None = None) -> NDArray[Any]:
    """The array of a .npy file, mapped into memory with a `mode`. Objects, which could run code,
    and any other file are a ValueError: numpy parses headers as Python, which fails in many
    ways."""
    import numpy as np

    try:
        found = np.load(path, mode, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path.name} is not an array of numbers ({error})") from error
    if not isinstance(found, np.ndarray):
        raise ValueError(f"{path.name} holds several arrays")
    return found


def is_stream(path: Path) -> bool:
    """Whether a path is a device or a pipe, such as /dev/stdout."""
    return path.parent == Path("/dev") or (path.exists() and not (path.is_file() or path.is_dir()))


def flush(path: Path, options: int) -> None:
    """Write a file or a directory to disk (fsync)."""
    handle = os.open(path, options)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def leaks(folder: Path) -> Iterator[Path]:
    """The links below a directory that lead out of it."""
    inside = Path(os.path.realpath(folder))
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(where, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
                yield path
