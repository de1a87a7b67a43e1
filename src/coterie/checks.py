"""The conformance suite: what every algorithm must hold to, whoever wrote it.

    from coterie.checks import check_algorithm
    check_algorithm(MyAlgorithm(k=3))
    check_algorithm(MyAlgorithm(k=3), task=Classification(MyNetwork), federation=my_data)

Each check runs the algorithm for a few rounds on a small federation in double precision and raises
an AssertionError that names the broken promise. `CHECKS` lists them for `pytest.mark.parametrize`.
What they may rely on is declared by the algorithm: its `Traits`.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.channel.audit import AuditedPopulation
from coterie.channel.lost_replies import LoseReplies
from coterie.core import seeds
from coterie.core.algorithm import Algorithm, Serving, least_samples, serve_clients, traits_of
from coterie.core.clients import Call, Clients, Each, step_name
from coterie.core.errors import CoterieError, SettingError
from coterie.core.local_training import GradientSettings
from coterie.core.sample_kinds import stored_tensors
from coterie.core.samples import as_batch
from coterie.core.state import state_tensors
from coterie.core.task import Task
from coterie.data.federation import Federation, Samples
from coterie.engine.simulator import Simulator
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings, make_settings
from coterie.experiment.simulate import simulate
from coterie.networks import Mlp
from coterie.registry import resolve
from coterie.tasks import Classification
from coterie.tasks.defaults import algorithm_task, default_task
from coterie.tasks.network import NetworkTask

Check = Callable[[Any], None]
Tell = Callable[[str, str], None]  # a promise, and what is broken of it; empty: nothing

ROUNDS = 4
FEATURES, CLASSES = 5, 3
RAGGED = [1, 3, 17, 8, 2, 30, 8, 5]


class Case(NamedTuple):
    """What the checks run on: the small federation and network of this file, or a user's own."""

    federation: Federation | None = None
    task: Task | None = None


BUILT_IN = Case()
CASE: ContextVar[Case] = ContextVar("CASE", default=BUILT_IN)


def check_algorithm(
    algorithm: Algorithm[Any] | str,
    task: Task | None = None,
    federation: Federation | None = None,
    *,
    tell: Tell | None = None,
) -> None:
    """Run every check that applies to an algorithm, and again on a task and data of one's own.

    The algorithm may be given by its name. Of a federation the first eight clients are taken, with
    a few samples each. A task without a federation must fit the samples of `small_federation`. With
    `tell`, a broken promise is told and not raised.
    """
    if isinstance(algorithm, str):
        algorithm = make_settings(resolve("algorithm", algorithm), {})
    run_checks(algorithm, CHECKS, tell)
    if task is None and federation is None:
        return
    if task is None and federation is not None:
        task = default_task(federation, Mlp(hidden=6))
    before = CASE.set(Case(federation, in_double(task, federation or small_federation())))
    own = [check for check in CHECKS if check not in NOT_ON_OWN_DATA]
    try:
        run_checks(algorithm, own, tell)
    finally:
        CASE.reset(before)


def run_checks(algorithm: Any, checks: Sequence[Check], tell: Tell | None) -> None:
    """Run those of some checks that apply."""
    for check in checks:
        if not applies(check, algorithm):
            continue
        broken = ""
        try:
            check(algorithm)
        except AssertionError as error:
            if tell is None:
                raise
            broken = str(error) or "it is broken"
        if tell is not None:
            tell((check.__doc__ or check.__name__).partition("\n")[0], broken)


def in_double(task: Any, federation: Federation) -> Any:
    """A task in double precision, if its network can be had so."""
    if not isinstance(task, NetworkTask):
        return task
    precise: Any = task.double()
    try:
        precise.check_samples(federation.train.x[:2], federation.train.y[:2])
    except (CoterieError, RuntimeError, TypeError):
        return task
    return precise


def applies(check: Check, algorithm: Algorithm[Any]) -> bool:
    """Whether a check says something about an algorithm, by the traits that it declares."""
    traits = traits_of(algorithm)
    if check is any_network_will_do:
        return not hasattr(algorithm, "task")  # else it does not take any network
    if check is other_seed_gives_other_result:
        return traits.draws
    if check is order_of_clients_does_not_matter:
        return not traits.clients_draw
    if check is empty_cluster_keeps_its_model:
        return bool(traits.models)
    return bool(traits.clusters) if check is one_cluster_works else True


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


CHECKS: list[Check] = [
    chunks_do_not_matter,
    padding_does_not_matter,
    any_network_will_do,
    same_seed_gives_same_bits,
    other_seed_gives_other_result,
    resuming_changes_nothing,
    order_of_clients_does_not_matter,
    clusters_are_a_partition,
    empty_cluster_keeps_its_model,
    one_client_works,
    one_cluster_works,
    missing_replies_are_normal,
    lost_replies_break_nothing,
    folds_are_plain_data_that_adds_up,
    withheld_clusters_change_no_model,
    steps_leave_their_inputs_alone,
    metered_bytes_are_the_declared_parts,
    training_does_not_see_test_data,
    unseen_clients_are_served,
    bad_settings_are_refused,
]
NOT_ON_OWN_DATA = (any_network_will_do, bad_settings_are_refused)


def small_federation(sizes: list[int] | None = None, order: Tensor | None = None) -> Federation:
    """A small federation of two hidden groups, which name the classes differently.

    Or one of a user's own data, if that is what the checks run on, with so many samples or less.
    """
    sizes = [12] * len(RAGGED) if sizes is None else sizes
    own = CASE.get().federation
    if own is not None:
        return small_part(own, sizes, order)
    direction = torch.randn(FEATURES, CLASSES, generator=seeds.generator(0, "direction")).double()
    train, test = [], []
    for i, size in enumerate(sizes):
        x = torch.randn(size + 3, FEATURES, generator=seeds.generator(0, "x", i)).double()
        y = ((x @ direction).argmax(1) + i % 2) % CLASSES
        train.append((x[:size], y[:size]))
        test.append((x[size:], y[size:]))
    cluster = torch.arange(len(sizes)) % 2
    if order is not None:
        train, test = [train[i] for i in order], [test[i] for i in order]
        cluster = cluster[order]
    return Federation(Samples.of(train), Samples.of(test), cluster, sample_clusters=True)


def ragged_sizes(algorithm: Any) -> list[int]:
    """Very different numbers of samples, none too small for the algorithm."""
    return [max(least_samples(algorithm), size) for size in RAGGED]


def small_part(federation: Federation, sizes: list[int], order: Tensor | None = None) -> Federation:
    """The first clients of a federation, in an order, with at least 3 samples if they have them."""
    count = min(len(sizes), len(federation))
    chosen = list(range(count)) if order is None else order.tolist()
    whole = federation.test is None or federation.unseen
    return replace(
        federation,
        train=cut_samples(federation.train, chosen, [max(3, size) for size in sizes]),
        test=None if whole or federation.test is None else cut_samples(federation.test, chosen),
        cluster=None if federation.cluster is None else federation.cluster[chosen],
        unseen=False,
        test_cluster=None,
        clients=tuple(federation.clients[i] for i in chosen) if federation.clients else (),
    )


def cut_samples(samples: Samples, clients: list[int], most: list[int] | None = None) -> Samples:
    """The samples of some clients, of client i at most `most[i]`."""
    parts = []
    for i in clients:
        begin, end = samples.offsets[i : i + 2].tolist()
        parts.append(torch.arange(begin, end if most is None else min(end, begin + most[i])))
    return Samples.select(samples.x, samples.y, parts)


def network_draws(task: Task, federation: Federation) -> bool:
    """Whether a network draws when it is trained, as dropout does."""
    module = copy.deepcopy(task.module).train()
    x = as_batch(task.inputs(federation.train.x[:4]))
    outputs = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            outputs.append(module(*task.arguments(x)))
    return not torch.equal(*outputs)


def small_task() -> Classification:
    """A small network in double precision, so that rounding cannot hide or feign a difference."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()

    return Classification(build)


def task_for(algorithm: Any) -> Task:
    """The task that the algorithm names where others have the network above."""
    return algorithm_task(algorithm, small_federation(), CASE.get().task or small_task())


def noisy_task() -> Classification:
    """A network that draws and that has buffers."""

    def build() -> nn.Module:
        first, last = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)
        return nn.Sequential(first, nn.BatchNorm1d(6), nn.Dropout(0.2), last).double()

    return Classification(build)


def short_run(algorithm: Any, data: Federation, **settings: Any) -> Run:
    """A short run."""
    return simulate(algorithm, data, task_for(algorithm), **{"rounds": ROUNDS, **settings})


def started_run(algorithm: Any, data: Federation, **settings: Any) -> Run:
    """A run of one round that has begun, and has made no round yet."""
    run = Run(algorithm, data, task_for(algorithm), RunSettings(rounds=1, **settings))
    run.training.begin()
    return run


def assert_same(one: Run, two: Run, *, exactly: bool = False) -> None:
    """Two runs ended alike: clusters equal, models and numbers equal or equal to rounding."""
    if one.serving.mixture is not None and two.serving.mixture is not None:
        assert_close(one.serving.mixture, two.serving.mixture, "shares")
    else:
        assert torch.equal(one.clusters, two.clusters), "clusters differ"
    if one.labels is not None and two.labels is not None:
        assert torch.equal(one.labels, two.labels), "clusters of samples differ"
    if exactly:
        assert torch.equal(one.models, two.models), "models differ in some bit"
        assert one.metrics == two.metrics, "metrics differ in some bit"
    assert_close(one.models, two.models, "models")


def serving_models(run: Run) -> Tensor:
    """The model that serves each client, [m, d]; the mean of those that are mixed."""
    if run.serving.mixture is not None:
        return run.serving.mixture.to(run.models.dtype) @ run.models
    return run.models if run.serving.adapt is not None else run.models[run.clusters]


def assert_close(one: Tensor, two: Tensor, what: str) -> None:
    apart = float((one - two).abs().max())
    scale = max(1.0, float(two.abs().max()))
    limit = 1e-9 if two.dtype == torch.float64 else 1e-3 * scale
    assert apart < limit, f"{what} differ by {apart:.3g}"


def with_one_cluster(algorithm: Any) -> Any:
    """The algorithm with a single cluster, if it has a setting for that."""
    setting = traits_of(algorithm).clusters
    return replace(algorithm, **{setting: 1}) if setting else algorithm


def full_batch(algorithm: Any) -> Any:
    """The algorithm without mini-batches, which are drawn by client id."""
    return replace(algorithm, batch=0) if isinstance(algorithm, GradientSettings) else algorithm


class InputGuard:
    """Clients that complain about a step that changes what it was sent."""

    def __init__(self, inner: Clients) -> None:
        self.inner, self.ids = inner, inner.ids
        self.population, self.round, self.task = inner.population, inner.round, inner.task
        self.withheld = inner.withheld

    def only(self, ids: Tensor) -> InputGuard:
        return InputGuard(self.inner.only(ids))

    def run(self, step: Callable[..., Any], *, fold: Any = None, **message: Any) -> Any:
        copies = {name: sent_tensor(value).clone() for name, value in message.items()}
        answer = self.inner.run(step, fold=fold, **message)
        for name, value in message.items():
            assert torch.equal(copies[name], sent_tensor(value)), f"{step.__name__} changed {name}"
        return answer


class ByteCounter:
    """A filter that lets everything through and adds traffic up, from the tensors themselves."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.steps: dict[str, Callable[..., Any]] = {}
        self.fields: dict[str, tuple[str, ...]] = {}

    def apply(self, call: Call, ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
        key = step_name(call.step)
        self.steps[key], self.fields[key] = call.step, upload._fields
        for name, value in call.message.items():
            for i in ids:
                sent = value.rows_for(i.view(1)) if isinstance(value, Each) else value
                self.counts[key, "down", name] += sent.numel() * sent.element_size()
        for name in upload._fields:
            row = getattr(upload, name)[0]
            self.counts[key, "up", name] += len(ids) * row.numel() * row.element_size()
        return ids, upload


def sent_tensor(value: Any) -> Tensor:
    return value.rows if isinstance(value, Each) else value
