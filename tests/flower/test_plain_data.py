"""Folds and filters cross as plain data, and nothing else can be made of it."""

import json
from dataclasses import dataclass

import pytest
import torch

from coterie.channel.lost_replies import LoseReplies
from coterie.core.clients import Stacked
from coterie.flower.plain_data import can_cross, decode_plain, encode_plain
from coterie.flower.wire import BadPacket
from coterie.vectors.folds import ByCluster, NearestCentre, RowSent, WeightedRows

VALUES = [
    ByCluster(3, {"model": "models"}, by_size=True),
    ByCluster(2, {"model": "model"}, {"trunk": "trunk"}, assign=RowSent("model"), withheld=True),
    WeightedRows(4, "share", {"models": "models"}),
    LoseReplies(0.25),
]


@pytest.mark.parametrize("value", VALUES)
def test_what_is_known_is_made_anew(value):
    assert can_cross(value)
    tensors = {}
    raw = json.loads(json.dumps(encode_plain(value, "fold", tensors)))
    assert decode_plain(raw, tensors) == value
    assert not tensors


def test_tensors_cross_beside():
    centres, part = torch.rand(2, 3), torch.tensor([True, False, True])
    fold, tensors = ByCluster(2, assign=NearestCentre("model", centres, part)), {}
    raw = encode_plain(fold, "fold", tensors)
    made = decode_plain(json.loads(json.dumps(raw)), tensors)
    assert torch.equal(made.assign.centres, centres)
    assert torch.equal(made.assign.part, part)


@dataclass(frozen=True)
class Mine:
    k: int = 1


def test_what_is_not_on_the_list_does_not_cross():
    assert not can_cross(Mine())
    assert not can_cross(Stacked())
    assert not can_cross(ByCluster(2, assign=Mine()))


RAW = encode_plain(VALUES[0], "fold", {})


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ([1], "not plain"),
        ({"kind": "Popen", "settings": {}}, "knows nothing of the kind 'Popen'"),
        ({"tensor": "none"}, "knows nothing"),
        ({**RAW, "settings": {}}, "other settings"),
        ({**RAW, "settings": {**RAW["settings"], "k": "2"}}, "must be int"),
        ({**RAW, "settings": {**RAW["settings"], "by_size": 1}}, "must be bool"),
        ({**RAW, "settings": {**RAW["settings"], "more": 1}}, "other settings"),
        ({**RAW, "more": 1}, "knows nothing"),
    ],
)
def test_anything_else_is_refused(raw, says):
    with pytest.raises(BadPacket, match=says):
        decode_plain(raw, {})
