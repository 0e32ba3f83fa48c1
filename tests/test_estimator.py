"""monge.Estimator passes scikit-learn's own checks for estimators of densities, classes and
numbers."""

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import estimator_checks_generator

import monge
from monge.core.errors import UsageError

SMALL = {"width": 8, "depth": 1}
QUICK = {
    "net.width": 32,
    "net.dropout": 0,
    "train.lr": 2e-2,
    "train.warmup": 5,
    "train.ema_decay": 0.9,
}
SUBJECTS = [
    monge.Estimator("made", SMALL, budget="3steps", random_state=0),
    *(
        monge.Estimator("predict.mlp", QUICK, budget="4steps", random_state=0, task=task)
        for task in ("classify", "regress")
    ),
]
LEARNING = ("classifiers_train", "classifiers_classes", "regressors_train")
"""Checks that need good predictions."""
CHECKS = [found for subject in SUBJECTS for found in estimator_checks_generator(subject)]


def name_of(estimator, check):
    return f"{estimator.task or 'density'}-{getattr(check, 'func', check).__name__}"


@pytest.mark.parametrize(("estimator", "check"), CHECKS, ids=[name_of(*pair) for pair in CHECKS])
def test_scikit_learn_agrees(estimator, check):
    if name_of(estimator, check).endswith(LEARNING):
        estimator = clone(estimator).set_params(budget="60steps")
    check(estimator)
    assert isinstance(estimator, monge.Estimator)


@pytest.fixture(scope="module")
def flowers():
    return load_iris().data


def test_a_grid_over_fields(flowers):
    search = GridSearchCV(
        monge.Estimator("made", {"depth": 1}, budget="20steps", random_state=0),
        {"config__width": [4, 16], "budget": ["5steps"]},
        cv=2,
    )
    search.fit(flowers)
    assert set(search.best_params_) == {"config__width", "budget"}
    assert search.best_estimator_.model_.config.width == search.best_params_["config__width"]
    assert np.isfinite(search.best_score_)


def test_scores_do_not_depend_on_the_batch(flowers):
    model = monge.Estimator("made", SMALL, budget="20steps", random_state=0).fit(flowers)
    together = model.score_samples(flowers)
    apart = np.concatenate([model.score_samples(rows) for rows in np.array_split(flowers, 11)])
    np.testing.assert_allclose(together, apart, rtol=1e-12)
    assert model.sample(7).shape == (7, 4)
    np.testing.assert_array_equal(model.sample(7), model.sample(7))


def test_abilities_decide_the_methods(flowers):
    vae = monge.Estimator("vae", budget="5steps", random_state=0).fit(flowers)
    assert vae.transform(flowers).shape[0] == 150
    np.testing.assert_allclose(vae.score_samples(flowers[::-1])[::-1], vae.score_samples(flowers))
    assert not hasattr(monge.Estimator("made"), "transform")
    assert not hasattr(monge.Estimator("wgan"), "score_samples")
    assert clone(vae).get_params() == vae.get_params()


def test_y_decides_what_is_predicted():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = monge.Estimator("predict.mlp", QUICK, budget="80steps", random_state=0)
    assert not is_classifier(model)
    model.fit(X, names)
    assert is_classifier(model)
    assert list(model.classes_) == sorted(set(names))
    assert model.score(X, names) > 0.9
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert (model.classes_[probabilities.argmax(1)] == model.predict(X)).all()
    assert not hasattr(model, "score_samples")
    number = clone(model).fit(X[:, :3], X[:, 3])
    assert is_regressor(number)
    assert number.score(X[:, :3], X[:, 3]) > 0.8
    assert not hasattr(number, "predict_proba")
    assert is_classifier(monge.Estimator("predict.logistic"))
    with pytest.raises(ValueError, match=r"\b1\b"):
        clone(model).fit(X, np.ones(150, int))
    with pytest.raises(ValueError, match=r"\by\b"):
        clone(model).fit(X)


def test_a_misspelt_setting_names_the_right_one(flowers):
    with pytest.raises(UsageError, match="width"):
        monge.Estimator("made", {"widht": 3}, budget="1steps").fit(flowers)
