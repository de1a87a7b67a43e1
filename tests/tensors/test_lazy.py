import torch

from coterie.tensors.devices import CPU
from coterie.tensors.lazy import (
    Lazy,
    SelectedRows,
    add_cluster_sums,
    as_selected_rows,
    select_rows,
    to_device,
)
from tests.engine.other_device import FAR, Far, elsewhere

MODELS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_sums_need_no_model():
    lazy = select_rows(MODELS, torch.tensor([1, 0, 1]))
    sums = torch.ones(2, 2, dtype=torch.float64)
    # Cluster 0 has half of the first client, cluster 1 the second one and twice the third.
    add_cluster_sums(sums, torch.tensor([[0.5, 0, 0], [0, 1, 2]], dtype=torch.float64), lazy)
    assert sums.tolist() == [[1 + 1.5, 1 + 2.0], [1 + 1 + 6, 1 + 2 + 8]]
    assert lazy.formed is None


def test_a_lazy_tensor_is_like_any_other_once_it_is_looked_at():
    lazy = select_rows(MODELS, torch.tensor([1, 1]))
    assert lazy.shape == (2, 2)
    assert lazy.dtype == torch.float32
    assert lazy.formed is None
    assert lazy.tolist() == [[3.0, 4.0], [3.0, 4.0]]
    assert lazy.numpy().sum() == 14
    assert torch.cat([lazy, MODELS])[0].tolist() == [3.0, 4.0]
    assert repr(lazy) == repr(MODELS[[1, 1]])


def test_what_is_changed_in_place_stays_changed():
    lazy = select_rows(MODELS, torch.tensor([0]))
    lazy += 1
    sums = torch.zeros(1, 2, dtype=torch.float64)
    add_cluster_sums(sums, torch.ones(1, 1, dtype=torch.float64), lazy)
    assert sums.tolist() == [[2.0, 3.0]]
    assert as_selected_rows(lazy) is None
    assert MODELS.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_one_model_for_all_is_recognised():
    shared = as_selected_rows(MODELS[1].expand(3, -1))
    assert shared is not None
    assert shared.models.tolist() == [[3.0, 4.0]]
    assert shared.index.tolist() == [0, 0, 0]
    assert as_selected_rows(MODELS) is None
    lazy = Lazy(SelectedRows(MODELS, torch.tensor([0, 1])))
    assert as_selected_rows(lazy) is lazy.formula


def test_models_are_not_formed_to_be_moved():
    with elsewhere():
        lazy = select_rows(MODELS, torch.tensor([1, 0, 1]))
        far = to_device(lazy, FAR)
        assert isinstance(far, Lazy)
        assert lazy.formed is None
        assert far.formed is None
        assert far.device == FAR
        assert far.formula.models.shape == MODELS.shape  # two models, not three
        assert to_device(far, CPU).tolist() == [[3, 4], [1, 2], [3, 4]]
        one = to_device(MODELS[1].expand(4, -1), FAR)
        assert one.formula.models.shape == (1, 2)
        assert one.tolist() == [[3, 4]] * 4
        # Elsewhere the sums per cluster are one product, to the same result.
        sums = torch.ones(2, 2, dtype=torch.float64, device=FAR)
        member = torch.tensor([[0.5, 0, 0], [0, 1, 2]], dtype=torch.float64, device=FAR)
        add_cluster_sums(sums, member, far)
        assert sums.tolist() == [[1 + 1.5, 1 + 2.0], [1 + 1 + 6, 1 + 2 + 8]]
        assert far.formed is None


def test_what_is_there_already_or_is_no_tensor_is_not_moved():
    assert to_device(MODELS, CPU) is MODELS
    assert to_device("a word", FAR) == "a word"
    with elsewhere():
        assert isinstance(to_device(MODELS, FAR), Far)
