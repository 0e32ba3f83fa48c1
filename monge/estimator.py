"""Any model as a scikit-learn estimator: of densities, or of targets where the model predicts.

    monge.Estimator("predict.mlp").fit(X, y).predict_proba(X)

    from sklearn.model_selection import GridSearchCV
    search = GridSearchCV(monge.Estimator("made", budget="500steps"), {"config__width": [32, 128]})
    search.fit(X).best_estimator_.sample(10)

What is predicted follows from y, classes or numbers, or from `task`, which tools that must know
before they see y (stratified splits) rely on. Fields of the model are `config` (a mapping, or a
whole Config) and `config__name` in a grid. Scores are computed in float64, so that they do not
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
CLASSES = {"label", "binary"}
"""Kinds of target that are classes."""


def able(ability: type[Ability]) -> Any:
    """A method that is there only where the model is a density with the ability."""

    def check(estimator: Estimator) -> bool:
        entry = registry.describe(estimator.model)
        return ability.ability in entry.abilities and not entry.is_predictor

    return available_if(check)


def only(*tasks: Task | None) -> Any:
    """A method that is there only where this is what the estimator does; None: not yet known."""
    return available_if(lambda estimator: estimator.doing in tasks)


def content(rows: Tensor) -> Tensor:
    """A number for each row that depends on its values alone, so that the noise of a bound, which
    is keyed by it, is the same wherever the row stands."""
    import torch

    bits = rows.view(torch.int64)  # (B, D)
    return (bits * (2 * torch.arange(rows.shape[1]) + 1) * GOLDEN).sum(1)


class Estimator(BaseEstimator):
    """A law p(x) over the columns of X, each a real number; or, where the model predicts, p(y | x)
    of classes or of a number."""

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
    def doing(self) -> Task | None:
        """What it does; None while only y could tell."""
        entry = registry.describe(self.model)
        if not entry.is_predictor:
            return "density"
        if self.task is None and set(entry.events) <= CLASSES:
            return "classify"
        return self.task or vars(self).get("task_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        doing = self.doing
        tags.estimator_type = {
            "density": "density_estimator",
            "classify": "classifier",
            "regress": "regressor",
            None: None,
        }[doing]
        tags.target_tags.required = doing != "density"
        tags.classifier_tags = ClassifierTags() if doing == "classify" else None
        tags.regressor_tags = RegressorTags() if doing == "regress" else None
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        params = super().get_params(deep=False)
        if deep and isinstance(self.config, Mapping):
            params |= {PREFIX + name: value for name, value in self.config.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Parameters, and fields of the model as config__name."""
        fields = {
            name.removeprefix(PREFIX): params.pop(name)
            for name in list(params)
            if name.startswith(PREFIX)
        }
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
        if self.doing == "density":
            return self.learn(self.read(X, reset=True, ensure_min_samples=3))
        if y is None:
            raise ValueError(
                f"{self.model} predicts y from X: it requires y to be passed, but "
                "the target y is None"
            )
        self.task_ = self.settle(y)
        numeric = self.task_ == "regress"
        rows, target = validate_data(
            self, X, y, dtype=np.float64, y_numeric=numeric, ensure_min_samples=3
        )
        if numeric:
            return self.learn((rows, np.asarray(target, np.float64)), "data.test=0.001")
        check_classification_targets(target)
        self.classes_, codes = np.unique(target, return_inverse=True)
        if len(self.classes_) == 1:
            raise ValueError(
                f"y holds the class {self.classes_[0]} alone; give rows of at least two classes"
            )
        return self.learn((rows, codes.astype(str).astype(object)), "data.test=0.001")

    def settle(self, y: Any) -> Task:
        """What there is to predict."""
        if self.doing is not None:
            return self.doing
        return "classify" if type_of_target(y) in ("binary", "multiclass") else "regress"

    def learn(self, rows: Any, *words: str) -> Self:
        from .run.run import fit

        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        whole = self.config if isinstance(self.config, Config) else None
        fields = [] if whole else [f"{name}={value}" for name, value in self.words().items()]
        with tempfile.TemporaryDirectory() as place:
            run = fit(
                whole or self.model,
                rows,
                *fields,
                *words,
                budget=self.budget,
                seed=seed,
                out=Path(place) / "run",
            )
            self.model_: Any = run.model.double()
            self.seed_, self.n_iter_ = seed, run.result["step"]
        return self

    @only("classify", "regress", None)
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class, or the mean."""
        mean = self.mean(X)
        return self.classes_[mean.argmax(1)] if self.task_ == "classify" else mean

    @only("classify")
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of each of `classes_`."""
        return self.mean(X)

    def mean(self, X: ArrayLike) -> NDArray[np.float64]:
        """E[y | x]; of classes, their probabilities."""
        from .core.batch import Batch
        from .evaluate.likelihood import CHUNK

        means = [self.model_.mean({"x": Batch(rows)}) for rows in self.tensor(X).split(CHUNK)]
        return np.concatenate([mean.numpy() for mean in means])

    @able(HasLikelihood)
    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """log p of each row in nats; a lower bound where the model gives one."""
        from .core.batch import Batch
        from .evaluate.likelihood import CHUNK, row_likelihoods

        rows = self.tensor(X)
        keys = content(rows).split(CHUNK)
        batches = (Batch(x, row=key) for x, key in zip(rows.split(CHUNK), keys, strict=True))
        return row_likelihoods(self.model_, batches, rows.shape[1], seed=self.seed_).value

    def score(self, X: ArrayLike, y: Any = None, sample_weight: Any = None) -> float:
        """Of classes the accuracy, of a number R squared, of a density the mean of score_samples:
        higher is better."""
        if self.doing == "density":
            return float(self.score_samples(X).mean())
        measure = accuracy_score if self.task_ == "classify" else r2_score
        return float(measure(y, self.predict(X), sample_weight=sample_weight))

    @able(CanSample)
    def sample(self, n_samples: int = 1) -> NDArray[np.float64]:
        """Rows drawn from the law, the same each time."""
        from .core.rng import make_generator

        check_is_fitted(self)
        return self.model_.sample(n_samples, generator=make_generator(self.seed_)).numpy()

    @able(CanEncode)
    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """The code of each row."""
        return self.model_.encode(self.tensor(X)).numpy()

    def tensor(self, X: ArrayLike) -> Tensor:
        """Rows to ask the fitted law about."""
        import torch

        check_is_fitted(self)
        return torch.from_numpy(np.ascontiguousarray(self.read(X, reset=False)))

    def read(self, X: ArrayLike, reset: bool, ensure_min_samples: int = 1) -> NDArray[np.float64]:
        return validate_data(
            self, X, reset=reset, dtype=np.float64, ensure_min_samples=ensure_min_samples
        )
