"""Any model as a scikit-learn estimator: of densities, or of targets if the model is a predictor.

    monge.Estimator("predict.mlp").fit(X, y).predict_proba(X)

    from sklearn.model_selection import GridSearchCV
    search = GridSearchCV(monge.Estimator("made", budget="500steps"), {"config__width": [32, 128]})
    search.fit(X).best_estimator_.sample(10)

The task (classification or regression) follows from y, or from `task`, which tools that need it
before they see y (stratified splits) rely on. Model settings are `config` (a mapping, or a whole
Config) and `config__name` in a grid. Log-likelihoods are computed in float64, so that they do not
depend on how rows are batched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, Tags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from . import registry
from .core.abilities import Ability, CanEncode, CanSample, HasLikelihood
from .core.config import Config
from .core.rng import GOLDEN

if TYPE_CHECKING:
    from torch import Tensor


PREFIX = "config__"
Task = Literal["density", "classify", "regress"]
CLASS_KINDS = {"label", "binary"}
"""Kinds of target that are classes."""


def if_density_with(ability: type[Ability]) -> Any:
    """A method that exists only if the model is a density with this ability."""

    def check(estimator: Estimator) -> bool:
        entry = registry.describe(estimator.model)
        return ability.ability in entry.abilities and not entry.is_predictor

    return available_if(check)


def if_task(*tasks: Task | None) -> Any:
    """A method that exists only for these tasks; None: not known yet."""
    return available_if(lambda estimator: estimator.known_task in tasks)


def row_keys(rows: Tensor) -> Tensor:
    """A number per row that depends on its values alone; it keys the noise of a bound, which
    is then the same wherever the row stands."""
    import torch

    bits = rows.view(torch.int64)  # (B, D)
    return (bits * (2 * torch.arange(rows.shape[1]) + 1) * GOLDEN).sum(1)


class Estimator(BaseEstimator):
    """A density p(x) over the columns of X, each a real number; or, for a predictor, p(y | x) of
    classes or of a number."""

    def __init__(
        self,
        model: str = "made",
        config: Mapping[str, Any] | Config | None = None,
        budget: str = "10s",
        random_state: Any = None,
        task: Task | None = None,
    ) -> None:
        self.model, self.config = model, config
        self.budget, self.random_state, self.task = budget, random_state, task

    @property
    def known_task(self) -> Task | None:
        """The task; None if only y can decide it."""
        entry = registry.describe(self.model)
        if not entry.is_predictor:
            return "density"
        if self.task is None and set(entry.events) <= CLASS_KINDS:
            return "classify"
        return self.task or vars(self).get("task_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        task = self.known_task
        tags.estimator_type = {
            "density": "density_estimator",
            "classify": "classifier",
            "regress": "regressor",
            None: None,
        }[task]
        tags.target_tags.required = task != "density"
        tags.classifier_tags = ClassifierTags() if task == "classify" else None
        tags.regressor_tags = RegressorTags() if task == "regress" else None
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        params = super().get_params(deep=False)
        if deep and isinstance(self.config, Mapping):
            params |= {PREFIX + name: value for name, value in self.config.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters, and model settings as config__name."""
        fields = {
            name.removeprefix(PREFIX): params.pop(name)
            for name in list(params)
            if name.startswith(PREFIX)
        }
        super().set_params(**params)
        if fields:
            self.config = {**self.config_overrides(), **fields}
        return self

    def config_overrides(self) -> dict[str, Any]:
        """The model settings that were given."""
        if isinstance(self.config, Config):
            return {k: v for k, v in self.config.to_dict().items() if k != "is"}
        return dict(self.config or {})

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Fit within the budget; a tenth of the rows is held out for early stopping."""
        if self.known_task == "density":
            return self.fit_rows(self.read(X, reset=True, ensure_min_samples=3))
        if y is None:
            raise ValueError(
                f"{self.model} predicts y from X: it requires y to be passed, but "
                "the target y is None"
            )
        self.task_ = self.infer_task(y)
        numeric = self.task_ == "regress"
        rows, target = validate_data(
            self, X, y, dtype=np.float64, y_numeric=numeric, ensure_min_samples=3
        )
        if numeric:
            return self.fit_rows((rows, np.asarray(target, np.float64)), "data.test=0.001")
        check_classification_targets(target)
        self.classes_, codes = np.unique(target, return_inverse=True)
        if len(self.classes_) == 1:
            raise ValueError(
                f"expected at least two classes in y, found one class: {self.classes_[0]}; add "
                "rows of other classes"
            )
        return self.fit_rows((rows, codes.astype(str).astype(object)), "data.test=0.001")

    def infer_task(self, y: Any) -> Task:
        """Classification or regression."""
        if self.known_task is not None:
            return self.known_task
        return "classify" if type_of_target(y) in ("binary", "multiclass") else "regress"

    def fit_rows(self, rows: Any, *settings: str) -> Self:
        from .run.run import fit

        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        whole = self.config if isinstance(self.config, Config) else None
        fields = (
            [] if whole else [f"{name}={value}" for name, value in self.config_overrides().items()]
        )
        with tempfile.TemporaryDirectory() as folder:
            run = fit(
                whole or self.model,
                rows,
                *fields,
                *settings,
                budget=self.budget,
                seed=seed,
                out=Path(folder) / "run",
            )
            self.model_: Any = run.model.double()
            self.seed_, self.n_iter_ = seed, run.result["step"]
        return self

    @if_task("classify", "regress", None)
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class, or the mean."""
        mean = self.mean(X)
        return self.classes_[mean.argmax(1)] if self.task_ == "classify" else mean

    @if_task("classify")
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of each of `classes_`."""
        return self.mean(X)

    def mean(self, X: ArrayLike) -> NDArray[np.float64]:
        """E[y | x]; of classes, their probabilities."""
        from .core.batch import Batch
        from .evaluate.likelihood import CHUNK

        means = [self.model_.mean({"x": Batch(rows)}) for rows in self.tensor(X).split(CHUNK)]
        return np.concatenate([mean.numpy() for mean in means])

    @if_density_with(HasLikelihood)
    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """log p of each row in nats, or a lower bound of it if the model has only that."""
        from .core.batch import Batch
        from .evaluate.likelihood import CHUNK, row_likelihoods

        rows = self.tensor(X)
        keys = row_keys(rows).split(CHUNK)
        batches = (Batch(x, row=key) for x, key in zip(rows.split(CHUNK), keys, strict=True))
        return row_likelihoods(self.model_, batches, rows.shape[1], seed=self.seed_).value

    def score(self, X: ArrayLike, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy for classes, R squared for a number, the mean of score_samples for a density:
        higher is better."""
        if self.known_task == "density":
            return float(self.score_samples(X).mean())
        metric = accuracy_score if self.task_ == "classify" else r2_score
        return float(metric(y, self.predict(X), sample_weight=sample_weight))

    @if_density_with(CanSample)
    def sample(self, n_samples: int = 1) -> NDArray[np.float64]:
        """Rows sampled from the model, the same at each call."""
        from .core.rng import make_generator

        check_is_fitted(self)
        return self.model_.sample(n_samples, generator=make_generator(self.seed_)).numpy()

    @if_density_with(CanEncode)
    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """The latent code of each row."""
        return self.model_.encode(self.tensor(X)).numpy()

    def tensor(self, X: ArrayLike) -> Tensor:
        """Validated rows as a tensor."""
        import torch

        check_is_fitted(self)
        return torch.from_numpy(np.ascontiguousarray(self.read(X, reset=False)))

    def read(self, X: ArrayLike, reset: bool, ensure_min_samples: int = 1) -> NDArray[np.float64]:
        return validate_data(
            self, X, reset=reset, dtype=np.float64, ensure_min_samples=ensure_min_samples
        )
