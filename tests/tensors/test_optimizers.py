import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.tensors.optimizers import BETAS, OPTIMIZERS, Optimizer, clip_norms


def of_torch(kind, tensors, lr, momentum, betas):
    if kind == "adam":
        return torch.optim.Adam(tensors, lr=lr, betas=betas)
    return torch.optim.SGD(tensors, lr=lr, momentum=momentum if kind == "momentum" else 0.0)


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(OPTIMIZERS),
    steps=st.integers(1, 20),
    momentum=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    betas=st.sampled_from([BETAS, (0.5, 0.9), (0.0, 0.99)]),
    pause=st.integers(0, 20),
    scale=st.sampled_from([1e-9, 1.0, 1e6]),
    in_place=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_steps_are_those_of_torch_optim_also_when_it_goes_on_later(
    kind, steps, momentum, betas, pause, scale, in_place
):
    ours = [drawn(3, 2, seed=1), drawn(4, seed=2)]
    theirs = [tensor.clone().requires_grad_() for tensor in ours]
    optimizer, exact = (
        Optimizer(kind, momentum, betas),
        of_torch(kind, theirs, 0.1, momentum, betas),
    )
    for step in range(steps):
        if step == pause:
            state, optimizer = optimizer.to_vector(ours), Optimizer(kind, momentum, betas)
            optimizer.restore(state, ours)
        gradients = [scale * drawn(*tensor.shape, seed=10 + step) for tensor in ours]
        for tensor, gradient in zip(theirs, gradients, strict=True):
            tensor.grad = gradient.clone()
        exact.step()
        if in_place[step]:
            optimizer.step(ours, gradients, 0.1)
            continue
        for tensor, direction in zip(ours, optimizer.directions(gradients), strict=True):
            tensor -= 0.1 * direction
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other.detach())


@pytest.mark.parametrize("most", [0.1, 1.0, 1000.0])
def test_clipping_is_that_of_torch_for_one_model_and_for_each_of_many(most):
    tensors = [drawn(3, 4, 2, seed=0), drawn(3, seed=1), drawn(3, 5, seed=2)]
    together = clip_norms(tensors, most, 1)
    for i in range(3):
        parameters = [torch.zeros_like(tensor[i]).requires_grad_() for tensor in tensors]
        for parameter, gradient in zip(parameters, tensors, strict=True):
            parameter.grad = gradient[i].clone()
        torch.nn.utils.clip_grad_norm_(parameters, most)
        alone = clip_norms([tensor[i] for tensor in tensors], most, 0)
        for parameter, one, many in zip(parameters, alone, together, strict=True):
            torch.testing.assert_close(one, parameter.grad)
            torch.testing.assert_close(many[i], parameter.grad)
