import numpy as np
import pytest
import torch

from coterie import Federation
from coterie.core.errors import DataError
from coterie.data.federation import Samples


def test_arrays_and_tensors_are_taken_as_they_are():
    federation = Federation.from_clients(
        [
            (np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 2])),
            (torch.ones(1, 2), torch.tensor([5])),
        ],
        cluster=[1, 0],
    )
    assert len(federation) == 2
    assert federation.train.x.tolist() == [[0, 1], [2, 3], [4, 5], [1, 1]]
    assert federation.train.client(1)[1].tolist() == [5]
    assert federation.cluster.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([], "at least one client"),
        ([(np.zeros((2, 3)), np.zeros(3))], r"client 0 must have samples \[n, ...\] and n targets"),
        (
            [(np.zeros((2, 3)), np.zeros(2)), (np.zeros((0, 3)), np.zeros(0))],
            "client 1 has no samples",
        ),
        (
            [(np.full((2, 3), np.nan), np.zeros(2))],
            "client 0 has NaN or infinite values in its feat",
        ),
        (
            [(np.zeros((2, 3)), np.array([0, np.inf]))],
            "client 0 has NaN or infinite values in its targ",
        ),
        (
            [(np.zeros((2, 3)), np.zeros(2)), (np.zeros((2, 4)), np.zeros(2))],
            "of one shape and type",
        ),
        ([None], "client 0 must be a pair of samples and targets"),
        (
            [(np.zeros((2, 3)), np.zeros(2)), (np.zeros((2, 3)), np.zeros((2, 1)))],
            "have targets of one",
        ),
        ([(np.array([["a"], ["b"]]), np.zeros(2))], "client 0: not an array of numbers"),
    ],
)
def test_data_that_no_model_could_learn_from_are_refused(clients, sentence):
    with pytest.raises(DataError, match=sentence):
        Federation.from_clients(clients)


def test_names_are_given_for_all_clients_or_for_none():
    samples = Samples.of([(np.zeros((2, 3)), np.zeros(2))] * 3)
    assert Federation(samples, clients=("a", "b", "c")).clients == ("a", "b", "c")
    with pytest.raises(DataError, match="names are given for 2 of 3 clients"):
        Federation(samples, clients=("a", "b"))


def test_a_test_part_must_belong_to_the_clients_or_be_unseen():
    client = (np.zeros((2, 3)), np.zeros(2))
    with pytest.raises(DataError, match="2 clients train but 1 are tested"):
        Federation.from_clients([client, client], test=[client])
    assert Federation.from_clients([client, client], test=[client], unseen=True).unseen


def test_true_clusters_are_needed_for_all_clients_or_none():
    client = (np.zeros((2, 3)), np.zeros(2))
    with pytest.raises(DataError, match="true clusters are given for 1 of 2 clients"):
        Federation.from_clients([client, client], cluster=[0])


def test_arrays_that_may_not_be_written_are_taken_too():
    x = np.zeros((2, 3))
    x.flags.writeable = False
    Federation.from_clients([(x, np.zeros(2))])


def test_true_clusters_may_have_any_names():
    client = (np.zeros((2, 3)), np.zeros(2))
    federation = Federation.from_clients(
        [client] * 3,
        test=[client] * 2,
        unseen=True,
        cluster=["b", "a", "b"],
        test_cluster=["a", "c"],
    )
    assert federation.cluster.tolist() == [1, 0, 1]
    assert federation.test_cluster.tolist() == [0, 2]
    assert Federation.from_clients([client] * 2, cluster=[10**9, -1]).cluster.tolist() == [1, 0]


def test_large_unsigned_labels_are_taken():
    federation = Federation.from_clients([(np.zeros((2, 3)), np.array([0, 1], dtype=np.uint16))])
    assert federation.train.y.dtype == torch.int64


def test_a_client_may_have_nothing_in_the_validation_part():
    clients = [(np.ones((3, 2)), np.array([0, 1, 2])), (np.ones((2, 2)), np.array([0, 5]))]
    held = [(np.zeros((0, 2)), np.zeros(0)), (np.ones((1, 2)), np.array([1]))]
    for first in (held[0], None):
        federation = Federation.from_clients(clients, validation=[first, held[1]])
        assert federation.validation.sizes.tolist() == [0, 1]
        assert federation.validation.x.dtype == federation.train.x.dtype
        assert list(federation.parts) == ["train", "validation"]
        assert federation.outputs == 6
    with pytest.raises(DataError, match="2 clients train but 1 have a validation part"):
        Federation.from_clients(clients, validation=[None])
    with pytest.raises(DataError, match="2 clients train but 1 have a validation part"):
        Federation(federation.train, validation=Samples.of(held[1:]))
    with pytest.raises(DataError, match=r"client 1 must have samples"):
        Federation.from_clients(clients, validation=[None, (np.ones((2, 2)), np.zeros(1))])


def test_a_federation_says_what_it_is_and_prints_no_row_of_anybody():
    x = torch.arange(12.0).reshape(4, 3) + 71234.5
    clients = [(x, torch.tensor([0, 1, 2, 0])), (x[:2] + 88, torch.tensor([1, 1]))]
    federation = Federation.from_clients(clients, test=clients, cluster=[0, 1], name="wards")
    text = "2 clients, 6 training and 6 test samples, 3 float32, 3 classes, 2 true clusters"
    assert repr(federation) == f"<Federation wards: {text}>"
    assert repr(federation.train) == "<Samples: 6 of 2 clients, 3 float32>"
    assert "712" not in f"{federation} {federation.train}"
