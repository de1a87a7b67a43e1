"""How long a round of UIFCA takes against a loop over clients and clusters in plain PyTorch.

    python benchmarks/flows.py [--quick] [--turns N]

n clients train k flows each. Both make their sets by the same models of the last cluster round,
take the same mini-batches of them and average; they take turns in one process, and what they end
with is compared. RealNVPs are trained with Adam, as the recipes of UIFCA train them, and with SGD.
The number of threads is PyTorch's own, OMP_NUM_THREADS.

Of RealNVP the operations of its products are counted, which both make: forwards for the sets of
all samples, and for each step forwards, backwards by weights and backwards by what layers see.
What a product of large matrices takes for as many is the least that either could take.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie import UIFCA, Density, Federation
from coterie.core.algorithm import Start
from coterie.engine.kernels.vmapped import VmappedKernel
from coterie.engine.malloc import tune_malloc
from coterie.engine.simulator import Simulator
from coterie.networks.flows import LinearFlow, RealNvp
from coterie.report.text_tables import markdown_table

tune_malloc()  # as the command line does

SIZE = 2048  # of the matrices whose product is the yardstick
FIRST, STEPS = 4, 20  # rounds before the one that is timed, gradient steps of a set in a round


class Work(NamedTuple):
    """Flows on samples of so many numbers; n clients with n clusters of samples."""

    network: Any
    features: int
    batch: int
    number: int  # n and k
    samples: int  # of a client
    rule: str = "sgd"
    lr: float = 0.005


OPTIMISERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
REAL_NVP = RealNvp(masks="cyclic", hidden=64)
WORKS = {
    f"{name}, n = k = {n}": Work(network, features, batch, n, samples, *rule)
    for name, network, features, batch, samples, *rule in [
        ("linear flows of 32 features, batch 64", LinearFlow(), 32, 64, 1000),
        ("RealNVPs of 196 features, batch 32, Adam", REAL_NVP, 196, 32, 500, "adam", 0.001),
        ("RealNVPs of 196 features, batch 32, SGD", REAL_NVP, 196, 32, 500),
    ]
    for n in (4, 10)
}


class Everybody:
    """A population of which all take part in the start."""

    def __init__(self, clients: Simulator) -> None:
        self.clients = clients

    def sample(self, round: int, at_least: int) -> Any:
        return self.clients.at("start", round)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one turn, to see that it works")
    parser.add_argument("--turns", type=int, default=7, help="rounds of each that are timed")
    options = parser.parse_args()
    turns = 1 if options.quick else options.turns
    rows = [[name, *compare(work, turns)] for name, work in WORKS.items()]
    print(f"{torch.get_num_threads()} threads, {STEPS} steps in a round")
    head = ["flows", "plain loop, s", "coterie, s", "ratio", "difference"]
    print(markdown_table([*head, "GFLOP", "as one product, s"], rows))


def compare(work: Work, turns: int) -> list[str]:
    """Seconds per round of the loop and of coterie, medians; their ratio; their difference.

    Then the operations of a round, and what the product of large matrices takes for as many; empty
    where they are not counted.
    """
    generator = torch.Generator().manual_seed(0)
    k, shape = work.number, (work.number, work.samples)
    centre = torch.randn(k, work.features, generator=generator)
    label = torch.randint(k, shape, generator=generator)
    x = centre[label] + 0.5 * torch.randn(*shape, work.features, generator=generator)
    federation = Federation.from_clients(list(zip(x, label, strict=True)))
    task = Density(lambda: work.network.module([work.features], k))
    algorithm = UIFCA(
        k=k,
        steps=STEPS,
        batch=work.batch,
        optimizer=work.rule,
        lr=work.lr,
        restarts=1,
        fit_rounds=FIRST - 1,
    )
    clients = Simulator(federation.train, task)
    state = algorithm.init(Start(Everybody(clients), task, clients.population, seed=0))
    for t in range(FIRST):
        state, _ = algorithm.round(state, clients.at("round", t))
    descents: list[Any] = []
    descend = VmappedKernel.descend

    def noted(self: VmappedKernel, start: Tensor, rows: Any, descent: Any) -> Tensor:
        descents.append(descent)
        return descend(self, start, rows, descent)

    VmappedKernel.descend = noted  # type: ignore[method-assign]
    expected = algorithm.round(state, clients.at("round", FIRST))[0].models[0]
    VmappedKernel.descend = descend  # type: ignore[method-assign]
    (descent,) = descents
    networks = [module_of(task, model) for model in state.models[0]]
    judges = [module_of(task, model) for model in state.judges[0]]
    ours, theirs, products = [], [], []
    a, b = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    for _ in range(turns):
        began = time.perf_counter()
        a @ b
        products.append(time.perf_counter() - began)
        began = time.perf_counter()
        algorithm.round(state, clients.at("round", FIRST))
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        states = plain_round(networks, judges, list(x), descent.batches, work)
        theirs.append(time.perf_counter() - began)
    ends = torch.stack([task.layout.flatten(module_with(networks[0], each)) for each in states])
    difference = float((ends - expected).abs().max() / expected.abs().max())
    loop, coterie = statistics.median(theirs), statistics.median(ours)
    found = [f"{loop:.3f}", f"{coterie:.3f}", f"{loop / coterie:.1f}", f"{difference:.0e}"]
    if not isinstance(work.network, RealNvp):
        return [*found, "", ""]
    count = product_operations(task, work, sum(len(each) for each in descent.batches))
    least = count / (2 * SIZE**3) * statistics.median(products)
    return [*found, f"{count / 1e9:.1f}", f"{least:.3f}"]


def product_operations(task: Density, work: Work, steps: int) -> int:
    """Those of the matrix products of a round: all samples under all models, and the steps."""
    weights = sum(p.numel() for p in task.module.parameters() if p.dim() == 2)
    forwards = 2 * weights * work.number * work.samples * work.number
    return forwards + 3 * 2 * weights * work.batch * steps


def plain_round(
    networks: list[nn.Module],
    judges: list[nn.Module],
    clients: list[Tensor],
    batches: list[Tensor],
    work: Work,
) -> list[dict[str, Tensor]]:
    """One of the tau rounds, client by client and cluster by cluster: the new states.

    `batches` are the rows that the steps take [steps, b], -1 for none, of each client's sets in
    turn that are not empty.
    """
    k, left = len(networks), iter(batches)
    local = copy.deepcopy(networks[0])
    sums = [{n: torch.zeros_like(v) for n, v in net.state_dict().items()} for net in networks]
    counts = [0] * k
    for x in clients:
        with torch.no_grad():
            nearest = torch.stack([judge(x) for judge in judges]).argmax(0)
        for j, network in enumerate(networks):
            own = x[nearest == j]
            if not len(own):
                continue
            local.load_state_dict(network.state_dict())
            optimiser = OPTIMISERS[work.rule](local.parameters(), lr=work.lr)
            for step in next(left):
                rows = step[step >= 0]
                optimiser.zero_grad()
                (-local(own[rows]).mean()).backward()
                optimiser.step()
            counts[j] += len(own)
            for name, value in local.state_dict().items():
                sums[j][name] += len(own) * value
    return [
        {name: value / count for name, value in total.items()} if count else network.state_dict()
        for total, count, network in zip(sums, counts, networks, strict=True)
    ]


def module_of(task: Density, model: Tensor) -> nn.Module:
    """The network with the tensors of a model [d]."""
    return module_with(task.module, task.layout.unflatten(model))


def module_with(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A copy of a network with other tensors."""
    other = copy.deepcopy(module)
    other.load_state_dict(tensors, strict=False)
    return other.train()


if __name__ == "__main__":
    main()
