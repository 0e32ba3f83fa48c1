"""Pairs of images in folders a/ and b/ under the same names: fields `source` and `target`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...core.errors import DataError
from ..codecs.array import Array
from ..codecs.base import Codec
from ..codecs.scalar import listed
from . import images
from .arrays import from_arrays
from .base import RawData, ReadFormat

SIDES = ("source", "target")
"""The fields of a pair: the condition and the event."""
FOLDERS = ("a", "b")
"""The folders of the sources and the targets."""


def is_pair(folder: Path) -> bool:
    """Whether a folder holds images in a/ and in b/ and nowhere else."""
    shelves = [
        path.name.lower()
        for path in folder.iterdir()
        if path.is_dir() and any(map(images.is_image, path.iterdir()))
    ]
    return sorted(shelves) == list(FOLDERS)


def read(folder: Path, form: ReadFormat) -> RawData:
    """Pairs of images with the same name in a/ and b/."""
    shelves = {path.name.lower(): path for path in folder.iterdir() if path.is_dir()}
    first, second = ({path.stem: path for path in images.find(shelves[name])} for name in FOLDERS)
    alone = sorted(first.keys() ^ second.keys())
    if alone:
        raise DataError(
            f"{folder} holds {len(first)} images in a/ and {len(second)} in b/, and "
            f"{listed(alone, 3)} has no partner; give each image a partner of the "
            "same name, or rename the folders if they are classes"
        )
    names = sorted(first)
    raws = [
        images.read_images([shelf[name] for name in names], shelves[where], form)
        for where, shelf in zip(FOLDERS, (first, second), strict=True)
    ]
    codecs = {name: raw.codecs["image"] for name, raw in zip(SIDES, raws, strict=True)}
    same_sides(codecs, folder)
    values = {name: raw.values["image"] for name, raw in zip(SIDES, raws, strict=True)}
    return replace(from_arrays(values, folder.resolve().name), codecs=codecs)


def same_sides(codecs: Mapping[str, Codec], folder: Path) -> None:
    sizes = [codec.shape[1:] for codec in codecs.values() if isinstance(codec, Array)]
    if sizes[0] != sizes[1]:
        shapes = [f"{width}x{height}" for height, width in sizes]
        raise DataError(
            f"the images of {folder} are {shapes[0]} in a/ and {shapes[1]} in b/; bring "
            f"them to one size with {folder.resolve().name}+resize64"
        )
