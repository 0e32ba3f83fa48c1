"""Figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image


DOTS = 120
"""Dots per inch."""


def save(figure: Figure, path: Path) -> None:
    """A figure in the format of the suffix."""
    with replacing(path) as fresh:
        figure.savefig(fresh, dpi=DOTS)


def save_image(image: Image, path: Path, **options: Any) -> None:
    """Pixels in the format of the suffix; `options` are those of Pillow."""
    with replacing(path) as fresh:
        image.save(fresh, **options)
