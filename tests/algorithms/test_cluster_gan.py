import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from coterie import Centre, ClusterGAN, Codes, Federation, simulate
from coterie.algorithms import cluster_gan
from coterie.algorithms.cluster_gan import State, critic_loss, generator_loss
from coterie.core.errors import SettingError
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.simulator import Simulator
from coterie.networks.gan import GanModule
from tests.algorithms.lines import start_of
from tests.engine.kernels.cohorts import cohort


class Plain(nn.Module):
    """Three linear networks with known weights, on samples of two numbers."""

    def __init__(self):
        super().__init__()
        self.generator = linear([[0.0, 0, 0], [0, 0, 0]], [1.0, 2])  # whatever z, it makes (1, 2)
        self.critic = linear([[3.0, 4]], [0.0])
        self.encoder = linear([[1.0, 0], [0, 0], [0, 0]], [0.0, 0, 0])  # the first number is noise
        self.register_buffer("centre", torch.zeros(3).double())
        self.noise, self.classes = 1, 2

    def forward(self, x):
        z = self.encoder(x)
        return torch.cat([z[:, :1], z[:, 1:].softmax(1)], 1) - self.centre


def linear(weight, bias):
    layer = nn.Linear(len(weight[0]), len(weight)).double()
    layer.weight.data, layer.bias.data = torch.tensor(weight).double(), torch.tensor(bias).double()
    return layer


def call_parts(module):
    return lambda name, x: module.get_submodule(name)(x)


def test_the_loss_of_the_critic_by_hand():
    # D(x) = 3 x_1 + 4 x_2 has a slope of length 5 everywhere: the penalty is (5 - 1)^2 = 16.
    # Made samples are worth 3 + 8 = 11, true ones 3 and 4, on average 3.5.
    module, x = Plain(), torch.eye(2).double()
    loss = critic_loss(
        call_parts(module), x, None, torch.Generator(), task=Codes(module), penalty=10.0
    )
    assert loss.item() == pytest.approx(11 - 3.5 + 10 * 16)


def test_the_penalty_is_of_the_slope_between_made_and_true_samples():
    class Square(nn.Module):  # |x|^2 / 2 has slope x
        def forward(self, x):
            return x.square().sum(1, keepdim=True) / 2

    module = Plain()
    module.critic = Square()
    generator = torch.Generator().manual_seed(3)
    task, x = Codes(module), torch.tensor([[4.0, 6.0], [0.0, 0.0]]).double()
    loss = critic_loss(call_parts(module), x, None, generator, task=task, penalty=2.0)
    generator.manual_seed(3)
    task.draw_latent(2, generator)
    share = torch.rand(2, 1, generator=generator).flatten().tolist()  # of the true sample
    lengths = [math.hypot(1 + 3 * share[0], 2 + 4 * share[0]), math.sqrt(5) * (1 - share[1])]
    penalty = sum((length - 1) ** 2 for length in lengths) / 2
    assert loss.item() == pytest.approx(2.5 - 26 / 2 + 2 * penalty, rel=1e-6)


def test_the_loss_of_generator_and_encoder_by_hand():
    # It makes (1, 2), in which E finds the noise 1 and two classes that are equally likely.
    module, generator = Plain(), torch.Generator().manual_seed(5)
    task, x = Codes(module), torch.zeros(4, 2).double()
    options = {"task": task, "noise": 10.0, "classes": 7.0}
    loss = generator_loss(call_parts(module), x, None, generator, **options)
    z, _ = task.draw_latent(4, generator.manual_seed(5))
    noise = (z[:, 0] - 1).square().mean().item()
    assert loss.item() == pytest.approx(10 * noise + 7 * math.log(2) - 11)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_clients_round_is_a_plain_loop_of_torch_optim(optimizer, monkeypatch):
    """Two critic steps and one of the others, three times; what was drawn is looked up."""
    settings = {"lr": 0.01, "optimizer": optimizer, "penalty": 3.0, "category_weight": 2.0}
    algorithm = ClusterGAN(k=2, steps=3, critic_steps=2, batch=4, **settings)
    drawn = []

    def noted(name, objective):
        def note(call, x, y, generator, **options):
            drawn.append((name, x, generator.get_state(), options))
            return objective(call, x, y, generator, **options)

        return note

    for name in ("critic_loss", "generator_loss"):
        monkeypatch.setattr(cluster_gan, name, noted(name, getattr(cluster_gan, name)))
    torch.manual_seed(0)
    module = GanModule([3], classes=2, noise=2, hidden=5).double()
    task = Codes(module)
    some = cohort(task, PerClientKernel, [6, 9], 3, 2, 0)
    up = algorithm.train(some, model=task.layout.flatten(module))
    assert up.size.tolist() == [6, 9]

    # Each call works on one client after the other: 2 x 2 critic steps, then 2 x 1 others.
    mine = [step for t in range(3) for step in (*drawn[6 * t + 2 : 6 * t + 4], drawn[6 * t + 5])]
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    options = {"lr": 0.01} | ({"betas": (0.5, 0.9)} if optimizer == "adam" else {})
    both = [*module.generator.parameters(), *module.encoder.parameters()]
    ours = {
        "critic_loss": (kind(module.critic.parameters(), **options), critic_loss),
        "generator_loss": (kind(both, **options), generator_loss),
    }
    for name, x, state, weights in mine:
        optimiser, objective = ours[name]
        generator = torch.Generator()
        generator.set_state(state)
        optimiser.zero_grad()
        objective(call_parts(module), x, None, generator, **weights).backward()
        optimiser.step()
    assert [step[0] for step in mine] == ["critic_loss", "critic_loss", "generator_loss"] * 3
    torch.testing.assert_close(up.model[1], task.layout.flatten(module))


def test_the_server_takes_the_mean_by_size_or_of_all_alike():
    data = places([1.0, 2], [3.0, 4, 5, 6, 7, 8])
    clients = Simulator(data.train, Codes(Plain()))
    state = begun(clients)
    for weighting, share in (("equal", 1 / 2), ("size", 1 / 4)):
        algorithm = ClusterGAN(k=2, steps=1, lr=0.01, weighting=weighting)
        alone = [clients.at("round", 0, ids=torch.tensor([i])) for i in range(2)]
        first, second = (algorithm.round(state, one)[0].model for one in alone)
        after, info = algorithm.round(state, clients.at("round", 0))
        torch.testing.assert_close(after.model, share * first + (1 - share) * second)
        assert not torch.allclose(first, second)
        assert info.ids.tolist() == [0, 1]
        assert info.cluster is None


def places(*clients):
    """Clients whose samples are points on a line in the plane; all labels are 0."""
    pairs = []
    for values in clients:
        x = torch.tensor(values).double()
        pairs.append((torch.stack([x, torch.zeros_like(x)], 1), torch.zeros(len(values)).long()))
    return Federation.from_clients(pairs)


def begun(clients):
    return State(clients.task.layout.flatten(clients.task.module), torch.tensor(7))


def test_clusters_by_hand():
    # Codes are (x_1, 1/2, 1/2). The clients' centres are 0.5 and 9, 10.5 and 1; of these the
    # server's are 0.75 and 9.75.
    clients = Simulator(places([0.0, 1, 9], [10.0, 11, 1]).train, Codes(Plain()))
    algorithm = ClusterGAN(k=2)
    serving = algorithm.serve(begun(clients), clients.at("serve"))
    centres = clients.task.layout.unflatten(serving.models)["centre"]
    low = int(centres[:, 0].argmin())
    torch.testing.assert_close(
        centres[[low, 1 - low]], torch.tensor([[0.75, 0.5, 0.5], [9.75, 0.5, 0.5]]).double()
    )
    cohort = clients.cohort(clients.ids, 0, (0,))
    label = serving.label(cohort, models=serving.models)
    assert label.eq(low).tolist() == [[True, True, False], [False, False, True]]
    assert serving.cluster.eq(low).tolist() == [True, False]


def test_what_leaves_a_client_to_find_clusters_is_centres_alone():
    clients = Simulator(places([0.0, 1, 9], [5.0]).train, Codes(Plain()))
    state = begun(clients)
    _, up = clients.at("serve").run(ClusterGAN(k=2).cluster, model=state.model, seed=state.seed)
    assert up.number.tolist() == [2, 1]  # n <= k samples have their codes for centres
    assert sorted(up.centres[0, :, 0].tolist()) == pytest.approx([0.5, 9])
    assert up.centres[1, 0].tolist() == pytest.approx([5, 0.5, 0.5])


def test_a_single_sample_of_a_single_client_is_a_cluster():
    clients = Simulator(places([5.0]).train, Codes(Plain()))
    algorithm = ClusterGAN(k=2)
    serving = algorithm.serve(begun(clients), clients.at("serve"))
    assert clients.task.layout.unflatten(serving.models)["centre"][:, 0].tolist() == [5, 5]


def test_clients_without_samples_send_no_centre():
    task = Codes(Plain())
    some = cohort(task, PerClientKernel, [4, 3], 2, 2, 0)
    chosen = torch.tensor([[True, True, True, True], [False, False, False, False]])
    model = task.layout.flatten(task.module)
    algorithm = ClusterGAN(k=2, steps=1, lr=0.01)
    assert algorithm.cluster(some.among(chosen), model, torch.tensor(7)).number.tolist() == [2, 0]
    up = algorithm.train(some.among(chosen), model)
    assert torch.equal(up.model[1], model)
    assert not torch.equal(up.model[0], model)


def test_another_task_is_refused():
    data = places([1.0, 2], [3.0, 4])
    clients = Simulator(data.train, Centre(2))
    with pytest.raises(SettingError, match=r"its task must be Codes .* 2 classes, got Centre"):
        ClusterGAN(k=2).init(start_of(clients))
    with pytest.raises(SettingError, match="network of 3 classes, got Codes of 2 classes"):
        simulate(ClusterGAN(k=3), data, Codes(Plain()), rounds=1)


def test_a_run_labels_every_sample_and_counts_its_clusters():
    label = torch.arange(40) % 2
    x = torch.where(label == 1, 3.0, -3.0)[:, None] + torch.tensor([[0.0, 0.1]])
    data = Federation.from_clients([(x[:25], label[:25]), (x[25:], label[25:])])
    task = Codes(lambda classes: GanModule([2], classes, noise=2, hidden=8), classes=2)
    algorithm = ClusterGAN(k=2, steps=2, batch=8, tries=3)
    run = simulate(algorithm, replace(data, sample_clusters=True), task, rounds=2)
    assert run.metrics["purity"] == 1
    assert sorted(run.labels.bincount().tolist()) == [20, 20]
