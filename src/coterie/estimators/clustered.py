"""`ClusteredClassifier` and `ClusteredRegressor`: coterie as an estimator of scikit-learn.

    model = ClusteredClassifier(n_clusters=3).fit(X, y, client=hospital)
    model.predict(X_new, client=hospital_new)

`client` says whose row each is; without it all rows are those of one client. The clients that were
there when the model was fitted are served by the model of their group. Any other is served by all
groups, each counting as often as it has clients (docs/prediction.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from coterie.core.algorithm import traits_of
from coterie.core.errors import CoterieError
from coterie.data.tables.columns import Column
from coterie.data.tables.whole import whole_federation
from coterie.estimators.feature_tables import (
    add_columns,
    check_targets,
    free_name,
    read_clients_of,
    read_features,
)
from coterie.experiment.grid import Grid
from coterie.experiment.kept_run import kept_models
from coterie.experiment.plan import Plan, make_plan
from coterie.experiment.run import Run
from coterie.prediction.predictor import Predictions, Predictor
from coterie.registry import algorithm_name, resolve


class ClusteredEstimator(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share.

    algorithm     the name of an algorithm, as `coterie list` has it, or one with its settings, as
                  in coterie.FeSEM(k=3)
    n_clusters    groups, where the algorithm is told how many; at most as many as clients
    rounds        of training
    network       that is trained, and `hidden`, the units of its hidden layer; 0: a linear model
    settings      all others of `coterie describe ALGORITHM` and of a run, as in {"lr": 0.1}
    random_state  a whole number, or what scikit-learn makes of one
    """

    target = ""  # what is learnt: classification or regression

    def __init__(
        self,
        algorithm: Any = "ifca",
        n_clusters: Any = 2,
        *,
        rounds: int = 100,
        network: str = "mlp",
        hidden: Any = 32,
        settings: dict[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.algorithm = algorithm
        self.n_clusters = n_clusters
        self.rounds = rounds
        self.network = network
        self.hidden = hidden
        self.settings = settings
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # a missing number is one more thing to know of a row
        return tags

    def fit(self, X: Any, y: Any, client: Any = None) -> Self:
        """Find groups of clients and train a model for each.

        X       a frame of pandas, polars or Arrow, whose columns may be text, dates and missing, or
                numbers [n, d]
        y       classes or targets [n]
        client  whose row each is [n]: names or whole numbers; None: all are of one client
        """
        features, y = read_features(self, X, y)
        whose = read_clients_of(client, features.num_rows)
        try:
            run = self._train(features, self._encode(check_targets(self, y)), whose)
        except CoterieError as error:
            raise ValueError(str(error)) from error
        self.predictor_ = in_double_precision(run)
        self.clients_ = np.array(whose.categories, dtype=object)
        self.client_labels_ = run.clusters.numpy()
        self.labels_ = self.client_labels_[whose.values]
        self.n_clusters_ = len(np.unique(self.client_labels_[self.client_labels_ >= 0]))
        self.metrics_ = dict(run.metrics)
        self.n_iter_ = run.rounds
        return self

    def _train(self, features: Any, y: NDArray[Any], whose: Column) -> Run:
        """The run on features with targets [n], and whose row each is."""
        names = features.column_names
        client, label = free_name("client", names), free_name("label", names)
        table = add_columns(features, {client: whose, label: y})
        plan = self._plan(client, label, len(whose.categories))
        federation = plan.hold_out(whole_federation(table, plan.federation))
        federation, task = plan.prepare(federation)
        parts = plan.algorithm, federation, task, plan.settings
        if plan.grid or plan.settings.starts > 1:
            return Grid(*parts, plan.grid, plan.config()).complete()
        return Run(*parts, plan.config()).complete()

    def _plan(self, client: str, label: str, clients: int) -> Plan:
        """The run in the words of the command line."""
        given = not isinstance(self.algorithm, str)
        name = algorithm_name(self.algorithm) if given else self.algorithm
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        plain = {"network": self.network, "rounds": self.rounds, "seed": seed}
        columns = {"client": client, "label": label, "target": self.target, "min_samples": 2}
        own = {"hidden": self.hidden} if self.network == "mlp" else {}
        words = plain | columns | own | dict(self.settings or {})
        if not given:
            words |= self._cluster_setting(name, clients)
        plan = make_plan([name, "table", *(f"{key}={value}" for key, value in words.items())])
        return plan._replace(algorithm=self.algorithm) if given else plan

    def _cluster_setting(self, algorithm: str, clients: int) -> dict[str, Any]:
        """The setting that says how many groups there are, where the algorithm has one."""
        setting = traits_of(resolve("algorithm", algorithm)).clusters
        if not setting or setting in (self.settings or {}):
            return {}
        count = self.n_clusters
        return {setting: min(count, clients) if isinstance(count, int | np.integer) else count}

    def _encode(self, y: NDArray[Any]) -> NDArray[Any]:
        """Targets as coterie learns them."""
        return y

    def _predictions(self, X: Any, client: Any) -> Predictions:
        """What is predicted for the rows of X."""
        check_is_fitted(self)
        features = read_features(self, X)
        names = None
        if client is not None:
            whose = read_clients_of(client, features.num_rows)
            names = np.array(whose.categories, dtype=object)[whose.values]
        try:
            # Without names, rows are those of the one client if there was no other.
            alone = names is None and len(self.clients_) == 1
            return self.predictor_.predictions(features, self.clients_[0] if alone else names)
        except CoterieError as error:
            raise ValueError(str(error)) from error

    def predict_group(self, X: Any, client: Any = None) -> NDArray[np.int64]:
        """The group [n] whose model serves each row, -1 where all groups do."""
        return self._predictions(X, client).group


class ClusteredClassifier(ClassifierMixin, ClusteredEstimator):  # type: ignore[misc]
    """A classifier for each group of clients, which are found as they are trained.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, client = rng.normal(size=(400, 3)), np.repeat(np.arange(8), 50)
    >>> y = (X[:, 0] > 0) ^ (client % 2 == 1)  # half of the clients name the classes differently
    >>> model = ClusteredClassifier(rounds=20).fit(X, y, client=client)
    >>> model.n_clusters_, model.score(X, y, client=client) > 0.9
    (2, True)
    """

    target = "classification"

    def _encode(self, y: NDArray[Any]) -> NDArray[Any]:
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"classification needs two classes or more, got 1 class: {self.classes_[0]}"
            )
        codes: NDArray[Any] = numbers.astype(np.int64)
        return codes

    def predict(self, X: Any, client: Any = None) -> NDArray[Any]:
        """The class [n] of each row, by the model of its client's group."""
        best = self.predict_proba(X, client).argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def predict_proba(self, X: Any, client: Any = None) -> NDArray[Any]:
        """The probability [n, c] of each class of `classes_`."""
        found = self._predictions(X, client).probabilities
        assert found is not None, "there are classes"
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None, client: Any = None) -> float:
        """The accuracy on rows with classes y [n]."""
        return float(accuracy_score(y, self.predict(X, client), sample_weight=sample_weight))


class ClusteredRegressor(RegressorMixin, ClusteredEstimator):  # type: ignore[misc]
    """A regression for each group of clients, which are found as they are trained."""

    target = "regression"

    def _encode(self, y: NDArray[Any]) -> NDArray[Any]:
        targets: NDArray[Any] = y.astype(np.float64)
        return targets

    def predict(self, X: Any, client: Any = None) -> NDArray[Any]:
        """The target [n] of each row, by the model of its client's group."""
        return self._predictions(X, client).values

    def score(self, X: Any, y: Any, sample_weight: Any = None, client: Any = None) -> float:
        """The coefficient of determination R2 on rows with targets y [n]."""
        return float(r2_score(y, self.predict(X, client), sample_weight=sample_weight))


def in_double_precision(run: Run) -> Predictor:
    """The models of a run that predict in double precision.

    What is said of a row does then not depend, beyond the last digits of that, on the rows beside
    it.
    """
    kept, task = kept_models(run), run.task.double()  # type: ignore[attr-defined]
    own = None if kept.own is None else kept.own.double()
    whole = type(run.task)(task.module, scale=task.scale, padding=task.padding)  # type: ignore[call-arg]
    return Predictor(replace(kept, models=kept.models.double(), own=own), whole)
