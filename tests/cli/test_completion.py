"""Completion as a shell has it: the script is sourced, and the shell asks what may follow."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from coterie.cli.completion import SCRIPTS
from coterie.cli.main import main

BASH = shutil.which("bash")
ASK = """
source <(coterie completion bash)
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=(coterie)
compopt() { echo "$2"; }
_coterie
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def environment(tmp_path):
    """The environment of a shell that has the command `coterie`, as it is installed."""
    path = tmp_path / "coterie"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m coterie "$@"\n')
    path.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("coterie compl", ["completion"]),
        ("coterie run hyp", ["hypcluster"]),
        ("coterie run ifca rotated-dig", ["rotated-digits"]),
        # Bash replaces what is behind the `=`.
        ("coterie run ifca rotated-digits average=gra", ["gradients"]),
        ("coterie run ifca rotated-digits trunk_r", ["nospace", "trunk_rounds="]),
        ("coterie nothing at all", [""]),
    ],
)
def test_bash_is_told_what_replaces_the_word(environment, line, replies):
    words = [BASH, "-c", ASK, "bash", line]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == replies


class Terminal:
    """An interactive bash on a terminal of its own."""

    def __init__(self, environment):
        self.end, theirs = pty.openpty()
        self.bash = subprocess.Popen(
            [BASH, "--norc", "--noprofile", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "dumb", "INPUTRC": "/dev/null"},
            start_new_session=True,
        )
        os.close(theirs)

    def press(self, keys):
        os.write(self.end, keys.encode())

    def read_until(self, text, seconds=30):
        """What is on the terminal up to a text."""
        seen, last = "", time.monotonic() + seconds
        while text not in seen:
            left = last - time.monotonic()
            assert left > 0, f"no {text!r} in {seen!r}"
            if select.select([self.end], [], [], left)[0]:
                seen += os.read(self.end, 4096).decode()
        return seen

    def close(self):
        self.bash.kill()
        self.bash.wait()
        os.close(self.end)


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_the_tab_key_completes_in_a_real_bash(environment):
    terminal = Terminal(environment)
    try:
        terminal.press("PS1='re''ady> '; source <(coterie completion bash)\n")
        terminal.read_until("ready> ")
        # A space comes behind a word that is whole, and none behind a setting without its value.
        terminal.press("coterie run if\trotated-dig\taverage=mod\ttrunk_r\t3")
        line = terminal.read_until("=3")
        assert "coterie run ifca rotated-digits average=models trunk_rounds=3" in line
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", SCRIPTS)
def test_each_script_asks_the_command(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "complete --" in capsys.readouterr().out
    installed = shutil.which(shell)
    if installed is not None:
        subprocess.run([installed, "-n"], input=SCRIPTS[shell], text=True, check=True)


def test_another_shell_is_refused(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "completion is for bash, zsh, fish, got tcsh" in capsys.readouterr().err
