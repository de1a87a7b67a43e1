"""What a run may be given to begin with."""

import pytest
import safetensors.torch
import torch
from torch import nn

import coterie
from coterie import IFCA, FedAvg, Regression, Run
from coterie.algorithms.k_fed import KFed
from coterie.core.errors import CheckpointError, SettingError
from coterie.experiment.grid import Grid
from coterie.experiment.initial import given_models
from coterie.experiment.settings import RunSettings
from tests.algorithms.lines import line


def network():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def task():
    return Regression(network)


def files(tmp_path, module):
    """The state dict of a module, in every kind of file."""
    state = module.state_dict()
    torch.save(state, tmp_path / "weights.pt")
    safetensors.torch.save_file(state, tmp_path / "weights.safetensors")
    return [tmp_path / "weights.pt", str(tmp_path / "weights.safetensors")]


def test_a_module_its_files_and_its_vector_are_one_model(tmp_path):
    module = network()
    module[1].running_var += 2
    whole = task()
    vector = whole.layout.flatten(module)
    for initial in (module, vector, vector[None].double(), *files(tmp_path, module)):
        assert torch.equal(given_models(initial, whole), vector[None])


@pytest.mark.parametrize(
    ("initial", "sentence"),
    [
        (torch.zeros(3), r"a model \[26\] or several \[j, 26\] .* got the shape \[3\]"),
        (torch.zeros(2, 2, 26), r"got the shape \[2, 2, 26\]"),
        (torch.zeros(0, 26), r"got the shape \[0, 26\]"),
        (torch.full((26,), torch.nan), "must be finite"),
        (nn.Linear(2, 3), r"whose 0.weight has the shape \[3, 2\]: the module Linear has none"),
        ([1.0], "a tensor, a torch.nn.Module or the path of a state dict, got list"),
        ("nowhere.pt", "cannot be read from nowhere.pt: .*No such file"),
        ("nowhere.safetensors", "cannot be read from nowhere.safetensors"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(initial, sentence):
    with pytest.raises(SettingError, match=sentence):
        given_models(initial, task())


def test_a_file_that_is_no_state_dict_is_refused(tmp_path):
    torch.save([torch.zeros(3)], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("weights")
    for name in ("list.pt", "text.pt"):
        with pytest.raises(SettingError, match="`initial`"):
            given_models(tmp_path / name, task())


def test_frozen_weights_are_the_tasks_and_others_are_refused():
    def half_frozen():
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        module[0].requires_grad_(False)
        return module

    frozen, other = Regression(half_frozen), half_frozen()
    with pytest.raises(SettingError, match=r"0.weight is frozen, and the module Sequential has"):
        given_models(other, frozen)
    other[0].load_state_dict(frozen.module[0].state_dict())
    assert given_models(other, frozen).shape == (1, 3)


def begun(algorithm, targets, initial, **settings):
    """A run on a line that has begun, with models of one number."""
    one = Regression(lambda: nn.Linear(1, 1, bias=False))
    run = Run(algorithm, line(targets), one, RunSettings(**settings), initial=initial)
    run.training.begin()
    return run


def test_a_run_begins_with_what_it_is_given():
    assert begun(FedAvg(), [1], torch.tensor([5.0])).state.model.tolist() == [5.0]
    given = torch.tensor([[5.0], [7.0]])
    assert torch.equal(begun(IFCA(k=2), [1, 2], given).state.models, given)


def test_models_that_nobody_asks_for_are_refused():
    data, centres = line([1, 2]), coterie.Centre(1)
    run = Run(KFed(k=2), data, centres, RunSettings(), initial=torch.ones(1))
    with pytest.raises(SettingError, match="`initial` must be left out: KFed begins with no model"):
        run.training.begin()


def test_a_checkpoint_of_another_initial_belongs_to_another_run(tmp_path):
    settings = {"rounds": 2, "checkpoint": 1}
    run = begun(FedAvg(), [1], torch.tensor([5.0]), **settings)
    run.training.state = None
    run.use(tmp_path / "run")
    run.complete()
    same, other, none = (
        begun(FedAvg(), [1], initial, **settings)
        for initial in (torch.tensor([[5.0]]), torch.tensor([6.0]), None)
    )
    same.use(tmp_path / "run", resume=True)
    same.complete()
    for run in (other, none):
        with pytest.raises(CheckpointError, match="belongs to another run"):
            run.use(tmp_path / "run", resume=True)


def test_several_starts_of_one_model_are_refused():
    brought = Regression(nn.Linear(1, 1, bias=False))
    drawn = Regression(lambda: nn.Linear(1, 1, bias=False))
    for one, initial in ((brought, None), (drawn, torch.ones(1))):
        copies = Grid(FedAvg(), line([1, 2]), one, RunSettings(starts=2), {}, initial=initial)
        with pytest.raises(SettingError, match="`starts` must be 1 where the network or `initial`"):
            copies.complete()


@pytest.mark.parametrize("algorithm", [FedAvg(lr=1e-9), IFCA(k=2, lr=1e-9)])
def test_what_a_trained_network_knows_is_served(algorithm):
    """As it was, a network was drawn anew: 77.3 % before, 9.9 % served."""
    federation, _ = coterie.load("rotated-digits", clients=8)
    x, y, test = federation.train.x.float(), federation.train.y, federation.test
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x / federation.scale), y).backward()
        optimizer.step()
    right = module(test.x.float() / federation.scale).argmax(1) == test.y
    before = right.double().mean().item()
    task = coterie.Classification(module, scale=federation.scale)
    run = coterie.simulate(algorithm, federation, task, rounds=1)
    assert run.metrics["accuracy"] == pytest.approx(before)
    assert before > 0.4
