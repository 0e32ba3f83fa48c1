"""Every family of deep generative model behind one contract.

    import monge
    run = monge.fit("vae", "digits", latent=8, budget="60s")
    images = run.sample(64)
    print(run.log_likelihood().mean)

A model of one's own is one file that imports everything it needs from here:

    from monge import Batch, CanSample, HasLikelihood, Likelihood, Model, Space

`__all__` is the public interface. Names are resolved on first use, so that `import monge` does not
import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison.api import compare
    from .comparison.tuning import tune
    from .core.abilities import (
        Ability,
        CanComplete,
        CanDecode,
        CanDiagnose,
        CanEncode,
        CanEnlarge,
        CanExport,
        CanSample,
        CanStream,
        CanTransfer,
        Finding,
        HasAttention,
        HasBijection,
        HasConditionals,
        HasCritic,
        HasDiscriminator,
        HasLevels,
        HasLikelihood,
        HasMarginals,
        HasMean,
        HasMode,
        HasPosterior,
        HasScore,
        HasSubsets,
        HasTerms,
        Likelihood,
    )
    from .core.batch import Batch
    from .core.config import Config, Range, RunRef
    from .core.errors import DataError, DivergenceError, MongeError, RunError, UsageError
    from .core.metric import Metric
    from .core.model import Defaults, Losses, Model, Update
    from .core.space import Space
    from .core.train_config import OptimiserConfig, TrainConfig
    from .data.loading import open
    from .estimator import Estimator
    from .report.run import write_report
    from .run.distance import distance
    from .run.recommendation import describe
    from .run.run import Run, fit, load


__version__ = "0.1.0"
__all__ = [
    "Ability",
    "Batch",
    "CanComplete",
    "CanDecode",
    "CanDiagnose",
    "CanEncode",
    "CanEnlarge",
    "CanExport",
    "CanSample",
    "CanStream",
    "CanTransfer",
    "Config",
    "DataError",
    "Defaults",
    "DivergenceError",
    "Estimator",
    "Finding",
    "HasAttention",
    "HasBijection",
    "HasConditionals",
    "HasCritic",
    "HasDiscriminator",
    "HasLevels",
    "HasLikelihood",
    "HasMarginals",
    "HasMean",
    "HasMode",
    "HasPosterior",
    "HasScore",
    "HasSubsets",
    "HasTerms",
    "Likelihood",
    "Losses",
    "Metric",
    "Model",
    "MongeError",
    "OptimiserConfig",
    "Range",
    "Run",
    "RunError",
    "RunRef",
    "Space",
    "TrainConfig",
    "Update",
    "UsageError",
    "__version__",
    "compare",
    "describe",
    "distance",
    "fit",
    "load",
    "open",
    "tune",
    "write_report",
]

EXPORTS = {
    "comparison.api": ("compare",),
    "comparison.tuning": ("tune",),
    "core.abilities": (
        "Ability",
        "CanComplete",
        "CanDecode",
        "CanDiagnose",
        "CanEncode",
        "CanEnlarge",
        "CanExport",
        "CanSample",
        "CanStream",
        "CanTransfer",
        "Finding",
        "HasAttention",
        "HasBijection",
        "HasConditionals",
        "HasCritic",
        "HasDiscriminator",
        "HasLevels",
        "HasLikelihood",
        "HasMarginals",
        "HasMean",
        "HasMode",
        "HasPosterior",
        "HasScore",
        "HasSubsets",
        "HasTerms",
        "Likelihood",
    ),
    "core.batch": ("Batch",),
    "core.config": ("Config", "Range", "RunRef"),
    "core.errors": ("DataError", "DivergenceError", "MongeError", "RunError", "UsageError"),
    "core.metric": ("Metric",),
    "core.model": ("Defaults", "Losses", "Model", "Update"),
    "core.space": ("Space",),
    "core.train_config": ("OptimiserConfig", "TrainConfig"),
    "data.loading": ("open",),
    "estimator": ("Estimator",),
    "report.run": ("write_report",),
    "run.distance": ("distance",),
    "run.recommendation": ("describe",),
    "run.run": ("Run", "fit", "load"),
}
"""The module of each public name."""
MODULE_OF = {name: module for module, names in EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF:
        raise AttributeError(f"module 'monge' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
