"""Every algorithm whose clients keep something: paused, replaced, and given what they kept."""

import shutil
import warnings
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.checks import short_run, small_federation
from coterie.core.algorithm import least_samples
from coterie.core.errors import CoterieWarning
from coterie.core.state import state_tensors
from coterie.flower.clients import join_network
from coterie.flower.memory_folders import kept_runs, take_over
from coterie.flower.server import network_run
from tests.flower.fake import FakeGrid, metrics_alike
from tests.flower.small import FASTEST, SIZES, SmallApp, SmallGrid, SmallWorker
from tests.test_conformance import CASES

ROUNDS = 2


def small_app(name, **settings):
    network = {"timeout": 5.0, "patience": 60.0, "quorum": 0.5}
    return SmallApp(
        CASES[name], sizes(name), network=network, rounds=ROUNDS, checkpoint=1, **settings
    )


def attempt_at(grid, app, folder, *, run, attempt, rounds=None):
    """A run over a grid, in a folder; with `rounds` it is paused after so many."""
    resume = (folder / "config.json").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        network = join_network(grid, app, run=run, attempt=attempt, pace=FASTEST)
        found = network_run(app, network)
        found.use(folder, resume=resume)
        network.rounds_saved = found.rounds
        network.began = -1 if found.state is None else found.rounds
        found.complete(lambda record, run: run.stop() if record["round"] == rounds else None)
        if rounds is None:
            network.finish()
    return found


@pytest.fixture(params=CASES)
def keeping(request):
    """A case whose clients keep something, which nobody has to list; the others need no test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        run = short_run(CASES[request.param], small_federation(sizes(request.param)), rounds=1)
    if not run.population.memory.rows:
        pytest.skip("its clients keep nothing")
    return request.param


def sizes(name):
    return [max(least_samples(CASES[name]), size) for size in SIZES]


def assert_equal(one, other):
    found = state_tensors(one.state)
    for path, value in state_tensors(other.state).items():
        torch.testing.assert_close(found[path], value, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert metrics_alike(one.metrics, other.metrics, 1e-9)


def paused(name, folder):
    """A run that was paused after a round, and two others that came after it on the same nodes."""
    app = small_app(name)
    folder.mkdir()
    attempt_at(SmallGrid(app, folder), app, folder / "run", run="one", attempt="1", rounds=1)
    for number in (1, 2):
        other = small_app(name, seed=number)
        place = folder / f"other{number}"
        attempt_at(SmallGrid(other, folder), other, place, run=f"other{number}", attempt="1")
    return app


def test_a_paused_run_goes_on_after_two_others_and_on_a_node_that_was_replaced(keeping, tmp_path):
    """The third node lost its disk; without its memory it is left out, with it nothing differs."""
    here = tmp_path / "here"
    app = paused(keeping, here)
    shutil.copytree(here, there := tmp_path / "there")

    grid = replaced_grid(app, here)
    run = attempt_at(grid, app, here / "run", run="one", attempt="2")
    told = [text for text in run.warnings if "is not in its node's memory any more" in text]
    assert told, "a fresh start unsaid"
    assert "deploy memory NODE.toml --from FOLDER" in told[0]
    assert all(record["answered"] == 6 for record in run.records[1:])
    assert run.evaluation.serving.ids.tolist() == list(range(6))

    take_over(there / "new", there / "memory3")
    grid = replaced_grid(app, there)
    run = attempt_at(grid, app, there / "run", run="one", attempt="2")
    federation = small_federation(sizes(keeping))
    assert_equal(run, short_run(CASES[keeping], federation, rounds=ROUNDS))
    assert kept_runs(there / "memory3"), "nobody removed what the first node kept"


def replaced_grid(app, folder):
    """The nodes of a run, the third of which has another memory."""
    grid = RefusingGrid(app, folder)
    grid.workers[3] = SmallWorker(app, replace(grid.workers[3].file, memory=str(folder / "new")))
    return grid


class RefusingGrid(SmallGrid):
    """Nodes whose refusals are error replies, as those of real ones are."""

    def deliver(self, node, name, reply):
        kind = FakeGrid if reply.has_error() else SmallGrid
        kind.deliver(self, node, name, reply)
