"""The estimators keep scikit-learn's contract, and find groups."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import coterie
from coterie import ClusteredClassifier, ClusteredRegressor
from tests.prediction.conftest import make_table

QUICK = {"rounds": 10, "hidden": 8, "settings": {"lr": 0.1, "epochs": 5}}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [ClusteredClassifier, ClusteredRegressor])
def test_scikit_learns_checks_pass(kind):
    """All of them: none is expected to fail. Some fifty, each with a few fits."""
    found = check_estimator(kind(rounds=30), on_fail=None, on_skip=None)
    failed = {each["check_name"]: each["exception"] for each in found if each["status"] == "failed"}
    assert failed == {}
    assert sum(each["status"] == "passed" for each in found) > 45


@pytest.fixture(scope="module")
def frame():
    """Features with text, a date and gaps, the outcome, and whose rows they are."""
    table = make_table("classes", rows=40)
    return table.drop(columns=["site", "outcome"]), table.outcome, table.site


@pytest.fixture(scope="module")
def fitted(frame):
    X, y, client = frame
    return ClusteredClassifier(**QUICK).fit(X, y, client=client)


def test_groups_are_found(frame, fitted):
    X, y, client = frame
    assert fitted.n_clusters_ == 2
    assert fitted.clients_.tolist() == [f"s{c}" for c in range(6)]
    odd = client.str[1:].astype(int) % 2
    assert pd.crosstab(fitted.labels_, odd).max(axis=1).sum() == len(X)
    assert fitted.score(X, y, client=client) > 0.85
    alone = LogisticRegression().fit(X[["dose"]], y).score(X[["dose"]], y)
    assert alone < 0.65
    assert fitted.classes_.tolist() == ["ill", "well"]
    np.testing.assert_allclose(fitted.predict_proba(X, client=client).sum(1), 1)
    assert fitted.n_features_in_ == X.shape[1]
    assert fitted.feature_names_in_.tolist() == X.columns.tolist()
    assert fitted.predict_group(X, client=client).tolist() == fitted.labels_.tolist()


def test_unknown_clients_are_served_by_all_groups(frame, fitted):
    X, _, _ = frame
    assert set(fitted.predict_group(X)) == {-1}
    assert set(fitted.predict_group(X, client=["new"] * len(X))) == {-1}
    np.testing.assert_array_equal(
        fitted.predict_proba(X), fitted.predict_proba(X, client=["new"] * len(X))
    )
    one = np.stack([fitted.predict_proba(X, client=[f"s{j}"] * len(X)) for j in range(2)])
    np.testing.assert_allclose(fitted.predict_proba(X), one.mean(0), atol=1e-6)


def test_frames_of_other_libraries_are_the_same(frame, fitted):
    X, y, client = frame
    expected = fitted.predict_proba(X, client=client)
    arrow = pytest.importorskip("pyarrow").Table.from_pandas(X, preserve_index=False)
    np.testing.assert_array_equal(fitted.predict_proba(arrow, client=client.tolist()), expected)
    again = ClusteredClassifier(**QUICK).fit(arrow, y.to_numpy(), client=client.to_numpy())
    np.testing.assert_array_equal(again.predict_proba(X, client=client), expected)


def test_frames_of_polars(frame, fitted):
    polars = pytest.importorskip("polars")
    X, _, client = frame
    found = fitted.predict_proba(polars.from_pandas(X), client=client)
    np.testing.assert_array_equal(found, fitted.predict_proba(X, client=client))


def test_arrays_and_lists_with_gaps():
    table = make_table("targets", rows=40)
    x, y = table[["age", "dose"]].to_numpy(), table.outcome.to_numpy()
    client = table.site.str[1:].astype(int)
    model = ClusteredRegressor(**QUICK).fit(x.tolist(), y.tolist(), client=client.tolist())
    assert model.n_clusters_ == 2
    assert model.score(x, y, client=client) > 0.5
    np.testing.assert_array_equal(
        model.predict(x, client=client), model.predict(x, client=client.astype(float))
    )
    with pytest.raises(ValueError, match="X has 1 features, but"):
        model.predict(x[:, :1])


def test_clone_and_pickle(frame, fitted):
    X, y, client = frame
    other = clone(fitted).set_params(rounds=3)
    assert other.get_params()["settings"] == QUICK["settings"]
    assert not hasattr(other, "classes_")
    assert other.fit(X, y, client=client).n_iter_ == 3
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(
        again.predict_proba(X, client=client), fitted.predict_proba(X, client=client)
    )


def test_cross_validation_and_pipelines_hand_the_clients_on(frame):
    X, y, client = frame[0][["age", "dose"]].fillna(50).to_numpy(), frame[1], frame[2]
    model = ClusteredClassifier(**QUICK)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    with sklearn.config_context(enable_metadata_routing=True):
        asked = model.set_fit_request(client=True).set_score_request(client=True)
        known = cross_val_score(asked, X, y, cv=folds, params={"client": client})
        assert known.mean() > 0.75
        pipe = make_pipeline(StandardScaler(), asked)
        np.testing.assert_allclose(
            cross_val_score(pipe, X, y, cv=folds, params={"client": client}), known, atol=0.05
        )
        # Clients of which all rows are held out are new ones to the model.
        params = {"client": client, "groups": client}
        new = cross_val_score(asked, X, y, cv=GroupKFold(3), params=params)
        assert new.mean() < known.mean() - 0.1
    pipe = make_pipeline(StandardScaler(), ClusteredClassifier(**QUICK))
    pipe.fit(X, y, clusteredclassifier__client=client)
    assert pipe.predict(X).shape == (len(X),)


@pytest.mark.parametrize("name", ["fesem", "fedavg", "local", "ditto", coterie.FPFC(lr=0.05)])
def test_other_algorithms(frame, name):
    X, y, client = frame
    model = ClusteredClassifier(name, rounds=3, hidden=4).fit(X, y, client=client)
    assert model.predict(X, client=client).shape == (len(X),)
    assert model.predict_proba(X[:1]).shape == (1, 2)


def test_mistakes_are_value_errors(frame, fitted):
    X, y, client = frame
    with pytest.raises(ValueError, match="no algorithm is named ifcaa; did you mean `ifca`"):
        ClusteredClassifier("ifcaa").fit(X, y, client=client)
    with pytest.raises(ValueError, match="no setting is named learnrate"):
        ClusteredClassifier(settings={"learnrate": 1}).fit(X, y, client=client)
    with pytest.raises(ValueError, match="must name the client of each row"):
        ClusteredClassifier(**QUICK).fit(X, y, client=client[:3])
    with pytest.raises(ValueError, match="two classes or more, got 1 class: ill"):
        ClusteredClassifier(**QUICK).fit(X, ["ill"] * len(X), client=client)
    with pytest.raises(ValueError, match="must hold numbers, got text"):
        fitted.predict(X.assign(age="old"), client=client)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(X.drop(columns="dose"), client=client)
    with pytest.raises(ValueError, match="no missing values"):
        ClusteredClassifier(**QUICK).fit(X, y, client=[None, *client[1:]])


@pytest.mark.parametrize("algorithm", ["fesem-ma", "feddane"])
def test_an_algorithm_whose_traits_depend_on_its_settings_makes_an_estimator(frame, algorithm):
    X, y, client = frame
    estimator = ClusteredClassifier(algorithm=algorithm, n_clusters=2, rounds=2, hidden=4)
    assert len(estimator.fit(X, y, client=client).predict(X, client=client)) == len(y)
