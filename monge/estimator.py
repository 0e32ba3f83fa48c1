"""Any model as a scikit-learn estimator: of densities, or of targets if the model is a predictor.

    monge.Estimator("predict.mlp").fit(X, y).predict_proba(X)

    from sklearn.model_selection import GridSearchCV
    search = GridSearchCV(monge.Estimator("made", budget="500steps"), {"config__width": [32, 128]})
    search.fit(X).best_estimator_.sample(10)

A frame is a table as people have it: its columns are numbers, names, dates or booleans, and cells
may be empty. An array of numbers is a vector of real numbers, or such a table if it has NaN.

The task (classification or regression) follows from y, or from `task`: names are classes, and so
are whole numbers unless there are more than 20 with fewer than 10 rows each on average. Before y
is known, a model that can do both counts as a classifier, so that cross-validation stratifies
folds where y has classes; tools that need a regressor beforehand need task="regress".

Model settings are `config` (a mapping, or a whole Config) and `config__name` in a grid.
Log-likelihoods are computed in float64, so that they do not depend on how rows are batched.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import (
    ClassifierTags,
    RegressorTags,
    Tags,
    TransformerTags,
    check_array,
    check_random_state,
    check_X_y,
)
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from . import registry
from .core.abilities import Ability, CanEncode, CanSample, HasLikelihood
from .core.config import Config, as_settings
from .core.errors import UsageError
from .core.keyed_bits import GOLDEN

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from .core.batch import Batch
    from .data.batches import Split


PREFIX = "config__"
Task = Literal["density", "classify", "regress"]
CLASS_KINDS = {"label", "binary"}
"""Kinds of target that are classes."""
FEW_CLASSES, ROWS_PER_CLASS = 20, 10
"""Whole numbers are classes if there are at most so many, or so many rows of each on average."""
LEAST_ROWS = 3
"""Rows that a fit needs: one each to train, validate and test."""


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


class Estimator(TransformerMixin, BaseEstimator):
    """A density p(x) over the columns of X; or, for a predictor, p(y | x) of classes or of a
    number.

    Examples
    --------
    >>> import monge
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> monge.Estimator("gaussian").fit(X).sample(3).shape
    (3, 4)
    """

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
        task, entry = self.known_task, registry.describe(self.model)
        types = {"density": "density_estimator", "regress": "regressor"}
        tags.estimator_type = types.get(task or "", "classifier")
        tags.target_tags.required = task != "density"
        tags.classifier_tags = ClassifierTags() if task in ("classify", None) else None
        tags.regressor_tags = RegressorTags() if task == "regress" else None
        encodes = CanEncode.ability in entry.abilities and not entry.is_predictor
        tags.transformer_tags = TransformerTags() if encodes else None
        tags.input_tags.allow_nan = entry.supports_missing or "columns" in entry.events
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
        if self.config is not None and not isinstance(self.config, Mapping):
            raise UsageError(
                f"config: expected settings of the model such as {{'width': 64}}, found "
                f"{self.config!r}; write them as a mapping"
            )
        return dict(self.config or {})

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit within the budget; a tenth of the rows is held out for early stopping. Rows count by
        `sample_weight` in the loss and in early stopping, if the loss of the model is a mean over
        rows."""
        if self.known_task == "density":
            return self.fit_rows(self.read(X, reset=True), None, sample_weight)
        if y is None:
            raise ValueError(
                f"{self.model} predicts y from X: it requires y to be passed, but "
                "the target y is None"
            )
        self.task_ = self.infer_task(y)
        numeric = self.task_ == "regress"
        rows = self.read(X, reset=True)
        _, target = check_X_y(np.zeros((len(rows), 1)), y, y_numeric=numeric, estimator=self)
        if numeric:
            return self.fit_rows(rows, target.astype(np.float64), sample_weight)
        check_classification_targets(target)
        self.classes_, codes = np.unique(target, return_inverse=True)
        if len(self.classes_) == 1:
            raise ValueError(
                f"expected at least two classes in y, found one class: {self.classes_[0]}; add "
                "rows of other classes"
            )
        return self.fit_rows(rows, codes.astype(str).astype(object), sample_weight)

    def inputs(
        self, rows: Any, target: NDArray[Any] | None, weight: NDArray[np.float64] | None
    ) -> tuple[Any, list[str]]:
        """The data of a fit, and their settings; in a table the target and the weights are columns
        under names of their own."""
        settings = [] if target is None else ["data.test=0.001"]
        if not self.is_table_:
            fields = {"x": rows, "y": target, "weight": weight}
            settings += [] if weight is None else ["data.weight=weight"]
            return {name: each for name, each in fields.items() if each is not None}, settings
        import pandas as pd

        settings.append("data.time=none")
        if weight is not None:
            name = self.new_name("weight")
            rows, settings = rows.assign(**{name: weight}), [*settings, f"data.weight={name}"]
        if target is not None:
            return (rows, pd.Series(target, name=self.new_name("y"))), settings
        return rows, settings

    def new_name(self, name: str) -> str:
        """A name that no column has."""
        while name in map(str, self.columns_):
            name += "_"
        return name

    def infer_task(self, y: Any) -> Task:
        """Classification or regression."""
        if self.known_task is not None:
            return self.known_task
        if type_of_target(y) not in ("binary", "multiclass"):
            return "regress"
        values = np.asarray(y)
        different = len(np.unique(values)) if values.dtype.kind in "iuf" else 0
        many = different > FEW_CLASSES and len(values) < ROWS_PER_CLASS * different
        return "regress" if many else "classify"

    def fit_rows(self, rows: Any, target: NDArray[Any] | None, weight: Any) -> Self:
        """Fit the model to rows that were checked."""
        from .run.run import fit

        if weight is not None:
            weight = _check_sample_weight(weight, rows, ensure_non_negative=True)
        data, settings = self.inputs(rows, target, weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        whole = self.config if isinstance(self.config, Config) else None
        fields = [] if whole else list(as_settings(self.config_overrides()))
        with tempfile.TemporaryDirectory() as folder:
            run = fit(
                whole or self.model,
                data,
                *fields,
                *settings,
                budget=self.budget,
                seed=seed,
                out=Path(folder) / "run",
            )
            self.model_: Any = run.model.double()
            self.seed_, self.n_iter_ = seed, run.result["step"]
            self.fields_, self.target_ = run.view.to_dict(), run.metadata["target"]
        return self

    @if_task("classify", "regress", None)
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class, or the mean."""
        mean = self.mean(X)
        return self.classes_[mean.argmax(1)] if self.task_ == "classify" else mean

    @if_task("classify", None)
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of each of `classes_`."""
        return self.mean(X)

    def mean(self, X: ArrayLike) -> NDArray[np.float64]:
        """E[y | x]; of classes, their probabilities."""
        from .data.codecs.scalar import Offset
        from .data.dataset import View

        found = np.concatenate(
            [
                self.model_.mean(batch.given).numpy()
                for batch in batches_of(self.rows(X), given="x")
            ]
        )
        codec = View.from_dict(self.fields_).event.fields[0].codec
        return found + codec.offset if isinstance(codec, Offset) else found

    @if_density_with(HasLikelihood)
    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """log p of each row in nats, or a lower bound of it if the model has only that; NaN for a
        row with a name that was not in training, which the model gives no probability."""
        from .evaluate.likelihood import row_likelihoods

        rows = self.rows(X, every=False)
        batches = (replace(batch, row=row_keys(batch.x)) for batch in batches_of(rows))
        value = row_likelihoods(self.model_, batches, self.n_features_in_, seed=self.seed_).value
        if isinstance(rows, np.ndarray):
            return value
        found = np.full(len(rows.view.dataset), np.nan)
        found[rows.numbers.numpy() - 1] = value
        return found

    def score(self, X: ArrayLike, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy for classes, R squared for a number, the mean of score_samples over the rows
        that have a value for a density: higher is better."""
        if self.known_task == "density":
            found = self.score_samples(X)
            known = ~np.isnan(found)
            weight = None if sample_weight is None else np.asarray(sample_weight)[known]
            return float(np.average(found[known], weights=weight))
        metric = accuracy_score if self.task_ == "classify" else r2_score
        return float(metric(y, self.predict(X), sample_weight=sample_weight))

    @if_density_with(CanSample)
    def sample(self, n_samples: int = 1) -> NDArray[np.float64] | pd.DataFrame:
        """Rows sampled from the model in the form of the data, the same at each call."""
        from .core.rng import make_generator
        from .data.dataset import View

        check_is_fitted(self)
        x = self.model_.sample(n_samples, generator=make_generator(self.seed_))
        return View.from_dict(self.fields_).decode(x) if self.is_table_ else x.numpy()

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """The latent code of each row, (n, entries)."""
        codes = [
            self.model_.encode(batch).flatten(1).numpy() for batch in batches_of(self.rows(X))
        ]
        return np.concatenate(codes)

    @if_density_with(CanEncode)
    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """The names of the entries of a code: z1, z2, ..."""
        check_is_fitted(self)
        return np.array([f"z{i + 1}" for i in range(self.model_.latent.dims)], object)

    def rows(self, X: ArrayLike, every: bool = True) -> NDArray[np.float64] | Split:
        """Rows as the fitted model reads them; warns of what it cannot read in a table. A row that
        the model gives no probability is refused, or left out unless `every` is set."""
        from .data import loading

        check_is_fitted(self)
        found = self.read(X, reset=False)
        if isinstance(found, np.ndarray):
            return found
        source = loading.open(found, fields=self.fields_)
        for note in source.notes:
            warnings.warn(note, UserWarning, stacklevel=3)
        return source.view(target=self.target_).split("all", every=every)

    def read(self, X: ArrayLike, reset: bool) -> NDArray[np.float64] | pd.DataFrame:
        """Validated rows: a frame if the model was fitted to a table, otherwise an array."""
        import pandas as pd

        from .data.frames import as_pandas

        least, found = LEAST_ROWS if reset else 1, as_pandas(X)
        if isinstance(found, pd.DataFrame):
            validate_data(self, found, reset=reset, skip_check_array=True)
            if len(found) < least:
                raise ValueError(f"expected at least {least} rows, found {len(found)}; add rows")
        else:
            found = validate_data(
                self,
                X,
                reset=reset,
                dtype=np.float64,
                ensure_min_samples=least,
                ensure_all_finite="allow-nan",
            )
        if reset:
            self.is_table_ = isinstance(found, pd.DataFrame) or bool(np.isnan(found).any())
            width = range(self.n_features_in_)
            self.columns_ = list(getattr(found, "columns", [f"x{i + 1}" for i in width]))
        if self.is_table_:
            return pd.DataFrame(found).set_axis(self.columns_, axis=1)
        found = check_array(found, dtype=np.float64, ensure_all_finite="allow-nan")
        entry = registry.describe(self.model)
        if not entry.supports_missing and np.isnan(found).any():
            row = int(np.isnan(found).any(1).argmax()) + 1
            raise ValueError(
                f"expected numbers, found NaN in row {row}; fill it in, or fit on rows with NaN"
            )
        return found


def batches_of(rows: NDArray[np.float64] | Split, given: str = "") -> Iterator[Batch]:
    """Rows as float64 batches; an array is the event, or the condition `given`."""
    import torch

    from .core.batch import Batch
    from .evaluate.likelihood import CHUNK, chunks

    if not isinstance(rows, np.ndarray):
        yield from map(in_float64, chunks(rows))
        return
    for x in torch.from_numpy(np.require(rows, requirements=("C", "W"))).split(CHUNK):
        empty = x.isnan()
        seen = ~empty if bool(empty.any()) else None
        batch = Batch(x.nan_to_num(0.0), observed=seen)
        yield Batch(x[:, 0], given={given: batch}) if given else batch


def in_float64(batch: Batch) -> Batch:
    given = {name: in_float64(part) for name, part in batch.given.items()}
    x = batch.x.double() if batch.x.is_floating_point() else batch.x
    return replace(batch, x=x, given=given)


for method in ("transform", "fit_transform"):
    # scikit-learn wraps these for `set_output` when the class is made, so that the condition for
    # them to exist is added to what it made.
    setattr(Estimator, method, if_density_with(CanEncode)(getattr(Estimator, method)))
