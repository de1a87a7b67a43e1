"""The command line as a person meets it: real processes, real signals, wrong input."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors import safe_open

from coterie.cli.common import new_folder
from coterie.cli.main import MISTAKE, main
from coterie.shelves import ALGORITHMS, FEDERATIONS, NETWORKS

SMALL = ["ifca", "rotated-digits", "clients=8", "k=2", "rounds=3"]


def coterie_process(*words, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=hear_ctrl_c,
        **options,
    )


def hear_ctrl_c():
    """Tests that run in the background ignore Ctrl-C, and so would all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_json_is_one_object_on_stdout_and_nothing_else(tmp_path, capsys):
    assert main(["run", *SMALL, "--out", str(tmp_path / "r"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) >= {
        "algorithm",
        "federation",
        "rounds",
        "seed",
        "metrics",
        "bytes_down",
        "bytes_up",
        "seconds",
        "run_dir",
    }
    assert result["run_dir"] == str(tmp_path / "r")
    averaged = ("accuracy", "balanced_accuracy", "f1", "auc", "average_precision")
    assert set(result["metrics"]) == {
        *averaged,
        *(f"{name}_macro" for name in averaged),
        "f1_micro",
        "log_loss",
        "ece",
        "ari",
        "nmi",
        "purity",
        "clusters",
        "loss",
    }
    assert result["metric"] == "accuracy"
    assert 0 < result["baseline"]["accuracy"] < result["metrics"]["accuracy"]
    assert json.loads((tmp_path / "r" / "result.json").read_text()) == result


def test_a_run_leaves_its_folder(tmp_path, capsys):
    assert main(["run", *SMALL, "--out", str(tmp_path / "r")]) == 0
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "config.json",
        "outcome.crc",
        "rounds.crc",
        "rounds.jsonl",
        "checkpoint.safetensors",
        "models.safetensors",
        "result.json",
        "quality.json",
        "clients.json",
        "pictures.json",
        "report.html",
    }
    out = capsys.readouterr().out
    assert str(tmp_path / "r" / "report.html") in out
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert config["command"] == "coterie run ifca rotated-digits clients=8 k=2 rounds=3"
    assert config["settings"]["lr"] == 0.1


def test_the_recorded_command_repeats_the_run(tmp_path, capsys):
    assert main(["run", *SMALL, "lr=0.2", "--out", str(tmp_path / "a"), "--json"]) == 0
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    words = config["command"].split()[1:]
    assert main([*words, "--out", str(tmp_path / "b"), "--json"]) == 0
    one, two = (json.loads(line)["metrics"] for line in capsys.readouterr().out.splitlines())
    assert one == two


def test_without_words_it_runs_ifca_on_rotated_digits(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "rounds=1", "clients=8"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("ifca-rotated-digits")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "ifac"], "no algorithm is named ifac; did you mean `ifca`"),
        (["run", "xyzzy"], "no algorithm is named xyzzy (algorithms: ifca, fpfc, "),
        (["run", "ifca", "rotated-digit"], "did you mean `rotated-digits`"),
        (["run", "ifca", "rotated-digits", "roundss=3"], "did you mean `rounds`"),
        (["run", "fedavg", "rotated-digits", "k=3"], "no setting is named k"),
        (["run", "ifca", "rotated-digits", "k=four"], "`k` must be a whole number, got four"),
        (["run", "ifca", "rotated-digits", "k=2.5"], "`k` must be a whole number, got 2.5"),
        (["run", "ifca", "rotated-digits", "lr=fast"], "`lr` must be a number, got fast"),
        (
            ["run", "ifca", "rotated-digits", "lr=nan"],
            "`lr` of IFCA must be a finite number, got nan",
        ),
        (
            ["run", "ifca", "rotated-digits", "lr=inf"],
            "`lr` of IFCA must be a finite number, got inf",
        ),
        (["run", "ifca", "rotated-digits", f"k=-{'1' * 400}"], "`k` must be smaller than 2^53"),
        (["run", "ifca", "rotated-digits", "k="], "`k` must be a whole number, got nothing"),
        (["run", "rotated-digits", "samples=1"], "no algorithm is named rotated-digits"),
        (
            ["run", "ifca", "rotated-digits", "samples=1"],
            "`samples` of RotatedDigits must be at least 2",
        ),
        (
            ["run", "ifca", "linear-mixture", "features=999999999999"],
            "linear-mixture cannot be built",
        ),
        (["run", "--out", ""], "--out must name a folder"),
        (["run", "--out", "x" * 300], "File name too long"),
        (["list", "more"], "unrecognized arguments: more"),
        (["run", "ifca", "rotated-digits", "k=0"], "`k` of IFCA must be at least 1, got 0"),
        (["run", "ifca", "rotated-digits", "k=81"], "at most the number of clients, 80, got 81"),
        (
            ["run", "ifca", "rotated-digits", "rounds=-1"],
            "`rounds` of RunSettings must be at least 1, got -1",
        ),
        (["run", "ifca", "rotated-digits", "clients=9000"], "too few for 2250 clients"),
        (["run", "ifca", "rotated-digits", "start=warmm"], "did you mean `warm`"),
        (["run", "ifca", "rotated-digits", "share=joint", "head=haed"], "did you mean `head`"),
        (["run", "ifca", "rotated-digits", "fraction=0"], "above 0 and at most 1, got 0"),
        (["run", "ifca", "rotated-digits", "k=2", "k=3"], "`k` is given twice"),
        (["run", "ifca", "rotated-digits", "loud"], "settings are written key=value, got loud"),
        (["run", "--resume", "nowhere"], "nowhere is not a run folder"),
        (["run", "--colour"], "unrecognized arguments: --colour"),
        (["describe", "icfa"], "did you mean `ifca`"),
        (["data", "get", "mnits"], "did you mean `mnist`"),
        (["rn"], "no command is named rn; did you mean `run`?"),
        (["fly"], "no command is named fly (commands: run, predict, "),
        (["ifca"], "no command is named ifca; did you mean `coterie run ifca`?"),
        (["mlp"], "no command is named mlp; did you mean `coterie describe mlp`?"),
        (["help", "rnu"], "no command is named rnu; did you mean `run`?"),
        (["run", "ifca", "rotated-digits", "K=3"], "no setting is named K; did you mean `k`?"),
        (["run", "ifca", "rotated-digits", "n_clusters=3"], "n_clusters; did you mean `k`?"),
        (["run", "ifca", "rotated-digits", "learning_rate=1"], "learning_rate; did you mean `lr`?"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    words, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("coterie: ")
    assert sentence in line
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "runs"])
    assert not list(tmp_path.glob("runs/*"))


def test_a_missing_data_file_says_which_command_gets_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["run", "ifca", "rotated-mnist"]) == 2
    assert "`coterie data get mnist` gets it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_told(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["run", *SMALL, "--out", str(tmp_path / "file" / "r")]) == 2
    assert "cannot write to the run folder" in capsys.readouterr().err


def test_a_resume_with_other_settings_is_refused(tmp_path, capsys):
    assert main(["run", *SMALL, "--out", str(tmp_path / "r")]) == 0
    for words, sentence in (
        (["k=3"], "`k` is 2, got 3"),
        (["fedavg"], "it runs ifca, got fedavg"),
        (["ifca", "rotated-mnist"], "it runs rotated-digits, got rotated-mnist"),
    ):
        assert main(["run", "--resume", str(tmp_path / "r"), *words]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["run", "--resume", str(tmp_path / "r"), "k=2"]) == 0


def test_a_foreign_or_damaged_checkpoint_is_refused(tmp_path, capsys):
    assert main(["run", *SMALL, "--out", str(tmp_path / "a")]) == 0
    assert main(["run", *SMALL, "seed=1", "--out", str(tmp_path / "b")]) == 0
    capsys.readouterr()
    foreign = (tmp_path / "b" / "checkpoint.safetensors").read_bytes()
    for contents, sentence in (
        (foreign, "belongs to another run"),
        (foreign[:-3], "is damaged"),
        (b"not a checkpoint", "is damaged"),
    ):
        (tmp_path / "a" / "checkpoint.safetensors").write_bytes(contents)
        assert main(["run", "--resume", str(tmp_path / "a")]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert len(error.splitlines()) == 1
    (tmp_path / "a" / "config.json").write_text("{")
    assert main(["run", "--resume", str(tmp_path / "a")]) == 2
    assert "config.json cannot be read" in capsys.readouterr().err


def wait_for(path, process):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


LONG = ["ifca", "rotated-digits", "clients=40", "k=4", "rounds=12", "batch=16", "seed=5"]


def outcome(folder):
    """All that must agree between a killed and an uninterrupted run."""
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in (result, *lines):
        line.pop("seconds")
    result.pop("run_dir")
    checkpoint = safe_open(folder / "checkpoint.safetensors", framework="pt")
    with checkpoint as file:
        tensors = {name: file.get_tensor(name).tolist() for name in file.keys()}  # noqa: SIM118
    return result, lines, tensors, (folder / "clients.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.15, 0.4, 0.7, 1.1, 1.6])
def test_killed_at_any_moment_and_resumed_it_ends_the_same(delay, tmp_path, uninterrupted):
    process = coterie_process("run", *LONG, "--out", tmp_path / "r")
    wait_for(tmp_path / "r" / "config.json", process)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = coterie_process("run", "--resume", tmp_path / "r")
    _, error = again.communicate()
    assert again.returncode == 0, error
    assert outcome(tmp_path / "r") == uninterrupted
    assert not list((tmp_path / "r").glob(".*"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "r"
    process = coterie_process("run", *LONG, "--out", folder)
    process.communicate()
    return outcome(folder)


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path, uninterrupted):
    process = coterie_process("run", *LONG, "--out", tmp_path / "r")
    wait_for(tmp_path / "r" / "rounds.jsonl", process)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"continue with: coterie run --resume {tmp_path / 'r'}" in error
    assert "Traceback" not in error
    assert out == ""
    again = coterie_process("run", "--resume", tmp_path / "r")
    again.communicate()
    assert outcome(tmp_path / "r") == uninterrupted


def test_list_names_every_algorithm_and_federation(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name in (*ALGORITHMS, *FEDERATIONS, *NETWORKS):
        assert name in out


def test_describe_tells_settings_and_what_crosses(capsys):
    assert main(["describe", "ifca"]) == 0
    out = capsys.readouterr().out
    assert "start=auto" in out
    assert "theta_j = mean of theta_i" in out
    assert "up    model    [m, p] theta_i" in out
    assert main(["describe", "rotated-digits"]) == 0
    out = capsys.readouterr().out
    assert "k=4 lr=0.1 steps=10 rounds=60 network=mlp hidden=100" in out
    assert "Settings of its network, mlp\n  hidden=100  widths of the hidden layers" in out
    assert main(["describe", "cnn"]) == 0
    assert "hidden=2048  width of the last hidden layer" in capsys.readouterr().out


def test_every_setting_says_what_it_means():
    from coterie.experiment.settings import NetworkChoice, RunSettings, settings_of

    for owner in (
        *ALGORITHMS.values(),
        *FEDERATIONS.values(),
        *NETWORKS.values(),
        RunSettings,
        NetworkChoice,
    ):
        for setting in settings_of(owner):
            assert setting.meaning, f"{owner.__name__}.{setting.name}"


def test_one_name_is_one_quantity_everywhere():
    """Owners of a run that share a setting's name would get one value for both."""
    from coterie.experiment.settings import NetworkChoice, RunSettings, setting_names

    shelves = ALGORITHMS.values(), FEDERATIONS.values(), NETWORKS.values()
    for owners in itertools.product(*shelves):
        names = setting_names(*owners, RunSettings, NetworkChoice)
        assert len(names) == len(set(names)), owners


@pytest.mark.filterwarnings("default::coterie.CoterieWarning")
def test_a_warning_is_one_line_on_stderr(tmp_path, capsys):
    words = ["ifca", "rotated-digits", "clients=8", "k=8", "rounds=1", "start=reject", "tries=1"]
    assert main(["run", *words, "--out", str(tmp_path / "r")]) == 0
    error = capsys.readouterr().err
    assert "coterie: warning: start=reject: none of 1 draws" in error
    assert "warnings.warn" not in error


def test_options_may_stand_anywhere(tmp_path, capsys):
    words = ["run", "ifca", "--out", str(tmp_path / "r"), "rotated-digits", "--json", "clients=8"]
    assert main([*words, "k=2", "rounds=1"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 1


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {new_folder("ifca", "digits") for _ in range(5)}
    assert len(folders) == 5


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "rounds.jsonl").write_text("mine")
    assert main(["run", *SMALL, "--out", str(tmp_path)]) == 2
    assert "must be new or empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["rounds.jsonl"]
    assert (tmp_path / "rounds.jsonl").read_text() == "mine"


def test_a_reader_that_has_had_enough_is_no_error():
    command = f"{sys.executable} -m coterie.cli.main list | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_lines_that_are_not_text_are_refused(tmp_path, capsys):
    assert main(["run", *SMALL, "--out", str(tmp_path / "r")]) == 0
    (tmp_path / "r" / "rounds.jsonl").write_bytes(b"\xff\xfe\x00")
    assert main(["run", "--resume", str(tmp_path / "r")]) == 2
    assert "does not hold the 3 rounds" in capsys.readouterr().err


def test_a_configuration_that_cannot_be_is_refused(tmp_path, capsys):
    assert main(["run", *SMALL, "--out", str(tmp_path / "r")]) == 0
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    for name, value in (("k", 2.5), ("k", "two"), ("lr", None)):
        settings = {**config["settings"], name: value}
        (tmp_path / "r" / "config.json").write_text(json.dumps({**config, "settings": settings}))
        assert main(["run", "--resume", str(tmp_path / "r")]) == 2
        assert name in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_ctrl_c_while_it_starts_is_no_traceback(tmp_path):
    for delay in (0.2, 0.8, 1.5):
        process = coterie_process("run", *LONG, "--out", tmp_path / f"r{delay}")
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
        assert "Traceback" not in error or delay < 0.5, error
        # Before the command itself begins it is Python that ends, with an exit code of its own.
        assert process.returncode in (130, -signal.SIGINT, *([1] if delay < 0.5 else [])), error


@pytest.mark.parametrize("algorithm", ["fedavg", "local", "oracle", "ifca"])
def test_suggested_settings_do_not_diverge(algorithm, tmp_path, capsys):
    words = ["run", algorithm, "linear-mixture", "clients=8", "features=200", "rounds=20"]
    words += ["tries=2"] if algorithm == "ifca" else []
    assert main([*words, "samples=20", "--out", str(tmp_path / "r"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["loss"] is not None


def test_every_source_is_listed(capsys):
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    for name in ("mnist", "fashion-mnist", "cifar10", "femnist", "celeba"):
        assert name in out


@pytest.fixture
def patients(tmp_path):
    """A table of two hospitals' groups that read the same measurement in opposite ways."""
    rng = np.random.default_rng(0)
    lines = ["hospital,age,ward,outcome"]
    for i in range(12):
        for _ in range(40):
            age = rng.normal(50, 10)
            well = (age > 50) == (i % 2 == 0)
            lines.append(f"h{i:02},{age:.2f},{'AB'[rng.integers(2)]},{'well' if well else 'ill'}")
    path = tmp_path / "patients.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_of_ones_own_is_one_command_away_from_clusters(patients, tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    words = ["run", "ifca", str(patients), "client=hospital", "label=outcome", "k=2", "rounds=15"]
    assert main([*words, "--out", str(tmp_path / "r"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metrics"]["clusters"] == 2
    assert result["metrics"]["accuracy"] > 0.85
    clients = json.loads((tmp_path / "r" / "clients.json").read_text())["clients"]
    assert clients["cluster"] in ([0, 1] * 6, [1, 0] * 6)
    assert clients["name"] == [f"h{i:02}" for i in range(12)]
    assert "h07" in (tmp_path / "r" / "report.html").read_text()
    assert main(["run", "--resume", str(tmp_path / "r")]) == 0


def test_a_table_without_a_label_is_clustered_or_asked_for_one(patients, tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    words = [str(patients), "client=hospital", "--json", "--out", str(tmp_path / "r")]
    assert main(["run", "ifca", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "IFCA learns to predict a label, but patients.csv has none" in line
    assert "label=outcome" in line
    assert "k-fed" in line
    assert not (tmp_path / "r").exists()
    assert main(["run", "k-fed", "k=3", *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metrics"]["clusters"] == 3
    assert not {"ari", "purity", "accuracy"} & set(result["metrics"])
    assert main(["data", "describe", str(patients), "client=hospital"]) == 0
    assert "no label" in capsys.readouterr().out


def test_a_table_is_described(patients, capsys):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    assert main(["data", "describe", str(patients), "client=hospital", "label=outcome"]) == 0
    out = capsys.readouterr().out
    assert "12" in out
    assert "480" in out


def test_a_federation_is_described_by_its_name(capsys):
    assert main(["data", "describe", "rotated-digits", "clients=8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # Two clients share 1,797 digits under each of four rotations: 898 each, 180 to test on.
    assert lines[0] == "rotated-digits: 8 clients, 7,184 samples of 8 x 8 float32"
    assert lines[1] == "1,440 of them are there to test on"
    assert "  898  ##############################  8" in lines
    assert "label `label`: classification, 10 classes" in lines
    assert lines[-1] == "true clusters have these numbers of clients: 2 2 2 2"
    assert main(["data", "describe", "rotated-digit"]) == 2
    assert "did you mean `rotated-digits`" in capsys.readouterr().err
    assert main(["data", "describe", "rotated-digits", "client=8"]) == 2
    assert "no setting is named client; did you mean `clients`" in capsys.readouterr().err


def test_a_table_without_the_named_column_is_refused(patients, tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for words in (["run", "ifca"], ["data", "describe"]):
        assert main([*words, str(patients), "client=hospitl", "label=outcome"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "hospital" in line
    assert main(["run", "ifca", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_tells_what_leaves_a_client(name, capsys):
    """FPFC-l1 takes its client steps over from FPFC, and said that nothing crosses."""
    assert main(["describe", name]) == 0
    crossing = capsys.readouterr().out.split("What crosses\n")[1]
    assert "    up    " in crossing


@pytest.mark.parametrize(
    ("name", "step", "seen"),
    [
        ("fedavg", "train", "sums over clients, and of each client: cluster"),
        ("fesem", "train", "sums over clients, and of each client: cluster"),
        ("ifca", "differentiate", "sums over clients, and of each client: cluster"),
        ("ifca", "choose", "every client's upload"),
        ("cfl", "train", "every client's upload"),
        ("fpfc", "train", "every client's upload"),
        ("one-shot", "fit", "every client's upload"),
    ],
)
def test_every_step_says_what_the_server_sees(name, step, seen, capsys):
    assert main(["describe", name]) == 0
    crossing = capsys.readouterr().out.split("What crosses\n")[1]
    steps = re.split(r"^  (?=\w)", crossing, flags=re.MULTILINE)
    (lines,) = (text.splitlines() for text in steps if text.startswith(f"{step}\n"))
    of_step = [line for line in lines if line.startswith("    ")]  # below may be a last sentence
    assert of_step[-1] == f"    the server sees {seen}"


def test_a_finished_run_is_given_more_rounds(tmp_path, capsys):
    words = ["run", "fedavg", "rotated-digits", "clients=8", "rounds=2"]
    folder = str(tmp_path / "r")
    assert main([*words, "--out", folder]) == 0
    assert main(["run", "--resume", folder, "rounds=4", "--json"]) == 0
    longer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main([*words[:-1], "rounds=4", "--out", str(tmp_path / "w"), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (longer["rounds"], longer["metrics"]) == (4, whole["metrics"])
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert config["command"].endswith("clients=8 rounds=4")
    assert main(["run", "--resume", folder, "rounds=3"]) == MISTAKE
    assert "at least the rounds that are done, 4, got 3" in capsys.readouterr().err
    assert main(["run", "--resume", folder, "lr=0.3"]) == MISTAKE
    assert "a resumed run keeps its settings: `lr` is" in capsys.readouterr().err


def test_a_comparison_shows_what_diverged_and_what_is_left_of_failures(tmp_path, capsys):
    words = ["compare", "fedavg,local,ifca", "linear-mixture", "clients=6", "rounds=2", "seeds=1"]
    words += ["fedavg.lr=1e9", "ifca.k=40", "--out", str(tmp_path / "c")]
    assert main(words) == MISTAKE
    said = capsys.readouterr()
    assert "diverged" in said.out
    assert "| local " in said.out
    assert "1 of 3 runs failed: ifca" in said.err
    assert "Traceback" not in said.err
    assert (tmp_path / "c" / "report.html").exists()
