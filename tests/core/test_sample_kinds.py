"""What stored samples say of themselves."""

import pytest
import torch

from coterie.core.sample_kinds import (
    numbers_per_sample,
    rows_of_extremes,
    sample_kinds,
    sample_shape,
)
from coterie.core.samples import Inputs, Ragged


@pytest.fixture
def ragged():
    return Ragged.of([[5, 2, 7], [3], [1, 1], [9, 8, 7, 6], [4]])


def test_the_samples_with_the_largest_and_smallest_words_are_found(ragged):
    assert rows_of_extremes(ragged).tolist() == [2, 3]
    x = torch.tensor([[3, 4], [9, 1], [0, 5]])
    assert rows_of_extremes(x).tolist() == [1, 2]
    assert rows_of_extremes(x.float()).tolist() == []
    vectors = Ragged(torch.tensor([[1, 1], [1, 2], [0, 1]]), torch.tensor([0, 2, 3]))
    assert rows_of_extremes(vectors).tolist() == [0, 1]
    assert rows_of_extremes(Inputs({"a": x, "b": x.flip(0)})).tolist() == [0, 1, 2]


def test_samples_say_what_they_are_like(ragged):
    inputs = Inputs({"image": torch.zeros(5, 8, 6), "words": ragged, "age": torch.zeros(5)})
    assert [str(kind) for kind in sample_kinds(inputs)] == [
        "image: 8 x 6 float32",
        "words: sequences of int64",
        "age: float32",
    ]
    assert sample_shape(ragged) == torch.Size([-1])
    assert sample_shape(torch.zeros(3, 4)) == torch.Size([4])
    # 11 tokens in 5 sequences are 3 per sequence, rounded up.
    assert numbers_per_sample(inputs) == 48 + 3 + 1
