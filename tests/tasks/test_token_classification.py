"""A class for every token: losses and scores worked out by hand, and a tagger that is trained."""

import math

import pytest
import torch
from torch import nn

import coterie
from coterie import Federation, Ragged, TokenClassification
from coterie.core.errors import DataError
from coterie.core.samples import Padded
from tests.tasks.taggers import (
    TAGS,
    WORDS,
    LstmTagger,
    NaiveTagger,
    tagged_clients,
    tagging_federation,
    tagging_task,
)

# Two sequences of 2 and 1 tokens: at every token the labelled class has probability 3/4, 1/4; 1/4.
QUARTER, THREE = math.log(0.25), math.log(0.75)
OUTPUT = torch.tensor([[[THREE, QUARTER], [THREE, QUARTER]], [[THREE, QUARTER], [50.0, -50.0]]])
TARGET = Padded(torch.tensor([[0, 1], [1, 0]]), torch.tensor([2, 1]))


@pytest.fixture
def task():
    return TokenClassification(nn.Linear(1, 2))


def test_the_loss_of_a_sample_is_the_mean_over_its_tokens(task):
    expected = [-(THREE + QUARTER) / 2, -QUARTER]
    assert task.losses(OUTPUT, TARGET).tolist() == pytest.approx(expected)
    stacked = task.losses(OUTPUT[None], TARGET[None])
    assert stacked.shape == (1, 2)
    assert stacked[0].tolist() == pytest.approx(expected)


def test_what_lies_behind_a_sequence_counts_nowhere(task):
    wider = torch.cat([OUTPUT, torch.full((2, 3, 2), 7.0)], 1)
    target = Padded(torch.tensor([[0, 1, 5, 5], [1, 9, 5, 5]]), TARGET.lengths)
    assert torch.equal(task.losses(wider, TARGET), task.losses(OUTPUT, TARGET))
    mask = torch.ones(1, 2)
    narrow = Padded(torch.tensor([[0, 1], [1, 1]]), TARGET.lengths)
    assert torch.equal(
        task.score(wider[None], narrow[None], mask), task.score(OUTPUT[None], TARGET[None], mask)
    )
    assert target.trim().values.shape == (2, 2)


def test_accuracy_and_f1_count_tokens_and_the_loss_counts_samples(task):
    scores = task.score(OUTPUT[None], TARGET[None], torch.ones(1, 2))
    # Three tokens, all guessed as class 0, of which one is right.
    assert scores[0, 2:].tolist() == [1, 0, 3, 0, 1, 2]
    found = {name: float(value) for name, value in task.metrics(scores).items()}
    loss = (-(THREE + QUARTER) / 2 - QUARTER) / 2
    assert found == pytest.approx(
        {
            "accuracy": 1 / 3,
            "balanced_accuracy": (1 / 1 + 0 / 2) / 2,
            "f1": (2 / 4 + 0) / 2,
            "loss": loss,
        }
    )
    left_out = task.score(OUTPUT[None], TARGET[None], torch.tensor([[0, 1]]))
    assert left_out[0, 2:].tolist() == [0, 0, 1, 0, 0, 1]
    assert left_out[0, 0] == 1


def test_sequences_of_one_length_need_no_padding(task):
    labels = torch.tensor([[0, 1], [1, 0]])
    assert torch.equal(
        task.losses(OUTPUT, labels), task.losses(OUTPUT, Padded(labels, torch.tensor([2, 2])))
    )


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        ([[1, 2], [3]], [[0, 1], [0, 1]], "as many targets as tokens, got 2 for 1"),
        ([[1, 2], [3]], [[0, TAGS], [0]], "labels must lie in 0 to 2, got 3"),
        ([[1, 2], [3]], [[0, -1], [0]], "labels must lie in 0 to 2, got -1"),
        ([[1, 2], [3]], [[0.5, 1.0], [0.0]], "a sequence of whole numbers from 0 per sample"),
        ([[1, 2], [3]], [0, 1], "a sequence of whole numbers from 0 per sample"),
        ([[1, WORDS], [3]], [[0, 1], [0]], "LstmTagger cannot take samples of shape sequences of"),
        ([[1, 2], [3], [1], [WORDS]], [[0, 1], [0], [0], [0]], "LstmTagger cannot take samples"),
        ([[1, 2], [3], [1], [-1]], [[0, 1], [0], [0], [0]], "LstmTagger cannot take samples"),
    ],
)
def test_data_that_do_not_fit_are_refused_in_a_sentence(x, y, sentence):
    federation = Federation.from_clients([(x, y)])
    with pytest.raises(DataError, match=sentence):
        coterie.simulate(coterie.FedAvg(), federation, tagging_task(), rounds=1)


def test_a_network_must_give_outputs_for_every_token():
    federation = Federation.from_clients([([[1, 2], [3]], [[0, 1], [0]])])
    one_row = nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.LazyLinear(3))
    one_row(torch.zeros(1, 2, dtype=torch.long))
    short = nn.Sequential(nn.Embedding(WORDS, 4), nn.AvgPool2d((2, 1)), nn.Linear(4, 3))
    for module, sentence in [
        (one_row, "must give one row of outputs per token of each sample"),
        (short, "outputs for 1 tokens where a target has 2"),
    ]:
        task = TokenClassification(module, padding="none")
        with pytest.raises(DataError, match=sentence):
            task.check_samples(federation.train.x, federation.train.y)


def test_a_step_is_that_of_a_plain_loop():
    """Gradient descent on mean losses of padded batches, as anybody would write it."""
    data = tagging_federation([5])
    task = tagging_task(torch.float64)
    run = coterie.simulate(coterie.FedAvg(lr=0.5, steps=3), data, task, rounds=1, seed=3)
    words, tags = tagged_clients([5])[0]
    module = LstmTagger().double()
    begin = coterie.simulate(coterie.FedAvg(lr=1e-30, steps=1), data, task, rounds=1, seed=3)
    module.load_state_dict(task.layout.unflatten(begin.models[0]))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    pad = nn.utils.rnn.pad_sequence
    for _ in range(3):
        output = module(pad(words, batch_first=True), torch.tensor([len(w) for w in words]))
        losses = [
            nn.functional.cross_entropy(row[: len(t)], t)
            for row, t in zip(output, tags, strict=True)
        ]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    expected = task.layout.flatten(module)
    torch.testing.assert_close(run.models[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_groups_that_name_words_differently_are_found(seed):
    data = tagging_federation([12, 7, 9, 15, 3, 11], seed=10 * seed)
    algorithm = coterie.IFCA(k=2, lr=1.0, steps=5)
    run = coterie.simulate(algorithm, data, tagging_task(), rounds=10, seed=seed)
    assert run.metrics["ari"] == 1
    assert run.metrics["accuracy"] > 0.9
    apart = coterie.simulate(coterie.FedAvg(lr=1.0, steps=5), data, tagging_task(), rounds=10)
    assert apart.metrics["accuracy"] < 0.8


def test_fixed_lengths_are_tensors_and_take_the_same_way():
    generator = torch.Generator().manual_seed(0)
    words = [torch.randint(WORDS, (4, 5), generator=generator) for _ in range(3)]
    dense = Federation.from_clients([(w, w % TAGS) for w in words])
    ragged = Federation.from_clients(
        [(Ragged.of(list(w)), Ragged.of(list(w % TAGS))) for w in words]
    )
    task = TokenClassification(NaiveTagger, padding="none")
    runs = [
        coterie.simulate(coterie.FedAvg(steps=2), data, task, rounds=2) for data in (dense, ragged)
    ]
    assert torch.equal(runs[0].models, runs[1].models)
