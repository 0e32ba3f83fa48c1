"""monge.Estimator passes scikit-learn's own checks for estimators of densities, classes and
numbers."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import get_tags
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
RANDOM = "the rows that are held out for early stopping differ"
SPLIT = {f"check_sample_weight_equivalence_on_{kind}_data": RANDOM for kind in ("dense", "sparse")}
"""Checks that no model passes which chooses its held-out rows by itself."""
CHECKS = [
    found
    for subject in SUBJECTS
    for found in estimator_checks_generator(subject)
    if getattr(found[1], "func", found[1]).__name__ not in SPLIT
]


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


def test_arrays_that_cannot_be_written_are_read_without_a_warning(flowers, recwarn):
    estimator = monge.Estimator("gaussian", budget="1steps").fit(flowers)
    rows = flowers[:4].copy()
    rows.flags.writeable = False  # as frames of pandas give them
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch warns once in a process otherwise
    try:
        found = estimator.score_samples(rows)
    finally:
        torch.set_warn_always(before)
    assert not [str(each.message) for each in recwarn]
    np.testing.assert_array_equal(found, estimator.score_samples(flowers[:4]))


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
    assert is_classifier(model)  # until y decides: folds are stratified where y has classes
    assert is_regressor(clone(model).set_params(task="regress"))
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
    assert not is_classifier(number)
    assert number.score(X[:, :3], X[:, 3]) > 0.8
    assert not hasattr(number, "predict_proba")
    assert is_classifier(monge.Estimator("predict.logistic"))
    tasks = [
        clone(model).infer_task(np.arange(n) % k) for n, k in ((500, 94), (500, 50), (30, 20))
    ]
    assert tasks == ["regress", "classify", "classify"]  # few rows of each of many whole numbers
    with pytest.raises(ValueError, match=r"\b1\b"):
        clone(model).fit(X, np.ones(150, int))
    with pytest.raises(ValueError, match=r"\by\b"):
        clone(model).fit(X)


def test_a_misspelt_setting_names_the_right_one(flowers):
    with pytest.raises(UsageError, match="width"):
        monge.Estimator("made", {"widht": 3}, budget="1steps").fit(flowers)
    with pytest.raises(UsageError, match="width=3"):
        monge.Estimator("made", "width=3", budget="1steps").fit(flowers)


def penguins(n=160):
    """A table with names, booleans and empty cells; `heavy` follows from `mass` and `kind`."""
    rng = np.random.default_rng(0)
    kind = rng.choice(["adelie", "gentoo"], n).astype(object)
    mass = rng.normal(4000, 500, n) + 600 * (kind == "gentoo")
    heavy = np.where(mass > 4300, "heavy", "light")
    kind[rng.random(n) < 0.1] = None
    mass = np.where(rng.random(n) < 0.1, np.nan, mass.round())
    frame = pd.DataFrame({"kind": kind, "mass": mass, "ringed": rng.random(n) < 0.5})
    return frame.set_index(pd.Index([f"bird {i}" for i in range(n)])), heavy


@pytest.fixture(scope="module")
def birds():
    return penguins()


@pytest.fixture(scope="module")
def weigher(birds):
    return monge.Estimator("predict.mlp", QUICK, budget="80steps", random_state=0).fit(*birds)


def test_frames_with_names_and_empty_cells_are_tables(weigher, birds):
    X, y = birds
    assert list(weigher.feature_names_in_) == ["kind", "mass", "ringed"]
    assert weigher.n_features_in_ == 3
    assert get_tags(weigher).input_tags.allow_nan
    assert weigher.score(X, y) > 0.85
    assert list(weigher.classes_) == ["heavy", "light"]
    shapes = [part.shape for part in weigher.model_.space.given.values()]
    assert shapes == [(3,)]  # names and booleans are columns of their own
    again = pickle.loads(pickle.dumps(weigher))
    np.testing.assert_array_equal(again.predict_proba(X), weigher.predict_proba(X))
    shuffled = X[::-1]
    np.testing.assert_allclose(
        weigher.predict_proba(shuffled)[::-1], weigher.predict_proba(X), rtol=1e-12
    )
    with pytest.raises(ValueError, match="order"):
        weigher.predict(X[["mass", "kind", "ringed"]])
    with (
        pytest.raises(ValueError, match="2 features"),
        pytest.warns(UserWarning, match="feature names"),  # an array has none
    ):
        weigher.predict(X.to_numpy()[:, 1:].astype(float))


def test_classes_have_the_type_of_y(birds):
    X, y = birds
    model = monge.Estimator("predict.logistic", budget="3steps", random_state=0)
    for target in (y == "heavy", np.where(y == "heavy", 7, 3), pd.Series(y, dtype="category")):
        fitted = clone(model).fit(X, target)
        assert fitted.classes_.dtype == np.unique(np.asarray(target)).dtype
        assert set(fitted.predict(X)) <= set(target)
    with pytest.raises(ValueError, match="NaN"):
        clone(model).fit(X, np.where(y == "heavy", np.nan, 1.0))


def test_a_number_far_from_zero_is_predicted_in_its_own_units(birds):
    X, y = birds
    large = 1.7e9 + (y == "heavy") * 10.0
    model = monge.Estimator("predict.mlp", QUICK, budget="40steps", random_state=0, task="regress")
    assert (np.abs(model.fit(X, large).predict(X) - large) < 20).all()


def test_a_column_called_y_is_no_obstacle(birds):
    X, y = birds
    model = monge.Estimator("predict.logistic", budget="3steps", random_state=0)
    renamed = X.rename(columns={"mass": "y"})
    assert len(model.fit(renamed, y).predict(renamed)) == len(X)


def test_names_that_were_not_in_training_are_empty_cells(weigher, birds):
    X, _ = birds
    strange, empty = X.copy(), X.copy()
    strange.iloc[4, 0], empty.iloc[4, 0] = "emu", None
    with pytest.warns(UserWarning, match=r"row 5: 'emu'"):
        found = weigher.predict_proba(strange)
    np.testing.assert_array_equal(found, weigher.predict_proba(empty))


def test_rows_with_a_new_name_have_no_density(birds):
    X, _ = birds
    made = monge.Estimator("made", SMALL, budget="5steps", random_state=0).fit(X)
    strange = X.copy()
    strange.iloc[[4, 9], 0] = "emu"
    with pytest.warns(UserWarning, match=r"row 5: 'emu'"):
        found = made.score_samples(strange)
    rest = np.delete(np.arange(len(X)), [4, 9])
    assert np.flatnonzero(np.isnan(found)).tolist() == [4, 9]
    np.testing.assert_allclose(found[rest], made.score_samples(X)[rest], rtol=1e-12)
    weight = np.arange(len(X)) + 1.0
    with pytest.warns(UserWarning, match="2 of 160"):
        score = made.score(strange, sample_weight=weight)
    assert score == pytest.approx(np.average(found[rest], weights=weight[rest]))
    with (
        pytest.warns(UserWarning, match="row 1"),
        pytest.raises(monge.DataError, match="row 1"),
    ):
        made.score(strange.iloc[4:5])


@pytest.mark.parametrize("table", [False, True])
def test_rows_count_by_their_weight(table):
    """Rows of weight 0 do not count, whatever their class."""
    rng = np.random.default_rng(0)
    X, wrong = rng.normal(size=(300, 2)), np.arange(300) % 3 > 0
    y = np.where((X[:, 0] > 0) ^ wrong, "right", "left")
    X = pd.DataFrame(X, columns=["weight", "y"]) if table else X
    model = monge.Estimator("predict.logistic", {"train.lr": 0.1}, "60steps", random_state=0)
    true = np.where(np.asarray(X)[:, 0] > 0, "right", "left")
    assert clone(model).fit(X, y).score(X, true) < 0.2
    assert clone(model).fit(X, y, sample_weight=(~wrong).astype(int)).score(X, true) > 0.9
    shifted = np.where(wrong[:, None], np.asarray(X) + 9, np.asarray(X))
    shifted = pd.DataFrame(shifted, columns=["weight", "y"]) if table else shifted
    density = monge.Estimator("made", {**SMALL, "train.lr": 0.03}, "60steps", random_state=0)
    plain, weighed = (clone(density).fit(shifted, sample_weight=w) for w in (None, ~wrong * 2.0))
    more = weighed.score_samples(shifted) - plain.score_samples(shifted)
    assert more[~wrong].mean() > 0.3 > -0.3 > more[wrong].mean()
    with pytest.raises(ValueError, match="sample_weight"):
        clone(model).fit(X, y, sample_weight=np.ones(7))


def test_dates_in_order_are_a_column_of_a_table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=90), "x": rng.normal(size=90)})
    made = monge.Estimator("made", SMALL, budget="3steps", random_state=0).fit(X)
    assert made.score_samples(X).shape == (90,)
    assert list(made.sample(4)) == ["day", "x"]


def test_densities_of_frames_give_frames(birds):
    X, _ = birds
    vae = monge.Estimator("vae", budget="5steps", random_state=0).fit(X)
    rows = vae.sample(50)
    assert list(rows) == list(X)
    assert set(rows["kind"].dropna()) <= {"adelie", "gentoo"}
    assert vae.score_samples(X).shape == (len(X),)
    np.testing.assert_allclose(vae.score_samples(X[::-1])[::-1], vae.score_samples(X))
    codes = vae.set_output(transform="pandas").transform(X)
    assert isinstance(codes, pd.DataFrame)
    assert list(codes.index) == list(X.index)
    assert list(codes) == list(vae.get_feature_names_out())
    assert not hasattr(monge.Estimator("made"), "set_output")
    assert not hasattr(monge.Estimator("made"), "fit_transform")


def test_nan_in_arrays(flowers):
    holed = flowers.copy()
    holed[::7, 1] = np.nan
    made = monge.Estimator("made", SMALL, budget="5steps", random_state=0).fit(holed)
    assert np.isfinite(made.score_samples(holed)).all()
    y = (flowers[:, 2] > 3).astype(int)
    full = monge.Estimator("predict.logistic", budget="5steps", random_state=0).fit(flowers, y)
    assert np.isfinite(full.predict_proba(holed)).all()
    plain = monge.Estimator("made", SMALL, budget="5steps", random_state=0).fit(flowers)
    with pytest.raises(ValueError, match="row 1"):
        plain.score_samples(holed)


def test_folds_are_stratified_and_pipelines_work():
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = monge.Estimator("predict.mlp", QUICK, budget="80steps", random_state=0)
    scores = cross_val_score(model, X, y, cv=3)
    assert (scores > 0.85).all()
    pipe = make_pipeline(StandardScaler(), PCA(2), model).fit(X, y)
    assert pipe.score(X, y) > 0.85
    codes = make_pipeline(StandardScaler(), monge.Estimator("vae", budget="3steps"))
    assert len(codes.fit_transform(X)) == 150


def test_columns_are_transformed_before_and_pipelines_are_stored(birds, tmp_path):
    X, y = birds
    parts = ColumnTransformer(
        [
            ("names", OneHotEncoder(sparse_output=False), ["kind"]),
            ("mass", "passthrough", ["mass"]),
        ]
    )
    config = {"net": {"width": 8}, "train": {"lr": 2e-2}}
    model = monge.Estimator("predict.mlp", config, budget="20steps", random_state=0)
    pipe = make_pipeline(parts.set_output(transform="pandas"), model).fit(X, y)
    assert list(model.feature_names_in_) == list(pipe[:-1].get_feature_names_out())
    assert pipe[-1].model_.config.net.width == 8
    joblib.dump(pipe, tmp_path / "pipe")
    again = joblib.load(tmp_path / "pipe")
    np.testing.assert_array_equal(again.predict_proba(X), pipe.predict_proba(X))
    assert clone(pipe)[-1].get_params()["config"] == config


def test_the_model_of_a_run_trains_in_a_loop_of_ones_own():
    import torch

    run = monge.fit("vae", "moons", budget="2steps", latent=2, width=8)
    model = run.model.train()
    assert isinstance(model, torch.nn.Module)
    batch = run.split(None, "train").whole()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = sum(term.mean() for term in model.loss(batch).values())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
