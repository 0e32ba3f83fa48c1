"""What is known of files besides their content: class folders, parts of file names, and a table.

A folder may describe its files in metadata.csv (or .tsv): one line per file, with the column
file_name and others, such as a caption or a transcript, each of which becomes a field.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...core.errors import DataError, UsageError
from ..codecs.scalar import listed
from ..options import Options
from . import delimited

Tags = dict[str, list[str]]
DESCRIBED, KEY = ("metadata.csv", "metadata.tsv"), "file_name"
"""Files that describe others, and their column of file names."""


def classes(pairs: Sequence[tuple[Path, Path]], what: str) -> Tags:
    """The class folder of each file, given with its root: the folder below the root, if any."""
    folders = [path.relative_to(root).parts[:-1] for root, path in pairs]
    if len({bool(parts) for parts in folders}) > 1:
        raise DataError(
            f"{pairs[0][0]} holds {what} both directly and in class folders; move "
            "the former into a class folder"
        )
    return {"label": [parts[0] for parts in folders]} if folders[0] else {}


def name_parts(paths: Sequence[Path], names: Sequence[str]) -> tuple[str, ...]:
    """Names of the parts between underscores, from `data.parts` or numbered; empty if file names
    differ in the number of parts; a part that is constant or rarely repeats has no name."""
    parts = [path.stem.split("_") for path in paths]
    odd = next((i for i, words in enumerate(parts) if len(words) != len(names)), None)
    if names and odd is not None:
        raise UsageError(
            f"data.parts={','.join(names)} names {len(names)} parts and "
            f"{paths[odd].name} has {len(parts[odd])} between underscores; name as "
            "many"
        )
    if names or len({len(words) for words in parts}) > 1:
        return tuple(names)
    return tuple(
        f"part{i + 1}" if 1 < len(set(words)) <= len(words) / 2 else ""
        for i, words in enumerate(zip(*parts, strict=True))
    )


def tagged(paths: Sequence[Path], names: Sequence[str]) -> Tags:
    """The named parts of each file's name; none if a file has another number of parts."""
    parts = [path.stem.split("_") for path in paths]
    if any(len(words) != len(names) for words in parts):
        return {}
    return {name: [words[place] for words in parts] for place, name in enumerate(names) if name}


def file_names(pairs: Sequence[tuple[Path, Path]]) -> dict[str, np.ndarray]:
    """The name of each file under its root, which tells the rows of predictions apart."""
    return {KEY: np.array([path.relative_to(root).as_posix() for root, path in pairs], object)}


def described(paths: Sequence[Path], root: Path) -> dict[str, np.ndarray]:
    """The columns of the metadata table in the folder, one value per file."""
    found = next((root / name for name in DESCRIBED if (root / name).is_file()), None)
    if found is None:
        return {}
    table = delimited.read(found, Options(header="yes")).frame
    if KEY not in table:
        raise DataError(
            f"{found} has no column {KEY}, only {listed(table.columns)}; add it with "
            "the file name of each line"
        )
    rows = {str(name): row for row, name in enumerate(table[KEY])}
    names = [path.relative_to(root).as_posix() for path in paths]
    lost = next((name for name in names if name not in rows), None)
    if lost is not None:
        raise DataError(f"{found} has no line for {lost}; add one, or remove the file")
    places = [rows[name] for name in names]
    return {str(name): column.to_numpy()[places] for name, column in table.items() if name != KEY}
