from typing import NamedTuple

import pytest
import torch

from coterie.core.clients import Each, on_client
from coterie.core.errors import CoterieError, SettingError
from coterie.core.fields import Cluster, Loss
from coterie.core.population import RoundClients
from coterie.vectors.folds import ByCluster, RowSent


class Recorder:
    """Runs nothing, and records what it was asked for."""

    population, task = 9, "the task"

    def __init__(self):
        self.calls = []

    def collect(self, call, fold):
        self.calls.append(call)
        return call.ids, fold.start()


class Method:
    @on_client
    def train(self, cohort, model): ...

    def plain(self, cohort): ...


def clients_of(recorder):
    return RoundClients(recorder, 3, torch.tensor([1, 4, 6]), (0, "round", 3), "round")


def test_a_step_reaches_who_runs_it_with_round_message_and_address():
    recorder = Recorder()
    ids, up = clients_of(recorder).run(Method().train, model=torch.ones(2))
    call = recorder.calls[0]
    assert ids.tolist() == [1, 4, 6]
    assert up is None
    assert (call.round, call.address, list(call.message)) == (3, (0, "round", 3, 0), ["model"])


def test_no_two_calls_of_a_round_share_their_randomness():
    recorder = Recorder()
    clients = clients_of(recorder)
    for some in (clients, clients.only(torch.tensor([4])), clients):
        some.run(Method().train, model=torch.ones(2))
    assert [call.address[-1] for call in recorder.calls] == [0, 1, 2]


def test_narrowed_clients_are_in_order_and_know_the_whole_federation():
    some = clients_of(Recorder()).only(torch.tensor([6, 1]))
    assert some.ids.tolist() == [1, 6]
    assert (some.population, some.round, some.task) == (9, 3, "the task")
    assert some.purpose == "round"


class Chosen(NamedTuple):
    cluster: Cluster


class Rated(NamedTuple):
    loss: Loss


class Knowing(Method):
    @on_client
    def choose(self, cohort) -> Chosen: ...

    @on_client
    def rate(self, cohort) -> Rated: ...


@pytest.mark.parametrize("purpose", ["start", "round", "serve"])
def test_where_clusters_are_withheld_the_server_is_told_of_nobody(purpose):
    recorder, model = Recorder(), torch.ones(2)
    clients = RoundClients(recorder, 0, torch.arange(3), (0,), purpose).through(withheld=True)
    assert clients.only(torch.arange(2)).withheld
    _, up = clients.run(Knowing().train, fold=ByCluster(1), model=model)
    assert up.cluster is None
    refused = [
        lambda: clients.run(Knowing().choose),  # tells it
        lambda: clients.run(Knowing().train, fold=ByCluster(1), model=Each(torch.ones(3, 2))),
        lambda: clients.run(Knowing().train, fold=ByCluster(1, assign=RowSent("model"))),
    ]
    if purpose == "start":
        clients.run(Knowing().rate)
    else:
        refused.append(lambda: clients.run(Knowing().rate))
    for call in refused:
        with pytest.raises(SettingError, match=r"`withhold` must be nothing where (Know|Meth)"):
            call()


def test_only_a_client_step_is_run():
    with pytest.raises(CoterieError, match=r"marked @on_client, got Method\.plain"):
        clients_of(Recorder()).run(Method().plain)


def test_the_server_draws_by_the_round_and_the_purpose_alone():
    clients = clients_of(Recorder())
    drawn = torch.rand(3, generator=clients.generator("noise"))
    clients.run(Method().train, model=torch.ones(2))
    narrowed = clients.only(torch.tensor([4]))
    assert torch.equal(torch.rand(3, generator=narrowed.generator("noise")), drawn)
    assert not torch.equal(torch.rand(3, generator=clients.generator("order")), drawn)
    later = RoundClients(Recorder(), 4, torch.tensor([1]), (0, "round", 4), "round")
    assert not torch.equal(torch.rand(3, generator=later.generator("noise")), drawn)
