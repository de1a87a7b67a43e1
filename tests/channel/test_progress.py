import torch

from coterie.channel.progress import CountReplies
from tests.channel.echo import Echo, clients


def test_replies_are_told_of_as_chunks_come_in():
    told: list[int] = []
    watched = CountReplies(clients(m=5, chunk=2), told.append)
    watched.run(Echo().step, model=torch.zeros(4))
    assert told == [2, 2, 1]
    watched.only(torch.tensor([1, 3, 4])).run(Echo().step, model=torch.zeros(4))
    assert told == [2, 2, 1, 2, 1]
