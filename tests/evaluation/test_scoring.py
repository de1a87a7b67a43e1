import pytest

import coterie
from coterie.engine import malloc as allocator


@pytest.mark.parametrize("algorithm", [coterie.FedAvg(), coterie.Local()])
def test_memory_is_given_back_while_clients_are_mapped_and_their_models_formed(
    algorithm, monkeypatch
):
    federation, task = coterie.load("rotated-digits", clients=16)
    run = coterie.simulate(algorithm, federation, task, rounds=1, chunk=1)
    times = []
    monkeypatch.setattr(allocator, "give_back", lambda: times.append(1))
    run.evaluator.map(run.serving)
    assert len(times) == 2  # once in eight chunks
    run.evaluator.scorer.own_models(run.serving)
    assert len(times) == (2 if isinstance(algorithm, coterie.FedAvg) else 4)
