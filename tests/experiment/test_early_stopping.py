"""What is kept of a run is the best round by the validation loss, however the run came about."""

import json
import math
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import coterie
from coterie import CoterieWarning, Ditto, FedAvg, Local, PerFedAvg, Regression
from coterie.checks import small_federation, task_for
from coterie.cli.main import main
from coterie.core import seeds
from coterie.core.algorithm import algorithm_for_rounds, least_samples
from coterie.core.state import state_tensors
from coterie.data.federation import Federation, Samples
from coterie.data.holdout import hold_out
from coterie.experiment.early_stopping import EarlyStopping
from coterie.experiment.grid import Grid
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings
from tests.test_conformance import CASES

ROUNDS, WAIT = 8, 2
# Some in whose clients' memory there is something that has to be gone back to.
REMEMBERING = {
    "local": Local(lr=2.0, steps=5),
    "ditto": Ditto(lr=2.0),
    "per-fedavg": PerFedAvg(lr=1.0),
    "fpfc": CASES["fpfc"],
    "ifca": replace(CASES["ifca"], lr=2.0, steps=5),
}


def overfitting(sizes=None, seed=0):
    """The small federation, of whose held-out labels half are wrong: training on is bad for it."""
    federation = hold_out(small_federation(sizes), 0.4, seed=3)
    held = federation.validation
    generator = seeds.generator(seed, "wrong labels")
    wrong = torch.rand(len(held.y), generator=generator) < 0.5
    y = torch.where(wrong, torch.randint(0, 3, held.y.shape, generator=generator), held.y)
    return replace(federation, validation=Samples(held.x, y, held.offsets))


def run_of(algorithm, federation=None, folder=None, *, resume=False, interrupt=0, **settings):
    """A run with a checkpoint every other round, which is killed after a round if that is given."""
    federation = overfitting() if federation is None else federation
    wanted = RunSettings(**{"rounds": ROUNDS, "early_stopping": WAIT, "checkpoint": 2, **settings})
    run = Run(algorithm, federation, task_for(algorithm), wanted)
    if folder is not None:
        run.use(folder, resume=resume)

    def kill(record, _):
        if record["round"] == interrupt:
            raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        try:
            run.complete(kill)
        except KeyboardInterrupt:
            run.folder.unlock()
    return run


def losses(run):
    return [r["metrics"]["validation_loss"] for r in run.records if "loss" in r["metrics"]]


def assert_equal(one, other):
    """Two runs left the same, bit for bit."""
    assert (one.best_round, one.rounds, one.ending) == (
        other.best_round,
        other.rounds,
        other.ending,
    )
    assert one.metrics == other.metrics
    assert torch.equal(one.clusters, other.clusters)
    assert torch.equal(one.models, other.models)
    mine, theirs = state_tensors(one.state), state_tensors(other.state)
    assert all(torch.equal(mine[path], theirs[path]) for path in mine)


@pytest.mark.parametrize("name", CASES)
def test_what_is_kept_is_a_run_of_as_many_rounds_as_were_best(name):
    algorithm = CASES[name]
    sizes = [max(12, 2 * least_samples(algorithm))] * 5
    federation = overfitting(sizes, seed=1)
    run = run_of(algorithm, federation, rounds=4, early_stopping=0)
    found = losses(run)
    assert run.best_round == 1 + min(range(4), key=found.__getitem__)
    assert run.metrics["validation_loss"] == min(found)
    assert [r["best_round"] for r in run.records][-1] == run.best_round
    if algorithm_for_rounds(algorithm, run.best_round) == algorithm_for_rounds(algorithm, 4):
        short = run_of(algorithm, federation, rounds=run.best_round, early_stopping=0)
        assert short.metrics == run.metrics
        assert torch.equal(short.models, run.models)


@pytest.mark.parametrize("name", REMEMBERING)
def test_training_ends_when_the_loss_has_not_fallen_for_so_many_evaluations(name):
    run = run_of(REMEMBERING[name], rounds=40)
    assert run.ending == "early"
    assert run.rounds == run.best_round + WAIT < 40
    assert run.result["best_round"] == run.best_round
    assert run.result["ending"] == "early"
    lowest = min(losses(run))
    assert all(loss >= lowest for loss in losses(run)[run.best_round :])


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_run_that_is_killed_after_any_round_ends_the_same_bit_for_bit(name, tmp_path):
    algorithm = REMEMBERING[name]
    whole = run_of(algorithm)
    for last in range(1, whole.rounds + 1):
        run_of(algorithm, folder=tmp_path / str(last), interrupt=last)
        assert_equal(run_of(algorithm, folder=tmp_path / str(last), resume=True), whole)


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_run_that_ended_early_is_trained_on_when_it_is_given_rounds(name, tmp_path):
    algorithm, more = REMEMBERING[name], 14
    whole = run_of(algorithm, folder=tmp_path / "run", rounds=12)
    assert whole.ending == "early"
    again = run_of(algorithm, folder=tmp_path / "run", resume=True, rounds=12)
    assert_equal(again, whole)  # and nothing is trained
    for interrupt in (0, whole.rounds + 1):  # killed before it has a checkpoint of its own
        folder = tmp_path / f"more-{interrupt}"
        shutil.copytree(tmp_path / "run", folder)
        run = run_of(algorithm, folder=folder, resume=True, rounds=more, interrupt=interrupt)
        if interrupt:
            run = run_of(algorithm, folder=folder, resume=True, rounds=more)
        unstopped = run_of(algorithm, rounds=more, early_stopping=0)
        assert run.rounds >= min(more, whole.rounds + WAIT)
        assert losses(run) == losses(unstopped)[: run.rounds]  # it went on where it had ended
        assert run.best_round == 1 + min(range(run.rounds), key=losses(run).__getitem__)


def test_a_finished_run_with_more_rounds_is_the_longer_run(tmp_path):
    algorithm = REMEMBERING["ditto"]
    run_of(algorithm, folder=tmp_path / "run", rounds=3, early_stopping=5)
    longer = run_of(algorithm, folder=tmp_path / "run", resume=True, early_stopping=5)
    assert_equal(longer, run_of(algorithm, early_stopping=5))


def test_stopping_counts_evaluations():
    algorithm = REMEMBERING["local"]
    run = run_of(algorithm, rounds=60, evaluate=5)
    assert run.best_round % 5 == 0
    assert run.rounds == run.best_round + 5 * WAIT < 60


@pytest.mark.parametrize("settings", [{"withhold": "clusters"}, {"lost": 0.3}, {"finetune": 2}])
@pytest.mark.parametrize("name", ["ditto", "ifca"])
def test_the_best_round_is_kept_whatever_else_the_run_does(name, settings, tmp_path):
    algorithm = REMEMBERING[name]
    run = run_of(algorithm, folder=tmp_path / "run", rounds=30, **settings)
    assert run.ending == "early"
    assert run.metrics["validation_loss"] == min(losses(run))
    killed = run.best_round + 1
    run_of(algorithm, folder=tmp_path / "two", rounds=30, interrupt=killed, **settings)
    assert_equal(
        run_of(algorithm, folder=tmp_path / "two", resume=True, rounds=30, **settings), run
    )
    if "finetune" in settings:
        assert run.personal.summary.metrics["loss"] == run.metrics["loss"]


def test_without_a_validation_part_nothing_is_said_of_a_best_round(tmp_path):
    run = run_of(FedAvg(), small_federation(), folder=tmp_path / "run", rounds=3)
    assert run.best_round is None
    assert run.rounds == 3
    assert not {"best_round", "ending"} & (set(run.result) | set(run.records[-1]))
    assert "best" not in (tmp_path / "run" / "report.html").read_text().lower().split("validation")


def test_clients_that_were_not_scored_count_with_what_was_last_known_of_them():
    class Heard:
        def __init__(self, ids, each):
            self.scored, self.serving = len(ids), self
            self.ids, self.summary = torch.tensor(ids), self
            self.clients = {"loss": torch.tensor(each)}
            mine = sizes[ids].double()
            self.metrics = {"loss": float((torch.tensor(each) * mine).sum() / mine.sum())}

    stopping, sizes = EarlyStopping(2), torch.tensor([1, 1, 2])
    assert stopping.watch(1, Heard([0, 1, 2], [1.0, 2.0, 3.0]), sizes, "one", {})
    assert stopping.watch(2, Heard([0, 1], [1.0, 1.8]), sizes, "two", {"own": 1.0})
    assert stopping.best.loss == pytest.approx((1.0 + 1.8 + 2 * 3.0) / 4)
    # Without the third client the mean is lower than any before, and worse all the same.
    assert not stopping.watch(3, Heard([0, 1], [1.1, 1.9]), sizes, "three", {})
    assert not stopping.over
    assert not stopping.watch(4, Heard([], []), sizes, "four", {})  # nobody was scored: not counted
    assert not stopping.over
    assert not stopping.watch(5, Heard([0], [math.nan]), sizes, "five", {})
    assert stopping.over
    stopping.go_on()
    assert not stopping.over
    assert stopping.best.state == "two"


@pytest.mark.parametrize("name", ["ditto", "ifca"])
def test_copies_are_chosen_between_by_validation_loss(name, tmp_path):
    algorithm, federation = REMEMBERING[name], overfitting()
    task, values = task_for(algorithm), {"lr": (0.05, 2.0)}
    settings = RunSettings(rounds=20, starts=2, early_stopping=WAIT, checkpoint=2)

    def grid(folder=None, *, resume=False, interrupt=0):
        copies = Grid(algorithm, federation, task, settings, values)
        if folder is not None:
            copies.use(folder, resume=resume)

        def kill(record, _):
            if record["round"] == interrupt:
                raise KeyboardInterrupt

        try:
            return copies.complete(kill)
        except KeyboardInterrupt:
            copies.folder.unlock()

    best = grid(tmp_path / "whole")
    copies = best.result["copies"]
    by_loss = min(copies, key=lambda copy: copy["validation_loss"])
    assert best.result["chosen"]["lr"] == by_loss["lr"]
    assert best.result["chosen"]["validation_loss"] == by_loss["validation_loss"]
    assert best.metrics["validation_loss"] == by_loss["validation_loss"]
    assert len({copy["rounds"] for copy in copies}) > 1  # some ended before others
    alone = run_of(replace(algorithm, lr=by_loss["lr"]), federation, rounds=20)
    if by_loss["start"] == 0:
        assert alone.best_round == best.best_round
        assert alone.metrics["validation_loss"] == pytest.approx(best.metrics["validation_loss"])
    finished = grid(tmp_path / "whole", resume=True)  # nothing is left to do
    assert_equal(finished, best)
    assert finished.result["copies"] == copies
    for interrupt in (1, min(copy["rounds"] for copy in copies) + 2):
        folder = tmp_path / str(interrupt)
        grid(folder, interrupt=interrupt)
        again = grid(folder, resume=True)
        assert_equal(again, best)
        assert again.result["copies"] == copies


def far():
    x = torch.randn(8, 3, generator=seeds.generator(0, "x"))
    parts = [(x, x.sum(1) + 2 * i) for i in range(4)]
    return Federation(Samples.of(parts), Samples.of(parts)), Regression(lambda: nn.Linear(3, 1))


@pytest.mark.parametrize("algorithm", [FedAvg(lr=1e6, steps=100), Local(lr=1e30)])
@pytest.mark.parametrize("validation", [0.0, 0.25])
def test_a_run_that_is_no_longer_finite_ends_and_leaves_what_can_be_read(
    algorithm, validation, tmp_path
):
    federation, task = far()
    settings = {"rounds": 50, "validation": validation, "folder": tmp_path / "run"}
    with pytest.warns(CoterieWarning, match="no longer finite"):
        run = coterie.simulate(algorithm, federation, task, **settings)
    assert run.rounds < 10
    assert run.ending == run.result["ending"] == "diverged"
    assert f"no longer finite after round {run.rounds}, so the run ended there" in run.failure
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"Training ended after round {run.rounds}: the models were no longer finite" in page
    again = coterie.simulate(algorithm, federation, task, **settings, resume=True)
    assert (again.rounds, again.ending) == (run.rounds, "diverged")  # it is not trained on


@pytest.mark.filterwarnings("default::coterie.CoterieWarning")
def test_the_command_says_so_and_its_exit_code_is_not_0(tmp_path, capsys):
    words = ["fedavg", "linear-mixture", "clients=6", "lr=1e9", "rounds=30"]
    assert main(["run", *words, "--out", str(tmp_path / "run"), "--json"]) == 1
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert result["rounds"] < 30
    last = said.err.strip().splitlines()[-1]
    assert last.startswith(
        f"coterie: the models are no longer finite after round {result['rounds']}"
    )
    assert main(["run", "--resume", str(tmp_path / "run"), "rounds=40"]) == 1
    assert main(["report", str(tmp_path / "run")]) == 0


def test_where_clients_attack_the_run_goes_on():
    federation, task = far()
    settings = {"attack": "boosted", "attackers": 0.25, "rounds": 3, "labels": "keep"}
    with pytest.warns(CoterieWarning, match="no longer finite"):
        run = coterie.simulate(FedAvg(lr=1e6, steps=100), federation, task, **settings)
    assert (run.rounds, run.ending) == (3, "")


def test_the_report_and_the_lines_say_which_round_is_kept(tmp_path, capsys):
    words = ["local", "rotated-digits", "clients=4", "lr=3", "steps=30", "hidden=10", "rounds=40"]
    words += ["validation=0.3", "early_stopping=2", "samples=40"][:2]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    best, rounds = result["best_round"], result["rounds"]
    assert f"kept      round {best}, the best by validation loss" in said.out
    if rounds < 40:
        assert "2 evaluations brought no lower one" in said.out
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"Kept is round {best}, which has the lowest validation loss" in page
    assert f'"best round, {best}"' in page
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    ]
    assert len(lines) == rounds
    assert lines[-1]["best_round"] == best
