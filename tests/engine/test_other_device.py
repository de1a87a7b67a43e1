"""Client steps on another device give what they give on the CPU, and leave nothing behind."""

from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from torch import nn

import coterie
from coterie import checks
from coterie.core import seeds
from coterie.core.clients import Each
from coterie.core.errors import CoterieError, SettingError
from coterie.core.local_work import OptimizerState
from coterie.core.rows import Rows
from coterie.data.federation import Federation, Samples
from coterie.engine import devices, simulator
from coterie.engine.copies.lockstep import CopyThread
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.kernels.vmapped import VmappedKernel
from coterie.engine.simulator import Simulator
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings
from coterie.networks.cnn import RandomCropFlip
from coterie.tasks import Classification, TokenClassification
from coterie.tensors.lazy import dense, to_device
from coterie.vectors.folds import ByCluster
from tests.engine.other_device import FAR, Far, Mixed, elsewhere
from tests.tasks.taggers import (
    NaiveTagger,
    build,
    tagging_federation,
    two_input_federation,
    two_input_task,
)
from tests.test_conformance import CASES

THERE = str(FAR)
# Less of everything that takes time and says nothing about devices.
SHORT = {"steps": 2, "start_rounds": 1, "trunk_rounds": 1, "fits": 1, "tries": 2}
SHORT |= {"path_rounds": 1, "fit_rounds": 1, "personal_steps": 2}


@pytest.fixture
def known(monkeypatch):
    """The device that is not there is one that can be named."""
    monkeypatch.setattr(devices, "available_devices", lambda: ["cpu", THERE])


@pytest.fixture
def far(known):
    with elsewhere():
        yield


def short(algorithm):
    own = {field.name for field in fields(algorithm)}
    return replace(algorithm, **{name: n for name, n in SHORT.items() if name in own})


def convolution():
    """A small network of convolutions for the samples of the conformance suite."""

    def build():
        image = nn.Unflatten(1, (1, checks.FEATURES))
        layers = [image, nn.Conv1d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, checks.CLASSES)]
        return nn.Sequential(*layers).double()

    return Classification(build)


def both(algorithm, task, federation=None, **settings):
    """The same run on the CPU and elsewhere."""
    federation = federation or checks.small_federation(checks.ragged_sizes(algorithm))
    settings = {"rounds": 2, "evaluate": 2, **settings}
    here = coterie.simulate(algorithm, federation, task, **settings)
    with elsewhere():
        there = coterie.simulate(algorithm, federation, task, device=THERE, **settings)
    return here, there


def alike(here, there):
    with elsewhere():  # models of the clients' own are made when they are asked for
        checks.assert_same(here, there)
        models = there.models
    assert there.metrics == pytest.approx(here.metrics, abs=1e-9)
    assert there.bytes.table() == here.bytes.table()
    everything = [*there.state, there.clusters, models, *there.population.memory.rows.values()]
    assert not any(isinstance(tensor, Far) for tensor in everything)


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_gives_the_same_elsewhere(name, known):
    alike(*both(short(CASES[name]), checks.task_for(CASES[name])))


@pytest.mark.parametrize(
    "name", ["ifca", "fedavg", "fesem", "cfl", "fpfc", "ditto-mini-batches", "per-fedavg", "local"]
)
def test_convolutions_give_the_same_elsewhere(name, known):
    here, there = both(short(CASES[name]), convolution())
    alike(here, there)
    assert isinstance(here.population.kernel, PerClientKernel)
    assert isinstance(there.population.kernel, VmappedKernel)
    assert there.population.kernel._exact


@pytest.mark.parametrize("name", ["ifca", "ifca-stable", "fedavg", "oracle", "local"])
def test_descent_in_sample_space_gives_the_same_elsewhere(name, known):
    few = checks.small_federation([3, 2, 4, 4, 1, 3])
    alike(*both(short(CASES[name]), checks.small_task(), few))


@pytest.mark.parametrize("name", ["fedavg", "ditto-mini-batches"])
def test_networks_that_draw_or_keep_statistics_go_one_by_one_elsewhere(name, known):
    """Here dropout draws from the CPU's generator also elsewhere; on a real GPU it would not."""
    sizes = checks.small_federation([5, 8, 3])
    here, there = both(short(replace(CASES[name], batch=0)), checks.noisy_task(), sizes)
    alike(here, there)
    assert there.population.kernel._exact is False


@pytest.mark.parametrize("algorithm", ["ifca", "ditto-mini-batches"])
@pytest.mark.parametrize("fits", [True, False])
def test_sequences_and_several_inputs_give_the_same_elsewhere(algorithm, fits, known, monkeypatch):
    if not fits:
        monkeypatch.setattr(simulator, "DEVICE_SHARE", 0.0)
    sizes = [5, 8, 3, 3, 2]
    careless = TokenClassification(partial(build, NaiveTagger, torch.float64), padding="none")
    for data, task in [
        (tagging_federation(sizes), careless),
        (two_input_federation(sizes), two_input_task(torch.float64)),
    ]:
        here, there = both(short(CASES[algorithm]), task, data)
        alike(here, there)
        assert there.population.kernel._exact is False


def test_lost_replies_and_small_chunks_give_the_same_elsewhere(known):
    alike(*both(short(CASES["ifca"]), checks.small_task(), lost=0.3, chunk=2, fraction=0.8))


def test_several_starts_and_values_give_the_same_elsewhere(known, monkeypatch):
    loop = CopyThread._loop

    def loop_elsewhere(thread):
        with elsewhere():  # every thread has its own modes
            loop(thread)

    monkeypatch.setattr(CopyThread, "_loop", loop_elsewhere)
    algorithm = coterie.IFCA(k=2, average="gradients", start="random")
    alike(*both(algorithm, checks.small_task(), starts=2, grid={"lr": [0.1, 0.5]}))
    lines, _ = coterie.load("linear-mixture", clients=6, samples=9, features=4)
    task = coterie.Regression(lambda: nn.Linear(4, 1).double())
    alike(*both(algorithm, task, lines, starts=3, rounds=9, evaluate=9))


def test_frozen_weights_are_there_too(known):
    def build():
        image = nn.Unflatten(1, (1, checks.FEATURES))
        layers = [image, nn.Conv1d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, checks.CLASSES)]
        layers[1].requires_grad_(False)
        return nn.Sequential(*layers).double()

    alike(*both(short(CASES["ifca"]), Classification(build)))


def test_clients_that_never_train_are_served_elsewhere(known):
    data = checks.small_federation([4, 6, 5, 3])
    unseen = Federation(
        data.train, checks.small_federation([3, 7]).train, data.cluster, unseen=True
    )
    here, there = both(short(CASES["ifca"]), checks.small_task(), unseen)
    alike(here, there)
    more = checks.small_federation([4, 2])
    with elsewhere():
        assert torch.equal(here.serve(more), there.serve(more))


@pytest.mark.parametrize("free", [10**9, 0])
def test_pixels_stay_bytes_on_their_way(known, monkeypatch, free):
    """They are moved once if they fit, else chunk by chunk; both give the same."""
    monkeypatch.setattr(simulator, "free_bytes", lambda device: free)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (12, 2, 2), generator=generator).to(torch.uint8)
    y = torch.arange(12) % 3
    data = Federation(Samples(x, y, torch.tensor([0, 5, 9, 12])))
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    here, there = both(coterie.FedAvg(steps=2), Classification(network, scale=255), data)
    alike(here, there)
    lies = there.population._samples_on_device.x
    assert lies.dtype == torch.uint8
    assert isinstance(lies, Far) == (free > 0)


def test_samples_lie_elsewhere_once_for_all_who_use_them(far):
    data = checks.small_federation([4, 4])
    one, two = (Simulator(data.train, checks.small_task(), device=THERE) for _ in range(2))
    for each in (one, two):
        each.cohort(each.ids, 0, (0,))
    assert one._samples_on_device is two._samples_on_device


def test_models_that_clients_share_are_sent_once(far):
    many = Simulator(checks.small_federation([4, 4]).train, checks.small_task(), device=THERE)
    models = torch.arange(6.0).view(2, 3)
    sent = many._download(Each(models, torch.tensor([1, 0])))
    assert isinstance(sent.rows, Far)
    assert sent.rows_for(torch.tensor([0])).tolist() == [[3, 4, 5]]
    own = Each(models)  # rows of which each client gets one are sent chunk by chunk
    assert many._download(own) is own


def test_a_crop_is_the_same_elsewhere(far):
    images = torch.arange(2 * 3 * 6 * 6.0).view(2, 3, 6, 6)
    crops = []
    for device in ("cpu", THERE):
        torch.manual_seed(0)
        with torch.device(device):
            crops.append(RandomCropFlip(4)(images.to(device)).cpu())
    assert torch.equal(*crops)


def test_linear_stacks_are_batched_and_chunks_are_larger_elsewhere(far):
    data, wide = checks.small_federation([4]).train, nn.Linear(checks.FEATURES, 2**18).double()
    here, there = (Simulator(data, Classification(wide), device=d) for d in ("cpu", THERE))
    assert isinstance(there.kernel, BatchedKernel)
    assert there.chunking.clients > here.chunking.clients > 1
    assert Simulator(data, checks.small_task(), device=THERE, chunk=7).chunking.clients == 7


def left_behind(self):
    """`Rows.mask` as it would be for one device only."""
    return torch.arange(self.y.shape[1], device="cpu") < self.size[:, None]


def test_a_tensor_that_is_left_behind_is_noticed(known, monkeypatch):
    monkeypatch.setattr(Rows, "mask", property(left_behind))
    with pytest.raises(Mixed, match="on the CPU"):
        both(coterie.FedAvg(steps=1), checks.small_task())


def test_a_server_that_gets_what_is_elsewhere_is_noticed(known, monkeypatch):
    """The server's choice of a cluster works with its own centres, on the CPU."""
    monkeypatch.setattr(ByCluster, "on_any_device", True)
    with pytest.raises(Mixed):
        both(short(CASES["fesem"]), checks.small_task())


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.ones(1, 3)]),
        lambda x: torch.ones(3)[x[0].long()],
        lambda x: x.index_add_(0, torch.tensor([0]), x[:1]),
        lambda x: torch.equal(x, torch.ones(2, 3)),
        lambda x: torch.tensor(0.0).add_(x.sum()),
        lambda x: torch.randperm(3, generator=torch.Generator(), device=x.device),
    ],
)
def test_the_device_that_is_not_there_refuses_what_cuda_refuses(work, far):
    with pytest.raises(Mixed):
        work(torch.zeros(2, 3, device=FAR))


def test_the_device_that_is_not_there_allows_what_cuda_allows(far):
    x = torch.arange(6.0).view(2, 3).to(FAR)
    x[torch.tensor([1])] = torch.tensor(7.0)
    assert (x * torch.tensor(2.0)).tolist() == [[0, 2, 4], [14, 14, 14]]
    with pytest.raises(TypeError):
        x.numpy()


def test_a_device_that_is_not_there_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(devices.torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "gpu", ""):
        with pytest.raises(SettingError, match=f"`device` must be cpu, .* got {name}$"):
            RunSettings(device=name)
    monkeypatch.setattr(devices.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices.torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SettingError, match=r"one of cpu, cuda, cuda:0, got cuda:1$"):
        Simulator(checks.small_federation([4]).train, checks.small_task(), device="cuda:1")


def test_memory_that_is_too_small_is_told_in_a_sentence(far):
    def greedy(cohort):
        raise torch.OutOfMemoryError("CUDA out of memory")

    many = Simulator(checks.small_federation([4]).train, checks.small_task(), device=THERE)
    with pytest.raises(CoterieError, match="a smaller `chunk` may help"):
        many.on_device(greedy, None)


def test_ray_shards_are_on_the_cpu(far):
    settings = RunSettings(device=THERE)
    run = Run(coterie.FedAvg(), checks.small_federation([4, 4]), checks.small_task(), settings)
    with pytest.raises(SettingError, match="`device` must be cpu where clients run in Ray actors"):
        run.use_ray(2)


def test_a_network_of_machines_is_on_the_cpu(far):
    from coterie.flower.app import app_from_arguments

    with pytest.raises(SettingError, match="`device` must be cpu for a run over a network"):
        app_from_arguments(["fedavg", "rotated-digits", f"device={THERE}"])


@pytest.mark.parametrize("task", [checks.small_task, convolution, checks.noisy_task])
def test_all_that_a_step_may_ask_of_a_cohort_is_the_same_elsewhere(task, known):
    task, samples = task(), checks.small_federation([5, 8, 3]).train
    start = torch.stack([task.draw(seeds.generator(j)) for j in range(6)]).view(3, 2, -1)
    weights = torch.rand(3, 8, 2, generator=seeds.generator(0)).double()
    chosen = torch.rand(3, 8, generator=seeds.generator(1)) < 0.5
    chosen[2] = False

    def ask(cohort, start, weights, chosen):
        state, some, found = OptimizerState(), cohort.among(chosen), []
        for optimizer in ("sgd", "momentum", "adam"):
            work = {"lr": 0.1, "steps": 3, "clip": 0.5, "optimizer": optimizer}
            found.append(cohort.descend(start, weights=weights, part="head", **work))
            found.append(some.descend(start[:, 0], weight_decay=0.1, **work))
        found.append(cohort.gradient(start, weights=weights, clip=0.1, statistics=True))
        found.append(some.gradient(start[:, 0], statistics=False))
        found += [cohort.losses(start), some.losses(start[0]), some.loss(start)]
        found += [some.choose(start[0]).model, some.score(start[:, 0])]
        found += [some.among(some.mask & False).score(start[:, 0])]
        for _ in range(2):
            work = {"lr": 0.1, "steps": 2, "optimizer": "adam", "state": state}
            found.append(some.minimise(squares, start[:, 0], **work))
        return tuple(dense(each) + 0 for each in found)

    asked = (start, weights, chosen)
    here = ask(Simulator(samples, task).cohort(torch.arange(3), 0, (0,)), *asked)
    with elsewhere():
        far = Simulator(samples, task, device=THERE)
        found = far.on_device(ask, far.cohort(torch.arange(3), 0, (0,)), *asked)
        there = [to_device(each, torch.device("cpu")) for each in found]
    torch.testing.assert_close(there, list(here))


def squares(call, x, y, generator):
    return (
        (call(None, x) - torch.rand((), generator=generator, device="cpu").item()).square().mean()
    )
