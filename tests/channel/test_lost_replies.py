import torch

from coterie.channel.lost_replies import LoseReplies
from tests.channel.echo import Echo, clients


def test_who_is_lost_depends_on_round_and_client_but_not_on_chunks():
    def answering(round, chunk):
        lossy = clients(m=50, chunk=chunk, round=round).through(LoseReplies(0.5))
        return lossy.run(Echo().step, model=torch.ones(4))[0].tolist()

    assert answering(1, 1) == answering(1, 50)
    assert answering(1, 1) != answering(2, 1)


def test_every_call_loses_other_replies_also_of_narrowed_clients():
    lossy = clients(m=50).through(LoseReplies(0.5))
    first, _ = lossy.run(Echo().step, model=torch.ones(4))
    again, _ = lossy.only(torch.arange(50)).run(Echo().step, model=torch.ones(4))
    assert first.tolist() != again.tolist()
