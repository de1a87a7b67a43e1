import numpy as np
import pytest
import torch
from torch import nn

from coterie import FedAvg, Regression
from coterie.core.errors import CheckpointError
from coterie.data.federation import Samples
from coterie.experiment.checkpoint import (
    Checkpoint,
    json_digest,
    load_checkpoint,
    run_fingerprint,
    samples_fingerprint,
    save_checkpoint,
)
from coterie.experiment.settings import RunSettings
from tests.algorithms.lines import line

TENSORS = {
    "state.models": torch.randn(2, 3),
    "empty": torch.zeros(0, 4),
    "number": torch.tensor(7),
    "known": torch.tensor([True, False]),
    "expanded": torch.ones(3).expand(2, 3),
}


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path):
    save_checkpoint(tmp_path / "c", Checkpoint(5, "run", TENSORS, {"bytes": [1, "two"]}))
    back = load_checkpoint(tmp_path / "c", "run")
    assert back.rounds == 5
    assert back.notes == {"bytes": [1, "two"]}
    for name, tensor in TENSORS.items():
        assert torch.equal(back.tensors[name], tensor)
        assert back.tensors[name].dtype == tensor.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("length", range(0, 64, 8))
def test_what_comes_back_is_aligned_as_what_was_computed(tmp_path, length):
    """As it was, a resumed run of an LSTM ended one bit off: its sums began at other addresses."""
    save_checkpoint(tmp_path / "c", Checkpoint(5, "run", TENSORS, {"text": "x" * length}))
    for tensor in load_checkpoint(tmp_path / "c", "run").tensors.values():
        assert tensor.data_ptr() % 64 == torch.ones(tensor.shape).data_ptr() % 64


def test_any_flipped_bit_is_noticed(tmp_path):
    save_checkpoint(tmp_path / "c", Checkpoint(5, "run", TENSORS, {}))
    whole = (tmp_path / "c").read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        broken = bytearray(whole)
        broken[place] ^= 1
        (tmp_path / "c").write_bytes(broken)
        with pytest.raises(CheckpointError):
            load_checkpoint(tmp_path / "c", "run")


def test_a_checkpoint_that_is_cut_off_is_refused(tmp_path):
    save_checkpoint(tmp_path / "c", Checkpoint(5, "run", TENSORS, {}))
    whole = (tmp_path / "c").read_bytes()
    for length in (0, 4, len(whole) // 2, len(whole) - 1):
        (tmp_path / "c").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="is damaged"):
            load_checkpoint(tmp_path / "c", "run")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    save_checkpoint(tmp_path / "c", Checkpoint(5, "one run", TENSORS, {}))
    with pytest.raises(CheckpointError, match="belongs to another run"):
        load_checkpoint(tmp_path / "c", "other run")


def test_samples_of_any_kind_have_a_fingerprint_of_their_own():
    words, tags = [[1, 2, 3], [4]], [[0, 1, 0], [1]]
    clients = {
        "tags": [(words, tags)],
        "other words": [([[1, 2, 3], [5]], tags)],
        "other tags": [(words, [[0, 1, 0], [0]])],
        "other lengths": [([[1, 2], [3, 4]], [[0, 1], [0, 1]])],
        "one label": [(words, [0, 1])],
        "an input": [({"words": words}, tags)],
        "another input": [({"text": words}, tags)],
        "two inputs": [({"words": words, "age": np.zeros(2)}, tags)],
        "other ages": [({"words": words, "age": np.ones(2)}, tags)],
        "hard": [(np.zeros((2, 3)), [0, 1])],
        "soft": [(np.zeros((2, 3)), np.eye(2))],
        "softer": [(np.zeros((2, 3)), np.full((2, 2), 0.5))],
    }
    found = {name: json_digest(samples_fingerprint(Samples.of(c))) for name, c in clients.items()}
    assert len(set(found.values())) == len(clients)
    again = json_digest(samples_fingerprint(Samples.of(clients["tags"])))
    assert again == found["tags"]


def test_a_run_with_other_frozen_weights_is_another_run():
    def build():
        return nn.Sequential(nn.Linear(1, 2).requires_grad_(False), nn.Linear(2, 1))

    def fingerprint(network):
        return run_fingerprint(FedAvg(), RunSettings(), Regression(network), line([1, 2]))

    assert fingerprint(build) == fingerprint(build)
    torch.manual_seed(1)
    brought = build()
    assert fingerprint(brought) != fingerprint(build)
    before = fingerprint(brought)
    brought[1].weight.data += 1  # where models begin does not matter to one who goes on
    assert fingerprint(brought) == before
