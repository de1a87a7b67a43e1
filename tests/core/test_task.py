import torch

from coterie.core.task import MetricSums, task_metrics


class Hits:
    """A task whose sums are (hits, loss, samples) of a client."""

    def metrics(self, scores):
        hits, loss, samples = scores.double().unbind(1)
        return {"accuracy": hits / samples, "loss": loss / samples}


# Two clients: 1 of 2 right with a loss of 3, and 8 of 8 right with a loss of 7.
SCORES = torch.tensor([[1.0, 3.0, 2.0], [8.0, 7.0, 8.0]])


def test_metrics_are_over_all_samples_and_macro_the_mean_over_clients():
    found = task_metrics(Hits(), SCORES)
    assert found.metrics == {"accuracy": 0.9, "loss": 1.0, "accuracy_macro": 0.75}


def test_every_client_has_its_own_metrics():
    found = task_metrics(Hits(), SCORES)
    assert found.clients["accuracy"].tolist() == [0.5, 1.0]
    assert found.clients["loss"].tolist() == [1.5, 0.875]


def test_clients_added_in_any_order_give_the_same():
    sums = MetricSums(Hits(), 2)
    sums.add(torch.tensor([1]), SCORES[1:])
    sums.add(torch.tensor([0]), SCORES[:1])
    found, whole = sums.finish(), task_metrics(Hits(), SCORES)
    assert found.metrics == whole.metrics
    assert torch.equal(found.clients["accuracy"], whole.clients["accuracy"])


def test_without_a_client_there_are_no_metrics():
    assert MetricSums(Hits(), 2).finish() == ({}, {})
    assert task_metrics(Hits(), SCORES[:0]) == ({}, {})
