"""The page in a real browser; skipped where there is none."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from coterie.report.live_server import page_server
from coterie.report.pages import write_page
from coterie.report.run_page import render_run
from coterie.report.template import share_library
from tests.report.browser import CHROMIUM, Browser

MakeRun = Callable[..., Path]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on PATH")

PHONE, DESKTOP = 390, 1280
ALL_DRAWN = "[...document.querySelectorAll('.chart')].every((c) => c.querySelector('.main-svg'))"
COUNT = "document.querySelectorAll('.chart').length"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Pairs of neighbours on the page of which one lies over the other.
OVERLAPS = """
  (() => {
    const parts = [...document.querySelectorAll(
      "header, section, figure > *, .legend button, .save button, .card, .slider > *, .scroll"),
    ].filter((part) => part.checkVisibility());
    const boxes = parts.map((part) => part.getBoundingClientRect());
    const shared = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]);
    const found = [];
    for (const [i, one] of boxes.entries()) {
      for (const [j, two] of boxes.entries()) {
        if (j <= i || parts[i].contains(parts[j]) || !one.height || !two.height) continue;
        if (shared(one, two, "left", "right") > 1 && shared(one, two, "top", "bottom") > 1) {
          found.push([parts[i], parts[j]].map((part) => part.outerHTML.slice(0, 80)));
        }
      }
    }
    return found;
  })()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Callable[..., Browser]:
    """A function that opens the page of runs and waits for its charts."""

    def go(*runs: Path, width: int = DESKTOP, dark: bool = False) -> Browser:
        browser.errors.clear()
        browser.look(width, dark=dark)
        browser.open(write_page(runs, tmp_path / "page.html").as_uri())
        browser.wait(ALL_DRAWN)
        return browser

    return go


def centre(browser: Browser, selector: str) -> tuple[float, float]:
    """Scroll to an element; the middle of it in the window."""
    box = browser.run(
        f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
        "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    return box[0], box[1]


@pytest.mark.parametrize(
    ("run", "charts"),
    [
        ({"sheets": 4, "settings": {"long": "x" * 200}}, 9),
        ({"k": 1, "rounds": 1, "truth": False}, 5),
        ({"rounds": 0, "tested": True}, 1),
        ({"regression": True, "settings": {"</script>": "</script>"}}, 8),
        ({"k": 30, "clients": 300, "tested": True}, 9),
    ],
)
def test_charts_are_drawn_nothing_overlaps_and_the_console_is_silent(
    make_run: MakeRun, visit: Callable[..., Browser], run: dict[str, Any], charts: int
) -> None:
    browser = visit(make_run(**run), width=PHONE)
    assert browser.run(COUNT) == charts
    for width, dark in ((PHONE, False), (PHONE, True), (DESKTOP, True), (DESKTOP, False)):
        browser.look(width, dark=dark)
        shade = "rgb(18, 20, 23)" if dark else "rgb(251, 251, 250)"
        # The charts follow the page to the new colours and width.
        browser.wait(
            "[...document.querySelectorAll('.chart')].every((chart) =>"
            f"chart.querySelector('.main-svg').style.background === '{shade}' &&"
            "Math.abs(chart.clientWidth - chart.querySelector('.main-svg').clientWidth) < 2)"
        )
        assert browser.run("getComputedStyle(document.body).backgroundColor") == shade
        assert browser.run(OVERFLOW) <= 0
        assert browser.run(OVERLAPS) == []
    assert browser.errors == []


def test_a_page_that_shares_its_library_says_where_that_is_missing(
    make_run: MakeRun, browser: Browser, tmp_path: Path
) -> None:
    share_library(tmp_path)
    page = tmp_path / "run" / "report.html"
    page.parent.mkdir()
    page.write_text(render_run(make_run(), library="../plotly.min.js"))
    browser.errors.clear()
    browser.look(DESKTOP)
    browser.open(page.as_uri())
    browser.wait(ALL_DRAWN)
    assert browser.errors == []
    hidden = "document.getElementById('bare').hidden"
    assert browser.run(hidden)
    (tmp_path / "plotly.min.js").unlink()
    browser.open(page.as_uri())
    assert not browser.run(hidden)
    assert browser.run("document.querySelectorAll('#clients tbody tr').length") > 0


def test_the_checks_see_an_error_and_an_overlap(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text(
        "<section>one</section><section style='margin-top:-9px'>two</section>"
        "<div style='width:9999px'>wide</div><script>nothing.here()</script>"
    )
    browser.errors.clear()
    browser.look(DESKTOP)
    browser.open(page.as_uri())
    assert len(browser.errors) == 1
    assert len(browser.run(OVERLAPS)) == 1
    assert browser.run(OVERFLOW) > 0


def test_hover_tells_the_round_and_the_values(
    make_run: MakeRun, visit: Callable[..., Browser]
) -> None:
    browser = visit(make_run())
    browser.point(*centre(browser, "[data-figure=cluster_loss] .nsewdrag"))
    text = "document.querySelector('[data-figure=cluster_loss] .hoverlayer').textContent"
    browser.wait(f"{text} !== ''")
    assert "round 1" in browser.run(text)
    assert "cluster 3" in browser.run(text)


def test_slider_moves_the_clients_and_hover_names_them(
    make_run: MakeRun, visit: Callable[..., Browser]
) -> None:
    folder = make_run()
    content = json.loads((folder / "clients.json").read_text())
    content["clients"]["name"] = ["<b>&amp;</b>", *(f"hospital {i}" for i in range(1, 80))]
    (folder / "clients.json").write_text(json.dumps(content))
    browser = visit(folder)
    legend = "document.querySelector('#map .legend').textContent"
    told = "document.querySelector('#map output').textContent"
    # Plotly draws each client as one path.
    marks = "document.querySelectorAll('#map .points path').length"
    assert browser.run(told) == "round 20"
    assert browser.run(legend) == "cluster 0cluster 1cluster 2cluster 3"
    assert browser.run(marks) == 80

    browser.point(*centre(browser, "#map input"), click=True)  # the middle of four frames
    browser.wait(f"{told} === 'round 2' || {told} === 'round 3'")
    browser.run("document.querySelector('#map input').focus()")
    for _ in range(3):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowLeft", code="ArrowLeft",
                         windowsVirtualKeyCode=37)  # fmt: skip
    browser.wait(f"{told} === 'round 1'")
    assert browser.run(legend) == "cluster 0"
    assert browser.run(marks) == 80

    browser.run("document.querySelector('[data-view=true]').click()")
    assert browser.run(legend) == "true cluster 0true cluster 1true cluster 2true cluster 3"
    browser.point(*centre(browser, "#map .points path"))
    text = "document.querySelector('#map .hoverlayer').textContent"
    browser.wait(f"{text} !== ''")
    assert "found cluster 0" in browser.run(text)
    assert "name " in browser.run(text)
    shown = "JSON.stringify(document.querySelector('#map .chart').data.map((t) => t.text))"
    assert "name &lt;b&gt;&amp;amp;&lt;/b&gt;<br>" in browser.run(shown)
    assert browser.errors == []


def test_attackers_have_a_red_edge_also_where_they_are_excluded(
    make_run: MakeRun, visit: Callable[..., Browser]
) -> None:
    folder = make_run()
    content = json.loads((folder / "clients.json").read_text())
    content["clients"]["attacker"] = [i < 12 for i in range(80)]
    (folder / "clients.json").write_text(json.dumps(content))
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line) | {"excluded": list(range(8, 16))} for line in lines]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rounds))
    browser = visit(folder)
    strokes = """
      [...document.querySelectorAll('#map .points path')].map((p) => getComputedStyle(p).stroke)
    """
    assert browser.run(strokes).count("rgb(212, 58, 47)") == 12
    legend = """
      [...document.querySelectorAll('#map .legend i')].map((s) => getComputedStyle(s).color)
    """
    colours = browser.run(legend)
    assert len(set(colours)) == len(colours) == 4
    assert "rgb(212, 58, 47)" not in colours
    assert browser.errors == []


def test_map_plays_from_the_first_frame_to_the_last(
    make_run: MakeRun, visit: Callable[..., Browser]
) -> None:
    browser = visit(make_run(frames=(1, 2)))
    told = "document.querySelector('#map output').textContent"
    button = "document.querySelector('#map .slider button')"
    browser.run(f"{button}.click()")
    assert browser.run(told) == "round 1"
    assert browser.run(f"{button}.getAttribute('aria-label')") == "Pause"
    browser.wait(f"{told} === 'round 20'")
    browser.wait(f"{button}.getAttribute('aria-label') === 'Play'")


def test_figures_are_saved_as_svg_and_png(
    make_run: MakeRun, visit: Callable[..., Browser], tmp_path: Path
) -> None:
    browser = visit(make_run(), dark=True)
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for kind in ("svg", "png"):
        browser.run(f"document.querySelectorAll('#map [data-save={kind}]')[0].click()")
        path = tmp_path / f"coterie-map.{kind}"
        wait_for(path, browser)
    assert (tmp_path / "coterie-map.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    drawing = ElementTree.parse(tmp_path / "coterie-map.svg")
    texts = "".join(drawing.getroot().itertext())
    assert all(f"cluster {c}" in texts for c in range(4))  # a legend of its own
    # On white, though the page is dark.
    assert "rgb(18, 20, 23)" not in (tmp_path / "coterie-map.svg").read_text()
    assert browser.errors == []


def test_the_table_of_found_against_true_clusters_is_saved_as_a_picture(
    make_run: MakeRun, visit: Callable[..., Browser], tmp_path: Path
) -> None:
    browser = visit(make_run(tested=True))
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for name in ("confusion", "confusion_tested"):
        browser.run(f"document.querySelector('[data-of={name}] [data-save=svg]').click()")
        wait_for(tmp_path / f"coterie-{name}.svg", browser)
    drawing = ElementTree.parse(tmp_path / "coterie-confusion.svg").getroot()
    counts = [text for text in drawing.itertext() if text.strip().isdigit()]
    assert counts.count("16") == 1  # found cluster 0 and its true cluster
    assert "true cluster (clients)" in "".join(drawing.itertext())
    assert browser.errors == []


def test_on_a_phone_the_table_sorts_filters_and_turns(
    make_run: MakeRun, visit: Callable[..., Browser]
) -> None:
    browser = visit(make_run(), width=PHONE)
    first = "[...document.querySelectorAll('#clients tbody tr')].map((r) => r.cells[0].textContent)"
    told = "document.querySelector('.pages span').textContent"
    assert browser.run(f"[{first}.length, {told}, {first}[0]]") == [50, "1–50 of 80", "0"]
    browser.run("document.querySelectorAll('.pages button')[1].click()")
    assert browser.run(f"[{told}, {first}[0]]") == ["51–80 of 80", "50"]
    for _ in range(2):
        browser.run("document.querySelector('#clients th button').click()")
    assert browser.run(f"{first}[0]") == "79"

    def keep(text: str) -> Any:
        return browser.run(
            "(() => { const input = document.querySelector('#clients input');"
            f"input.value = {json.dumps(text)}; input.dispatchEvent(new Event('input'));"
            f"return [{told}, {first}]; }})()"
        )

    # Of clients 0 to 39 in cluster 1 (0, 4, 7, 8, ...) these have |sin(client)| < 0.387.
    assert keep("cluster=1 accuracy<83% client<40")[1] == ["28", "16", "0"]
    assert keep("no such client")[0] == "none"


def test_page_of_several_runs(make_run: MakeRun, visit: Callable[..., Browser]) -> None:
    runs = [
        make_run(f"{name}-{seed}", algorithm=name, seed=seed)
        for name in ("ifca", "fedavg")
        for seed in (0, 1)
    ]
    browser = visit(*runs, width=PHONE)
    assert browser.run(COUNT) == 3
    for width in (PHONE, DESKTOP):
        browser.look(width)
        assert browser.run(OVERFLOW) <= 0
        assert browser.run(OVERLAPS) == []
    # Hiding a curve hides its band.
    visible = "document.querySelector('.chart').data.filter((t) => t.visible !== false).length"
    assert browser.run(visible) == 4
    browser.run("document.querySelector('.legend button').click()")
    assert browser.run(visible) == 2
    assert browser.errors == []


def test_watched_page_renews_itself_and_keeps_what_the_reader_chose(
    make_run: MakeRun, browser: Browser
) -> None:
    folder = make_run()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "result.json").unlink()
    (folder / "clients.json").unlink()
    (folder / "rounds.jsonl").write_text("".join(lines[:5]))
    with page_server([folder], lambda: render_run(folder, live=True), port=0) as watched:
        Thread(target=watched.serve_forever, daemon=True).start()
        browser.errors.clear()
        browser.look(DESKTOP)
        browser.open(f"http://127.0.0.1:{watched.server_port}/")
        browser.wait(ALL_DRAWN)
        rounds = "[...document.querySelectorAll('.card')].map((c) => c.textContent).join()"
        assert "Rounds5" in browser.run(rounds).replace("rounds", "Rounds")
        browser.run("document.querySelector('[data-view=true]').click()")
        browser.run("window.same = true")
        (folder / "rounds.jsonl").write_text("".join(lines[:9]))
        browser.wait(f"{rounds}.includes('rounds9')")
        browser.wait(ALL_DRAWN)
        assert browser.run("window.same") is True  # renewed, not loaded again
        pressed = "document.querySelector('[data-view=true]').getAttribute('aria-pressed')"
        assert browser.run(pressed) == "true"
        assert browser.run("document.querySelector('#live').textContent") == "live"
        assert browser.errors == []
        watched.shutdown()
    browser.wait("document.querySelector('#live').textContent.includes('has ended')")


def wait_for(path: Path, browser: Browser) -> None:
    for _ in range(600):
        if path.exists() and path.stat().st_size:
            return
        browser.run("new Promise((done) => setTimeout(done, 50))")
    raise AssertionError(f"{path} was not written")


def test_samples_are_on_a_map_of_their_own(
    make_run: MakeRun, visit: Callable[..., Browser]
) -> None:
    folder = make_run()
    points = {"drawn": "losses under the 4 models", "x": [-0.5, 0.5], "y": [0.0, 0.0]}
    points |= {"client": [5, 6], "cluster": [0, 2], "true": [1, 3], "loss": [0.25, 0.5]}
    (folder / "samples.json").write_text(json.dumps({"map": points, "features": None}))
    browser = visit(folder)
    legend = "document.querySelector('#sample_map .legend').textContent"
    assert browser.run(legend) == "cluster 0cluster 2"
    browser.run("document.querySelector('#sample_map [data-view=true]').click()")
    assert browser.run(legend) == "true cluster 1true cluster 3"
    shown = "document.querySelector('#sample_map .chart').data[0].text[0]"
    assert browser.run(shown) == (
        "client 5<br>found cluster 0<br>true cluster 1<br>training loss 0.25"
    )
    assert browser.run("document.querySelectorAll('#map .points path').length") == 80
    assert browser.errors == []
