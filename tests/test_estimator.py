"""FederatedClassifier has scikit-learn's manners, and a left-out group is a new client."""

import os

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks as checks

import concordfl as cf
from concordfl import FederatedClassifier, FederatedRegressor
from concordfl.algorithms import FedProx
from concordfl.data.datasets import DATASETS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3))
OWNERS = np.repeat(["a", "b", "c"], 30)
Y = np.where(X[:, 0] + 0.1 * RNG.normal(size=90) > 0, "ill", "well")
SERIAL = {"run": {"executor": "serial"}}
QUICK = {"model": "linear", "rounds": 3, "lr": 0.5, "settings": SERIAL}


@pytest.fixture(scope="module")
def fitted():
    return FederatedClassifier("fedavg-ft", **QUICK).fit(X, Y, groups=OWNERS)


# --- scikit-learn's manners -----------------------------------------------------------------------


def test_the_constructor_only_stores():
    method = FedProx(mu=0.3)
    est = FederatedClassifier(method, rounds=7)
    assert est.get_params()["algorithm"] is method
    assert est.set_params(rounds=8).rounds == 8
    assert clone(est).get_params() == est.get_params()
    assert is_classifier(est)


@pytest.mark.parametrize(
    "check",
    [
        checks.check_parameters_default_constructible,
        checks.check_no_attributes_set_in_init,
        checks.check_get_params_invariance,
        checks.check_set_params,
        checks.check_estimators_unfitted,
        checks.check_estimator_cloneable,
        checks.check_estimator_repr,
        checks.check_mixin_order,
        checks.check_do_not_raise_errors_in_init_or_set_params,
    ],
    ids=lambda check: check.__name__,
)
def test_checks_of_scikit_learn_that_need_no_groups(check):
    check("FederatedClassifier", FederatedClassifier())


class OneGroup(FederatedClassifier):
    """All rows are of one client: for checks that know no groups."""

    def __init__(self):
        super().__init__(**QUICK)

    def get_params(self, deep=True):
        return {}

    def fit(self, X, y, groups=None):  # noqa: N803
        return super().fit(X, y, np.zeros(len(X), int) if groups is None else groups)


@pytest.mark.parametrize(
    "check",
    [
        checks.check_classifiers_classes,
        checks.check_classifiers_one_label,
        checks.check_dict_unchanged,
        checks.check_dont_overwrite_parameters,
        checks.check_estimators_overwrite_params,
        checks.check_estimators_pickle,
        checks.check_fit2d_1feature,
        checks.check_fit2d_predict1d,
        checks.check_fit_idempotent,
        checks.check_n_features_in,
        checks.check_n_features_in_after_fitting,
        checks.check_readonly_memmap_input,
        checks.check_supervised_y_2d,
        checks.check_supervised_y_no_nan,
    ],
    ids=lambda check: check.__name__,
)
def test_checks_of_scikit_learn_with_all_rows_in_one_group(check):
    check("OneGroup", OneGroup())


def test_what_is_not_fitted_says_so():
    with pytest.raises(NotFittedError):
        FederatedClassifier().predict(X)


def test_groups_are_asked_for():
    with pytest.raises(ValueError, match="groups must say whose each row is, got none"):
        FederatedClassifier().fit(X, Y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FederatedClassifier().fit(X, Y, groups=OWNERS[:5])
    with pytest.raises(ValueError, match="groups must be text or whole numbers, got '0.5'"):
        FederatedClassifier().fit(X, Y, groups=np.full(90, 0.5))


def test_numbers_that_are_no_classes_are_refused():
    with pytest.raises(ValueError, match="Unknown label type"):
        FederatedClassifier().fit(X, X[:, 0], groups=OWNERS)


def test_another_objective_is_refused():
    other = {"objective": {"kind": "regression"}}
    with pytest.raises(
        cf.SettingError, match="kind must be 'classification' in a Federated.*, got"
    ):
        FederatedClassifier(settings=other).fit(X, Y, groups=OWNERS)
    with pytest.raises(cf.SettingError, match="objective must be a dict of settings, got 3"):
        FederatedClassifier(settings={"objective": 3}).fit(X, Y, groups=OWNERS)
    weighted = {**SERIAL, "objective": {"kind": "auto", "class_weights": "balanced"}}
    est = FederatedClassifier(**{**QUICK, "settings": weighted}).fit(X, Y, groups=OWNERS)
    assert est.result_.finished.settings.objective.kind == "classification"


def test_columns_of_a_frame_are_remembered():
    frame = pd.DataFrame(X, columns=["u", "v", "w"])
    est = FederatedClassifier(**QUICK).fit(frame, Y, groups=OWNERS)
    assert est.feature_names_in_.tolist() == ["u", "v", "w"]
    with pytest.raises(ValueError, match="feature names"):
        est.predict(frame[["w", "v", "u"]])


# --- predictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [Y, np.isin(Y, "ill"), np.where(Y == "ill", 10, 9), np.where(Y == "ill", 1.0, -1.0)],
    ids=["text", "truth values", "whole numbers", "numbers"],
)
def test_classes_are_those_of_y_in_their_order(labels):
    est = FederatedClassifier(**QUICK).fit(X, labels, groups=OWNERS)
    np.testing.assert_array_equal(est.classes_, np.unique(labels))
    assert est.predict(X).dtype == labels.dtype
    proba = est.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert (est.predict(X) == labels).mean() > 0.8
    np.testing.assert_array_equal(est.classes_[proba.argmax(axis=1)], est.predict(X))


def test_clients_in_training_are_predicted_by_their_own_model(fitted):
    order = RNG.permutation(90)
    proba = fitted.predict_proba(X[order], groups=OWNERS[order])
    for name in "abc":
        own = np.isin(OWNERS[order], name)
        np.testing.assert_array_equal(
            proba[own], fitted.result_.predict_proba(X[order][own], client=name)
        )
    shared = fitted.predict_proba(X)
    np.testing.assert_array_equal(shared, fitted.predict_proba(X, groups=np.full(90, "else")))
    assert not np.array_equal(shared[order], proba)


def test_the_score_of_clients_in_training_is_the_accuracy_of_their_predictions(fitted):
    expected = (fitted.predict(X, groups=OWNERS) == Y).mean()
    assert fitted.score(X, Y, groups=OWNERS) == pytest.approx(expected)


def test_a_client_that_joined_is_predicted_by_what_it_adapted(fitted):
    x, y = X[:20] + 0.2, np.where(X[:20, 0] > 0, "well", "ill")
    est = clone(fitted).fit(X, Y, groups=OWNERS)
    est.result_.adapt(x, y, name="d")
    np.testing.assert_array_equal(
        est.predict_proba(x, groups=["d"] * 20), est.result_.predict_proba(x, client="d")
    )


# --- left-out groups ------------------------------------------------------------------------------


def test_a_left_out_group_is_scored_exactly_as_adapt_does(fitted):
    scores = cross_val_score(
        fitted, X, Y, groups=OWNERS, cv=LeaveOneGroupOut(), params={"groups": OWNERS}
    )
    for name, score in zip("abc", scores, strict=True):
        left = np.isin(OWNERS, name)
        rest = ~left
        est = clone(fitted).fit(X[rest], Y[rest], groups=OWNERS[rest])
        answer = est.result_.adapt(X[left], Y[left], name="new client")
        assert score == answer["tested_on"]["accuracy"]
        assert answer["tested_on"]["examples"] == 15
        assert est.score(X[left], Y[left], groups=OWNERS[left]) == score


def test_a_score_leaves_the_estimator_as_it_was(fitted):
    est = clone(fitted).fit(X, Y, groups=OWNERS)
    first = est.score(X[:20], np.roll(Y[:20], 1), groups=["d"] * 20)
    assert est.result_.finished.kept.newcomers() == []
    rows = {"X": X[20:40], "y": Y[20:40]}
    assert est.score(**rows, groups=["new client"] * 20) == est.score(**rows, groups=["e"] * 20)
    assert est.score(X[:20], np.roll(Y[:20], 1), groups=["d"] * 20) == first


def test_a_grid_search_routes_groups_to_the_split_and_to_fit(fitted):
    with config_context(enable_metadata_routing=True):
        est = clone(fitted).set_fit_request(groups=True).set_score_request(groups=False)
        search = GridSearchCV(est, {"lr": [1e-6, 0.5]}, cv=LeaveOneGroupOut())
        assert search.fit(X, Y, groups=OWNERS).best_params_ == {"lr": 0.5}


def test_it_is_the_last_step_of_a_pipeline():
    pipe = make_pipeline(FunctionTransformer(), FederatedClassifier(**QUICK))
    pipe.fit(X, Y, federatedclassifier__groups=OWNERS)
    assert pipe.score(X, Y) > 0.8


def test_a_new_client_of_one_row_cannot_be_scored(fitted):
    with pytest.raises(cf.DataError, match="must have at least two rows to be scored, .* got 1"):
        fitted.score(X[:1], Y[:1])


def test_small_clients_can_be_fitted():
    est = FederatedClassifier(**QUICK).fit(X[:6], Y[:6], groups=[1, 1, 2, 2, 2, 3])
    assert set(est.result_.clients()) == {"1", "2", "3"}


# --- numbers --------------------------------------------------------------------------------------


SLOPES = np.array([3.0, -2.0, 0.5])
VALUES = 100 + 10 * (X @ SLOPES + 0.1 * RNG.normal(size=90))


@pytest.fixture(scope="module")
def regressor():
    """Long enough to be the least-squares line."""
    est = FederatedRegressor(model="linear", rounds=60, lr=0.3, batch_size=1000, settings=SERIAL)
    return est.fit(X, VALUES, groups=OWNERS)


def test_a_regressor_comes_to_the_line_of_least_squares(regressor):
    lines = LinearRegression().fit(X, VALUES)
    np.testing.assert_allclose(regressor.predict(X), lines.predict(X), atol=0.05 * VALUES.std())
    assert regressor.predict(X, groups=OWNERS).shape == (90,)
    assert regressor.score(X, VALUES, groups=OWNERS) > 0.98


def test_a_left_out_group_of_a_regressor_is_a_new_client(regressor):
    scores = cross_val_score(
        regressor, X, VALUES, groups=OWNERS, cv=LeaveOneGroupOut(), params={"groups": OWNERS}
    )
    assert scores.min() > 0.95
    left = np.isin(OWNERS, "c")
    est = clone(regressor).fit(X[~left], VALUES[~left], groups=OWNERS[~left])
    answer = est.result_.adapt(X[left], VALUES[left], name="new client")
    assert scores[2] == answer["tested_on"]["r2"]


def test_whole_numbers_are_values_to_a_regressor_and_classes_to_a_classifier():
    ages = np.round(50 + 10 * X[:, 0]).astype(int)
    assert FederatedRegressor(**QUICK).fit(X, ages, groups=OWNERS).predict(X).dtype == np.float64
    est = FederatedClassifier(**QUICK).fit(X, ages, groups=OWNERS)
    assert set(est.predict(X)) <= set(ages)


def test_several_targets_are_predicted_together():
    two = np.stack([VALUES, -VALUES], axis=1)
    est = FederatedRegressor(**QUICK).fit(X, two, groups=OWNERS)
    assert est.predict(X).shape == (90, 2)


def test_the_four_hospitals_each_left_out_in_turn():
    try:
        data = DATASETS["heart-disease"]().load(cf.Key(0))
    except cf.DataError:
        if os.environ.get("CONCORDFL_DATA"):
            raise
        pytest.skip("the heart-disease data are not on this machine")
    hospitals = np.array(data.owners.tolist())
    est = FederatedClassifier("fedconceptem", model="linear", rounds=5, settings=SERIAL)
    scores = cross_val_score(
        est,
        data.train.x,  # with missing values
        np.array(data.classes)[data.train.y],
        groups=hospitals,
        cv=LeaveOneGroupOut(),
        params={"groups": hospitals},
        error_score="raise",
    )
    assert len(scores) == len(np.unique(hospitals)) == 4
    assert scores.min() > 0.5
    assert scores.mean() > 0.65


@pytest.mark.parametrize("name", ["algorithm", "model"])
def test_what_has_an_argument_of_its_own_is_no_setting(name):
    x, y = np.zeros((6, 2)), np.arange(6) % 2
    est = FederatedClassifier(settings={name: {"name": "x"}})
    rule = f"settings must leave {name} to the argument of that name"
    with pytest.raises(cf.SettingError, match=rule):
        est.fit(x, y, groups=list("aaabbb"))
