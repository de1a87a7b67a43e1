import torch

from coterie.core.shared_trunk import SharedTrunk

MODELS = torch.arange(8.0).view(2, 4)


def test_whole_undoes_parts_and_broadcasts_the_trunk():
    sharing = SharedTrunk(torch.tensor([False, True, True, False]))
    own, trunk = sharing.parts(MODELS)
    assert own.tolist() == [[1, 2], [5, 6]]
    assert trunk.tolist() == [[0, 3], [4, 7]]
    assert torch.equal(sharing.whole(own, trunk), MODELS)
    one_trunk = sharing.whole(own, torch.tensor([9.0, 9.0]))
    assert one_trunk.tolist() == [[9, 1, 2, 9], [9, 5, 6, 9]]


def test_without_a_trunk_models_are_handed_through_uncopied():
    sharing = SharedTrunk(torch.ones(4, dtype=torch.bool))
    own, trunk = sharing.parts(MODELS)
    assert own is MODELS
    assert trunk.shape == (2, 0)
    assert sharing.whole(own, trunk) is MODELS


def test_a_frozen_trunk_neither_moves_nor_is_sent():
    part = torch.tensor([False, True, True, False])
    frozen, trained = SharedTrunk(part, frozen=True), SharedTrunk(part)
    assert frozen.moves is part
    assert trained.moves is None
    own, trunk = frozen.moving_parts(MODELS)
    assert own.tolist() == [[1, 2], [5, 6]]
    assert trunk.shape == (2, 0)
    assert torch.equal(trained.moving_parts(MODELS)[1], trained.parts(MODELS)[1])
