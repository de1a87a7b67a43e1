from dataclasses import replace

import pytest
import torch

import coterie
from coterie.algorithms.k_fed import KFed
from coterie.core.errors import DataError, SettingError
from coterie.data.federation import Federation
from coterie.data.tables.schema import Schema
from coterie.networks import Linear, LinearFlow, Mlp
from coterie.networks.flows import RealNvp
from coterie.shelves import ALGORITHMS
from coterie.tasks.defaults import algorithm_task, default_task, prepare_task, weigh_classes


def federation(targets, **facts):
    data = Federation.from_clients([(torch.ones(4, 2, 3), torch.tensor(targets))] * 2)
    return Federation(data.train, **facts)


def test_whole_labels_are_classes_and_real_ones_are_targets():
    task = default_task(federation([0, 2, 1, 0]), Mlp(hidden=5))
    assert isinstance(task, coterie.Classification)
    assert (task.module[1].in_features, task.module[-1].out_features) == (6, 3)
    task = default_task(federation([0.5, 2.0, 1.0, 0.0]), Mlp(hidden=5))
    assert isinstance(task, coterie.Regression)
    assert task.module[-1].out_features == 1


def test_facts_of_the_data_decide_outputs_and_scale():
    task = default_task(federation([0, 1, 1, 0], class_count=10, scale=255), Linear())
    assert task.module[-1].out_features == 10
    assert task.inputs(torch.tensor([51])).tolist() == pytest.approx([0.2])


def test_labels_that_only_the_test_part_has_are_classes_too():
    data = Federation.from_clients([([[1.0]], [0])], test=[([[1.0]], [4])])
    assert data.outputs == 5


@pytest.mark.parametrize("hidden", [0, 8])
@pytest.mark.parametrize("targets", [[0, 1, 1, 0], [0.5, 2.0, 1.0, 0.0]])
def test_a_task_can_be_trained(hidden, targets):
    data = federation(targets)
    run = coterie.simulate(coterie.FedAvg(), data, default_task(data, Mlp(hidden=hidden)), rounds=2)
    assert run.metrics["train_loss"] >= 0


def test_an_algorithm_names_its_task_and_labels_are_there_to_score_by():
    data, task = prepare_task(KFed(), federation([0, 1, 1, 0], scale=2.0), Linear())
    assert isinstance(task, coterie.Centre)
    assert (task.layout.size, task.scale) == (6, 2.0)
    assert data.sample_clusters
    data, _ = prepare_task(KFed(), federation([0.5, 1.0, 1.0, 0.0]), Linear())
    assert not data.sample_clusters
    own = coterie.Centre(6, scale=5.0)
    assert algorithm_task(KFed(), data, own) is own


def test_an_algorithm_that_names_no_task_learns_the_default():
    data, task = prepare_task(coterie.IFCA(), federation([0, 1, 1, 0]), Linear())
    assert isinstance(task, coterie.Classification)
    assert not data.sample_clusters


def unlabelled():
    return Federation.from_clients([(torch.arange(12.0).view(4, 3) * i, None) for i in (1, 2)])


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"k-fed", "uifca", "cluster-gan"}))
def test_who_predicts_needs_a_label(name):
    sentence = "learns to predict a label, but own data has none: name its column, as in label="
    with pytest.raises(DataError, match=sentence):
        prepare_task(ALGORITHMS[name](), unlabelled(), Linear())


@pytest.mark.parametrize("network", [Linear(), LinearFlow()])
def test_densities_need_no_label(network):
    data, task = prepare_task(coterie.UIFCA(), unlabelled(), network)
    assert isinstance(task, coterie.Density)
    assert not data.sample_clusters


@pytest.mark.parametrize("data", [unlabelled(), federation([0.5, 2.0, 1.0, 0.0], name="doses")])
def test_a_start_from_labels_needs_classes(data):
    with pytest.raises(DataError, match=f"must be classes, but {data.name} has none"):
        prepare_task(coterie.UIFCA(start="truth"), data, LinearFlow())
    prepare_task(coterie.UIFCA(start="truth"), federation([0, 1, 1, 0]), LinearFlow())


def test_who_clusters_samples_needs_no_label_and_is_not_scored_by_one():
    data, task = prepare_task(KFed(), unlabelled(), Linear())
    assert isinstance(task, coterie.Centre)
    assert not data.sample_clusters
    run = coterie.simulate(KFed(k=2), data, task, rounds=1)
    assert run.metrics["clusters"] == 2
    assert not {"ari", "purity", "accuracy"} & set(run.metrics)
    assert run.labels.shape == (8,)


def test_no_door_leads_to_learning_labels_that_are_not_there():
    data, labelled = unlabelled(), federation([0, 1, 1, 0])
    task = default_task(labelled, Linear())
    with pytest.raises(DataError, match="IFCA learns to predict a label"):
        coterie.simulate(coterie.IFCA(k=2), data, task, rounds=1)
    with pytest.raises(DataError, match="FedAvg learns to predict a label"):
        coterie.simulate(coterie.FedAvg(), data, task, rounds=1, grid={"lr": [0.1, 1.0]})
    run = coterie.simulate(coterie.FedAvg(), labelled, task, rounds=1)
    with pytest.raises(DataError, match="FedAvg learns to predict a label"):
        run.serve(data)


def test_simulate_asks_the_algorithm_for_its_task():
    data = federation([0, 1, 1, 0])
    run = coterie.simulate(KFed(k=2), data, default_task(data, Mlp(hidden=3)), rounds=1)
    assert isinstance(run.task, coterie.Centre)


class OwnNetwork:
    """A network of a user's own, which notes what it is told of samples."""

    padding = "none"

    def module(self, shape, outputs):
        self.told = shape, outputs
        return torch.nn.Linear(1, outputs)


@pytest.mark.parametrize(
    ("x", "y", "kind", "told"),
    [
        ([[1, 2], [3]], [[0, 4], [1]], coterie.TokenClassification, (torch.Size([-1]), 5)),
        ([[1, 2], [3]], [0, 1], coterie.Classification, (torch.Size([-1]), 2)),
        ([[1, 2], [3]], [0.5, 1.0], coterie.Regression, (torch.Size([-1]), 1)),
        ([[1, 2], [3, 4]], [[0, 2], [1, 1]], coterie.TokenClassification, (torch.Size([2]), 3)),
        ([[1, 2], [3, 4]], [[0.5, 0.5]] * 2, coterie.Classification, (torch.Size([2]), 2)),
        (
            {"a": torch.zeros(2, 3), "b": [[1], [2, 3]]},
            [0, 1],
            coterie.Classification,
            ({"a": torch.Size([3]), "b": torch.Size([-1])}, 2),
        ),
    ],
)
def test_targets_decide_the_task_and_the_network_is_told_the_shape(x, y, kind, told):
    network = OwnNetwork()
    task = default_task(Federation.from_clients([(x, y)]), network)
    assert type(task) is kind
    assert network.told == told
    assert task.padding == "none"


@pytest.mark.parametrize("network", [Linear(), Mlp(), Mlp(hidden=0)])
def test_built_in_networks_refuse_samples_that_are_not_one_tensor(network):
    for x in ([[1, 2], [3]], {"a": torch.zeros(2, 3)}):
        with pytest.raises(SettingError, match="need a network of your own"):
            default_task(Federation.from_clients([(x, [0, 1])]), network)


def test_centres_are_of_samples_that_are_one_tensor():
    data = Federation.from_clients([([[1, 2], [3]], [0, 1])])
    with pytest.raises(DataError, match="one tensor each, got sequences of int64"):
        prepare_task(KFed(), data, OwnNetwork())
    with pytest.raises(DataError, match="one tensor each, got sequences of int64"):
        coterie.Centre(2).check_samples(data.train.x, data.train.y)


@pytest.mark.parametrize("targets", [[0, 1, 1, 0], [0.5, 1.0, 1.0, 0.0]])
@pytest.mark.parametrize("network", [LinearFlow(), RealNvp(hidden=3)])
def test_a_network_that_gives_one_number_per_sample_is_a_density(targets, network):
    task = default_task(federation(targets, scale=2.0), network)
    assert type(task) is coterie.Density
    assert task.scale == 2.0
    data, _ = prepare_task(coterie.UIFCA(), federation(targets), network)
    assert data.sample_clusters == (targets[0] == 0), "labels that are classes are to score by"
    assert type(default_task(federation(targets), Mlp())) is not coterie.Density


def test_the_schema_says_how_large_a_network_is():
    """A node knows its own samples only, and all have the same network."""
    x, y = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])
    data = Federation.from_clients([(x, y), (x, y)])
    schema = Schema((), ("a", "b"), (3,), rows=1500)
    auto = Mlp(hidden="auto")
    assert default_task(data, auto).layout.size == Linear().module([3], 2)[1].weight.numel() + 2
    for known in (replace(data, schema=schema), schema.stub([3], torch.float32)):
        assert default_task(known, auto).layout.size == 3 * 32 + 32 + 32 * 2 + 2


def test_balanced_classes_count_the_same_and_1_on_average():
    data = federation([0, 0, 0, 2])
    task = weigh_classes(default_task(data, Linear()), data, "balanced")
    weights = task.class_weight
    assert weights[[0, 2]].tolist() == pytest.approx([8 / (3 * 6), 8 / (3 * 2)])
    assert weigh_classes(task, data, "none") is task
    schema = Schema((), ("a", "b", "c"), (2, 3), class_counts=(1, 1, 2))
    known = weigh_classes(task, replace(data, schema=schema), "balanced").class_weight
    assert known.tolist() == pytest.approx([4 / 3, 4 / 3, 2 / 3])
    targets = federation([0.5, 1.0, 1.0, 1.0])
    with pytest.raises(SettingError, match="must be none where no classes are predicted"):
        weigh_classes(default_task(targets, Linear()), targets, "balanced")
