import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from coterie.core.errors import CoterieError, SettingError
from coterie.experiment.plan import make_plan
from coterie.experiment.sweeps import Job, run_jobs, thread_limits

SMALL = ("rotated-digits", "clients=8", "rounds=2")


def test_runs_are_done_side_by_side_and_only_once(tmp_path):
    jobs = [Job(("local", *SMALL, f"seed={seed}"), tmp_path / str(seed)) for seed in (0, 1)]
    news = []
    results = run_jobs(jobs, tell=lambda *counts: news.append(counts))
    assert [result["seed"] for result in results.results] == [0, 1]
    assert results.failure == ""
    assert news[-1] == (4, 4, 2, 2)
    before = [os.stat(job.folder / "result.json").st_mtime_ns for job in jobs]
    assert run_jobs(jobs) == results
    assert [os.stat(job.folder / "result.json").st_mtime_ns for job in jobs] == before


def test_a_run_from_before_a_setting_of_runs_existed_is_the_same_run(tmp_path):
    job = Job(("local", *SMALL), tmp_path / "a")
    results = run_jobs([job])
    config = json.loads((job.folder / "config.json").read_text())
    del config["settings"]["device"]
    (job.folder / "config.json").write_text(json.dumps(config))
    assert run_jobs([job]) == results
    del config["settings"]["lr"]  # of the algorithm, which may have done something else then
    (job.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingError, match="holds a run with other settings"):
        run_jobs([job])


def test_a_folder_with_another_run_is_refused_before_anything_is_run(tmp_path):
    first = Job(("local", *SMALL), tmp_path / "a")
    run_jobs([first])
    with pytest.raises(SettingError, match="holds a run with other settings"):
        run_jobs([Job(("local", *SMALL), tmp_path / "b"), Job(("fedavg", *SMALL), tmp_path / "a")])
    assert not (tmp_path / "b").exists()


def test_wrong_words_are_refused_before_anything_is_run(tmp_path):
    with pytest.raises(SettingError, match="no setting is named ks"):
        run_jobs([Job(("local", *SMALL), tmp_path / "a"), Job(("ifca", "ks=2"), tmp_path / "b")])
    assert not (tmp_path / "a").exists()


def test_a_run_that_fails_is_named_and_the_others_are_finished(tmp_path, monkeypatch):
    (tmp_path / "broken.csv").write_text("client,label\n")
    table = str(tmp_path / "broken.csv")
    jobs = [
        Job(("local", table, "client=client", "label=label"), tmp_path / "bad"),
        Job(("local", *SMALL), tmp_path / "good"),
    ]
    results, failure = run_jobs(jobs)
    assert re.match(r"1 of 2 runs failed: local .*broken.csv", failure)
    assert results == [None, jobs[1].result]
    assert jobs[1].result is not None


def test_a_run_that_was_stopped_before_its_last_round_is_not_finished(tmp_path):
    job = Job(("local", *SMALL), tmp_path / "a")
    plan = make_plan(list(job.words))
    run = plan.run(plan.config())
    run.use(job.folder)
    run.complete(lambda record, run: run.stop())
    assert json.loads((job.folder / "result.json").read_text())["rounds"] == 1
    assert job.result is None
    assert run_jobs([job]).results[0]["rounds"] == 2


def test_what_many_runs_complain_of_is_said_once(tmp_path):
    (tmp_path / "broken.csv").write_text("client,label\n")
    words = ("local", str(tmp_path / "broken.csv"), "client=client", "label=label")
    with pytest.raises(CoterieError) as refused:
        run_jobs([Job((*words, f"seed={seed}"), tmp_path / f"{seed}") for seed in range(3)])
    said = str(refused.value)
    assert said.startswith("3 of 3 runs failed: local ")
    assert said.count("broken.csv") == 2  # in the words of the first run, and in the complaint
    assert " and 2 more: " in said


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_leaves_checkpoints_and_no_process(tmp_path, sent):
    words = ["local", "rotated-digits", "clients=8", "rounds=4000", "evaluate=4000"]
    script = (
        "from pathlib import Path; from coterie.cli.main import handle_interrupts\n"
        "from coterie.experiment.sweeps import Job, run_jobs\n"
        "handle_interrupts()\n"
        f"run_jobs([Job({tuple(words)!r}, Path({str(tmp_path / 'run')!r}))])"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    job = Job(tuple(words), tmp_path / "run")
    deadline = time.monotonic() + 120
    while job.rounds_done < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(sent)  # to the sweep alone: it must pass it on
    process.wait(timeout=60)
    done = job.rounds_done
    assert 3 <= done < 4000
    time.sleep(1)
    assert job.rounds_done == done, "a run went on after the sweep had ended"
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"]["rounds"] == 4000
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_processes_share_the_cores_and_a_smaller_wish_of_the_user_counts(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(7)), raising=False)
    assert thread_limits(3)["OMP_NUM_THREADS"] == thread_limits(3)["MKL_NUM_THREADS"] == "2"
    assert thread_limits(9)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert thread_limits(3)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert thread_limits(3)["OMP_NUM_THREADS"] == "2"
