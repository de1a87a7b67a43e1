"""Names of one's own through the real command line, from a folder outside the tree."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.cli.main import main
from tests.own import write_all

COTERIE = [
    sys.executable,
    "-P",
    "-c",
    "from coterie.cli.main import main; raise SystemExit(main())",
]


@pytest.fixture
def folder(tmp_path):
    """A folder with files of the user's own, from which no process can import by itself."""
    from tests.own import OwnFiles

    files = OwnFiles(tmp_path)
    write_all(files)
    return files


def coterie(folder, *words):
    done = subprocess.run(
        [*COTERIE, *words], cwd=folder, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


def test_a_file_beside_the_user_runs_describes_and_resumes(folder):
    mark, home = folder.mark, folder.folder
    words = [f"{mark}_method:Alias", f"{mark}_data:blobs", f"network={mark}_nets:build"]
    more = ["width=4", "gap=3", "rounds=3", "factor=1"]
    code, out, error = coterie(home, "run", *words, *more, "--out", "r", "--json")
    assert code == 0, error
    result = json.loads(out)
    assert result["algorithm"] == f"{mark}_method:Method"
    config = json.loads((home / "r" / "config.json").read_text())
    assert config["settings"]["network"] == f"{mark}_nets:build"
    assert config["command"].startswith(f"coterie run {mark}_method:Alias")
    page = (home / "r" / "report.html").read_text()
    assert "<title>Method on blobs" in page
    (home / "r" / "result.json").unlink()
    code, out, error = coterie(home, "run", "--resume", "r", *words, "--json")
    assert code == 0, error
    assert json.loads(out)["metrics"] == result["metrics"]
    code, out, error = coterie(home, "describe", f"{mark}_method:Method")
    assert "up    model    [m, d]" in out, error
    assert "factor=1" in out
    code, out, error = coterie(home, "describe", f"{mark}_data:blobs")
    assert "gap=2" in out, error


def test_an_option_of_attacks_may_be_a_setting_of_ones_own_unless_somebody_attacks(folder):
    mark, home = folder.mark, folder.folder
    words = ["run", f"{mark}_method:Method", f"{mark}_data:Blobs", "rounds=1", "factor=0.5"]
    code, _, error = coterie(home, *words, "--out", "quiet")
    assert code == 0, error
    settings = json.loads((home / "quiet" / "config.json").read_text())["settings"]
    assert (settings["factor"], settings["attack"]) == (0.5, "none")
    code, _, error = coterie(home, *words, "attack=boosted", "--out", "attacked")
    assert code == 2
    assert error.count("\n") == 1
    assert "`factor` is an option of `attack`" in error


def test_compare_gives_every_run_a_folder_of_its_own(folder):
    mark, home = folder.mark, folder.folder
    names = f"{mark}_method:Method,fedavg,{mark}_method:Alias"
    code, _, error = coterie(
        home, "compare", names, f"{mark}_data:Blobs", "seeds=1", f"{mark}_method:Method.factor=0.5",
        "--out", "c", "--workers", "1",
    )  # fmt: skip
    assert code == 0, error
    folders = {path.name for path in (home / "c").iterdir() if path.is_dir()}
    stem = f"{mark}_data+Blobs"
    own = {f"{stem}-{mark}_method+{name}-0" for name in ("Method", "Alias")}
    assert folders == {f"{stem}-fedavg-0", *own}
    config = json.loads((home / "c" / f"{stem}-{mark}_method+Method-0" / "config.json").read_text())
    assert config["settings"]["factor"] == 0.5
    assert config["settings"]["network"] == "linear"
    assert "Method" in (home / "c" / "report.html").read_text()


def test_several_values_of_an_own_setting_run_in_one_pass(own, monkeypatch, capsys):
    monkeypatch.chdir(own.folder)
    method, data, _ = write_all(own)
    words = [f"{method}:Method", f"{data}:Blobs", "factor=0.5,1", "rounds=2"]
    assert main(["run", *words, "--out", "g", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [copy["factor"] for copy in result["copies"]] == [0.5, 1.0]


def test_the_working_directory_is_importable_in_commands_only(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.folder)
    before = list(sys.path)
    assert main(["describe", f"{folder.mark}_data:Blobs"]) == 0
    assert "The same as a settings class." in capsys.readouterr().out
    assert sys.path == before


def test_a_file_of_the_users_hides_no_library(folder):
    """Not in the command, and not in the processes of a comparison."""
    home = folder.folder
    for name in ("json", "numpy", "coterie"):
        (home / f"{name}.py").write_text("raise RuntimeError('the wrong file')")
    words = ["fedavg", f"{folder.mark}_data:Blobs", "rounds=1"]
    code, _, error = coterie(home, "run", *words, "--out", "r")
    assert code == 0, error
    code, _, error = coterie(home, "compare", *words, "seeds=1", "--out", "c")
    assert code == 0, error


SENTENCES = [
    (["run", "nowhere:Method", "digits"], "no module is named nowhere"),
    (["run", "{0}_method:Metod", "digits"], "_method has no Metod; did you mean `Method`?"),
    (["run", "{0}_data:blobs", "digits"], "_data:blobs is not an algorithm"),
    (["run", "fedavg", "{0}_nets:Module"], "_nets:Module is not a federation"),
    (["run", "fedavg", "{0}_data:Blobs", "network={0}_data:Blobs"], "is not a network"),
    (["run", "fedavg", "{0}_clash:data"], "`lr` is a setting of FedAvg and of data"),
    (["run", "fedavg", "{0}_clash:data2"], "`rounds` is a setting of data2 and of RunSettings"),
    (["run", "fedavg", "{0}_clash:needs"], "`where` of needs has no default: say where="),
    (["run", "fedavg", "{0}_clash:pairs"], "_clash:pairs must build a Federation, got list"),
    (["run", "fedavg", "{0}_clash:data", "lrr=1"], "`lr` is a setting of FedAvg and of data"),
    (["describe", "{0}_clash:number"], "is no algorithm, federation or network"),
    (["compare", "fedavg,{0}_method:Nobody", "digits"], "_method has no Nobody"),
]


@pytest.mark.parametrize(("words", "sentence"), SENTENCES)
def test_mistakes_are_one_sentence(own, monkeypatch, capsys, words, sentence):
    write_all(own)
    own.write(
        "clash",
        """
        def data(lr: float = 0.1, seed: int = 0): ...
        def data2(rounds: int = 3, seed: int = 0): ...
        def needs(where: str, seed: int = 0): ...
        def pairs(seed): return [1, 2]
        number = 3
        """,
    )
    monkeypatch.chdir(own.folder)
    assert main([word.format(own.mark) for word in words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("coterie: ")
    assert error.count("\n") == 1
    assert not [path for path in Path().rglob("*") if path.name == "config.json"]


BROKEN = """
    '''A method, data and a network that fail.'''

    from dataclasses import dataclass

    from {0}_method import Method as Right
    from {0}_data import Blobs as Data
    from coterie.core.clients import on_client

    @dataclass(frozen=True, kw_only=True)
    class Begins(Right):
        def init(self, start):
            return start.nothing

    @dataclass(frozen=True, kw_only=True)
    class Rounds(Right):
        def round(self, state, clients):
            if clients.round == 1:
                raise KeyError("lost")
            return super().round(state, clients)

    @dataclass(frozen=True, kw_only=True)
    class Serves(Right):
        def serve(self, state, clients):
            return 1 / 0

    @dataclass(frozen=True, kw_only=True)
    class Steps(Right):
        @on_client
        def train(self, cohort, models) -> 'Nowhere':
            return models @ models

    def data(seed):
        return [][1]

    def network(shape, outputs):
        assert outputs > 99, "too few"
"""

FAILURES = [
    ("run {0}_broken:Begins {0}_data:Blobs", "AttributeError: 'Start' object", "start.no", "init"),
    ("run {0}_broken:Rounds {0}_data:Blobs", "KeyError: 'lost'", "raise KeyError", "round"),
    ("run {0}_broken:Serves {0}_data:Blobs", "ZeroDivisionError: division by", "1 / 0", "serve"),
    ("run {0}_broken:Steps {0}_data:Blobs", "RuntimeError: mat1 and mat2", "models @", "train"),
    ("run fedavg {0}_broken:data", "IndexError: list index out of range", "[][1]", "data"),
    (
        "run fedavg {0}_data:Blobs network={0}_broken:network",
        "AssertionError: too few",
        "assert outputs",
        "network",
    ),
]


@pytest.mark.parametrize(("words", "reason", "text", "where"), FAILURES)
def test_an_error_in_code_of_ones_own_is_told_with_its_line(
    own, monkeypatch, capsys, words, reason, text, where
):
    write_all(own)
    own.write("broken", BROKEN.format(own.mark))
    source = (own.folder / f"{own.mark}_broken.py").read_text().splitlines()
    (line,) = [number for number, row in enumerate(source, 1) if text in row]
    monkeypatch.chdir(own.folder)
    words = [*words.format(own.mark).split(), "rounds=2", "--out", "r"]
    assert main(words) == 2
    (said,) = [row for row in capsys.readouterr().err.splitlines() if row.startswith("coterie: ")]
    assert reason in said
    assert f"({own.mark}_broken.py, line {line}, in {where}); COTERIE_TRACEBACK=1 shows" in said
    monkeypatch.setenv("COTERIE_TRACEBACK", "1")
    with pytest.raises(Exception, match=re.escape(reason.partition(": ")[2])):
        main([*words[:-1], "again"])


def test_an_error_of_coterie_itself_keeps_its_traceback(monkeypatch, tmp_path):
    monkeypatch.setattr("coterie.experiment.training.next_state", divmod)
    with pytest.raises(TypeError, match="divmod expected 2 arguments"):
        main(["run", "fedavg", "rotated-digits", "rounds=1", "--out", str(tmp_path / "r")])


def test_annotations_that_name_nothing_are_one_sentence(own, monkeypatch, capsys):
    write_all(own)
    own.write("broken", BROKEN.format(own.mark))
    monkeypatch.chdir(own.folder)
    assert main(["describe", f"{own.mark}_broken:Steps"]) == 2
    said = capsys.readouterr().err
    assert "the annotations of Steps.train must be names that its module has" in said
    assert "'Nowhere' is not defined" in said
