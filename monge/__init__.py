"""Every family of deep generative model behind one contract.

    import monge
    run = monge.fit("vae", "digits", "latent=8", budget="60s")
    pictures = run.sample(64)
    print(run.score().score)

Names are resolved on first use, so that `import monge` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison.api import compare
    from .data import open
    from .estimator import Estimator
    from .run.run import Run, fit, load


__version__ = "0.1.0"
__all__ = ["Estimator", "Run", "__version__", "compare", "fit", "load", "open"]

HOMES = {
    "compare": "comparison.api",
    "fit": "run.run",
    "load": "run.run",
    "Run": "run.run",
    "open": "data",
    "Estimator": "estimator",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'monge' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
