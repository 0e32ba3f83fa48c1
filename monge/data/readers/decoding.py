"""Many pictures: decoded by worker processes into a file, or from their own files in each batch.

The file holds the pixels (N, C, H, W) of all pictures, some of them after another. What a worker
has written is marked, so that a process that goes on for one that was killed decodes the rest. The
channels are those of the first picture; if a later one has colour and that one is grey, all are
decoded again as colour.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.deferred import torch
from ...core.errors import DataError
from ..codecs.array import Array
from .base import check_kind
from .stored import Place, StoredRows

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile
    from torch import Tensor


FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""The formats of these suffixes in Pillow, which starts other programs for some formats."""
BITS = 258
"""The TIFF tag with the bits of each channel."""
ORIENTATION = 274
"""The EXIF tag that says how a picture is turned; from 5 on its sides are exchanged."""
GREY = ("1", "L", "LA")
"""The modes of pictures without colour."""
CHUNK = 256
"""Pictures that a worker decodes and marks at a time."""
FEW = 4096
"""Pictures up to which no worker process is started."""
Shape = tuple[int, int, int]


class PictureRows:
    """Pictures (N, C, H, W) that are decoded from their files whenever rows are taken; it stands
    where a tensor of bytes does."""

    ndim = 4

    def __init__(self, paths: Sequence[str], shape: Shape, side: int | None) -> None:
        self.paths, self.side, self.shape = paths, side, (len(paths), *shape)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def joined(self, parts: Sequence[PictureRows]) -> PictureRows:
        """The pictures of several."""
        paths = [path for part in parts for path in part.paths]
        return PictureRows(paths, self.shape[1:], self.side)

    @cached_property
    def pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(os.cpu_count() or 1)

    def index_select(self, axis: int, where: Tensor) -> Tensor:
        return self.decoded([self.paths[row] for row in where.tolist()])

    def __getitem__(self, rows: Any) -> Tensor:
        if isinstance(rows, slice):
            return self.decoded(self.paths[rows])
        return self.index_select(0, rows)

    def split(self, size: int) -> Iterator[Tensor]:
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def decoded(self, paths: Sequence[str]) -> Tensor:
        shape = self.shape[1:]
        found = self.pool.map(lambda path: pixels(Path(path), shape, self.side), paths)
        return torch.from_numpy(np.stack(list(found) or [np.empty((0, *shape), np.uint8)]))


class Colourful(Exception):
    """A picture in colour among grey ones."""


def pixels(path: Path, shape: Sequence[int], side: int | None) -> np.ndarray:
    """The pixels (C, H, W) of a picture of this shape."""
    found = load(path, side)  # (H, W, 1 or 3)
    if found.shape[2] > shape[0]:
        raise Colourful
    if found.shape[:2] != tuple(shape[1:]):
        expected, size = (f"{s[1]}x{s[0]}" for s in (shape[1:], found.shape))
        raise DataError(
            f"expected images of one size, {expected}, found {path} of {size}; bring them to one "
            "size by writing +resize64 after the name of the folder"
        )
    return np.broadcast_to(np.moveaxis(found, -1, 0), tuple(shape))


def store(paths: Sequence[Path], side: int | None, place: Place) -> StoredRows | PictureRows:
    """The pixels of pictures in a file, or what decodes them when they are used."""
    height, width, channels = load(paths[0], side).shape
    if place.direct:
        return in_their_files(paths, (channels, height, width), side)
    out = place.new(".bin")
    while True:
        shape = (channels, height, width)
        try:
            decode(paths, shape, side, out)
        except Colourful:
            channels = 3
            continue
        return StoredRows((out,), "uint8", (len(paths), *shape))


def in_their_files(paths: Sequence[Path], shape: Shape, side: int | None) -> PictureRows:
    """Pictures whose headers say that they have one size."""
    channels = shape[0]
    for path in paths:
        size, grey = header(path)
        channels = max(channels, 1 if grey else 3)
        if side is None and size != shape[1:]:
            pixels(path, shape, side)  # says which
    return PictureRows([os.path.abspath(path) for path in paths], (channels, *shape[1:]), side)


def decode(paths: Sequence[Path], shape: Shape, side: int | None, out: Path) -> None:
    """Write the pixels of pictures to a file, apart from those that are marked as written."""
    marks, about = out.with_suffix(".done"), f"{len(paths)} {shape} {side}"
    lines = marks.read_text(encoding="utf-8").splitlines() if marks.exists() else []
    if not lines or lines[0] != about or not out.exists():
        marks.write_text(f"{about}\n", encoding="utf-8")
        lines = [about]
        out.write_bytes(b"")
    done = {int(line) for line in lines[1:]}
    os.truncate(out, len(paths) * math.prod(shape))
    left = [chunk for chunk in range(-(-len(paths) // CHUNK)) if chunk not in done]
    with marks.open("a", encoding="utf-8") as file:
        for chunk in decoded_chunks(paths, shape, side, out, left):
            file.write(f"{chunk}\n")
            file.flush()


def decoded_chunks(
    paths: Sequence[Path], shape: Shape, side: int | None, out: Path, left: Sequence[int]
) -> Iterator[int]:
    """Decode the chunks that are left; yields each once it is in the file."""
    count = min(os.cpu_count() or 1, len(left))
    if len(left) * CHUNK <= FEW or count < 2:
        for chunk in left:
            decode_chunk(paths, chunk, shape, side, out)
            yield chunk
        return
    listing = out.with_suffix(".paths")
    listing.write_text(json.dumps([os.path.abspath(path) for path in paths]), encoding="utf-8")
    said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    workers = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import work; work()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for _ in range(count)
    ]
    try:
        for number, worker in enumerate(workers):
            task = {
                "paths": str(listing),
                "out": str(out),
                "shape": shape,
                "side": side,
                "chunks": left[number::count],
            }
            assert worker.stdin is not None, "a pipe"
            with contextlib.suppress(BrokenPipeError):  # its end is noticed below
                worker.stdin.write(json.dumps(task))
                worker.stdin.close()
            threading.Thread(target=listen, args=(worker, said), daemon=True).start()
        running = count
        while running:
            heard = said.get()
            if "chunk" in heard:
                yield heard["chunk"]
            elif heard.get("colourful"):
                raise Colourful
            elif "sentence" in heard:
                raise DataError(heard["sentence"])
            else:
                running -= 1
                if heard["code"]:
                    raise DataError(
                        f"expected worker processes that decode {paths[0].parent}, found that one "
                        f"ended with code {heard['code']}; start again, which goes on from there"
                    )
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def listen(worker: subprocess.Popen[str], said: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass on what a worker says, and how it ends."""
    assert worker.stdout is not None, "a pipe"
    for line in worker.stdout:
        said.put(json.loads(line))
    said.put({"code": worker.wait()})


def work() -> None:
    """What a worker process does."""
    task = json.loads(sys.stdin.read())
    paths = [Path(path) for path in json.loads(Path(task["paths"]).read_text(encoding="utf-8"))]
    torch.set_num_threads(1)
    for chunk in task["chunks"]:
        try:
            decode_chunk(paths, chunk, task["shape"], task["side"], Path(task["out"]))
            heard: dict[str, Any] = {"chunk": chunk}
        except Colourful:
            heard = {"colourful": True}
        except DataError as error:
            heard = {"sentence": str(error)}
        sys.stdout.write(f"{json.dumps(heard)}\n")
        sys.stdout.flush()
        if "chunk" not in heard:
            return


def decode_chunk(
    paths: Sequence[Path], chunk: int, shape: Sequence[int], side: int | None, out: Path
) -> None:
    start = chunk * CHUNK
    with refusing_bombs():
        found = [pixels(path, shape, side) for path in paths[start : start + CHUNK]]
    with out.open("r+b") as file:
        file.seek(start * math.prod(shape))
        file.write(np.ascontiguousarray(np.stack(found)).data)


@contextlib.contextmanager
def refusing_bombs() -> Iterator[None]:
    """Pictures that Pillow warns about are refused."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def load(path: Path, side: int | None) -> np.ndarray:
    """One image (H, W, 1 or 3), rotated by its EXIF orientation."""
    from PIL import Image, ImageOps

    check_kind(path)
    try:
        with Image.open(path, formats=FORMATS) as file:
            check_plain(file, path)
            picture = ImageOps.exif_transpose(file)
            picture = picture.convert("L" if picture.mode in GREY else "RGB")
            pixels = np.array(picture)
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_large(path) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise undecodable(path, error) from error
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if side is None:
        return pixels
    from ..transforms.ops import resize  # works on tensors

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


def header(path: Path) -> tuple[tuple[int, int], bool]:
    """Height and width of a picture that is not decoded, and whether it is grey."""
    from PIL import Image

    check_kind(path)
    try:
        with Image.open(path, formats=FORMATS) as file:
            check_plain(file, path)
            turned = file.getexif().get(ORIENTATION, 1) >= 5
            width, height = file.size[::-1] if turned else file.size
            return (height, width), file.mode in GREY
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_large(path) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise undecodable(path, error) from error


def too_large(path: Path) -> DataError:
    from PIL import Image

    return DataError(
        f"{path} has more than {Image.MAX_IMAGE_PIXELS} pixels, the most that is decoded; make it "
        "smaller or remove it"
    )


def undecodable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} does not decode as an image ({error}); replace or remove it")
