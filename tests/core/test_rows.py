import pytest
import torch

from coterie.core.rows import Rows


@pytest.mark.parametrize("stored", ["contiguous", "every other feature", "transposed"])
def test_rows_are_those_of_each_client_however_they_are_stored(stored):
    x = torch.arange(2 * 3 * 4.0).view(2, 3, 4)
    x = {"contiguous": x, "every other feature": x[:, :, ::2], "transposed": x.mT}[stored]
    y = torch.arange(2 * x.shape[1]).view(2, -1)
    rows = Rows(x, y, torch.tensor([3, 2])).take(torch.tensor([[2, 0], [1, 1]]))
    assert torch.equal(rows.x, torch.stack([x[0, [2, 0]], x[1, [1, 1]]]))
    assert rows.y.tolist() == [[2, 0], [x.shape[1] + 1] * 2]
    assert rows.size.tolist() == [2, 2]
