"""A node with many clients sends one sum, and what the fold tells of each of them."""

from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie import IFCA, UIFCA, FedAvg, FeSEM
from coterie.checks import short_run, small_federation
from coterie.core.clients import Stacked
from coterie.core.fields import Cluster, Loss, Model, Size, Statistic
from coterie.core.state import state_tensors
from coterie.flower.clients import Network
from coterie.flower.folded import CLUSTER, folds_on_nodes, read_sums, sums_to_send
from coterie.flower.wire import BadPacket, Packet
from coterie.vectors.folds import ByCluster, WeightedRows
from tests.flower.small import SmallApp, SmallGrid, run_over

CASES = {
    "fedavg": FedAvg(steps=2),
    "fedavg-by-size": FedAvg(steps=2, weighting="size"),
    "ifca": IFCA(k=2, start="random"),
    "ifca-gradients": IFCA(k=2, start="random", average="gradients", weighting="size"),
    "fesem": FeSEM(k=2),
}


def uploads(algorithm, folder, clients, **settings):
    """What a node with so many clients uploads in round 2, the run, and the simulated run."""
    sizes = [4 + i % 5 for i in range(clients)]
    app = SmallApp(algorithm, sizes, {"nodes": 1}, rounds=2, **settings)
    grid = SmallGrid(app, folder, nodes=1)
    run = run_over(grid, app)
    found = [t for _, header, t in grid.uploaded if header["trains"] and "round" in header]
    return found[-1], run, short_run(algorithm, small_federation(sizes), rounds=2, **settings)


def byte_count(tensors):
    return {name: value.numel() * value.element_size() for name, value in tensors.items()}


@pytest.mark.parametrize("name", CASES)
def test_what_a_node_sends_does_not_grow_with_its_clients(name, tmp_path):
    few, _, _ = uploads(CASES[name], tmp_path / "few", 50)
    many, run, simulated = uploads(CASES[name], tmp_path / "many", 100)
    few, many = byte_count(few), byte_count(many)
    told = (few.pop(CLUSTER, 0), many.pop(CLUSTER, 0))
    assert few == many
    assert told == ((0, 0) if name.startswith("fedavg") else (50, 100)), "one byte per client"
    size = run.task.layout.size
    k = 1 if name.startswith("fedavg") else 2
    assert sum(many.values()) == 8 * k * (1 + size), "a weight and a sum for each cluster"
    for path, value in state_tensors(simulated.state).items():
        torch.testing.assert_close(state_tensors(run.state)[path], value, rtol=1e-9, atol=1e-9)


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that is made, but for those made `elsewhere`."""

    def __init__(self):
        super().__init__()
        self.numbers, self.elsewhere = 0, False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if not self.elsewhere:
            sizes = [each.numel() for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
            self.numbers = max([self.numbers, *sizes])
        return made


def largest_on_server(algorithm, folder, clients, monkeypatch):
    """The numbers of the largest tensor that the server makes in rounds, and of a model."""
    largest, collect, answer = LargestTensor(), Network.collect, SmallGrid.answer

    def watched(self, call, fold):
        with largest if call.address[1] == "round" else nullcontext():
            return collect(self, call, fold)

    def on_node(self, node, message):
        largest.elsewhere = True
        try:
            return answer(self, node, message)
        finally:
            largest.elsewhere = False

    with monkeypatch.context() as patch:
        patch.setattr(Network, "collect", watched)
        patch.setattr(SmallGrid, "answer", on_node)
        _, run, _ = uploads(algorithm, folder, clients)
    return largest.numbers, run.task.layout.size


@pytest.mark.parametrize("name", CASES)
def test_what_the_server_holds_does_not_grow_with_the_clients_of_a_node(
    name, tmp_path, monkeypatch
):
    few, _ = largest_on_server(CASES[name], tmp_path / "few", 10, monkeypatch)
    many, size = largest_on_server(CASES[name], tmp_path / "many", 40, monkeypatch)
    assert size <= few == many


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_the_meter_counts_what_crossed(name, tmp_path):
    tensors, run, simulated = uploads(CASES[name], tmp_path, 100)
    assert run.records[-1]["bytes_up"] == sum(byte_count(tensors).values())
    assert run.records[-1]["bytes_up"] < simulated.records[-1]["bytes_up"] / 20


def test_replies_lost_in_the_channel_are_lost_before_they_are_folded(tmp_path):
    _, run, simulated = uploads(CASES["ifca"], tmp_path, 100, lost=0.3)
    assert [r["answered"] for r in run.records] == [r["answered"] for r in simulated.records]
    assert run.records[0]["answered"] < 100
    for path, value in state_tensors(simulated.state).items():
        torch.testing.assert_close(state_tensors(run.state)[path], value, rtol=1e-9, atol=1e-9)


class Upload(NamedTuple):
    cluster: Cluster
    model: Model
    size: Size


IDS, SIZES = torch.tensor([3, 4, 9]), torch.tensor([5, 6, 7])
SENT = {"models": torch.zeros(2, 4)}
UPLOAD = Upload(torch.tensor([1, 0, 1]), torch.arange(12.0).view(3, 4), SIZES)
EQUAL, BY_SIZE, BLIND = (
    ByCluster(2, {"model": "models"}, by_size=by_size, withheld=withheld)
    for by_size, withheld in ((False, False), (True, False), (False, True))
)


def sums(fold):
    return sums_to_send(fold, fold.add(fold.start(), IDS, UPLOAD, SENT))


@pytest.mark.parametrize("fold", [EQUAL, BY_SIZE, BLIND])
def test_sums_arrive_as_they_were_sent(fold):
    total = read_sums(fold, SENT, IDS, SIZES, Packet({}, sums(fold)))
    result = fold.finish(total, SENT)
    expected = fold.finish(fold.add(fold.start(), IDS, UPLOAD, SENT), SENT)
    assert torch.equal(result.mean("model"), expected.mean("model"))
    if fold.withheld:
        assert CLUSTER not in sums(fold)
        assert result.cluster is None
    else:
        assert result.cluster.tolist() == [1, 0, 1]
        assert sums(fold)[CLUSTER].dtype == torch.uint8


@pytest.mark.parametrize("fold", [EQUAL, BY_SIZE, BLIND])
@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("model", lambda t: t[:, 1:], "must be"),
        ("model", lambda t: t.float(), "must be"),
        ("model", lambda t: t * torch.nan, "not finite"),
        ("weight", lambda t: -t, "negative"),
        ("weight", lambda t: 1000 * t, "not those of its clients"),
        (CLUSTER, lambda t: t + 1, "another"),
        (CLUSTER, lambda t: t[1:], "which cluster"),
        (CLUSTER, lambda t: t.float(), "which cluster"),
        ("model", None, "is missing"),
    ],
)
def test_sums_that_clients_cannot_have_made_are_refused(fold, name, change, says):
    sent = sums(fold)
    if name not in sent:
        return
    tensors = {n: v for n, v in sent.items() if change or n != name}
    if change:
        tensors[name] = change(sent[name])
    with pytest.raises(BadPacket, match=says):
        read_sums(fold, SENT, IDS, SIZES, Packet({}, tensors))


def test_a_node_folds_where_that_is_less():
    assert not folds_on_nodes(Stacked(), Upload, SENT, 1000)
    # A client sends 4 numbers of 4 bytes, its cluster and its size: 32; the sums are 2 * 5 * 8 = 80
    # bytes, and one for each client.
    assert [folds_on_nodes(EQUAL, Upload, SENT, n) for n in (1, 2, 3, 100)] == [0, 0, 1, 1]
    assert folds_on_nodes(BLIND, Upload, SENT, 1), "the server is not to see single clients"


class Measured(NamedTuple):
    size: Statistic
    loss: Loss


def test_what_is_measured_per_cluster_is_folded_where_that_is_less():
    # Of each of 3 clusters a client sends a size and 5 numbers, of which the 5 are counted, of 4
    # bytes: 60. The sums are 3 (1 + 5) of 8 bytes: 144.
    fold = WeightedRows(3, "size", updates={"loss": 5})
    assert [folds_on_nodes(fold, Measured, {}, n) for n in (1, 2, 3, 100)] == [0, 0, 1, 1]
    upload = Measured(torch.rand(3, 3), torch.randn(3, 3, 5))
    total = fold.add(fold.start(), IDS, upload, {})
    read = read_sums(fold, {}, IDS, SIZES, Packet({}, sums_to_send(fold, total)))
    assert torch.equal(fold.finish(read, {}).sum("loss"), fold.finish(total, {}).sum("loss"))
    with pytest.raises(BadPacket, match=r"must be \[3, 5\]"):
        read_sums(fold, {}, IDS, SIZES, Packet({}, {**total.terms, "loss": torch.zeros(3, 4)}))


@pytest.mark.parametrize("fit", ["descent", "exact"])
def test_sets_of_samples_are_summed_on_nodes(fit, tmp_path):
    algorithm = UIFCA(k=2, fit=fit, restarts=1, steps=2, fit_rounds=1)
    few, _, _ = uploads(algorithm, tmp_path / "few", 20)
    many, run, simulated = uploads(algorithm, tmp_path / "many", 40)
    assert byte_count(few) == byte_count(many), "it does not grow with the clients"
    for path, value in state_tensors(simulated.state).items():
        torch.testing.assert_close(state_tensors(run.state)[path], value, rtol=1e-9, atol=1e-9)
