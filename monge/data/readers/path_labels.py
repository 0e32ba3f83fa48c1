"""Labels from the names of files and folders: class folders, and parts of file names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...core.errors import DataError, UsageError

Tags = dict[str, list[str]]


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
