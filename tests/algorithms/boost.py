"""Clients that boost their update: what they send is the model they were sent plus many updates."""

from dataclasses import dataclass

from coterie.core.clients import Each
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings


@dataclass(frozen=True)
class Boost:
    """A filter by which some clients send start + factor (model - start)."""

    clients: frozenset
    factor: float

    def apply(self, call, ids, upload):
        start = call.message.get("model")
        if "model" not in upload._fields or start is None:
            return ids, upload
        rows = start.rows_for(ids) if isinstance(start, Each) else start.expand(len(ids), -1)
        model = upload.model.clone()
        for place, client in enumerate(ids.tolist()):
            if client in self.clients:
                model[place] = rows[place] + self.factor * (model[place] - rows[place])
        return ids, upload._replace(model=model)


def boosted_run(algorithm, federation, task, attackers, factor, rounds, **settings):
    """A run in which some clients boost their updates, from the start on."""
    run = Run(algorithm, federation, task, RunSettings(rounds=rounds, **settings))
    run.training.participants.channel = (Boost(frozenset(attackers), factor),)
    run.training.begin()
    for _ in range(rounds):
        run.training.do_round()
    return run
