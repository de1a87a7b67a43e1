import torch

from coterie.engine.client_memory import ClientMemory


def test_a_client_recalls_its_own_row_wherever_that_is():
    memory = ClientMemory(3, lambda ids: ids - 10)
    memory.keep("note", torch.tensor([10, 12]), torch.tensor([[1.0], [2.0]]))
    assert memory.remembers("note", torch.tensor([10, 11, 12, 13])).tolist() == [1, 0, 1, 0]
    assert memory.recall("note", torch.tensor([12, 10])).tolist() == [[2], [1]]
    assert not memory.remembers("another", torch.tensor([10])).any()


def test_an_unseen_client_keeps_nothing_and_the_others_beside_it_do():
    memory = ClientMemory(2)
    memory.keep("note", torch.tensor([2, 1, 7]), torch.tensor([[1.0], [2.0], [3.0]]))
    assert memory.remembers("note", torch.tensor([0, 1, 2, 7])).tolist() == [0, 1, 0, 0]
    assert memory.recall("note", torch.tensor([1])).tolist() == [[2]]


def test_what_was_kept_is_restored_from_tensors():
    memory = ClientMemory(2)
    memory.keep("note", torch.tensor([1]), torch.tensor([[5.0]]))
    assert memory.changed
    again = ClientMemory(2)
    again.restore({**memory.to_tensors(), "state.models": torch.zeros(1)})
    assert again.remembers("note", torch.arange(2)).tolist() == [False, True]
    assert again.recall("note", torch.tensor([1])).tolist() == [[5]]
    assert set(again.rows) == {"note"}
