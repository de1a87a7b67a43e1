from types import SimpleNamespace

import pytest
import torch
from torch import nn

from coterie import Regression
from coterie.algorithms import sample_sets
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator

SEED = torch.tensor(5)


def cohort(*sizes, round=0, ids=None):
    """Clients whose samples are 10 i, 10 i + 1, ..., with labels 0, 1, 2, 0, ..."""
    pairs = [
        (10.0 * i + torch.arange(float(n))[:, None], torch.arange(n) % 3)
        for i, n in enumerate(sizes)
    ]
    clients = Simulator(Samples.of(pairs), Regression(nn.Linear(1, 1)))
    return clients.cohort(torch.arange(len(sizes)) if ids is None else ids, round, (round,))


def settings(**given):
    usual = {"k": 3, "folds": 1, "start": "random", "start_errors": 0.0, "k_local": 0}
    others = {"prior": 0.0, "assign": "hard", "restarts": 1, "components": 0}
    return SimpleNamespace(**{**usual, **others, **given})


def samples_of(some):
    return [x.flatten().tolist() for x, _ in some]


@pytest.mark.parametrize("folds", [2, 3])
def test_folds_take_turns_and_every_sample_has_one(folds):
    own = settings(folds=folds)
    turns = [
        samples_of(sample_sets.fold_of_turn(own, cohort(7, 12, 1, round=t), torch.tensor(t), SEED))
        for t in range(2 * folds)
    ]
    assert turns[:folds] == turns[folds:], "whatever the round"
    for i, n in enumerate((7, 12, 1)):
        together = sorted(x for turn in turns[:folds] for x in turn[i])
        assert together == [10.0 * i + j for j in range(n)]
    whole = cohort(7, 12, 1)
    assert sample_sets.fold_of_turn(settings(), whole, torch.tensor(1), SEED) is whole


def test_a_client_draws_the_same_sets_alone_in_company_and_in_every_round():
    together = sample_sets.draw_label(cohort(5, 9, round=1), 4, 5, "sets", 3)
    alone = sample_sets.draw_label(cohort(5, 9, ids=torch.tensor([0])), 4, 5, "sets", 3)
    assert torch.equal(together[0, :5], alone[0, :5])
    assert set(together.flatten().tolist()) == {0, 1, 2, 3}
    other = sample_sets.draw_label(cohort(5, 9), 4, 6, "sets", 3)
    assert not torch.equal(together, other)


def test_the_truth_with_errors():
    some, none = cohort(300, 200), torch.zeros(0, 1)
    true = sample_sets.first_label(settings(start="truth"), some, none, none, SEED, 1)
    assert torch.equal(true[0, :, 0], torch.arange(300) % 3)
    assert torch.equal(true[1, :200, 0], torch.arange(200) % 3)
    mixed = settings(start="truth", start_errors=0.5)
    drawn = sample_sets.first_label(mixed, some, none, none, SEED, 1)
    # A third of the half that is drawn is right by chance: 2/3 in all, +- 4 times 0.021.
    assert float((drawn == true)[some.mask].float().mean()) == pytest.approx(2 / 3, abs=0.085)


def test_k_fed_makes_the_first_sets_by_its_centres():
    centres, none = torch.tensor([[[0.0], [3.0], [12.0]]]), torch.zeros(0, 0)
    own = settings(start="k-fed")
    label = sample_sets.first_label(own, cohort(4, 3), centres, none, SEED, 1)
    # Client 1 has 10, 11 and 12, and looks for as many clusters: all are nearest to 12.
    assert set(label[1, :3, 0].tolist()) == {2}
    assert label.shape == (2, 4, 1)


def test_a_prior_moves_samples_towards_what_a_client_has_much_of():
    losses = torch.tensor([[0.0, 1.0]] * 7 + [[0.5, 0.0]] * 2)[None, :, None]
    mask = torch.ones(1, 9, dtype=torch.bool)
    # Counts 7 and 2, each with one more: log 8 - log 3 = 0.98 > 0.5, so that all go to the first;
    # then log 10 - log 1 keeps them there. With losses ten times as heavy nobody moves.
    assert sample_sets.nearest(losses, mask, 0.0).flatten().tolist() == [0] * 7 + [1] * 2
    assert sample_sets.nearest(losses, mask, 1.0).flatten().tolist() == [0] * 9
    assert sample_sets.nearest(losses, mask, 10.0).flatten().tolist() == [0] * 7 + [1] * 2
    mask[0, 2:7] = False  # padding does not count: log 3 - log 3
    assert sample_sets.nearest(losses, mask, 1.0).flatten().tolist()[-2:] == [1, 1]


def test_posteriors_by_hand():
    # Losses 0 and log 3 are probabilities 3/4 and 1/4.
    losses = torch.tensor([1.0, 3.0]).log()
    mask = torch.tensor([[True, False]])
    found = sample_sets.posterior(losses.expand(1, 2, 1, 2), mask, 0.0)
    assert found[0, 0, 0].tolist() == pytest.approx([0.75, 0.25])
    assert found[0, 1, 0].tolist() == [0, 0], "padding"
    infinite = torch.tensor([torch.inf, 1.0]).expand(1, 2, 1, 2)
    assert sample_sets.posterior(infinite, mask, 0.0)[0, 0, 0].tolist() == [0, 1]
    # With a prior it comes to rest: pi is what the posteriors make of it.
    some = torch.rand(1, 2, 1, 2, generator=torch.Generator().manual_seed(0))
    found = sample_sets.posterior(some, torch.ones(1, 2, dtype=torch.bool), 0.5)
    share = (found.sum(1, keepdim=True) + 1).log()
    torch.testing.assert_close(found, (share - 0.5 * some).softmax(3), rtol=1e-2, atol=1e-2)


def test_mean_losses_of_sets_by_hand():
    loss = torch.tensor([[1.0, torch.inf], [3.0, torch.inf], [9.0, 2.0]]).view(1, 3, 1, 2)
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.5]]).view(1, 3, 1, 2)
    found = sample_sets.mean_of_sets(loss, weight, weight.sum(1).flatten(1))
    assert found.flatten().tolist() == [2.0, 2.0]
    nobody = sample_sets.mean_of_sets(loss, 0 * weight, torch.zeros(1, 2))
    assert nobody.flatten().tolist() == [0.0, 0.0]
