"""Grids of images, scatter plots of 2-D samples and transport plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.files import replacing
from ..core.space import Space
from .figure import save

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST_SIDE = 64
"""Pixels that the longer side of an image is enlarged to at most, if it is shorter."""


def grid(images: NDArray, columns: int | None = None, zoom: int | None = None) -> NDArray:
    """(N, H, W) or (N, H, W, 3) uint8 images side by side, each pixel `zoom` wide, a grey line
    between them; small images are enlarged."""
    n, height, width = images.shape[:3]
    columns = columns or math.ceil(math.sqrt(n))
    zoom = zoom or max(1, LEAST_SIDE // max(height, width))
    lines = math.ceil(n / columns)
    gap, extra = 2, images.shape[3:]
    h, w = height * zoom + gap, width * zoom + gap
    sheet = np.full((lines * h + gap, columns * w + gap, *extra), 128, np.uint8)
    for place, image in enumerate(images):
        big = image.repeat(zoom, 0).repeat(zoom, 1)
        top, left = place // columns * h + gap, place % columns * w + gap
        sheet[top : top + height * zoom, left : left + width * zoom] = big
    return sheet


def as_bytes(x: NDArray, space: Space) -> NDArray:
    """Events (N, C, H, W) as uint8 images (N, H, W) or (N, H, W, 3), the range of the data
    mapped from black to white."""
    if space.kind == "real":
        low, high = min(space.low), max(space.high)
    else:
        low, high = 0, max(space.size - 1, 1)
    images = np.clip((x - low) / max(high - low, 1e-12), 0, 1) * 255
    images = images.round().astype(np.uint8)
    if space.shape[0] == 3:
        return images.transpose(0, 2, 3, 1)
    return images.reshape(-1, *images.shape[2:])


def save_image(image: Image, path: Path, **options: Any) -> None:
    """Save an image in the format of the suffix; `options` are those of Pillow."""
    with replacing(path) as fresh:
        image.save(fresh, **options)


def write_grid(path: Path, x: NDArray, space: Space, columns: int | None = None) -> None:
    from PIL import Image

    save_image(Image.fromarray(grid(as_bytes(x, space), columns)), path)


def write_beside(path: Path, columns: Sequence[NDArray], sets: int = 4) -> None:
    """Images (N, H, W) or (N, H, W, 3) of several kinds; the images of a row are side by side,
    with `sets` rows per line."""
    from PIL import Image

    colour = any(each.ndim == 4 for each in columns)
    each = [np.repeat(p[..., None], 3, -1) if colour and p.ndim == 3 else p for p in columns]
    mixed = np.stack(each, 1)  # (N, kinds, H, W, ...)
    sheet = grid(mixed.reshape(-1, *mixed.shape[2:]), sets * len(columns))
    save_image(Image.fromarray(sheet), path)


def write_points(path: Path, x: NDArray, other: NDArray | None = None) -> None:
    """Samples in the plane, beside rows of the data if they are given."""
    from matplotlib.figure import Figure

    panels = [("samples", x)] + ([("data", other)] if other is not None else [])
    figure = Figure(figsize=(4 * len(panels), 4), layout="constrained")
    limits = np.concatenate([points for _, points in panels])
    low, high = np.percentile(limits, [0.5, 99.5])
    span = (low - 0.1 * (high - low), high + 0.1 * (high - low))
    for axes, (title, points) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        axes.scatter(points[:, 0], points[:, 1], s=3, alpha=0.5, linewidths=0)
        axes.set(title=title, xlim=span, ylim=span, aspect="equal")
    save(figure, path)


def write_plan(path: Path, x: NDArray, y: NDArray, plan: NDArray) -> None:
    """Two 2-D point clouds, with a line from each point to the one with which the plan (n, m)
    exchanges most of its mass."""
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    n, m = plan.shape
    rows = np.concatenate([np.arange(n), plan.argmax(0)])
    columns = np.concatenate([plan.argmax(1), np.arange(m)])
    strength = np.clip(plan[rows, columns] * min(n, m), 0.1, 0.8)
    colours = np.column_stack([np.full((n + m, 3), 0.4), strength])
    axes.add_collection(
        LineCollection(list(np.stack([x[rows], y[columns]], 1)), colors=colours, linewidths=0.8)
    )
    for points, name in ((x, "A"), (y, "B")):
        axes.scatter(points[:, 0], points[:, 1], s=6, alpha=0.7, linewidths=0, label=name)
    axes.set(aspect="equal")
    axes.legend()
    save(figure, path)
