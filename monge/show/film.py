"""A sample as it comes about: a film, or blocks in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.space import Space
from .picture import as_bytes, grid

FRAMES = 100
"""Frames a film has at most; its states are thinned evenly."""


def write(path: Path, states: Iterable[Tensor], space: Space, pause: int = 60) -> int:
    """A GIF of the states, the last held for two seconds; how many frames it has."""
    from PIL import Image

    every = list(states)
    chosen = np.unique(np.linspace(0, len(every) - 1, min(len(every), FRAMES)).round().astype(int))
    frames = [Image.fromarray(grid(as_bytes(every[k].numpy(), space))) for k in chosen]
    held = [pause] * (len(frames) - 1) + [2000]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=held, loop=0)
    return len(frames)


def frames(states: Iterable[Tensor], space: Space) -> Iterator[str]:
    """Each state as text: two rows of pixels to a line, in shades of the terminal."""
    for x in states:
        pictures = as_bytes(x.numpy(), space)
        if pictures.ndim == 4:
            pictures = pictures.mean(-1)
        yield blocks(grid(pictures.astype(np.uint8), zoom=1))


def blocks(sheet: NDArray) -> str:
    """A grey sheet as half blocks with 24 shades."""
    if len(sheet) % 2:
        sheet = np.concatenate([sheet, sheet[-1:]])
    shades = 232 + sheet.astype(int) * 23 // 255
    pairs = np.stack([shades[::2], shades[1::2]], -1)  # (lines, columns, 2)
    lines = ("".join(f"\x1b[38;5;{up};48;5;{down}m▀" for up, down in line) for line in pairs)
    return "\n".join(f"{line}\x1b[0m" for line in lines)
