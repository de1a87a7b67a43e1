"""Which networks are stacks of linear layers."""

import pytest
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from coterie import Classification, Regression
from coterie.engine.kernels import kernel_for
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel
from tests.engine.kernels.cohorts import tied


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
        nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 2)
        ),
        nn.Sequential(nn.Linear(4, 3), nn.Softmax(1), nn.Linear(3, 2)),
    ],
    ids=["dropout", "batch norm", "convolution", "softmax"],
)
def test_networks_that_are_no_plain_stack_go_one_by_one(module):
    assert isinstance(kernel_for(Classification(module)), PerClientKernel)


def test_a_layer_used_twice_goes_one_by_one():
    layer = nn.Linear(2, 2)
    assert isinstance(
        kernel_for(Classification(nn.Sequential(layer, nn.ReLU(), layer))), PerClientKernel
    )


def test_a_plain_stack_is_batched():
    module = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))
    assert isinstance(kernel_for(Classification(module)), BatchedKernel)
    assert isinstance(kernel_for(Regression(nn.Linear(3, 1))), BatchedKernel)


def pruned():
    """Its weight is computed from another parameter before every use."""
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    l1_unstructured(module[0], "weight", amount=2)
    return module


@pytest.mark.parametrize(
    ("module", "axes"),
    [
        (tied(), 1),
        (pruned(), 1),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2)), 2),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), 1),
    ],
    ids=["tied", "pruned", "flattened late", "begins in place"],
)
def test_stacks_that_only_look_plain_go_one_by_one(module, axes):
    assert isinstance(kernel_for(Classification(module), axes), PerClientKernel)
