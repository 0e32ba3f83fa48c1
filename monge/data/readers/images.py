"""Images: folders of files, labelled by their folders, and idx files in the format of MNIST.

An image has one frame and at most 8 bits per channel; others are refused, as levels are bytes.
If a .jpg holds several images (previews, stereo pairs), the first is read.
A table in the folder may describe them, for instance with a caption each (`path_labels`).
"""

from __future__ import annotations

import math
import struct
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...core.errors import DataError
from ..codecs.array import Array
from ..codecs.scalar import listed
from ..transforms.ops import resize
from . import base
from .arrays import from_arrays
from .base import RawData
from .path_labels import classes, described, file_names

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""The formats of these suffixes in Pillow, which starts other programs for some formats."""
BITS = 258
"""The TIFF tag with the bits of each channel."""
IDX = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def is_image(path: Path) -> bool:
    """By suffix; also for broken links, so that they are refused on loading, not ignored."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def is_idx(path: Path) -> bool:
    """train-images-idx3-ubyte.gz, mine.idx and the like."""
    name = path.name.lower().removesuffix(".gz")
    return path.is_file() and (name.endswith(".idx") or "-idx" in name or ".idx" in name)


def find(folder: Path) -> list[Path]:
    """Every image in a folder and its class folders."""
    return sorted(
        path
        for path in [*folder.iterdir(), *folder.glob("*/*")]
        if is_image(path) and path.name[0] != "."
    )


def read_images(paths: Sequence[Path], root: Path, side: int | None) -> RawData:
    """Images of one size, labelled by their folders under `root`, if any."""
    labels = classes([(root, path) for path in paths], "images")
    pictures = load_all(paths, root, side)
    if len({picture.shape[2] for picture in pictures}) > 1:  # grey ones among colour
        pictures = [np.broadcast_to(p, (*p.shape[:2], 3)) for p in pictures]
    same_size(pictures, paths, root)
    images = np.stack(pictures)
    grey = images.shape[-1] == 1
    values: dict[str, np.ndarray] = {"image": images[..., 0] if grey else images}
    values |= {name: np.array(words, object) for name, words in labels.items()}
    values |= described(paths, root)
    height, width, channels = images.shape[1:]
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
    from PIL import Image

    free, size, found = base.available(), 0, []
    with warnings.catch_warnings():  # images that Pillow warns about are refused below
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for path in paths:
            found.append(load(path, side))
            size += found[-1].nbytes
            base.check_size(f"the images of {root}", size, free)
    return found


def load(path: Path, side: int | None) -> np.ndarray:
    """One image (H, W, 1 or 3), rotated by its EXIF orientation."""
    from PIL import Image, ImageOps

    base.check_kind(path)
    try:
        with Image.open(path, formats=FORMATS) as file:
            check_plain(file, path)
            picture = ImageOps.exif_transpose(file)
            picture = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
            pixels = np.array(picture)
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(
            f"{path} has more than {Image.MAX_IMAGE_PIXELS} pixels, the most that "
            "is decoded; make it smaller or remove it"
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{path} does not decode as an image ({error}); replace or remove it"
        ) from error
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if side is None:
        return pixels
    codec = Array(kind="levels", shape=(pixels.shape[2], *pixels.shape[:2]), size=256)
    _, small = resize(codec, torch.from_numpy(np.moveaxis(pixels, -1, 0))[None], side)
    return np.moveaxis(small[0].numpy(), 0, -1)


def check_plain(file: ImageFile, path: Path) -> None:
    """Refuse images that an array of bytes cannot hold without loss, before decoding."""
    if getattr(file, "is_animated", False) and file.format != "MPO":
        raise DataError(
            f"expected one image in {path}, found several frames; save each frame "
            "as a separate file"
        )
    if is_deep(file):
        raise DataError(
            f"expected at most 8 bits per channel in {path}, found more than 8 bits; "
            "save it with 8, or save all images as a .npy array of floats"
        )


def is_deep(file: ImageFile) -> bool:
    """Whether a channel has more than 8 bits, which Pillow cuts to 8 in colour images."""
    if file.mode.startswith(("I", "F")):
        return True
    arguments = [tile[3] for tile in file.tile]
    if file.format == "PNG":
        return any(str(each).endswith(";16B") for each in arguments)
    if file.format == "PPM":  # the largest value that a channel may have
        return any(isinstance(each, tuple) and each[-1] > 255 for each in arguments)
    return file.format == "TIFF" and max(getattr(file, "tag_v2", {}).get(BITS, (1,))) > 8


def same_size(pictures: Sequence[np.ndarray], paths: Sequence[Path], root: Path) -> None:
    first = pictures[0].shape[:2]
    odd = next((i for i, picture in enumerate(pictures) if picture.shape[:2] != first), None)
    if odd is not None:
        sizes = [f"{shape[1]}x{shape[0]}" for shape in (first, pictures[odd].shape)]
        raise DataError(
            f"images differ in size: {paths[0].name} is {sizes[0]} and "
            f"{paths[odd].name} is {sizes[1]}; bring them to one size with "
            f"{root.resolve().name}+resize64"
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
