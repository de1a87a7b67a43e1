"""Checks of what crosses between server and clients: replies that are missing, sums, bytes.

The first line of a check's docstring is the promise.
"""

from __future__ import annotations

import inspect
from collections import Counter
from contextlib import suppress
from typing import Any

import torch

from coterie.channel.audit import AuditedPopulation
from coterie.channel.lost_replies import LoseReplies
from coterie.checks.observers import ByteCounter, InputGuard
from coterie.checks.runs import assert_close, short_run, started_run
from coterie.checks.small import ragged_sizes, small_federation, task_for
from coterie.core.algorithm import Serving, serve_clients
from coterie.core.errors import CoterieError, SettingError
from coterie.core.sample_kinds import stored_tensors
from coterie.core.state import state_tensors
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings


def missing_replies_are_normal(algorithm: Any) -> None:
    """Lost replies cost their clients' work and nothing else; if all are lost, nothing changes."""
    run = short_run(algorithm, small_federation(), lost=0.5)
    assert bool(torch.isfinite(run.models).all()), "models are not finite after lost replies"
    began = started_run(algorithm, small_federation())
    clients = began.population.at("round", 0)
    after, info = algorithm.round(began.state, clients.through(LoseReplies(1.0)))
    assert len(info.ids) == 0
    now = state_tensors(after)
    for path, old in state_tensors(began.state).items():
        if old.is_floating_point():
            assert torch.equal(old, now[path]), f"{path} changed although nobody answered"


def lost_replies_break_nothing(algorithm: Any) -> None:
    """Half or all of the replies are lost, also in the start and in serving: others go on."""
    for rate in (0.5, 1.0):
        run = Run(algorithm, small_federation(), task_for(algorithm), RunSettings(rounds=3))
        clients = run.training.participants
        clients.channel = (LoseReplies(rate),)
        with suppress(CoterieError):  # without any client it may not know where to begin
            run.training.begin()
        if run.state is None:
            assert rate == 1, "half of the replies were lost, and it did not begin"
            clients.channel = ()
            run.training.begin()
            clients.channel = (LoseReplies(rate),)
        state = run.state
        for t in range(3):
            state, info = algorithm.round(state, clients.of_round(t))
            count = len(run.federation)
            assert len(info.ids) < count, "a lost reply was taken in"
            check_served(serve_clients(algorithm, state, run.population.at("serve")), count)
            lossy = run.population.at("serve", t).through(LoseReplies(rate))
            check_served(serve_clients(algorithm, state, lossy))


def check_served(serving: Serving, everybody: int | None = None) -> None:
    """Whoever is served has a model that exists and is finite; all are served, if so many."""
    assert everybody in (None, len(serving.ids)), "a client that answered is not served"
    assert bool((serving.ids.diff() > 0).all()), "a client is served twice or out of order"
    assert serving.cluster.shape == serving.ids.shape, "not one cluster per client"
    inside = (serving.cluster >= 0) & (serving.cluster < len(serving.models))
    assert bool(inside.all()), "a client is in a cluster that has no model"
    assert bool(torch.isfinite(serving.models).all()), "models are not finite after lost replies"


def folds_are_plain_data_that_adds_up(algorithm: Any) -> None:
    """What takes uploads in can be sent anywhere, and partial folds add up in any order."""
    data = small_federation(ragged_sizes(algorithm))
    run = Run(algorithm, data, task_for(algorithm), RunSettings(rounds=2))
    audited = AuditedPopulation(run.population)
    run.training.move_to(audited, run.evaluator)
    run.training.begin()
    state, _ = algorithm.round(run.state, run.training.participants.of_round(0))
    algorithm.round(state, run.training.participants.of_round(1))
    algorithm.serve(state, audited.at("serve"))
    assert audited.calls, "no client was asked for anything"


def withheld_clusters_change_no_model(algorithm: Any) -> None:
    """Where the server is not told who is in which cluster, models are the same; or it says no."""
    settings = {"fraction": 0.7, "lost": 0.2}
    try:
        blind = short_run(algorithm, small_federation(), withhold="clusters", **settings)
    except SettingError as refusal:
        if "withh" in str(refusal):  # withhold, withheld
            return
        raise
    run = short_run(algorithm, small_federation(), **settings)
    assert_close(run.models, blind.models, "models without known clusters")
    assert run.metrics.get("accuracy") == blind.metrics.get("accuracy"), "clients choose otherwise"
    if len(run.models) > 1 and run.serving.adapt is None:
        assert bool((blind.clusters == -1).all()), "a cluster is known that is to be withheld"


def steps_leave_their_inputs_alone(algorithm: Any) -> None:
    """A client step changes neither what it was sent nor the data it works on."""
    data = small_federation()
    x, y = (stored_tensors(part.clone()) for part in (data.train.x, data.train.y))
    run = started_run(algorithm, data)
    algorithm.round(run.state, InputGuard(run.population.at("round", 0)))
    algorithm.serve(run.state, InputGuard(run.population.at("serve")))
    for before, now, what in ((x, data.train.x, "features"), (y, data.train.y, "targets")):
        assert all(map(torch.equal, before, stored_tensors(now))), f"{what} changed"


def metered_bytes_are_the_declared_parts(algorithm: Any) -> None:
    """What the meter counts is what the steps' signatures declare, no more and no less."""
    run = started_run(algorithm, small_federation())
    before = Counter(run.bytes.parts)
    book = ByteCounter()
    run.training.participants.channel = (book,)
    algorithm.round(run.state, run.training.participants.of_round(0))
    metered = Counter(run.bytes.parts)
    metered.subtract(before)
    assert {k: v for k, v in metered.items() if v} == {k: v for k, v in book.counts.items() if v}
    table = run.bytes.table()
    for name, step in book.steps.items():
        down = set(inspect.signature(step).parameters) - {"cohort"}
        assert set(table[name]["down"]) == down, f"{name} downloads other parts than it declares"
        assert set(table[name]["up"]) == set(book.fields[name])
