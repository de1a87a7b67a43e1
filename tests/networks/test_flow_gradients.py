import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from coterie.networks.flow_gradients import (
    is_real_nvp_of_perceptrons,
    linear_flow_gradients,
    real_nvp_gradients,
    scaled_samples,
)
from coterie.networks.flows import LinearFlow, RealNvp
from coterie.tensors.products import form

FLOWS = {
    "linear": (LinearFlow(), [5]),
    "one-coupling": (RealNvp(couplings=1, hidden=3), [4]),
    "cyclic": (RealNvp(masks="cyclic", couplings=6, hidden=5), [9]),
    "checkerboard": (RealNvp(masks="checkerboard", couplings=3, hidden=4), [7]),
    "random": (RealNvp(masks="random", couplings=7, hidden=4), [11]),
    "images": (RealNvp(masks="cyclic", couplings=8, hidden=4), [4, 5]),
}


def drawn(name):
    """A flow and three models of it: their tensors [3, ...], in double precision."""
    settings, shape = FLOWS[name]
    generator = torch.Generator().manual_seed(0)
    module = settings.module(shape, 1).double()
    tensors = {
        key: value + 0.4 * torch.randn(3, *value.shape, generator=generator).double()
        for key, value in module.state_dict().items()
    }
    tensors["inputs.scale"] = tensors["inputs.scale"].abs() + 0.5
    x = torch.rand(3, 6, *shape, generator=generator).double()
    weight = torch.rand(3, 6, generator=generator).double()
    weight[0, 4:] = 0  # padding
    return module, tensors, x, weight


def written_out(module, tensors, x, weight):
    u = scaled_samples(module, tensors, x)
    if is_real_nvp_of_perceptrons(module):
        return [form(each) for each in real_nvp_gradients(module, tensors, u, weight)]
    return linear_flow_gradients(tensors, u, weight)


@pytest.mark.parametrize("name", FLOWS)
def test_the_gradients_are_those_of_differentiation(name):
    module, tensors, x, weight = drawn(name)
    leaves = {n: tensors[n].requires_grad_() for n, _ in module.named_parameters()}
    log_density = vmap(lambda own, some: functional_call(module, own, some))(tensors, x)
    expected = torch.autograd.grad(-(log_density * weight).sum(), list(leaves.values()))
    found = written_out(module, tensors, x, weight)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", FLOWS)
def test_models_and_samples_stay_as_they_were(name):
    module, tensors, x, weight = drawn(name)
    kept = {n: t.clone() for n, t in tensors.items()}, x.clone(), weight.clone()
    written_out(module, tensors, x, weight)
    assert all(torch.equal(t, kept[0][n]) for n, t in tensors.items())
    assert torch.equal(x, kept[1])
    assert torch.equal(weight, kept[2])


def test_only_perceptrons_are_written_out():
    conv = RealNvp(nets="conv", channels=2, blocks=1).module([4, 4], 1)
    changed = RealNvp().module([4], 1)
    changed.couplings[0] = type("Own", (type(changed.couplings[0]),), {})(
        ((0,), (1,)), [torch.tensor([i]) for i in range(4)], 3
    )
    assert [is_real_nvp_of_perceptrons(m) for m in (conv, changed, nn.Identity())] == [False] * 3
    assert is_real_nvp_of_perceptrons(RealNvp().module([4], 1))
