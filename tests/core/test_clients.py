from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from coterie.core.clients import Each, Stacked, merge_answers, on_client, step_name
from coterie.tensors.lazy import Lazy

MODELS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


class Upload(NamedTuple):
    model: Tensor
    size: Tensor


def upload(*rows):
    return Upload(
        torch.tensor([[float(row)] for row in rows]), torch.tensor([10 * r for r in rows])
    )


def test_without_an_index_each_client_gets_its_own_row():
    assert Each(MODELS).rows_for(torch.tensor([2, 0])).tolist() == [[5, 6], [1, 2]]


def test_with_an_index_clients_share_rows_that_are_not_copied():
    rows = Each(MODELS, torch.tensor([1, 1, 0, 2])).rows_for(torch.tensor([0, 2, 3]))
    assert isinstance(rows, Lazy)
    assert rows.tolist() == [[3, 4], [1, 2], [5, 6]]


def test_numbers_are_shared_by_index_too():
    each = Each(torch.tensor([7, 8]), torch.tensor([1, 0, 1]))
    assert each.rows_for(torch.tensor([0, 1, 2])).tolist() == [8, 7, 8]


@pytest.mark.parametrize("index", [None, torch.tensor([2, 0, 1])])
def test_cut_down_to_some_clients_they_get_the_same_rows(index):
    each, ids = Each(MODELS, index), torch.tensor([0, 2])
    cut = each.for_clients(ids)
    assert torch.equal(cut.rows_for(ids), each.rows_for(ids))
    assert torch.equal(cut.rows_for(torch.tensor([2])), each.rows_for(torch.tensor([2])))


def test_cut_down_nobody_elses_rows_are_sent():
    assert Each(MODELS).for_clients(torch.tensor([1])).rows.tolist() == [[3, 4]]


def test_stacked_uploads_are_in_order_of_client_id():
    fold = Stacked()
    one = fold.add(fold.start(), torch.tensor([5, 1]), upload(5, 1), {})
    other = fold.add(fold.start(), torch.tensor([3]), upload(3), {})
    found = fold.finish(fold.merge(one, other), {})
    assert found.model.flatten().tolist() == [1, 3, 5]
    assert found.size.tolist() == [10, 30, 50]


def test_nothing_stacked_is_none():
    assert Stacked().finish(Stacked().start(), {}) is None


def test_answers_to_two_steps_are_merged_in_order_of_client_id():
    nobody = (torch.arange(0), None)
    ids, up = merge_answers((torch.tensor([4]), upload(4)), nobody, (torch.tensor([2]), upload(2)))
    assert ids.tolist() == [2, 4]
    assert up.size.tolist() == [20, 40]


def test_if_nobody_answered_there_is_no_upload():
    ids, up = merge_answers((torch.arange(0), None))
    assert ids.tolist() == []
    assert up is None


def test_a_step_is_named_with_the_class_that_has_it():
    class Method:
        @on_client
        def train(self, cohort): ...

    class Variant(Method):
        pass

    assert step_name(Method().train) == "Method.train"
    assert step_name(Variant().train) == "Method.train"
