"""Matplotlib figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DOTS = 120
"""Dots per inch."""


def save(figure: Figure, path: Path) -> None:
    """Save a figure in the format of the suffix."""
    with replacing(path) as fresh:
        figure.savefig(fresh, dpi=DOTS)
