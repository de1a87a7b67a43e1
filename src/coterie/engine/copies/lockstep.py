"""Lock-step: copies of an algorithm side by side, their work on clients done as one.

Copies that differ in their start or step size put the same questions to the same clients, about
other models. Each copy runs unchanged in a thread of its own, one thread at a time. Where it asks
for work on a cohort it waits; when all wait, questions about the same samples are answered
together: the losses of J times k models are one product, the gradients of J models for each client
another. What cannot be joined is done one by one. The answers are those that a copy gets alone, to
rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.core.cohort import Descent, Kernel, Rows, Seeds
from coterie.data.federation import Samples
from coterie.engine.copies.shared_work import Joins
from coterie.engine.kernels.batched import Batched
from coterie.engine.simulator import Simulator
from coterie.tensors.devices import default_device, working_bytes

JOINED_BYTES = 64 * 2**20  # what the models of copies that are joined may occupy

Result = TypeVar("Result")


class Request(NamedTuple):
    """A call of a kernel that waits for its answer."""

    name: str  # of the method
    models: Tensor
    rows: Rows
    rest: tuple[Any, ...]  # further arguments
    ids: Tensor | None  # [m] the clients, if the rows are all that they have
    grad: bool  # whether derivatives were recorded where it was asked; threads differ in that

    def alike(self, other: Request) -> bool:
        """Whether both ask the same of the same samples, about models of one shape."""
        mine, theirs = (
            (each.name, each.models.shape, each.grad, each.rows.x.shape, each.rows.x.data_ptr())
            for each in (self, other)
        )
        return mine == theirs and torch.equal(self.rows.size, other.rows.size)


class Ended(BaseException):
    """Raised inside a copy that is not to go on, because another one failed or was interrupted."""


class Strand:
    """A thread that does one job after another, and runs only while `advance` waits for it."""

    def __init__(self) -> None:
        self.job: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.request: Request | None = None  # what the job waits for
        self.answer: Any = None
        self.ended = False  # it is not to go on
        # Both are locked at rest: who waits takes one that the other side lets go.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def advance(self) -> None:
        """Let the job go on until it asks for something or is done; its error is raised here."""
        self._go.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def ask(self, request: Request) -> Any:
        """Wait for an answer; called inside the thread."""
        self.request = request
        self._back.release()
        self._go.acquire()
        self.request = None
        if self.ended:
            raise Ended
        answer, self.answer = self.answer, None
        return answer

    def end(self) -> None:
        """Let the thread unwind and wait for it."""
        self.ended = True
        self._go.release()
        self._thread.join()

    def _live(self) -> None:
        current.strand = self
        while True:
            self._go.acquire()
            if self.ended or self.job is None:
                return
            try:
                self.result = self.job()
            except Ended:
                return
            except BaseException as error:
                self.error = error
            self.job = None
            self._back.release()


class Current(threading.local):
    """The strand that the running thread is; none outside of `Strands.run`."""

    strand: Strand | None = None


current = Current()


class Strands:
    """Threads that are kept from one round to the next."""

    def __init__(self, kernel: Kernel, population: int = 0) -> None:
        self.kernel = kernel  # answers what the jobs ask of a `Joined` kernel
        self.joins = Joins(kernel, population) if isinstance(kernel, Batched) else None
        self.threads: list[Strand] = []

    def run(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """Do all jobs side by side; their results in order."""
        self.threads += [Strand() for _ in range(len(jobs) - len(self.threads))]
        strands = self.threads[: len(jobs)]
        try:
            for strand, job in zip(strands, jobs, strict=True):
                strand.job = job
                strand.advance()
            while waiting := [strand for strand in strands if strand.request is not None]:
                answer_all(waiting, self.kernel, self.joins)
                for strand in waiting:
                    strand.advance()
        except BaseException:
            self.close()
            raise
        return [strand.result for strand in strands]

    def close(self) -> None:
        """End all threads, wherever they are."""
        for strand in self.threads:
            strand.end()
        self.threads = []


def answer_all(waiting: list[Strand], kernel: Kernel, joins: Joins | None) -> None:
    """Give every strand its answer, in as few calls as there are kinds of requests."""
    left = [(strand, strand.request) for strand in waiting if strand.request is not None]
    while left:
        first = left[0][1]
        group = [pair for pair in left if pair[1].alike(first)]
        left = [pair for pair in left if not pair[1].alike(first)]
        with torch.set_grad_enabled(first.grad), default_device(first.rows.y.device):
            answers = answered([request for _, request in group], kernel, joins)
            for (strand, _), answer in zip(group, answers, strict=True):
                strand.answer = answer


def answered(requests: list[Request], kernel: Kernel, joins: Joins | None) -> Iterator[Any]:
    """The answers to requests that are alike."""
    name, models, rows = requests[0].name, requests[0].models, requests[0].rows
    if len(requests) > 1 and name == "losses":
        each = torch.cat([request.models for request in requests], -2)
        yield from kernel.losses(each, rows).split(models.shape[-2], 1)
    elif len(requests) > 1 and name in ("choose", "gradient", "score") and joins is not None:
        samples = rows.y.numel() * joins.kernel.task.layout.shapes[0][0]  # outputs of a first layer
        needed = max(samples, len(rows.y) * models.shape[-1]) * models.element_size()
        copies = max(1, working_bytes(rows.y.device, JOINED_BYTES) // needed)
        for begin in range(0, len(requests), copies):
            some = [request.models for request in requests[begin : begin + copies]]
            if name == "gradient":
                yield from joins.gradients(some, rows)
            elif name == "score":
                yield from joins.scores(some, rows)
            else:
                ids = requests[0].ids if len(some) == len(requests) else None
                yield from joins.choices(some, rows, ids)
    else:
        for request in requests:
            yield getattr(kernel, name)(request.models, request.rows, *request.rest)


class Joined:
    """A kernel whose work waits for that of the other copies; alone it does it at once."""

    def __init__(self, inner: Kernel, shared: Shared | None = None, *, trains: bool = True) -> None:
        self.inner = inner
        self.shared = shared or Shared()
        self.trains = trains  # whether these are the samples of clients that something is kept of

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        losses: Tensor = self._ask("losses", models, rows)
        return losses

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        chosen: tuple[Tensor, Tensor] = self._ask("choose", models, rows)
        return chosen

    def gradient(self, models: Tensor, rows: Rows, seeds: Seeds) -> Tensor:
        gradient: Tensor = self._ask("gradient", models, rows, seeds)
        return gradient

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        if not self.trains:
            descent = descent._replace(ids=None)
        ends: Tensor = self._ask("descend", start, rows, descent)
        return ends

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        scores: Tensor = self._ask("score", models, rows)
        return scores

    def _ask(self, name: str, models: Tensor, rows: Rows, *rest: Any) -> Any:
        if current.strand is None:
            return getattr(self.inner, name)(models, rows, *rest)
        whole = self.shared.rows is not None and self.shared.rows.x is rows.x
        ids = self.shared.ids if whole and self.trains else None
        grad = torch.is_grad_enabled()
        return current.strand.ask(Request(name, models, rows, rest, ids, grad))


class Shared:
    """What the simulators of all copies have in common: the last chunks that were put together."""

    def __init__(self) -> None:
        self.asked: Tensor | None = None  # [a] the clients that were last cut into chunks
        self.chunks: list[Tensor] = []
        self.ids: Tensor | None = None  # [c] the clients of the last cohort
        self.rows: Rows | None = None
        self.beside: Shared | None = None  # the same of the samples that models are tested on


class InStep(Simulator):
    """The simulator of one copy: a chunk is put together by the first copy that comes to it."""

    # All copies share a chunk, and wait for each other at each.
    chunk_data_bytes = 256 * 2**20
    largest_chunk = 1024

    def __init__(
        self, *arguments: Any, shared: Shared, trains: bool = True, **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self.alone = self.kernel
        self.kernel = Joined(self.alone, shared, trains=trains)
        self.shared = shared

    def beside(self, samples: Samples, first: int = 0) -> Simulator:
        shared = self.shared.beside = self.shared.beside or Shared()
        return InStep(samples, first=first, shared=shared, trains=False, **self._common())

    def chunks(self, ids: Tensor) -> Iterator[Tensor]:
        shared = self.shared
        if shared.asked is None or not torch.equal(shared.asked, ids):
            shared.asked, shared.chunks = ids, list(super().chunks(ids))
        yield from shared.chunks

    def rows(self, ids: Tensor) -> Rows:
        shared = self.shared
        if shared.ids is None or shared.rows is None or not torch.equal(shared.ids, ids):
            shared.ids, shared.rows = ids, super().rows(ids)
        return shared.rows
