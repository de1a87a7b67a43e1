import math

import pytest
import torch

from coterie.core.errors import SettingError
from coterie.networks.flows import LinearFlow, RealNvp

FLOWS = {
    "linear-1": (LinearFlow(), [1]),
    "linear-5": (LinearFlow(), [5]),
    "linear-drawn": (LinearFlow(matrix="normal"), [2, 3]),
    "checkerboard-2": (RealNvp(masks="checkerboard", couplings=3, hidden=4), [2]),
    "checkerboard-7": (RealNvp(masks="checkerboard", couplings=2, hidden=4), [7]),
    "cyclic-4": (RealNvp(masks="cyclic", couplings=5, hidden=4), [4]),
    "cyclic-9": (RealNvp(masks="cyclic", couplings=8, hidden=3), [9]),
    "random-6": (RealNvp(masks="random", couplings=6, hidden=4), [6]),
    "random-11": (RealNvp(masks="random", couplings=7, hidden=4), [11]),
    "images-checkerboard": (RealNvp(masks="checkerboard", couplings=3, hidden=4), [3, 3]),
    "images-cyclic": (RealNvp(masks="cyclic", couplings=4, hidden=4), [3, 5]),
    "images-random": (RealNvp(masks="random", couplings=6, hidden=4), [4, 2]),
    "conv-checkerboard": (
        RealNvp(nets="conv", masks="checkerboard", couplings=2, channels=3, blocks=1),
        [4, 4],
    ),
    "conv-cyclic-batch": (
        RealNvp(nets="conv", masks="cyclic", couplings=4, channels=2, blocks=1, norm="batch"),
        [4, 4],
    ),
    "conv-random": (
        RealNvp(nets="conv", masks="random", couplings=2, channels=2, blocks=2),
        [4, 4],
    ),
}


def drawn(name, seed=0):
    """A flow in double precision with random parameters and statistics, and samples for it."""
    settings, shape = FLOWS[name]
    generator = torch.Generator().manual_seed(seed)
    module = settings.module(shape, 1).double().eval()
    for weight in module.parameters():
        weight.data += 0.3 * torch.randn(weight.shape, generator=generator).double()
    for key, buffer in module.named_buffers():
        if key.endswith(("shift", "running_mean")):
            buffer += torch.randn(buffer.shape, generator=generator).double()
        if key.endswith(("scale", "running_var")):
            buffer += torch.rand(buffer.shape, generator=generator).double()
    image = len(shape) == 2 and isinstance(settings, RealNvp)
    draw = torch.rand if image else torch.randn
    return module, draw(4, *shape, generator=generator).double()


def to_noise(module, x):
    """The map from samples to noise [n, features], step by step."""
    u, _ = module.inputs(x.flatten(1))
    if not hasattr(module, "couplings"):
        return u @ module.A.T + module.c
    parts = module.split(u[:, module.order])
    for coupling in module.couplings:
        parts, _ = coupling(parts)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", FLOWS)
def test_the_determinant_is_that_of_the_map_and_noise_leads_back(name, seed):
    module, x = drawn(name, seed)
    slopes = torch.autograd.functional.jacobian(lambda v: to_noise(module, v).sum(0), x)
    slopes = slopes.transpose(0, 1).flatten(2)  # [4, features, features]
    z = to_noise(module, x)
    normal = -0.5 * (z.square().sum(1) + z.shape[1] * math.log(2 * math.pi))
    torch.testing.assert_close(module(x), normal + slopes.slogdet().logabsdet)
    torch.testing.assert_close(module.generate(z), x)


@pytest.mark.parametrize("name", ["linear-1", "checkerboard-2"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_density_integrates_to_one(name, seed):
    module, x = drawn(name, seed)
    features = x.shape[1]
    with torch.no_grad():
        far = module.generate(4 * torch.randn(4000, features).double()).abs().max().item()
        line = torch.linspace(-far, far, 40_001 if features == 1 else 1201).double()
        grid = torch.cartesian_prod(*[line] * features).view(-1, features)
        total = module(grid).exp().sum() * (line[1] - line[0]) ** features
    assert total.item() == pytest.approx(1, abs=2e-3)


def test_a_density_of_pixels_integrates_to_one():
    # The logits of pixels lie between -log 19 and log 19, so that a flow gives the cube what a
    # normal distribution has there: P(|z| < log 19)^4 before it is trained.
    module = RealNvp(masks="checkerboard").module([2, 2], 1).double().eval()
    middle = (torch.arange(14).double() + 0.5) / 14
    grid = torch.cartesian_prod(*[middle] * 4).view(-1, 2, 2)
    with torch.no_grad():
        total = module(grid).exp().mean().item()
    assert total == pytest.approx(math.erf(math.log(19) / math.sqrt(2)) ** 4, rel=2e-2)


def test_a_linear_flow_by_hand():
    # z = 2 (x - 3) / 4 + 1 is standard normal: x has mean 3 - 2 = 1 and deviation 2.
    flow = LinearFlow().module([1], 1)
    flow.A.data.fill_(2.0)
    flow.c.data.fill_(1.0)
    flow.inputs.shift.fill_(3.0)
    flow.inputs.scale.fill_(4.0)
    at = torch.tensor([[1.0], [3.0]])
    expected = torch.distributions.Normal(1.0, 2.0).log_prob(at)[:, 0]
    torch.testing.assert_close(flow(at), expected)
    assert flow.generate(torch.tensor([[0.0], [1.0]])).tolist() == [[1.0], [3.0]]


def test_flows_begin_as_standard_normal_distributions_of_scaled_samples():
    for name in ("linear-5", "cyclic-9", "random-11"):
        settings, shape = FLOWS[name]
        x = torch.randn(3, *shape)
        expected = -0.5 * (x.square().sum(1) + shape[0] * math.log(2 * math.pi))
        torch.testing.assert_close(settings.module(shape, 1)(x), expected)
    one, other = (LinearFlow(matrix="normal").module([9], 1).A for _ in range(2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("settings", "shape", "says"),
    [
        (RealNvp(), [1], "masks=cyclic needs samples of at least 4 numbers, got 1: linear-flow"),
        (RealNvp(masks="random"), [3], "masks=random needs samples of at least 4 numbers, got 3"),
        (RealNvp(masks="checkerboard"), [1], "needs samples of at least 2 numbers, got 1"),
        (RealNvp(nets="conv"), [16], r"must be mlp for samples that are not images .* \[16\]"),
        (RealNvp(nets="conv"), [5, 4], r"even number of rows and columns, got conv for \[5, 4\]"),
        (RealNvp(), [3, 8, 8], r"realnvp takes vectors and grey images, got samples of \[3, 8, 8"),
    ],
)
def test_samples_that_a_flow_cannot_take_are_refused(settings, shape, says):
    with pytest.raises(SettingError, match=says):
        settings.module(shape, 1)
