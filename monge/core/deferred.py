"""torch, imported when it is first used.

Reading and describing a table needs no tensors, and importing torch takes longer than either.
Modules that such a command imports, and that use torch only for other data, take it from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class DeferredModule:
        """A module that is imported when one of its names is first looked up."""

        def __init__(self, name: str) -> None:
            self.__name__ = name

        def __getattr__(self, name: str) -> Any:
            module = importlib.import_module(self.__name__)
            found = getattr(module, name)
            self.__dict__ = module.__dict__  # from now on its names are found as its own
            return found

    torch = DeferredModule("torch")
