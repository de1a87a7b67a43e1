"""Nodes say what their samples are like; a run over them is the simulated one."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie import Classification, shelves
from coterie.core.sample_kinds import PartKind, sample_kinds
from coterie.core.samples import Inputs, Ragged
from coterie.core.settings import Settings, setting
from coterie.data.federation import Samples
from coterie.flower.sample_kinds import decode_kinds, encode_kinds, made_up_samples
from coterie.flower.wire import BadPacket
from tests.flower.fake import alike, deployed, metrics_alike, simulated
from tests.tasks.taggers import (
    LstmTagger,
    TransformerClassifier,
    TwoInputs,
    labelled_federation,
    soft_federation,
    tagging_federation,
    two_input_federation,
)


@dataclass(frozen=True, kw_only=True)
class OwnFederation(Settings):
    """A federation of a user's own."""

    kind: str = setting("tags", "which samples it has")
    suggests: ClassVar = {"network": "own-network", "lr": 0.5, "steps": 2, "rounds": 2}

    def build(self, seed):
        kinds = {
            "tags": tagging_federation,
            "two": two_input_federation,
            "labels": labelled_federation,
            "soft": soft_federation,
        }
        return kinds[self.kind]([3, 5, 2, 4, 6, 3], seed)


@dataclass(frozen=True, kw_only=True)
class OwnNetwork(Settings):
    """The network that the samples need."""

    padding: ClassVar[str] = "lengths"

    def module(self, shape, outputs):
        if isinstance(shape, dict):
            return TwoInputs(outputs)
        return LstmTagger(tags=outputs)


@dataclass(frozen=True, kw_only=True)
class OwnTransformer(Settings):
    """A network that is told of padding by a mask."""

    padding: ClassVar[str] = "mask"

    def module(self, shape, outputs):
        return TransformerClassifier(outputs)


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setitem(shelves.FEDERATIONS, "own-data", OwnFederation)
    monkeypatch.setitem(shelves.NETWORKS, "own-network", OwnNetwork)
    monkeypatch.setitem(shelves.NETWORKS, "own-transformer", OwnTransformer)


@pytest.mark.parametrize(
    "words",
    [
        ["ifca", "own-data", "k=2", "start=random"],
        ["ditto", "own-data", "batch=2"],
        ["fedavg", "own-data", "kind=two"],
        ["fedavg", "own-data", "kind=soft", "batch=3"],
        ["ifca", "own-data", "kind=labels", "network=own-transformer", "k=2", "start=random"],
    ],
    ids=lambda words: " ".join(words[:3:2]),
)
def test_a_run_over_a_network_is_the_simulated_one_for_samples_of_any_kind(own, tmp_path, words):
    one, other = deployed(tmp_path, words), simulated(words)
    alike(one, other)
    assert metrics_alike(one.metrics, other.metrics, 1e-5)
    assert (tmp_path / "run" / "report.html").exists()


KINDS = {
    "tensor": (torch.zeros(2, 3, 4), torch.tensor([0, 1])),
    "bytes": (torch.zeros(2, 3, dtype=torch.uint8), torch.tensor([0.5, 1.0])),
    "soft": (torch.zeros(2, 3), torch.full((2, 5), 0.2)),
    "tags": (Ragged.of([[1, 2], [3]]), Ragged.of([[0, 1], [1]])),
    "vectors": (Ragged(torch.zeros(4, 6), torch.tensor([0, 1, 4])), torch.tensor([0, 1])),
    "fixed tags": (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long)),
    "inputs": (
        Inputs({"image": torch.zeros(2, 4, 4), "words": Ragged.of([[1], [2, 3]])}),
        torch.tensor([0, 1]),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_made_up_samples_are_like_those_that_were_described(name):
    x, y = KINDS[name]
    inputs, target = decode_kinds(encode_kinds(Samples(x, y, torch.tensor([0, 2]))))
    assert (inputs, (target,)) == (sample_kinds(x), sample_kinds(y))
    made = made_up_samples(inputs, target)
    assert (sample_kinds(made.x), sample_kinds(made.y)) == (inputs, (target,))
    assert made.sizes.tolist() == [2]
    if isinstance(made.y, Ragged):
        assert torch.equal(made.x.lengths, made.y.lengths)
    if name == "soft":
        Classification(torch.nn.Linear(3, 5)).check_samples(made.x, made.y)


GOOD = {"name": "", "shape": [3], "type": "int64", "ragged": False}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (None, "what its samples and its targets are like"),
        ({"x": [GOOD]}, "what its samples and its targets are like"),
        ({"x": [], "y": [GOOD]}, "what its samples and its targets are like"),
        ({"x": ["text"], "y": [GOOD]}, "what its samples and its targets are like"),
        ({"x": [{**GOOD, "ragged": 1}], "y": [GOOD]}, "what its samples and its targets are like"),
        ({"x": [{**GOOD, "shape": [0]}], "y": [GOOD]}, "which shape"),
        ({"x": [{**GOOD, "shape": [True]}], "y": [GOOD]}, "which shape"),
        ({"x": [{**GOOD, "type": "object"}], "y": [GOOD]}, "of which type"),
        ({"x": [{**GOOD, "type": ["int64"]}], "y": [GOOD]}, "of which type"),
        ({"x": [GOOD], "y": [GOOD, GOOD]}, "name every input"),
        ({"x": [GOOD, {**GOOD, "name": "a"}], "y": [GOOD]}, "name every input"),
        ({"x": [{**GOOD, "name": "a"}] * 2, "y": [GOOD]}, "name every input"),
    ],
)
def test_an_impossible_description_is_refused(raw, says):
    with pytest.raises(BadPacket, match=says):
        decode_kinds(raw)


def test_a_kind_says_what_it_is():
    assert str(PartKind("a", (2, 3), torch.float32, True)) == "a: sequences of 2 x 3 float32"
