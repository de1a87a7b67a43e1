"""Work that is done for several copies at once is what each of them gets alone."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie import Classification, Regression
from coterie.core.rows import Rows
from coterie.data.federation import Samples
from coterie.engine.copies import lockstep
from coterie.engine.copies.lockstep import LockstepClients, LockstepKernel, LockstepThreads
from coterie.engine.copies.shared_work import SharedWork
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel
from coterie.tensors.lazy import select_rows

NETWORKS = {
    "line": lambda f: nn.Linear(f, 1, bias=False),
    "classes": lambda f: nn.Linear(f, 3),
    "two layers": lambda f: nn.Sequential(nn.Linear(f, 4), nn.Tanh(), nn.Linear(4, 3)),
    "no bias below": lambda f: nn.Sequential(
        nn.Linear(f, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)
    ),
}


def problem(name, sizes, features, seed=0):
    """A task of a network in double precision, and some clients' rows for it."""
    generator = torch.Generator().manual_seed(seed)
    kind = Regression if name == "line" else Classification
    task = kind(NETWORKS[name](features).double())
    clients = [
        (
            torch.randn(n, features, generator=generator).double(),
            torch.randint(3, (n,), generator=generator),
        )
        for n in sizes
    ]
    rows = Samples.of(clients).rows(torch.arange(len(sizes)))
    return task, Rows(rows.x, task.targets(rows.y), rows.size)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(list(NETWORKS)),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    features=st.integers(1, 7),
    copies=st.integers(2, 5),
    seed=st.integers(0, 100),
)
def test_joined_work_is_that_of_one_client_after_another(name, sizes, features, copies, seed):
    task, rows = problem(name, sizes, features, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    models = torch.randn(len(sizes), copies, task.layout.size, generator=generator).double()
    alone = PerClientKernel(task)
    gradients = SharedWork(BatchedKernel(task)).gradients(list(models.unbind(1)), rows)
    for j in range(copies):
        torch.testing.assert_close(gradients[j], alone.gradient(models[:, j], rows, [0] * 9))
    shared = [torch.randn(3, task.layout.size, generator=generator).double() for _ in range(copies)]
    chosen = list(SharedWork(BatchedKernel(task)).choices(shared, rows))
    of_chosen = SharedWork(BatchedKernel(task)).gradients([model for _, model in chosen], rows)
    for j in range(copies):
        index, model = alone.choose(shared[j], rows)
        assert chosen[j][0].equal(index)
        torch.testing.assert_close(chosen[j][1] + 0, model + 0)
        torch.testing.assert_close(of_chosen[j], alone.gradient(model, rows, [0] * 9))


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(list(NETWORKS)),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    copies=st.integers(2, 5),
    chosen=st.booleans(),
    seed=st.integers(0, 100),
)
def test_joined_scores_are_those_of_one_client_after_another(name, sizes, copies, chosen, seed):
    """Also right after a choice among the same models, whose outputs are looked at again."""
    task, rows = problem(name, sizes, 5, seed)
    generator = torch.Generator().manual_seed(seed)
    shared = [torch.randn(3, task.layout.size, generator=generator).double() for _ in range(copies)]
    shared_work, alone = SharedWork(BatchedKernel(task), len(sizes)), PerClientKernel(task)
    best = [index for index, _ in shared_work.choices(shared, rows, torch.arange(len(sizes)))]
    if not chosen:
        best = [torch.randint(3, (len(sizes),), generator=generator) for _ in range(copies)]
    models = [select_rows(each, index) for each, index in zip(shared, best, strict=True)]
    for found, model in zip(shared_work.scores(models, rows), models, strict=True):
        torch.testing.assert_close(found, alone.score(model, rows))
    own = [model + 1 for model in models]
    for found, model in zip(shared_work.scores(own, rows), own, strict=True):
        torch.testing.assert_close(found, alone.score(model, rows))


def test_a_choice_is_made_once_for_the_same_models_and_samples(monkeypatch):
    task, rows = problem("classes", [3, 2], 4)
    shared = [torch.randn(3, task.layout.size).double() for _ in range(2)]
    shared_work, compare, times = SharedWork(BatchedKernel(task)), SharedWork._compare, []
    monkeypatch.setattr(SharedWork, "_compare", lambda *a: times.append(1) or compare(*a))

    def chosen(models, rows):
        return [index.tolist() for index, _ in shared_work.choices(models, rows)]

    def alone(models, rows):
        return [PerClientKernel(task).choose(each, rows)[0].tolist() for each in models]

    assert chosen(shared, rows) == chosen([each.clone() for each in shared], rows)
    assert len(times) == 1
    shorter = Rows(rows.x, rows.y, rows.size - 1)
    other = [-each for each in shared]
    for models, samples in ((shared, shorter), (other, shorter), (shared, rows)):
        assert chosen(models, samples) == alone(models, samples)
    assert len(times) == 4


def test_models_that_were_chosen_are_not_formed_for_their_gradients():
    task, rows = problem("line", [3, 2], 4)
    shared = torch.randn(3, 2, task.layout.size).double()
    kernel, threads = LockstepKernel(BatchedKernel(task)), LockstepThreads(BatchedKernel(task))

    def chosen_and_gradient(j):
        _, model = kernel.choose(shared[j], rows)
        return model, kernel.gradient(model, rows, [0, 0])

    answers = threads.run([lambda j=j: chosen_and_gradient(j) for j in range(3)])
    threads.close()
    assert [model.formed for model, _ in answers] == [None] * 3
    for model, gradient in answers:
        torch.testing.assert_close(gradient, PerClientKernel(task).gradient(model, rows, [0, 0]))


def test_what_was_found_on_some_samples_is_not_used_on_others():
    task, rows = problem("classes", [3, 3], 4)
    other = Rows(rows.x + 1, rows.y, rows.size)
    shared = [torch.randn(3, task.layout.size).double() for _ in range(2)]
    chosen = [model for _, model in SharedWork(BatchedKernel(task)).choices(shared, rows)]
    for j, gradient in enumerate(SharedWork(BatchedKernel(task)).gradients(chosen, other)):
        expected = PerClientKernel(task).gradient(chosen[j], other, [0, 0])
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(("work", "method"), [("choose", "choices"), ("gradient", "gradients")])
def test_copies_are_joined_some_at_a_time(monkeypatch, work, method):
    task, rows = problem("classes", [3, 2], 4)
    join, sizes = getattr(SharedWork, method), []
    monkeypatch.setattr(
        SharedWork,
        method,
        lambda self, *about: sizes.append(len(about[0])) or join(self, *about),
    )
    # A client's outputs are 3 of 3 samples, a model is 3 times 4 and a bias, in doubles.
    monkeypatch.setattr(lockstep, "SHARED_BYTES", 2 * 2 * 15 * 8)
    models = torch.randn(5, 2, task.layout.size).double()
    kernel = LockstepKernel(BatchedKernel(task))
    threads = LockstepThreads(BatchedKernel(task))
    arguments = (rows,) if work == "choose" else (rows, [0, 0])
    answers = threads.run(
        [lambda j=j: getattr(kernel, work)(models[j], *arguments) for j in range(5)]
    )
    threads.close()
    assert sizes == [2, 2, 1]
    for j in range(5):
        expected = getattr(PerClientKernel(task), work)(models[j], *arguments)
        torch.testing.assert_close(answers[j], expected)


class Counting(BatchedKernel):
    """Notes how many models each call is about."""

    def __init__(self, task):
        super().__init__(task)
        self.calls = []

    def losses(self, models, rows):
        self.calls.append(("losses", len(models)))
        return super().losses(models, rows)

    def gradient(self, models, rows, seeds, weights=None):
        self.calls.append(("gradient", 1))
        return super().gradient(models, rows, seeds, weights)

    def score(self, models, rows):
        self.calls.append(("score", 1))
        return super().score(models, rows)


@pytest.fixture
def team():
    task, rows = problem("two layers", [3, 3], 4)
    counting = Counting(task)
    threads = LockstepThreads(counting)
    yield task, rows, counting, LockstepKernel(counting), threads
    threads.close()


def test_questions_about_the_same_samples_are_one_call(team):
    task, rows, counting, kernel, threads = team
    models = torch.randn(3, 2, task.layout.size).double()
    answers = threads.run([lambda j=j: kernel.losses(models[j], rows) for j in range(3)])
    assert counting.calls == [("losses", 6)]
    for j in range(3):
        torch.testing.assert_close(answers[j], BatchedKernel(task).losses(models[j], rows))


def test_what_cannot_be_joined_is_done_one_by_one(team):
    """Other samples, another number of models, another kind of work, copies that are done early."""
    task, rows, counting, kernel, threads = team
    other = Rows(rows.x.clone(), rows.y, rows.size)
    shorter = Rows(rows.x, rows.y, rows.size - 1)  # the same numbers, but not all of them count
    d = task.layout.size
    shared, own = torch.randn(3, d).double(), torch.randn(2, d).double()
    plain = BatchedKernel(task)
    jobs = [
        lambda: (kernel.losses(shared, rows), kernel.losses(shared[:1], rows)),
        lambda: (kernel.losses(shared, other), kernel.losses(shared, rows)),
        lambda: (kernel.losses(shared, shorter),),
        lambda: (kernel.gradient(own, rows, [0, 0]),),
        lambda: (kernel.score(own, rows),),
        lambda: (),
    ]
    expected = [
        (plain.losses(shared, rows), plain.losses(shared[:1], rows)),
        (plain.losses(shared, other), plain.losses(shared, rows)),
        (plain.losses(shared, shorter),),
        (plain.gradient(own, rows, [0, 0]),),
        (plain.score(own, rows),),
        (),
    ]
    answers = threads.run(jobs)
    torch.testing.assert_close(answers, expected)
    assert sorted(counting.calls) == sorted(
        [("losses", 3)] * 4 + [("losses", 1), ("gradient", 1), ("score", 1)]
    )


def test_alone_a_joined_kernel_works_at_once(team):
    task, rows, counting, kernel, _ = team
    kernel.losses(torch.zeros(2, task.layout.size).double(), rows)
    assert counting.calls == [("losses", 2)]


def test_an_error_in_one_copy_is_raised_and_leaves_no_thread(team):
    task, rows, _, kernel, threads = team
    models = torch.zeros(1, task.layout.size).double()
    before = threading.active_count()

    def fails():
        kernel.losses(models, rows)
        raise ValueError("of a copy")

    def waits():
        for _ in range(9):
            kernel.losses(models, rows)

    with pytest.raises(ValueError, match="of a copy"):
        threads.run([waits, fails, waits])
    assert threading.active_count() == before
    assert threads.run([lambda: 5]) == [5]  # and it can be used again


def test_derivatives_are_recorded_or_not_as_the_copy_has_it(team):
    """Which is a setting of each thread, while the work is done in another."""
    _, rows, counting, kernel, threads = team
    seen = []
    counting.losses = lambda models, rows: seen.append(torch.is_grad_enabled()) or models[:, :1]

    def silent():
        with torch.no_grad():
            return kernel.losses(torch.zeros(1, 1), rows)

    threads.run([silent, lambda: kernel.losses(torch.zeros(1, 1), rows)])
    assert sorted(seen) == [False, True]


def test_a_chunk_is_put_together_once_for_all_copies():
    task, _ = problem("line", [1], 2)
    clients = [(torch.ones(n, 2).double(), torch.zeros(n).double()) for n in (1, 2, 3)]
    shared = LockstepClients(Samples.of(clients), task)
    one, two = shared.train(), shared.train()
    ids = torch.tensor([0, 2])  # not neighbours, so that the rows are a copy
    first = one.cohort(ids, 0, (0,))
    assert two.cohort(ids, 0, (0,))._on.rows.x is first._on.rows.x
    assert two.cohort(torch.tensor([0, 1]), 0, (0,))._on.rows.x is not first._on.rows.x
    assert one.cohort(ids, 0, (0,)).size.tolist() == [1, 3]
    assert [c.tolist() for c in one.chunks(ids)] == [[0, 2]]
    assert [c.tolist() for c in two.chunks(torch.tensor([1]))] == [[1]]


def test_of_samples_beside_the_training_ones_nothing_is_kept(monkeypatch):
    """They may be of the same clients: what is kept by a client's id is not of these samples."""
    task, _ = problem("line", [1], 2)
    train, test = (
        Samples.of([(drawn.double(), torch.zeros(3).double()) for drawn in torch.randn(2, 3, 2)])
        for _ in range(2)
    )
    shared = LockstepClients(train, task)
    copies = [shared.train() for _ in range(2)]
    tested = [shared.judge("test", test, copy) for copy in copies]
    asked = []
    answer = lockstep.answer_group

    def noting(requests, *rest):
        asked.append([(each.name, each.ids, *each.rest) for each in requests])
        return answer(requests, *rest)

    monkeypatch.setattr(lockstep, "answer_group", noting)
    models = torch.randn(2, 2, task.layout.size).double()

    def work(j, simulators):
        cohort = simulators[j].cohort(torch.arange(2), 0, (0,))
        cohort.choose(models[j])
        cohort.descend(models[j], lr=0.1, steps=2)

    for simulators, known in ((copies, True), (tested, False)):
        threads = LockstepThreads(shared.kernel, 2)
        threads.run([lambda j=j, s=simulators: work(j, s) for j in range(2)])
        threads.close()
        chosen, descended = asked[-2:]
        assert [len(chosen), len(descended)] == [2, 2]
        assert [ids is not None for _, ids in chosen] == [known] * 2
        assert [descent.ids is not None for _, _, descent in descended] == [known] * 2
    assert tested[0].cohort(torch.arange(2), 0, (0,))._on.rows.x.equal(test.rows(torch.arange(2)).x)
