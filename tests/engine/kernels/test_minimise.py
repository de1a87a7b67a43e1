"""Objectives of one's own, on parts of a network, as a plain loop of PyTorch has them."""

import pytest
import torch
from torch import nn

from coterie import Classification
from coterie.core.errors import CoterieError, DataError, SettingError
from coterie.core.local_work import OptimizerState
from coterie.engine.copies.lockstep import LockstepKernel
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.kernels.vmapped import VmappedKernel
from tests.engine.kernels.cohorts import cohort

FEATURES = 3


class Gan(nn.Module):
    """Two networks in one module: one makes samples of noise, the other tells them from true."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, FEATURES))
        self.critic = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x):
        return self.critic(x).expand(-1, 2)


def noise(like, generator):
    return torch.randn(len(like), 2, generator=generator).to(like.dtype)


def realism(call, x, y, generator):
    """What the critic of a WGAN-GP minimises."""
    fake = call("generator", noise(x, generator)).detach()
    share = torch.rand(len(x), 1, generator=generator).to(x.dtype)
    between = (share * x + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(call("critic", between).sum(), between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    return call("critic", fake).mean() - call("critic", x).mean() + 10 * penalty


def deceit(call, x, y, generator):
    return -call("critic", call("generator", noise(x, generator))).mean()


def gan_cohort(kernel=PerClientKernel, sizes=(6, 5)):
    torch.manual_seed(0)
    task = Classification(Gan().double())
    start = task.layout.flatten(task.module).expand(len(sizes), -1)
    return task, start, cohort(task, kernel, list(sizes), FEATURES, 2, 0)


KERNELS = {
    "reference": PerClientKernel,
    "vmapped": VmappedKernel,
    "lock-step": lambda task: LockstepKernel(PerClientKernel(task)),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_two_networks_in_turn_are_those_of_a_plain_loop(kernel, optimizer):
    """Whose optimisers go on from turn to turn; the objective's own draws are looked up."""
    _, start, work = gan_cohort(KERNELS[kernel])
    drawn = []

    def noted(objective):
        def note(call, x, y, generator):
            drawn.append((objective, x, generator.get_state()))
            return objective(call, x, y, generator)

        return note

    states, model = (OptimizerState(), OptimizerState()), start
    for _ in range(3):
        for objective, name, steps, state in (
            (realism, "critic", 2, states[0]),
            (deceit, "generator", 1, states[1]),
        ):
            model = work.minimise(
                noted(objective), model, part=name, lr=0.05, steps=steps, batch=3,
                optimizer=optimizer, momentum=0.5, state=state,
            )  # fmt: skip
    clients = [[], []]
    for turn in range(3):
        for begin, steps in ((0, 2), (4, 1)):
            for i in range(2):
                first = 6 * turn + begin + i * steps
                clients[i] += drawn[first : first + steps]
    for i, steps in enumerate(clients):
        torch.testing.assert_close(model[i], plain_loop(steps, optimizer))


def plain_loop(steps, optimizer):
    torch.manual_seed(0)
    module = Gan().double().train()
    options = {"lr": 0.05} | ({"momentum": 0.5} if optimizer == "momentum" else {})
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    ours = {
        realism: kind(module.critic.parameters(), **options),
        deceit: kind(module.generator.parameters(), **options),
    }
    layout = Classification(module).layout
    for objective, x, state in steps:
        generator = torch.Generator()
        generator.set_state(state)
        statistics = {name: tensor.clone() for name, tensor in module.generator.named_buffers()}
        ours[objective].zero_grad()
        objective(lambda name, x: module.get_submodule(name)(x), x, None, generator).backward()
        ours[objective].step()
        if objective is realism:  # only what is trained moves
            for name, tensor in module.generator.named_buffers():
                tensor.copy_(statistics[name])
    return layout.flatten(module)


def test_a_batch_that_the_network_cannot_take_is_told_in_a_sentence():
    _, start, work = gan_cohort()
    with pytest.raises(DataError, match="cannot train on such a batch: Expected more than 1 value"):
        work.minimise(deceit, start, lr=0.1, steps=1, batch=1)


def test_without_a_state_an_optimiser_begins_anew():
    _, start, work = gan_cohort()
    step = {"part": "critic.2", "lr": 0.1, "steps": 1, "optimizer": "adam"}
    state = OptimizerState()
    once = work.minimise(constant_slope, start, state=state, **step)
    anew = work.minimise(constant_slope, once, **step)
    on = work.minimise(turned_slope, once, state=state, **step)
    fresh = work.minimise(turned_slope, once, **step)
    torch.testing.assert_close(once - start, anew - once)
    assert not torch.allclose(on, fresh)  # the first moment remembers the slope of before


def constant_slope(call, x, y, generator):
    return call("critic.2", x.new_ones(1, 5)).sum()


def turned_slope(call, x, y, generator):
    return -constant_slope(call, x, y, generator)


def test_what_is_kept_of_an_optimiser_is_a_row_for_each_client():
    task, start, work = gan_cohort()
    state = OptimizerState()
    work.minimise(realism, start, part="critic", lr=0.1, steps=2, optimizer="adam", state=state)
    width = sum(p.numel() for p in task.module.critic.parameters())
    assert state.rows.shape == (2, 1 + 2 * width)
    assert state.rows[:, 0].tolist() == [2, 2]


@pytest.mark.parametrize("part", ["critic", "generator", None])
def test_only_the_part_moves(part):
    task, start, work = gan_cohort()
    end = work.minimise(deceit, start, part=part, lr=0.1, steps=2, weight_decay=0.1)
    moves = task.layout.part(part or "all")
    assert torch.equal(end[:, ~moves], start[:, ~moves])
    assert not torch.equal(end[:, moves], start[:, moves])
    mask = work.minimise(deceit, start, part=moves, lr=0.1, steps=2, weight_decay=0.1)
    assert mask.shape == end.shape


def test_a_client_is_the_same_alone_and_in_company():
    _, start, together = gan_cohort()
    _, _, alone = gan_cohort()
    options = {"lr": 0.1, "steps": 3, "batch": 3, "part": "generator"}
    both = together.minimise(deceit, start, **options)
    second = alone.subset(torch.tensor([1])).minimise(deceit, start[1:], **options)
    torch.testing.assert_close(both[1], second[0])


def test_samples_that_are_all_in_a_batch_keep_their_order_in_any_company():
    """An objective that draws for each of them gives each the same draw."""
    seen = {}

    def ordered(name):
        def objective(call, x, y, generator):
            seen.setdefault(name, []).append(x)
            return realism(call, x, y, generator)

        return objective

    _, start, together = gan_cohort(sizes=(3, 9))
    _, _, alone = gan_cohort(sizes=(3, 9))
    options = {"lr": 0.1, "steps": 2, "batch": 4, "part": "critic"}
    both = together.minimise(ordered("together"), start, **options)
    first = alone.subset(torch.tensor([0])).minimise(ordered("alone"), start[:1], **options)
    assert torch.equal(seen["together"][0], seen["alone"][0])
    torch.testing.assert_close(both[0], first[0])


def test_a_client_left_without_samples_stands_still_and_its_optimiser_too():
    _, start, work = gan_cohort(sizes=(6, 4, 5))
    chosen = torch.ones(3, 6, dtype=torch.bool)
    chosen[1] = False
    state = OptimizerState()
    options = {"lr": 0.1, "steps": 2, "optimizer": "momentum", "part": "critic"}
    end = work.among(chosen).minimise(realism, start, state=state, **options)
    assert (end != start).any(1).tolist() == [True, False, True]
    assert state.rows[:, 0].tolist() == [2, 0, 2]
    again = work.minimise(realism, end, state=state, **options)  # it begins there
    assert (again != end).any(1).tolist() == [True, True, True]
    nobody = work.among(torch.zeros(3, 6, dtype=torch.bool))
    assert torch.equal(nobody.minimise(realism, start, **options), start)


@pytest.mark.parametrize("kernel", [PerClientKernel, BatchedKernel, VmappedKernel])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_tasks_own_loss_gives_what_descend_gives(kernel, optimizer):
    task = Classification(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double())
    start = torch.randn(2, task.layout.size, generator=torch.Generator().manual_seed(0)).double()
    options = {"lr": 0.1, "steps": 4, "batch": 2, "clip": 0.2, "weight_decay": 0.1}
    options |= {"optimizer": optimizer, "part": "head"}
    one, two = (cohort(task, kernel, [5, 3], 3, 2, 0) for _ in range(2))

    def loss(call, x, y, generator):
        return task.losses(call(None, x), y).mean()

    torch.testing.assert_close(
        one.minimise(loss, start, **options), two.descend(start, **options) + 0
    )


@pytest.mark.parametrize(
    ("objective", "part", "kind", "sentence"),
    [
        (lambda call, x, y, g: call("critic", x), "critic", CoterieError, "one number as a tensor"),
        (lambda call, x, y, g: 3.0, "critic", CoterieError, "one number as a tensor, got 3.0"),
        (lambda call, x, y, g: x.sum(), "critic", CoterieError, "must depend on the part"),
        (lambda call, x, y, g: call("judge", x), "critic", SettingError, "no part named judge"),
        (deceit, "judge", SettingError, "no part named judge"),
        (deceit, "generator.1.running_mean", SettingError, "no trained parameters"),
    ],
)
def test_what_cannot_be_minimised_is_told_in_a_sentence(objective, part, kind, sentence):
    _, start, work = gan_cohort()
    with pytest.raises(kind, match=sentence):
        work.minimise(objective, start, part=part, lr=0.1, steps=1)
    with pytest.raises(SettingError, match="`optimizer` must be one of sgd, momentum, adam"):
        work.minimise(deceit, start, lr=0.1, steps=1, optimizer="adma")
    with pytest.raises(SettingError, match=r"`betas` must be .* below 1, got \(0.9, 1.0\)"):
        work.minimise(deceit, start, lr=0.1, steps=1, betas=(0.9, 1.0))


@pytest.mark.parametrize("left", [[True, True, True], [True, False, True], [False, False, False]])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_several_models_of_a_client_go_as_each_would_alone(left, optimizer):
    options = {"lr": 0.1, "steps": 2, "batch": 3, "part": "critic", "optimizer": optimizer}
    left = torch.tensor(left)

    def some_left():
        _, start, work = gan_cohort(sizes=(6, 5, 3))
        return start, work.among(work.mask & left[:, None])

    start, work = some_left()
    torch.manual_seed(1)
    models = start[:, None] + 0.1 * torch.rand(3, 4, start.shape[1], dtype=start.dtype)
    moments = OptimizerState()
    once = work.minimise(realism, models, state=moments, **options)
    twice = work.minimise(realism, once, state=moments, **options)
    assert twice.shape == models.shape
    for j in range(4):
        own, (_, alone) = OptimizerState(), some_left()
        first = alone.minimise(realism, models[:, j], state=own, **options)
        assert torch.equal(first, once[:, j])
        assert torch.equal(alone.minimise(realism, first, state=own, **options), twice[:, j])
        assert moments.rows is own.rows is None or torch.equal(moments.rows[:, j], own.rows)
    assert torch.equal(twice[~left], models[~left])
    assert bool((twice != models).any(2).all(1)[left].all())
