"""Files of tensors."""

import os

import pytest
import torch
from safetensors.torch import save_file

from coterie.core.errors import CheckpointError
from coterie.prediction.kept_models import read_models
from coterie.tensors.digest import content_digest, read_tensors


def test_a_file_is_read_as_it_was_written(tmp_path):
    tensors = {"a": torch.tensor([1.0, -0.0]), "b": torch.zeros(0, dtype=torch.long)}
    save_file(tensors, tmp_path / "f", {"digest": content_digest(tensors, {})})
    read, facts = read_tensors(tmp_path / "f")
    assert {name: (t.dtype, t.tolist()) for name, t in read.items()} == {
        "a": (torch.float32, [1.0, -0.0]),
        "b": (torch.long, []),
    }
    assert facts == {"digest": content_digest(read, {})}


def test_what_is_no_file_of_tensors_is_refused_and_not_waited_for(tmp_path):
    (tmp_path / "text").write_text("no tensors")
    os.mkfifo(tmp_path / "pipe")
    for name in ("text", "pipe", "missing"):
        with pytest.raises(OSError, match=r"plain file|header"):
            read_tensors(tmp_path / name)
        with pytest.raises(CheckpointError, match="are damaged: "):
            read_models(tmp_path / name)
