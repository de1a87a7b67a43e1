import pytest
import torch

from coterie.core.errors import CheckpointError
from coterie.experiment.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

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
