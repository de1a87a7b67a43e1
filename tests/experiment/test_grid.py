import gzip
import json
import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

import coterie
from coterie.cli import main as cli
from coterie.core.errors import CheckpointError, CoterieError, SettingError
from coterie.data.federation import Samples
from coterie.engine.copies.shared_work import SharedWork
from coterie.experiment.grid import Grid
from coterie.experiment.plan import make_plan, plan_again
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings
from tests.algorithms.lines import line


@pytest.fixture(scope="module")
def mixture():
    return coterie.load("linear-mixture", clients=8, samples=12, features=6, scale="raw")


@pytest.fixture(scope="module")
def digits():
    return coterie.load("rotated-digits", clients=8)


@pytest.fixture(scope="module")
def strangers():
    """Rotated digits that are tested on clients of their own."""
    federation, task = coterie.load("rotated-digits", clients=16)
    parts = [federation.train.client(i) for i in range(16)]
    apart = coterie.Federation(
        Samples.of(parts[:8]),
        test=Samples.of(parts[8:]),
        cluster=federation.cluster[:8],
        test_cluster=federation.cluster[8:],
        unseen=True,
    )
    return apart, task


WORK = {
    "gradients": ("mixture", coterie.IFCA(average="gradients", start="random"), {}),
    "batches": ("mixture", coterie.IFCA(average="gradients", batch=4), {}),
    "some take part": ("mixture", coterie.IFCA(average="gradients"), {"fraction": 0.5}),
    "replies are lost": ("mixture", coterie.IFCA(average="gradients"), {"lost": 0.3}),
    "one client in a chunk": ("mixture", coterie.IFCA(average="gradients"), {"chunk": 1}),
    "descent": ("digits", coterie.IFCA(k=2, steps=2, start="restarts", tries=2), {}),
    "two layers": ("digits", coterie.IFCA(k=2, average="gradients"), {}),
    "fpfc": (
        "mixture",
        coterie.FPFC(steps=2, lambdas=2, path_rounds=4, stages=1),
        {"fraction": 0.5},
    ),
    "memory of clients": ("digits", coterie.Ditto(steps=2), {}),
    "judged by test data": (
        "mixture",
        coterie.IFCA(average="gradients"),
        {"protocol": "test-loss"},
    ),
    "local, by test data": ("digits", coterie.Local(steps=2), {"protocol": "test-loss"}),
    "unseen clients": ("strangers", coterie.IFCA(k=2, steps=2), {}),
}


@pytest.mark.parametrize("name", WORK)
def test_each_copy_is_the_run_it_would_be_alone(name, request):
    data, algorithm, settings = WORK[name]
    federation, task = request.getfixturevalue(data)
    wanted = RunSettings(rounds=4, starts=2, seed=3, **settings)
    grid = Grid(algorithm, federation, task, wanted, {"lr": [0.05, 0.1]})
    grid.complete()
    assert [(copy.point["lr"], copy.start) for copy in grid.copies] == [
        (0.05, 0),
        (0.05, 1),
        (0.1, 0),
        (0.1, 1),
    ]
    for copy in grid.copies:
        own = replace(algorithm, lr=copy.point["lr"])
        alone = Run(own, federation, task, wanted, start=copy.start).complete()
        torch.testing.assert_close(copy.run.models, alone.models, rtol=1e-4, atol=1e-5)
        assert copy.run.clusters.equal(alone.clusters)
        assert [r["sizes"] for r in copy.run.records] == [r["sizes"] for r in alone.records]
        for mine, own in zip(copy.run.records, alone.records, strict=True):
            assert mine["metrics"] == pytest.approx(own["metrics"], rel=1e-4)
        assert copy.run.bytes.parts == alone.bytes.parts
    assert not torch.equal(grid.copies[0].run.models, grid.copies[1].run.models)


def test_the_first_start_is_that_of_an_ordinary_run(mixture):
    plain = coterie.simulate(coterie.IFCA(), *mixture, rounds=2, seed=5)
    several = Grid(coterie.IFCA(), *mixture, RunSettings(rounds=2, seed=5, starts=2), {})
    several.complete()
    torch.testing.assert_close(several.copies[0].run.models, plain.models)


def test_copies_are_worked_on_together(mixture, monkeypatch):
    counts = []

    def counted(join):
        def counting(shared_work, models, *rest):
            counts.append((join.__name__, len(models)))
            return join(shared_work, models, *rest)

        return counting

    for work in ("choices", "gradients"):
        monkeypatch.setattr(SharedWork, work, counted(getattr(SharedWork, work)))
    algorithm = coterie.IFCA(average="gradients", start="random")
    coterie.simulate(algorithm, *mixture, rounds=3, starts=3, evaluate=3, grid={"lr": [0.05, 0.1]})
    # Six copies: in each of three rounds they choose and differentiate, at the end they are served
    # twice, to be judged and for good.
    rounds = [("choices", 6), ("gradients", 6)] * 3
    assert counts == [*rounds, ("choices", 6), ("choices", 6)]


def far(w, y):
    """One client on a line at y, a model that starts at w."""
    task = coterie.Regression(nn.Linear(1, 1, bias=False), draw=lambda _: torch.tensor([w]))
    return line([y]), task


def test_the_lowest_training_loss_wins_whatever_the_truth_says():
    # The loss is (w - 8)^2 and w starts at 0: a step of 1/4 goes half the way, to 4, one of 1/8 a
    # quarter of it, to 2. The truth that is given is 2, where only the worse copy is.
    federation, task = far(0.0, 8.0)
    federation = replace(federation, truth=torch.tensor([[2.0]]), noise=0.1)
    run = coterie.simulate(
        coterie.FedAvg(steps=1), federation, task, rounds=1, grid={"lr": [0.125, 0.25]}
    )
    assert run.models.tolist() == [[4.0]]
    assert run.result["chosen"] == {"lr": 0.25, "start": 0, "train_loss": 16.0}
    assert [copy["train_loss"] for copy in run.result["copies"]] == [36.0, 16.0]
    assert [copy["metrics"]["distance"] for copy in run.result["copies"]] == [0.0, 2.0]
    assert run.metrics["success"] == 0.0
    # As the IFCA paper counts: some copy came near enough.
    assert run.metrics["success_any"] == 1.0
    assert run.metrics["success_any_nearest"] == 1.0


def test_a_copy_that_diverges_is_left_behind():
    # A step of size 1e20 multiplies the distance by -2e20: after two rounds it is 3e41, too much.
    federation, task = far(0.0, 8.0)
    grid = Grid(
        coterie.FedAvg(steps=1), federation, task, RunSettings(rounds=5), {"lr": [1e20, 0.25]}
    )
    best = grid.complete()
    assert best.result["chosen"]["lr"] == 0.25
    gone, kept = best.result["copies"]
    assert (gone["diverged"], gone["train_loss"], gone["metrics"]) == (2, None, {})
    assert kept["diverged"] is None
    assert [copy.run.rounds for copy in grid.copies] == [2, 5]
    assert best.warnings == []


def test_if_all_diverge_that_is_said():
    federation, task = far(0.0, 8.0)
    with pytest.raises(CoterieError, match="all 2 copies have diverged by round 2; a smaller lr"):
        coterie.simulate(
            coterie.FedAvg(steps=1), federation, task, rounds=5, grid={"lr": [1e20, 2e20]}
        )


def test_wrong_grids_are_refused(mixture):
    with pytest.raises(SettingError, match="`lr` of IFCA must be greater than 0, got -1"):
        make_plan(["ifca", "linear-mixture", "lr=0.1,-1"])
    with pytest.raises(SettingError, match=r"`lr` must be a number, got nothing"):
        make_plan(["ifca", "linear-mixture", "lr=0.1,"])
    with pytest.raises(SettingError, match=r"the same value twice: 1,1\.0"):
        make_plan(["ifca", "linear-mixture", "lr=1,1.0"])
    with pytest.raises(SettingError, match="`lr` is given twice"):
        make_plan(["ifca", "linear-mixture", "lr=1,2", "lr=3"])
    with pytest.raises(SettingError, match="`clients` must be a whole number, got 8,9"):
        make_plan(["ifca", "linear-mixture", "clients=8,9"])
    with pytest.raises(SettingError, match="IFCA has no setting named rate"):
        coterie.simulate(coterie.IFCA(), *mixture, grid={"rate": [1, 2]})
    with pytest.raises(SettingError, match="`starts` of RunSettings must be at least 1, got 0"):
        make_plan(["ifca", "linear-mixture", "starts=0"])


WORDS = ["run", "ifca", "linear-mixture", "clients=8", "samples=12", "features=6", "start=random"]
WORDS += ["rounds=6", "starts=2", "lr=0.05,0.1", "checkpoint=1"]


@pytest.fixture
def folder(tmp_path, capsys):
    assert cli.main([*WORDS, "--out", str(tmp_path / "run"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    return tmp_path / "run", printed


def test_one_folder_holds_the_best_copy_and_lists_all(folder):
    path, printed = folder
    result = json.loads((path / "result.json").read_text())
    assert result == printed
    losses = [copy["train_loss"] for copy in result["copies"]]
    assert len(losses) == 4
    assert result["chosen"]["train_loss"] == min(losses)
    chosen = losses.index(min(losses))
    assert {"lr", "start", "diverged", "metrics"} < set(result["copies"][chosen])
    assert json.loads((path / "config.json").read_text())["settings"]["lr"] == "0.05,0.1"
    rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    packed = gzip.decompress((path / "copies.jsonl.gz").read_bytes()).decode()
    assert not (path / "copies.jsonl").exists(), "it is compressed at the end"
    copies = [json.loads(line) for line in packed.splitlines()]
    assert [record["round"] for record in rounds] == [1, 2, 3, 4, 5, 6]
    assert rounds == [line[chosen] for line in copies]
    assert (path / "report.html").exists()


def test_an_interrupted_grid_goes_on_where_it_was(folder, tmp_path, capsys, monkeypatch):
    path, whole = folder
    append, count = Grid._append, []

    def stops(self, record):
        append(self, record)
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Grid, "_append", stops)
    other = tmp_path / "other"
    assert cli.main([*WORDS, "--out", str(other)]) == cli.INTERRUPTED
    assert "the checkpoint holds 3 rounds" in capsys.readouterr().err
    # As if it had been killed in the middle of a line.
    with open(other / "copies.jsonl", "a") as file:
        file.write("[{")
    assert cli.main(["run", "--resume", str(other), "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed["copies"] == whole["copies"]
    assert resumed["metrics"] == whole["metrics"]
    # A finished one can be opened again; it says the same.
    assert cli.main(["run", "--resume", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["copies"] == whole["copies"]


def test_a_resumed_grid_keeps_its_settings_and_needs_its_files(folder, tmp_path, capsys):
    path, _ = folder
    config = json.loads((path / "config.json").read_text())
    assert plan_again(config, ["lr=0.05,0.1"]).grid == {"lr": (0.05, 0.1)}
    with pytest.raises(SettingError, match=r"`lr` is 0\.05,0\.1, got 0\.1"):
        plan_again(config, ["lr=0.1"])
    config["settings"]["lr"] = "0.05,0.1000"
    with pytest.raises(CheckpointError, match="impossible value for lr"):
        plan_again(config, [])
    shutil.copytree(path, tmp_path / "cut")
    packed = tmp_path / "cut" / "copies.jsonl.gz"
    lines = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
    packed.write_bytes(gzip.compress(b"".join(lines[:3])))
    assert cli.main(["run", "--resume", str(tmp_path / "cut")]) == cli.MISTAKE
    assert "does not hold the 6 rounds of all copies" in capsys.readouterr().err


@pytest.mark.parametrize("keep", [0, 40, -5])
def test_a_damaged_file_of_copies_is_refused_and_stays(folder, capsys, keep):
    path, _ = folder
    packed = path / "copies.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:keep] if keep else b"no gzip")
    assert cli.main(["run", "--resume", str(path)]) == cli.MISTAKE
    said = capsys.readouterr().err
    assert "copies.jsonl.gz is damaged" in said
    assert said.count("\n") == 1
    assert packed.exists()


def test_a_finished_grid_goes_on_with_more_rounds_from_its_compressed_copies(
    folder, tmp_path, capsys
):
    path, _ = folder
    more = [word for word in WORDS if not word.startswith("rounds=")] + ["rounds=9"]
    assert cli.main([*more, "--out", str(tmp_path / "whole"), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    # As if a process had been killed while it was unpacked: both files are there.
    packed = (path / "copies.jsonl.gz").read_bytes()
    (path / "copies.jsonl").write_bytes(gzip.decompress(packed))
    assert cli.main(["run", "--resume", str(path), "rounds=9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["copies"] == whole["copies"]
    assert not (path / "copies.jsonl").exists()
