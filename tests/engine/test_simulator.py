import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import coterie
from coterie import Classification, Regression, TokenClassification
from coterie.core.errors import CoterieError
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator
from tests.channel.echo import Echo
from tests.tasks.taggers import (
    NaiveTagger,
    TransformerClassifier,
    build,
    labelled_federation,
    soft_federation,
    tagging_federation,
    tagging_task,
    two_input_federation,
    two_input_task,
)


def simulator(sizes, **options):
    clients = [(torch.full((n, 1), float(i)), torch.zeros(n)) for i, n in enumerate(sizes)]
    return Simulator(Samples.of(clients), Regression(nn.Linear(1, 1)), **options)


def test_padding_is_zero_and_sizes_are_kept():
    rows = simulator([3, 1]).samples.rows(torch.tensor([1, 0]))
    assert rows.x.shape == (2, 3, 1)
    assert rows.x[:, :, 0].tolist() == [[1, 0, 0], [0, 0, 0]]
    assert rows.size.tolist() == [1, 3]


def test_neighbours_of_equal_size_are_not_copied():
    samples = simulator([2, 2, 2]).samples
    rows = samples.rows(torch.tensor([1, 2]))
    assert rows.x.data_ptr() == samples.x[2:].data_ptr()
    assert rows.x[:, :, 0].tolist() == [[1, 1], [2, 2]]


def test_unseen_clients_are_numbered_behind_the_others_and_remember_nothing():
    seen = simulator([2, 2])
    seen.memory.keep("note", torch.tensor([0, 1]), torch.tensor([[5.0], [6.0]]))
    unseen = simulator([2], first=2, population=2, memory=seen.memory)
    cohort = unseen.cohort(unseen.ids, 0, (0,))
    assert cohort.ids.tolist() == [2]
    assert cohort.recall("note", torch.tensor([[9.0]])).tolist() == [[9.0]]


def test_nobody_recalls_what_nobody_kept():
    cohort = simulator([2, 2]).cohort(torch.arange(2), 0, (0,))
    with pytest.raises(CoterieError, match="for clients who never kept note, as is client"):
        cohort.recall("note")


def test_replies_are_in_order_of_id_whatever_the_chunks():
    sizes = [5, 1, 4, 2]
    samples = Samples.of([(torch.zeros(n, 1), torch.zeros(n)) for n in sizes])
    some = Simulator(samples, Regression(nn.Linear(1, 1)), chunk=1).at("round", 0)
    ids, up = some.run(Echo().step, model=torch.zeros(4))
    assert ids.tolist() == [0, 1, 2, 3]
    assert up.size.tolist() == sizes


# Peak memory of a process is its own only in a process of its own.
MEASURED = """
import sys
import tempfile
from pathlib import Path
import torch
import coterie
from coterie.data.federation import Federation, Samples
from coterie.networks import mlp

def peak():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) // 1024

def run(clients, folder):
    x, y = torch.zeros(clients * 2, 64), torch.arange(clients * 2) % 10
    data = Federation(Samples(x, y, torch.arange(clients + 1) * 2))
    task = coterie.Classification(lambda: mlp(64, 100, 10))
    coterie.simulate(algorithm, data, task, rounds=2, evaluate=2, folder=folder)

algorithm = {"fedavg": coterie.FedAvg(steps=1), "ifca": coterie.IFCA(k=2, steps=1, start="random")}
algorithm = algorithm[sys.argv[1]]
with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    run(1_000, one)
    before = peak()
    run(10_000, other)
    print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize("algorithm", ["fedavg", "ifca"])
def test_memory_of_a_round_does_not_grow_with_the_number_of_clients(algorithm):
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, algorithm], capture_output=True, text=True, check=True
    )
    # The models of 9,000 more clients would take 258 MB, their samples and numbers take 8.
    assert int(done.stdout) < 100


# What samples may be, each with a network that takes them, in double precision.
KINDS = {
    "tags": (tagging_federation, tagging_task(torch.float64)),
    "careless tags": (
        tagging_federation,
        TokenClassification(partial(build, NaiveTagger, torch.float64), padding="none"),
    ),
    "two inputs": (two_input_federation, two_input_task(torch.float64)),
    "soft targets": (soft_federation, two_input_task(torch.float64)),
    "labelled sentences": (
        labelled_federation,
        Classification(partial(build, TransformerClassifier, torch.float64), padding="mask"),
    ),
}
SIZES = [1, 3, 12, 8, 2, 20, 8, 5]
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@pytest.mark.parametrize(
    "algorithm",
    [
        coterie.IFCA(k=2, lr=0.5, steps=3),
        coterie.IFCA(k=2, lr=0.5, steps=3, batch=4),
        coterie.Ditto(lr=0.5, steps=2, batch=3),
        coterie.CFL(lr=0.5, steps=2, wait=1),
    ],
    ids=["ifca", "batches", "ditto", "cfl"],
)
def test_samples_of_any_kind_are_trained_on_whatever_the_chunks(kind, algorithm):
    federation, task = KINDS[kind]
    runs = [
        coterie.simulate(algorithm, federation(SIZES), task, rounds=2, chunk=chunk)
        for chunk in (1, 100)
    ]
    torch.testing.assert_close(runs[0].models, runs[1].models, rtol=0, atol=1e-9)
    assert torch.equal(runs[0].clusters, runs[1].clusters)
    assert runs[0].metrics == pytest.approx(runs[1].metrics)


@kinds
def test_cohorts_of_any_samples_are_split_and_chosen_from(kind):
    federation, task = KINDS[kind]
    some = Simulator(federation(SIZES).train, task)
    whole = some.cohort(some.ids, 0, (0,))
    models = task.draw(torch.Generator().manual_seed(0)).expand(2, -1)
    sums = whole.loss(models)[:, 0] * whole.size
    kept, held = whole.split(0.5)
    assert (kept.size + held.size).tolist() == [2, *SIZES[1:]]  # the only sample is in both
    parts = kept.loss(models)[:, 0] * kept.size + held.loss(models)[:, 0] * held.size
    if kind != "careless tags":  # which read the padding of their batch
        torch.testing.assert_close(parts[1:], sums[1:])
    places = torch.tensor([5, 0])
    torch.testing.assert_close(whole.subset(places).loss(models), whole.loss(models)[places])
    first = torch.arange(max(SIZES)) < 2
    few = whole.among(first.expand(len(SIZES), -1))
    assert few.size.tolist() == [min(2, size) for size in SIZES]
    torch.testing.assert_close(few.loss(models)[4], whole.loss(models)[4])
    for (x, y), size in zip(whole, SIZES, strict=True):
        assert len(x) == len(y) == size


@kinds
def test_cohorts_of_any_samples_answer_all_that_a_step_may_ask(kind):
    federation, task = KINDS[kind]
    some = Simulator(federation(SIZES).train, task)
    cohort = some.cohort(some.ids, 0, (0,))
    model = task.draw(torch.Generator().manual_seed(0))
    start = model.expand(len(SIZES), -1)
    losses = cohort.losses(model[None])[:, :, 0]
    assert losses.shape == (len(SIZES), max(SIZES))
    torch.testing.assert_close(losses.sum(1) / cohort.size, cohort.loss(model[None])[:, 0])
    # Weights of 1 are none; with weights of 0 a client stands still, as one without samples does.
    plain = cohort.descend(start, lr=0.5, steps=2)
    weights = cohort.mask.to(torch.float64)
    torch.testing.assert_close(cohort.descend(start, lr=0.5, steps=2, weights=weights), plain)
    weights[3] = 0
    assert torch.equal(cohort.descend(start, lr=0.5, steps=2, weights=weights)[3], model)
    chosen = cohort.mask.clone()
    chosen[3] = False
    few = cohort.among(chosen).descend(start, lr=0.5, steps=2)
    assert torch.equal(few[3], model)
    torch.testing.assert_close(few[4], plain[4])
    empty = cohort.among(torch.zeros_like(chosen))
    assert not empty.score(start).any()
    assert empty.loss(model[None]).isinf().all()

    # A mixture of two models in which one has no share is the other.
    models = torch.stack([model, plain[5]])
    shares = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(len(SIZES), -1)
    mixed = cohort.score_mixture(models, shares)
    torch.testing.assert_close(mixed, cohort.score(plain[5].expand(len(SIZES), -1)))

    def objective(call, x, y, generator):
        return task.losses(call(None, x), y).mean()

    torch.testing.assert_close(cohort.minimise(objective, start, lr=0.5, steps=2), plain)


@kinds
def test_clients_of_any_samples_may_be_unseen_or_elsewhere(kind):
    federation, task = KINDS[kind]
    data = federation(SIZES)
    strangers = federation([4, 6], seed=7)
    unseen = replace(data, test=strangers.train, unseen=True)
    run = coterie.simulate(coterie.IFCA(k=2, lr=0.5), unseen, task, rounds=2)
    assert run.serve(strangers).shape == (2,)
    parts = [pickle.loads(pickle.dumps(data.train.part(*bounds))) for bounds in ((0, 3), (3, 8))]
    model = run.models[:1]
    found = [Simulator(part, task).cohort(torch.arange(len(part)), 0, (0,)) for part in parts]
    losses = torch.cat([cohort.loss(model) for cohort in found])
    whole = Simulator(data.train, task).cohort(torch.arange(8), 0, (0,))
    torch.testing.assert_close(losses, whole.loss(model), rtol=0, atol=1e-12)


@kinds
def test_copies_of_a_run_on_any_samples_go_in_lock_step(kind):
    federation, task = KINDS[kind]
    data = replace(federation([3, 5, 4]), test=None)
    algorithm = coterie.IFCA(k=2, start="random", steps=2)
    best = coterie.simulate(algorithm, data, task, rounds=2, grid={"lr": [0.1, 0.5]})
    alone = [coterie.simulate(replace(algorithm, lr=lr), data, task, rounds=2) for lr in (0.1, 0.5)]
    expected = min(alone, key=lambda run: run.metrics["train_loss"])
    torch.testing.assert_close(best.models, expected.models, rtol=0, atol=1e-12)


def test_what_a_chunk_holds_is_by_the_average_length():
    short = Samples.of([([[1] * 2, [1] * 4], [0, 1])] * 3)
    assert short.sample_numbers == 3
    task = Classification(nn.Linear(1, 2))
    assert Simulator(short, task).chunking.sample_numbers == 3
