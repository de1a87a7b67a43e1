import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie import IFCA, simulate
from coterie.checks import small_task
from coterie.core.algorithm import Serving
from coterie.evaluation.probabilities import sum_probabilities
from coterie.evaluation.quality import chunk_sums
from coterie.flower.quality import QualityExchange, join_quality, split_quality
from coterie.flower.wire import BadPacket, Packet
from tests.flower.fake import metrics_alike
from tests.flower.small import SmallApp, SmallGrid, run_over

IDS = torch.tensor([4, 7])
SERVING = Serving(torch.zeros(2, 5), IDS, torch.tensor([0, 1]))


def node_sums():
    """What the node of two clients with three samples each may send."""
    task, generator = small_task(), torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 3, generator=generator)
    labels, inside = torch.tensor([[0, 1, 2], [2, 2, 1]]), torch.ones(2, 3, dtype=torch.bool)
    log_p = logits.double().flatten(0, 1).log_softmax(1)
    found = sum_probabilities(log_p.exp(), log_p, labels.flatten(), torch.tensor([3, 3]))
    scores = task.score(logits, labels, inside)
    return chunk_sums(task, torch.cat([scores, scores], 1), SERVING.cluster, 2, found, True)


def exchange():
    models = Packet({"tune": False}, {"models": SERVING.models})
    return QualityExchange(
        lambda ids: models,
        small_task(),
        SERVING,
        torch.zeros(3),
        None,
        tune=False,
        groups=2,
    )


def reply(**change):
    tensors = {n: v for n, v in (split_quality(node_sums()) | change).items() if v is not None}
    header = {"fields": list(tensors), "kept": False, "lost": [], "seconds": 0.1, "startup": 0.0}
    return Packet(header, tensors)


def test_sums_come_back_as_they_were_sent():
    sent = node_sums()
    found = exchange().read(IDS, reply()).upload.sums()
    for one, two in zip(split_quality(found).items(), split_quality(sent).items(), strict=True):
        assert one[0] == two[0]
        torch.testing.assert_close(one[1], two[1])
    assert join_quality(split_quality(sent)).constant.clients.tolist() == [2]


def test_the_message_names_groups_only_where_there_are_some():
    asked = exchange()
    assert asked.contents(IDS[1:]).tensors["group"].tolist() == [1]
    asked.groups = 1
    assert "group" not in asked.contents(IDS).tensors


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"clients": torch.tensor([2, 1])}, "at most 2 together"),
        ({"clients": torch.tensor([2])}, "2 whole numbers"),
        ({"scores": torch.ones(1, 11)}, "2 rows"),
        ({"histogram": torch.zeros(3, 2, 7, dtype=torch.long)}, "histogram must be"),
        ({"histogram": torch.zeros(3, 2, 1000, dtype=torch.long)}, "of the same samples"),
        ({"confusion": -torch.ones(3, 3, dtype=torch.long)}, "must not be negative"),
        ({"confidence": torch.zeros(15, 3, dtype=torch.long)}, "real numbers"),
        ({"log_loss": torch.tensor([torch.nan], dtype=torch.float64)}, "a number"),
        ({"curve": None}, "score returns scores, clients"),
        ({"constant_total": torch.zeros(4, dtype=torch.float64)}, "the constant"),
    ],
    ids=str,
)
def test_sums_that_clients_cannot_have_made_are_refused(change, says):
    with pytest.raises(BadPacket, match=says):
        exchange().read(IDS, reply(**change))


@pytest.mark.parametrize("settings", [{}, {"withhold": "clusters"}, {"metric": "auc"}], ids=str)
def test_nodes_tell_what_is_told_here(tmp_path, settings):
    app = SmallApp(IFCA(k=2, start="random"), rounds=2, **settings)
    there = run_over(SmallGrid(app, tmp_path), app)
    here = simulate(IFCA(k=2, start="random"), app.federation, app.task, rounds=2, **settings)
    assert metrics_alike(there.metrics, here.metrics)
    assert metrics_alike(there.result["baseline"], here.result["baseline"])
    (one,), (two,) = (run.training.outcome.quality.values() for run in (there, here))
    assert one.details["binned"]
    assert not two.details["binned"]
    assert one.details["confusion"] == two.details["confusion"]
    for mine, other in zip(one.groups, two.groups, strict=True):
        assert mine["clients"] == other["clients"]
        assert mine["metrics"]["loss"] == pytest.approx(other["metrics"]["loss"], rel=1e-5)
    assert bool(one.groups) == (settings != {"withhold": "clusters"})
    off = abs(there.metrics["auc"] - here.metrics["auc"])
    assert off <= one.details["auc_error"] + 1e-9
    if settings == {"metric": "auc"}:
        assert all("auc" in record["metrics"] for record in there.records)
