"""The page in a real browser; skipped where there is none."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.report import render

MakeRun = Callable[..., Path]

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on PATH")

# Runs in the page around the report and leaves its findings where the dumped DOM shows them.
VISIT = """
<script>
  const frame = document.querySelector("iframe");
  frame.addEventListener("load", () => setTimeout(() => {
    const page = frame.contentDocument;
    const all = (selector) => [...page.querySelectorAll(selector)];
    const first = () => all("#clients tbody tr:first-child td").map((cell) => cell.textContent);
    const told = () => page.querySelector(".pages span").textContent;
    const sort = (i) => all("#clients th button")[i].click();
    const filter = (text) => {
      const input = page.querySelector("#clients input");
      input.value = text;
      input.dispatchEvent(new Event("input"));
    };
    const found = { charts: all(".chart").length, drawn: all(".chart .main-svg").length };
    found.overflow = page.documentElement.scrollWidth - frame.clientWidth;
    found.start = [all("#clients tbody tr").length, told(), first()[0]];
    all(".pages button")[1].click();
    found.next = [told(), first()[0]];
    sort(0); sort(0);
    found.descending = first()[0];
    filter("cluster=1 accuracy<83% client<40");
    found.filtered = all("#clients tbody tr").map((row) => row.cells[0].textContent);
    filter("no such client");
    found.none = told();
    const legend = () => all(".legend")[all(".legend").length - 2].textContent;
    all("[data-show=map_true]")[0].click();
    found.legend = legend();
    const output = document.createElement("pre");
    output.textContent = JSON.stringify(found);
    document.body.replaceChildren(output);
  }, 500));
</script>
"""


def browse(path: Path, profile: Path) -> tuple[str, list[str]]:
    """The DOM of a page after its scripts ran, and all that was written to the console."""
    assert CHROMIUM is not None
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-background-networking --disable-component-update --enable-logging=stderr "
        "--virtual-time-budget=5000 --dump-dom"
    )
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={profile}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize(
    ("run", "charts"),
    [
        ({}, 5),
        ({"k": 1, "rounds": 1, "truth": False}, 4),
        ({"rounds": 0, "tested": True}, 1),
        ({"regression": True, "settings": {"</script>": "</script>"}}, 5),
    ],
)
def test_charts_are_drawn_and_the_console_is_silent(
    make_run: MakeRun, tmp_path: Path, run: dict[str, Any], charts: int
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(make_run(**run)), encoding="utf-8")
    dom, console = browse(page, tmp_path / "profile")
    assert console == []
    # Each plotly chart has its svg on three layers: the plot, its hover and its controls.
    drawn = re.findall(r'<svg class="main-svg"', dom)
    assert dom.count('class="chart') == charts
    assert len(drawn) >= 2 * charts


def test_console_check_sees_an_error(tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<script>nothing.here()</script>")
    _, console = browse(page, tmp_path / "profile")
    assert len(console) == 1


def test_on_a_phone_nothing_overflows_and_the_table_sorts_filters_and_turns(
    make_run: MakeRun, tmp_path: Path
) -> None:
    report = render(make_run(settings={"long": "x" * 200}))
    page = tmp_path / "phone.html"
    inside = html.escape(report)
    page.write_text(
        f'<iframe style="width:375px;height:800px;border:0" srcdoc="{inside}"></iframe>{VISIT}'
    )
    dom, console = browse(page, tmp_path / "profile")
    found = json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", dom, re.DOTALL)[1]))  # type: ignore[index]
    assert console == []
    assert found["drawn"] >= 2 * found["charts"] > 0
    assert found["overflow"] <= 0
    assert found["start"] == [50, "1–50 of 80", "0"]
    assert found["next"] == ["51–80 of 80", "50"]
    assert found["descending"] == "79"
    # Of clients 0 to 39 in cluster 1 (0, 4, 7, 8, ...) these have |sin(client)| < 0.387.
    assert found["filtered"] == ["28", "16", "0"]
    assert found["none"] == "none"
    assert found["legend"] == "true cluster 0true cluster 1true cluster 2true cluster 3"
