"""Data: a name, a path or a Python object becomes a dataset of named fields and seeded splits."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .builtin.catalogue import names
    from .dataset import Dataset, Split, View
    from .loading import open, prepare


__all__ = ["Dataset", "Split", "View", "names", "open", "prepare"]
MODULES = {
    "Dataset": ".dataset",
    "Split": ".dataset",
    "View": ".dataset",
    "names": ".builtin.catalogue",
    "open": ".loading",
    "prepare": ".loading",
}


def __getattr__(name: str) -> Any:
    """Public names on first use: most of their modules need torch."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(MODULES[name], __name__), name)
