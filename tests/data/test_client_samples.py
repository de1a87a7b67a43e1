"""What a user has of a client becomes flat storage, or is refused in one sentence."""

import numpy as np
import pytest
import torch

from coterie import Federation, Ragged
from coterie.core.errors import DataError
from coterie.core.sample_kinds import sample_kinds
from coterie.core.samples import Inputs
from coterie.data.client_samples import is_uneven
from coterie.data.federation import Samples

WORDS = [[1, 2, 3], [4]]
TAGS = [[0, 1, 0], [1]]


@pytest.mark.parametrize(
    "convert",
    [
        lambda lists: lists,
        lambda lists: [torch.tensor(each) for each in lists],
        lambda lists: [np.array(each) for each in lists],
        lambda lists: np.array([np.array(each) for each in lists], dtype=object),
        Ragged.of,
    ],
    ids=["lists", "tensors", "arrays", "objects", "ragged"],
)
def test_sequences_of_their_own_lengths_are_stored_flat(convert):
    samples = Samples.of([(convert(WORDS), convert(TAGS)), (convert([[7, 8], [9]]), [[1, 1], [0]])])
    assert samples.x.values.tolist() == [1, 2, 3, 4, 7, 8, 9]
    assert samples.x.lengths.tolist() == samples.y.lengths.tolist() == [3, 1, 2, 1]
    assert samples.sizes.tolist() == [2, 2]
    assert samples.x.values.dtype == torch.int64


def test_what_is_a_sequence_with_one_client_is_one_with_all():
    even = np.array([[5, 6], [7, 8]])
    federation = Federation.from_clients(
        [(even, even % 2), (WORDS, TAGS)], test=[(even, even % 2), (even, even % 2)]
    )
    assert federation.train.x.lengths.tolist() == [2, 2, 3, 1]
    assert federation.test.y.lengths.tolist() == [2, 2, 2, 2]
    # Also where it is only a client of the test part whose sequences differ.
    federation = Federation.from_clients([(even, [0, 1])], test=[(WORDS, [0, 1])])
    assert isinstance(federation.train.x, Ragged)


def test_lists_of_one_length_are_a_tensor_as_before():
    samples = Samples.of([([[1, 2], [3, 4]], [0, 1]), ([[5, 6]], [1])])
    assert samples.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    marked = Samples.of([(Ragged.of([[1, 2], [3, 4]]), [0, 1])])
    assert isinstance(marked.x, Ragged)


def test_several_inputs_have_names_or_numbers():
    image, age = np.zeros((2, 4, 4), dtype=np.uint8), np.array([30.0, 40.0])
    named = Samples.of([({"image": image, "text": WORDS, "age": age}, [0, 1])] * 3)
    assert list(named.x.parts) == ["image", "text", "age"]
    assert named.x["text"].lengths.tolist() == [3, 1] * 3
    assert len(named.x) == 6
    numbered = Samples.of([((image, age), [0, 1])])
    assert [str(kind) for kind in sample_kinds(numbered.x)] == ["0: 4 x 4 uint8", "1: float64"]


def test_clients_are_selected_cut_and_sent_whatever_their_samples():
    inputs = Inputs({"a": Ragged.of([[1], [2, 2], [3], [4, 4]]), "b": torch.arange(4.0)})
    samples = Samples.select(inputs, torch.arange(4), [torch.tensor([2, 0]), torch.tensor([3])])
    x, y = samples.client(0)
    assert (x["a"].values.tolist(), x["b"].tolist(), y.tolist()) == ([3, 1], [2, 0], [2, 0])
    part = samples.part(1, 2)
    assert part.x["a"].values.tolist() == [4, 4]
    assert part.offsets.tolist() == [0, 1]
    assert (samples.tensor_axes, samples.sample_numbers) == (0, 3)


def test_only_one_tensor_with_one_target_has_axes():
    x, y = torch.zeros(4, 3, 2), torch.zeros(4)
    offsets = torch.tensor([0, 4])
    assert Samples(x, y, offsets).tensor_axes == 2
    assert Samples(x, torch.zeros(4, 3), offsets).tensor_axes == 0
    assert Samples(x, Ragged.of([[1]] * 4), offsets).tensor_axes == 0


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([([[1, 2], []], [0, 1])], "client 0 has an empty sequence in its samples"),
        ([(WORDS, [[1, 1, 1], []])], "client 0 has an empty sequence in its targets"),
        ([(WORDS, [0])], r"samples \[n, ...\] and n targets, got shapes 2 sequences and \[1\]"),
        ([(WORDS, torch.tensor(3))], r"and n targets, got shapes 2 sequences and \[\]"),
        (
            [({"a": np.zeros((2, 3)), "b": np.zeros(3)}, [0, 1])],
            r"got shapes \[2, 3\], \[3\] and \[2\]",
        ),
        (
            [({"a": np.zeros((2, 3))}, [0, 1]), ({"b": np.zeros((2, 3))}, [0, 1])],
            "the same inputs: client 0 has a, client 1 has b",
        ),
        (
            [({"a": np.zeros((2, 3))}, [0, 1]), (np.zeros((2, 3)), [0, 1])],
            "the same inputs: client 0 has a, client 1 has one without a name",
        ),
        ([([[1, 2], [np.nan]], [0, 1])], "client 0 has NaN or infinite values in its features"),
        (
            [({"a": [[1.0, np.inf], [1.0]]}, [0, 1])],
            "client 0 has NaN or infinite values in its input a",
        ),
        ([(WORDS, [0, 1]), ([[1.5], [2, 3]], [0, 1])], "samples of one shape and type"),
        ([(WORDS, TAGS), (WORDS, [0, 1])], "a sequence per sample where others have one number"),
        ([([["a", "b"], ["c"]], [0, 1])], "client 0: not an array of numbers"),
        ([({}, [0, 1])], "client 0 must have samples"),
    ],
)
def test_samples_that_no_model_could_learn_from_are_refused(clients, sentence):
    with pytest.raises(DataError, match=sentence):
        Federation.from_clients(clients)


@pytest.mark.parametrize(
    ("values", "uneven"),
    [
        ([[1], [2, 3]], True),
        ([[1, 2], [2, 3]], False),
        ([1, 2], False),
        (["a", "bc"], False),
        ([torch.tensor(1), torch.tensor(2)], False),
        ([], False),
        ([[1], 2], False),
    ],
)
def test_sequences_are_uneven_where_their_lengths_differ(values, uneven):
    assert is_uneven(values) is uneven


def test_clients_may_have_samples_without_targets():
    x = torch.arange(12.0).view(6, 2)
    federation = Federation.from_clients([(x, None), (x[:2], None)], test=[(x, None), (x, None)])
    assert not federation.labelled
    assert federation.train.sizes.tolist() == [6, 2]
    assert torch.equal(federation.train.client(1)[0], x[:2])
    assert federation.train.y.tolist() == [0.0] * 8
    named = Federation.from_clients([({"image": x, "age": x[:, :1]}, None)])
    assert isinstance(named.train.x, Inputs)
    assert named.train.sizes.tolist() == [6]


@pytest.mark.parametrize(
    ("clients", "test", "sentence"),
    [
        ([1, None], None, "all clients must have targets, or none: client 1 has none, client 0"),
        ([None, None], [1, 1], "all clients must have targets, or none"),
        ([1, 1], [None, None], "all clients must have targets, or none"),
    ],
)
def test_some_targets_are_not_enough(clients, test, sentence):
    def pairs(having):
        return [(np.ones((3, 2)), None if y is None else np.ones(3)) for y in having]

    with pytest.raises(DataError, match=sentence):
        Federation.from_clients(pairs(clients), test=None if test is None else pairs(test))


@pytest.mark.parametrize("x", [np.ones(3), 5.0, {}, {"a": np.ones(3), "b": np.ones(2)}])
def test_samples_without_targets_must_be_samples_all_the_same(x):
    with pytest.raises(DataError, match=r"client 0 must have samples \[n, ...\], got shapes"):
        Federation.from_clients([(x, None)])
