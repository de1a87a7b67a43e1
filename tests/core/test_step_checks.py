"""What an author gets wrong is one sentence, wherever in a method it is, and never a traceback."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import coterie
from coterie.checks import small_federation, small_task
from coterie.core.errors import CoterieError
from coterie.extend import (
    ByCluster,
    Clients,
    Cluster,
    Cohort,
    Each,
    Info,
    LocalTraining,
    Loss,
    Model,
    Serving,
    Size,
    Start,
    Statistic,
    WeightedRows,
    on_client,
)


class State(NamedTuple):
    model: Tensor  # [d]


class Upload(NamedTuple):
    cluster: Cluster  # [m]
    model: Model  # [m, d]


class Plain(NamedTuple):
    cluster: Tensor
    model: Tensor


class Swapped(NamedTuple):
    cluster: Loss
    model: Size


class NoCluster(NamedTuple):
    model: Model


class Rows(NamedTuple):
    models: Model  # [m, k, d]
    weight: Statistic  # [m, k]


@dataclass(frozen=True, kw_only=True)
class Right(LocalTraining):
    """FedAvg, of which others get one thing wrong."""

    def init(self, start: Start) -> State:
        return State(start.models(1)[0])

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        ids, up = self.ask(state, clients)
        return State(up.pooled_mean("model")), Info(ids, up.cluster, 1)

    def ask(self, state: State, clients: Clients):
        return clients.run(self.train, fold=ByCluster(1, {"model": "model"}), model=state.model)

    def serve(self, state: State, clients: Clients) -> Serving:
        return Serving(state.model[None], clients.ids, torch.zeros_like(clients.ids))

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        start = model if model.dim() == 2 else model.expand(len(cohort), -1)
        return self.upload(torch.zeros_like(cohort.ids), self.work(cohort, start))

    @on_client
    def show(self, cohort: Cohort, model: Tensor) -> Upload:
        return Upload(torch.zeros_like(cohort.ids), model.expand(len(cohort), -1))

    @on_client(fold=WeightedRows)
    def train_all(self, cohort: Cohort, models: Tensor) -> Rows:
        return Rows(*self.rows(models.expand(len(cohort), *models.shape)))

    def rows(self, models: Tensor):
        return models, models[:, :, 0].abs()

    def upload(self, cluster: Tensor, model: Tensor):
        return Upload(cluster, model)

    def work(self, cohort: Cohort, start: Tensor) -> Tensor:
        return self.local_update(cohort, start)

    def plain(self, cohort: Cohort, model: Tensor) -> Upload:
        return Upload(torch.zeros_like(cohort.ids), model)


def wrong(name, method):
    """`Right` with another method of that name."""
    return type("Wrong", (Right,), {name: method})()


def ask(call):
    return lambda self, state, clients: call(self, clients, state.model)


def ask_all(models, fold):
    def call(self, state, clients):
        return clients.run(self.train_all, fold=fold, models=models(state.model))

    return call


def work(call):
    return lambda self, cohort, start: call(cohort, start)


def serve(cluster, **more):
    def call(self, state, clients):
        return Serving(state.model[None], clients.ids, cluster(clients.ids), **more)

    return call


ONE = {"model": "model"}
TWO = {"models": "models"}

MISTAKES = {
    # what a step returns
    "a tuple": ("upload", lambda _, *up: up, "Right.train must return a named tuple of t.*got tup"),
    "None": ("upload", lambda _, *up: None, "must return a named tuple of tensors, got NoneType"),
    "a tensor": ("upload", lambda _, c, w: w + 0, "must return a named tuple of tensors, got Tens"),
    "a number": ("upload", lambda _, c, w: Upload(0, w), r"cluster of .* \[8, ...\], got int"),
    "no row": ("upload", lambda _, c, w: Upload(c, w.mean(0)), r"model of .*, got \[57\]"),
    "no axis": ("upload", lambda _, c, w: Upload(c.sum(), w), r"cluster of .*, got \[\]"),
    "no roles": ("upload", lambda _, *up: Plain(*up), "model of Plain must be of the type Model"),
    "other roles": ("upload", lambda _, *up: Swapped(*up), "the type Model, .* got size"),
    "no cluster": ("upload", lambda _, c, w: NoCluster(w), "must have a field of the type Cluster"),
    "a short model": ("upload", lambda _, c, w: Upload(c, w[:, 1:]), r"\[8, 57\], .*got \[8, 56\]"),
    "no such cluster": ("upload", lambda _, c, w: Upload(c + 3, w), "from 0 to 0, got 3"),
    "a negative cluster": ("upload", lambda _, c, w: Upload(c - 1, w), "from 0 to 0, got -1"),
    "a broken cluster": ("upload", lambda _, c, w: Upload(c / 2, w), "from 0 to 0, got float32"),
    # what a call says
    "no step": ("ask", ask(lambda self, c, w: c.run(self.plain, model=w)), "marked @on_client"),
    "a function": ("ask", ask(lambda _, c, w: c.run(Right.train, model=w)), "got Right.train"),
    "no fold": ("ask", ask(lambda self, c, w: c.run(self.train, model=w)), "`fold=ByCluster` and"),
    "no download": (
        "ask",
        ask(lambda self, c, w: c.run(self.train, fold=ByCluster(1, {"model": "w"}), model=w)),
        r"must name downloads of the call \(model\), got w",
    ),
    "no field": (
        "ask",
        ask(lambda self, c, w: c.run(self.train, fold=ByCluster(1, {"modle": "model"}), model=w)),
        "modle of Upload must be of the type Model, .* got no such field",
    ),
    "no size": (
        "ask",
        ask(lambda self, c, w: c.run(self.train, fold=ByCluster(1, ONE, by_size=True), model=w)),
        "Upload must have a field of the type Size",
    ),
    "rows for other clusters": (
        "ask",
        ask(lambda self, c, w: c.run(self.show, fold=ByCluster(2, ONE), model=w.expand(3, -1)[:1])),
        "model must have a row for each of the 2 clusters of a fold, got 1",
    ),
    "too few rows": (
        "ask",
        ask(lambda self, c, w: c.run(self.show, model=Each(w.expand(4, -1)))),
        "model of Right.show must have a row for each client .*, got 4 rows and none for client 7",
    ),
    "a short index": (
        "ask",
        ask(lambda self, c, w: c.run(self.show, model=Each(w[None], torch.zeros(4).long()))),
        "must have a row for each client .*, got 4 rows and none for client 7",
    ),
    "a wrong index": (
        "ask",
        ask(lambda self, c, w: c.run(self.show, model=Each(w[None], torch.arange(8)))),
        "the index of model of Right.show must be whole numbers from 0 to 0, got 1",
    ),
    "strangers": ("ask", ask(lambda _, c, w: c.only(torch.tensor([8]))), "take part, got 8"),
    "short weights": (
        "rows",
        lambda _, models: (models, models[:, :1, 0]),
        r"weight of Rows must be \[8, 2\], a weight for each .* got \[8, 1\]",
    ),
    "one model of two": (
        "rows",
        lambda _, models: (models[:, 0], models[:, :, 0]),
        r"models of Rows must be \[8, 2, 57\], .*got \[8, 57\]",
    ),
    # what is asked of a cohort
    "one model": ("work", work(lambda c, w: c.loss(w[0])), r"\[k, 57\] or \[8, k, 57\], .* \[57\]"),
    "a part": ("work", work(lambda c, w: c.losses(w[:1, 1:])), r"`models` must .* got \[1, 56\]"),
    "own models": ("work", work(lambda c, w: c.choose(w[None])), r"got \[1, 8, 57\]"),
    "another's": ("work", work(lambda c, w: c.gradient(w[1:])), r"`model` must be .*got \[7, 57\]"),
    "no start": ("work", work(lambda c, w: c.descend(w[0], lr=1, steps=1)), "`start` must be "),
    "no steps": ("work", work(lambda c, w: c.descend(w, lr=1)), "either steps or epochs, got 0"),
    "both": ("work", work(lambda c, w: c.descend(w, lr=1, steps=1, epochs=2)), "got 1 and 2"),
    "no memory": ("work", work(lambda c, w: c.recall("x")), "who never kept x, as is client 0"),
    "one row kept": ("work", work(lambda c, w: c.keep("x", w[:1])), r"a row of x .*\[1, 57\]"),
    "nothing kept": ("work", work(lambda c, w: c.keep("x", w.sum())), r"each client, .* got \[\]"),
    "a lost model": (
        "work",
        work(lambda c, w: c.minimise(None, w[1:], lr=1, steps=1)),
        r"`start` must be .*got \[7, 57\]",
    ),
    # what the server returns
    "no state": ("init", lambda self, start: start.models(1), "Wrong.init must .* got Tensor"),
    "no Info": ("round", lambda _, state, c: state, "Wrong.round must return .*, got State"),
    "nothing": ("round", lambda _, state, c: None, "Wrong.round must return .*, got NoneType"),
    "a dict": ("round", lambda _, state, c: (state, {}), "Wrong.round must .*, got State and dict"),
    "a model": (
        "round",
        lambda _, state, c: (state.model, Info(c.ids, None, 1)),
        "Wrong.round must return .*, got Tensor and Info",
    ),
    "a cluster too few": (
        "round",
        lambda _, state, c: (state, Info(c.ids, c.ids[1:], 1)),
        r"the Info of Wrong.round must have .*, \[8\], got \[7\]",
    ),
    "no serving": ("serve", lambda _, state, c: state, "Wrong.serve must return a Serving, got St"),
    "no clusters": ("serve", serve(lambda ids: None), r"cluster for each client, \[8\], got None"),
    "short clusters": ("serve", serve(lambda ids: ids[1:]), r"for each client, \[8\], got \[7\]"),
    "no such model": ("serve", serve(lambda ids: ids), "be whole numbers from 0 to 0, got 1"),
    "nobody's model": ("serve", serve(lambda ids: 0 * ids - 1), "numbers from 0 to 0, got -1"),
    "half clusters": ("serve", serve(lambda ids: ids / 2), "numbers from 0 to 0, got float32"),
    "a served vector": (
        "serve",
        lambda _, state, c: Serving(state.model, c.ids, c.ids * 0),
        r"the models that Wrong serves must be \[k, 57\], .* got \[57\]",
    ),
    "a served part": (
        "serve",
        lambda _, state, c: Serving(state.model[None, 1:], c.ids, c.ids * 0),
        r"the models that Wrong serves must be \[k, 57\], .* got \[1, 56\]",
    ),
    "served strangers": (
        "serve",
        lambda _, state, c: Serving(state.model[None], c.ids + 1, c.ids * 0),
        r"the ids that Wrong serves must be those of clients .* got \[1, 2, 3, 4, 5, 6, 7, 8\]",
    ),
    "served twice": (
        "serve",
        lambda _, state, c: Serving(state.model[None], c.ids * 0, c.ids * 0),
        "the ids that Wrong serves .*, each once, got",
    ),
}  # fmt: skip


def run(algorithm, folder=None):
    return coterie.simulate(
        algorithm, small_federation(), small_task(), rounds=2, seed=0, folder=folder
    )


def test_the_method_that_is_right_runs():
    assert run(Right()).rounds == 2


@pytest.mark.parametrize(("name", "method", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_of_an_author_is_one_sentence(name, method, says):
    algorithm = wrong(name, method)
    if name == "rows":
        ask = ask_all(lambda model: model.expand(2, -1), WeightedRows(2, "weight", TWO))
        algorithm = type("Wrong", (type(algorithm),), {"ask": ask})()
    with pytest.raises(CoterieError, match=says) as refused:
        run(algorithm)
    assert "\n" not in str(refused.value)


def test_a_run_that_fails_before_its_first_round_leaves_no_folder(tmp_path):
    def init(self, start):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(wrong("init", init), tmp_path / "r")
    assert not (tmp_path / "r").exists()
