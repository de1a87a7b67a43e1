"""Lock-step: copies of an algorithm side by side, their work on clients done as one.

Copies that differ in their start or step size put the same questions to the same clients, about
other models. Each copy runs unchanged in a thread of its own, one thread at a time. Where it asks
for work on a cohort it waits; when all wait, questions about the same samples are answered
together: the losses of J times k models are one product, the gradients of J models for each client
another. What cannot be shared is done one by one. The answers are those that a copy gets alone, to
rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.core.kernel import Descent, Kernel, Minimisation, Seeds
from coterie.core.rows import Rows
from coterie.core.task import Task
from coterie.data.federation import Samples
from coterie.engine.chunks import ChunkCache, Chunking
from coterie.engine.copies.shared_work import SharedWork
from coterie.engine.devices import find_device
from coterie.engine.kernels import kernel_for
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.simulator import Simulator
from coterie.tensors.devices import default_device, working_bytes
from coterie.tensors.threads import adapt_threads

SHARED_BYTES = 64 * 2**20  # what the models of copies that are worked on together may occupy
LARGEST_CHUNK = 1024
SAMPLE_BYTES = 256 * 2**20  # what the padded samples of a chunk may occupy

Result = TypeVar("Result")


class Request(NamedTuple):
    """A call of a kernel that waits for its answer."""

    name: str  # of the method
    models: Tensor
    rows: Rows
    rest: tuple[Any, ...]  # further arguments
    ids: Tensor | None  # [m] the clients, if the rows are all that they have
    grad: bool  # whether derivatives were recorded where it was asked; threads differ in that

    def matches(self, other: Request) -> bool:
        """Whether both ask the same of the same samples, about models of one shape."""
        mine, theirs = (
            (each.name, each.models.shape, each.grad, each.rows.x.shape, each.rows.x.data_ptr())
            for each in (self, other)
        )
        return mine == theirs and torch.equal(self.rows.size, other.rows.size)


class CopyCancelled(BaseException):
    """Raised inside a copy that is not to go on, because another one failed or was interrupted."""


class CopyThread:
    """A thread that does one job after another, and runs only while `advance` waits for it."""

    def __init__(self) -> None:
        self.job: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.request: Request | None = None  # what the job waits for
        self.answer: Any = None
        self.cancelled = False  # it is not to go on
        # Both are locked at rest: who waits takes one that the other side lets go.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._loop, daemon=True)
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
        if self.cancelled:
            raise CopyCancelled
        answer, self.answer = self.answer, None
        return answer

    def cancel(self) -> None:
        """Let the thread unwind and wait for it."""
        self.cancelled = True
        self._go.release()
        self._thread.join()

    def _loop(self) -> None:
        running.thread = self
        while True:
            self._go.acquire()
            if self.cancelled or self.job is None:
                return
            try:
                self.result = self.job()
            except CopyCancelled:
                return
            except BaseException as error:
                self.error = error
            self.job = None
            self._back.release()


class RunningCopy(threading.local):
    """The copy's thread that is running; none outside of `LockstepThreads.run`."""

    thread: CopyThread | None = None


running = RunningCopy()


class LockstepThreads:
    """Threads that are kept from one round to the next."""

    def __init__(self, kernel: Kernel, population: int = 0) -> None:
        self.kernel = kernel  # answers what the jobs ask of a `LockstepKernel`
        self.shared = SharedWork(kernel, population) if isinstance(kernel, BatchedKernel) else None
        self.threads: list[CopyThread] = []

    def run(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """Do all jobs side by side; their results in order."""
        self.threads += [CopyThread() for _ in range(len(jobs) - len(self.threads))]
        threads = self.threads[: len(jobs)]
        try:
            for thread, job in zip(threads, jobs, strict=True):
                thread.job = job
                thread.advance()
            while waiting := [thread for thread in threads if thread.request is not None]:
                answer_requests(waiting, self.kernel, self.shared)
                for thread in waiting:
                    thread.advance()
        except BaseException:
            self.close()
            raise
        return [thread.result for thread in threads]

    def close(self) -> None:
        """End all threads, wherever they are."""
        for thread in self.threads:
            thread.cancel()
        self.threads = []


def answer_requests(waiting: list[CopyThread], kernel: Kernel, shared: SharedWork | None) -> None:
    """Give every thread its answer, in as few calls as there are kinds of requests."""
    left = [(thread, thread.request) for thread in waiting if thread.request is not None]
    while left:
        first = left[0][1]
        group = [pair for pair in left if pair[1].matches(first)]
        left = [pair for pair in left if not pair[1].matches(first)]
        adapt_threads(len(group) * first.rows.y.numel() * first.models.shape[-1])
        with torch.set_grad_enabled(first.grad), default_device(first.rows.y.device):
            answers = answer_group([request for _, request in group], kernel, shared)
            for (thread, _), answer in zip(group, answers, strict=True):
                thread.answer = answer


def answer_group(
    requests: list[Request], kernel: Kernel, shared: SharedWork | None
) -> Iterator[Any]:
    """The answers to requests that are alike."""
    name, models, rows = requests[0].name, requests[0].models, requests[0].rows
    plain = name in ("choose", "score") or (
        name == "gradient" and all(weights is None for _, weights in (r.rest for r in requests))
    )
    if len(requests) > 1 and name in ("losses", "sample_losses"):
        each = torch.cat([request.models for request in requests], -2)
        yield from getattr(kernel, name)(each, rows).split(models.shape[-2], -1)
    elif len(requests) > 1 and plain and shared is not None:
        outputs = rows.y.numel() * shared.network.width  # of first layers
        needed = max(outputs, len(rows.y) * models.shape[-1]) * models.element_size()
        copies = max(1, working_bytes(rows.y.device, SHARED_BYTES) // needed)
        for begin in range(0, len(requests), copies):
            some = [request.models for request in requests[begin : begin + copies]]
            if name == "gradient":
                yield from shared.gradients(some, rows)
            elif name == "score":
                yield from shared.scores(some, rows)
            else:
                ids = requests[0].ids if len(some) == len(requests) else None
                yield from shared.choices(some, rows, ids)
    else:
        for request in requests:
            yield getattr(kernel, name)(request.models, request.rows, *request.rest)


class LockstepKernel:
    """A kernel whose work waits for that of the other copies; alone it does it at once."""

    def __init__(
        self, inner: Kernel, cache: ChunkCache | None = None, *, trains: bool = True
    ) -> None:
        self.inner = inner
        self.cache = cache or ChunkCache()
        self.trains = trains  # whether these are the samples of clients that something is kept of

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        losses: Tensor = self._ask("losses", models, rows)
        return losses

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        chosen: tuple[Tensor, Tensor] = self._ask("choose", models, rows)
        return chosen

    def sample_losses(self, models: Tensor, rows: Rows) -> Tensor:
        losses: Tensor = self._ask("sample_losses", models, rows)
        return losses

    def gradient(
        self, models: Tensor, rows: Rows, seeds: Seeds, weights: Tensor | None = None
    ) -> Tensor:
        gradient: Tensor = self._ask("gradient", models, rows, seeds, weights)
        return gradient

    def minimise(
        self, start: Tensor, rows: Rows, minimisation: Minimisation
    ) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self._ask("minimise", start, rows, minimisation)
        return found

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        if not self.trains:
            descent = descent._replace(ids=None)
        ends: Tensor = self._ask("descend", start, rows, descent)
        return ends

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        scores: Tensor = self._ask("score", models, rows)
        return scores

    def score_mixture(self, models: Tensor, rows: Rows, shares: Tensor) -> Tensor:
        scores: Tensor = self._ask("score_mixture", models, rows, shares)
        return scores

    def _ask(self, name: str, models: Tensor, rows: Rows, *rest: Any) -> Any:
        if running.thread is None:
            return getattr(self.inner, name)(models, rows, *rest)
        last = self.cache.last_rows
        whole = last is not None and last.x is rows.x
        ids = self.cache.ids if whole and self.trains else None
        grad = torch.is_grad_enabled()
        return running.thread.ask(Request(name, models, rows, rest, ids, grad))


class LockstepClients:
    """The clients of a federation, for copies of a run in lock-step.

    Every copy has simulators of its own. They share the chunks, and the kernel that waits.
    """

    def __init__(
        self, train: Samples, task: Task, *, seed: int = 0, chunk: int = 0, device: str = "cpu"
    ) -> None:
        place = find_device(device)
        self.samples, self.task, self.seed, self.device = train, task, seed, place
        self.kernel = kernel_for(task, train.tensor_axes, place)
        # All copies share a chunk, and wait for each other at each: chunks are larger than usual.
        self.chunking = Chunking(
            task,
            train.sample_numbers,
            chunk,
            device=place,
            largest=LARGEST_CHUNK,
            sample_bytes=SAMPLE_BYTES,
        )
        self.cache = ChunkCache()
        self.caches: dict[str, ChunkCache] = {}  # of the other parts, by name

    def train(self) -> Simulator:
        """The training part for one more copy."""
        return self._simulator(self.samples, LockstepKernel(self.kernel, self.cache))

    def judge(self, part: str, samples: Samples, train: Simulator, first: int = 0) -> Simulator:
        """Another part for the copy that has `train`: see `Simulator.with_samples`."""
        cache = self.caches.setdefault(part, ChunkCache())
        kernel = LockstepKernel(self.kernel, cache, trains=False)
        known = {"first": first, "population": train.population, "memory": train.memory}
        return self._simulator(samples, kernel, **known)

    def _simulator(self, samples: Samples, kernel: LockstepKernel, **options: Any) -> Simulator:
        return Simulator(
            samples,
            self.task,
            seed=self.seed,
            device=self.device,
            kernel=kernel,
            chunking=self.chunking,
            cache=kernel.cache,
            **options,
        )
