"""Any model as a scikit-learn density estimator: fit, score_samples, sample, and what it can do.

    from sklearn.model_selection import GridSearchCV
    search = GridSearchCV(monge.Estimator("made", budget="500steps"), {"config__width": [32, 128]})
    search.fit(X).best_estimator_.sample(10)

Fields of the model are `config` (a mapping, or a whole Config) and `config__name` in a grid.
Scores are computed in float64, so that they do not depend on how rows are batched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from . import registry
from .core.config import Config
from .core.noise import GOLDEN

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "config__"


def able(ability: str) -> Any:
    """A method that is there only where the model has the ability."""
    def check(estimator: Estimator) -> bool:
        return ability in registry.describe(estimator.model).abilities

    return available_if(check)


def content(rows: Tensor) -> Tensor:
    """A number for each row that depends on its values alone, so that the noise of a bound, which
    is keyed by it, is the same wherever the row stands."""
    import torch

    bits = rows.view(torch.int64)  # (B, D)
    return (bits * (2 * torch.arange(rows.shape[1]) + 1) * GOLDEN).sum(1)


class Estimator(DensityMixin, BaseEstimator):
    """A law p(x) over the columns of X, each a real number."""

    def __init__(self, model: str = "made", config: Mapping[str, Any] | Config | None = None,
                 budget: str = "10s", random_state: Any = None) -> None:
        self.model, self.config = model, config
        self.budget, self.random_state = budget, random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        params = super().get_params(deep=False)
        if deep and isinstance(self.config, Mapping):
            params |= {PREFIX + name: value for name, value in self.config.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Parameters, and fields of the model as config__name."""
        fields = {name.removeprefix(PREFIX): params.pop(name) for name in list(params)
                  if name.startswith(PREFIX)}
        super().set_params(**params)
        if fields:
            self.config = {**self.words(), **fields}
        return self

    def words(self) -> dict[str, Any]:
        """The fields that were set."""
        if isinstance(self.config, Config):
            return {k: v for k, v in self.config.to_dict().items() if k != "is"}
        return dict(self.config or {})

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Fit within the budget; a tenth of the rows judges when to stop."""
        from .run import fit

        rows = self.read(X, reset=True, ensure_min_samples=3)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        whole = self.config if isinstance(self.config, Config) else None
        words = [] if whole else [f"{name}={value}" for name, value in self.words().items()]
        with tempfile.TemporaryDirectory() as place:
            run = fit(whole or self.model, rows, *words, budget=self.budget, seed=seed,
                      out=Path(place) / "run")
            self.model_: Any = run.model.double()
            self.seed_, self.n_iter_ = seed, run.result["step"]
        return self

    @able("HasLikelihood")
    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """log p of each row in nats; a lower bound where the model gives one."""
        from .core.batch import Batch
        from .evaluate.likelihood import CHUNK, scores

        rows = self.tensor(X)
        keys = content(rows).split(CHUNK)
        batches = (Batch(x, row=key) for x, key in zip(rows.split(CHUNK), keys, strict=True))
        return scores(self.model_, batches, rows.shape[1], seed=self.seed_).value

    @able("HasLikelihood")
    def score(self, X: ArrayLike, y: Any = None) -> float:
        """The mean of score_samples: higher is better."""
        return float(self.score_samples(X).mean())

    @able("CanSample")
    def sample(self, n_samples: int = 1) -> NDArray[np.float64]:
        """Rows drawn from the law, the same each time."""
        from .core.noise import fresh

        check_is_fitted(self)
        return self.model_.sample(n_samples, generator=fresh(self.seed_)).numpy()

    @able("CanEncode")
    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """The code of each row."""
        return self.model_.encode(self.tensor(X)).numpy()

    def tensor(self, X: ArrayLike) -> Tensor:
        """Rows to ask the fitted law about."""
        import torch

        check_is_fitted(self)
        return torch.from_numpy(np.ascontiguousarray(self.read(X, reset=False)))

    def read(self, X: ArrayLike, reset: bool, ensure_min_samples: int = 1) -> NDArray[np.float64]:
        return validate_data(self, X, reset=reset, dtype=np.float64,
                             ensure_min_samples=ensure_min_samples)
