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

from coterie.core.cohort import Descent, Kernel, Rows, Seeds, finite
from coterie.core.devices import on, room
from coterie.core.lazy import Lazy, Picked, as_picked
from coterie.engine.batched import Batched
from coterie.engine.simulator import Simulator

JOINED_BYTES = 64 * 2**20  # what the models of copies that are joined may occupy

Result = TypeVar("Result")


class Request(NamedTuple):
    """A call of a kernel that waits for its answer."""

    name: str  # of the method
    models: Tensor
    rows: Rows
    rest: tuple[Any, ...]  # further arguments
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

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel  # answers what the jobs ask of a `Joined` kernel
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
                answer_all(waiting, self.kernel)
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


def answer_all(waiting: list[Strand], kernel: Kernel) -> None:
    """Give every strand its answer, in as few calls as there are kinds of requests."""
    left = [(strand, strand.request) for strand in waiting if strand.request is not None]
    while left:
        first = left[0][1]
        group = [pair for pair in left if pair[1].alike(first)]
        left = [pair for pair in left if not pair[1].alike(first)]
        with torch.set_grad_enabled(first.grad), on(first.rows.y.device):
            answers = answered([request for _, request in group], kernel)
            for (strand, _), answer in zip(group, answers, strict=True):
                strand.answer = answer


def answered(requests: list[Request], kernel: Kernel) -> Iterator[Any]:
    """The answers to requests that are alike."""
    name, models, rows = requests[0].name, requests[0].models, requests[0].rows
    if len(requests) > 1 and name == "losses":
        each = torch.cat([request.models for request in requests], -2)
        yield from kernel.losses(each, rows).split(models.shape[-2], 1)
    elif len(requests) > 1 and name in ("choose", "gradient") and isinstance(kernel, Batched):
        join = joined_choices if name == "choose" else joined_gradients
        samples = rows.y.numel() * kernel.task.layout.shapes[0][0]  # outputs of a first layer
        needed = max(samples, len(rows.y) * models.shape[-1]) * models.element_size()
        copies = max(1, room(rows.y.device, JOINED_BYTES) // needed)
        for begin in range(0, len(requests), copies):
            some = requests[begin : begin + copies]
            yield from join([request.models for request in some], rows, kernel)
    else:
        for request in requests:
            yield getattr(kernel, name)(request.models, request.rows, *request.rest)


class Seen(Picked):
    """Models that were chosen on some samples, with the first layer's outputs there."""

    def __init__(self, models: Tensor, index: Tensor, activations: Tensor, rows: Rows) -> None:
        super().__init__(models, index, activations)
        self.rows = rows


class Strided:
    """The rows of one copy among those of all, which lie between each other [m, d].

    They are added up where they lie, in their own precision.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        m, d = self.rows.shape
        return m, d

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def dense(self) -> Tensor:
        return self.rows.clone()

    def add_to(self, sums: Tensor, member: Tensor) -> None:
        sums += member.to(self.dtype) @ self.rows


def joined_choices(
    models: list[Tensor], rows: Rows, kernel: Batched
) -> Iterator[tuple[Tensor, Tensor]]:
    """What `Kernel.choose` gives for each of J lots of models [k, d]."""
    copies, k = len(models), len(models[0])
    index, activations = [], []
    for z, losses in kernel._under(torch.cat(models), rows):
        best = finite(losses).view(-1, copies, k).argmin(2)  # [b, J]
        place = best + k * torch.arange(copies, device=best.device)
        index.append(best)
        client = torch.arange(len(place), device=best.device)[:, None]
        activations.append(z[place, :, client])  # [b, J, h, n]
    each = zip(models, torch.cat(index).unbind(1), torch.cat(activations).unbind(1), strict=True)
    for own, chosen, outputs in each:
        yield chosen, Lazy(Seen(own, chosen, outputs, rows))


def joined_gradients(models: list[Tensor], rows: Rows, kernel: Batched) -> Sequence[Tensor]:
    """What `Kernel.gradient` gives for each of J lots of models [m, d].

    The samples are multiplied once with the first layers of all J models of a client; above it the
    models stand side by side as if they were clients. Of models that have just been chosen on these
    samples the first product is known.
    """
    m, copies = len(rows.y), len(models)
    x = rows.x.flatten(2)
    own: list[list[Tensor]]  # [J][layer], each [m, ...]
    picks = [as_picked(each) for each in models]
    if all(isinstance(pick, Seen) and pick.rows.x is rows.x for pick in picks):
        z = torch.stack([pick.activations for pick in picks], 1).flatten(1, 2)  # type: ignore
        own = [[w[pick.index] for w in kernel._split(pick.models)[1:]] for pick in picks]  # type: ignore
    else:
        weights = kernel._split(torch.stack(models, 1))
        # The narrow factor last: several times faster than the other way round.
        z = torch.bmm(x, weights[0].flatten(1, 2).mT).mT  # [m, J h, n]
        if kernel.has_bias:
            z = z + weights[1].flatten(1)[:, :, None]
        own = [[w[:, j] for w in weights[1:]] for j in range(copies)]
    upper = [torch.stack(w, 1).flatten(0, 1) for w in zip(*own, strict=True)][kernel.has_bias :]
    y = rows.y.repeat_interleave(copies, 0)
    weight = rows.weights(z.dtype).repeat_interleave(copies, 0)
    slopes, above = kernel.stack.gradients(
        z.reshape(m * copies, -1, x.shape[1]), upper, kernel._slope(y, weight)
    )
    found = [torch.bmm(slopes.view(m, -1, x.shape[1]), x).view(m, copies, -1)]
    if kernel.has_bias:
        found.append(slopes.sum(2).view(m, copies, -1))
    found += [piece.reshape(m, copies, -1) for piece in above]
    whole = found[0] if len(found) == 1 else torch.cat(found, 2)
    return [Lazy(Strided(each)) for each in whole.unbind(1)]


class Joined:
    """A kernel whose work waits for that of the other copies; alone it does it at once."""

    def __init__(self, inner: Kernel) -> None:
        self.inner = inner

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
        ends: Tensor = self._ask("descend", start, rows, descent)
        return ends

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        scores: Tensor = self._ask("score", models, rows)
        return scores

    def _ask(self, name: str, models: Tensor, rows: Rows, *rest: Any) -> Any:
        if current.strand is None:
            return getattr(self.inner, name)(models, rows, *rest)
        return current.strand.ask(Request(name, models, rows, rest, torch.is_grad_enabled()))


class Shared:
    """What the simulators of all copies have in common: the last chunks that were put together."""

    def __init__(self) -> None:
        self.asked: Tensor | None = None  # [a] the clients that were last cut into chunks
        self.chunks: list[Tensor] = []
        self.ids: Tensor | None = None  # [c] the clients of the last cohort
        self.rows: Rows | None = None


class InStep(Simulator):
    """The simulator of one copy: a chunk is put together by the first copy that comes to it."""

    chunk_data_bytes = 256 * 2**20  # all copies share it

    def __init__(self, *arguments: Any, shared: Shared, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.alone = self.kernel
        self.kernel = Joined(self.alone)
        self.shared = shared

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
