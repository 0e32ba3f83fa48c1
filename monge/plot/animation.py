"""Animations of sampling: a GIF, or blocks in a terminal; 2-D samples as a histogram."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.space import Space
from .image_grid import as_bytes, grid, save_image

FRAMES = 100
"""Most frames of an animation; its states are thinned evenly."""
CELLS, MARGIN = 64, 0.1
"""Cells of the histogram per axis, and its margin as a share of the range of the data."""


def is_plane(space: Space) -> bool:
    return space.kind == "real" and space.shape == (2,)


def write(path: Path, states: Iterable[Tensor], space: Space, pause: int = 60) -> int:
    """Write a GIF of the states, the last shown for two seconds; returns the number of frames."""
    from PIL import Image

    every = list(states)
    chosen = np.unique(np.linspace(0, len(every) - 1, min(len(every), FRAMES)).round().astype(int))
    zoom = 6 if is_plane(space) else None
    frames = [Image.fromarray(sheet(every[k], space, zoom)) for k in chosen]
    held = [pause] * (len(frames) - 1) + [2000]
    save_image(frames[0], path, save_all=True, append_images=frames[1:], duration=held, loop=0)
    return len(frames)


def frames(states: Iterable[Tensor], space: Space) -> Iterator[str]:
    """Each state as text: two rows of pixels per line, in grey levels of the terminal."""
    for x in states:
        shown = sheet(x, space, 1)
        yield blocks(shown if shown.ndim == 2 else shown.mean(-1).astype(np.uint8))


def sheet(x: Tensor, space: Space, zoom: int | None) -> NDArray:
    """A state as one image."""
    images = heights(x, space)[None] if is_plane(space) else as_bytes(x.numpy(), space)
    return grid(images, zoom=zoom)


def heights(x: Tensor, space: Space) -> NDArray:
    """A 2-D histogram of the points x (N, 2) as bytes, y upwards."""
    low, high = (space.spread(name).numpy() for name in ("low", "high"))
    room = MARGIN * np.maximum(high - low, 1e-12)
    edges = [np.linspace(a, b, CELLS + 1) for a, b in zip(low - room, high + room, strict=True)]
    points = x.numpy()
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], bins=edges)
    most = max(float(np.percentile(counts, 99)), 1.0)
    return (255 * np.minimum(counts.T[::-1] / most, 1)).astype(np.uint8)


def blocks(sheet: NDArray) -> str:
    """A grey image as half blocks with 24 grey levels."""
    if len(sheet) % 2:
        sheet = np.concatenate([sheet, sheet[-1:]])
    shades = 232 + sheet.astype(int) * 23 // 255
    pairs = np.stack([shades[::2], shades[1::2]], -1)  # (lines, columns, 2)
    lines = ("".join(f"\x1b[38;5;{up};48;5;{down}m▀" for up, down in line) for line in pairs)
    return "\n".join(f"{line}\x1b[0m" for line in lines)
