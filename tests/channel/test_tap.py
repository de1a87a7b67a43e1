import pickle

import torch

from coterie.channel.tap import ObservedFold, Tap
from coterie.core.clients import Stacked
from tests.channel.echo import Echo, Upload, clients, count


def test_a_tap_that_does_nothing_lets_every_reply_through():
    ids, up = Tap(clients()).run(Echo().step, model=torch.zeros(4))
    assert ids.tolist() == list(range(6))
    assert up.size.tolist() == [2] * 6


def test_what_is_seen_in_another_process_is_told_where_partial_folds_are_merged():
    told: list[int] = []
    here = ObservedFold(Stacked(), count, told.append)
    there = pickle.loads(pickle.dumps(here))
    upload = Upload(torch.zeros(2), torch.zeros(2, 4), torch.ones(2))
    total = there.add(there.start(), torch.tensor([0, 1]), upload)
    total = there.add(total, torch.tensor([2, 3]), upload)
    assert told == []
    whole = here.merge(here.start(), pickle.loads(pickle.dumps(total)))
    assert told == [2, 2]
    assert here.finish(whole).size.tolist() == [1] * 4
