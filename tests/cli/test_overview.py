import pytest

from coterie.cli.main import main
from coterie.version import __version__

COMMANDS = ("run", "report", "compare", "reproduce", "list", "describe", "check", "data", "deploy")


@pytest.mark.parametrize("words", [[], ["help"]])
def test_alone_it_says_what_there_is_and_how_to_begin(words, capsys):
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for command in (*COMMANDS, "completion", "help"):
        assert f"\n    {command}" in out
    assert "coterie run ifca patients.csv" in out
    assert "\n    complete " not in out


def test_help_of_a_command_is_its_help(capsys):
    assert main(["help", "run"]) == 0
    out = capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        main(["run", "--help"])
    assert done.value.code == 0
    assert out == capsys.readouterr().out
    assert "--resume" in out


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0
    assert capsys.readouterr().out == f"coterie {__version__}\n"
