"""Images: folders of files, labelled by their folders, and idx files in the format of MNIST.

An image has one frame and at most 8 bits per channel; others are refused, as levels are bytes.
If a .jpg holds several images (previews, stereo pairs), the first is read.
A table in the folder may describe them, for instance with a caption each (`path_labels`).
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import DataError
from ..codecs.array import Array
from ..codecs.scalar import listed
from . import base
from .arrays import from_arrays
from .base import RawData, ReadFormat
from .path_labels import classes, described, file_names

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
IDX = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def is_image(path: Path) -> bool:
    """By suffix; also for broken links, so that they are refused on loading, not ignored."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def is_idx(path: Path) -> bool:
    """train-images-idx3-ubyte.gz, mine.idx and the like."""
    name = path.name.lower().removesuffix(".gz")
    return path.is_file() and (name.endswith(".idx") or "-idx" in name or ".idx" in name)


def find(folder: Path) -> list[Path]:
    """Every image in a folder and its class folders, in order."""
    return [Path(path) for _, path in sorted(listing(folder))]


def has_any(folder: Path) -> bool:
    """Whether there is an image in a folder or its class folders."""
    return next(listing(folder), None) is not None


def listing(folder: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """The parts of the name of each image below a folder, and its path; there may be millions,
    which `pathlib` takes long to list and to sort."""
    inner = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                inner.append(entry)
            elif is_image_name(entry.name):
                yield (entry.name,), entry.path
    for shelf in inner:
        with os.scandir(shelf.path) as entries:
            for entry in entries:
                if is_image_name(entry.name) and not entry.is_dir():
                    yield (shelf.name, entry.name), entry.path


def is_image_name(name: str) -> bool:
    return name[0] != "." and name.lower().endswith(SUFFIXES) and name.lower() not in SUFFIXES


def read_images(paths: Sequence[Path], root: Path, form: ReadFormat) -> RawData:
    """Images of one size, labelled by their folders under `root`, if any."""
    labels = classes([(root, path) for path in paths], "images")
    values: dict[str, Any] = {}
    if form.store is not None:
        from . import decoding

        stored = decoding.store(paths, form.side, form.store)
        _, channels, height, width = stored.shape
        values["image"], grey = stored, channels == 1
    else:
        pictures = load_all(paths, root, form.side)
        if len({picture.shape[2] for picture in pictures}) > 1:  # grey ones among colour
            pictures = [np.broadcast_to(p, (*p.shape[:2], 3)) for p in pictures]
        same_size(pictures, paths, root)
        images = np.stack(pictures)
        height, width, channels = images.shape[1:]
        grey = channels == 1
        values["image"] = images[..., 0] if grey else images
    values |= {name: np.array(words, object) for name, words in labels.items()}
    values |= described(paths, root)
    codec = Array(
        kind="levels",
        size=256,
        dtype="uint8",
        layout="HW" if grey else "HWC",
        shape=(channels, height, width),
    )
    return replace(
        from_arrays(values, root.resolve().name),
        codecs={"image": codec},
        row_keys=file_names([(root, path) for path in paths]),
    )


def load_all(paths: Sequence[Path], root: Path, side: int | None) -> list[np.ndarray]:
    """Load all images, checking that they fit into memory."""
    from .decoding import load, refusing_bombs

    free, size, found = base.available(), 0, []
    with refusing_bombs():
        for path in paths:
            found.append(load(path, side))
            size += found[-1].nbytes
            base.check_size(f"the images of {root}", size, free)
    return found


def same_size(pictures: Sequence[np.ndarray], paths: Sequence[Path], root: Path) -> None:
    first = pictures[0].shape[:2]
    odd = next((i for i, picture in enumerate(pictures) if picture.shape[:2] != first), None)
    if odd is not None:
        sizes = [f"{shape[1]}x{shape[0]}" for shape in (first, pictures[odd].shape)]
        raise DataError(
            f"images differ in size: {paths[0].name} is {sizes[0]} and "
            f"{paths[odd].name} is {sizes[1]}; bring them to one size with "
            f"{root.resolve().name}+resize64",
            "+resize64",
        )


def read_idx(paths: Sequence[Path], name: str) -> RawData:
    """An idx file of images and, if present, the idx file of their labels."""
    arrays = [(path, idx_array(path)) for path in paths]
    images = [(path, array) for path, array in arrays if array.ndim > 1]
    labels = [(path, array) for path, array in arrays if array.ndim == 1]
    if len(images) > 1 or len(labels) > 1 or not arrays:
        raise DataError(
            "expected one file of images and one of labels per split, found "
            f"{listed(path.name for path in paths)}; give one of them"
        )
    if not images:
        return from_arrays({"label": labels[0][1]}, name)
    values = {"image": images[0][1]} | ({"label": labels[0][1]} if labels else {})
    return from_arrays(values, name, images[0][0].name)


def idx_array(path: Path) -> np.ndarray:
    """Read the idx format: two zero bytes, a type, the number of axes, their lengths, values."""
    try:
        body = base.read_bytes(path)
        zero, kind, axes = struct.unpack_from(">HBB", body)
        shape = struct.unpack_from(f">{axes}I", body, 4)
        if zero or kind not in IDX or not axes:
            raise ValueError("its first bytes are not those of an idx file")
        values = np.frombuffer(body, IDX[kind], math.prod(shape), 4 + 4 * axes).reshape(shape)
    except DataError:
        raise
    except (OSError, EOFError, ValueError, OverflowError, struct.error, zlib.error) as error:
        raise DataError(f"{path} cannot be read as idx ({error}); download it again") from error
    return values.astype(values.dtype.newbyteorder("="))
