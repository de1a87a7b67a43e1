"""What replies must look like follows from the roles of their fields and from each other."""

import functools
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie import FedAvg, FeSEM, KFed, OneShot
from coterie.channel.lost_replies import LoseReplies
from coterie.checks import short_run, small_federation
from coterie.core.algorithm import Traits
from coterie.core.clients import Call, Stacked, on_client
from coterie.core.errors import CoterieError, SettingError
from coterie.core.fields import Cluster, Loss, Model, Size
from coterie.core.state import state_tensors
from coterie.flower.outliers import OutlierFilter
from coterie.flower.replies import NodeReply
from coterie.flower.step_exchange import StepExchange, upload_type
from coterie.flower.wire import BadPacket, Packet
from coterie.vectors.folds import ByCluster, WeightedRows
from tests.flower.fake import DIGITS, deployed, edited
from tests.flower.small import SIZES, SmallApp, SmallGrid, run_over

UNUSUAL = {
    "fesem-k-chosen": FeSEM(k=0, k_most=2, k_rounds=1),
    "fesem-some-samples": FeSEM(k=2, kept=0.7, weighting="size"),
    "one-shot-some-samples": OneShot(k=2, fits=2, kept=0.6, weighting="size"),
    "k-fed-more-clusters-than-clients": KFed(k=12, k_local=3),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_sizes_and_clusters_are_known_by_their_role(name, tmp_path):
    app = SmallApp(UNUSUAL[name], network={"patience": 5.0}, rounds=2)
    run = run_over(SmallGrid(app, tmp_path), app)
    simulated = short_run(UNUSUAL[name], small_federation(SIZES), rounds=2)
    assert {record["refused"] for record in run.records} == {0}
    for path, value in state_tensors(simulated.state).items():
        torch.testing.assert_close(state_tensors(run.state)[path], value, rtol=1e-9, atol=1e-9)


class Answer(NamedTuple):
    home: Cluster  # [m]
    weights: Model  # [m, 3]
    rows: Size  # [m]
    regret: Loss  # [m, 2]


class Method:
    @on_client
    def act(self, cohort: object, models: Tensor) -> Answer: ...

    @on_client
    def undeclared(self, cohort: object): ...


IDS, ENROLLED = torch.tensor([0, 2, 3]), torch.tensor([5, 5, 6, 7])
GOOD = {
    "home": torch.tensor([0, 1, 4]),
    "weights": torch.rand(3, 3),
    "rows": torch.tensor([5, 1, 7]),
    "regret": torch.tensor([[0.1, torch.inf]] * 3),
}


def exchange(fold=None):
    call = Call(Method().act, IDS, 0, (0, "round", 0, 0), {"models": torch.zeros(5, 3)})
    return StepExchange(call, fold or Stacked(), ENROLLED)


def reply(**change):
    tensors = {**GOOD, **change}
    header = {"fields": list(tensors), "kept": False, "lost": [], "seconds": 0.1, "startup": 0.0}
    return Packet(header, tensors)


def test_a_reply_that_can_be_true_is_read():
    found = exchange().read(IDS, reply())
    assert torch.equal(found.upload.home, GOOD["home"])
    assert torch.equal(found.ids, IDS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"home": torch.tensor([0, -1, 1])}, "home of Method.act must be one whole number"),
        ({"home": torch.tensor([0.0, 1.0, 1.0])}, "one whole number"),
        ({"home": torch.tensor([[0], [1], [1]])}, "one whole number"),
        ({"rows": torch.tensor([5, 0, 7])}, "rows of Method.act must be at least 1 and at most"),
        ({"rows": torch.tensor([5, 6, 8])}, "at most the samples"),
        ({"weights": torch.full((3, 3), torch.nan)}, "weights of Method.act is not finite"),
        ({"regret": torch.full((3, 2), torch.nan)}, "regret of Method.act is not finite"),
        ({"weights": torch.rand(4, 3)}, "must have 3 rows"),
        ({"weights": torch.tensor(1.0)}, "must have 3 rows"),
        ({"more": torch.rand(3)}, "returns home, weights, rows, regret, got"),
    ],
)
def test_a_reply_that_cannot_be_true_is_refused(change, says):
    with pytest.raises(BadPacket, match=says):
        exchange().read(IDS, reply(**change))


def test_there_are_as_many_clusters_as_the_fold_has():
    last = reply(home=torch.tensor([0, 1, 4]))
    assert exchange().read(IDS, last).upload.home.tolist() == [0, 1, 4]
    with pytest.raises(BadPacket, match="knows 3 clusters, got another"):
        exchange(ByCluster(3, {"weights": "models"})).read(IDS[:2], reply_for(2, last))


@pytest.mark.parametrize(("declared", "rows", "count"), [(2, 5, 2), (0, 5, 5), (0, 1, 4)])
def test_without_a_fold_what_is_declared_counts_then_rows_and_clients(declared, rows, count):
    @dataclass(frozen=True)
    class Declared(Method):
        traits: ClassVar[Traits] = Traits(clusters="groups")
        groups: int = declared

    call = Call(Declared().act, IDS, 0, (0, "round", 0, 0), {"models": torch.zeros(rows, 3)})
    asking = StepExchange(call, Stacked(), ENROLLED)
    last = torch.tensor([0, 0, count - 1])
    assert torch.equal(asking.read(IDS, reply(home=last)).upload.home, last)
    for beyond in (count, 10**18):
        with pytest.raises(BadPacket, match=f"knows {count} clusters, got another"):
            asking.read(IDS, reply(home=torch.tensor([0, 0, beyond])))


def reply_for(count, packet):
    """The reply of the last clients only."""
    return packet._replace(tensors={n: v[-count:] for n, v in packet.tensors.items()})


def node_reply(ids, **change):
    rows = {name: value[: len(ids)] for name, value in {**GOOD, **change}.items()}
    return NodeReply(torch.tensor(ids), Answer(**rows))


def test_the_shape_and_type_of_most_clients_are_right():
    double, long = torch.rand(3, 3).double(), torch.rand(3, 4)
    replies = [
        node_reply([0, 1], weights=double),
        node_reply([2, 4, 5]),
        node_reply([6], weights=long),
    ]
    left, refused = exchange().sift(replies, OutlierFilter(50.0))
    assert [each.ids.tolist() for each in left] == [[2, 4, 5]]
    assert sorted(refused) == [0, 1, 6]
    assert "weights of Method.act is [3] of torch.float64, unlike that of most" in refused[0]


def test_models_are_judged_by_their_size_and_other_fields_are_not():
    large = 1e4 * GOOD["weights"]
    far = node_reply([4, 5, 6], regret=1e6 * torch.ones(3, 2))
    left, refused = exchange().sift([node_reply([1, 2, 3]), far], OutlierFilter(50.0))
    assert refused == {}
    mixed = large.clone()
    mixed[1:] = GOOD["weights"][1:]
    left, refused = exchange().sift(
        [node_reply([1, 2, 3]), node_reply([4, 5, 6], weights=mixed)], OutlierFilter(50.0)
    )
    assert list(refused) == [4]
    assert [each.ids.tolist() for each in left] == [[1, 2, 3], [5, 6]]


def test_what_a_node_folded_is_judged_by_the_means_of_its_clusters():
    fold, sent = ByCluster(1, {"weights": "models"}), {"models": torch.ones(1, 3)}
    call = Call(Method().act, IDS, 0, (0,), sent)
    replies = []
    for node, factor in enumerate([1.0, 1.2, 0.9, 500.0]):
        answer = Answer(
            torch.zeros(3, dtype=torch.long), factor * torch.ones(3, 3), *([GOOD["rows"]] * 2)
        )
        ids = 3 * node + torch.arange(3)
        replies.append(NodeReply(ids, total=fold.add(fold.start(), ids, answer, sent)))
    left, refused = StepExchange(call, fold, ENROLLED).sift(replies, OutlierFilter(50.0))
    assert list(refused) == [9, 10, 11]
    assert len(left) == 3


def test_a_step_must_say_what_it_returns():
    with pytest.raises(CoterieError, match=r"Method.undeclared must say which named tuple"):
        upload_type(Method().undeclared)
    assert upload_type(FedAvg().train)._fields


def test_the_last_refusal_is_named_when_a_run_ends(tmp_path):
    def empty_sizes(header, tensors):
        if "size" in tensors:
            tensors["size"] = 0 * tensors["size"]

    words = ["one-shot", *DIGITS, "k=2", "rounds=2"]
    bad = functools.partial(edited, edit=empty_sizes)
    with pytest.raises(
        CoterieError, match=r"all nodes reply with what is refused: size of OneShot.f"
    ):
        deployed(tmp_path, words, dict.fromkeys((1, 2, 3), bad))
    (tmp_path / "two").mkdir()
    with pytest.raises(
        CoterieError, match=r"4 of 6 clients .* the last that failed replied with what"
    ):
        deployed(tmp_path / "two", words, {3: bad}, quorum=1.0, patience=0.3)


@dataclass(frozen=True)
class Own(ByCluster):
    """A fold that nodes do not know."""


@dataclass(frozen=True)
class Drop:
    """A filter that nodes do not know."""

    def apply(self, call, ids, upload):
        return ids[:0], upload


@pytest.mark.parametrize(
    ("fold", "channel", "refused"),
    [
        (ByCluster(5, {"weights": "models"}), (), False),
        (ByCluster(5, {"weights": "models"}), (LoseReplies(0.1),), False),
        (WeightedRows(5, "regret", {"weights": "models"}), (), False),
        (Stacked(), (Drop(),), False),  # what a start asks for is another matter
        (Own(5, {"weights": "models"}), (), True),
        (ByCluster(5, {"weights": "models"}), (Drop(),), True),
    ],
    ids=["sums", "lost", "rows", "start", "own fold", "own channel"],
)
def test_what_is_withheld_is_added_up_on_nodes_or_refused(fold, channel, refused):
    models = torch.zeros(5, 3)
    call = Call(Method().act, IDS, 0, (0, "round", 0, 0), {"models": models}, channel=channel)
    for withheld in (False, True):
        asked = call._replace(withheld=withheld)
        if refused and withheld:
            with pytest.raises(SettingError, match=r"over a network where Method.act .* add up"):
                StepExchange(asked, fold, ENROLLED)
            continue
        folds = StepExchange(asked, fold, ENROLLED).folds(IDS[:1])
        assert folds == (withheld and not isinstance(fold, Stacked))
