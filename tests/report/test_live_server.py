"""`coterie report`, as a command and as a server of its own."""

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.cli.main import main

MakeRun = Callable[..., Path]


def test_report_of_one_run_goes_into_its_folder(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert "ifca" in (folder / "report.html").read_text()


def test_report_of_several_runs_goes_where_it_is_told(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("one"), make_run("two", seed=1)]
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "page.html")]) == 0
    assert "comparison" in (tmp_path / "page.html").read_text()
    assert not (runs[0] / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere is not a run folder: it has no config.json"),
        (["{run}", "--port", "9"], "--port is for --watch"),
        (["{run}", "--watch", "--out", "x"], "leave out --out"),
        (["{run}", "--watch", "--port", "70000"], "--port must be between 0 and 65535, got 70000"),
        (["{run}", "--out", "/nowhere/x.html"], "No such file or directory"),
    ],
)
def test_wrong_words_are_refused_in_a_sentence(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    folder = make_run()
    assert main(["report", *(word.format(run=folder) for word in words)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def get(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_watched_run_is_served_to_this_machine_until_interrupted(make_run: MakeRun) -> None:
    folder = make_run(rounds=9, k=3, settings={"rounds": 9})
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:4]))
    (folder / "result.json").unlink()
    unfinished = folder / ".result.json.1.tmp"  # the run may be writing it at this moment
    unfinished.write_text("")
    process = subprocess.Popen(
        [sys.executable, "-m", "coterie", "report", "--watch", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        port = int(address.rstrip("/").rpartition(":")[2])
        status, page = get(port, "/")
        assert status == 200
        assert "<body data-live>" in page
        assert "connect-src &#39;self&#39;" in page
        before = get(port, "/stamp")
        assert before == get(port, "/stamp")
        (folder / "rounds.jsonl").write_text("".join(lines))
        assert get(port, "/stamp") != before
        assert '<p class="value">4</p><p class="note">of 9</p>' in page
        assert '<p class="value">9</p><p class="note">of 9</p>' in get(port, "/page")[1]
        assert get(port, "/config.json")[0] == 404
        assert get(port, "/", host=f"evil.example:{port}")[0] == 403
        # A second server on the same port says so in a sentence.
        again = subprocess.run(
            [*process.args[:-1], str(port)],  # type: ignore[index]
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert again.returncode == 2
        assert f"cannot serve on port {port}: Address already in use" in again.stderr
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
        assert unfinished.exists()
    finally:
        process.kill()
        process.communicate()


def test_page_that_was_written_does_not_ask_for_news(make_run: MakeRun, tmp_path: Path) -> None:
    main(["report", str(make_run()), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert "data-live" not in page.split("<script")[0]
    assert "connect-src" not in page.split("<script")[0]
    assert json.loads(page.split('id="data">')[1].split("</script>")[0])["map"]
