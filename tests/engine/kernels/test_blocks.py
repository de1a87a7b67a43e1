import pytest
import torch

from coterie.engine.kernels.blocks import block_size


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_blocks_are_of_like_size_and_keep_all_threads_busy(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for count in (1, 7, 13, 100, 105):
        for most in (0, 1, 6, 13, 200):
            block = block_size(count, most)
            sizes = [min(block, count - begin) for begin in range(0, count, block)]
            assert block % threads == 0
            assert max(sizes) <= max(1, most) + threads
            assert len(sizes) <= -(-count // max(1, most))
    assert block_size(105, 26) == {1: 21, 2: 22, 8: 24}[threads]
