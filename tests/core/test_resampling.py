from dataclasses import replace

import pytest
import torch
from torch import nn

import coterie
from coterie import IFCA, Regression
from coterie.core.errors import DataError, SettingError
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator


def clients_on_a_line(*targets, seed=0):
    """Clients whose samples are x = 1 and these targets, under models that are one number."""
    samples = [(torch.ones(len(y), 1), torch.tensor(y).float()) for y in targets]
    return Simulator(Samples.of(samples), Regression(nn.Linear(1, 1, bias=False)), seed=seed)


def ask(ifca, simulator, models, t, ids=None):
    """What the clients send in round t under models that are numbers: clusters and gradients."""
    ids = simulator.ids if ids is None else ids
    cohort = simulator.cohort(ids, t, (simulator.seed, "round", t))
    models = torch.tensor(models).float()[:, None]
    up = ifca.differentiate(cohort, models=models, trunk=torch.empty(0))
    return up.cluster.tolist(), up.gradient.flatten().tolist(), up.size.tolist()


def test_a_client_chooses_by_one_sample_and_descends_on_the_other_by_hand():
    # Targets 1 and -3, models 1 and -1. Chosen by 1, model 0 has the gradient 2 (1 + 3) = 8 on -3;
    # chosen by -3, model 1 has 2 (-1 - 1) = -4 on 1. With both samples it would be model 1, whose
    # losses are 4 and 4, and the gradient 2 (-1 + 1) = 0.
    fresh = IFCA(k=2, average="gradients", resample=True, resample_rounds=1)
    found = [ask(fresh, clients_on_a_line([1, -3], seed=seed), [1, -1], 0) for seed in range(12)]
    assert {(*cluster, *gradient) for cluster, gradient, _ in found} == {(0, 8.0), (1, -4.0)}
    assert {size for _, _, sizes in found for size in sizes} == {1}
    plain = ask(replace(fresh, resample=False), clients_on_a_line([1, -3]), [1, -1], 0)
    assert plain == ([1], [0.0], [2])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_no_sample_is_used_twice_and_none_is_left(rounds, seed):
    # Models stand on the targets, so that the choice tells the sample that it was made by, and the
    # gradient 2 (w - y) then tells the other one.
    count = 2 * rounds
    ifca = IFCA(k=count, average="gradients", resample=True, resample_rounds=rounds)
    simulator = clients_on_a_line(list(range(count)), seed=seed)
    used = []
    for t in range(rounds):
        (cluster,), (gradient,), _ = ask(ifca, simulator, list(range(count)), t)
        used += [cluster, cluster - gradient / 2]
        assert ask(ifca, simulator, list(range(count)), t)[0] == [cluster]  # asked again
    assert sorted(used) == list(range(count))


def test_what_is_left_over_makes_the_first_parts_larger():
    # 11 samples in 4 parts: 3, 3, 3 and 2; a gradient is of the second and of the fourth.
    ifca = IFCA(k=1, average="gradients", resample=True, resample_rounds=2)
    simulator = clients_on_a_line([1.0] * 11)
    assert [ask(ifca, simulator, [0], t)[2] for t in range(2)] == [[3], [2]]


def test_parts_are_those_of_a_client_in_any_company_under_any_id():
    ifca = IFCA(k=4, average="gradients", resample=True, resample_rounds=2)
    targets, others = [0, 1, 2, 3], [7, 7, 7, 7, 7, 7]
    models = [0, 1, 2, 3]
    for t in range(2):
        alone = ask(ifca, clients_on_a_line(targets), models, t)
        beside = ask(ifca, clients_on_a_line(others, targets), models, t)
        assert [part[1:] for part in beside] == [list(part) for part in alone]


@pytest.mark.parametrize("average", ["models", "gradients"])
def test_the_chosen_model_is_trained_on_the_other_samples_whatever_the_kernel(average):
    """What a kernel found out about the chosen model on the samples of the choice is not used."""
    federation, task = coterie.load("rotated-digits", clients=8)
    ifca = IFCA(k=3, average=average, resample=True, resample_rounds=2, steps=3)
    simulator = Simulator(federation.train, task)
    models = torch.stack([task.draw(torch.Generator().manual_seed(j)) for j in range(3)])
    cohort = simulator.cohort(simulator.ids, 1, (0, "round", 1))
    step = ifca.train if average == "models" else ifca.differentiate
    up = step(cohort, models=models, trunk=torch.empty(0))
    cluster = cohort.disjoint_part(2, 4).choose(models).cluster
    assert torch.equal(up.cluster, cluster)
    held = simulator.cohort(simulator.ids, 1, (0, "round", 1)).disjoint_part(3, 4)
    own = models[cluster].clone()
    trained = average == "models"
    expected = held.descend(own, lr=ifca.lr, steps=3) if trained else held.gradient(own)
    torch.testing.assert_close(torch.clone(up[1]), torch.clone(expected), rtol=1e-4, atol=1e-6)


def test_a_run_gives_the_rounds_if_nobody_says_them():
    federation, task = coterie.load("linear-mixture", clients=8, samples=12, features=3)
    settings = {"rounds": 3, "seed": 1}
    ifca = IFCA(k=2, average="gradients", resample=True)
    run = coterie.simulate(ifca, federation, task, **settings)
    assert run.algorithm.resample_rounds == 3
    said = coterie.simulate(replace(ifca, resample_rounds=3), federation, task, **settings)
    assert torch.equal(run.models, said.models)
    longer = coterie.simulate(replace(ifca, resample_rounds=6), federation, task, **settings)
    assert not torch.equal(run.models, longer.models)


def test_too_few_samples_and_too_many_rounds_are_refused():
    federation, task = coterie.load("linear-mixture", clients=8, samples=11, features=3)
    ifca = IFCA(k=2, average="gradients", resample=True)
    with pytest.raises(DataError, match=r"must have at least 12 samples for IFCA .* got 11 of"):
        coterie.simulate(ifca, federation, task, rounds=6)
    with pytest.raises(SettingError, match="`resample_rounds` of IFCA must be at least"):
        coterie.simulate(replace(ifca, resample_rounds=4), federation, task, rounds=5)
    settings = coterie.experiment.settings.RunSettings(rounds=1)
    with pytest.raises(SettingError, match=r"the run, 1, for later ones have no fresh .* got 0"):
        coterie.Run(ifca, federation, task, settings).complete()


def test_all_samples_are_used_where_nothing_is_resampled():
    plain = IFCA(k=2)
    assert plain.least_samples == 1
    assert plain.for_rounds(10) is plain


def test_the_start_and_the_serving_use_all_samples():
    federation, task = coterie.load("linear-mixture", clients=8, samples=12, features=3)
    plain = IFCA(k=2, average="gradients", start="restarts", tries=2, start_rounds=3)
    fresh = replace(plain, resample=True, resample_rounds=6)
    began = []
    for ifca in (plain, fresh):
        settings = coterie.experiment.settings.RunSettings(rounds=1)
        run = coterie.Run(ifca, federation, task, settings)
        run.training.begin()
        began.append(run.state.models)
    assert torch.equal(*began)
    served = [ifca.serve(run.state, run.population.at("serve")).cluster for ifca in (plain, fresh)]
    assert torch.equal(*served)
