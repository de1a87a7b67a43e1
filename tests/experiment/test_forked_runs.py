import os
import signal
import subprocess
import sys
import time

import pytest

from coterie.core.errors import CoterieError
from coterie.experiment import sweeps
from coterie.experiment.forked_runs import CAN_FORK, ForkServer
from coterie.experiment.sweeps import Job, run_jobs

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="runs are forked on Linux only")

ENDLESS = ("local", "rotated-digits", "clients=8", "rounds=4000", "evaluate=4000")


@pytest.fixture
def server():
    server = ForkServer({"OMP_NUM_THREADS": "1"})
    yield server
    server.close()


def wait_for_rounds(job):
    deadline = time.monotonic() + 120
    while job.rounds_done < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert job.rounds_done >= 3


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid):
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


def test_a_forked_run_is_a_run_in_a_process_of_its_own(tmp_path, monkeypatch):
    words = ("fedavg", "rotated-digits", "clients=8", "rounds=2")
    results = []
    for can_fork in (True, False):
        monkeypatch.setattr(sweeps, "CAN_FORK", can_fork)
        jobs = [Job((*words, f"seed={s}"), tmp_path / f"{can_fork}-{s}") for s in range(3)]
        found, failure = run_jobs(jobs, workers=2)
        assert failure == ""
        results.append([result["metrics"] for result in found])
    assert results[0] == results[1]
    assert len({result["loss"] for result in results[0]}) == 3


def test_what_is_wrong_is_in_the_log_and_in_the_exit_code(server, tmp_path):
    wrong = server.start(["run", "ifca", "ks=2"], tmp_path / "wrong.log")
    fine = server.start(["list"], tmp_path / "fine.log")
    assert (wrong.wait(60), fine.wait(60)) == (2, 0)
    assert "no setting is named ks" in (tmp_path / "wrong.log").read_text()
    assert wrong.pid != fine.pid


def test_a_run_is_stopped_by_a_signal_and_leaves_a_checkpoint(server, tmp_path):
    job = Job(ENDLESS, tmp_path / "run")
    process = server.start(["run", *ENDLESS, "--out", str(job.folder)], tmp_path / "log")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    wait_for_rounds(job)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert (job.folder / "checkpoint.safetensors").exists()
    process.terminate()  # of one that has ended nothing comes


def test_runs_stop_when_the_sweep_is_killed(tmp_path):
    jobs = [Job((*ENDLESS, f"seed={s}"), tmp_path / f"{s}") for s in range(2)]
    script = (
        "from pathlib import Path; from coterie.experiment.sweeps import Job, run_jobs\n"
        f"jobs = [Job((*{ENDLESS!r}, f'seed={{s}}'), Path({str(tmp_path)!r}) / f'{{s}}')"
        " for s in range(2)]\n"
        "run_jobs(jobs, workers=1)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    wait_for_rounds(jobs[0])
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while not (jobs[0].folder / "checkpoint.safetensors").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    done = jobs[0].rounds_done
    time.sleep(1)
    assert jobs[0].rounds_done == done < 4000


def test_a_server_that_is_killed_is_one_sentence_and_leaves_no_run(server, tmp_path):
    job = Job(ENDLESS, tmp_path / "run")
    process = server.start(["run", *ENDLESS, "--out", str(job.folder)], tmp_path / "log")
    wait_for_rounds(job)
    with open(f"/proc/{process.pid}/stat") as file:
        parent = int(file.read().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    with pytest.raises(CoterieError, match="starts the runs of the sweep was killed"):
        process.wait(60)
    assert process.poll() == 1
    wait_until_gone(process.pid)
    with pytest.raises(CoterieError, match="was killed"):
        server.start(["list"], tmp_path / "log")
