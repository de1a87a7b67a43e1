"""Samples beyond one tensor: indexing changes no sample, padding no more than it must."""

import pickle

import pytest
import torch

from coterie.core.sample_kinds import (
    stored_tensors,
)
from coterie.core.samples import Indexed, Inputs, Padded, Ragged, as_batch, place_rows, view_rows

SEQUENCES = [[5, 2, 7], [3], [1, 1], [9, 8, 7, 6], [4]]


@pytest.fixture
def ragged():
    return Ragged.of(SEQUENCES)


def as_lists(ragged):
    return [part.tolist() for part in ragged.values.split(ragged.lengths.tolist())]


def unpadded(padded):
    return [row[:n].tolist() for row, n in zip(padded.values, padded.lengths, strict=True)]


@pytest.mark.parametrize(
    "rows", [slice(None), slice(1, 3), slice(4, None), slice(2, 2), slice(3, 100), slice(-2, None)]
)
def test_a_slice_of_sequences_is_a_view_of_them(ragged, rows):
    part = ragged[rows]
    assert as_lists(part) == SEQUENCES[rows]
    assert part.values.untyped_storage().data_ptr() == ragged.values.untyped_storage().data_ptr()


@pytest.mark.parametrize("rows", [[0], [4, 0, 2], [1, 1, 3], [], [3, 2, 1, 0, 4]])
def test_sequences_are_had_by_their_numbers(ragged, rows):
    rows = torch.tensor(rows, dtype=torch.long)
    wanted = [SEQUENCES[i] for i in rows.tolist()]
    assert as_lists(ragged[rows]) == wanted
    padded = ragged.pad(rows)
    assert unpadded(padded) == wanted
    assert padded.values.shape == (len(rows), max(map(len, wanted), default=0))
    assert not padded.values[~padded.mask].any()


def test_tokens_may_be_vectors():
    values = torch.randn(6, 2)
    ragged = Ragged.of([values[:1], values[1:4], values[4:]])
    assert torch.equal(ragged[torch.tensor([1, 0])].values, torch.cat([values[1:4], values[:1]]))
    padded = as_batch(ragged)
    assert padded.values.shape == (3, 3, 2)
    assert torch.equal(padded.values[2, :2], values[4:])
    assert not padded.values[2, 2].any()


def test_a_copy_of_a_part_holds_no_more_than_the_part():
    whole = Ragged.of([torch.zeros(10_000), torch.ones(2), torch.zeros(10_000)])
    assert len(pickle.dumps(whole[1:2].clone())) < 3000
    inputs = Inputs({"a": whole, "b": torch.zeros(3, 10_000)})
    assert len(pickle.dumps(inputs[1:1].clone())) < 3000


def test_a_batch_is_trimmed_to_its_own_longest(ragged):
    batch = as_batch(ragged)
    few = batch[torch.tensor([1, 2])]
    assert few.values.shape == (2, 4)
    assert few.trim().values.tolist() == [[3, 0], [1, 1]]
    assert few.trim()[None].trim().values.shape == (1, 2, 2)
    assert batch[:0].trim().values.shape == (0, 0)


def test_inputs_are_indexed_together(ragged):
    inputs = Inputs({"words": ragged, "age": torch.arange(5.0)})
    assert len(inputs) == 5
    part = inputs[torch.tensor([3, 0])]
    assert as_lists(part["words"]) == [SEQUENCES[3], SEQUENCES[0]]
    assert part["age"].tolist() == [3, 0]
    batch = as_batch(part)
    assert isinstance(batch["words"], Padded)
    assert len(batch[:1]) == 1
    changed = inputs.map(lambda values: values + 1)
    assert changed["age"].tolist() == [1, 2, 3, 4, 5]
    assert as_lists(changed["words"])[1] == [4]


def test_rows_of_clients_are_indexed_without_padding_sequences(ragged):
    index = torch.tensor([[3, 4], [1, 0]])
    inside = torch.tensor([[True, True], [True, False]])
    rows = place_rows(ragged, index, inside)
    assert isinstance(rows, Indexed)
    assert len(rows.stored.values) == 6  # the tokens of three sequences
    assert rows.shape == (2, 2)
    assert unpadded(rows[0].gather()) == [[9, 8, 7, 6], [4]]
    assert unpadded(rows[1][:1].gather()) == [[3]]
    client = torch.tensor([[0], [1]])
    assert unpadded(rows[client, torch.tensor([[1], [0]])][0].gather()) == [[4]]
    assert [len(client) for client in rows] == [2, 2]


def test_neighbours_of_equal_size_are_not_copied(ragged):
    rows = view_rows(ragged, 1, 2, 2)
    assert [unpadded(client.gather()) for client in rows] == [SEQUENCES[1:3], SEQUENCES[3:5]]
    mine, theirs = rows.stored.values, ragged.values
    assert mine.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()


def test_a_tensor_stays_one():
    x = torch.arange(12.0).view(6, 2)
    assert as_batch(x) is x
    assert view_rows(x, 2, 2, 2).data_ptr() == x[2:].data_ptr()
    placed = place_rows(x, torch.tensor([[1, 0]]), torch.tensor([[True, False]]))
    assert placed.tolist() == [[[2, 3], [0, 0]]]
    assert stored_tensors(x) == [x]
