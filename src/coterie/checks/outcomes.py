"""Checks of what comes out of a run: whatever it must not depend on, and what it always is.

The first line of a check's docstring is the promise.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from coterie.checks.runs import (
    ROUNDS,
    assert_close,
    assert_same,
    full_batch,
    serving_models,
    short_run,
    started_run,
    with_one_cluster,
)
from coterie.checks.small import (
    RAGGED,
    cut_samples,
    network_draws,
    noisy_task,
    ragged_sizes,
    small_federation,
    task_for,
)
from coterie.core.algorithm import least_samples, serve_clients, traits_of
from coterie.core.errors import SettingError
from coterie.engine.simulator import Simulator
from coterie.experiment.run import Run
from coterie.experiment.simulate import simulate


def chunks_do_not_matter(algorithm: Any) -> None:
    """One client at a time, the reference, gives the same as all of them at once."""
    one, two = (short_run(algorithm, small_federation(), chunk=chunk) for chunk in (1, 100))
    assert_same(one, two)


def padding_does_not_matter(algorithm: Any) -> None:
    """Clients of very different sizes side by side give the same as each by itself."""
    ragged = small_federation(sizes=ragged_sizes(algorithm))
    assert_same(short_run(algorithm, ragged, chunk=1), short_run(algorithm, ragged, chunk=100))


def any_network_will_do(algorithm: Any) -> None:
    """Batch normalisation and dropout are carried, seeded and averaged like everything else."""
    # Batch statistics of a single sample do not exist, and a method may hold samples out.
    sizes = [max(3 * least_samples(algorithm), size) for size in RAGGED]
    algorithm = full_batch(algorithm)
    try:
        one, two = (
            simulate(algorithm, small_federation(sizes), noisy_task(), rounds=2, chunk=chunk)
            for chunk in (1, 100)
        )
    except SettingError as refusal:
        # An algorithm may say that it cannot do this, but not do it wrongly.
        if "batch normalisation" in str(refusal):
            return
        raise
    assert_same(one, two)
    assert bool(torch.isfinite(one.models).all()), "models are not finite"


def same_seed_gives_same_bits(algorithm: Any) -> None:
    """A run repeated is the same to the last bit, also with lost replies and sampled clients."""
    one, two = (short_run(algorithm, small_federation(), fraction=0.5, lost=0.2) for _ in range(2))
    assert_same(one, two, exactly=True)


def other_seed_gives_other_result(algorithm: Any) -> None:
    """The seed is used, unless the network brings its weights."""
    one, two = (short_run(algorithm, small_federation(), seed=seed) for seed in (1, 2))
    task, generator = task_for(algorithm), torch.Generator()
    if torch.equal(*(task.draw(generator.manual_seed(seed)) for seed in (1, 2))):
        return
    assert not torch.equal(one.models, two.models), "two seeds gave identical models"


def resuming_changes_nothing(algorithm: Any) -> None:
    """A run that was stopped and resumed ends as the uninterrupted run, to the last bit."""
    settings: dict[str, Any] = {"rounds": ROUNDS, "fraction": 0.5, "seed": 3}

    class Stopped(Exception):
        pass

    def stop(record: dict[str, Any], _: Run) -> None:
        if record["round"] == 2:
            raise Stopped

    with tempfile.TemporaryDirectory() as folder:
        with suppress(Stopped):
            short_run(algorithm, small_federation(), folder=folder, on_round=stop, **settings)
        resumed = short_run(algorithm, small_federation(), folder=folder, resume=True, **settings)
        assert_same(short_run(algorithm, small_federation(), **settings), resumed, exactly=True)
        assert not list(Path(folder).glob(".*")), "an unfinished file was left behind"


def order_of_clients_does_not_matter(algorithm: Any) -> None:
    """Clients under other ids get the same models; only the ids are permuted."""
    algorithm = full_batch(algorithm)
    sizes = ragged_sizes(algorithm)
    one = short_run(algorithm, small_federation(sizes=sizes))
    if network_draws(one.task, one.federation):
        return  # what it draws depends on the client's id
    count = len(one.federation)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(5))
    two = short_run(algorithm, small_federation(sizes=sizes, order=order))
    assert_close(serving_models(one)[order], serving_models(two), "models under other ids")


def clusters_are_a_partition(algorithm: Any) -> None:
    """Every client is in exactly one cluster that has a model, also when few take part in a round.

    An algorithm serves mixtures if and only if it says so.
    """
    run = short_run(algorithm, small_federation(), per_round=2)
    count, soft = len(run.federation), traits_of(algorithm).soft
    assert torch.equal(run.serving.ids, torch.arange(count)), "a client is served not once"
    assert run.clusters.shape == (count,), "not one cluster per client"
    mixes = run.serving.mixture is not None
    assert mixes == soft, f"its traits say soft={soft}, but it serves {mixes and 'a mixture'}"
    inside = (run.clusters >= 0) & (run.clusters < len(run.models))
    assert bool(inside.all()), "a client is in a cluster that has no model"


def empty_cluster_keeps_its_model(algorithm: Any) -> None:
    """A cluster in which nobody trained has the model it had before the round."""
    run = started_run(algorithm, small_federation(), per_round=1)
    traits = traits_of(algorithm)
    before = getattr(run.state, traits.models).clone()
    if len(before) == 1 and not traits.clusters:
        return  # it begins with one cluster and makes others later
    clients = run.population.at("round", 0, ids=torch.tensor([0]))
    after, info = algorithm.round(run.state, clients)
    empty = torch.ones(len(before), dtype=torch.bool)
    empty[info.cluster] = False
    assert bool(empty.any()), "the check needs a cluster that nobody is in: give it k > 1"
    now = getattr(after, traits.models)
    assert torch.equal(now[empty], before[empty]), "an empty cluster lost its model"
    assert not torch.equal(now[~empty], before[~empty]), "a filled cluster did not train"


def one_client_works(algorithm: Any) -> None:
    """A federation of a single client is a federation."""
    alone = small_federation(sizes=[max(6, least_samples(algorithm))])
    run = short_run(with_one_cluster(algorithm), alone)
    assert bool(torch.isfinite(run.models).all())


def one_cluster_works(algorithm: Any) -> None:
    """A single cluster holds everybody."""
    run = short_run(with_one_cluster(algorithm), small_federation())
    assert run.clusters.tolist() == [0] * len(run.federation)


def training_does_not_see_test_data(algorithm: Any) -> None:
    """Other test data, same training: the test part is never used to train or to choose."""
    data = small_federation()
    if data.test is None:
        return
    others = cut_samples(data.test, list(reversed(range(len(data)))))
    one, two = (short_run(algorithm, replace(data, test=test)) for test in (data.test, others))
    assert_same(one, two)


def unseen_clients_are_served(algorithm: Any) -> None:
    """Clients that never took part get a model too."""
    run = short_run(algorithm, small_federation())
    strangers = Simulator(
        small_federation(sizes=[4, 9, 2]).train,
        run.task,
        first=len(run.federation),
        population=len(run.federation),
    )
    serving = serve_clients(algorithm, run.state, strangers.at("serve"))
    assert torch.equal(serving.ids, strangers.ids), "a stranger is served not once"
    models = serving.models[serving.cluster]
    cohort = strangers.cohort(strangers.ids, 0, (0,))
    if serving.adapt is not None:
        models = serving.adapt(cohort, model=models)
    if serving.label is not None:
        label = serving.label(cohort, models=serving.models)
        longest = int(strangers.sizes.max())
        assert label.shape == (len(strangers.ids), longest), "not one cluster per sample"
        inside = (label >= 0) & (label < len(serving.models))
        assert bool(inside.all()), "a sample is in a cluster that has no model"
    assert models.shape == (len(strangers.ids), run.task.layout.size)
    assert bool(torch.isfinite(models).all())


def bad_settings_are_refused(algorithm: Any) -> None:
    """A number out of range is refused with the rule and the value in one sentence."""
    for field in fields(algorithm):
        value = getattr(algorithm, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                replace(algorithm, **{field.name: -1})
            except SettingError as error:
                sentence = str(error)
                assert f"`{field.name}` of {type(algorithm).__name__} must" in sentence, sentence
                assert sentence.endswith("got -1"), sentence
            else:
                raise AssertionError(f"{field.name}=-1 was accepted")
