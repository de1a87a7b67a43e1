"""The page of a run: what it shows, what it never does, and what it lives without."""

import html
import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from coterie.report import render
from coterie.report.palette import match

MakeRun = Callable[..., Path]

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&<!--"

RUNS: dict[str, dict[str, Any]] = {
    "ordinary": {},
    "one model": {"k": 1},
    "one round": {"rounds": 1},
    "no round": {"rounds": 0},
    "no truth": {"truth": False},
    "regression": {"regression": True},
    "test clients": {"tested": True},
    "thirty clusters": {"k": 30, "clients": 300},
    "local": {"k": 2000, "clients": 2000},
}


class Elements(HTMLParser):
    """The start tags of a page, the text outside scripts and styles, and the embedded data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data: dict[str, Any] = {}
        self.feed(page)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        attributes = self.tags[-1][1] if self.tags else {}
        if attributes.get("id") == "data" and data.startswith("{"):
            self.data = json.loads(data)
        if self.cdata_elem is None:
            self.text += f" {data}"

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def edit(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(params=RUNS, ids=lambda name: name.replace(" ", "-"))
def any_run(request: pytest.FixtureRequest, make_run: MakeRun) -> Elements:
    return Elements(render(make_run(**RUNS[request.param])))


def test_every_run_has_a_page_with_valid_figures(any_run: Elements) -> None:
    assert any_run.count("h1") == 1
    for figure in any_run.data["figures"].values():
        go.Figure(figure)  # raises at a property that plotly does not know
    drawn = {
        attributes["data-figure"] for _, attributes in any_run.tags if "data-figure" in attributes
    }
    assert drawn <= set(any_run.data["figures"])


def test_page_loads_nothing_from_outside(any_run: Elements) -> None:
    for _, attributes in any_run.tags:
        assert not attributes.keys() & {"src", "srcset", "action", "poster"}
        assert attributes.get("href", "data:,") == "data:,"
    policies = [a["content"] for _, a in any_run.tags if "http-equiv" in a]
    assert [policy.split(";")[0] for policy in policies if policy] == ["default-src 'none'"]


def test_page_style_fetches_nothing(make_run: MakeRun) -> None:
    style = re.search(r"<style>(.*?)</style>", render(make_run()), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_page_shows_the_headline_numbers(make_run: MakeRun) -> None:
    text = Elements(render(make_run())).text
    for card in (
        "accuracy 91.2% 90.0% macro",
        "ARI 0.966",
        "clusters 4 4 true",
        "rounds 20 80 clients",
        "time 1 min 23 s 4.17 s a round",
        "to the clients 80 MB 4 MB a round",
        "from the clients 20 MB 1 MB a round",
    ):
        assert card in text


def test_regression_shows_loss_and_distance_and_no_accuracy(make_run: MakeRun) -> None:
    page = Elements(render(make_run(regression=True)))
    assert "loss 0.3" in page.text
    assert "distance 0.1" in page.text
    assert "accuracy" not in page.text
    assert page.data["figures"]["errors"]["layout"]["yaxis"]["type"] == "log"


def test_page_gives_the_command_and_every_setting(make_run: MakeRun) -> None:
    text = Elements(render(make_run(settings={"layers": [64, 32], "fast": True}))).text
    assert "coterie run ifca rotated-digits k=4 seed=0 Copy" in text
    assert "layers [64, 32]" in text
    assert "fast true" in text
    assert "learning_rate 0.1" in text


def test_warnings_are_shown_once_with_their_rounds(make_run: MakeRun) -> None:
    text = Elements(render(make_run(warnings=("cluster 2 is empty",)))).text
    assert "1 warning cluster 2 is empty rounds 2–4, 9" in text
    assert text.count("cluster 2 is empty") == 1


def test_run_without_warnings_has_no_warning_box(make_run: MakeRun) -> None:
    assert "warning" not in Elements(render(make_run())).text


def test_hostile_text_stays_text(make_run: MakeRun) -> None:
    harmless = Elements(render(make_run("harmless", warnings=("w",))))
    folder = make_run("hostile", warnings=(HOSTILE,), settings={HOSTILE: HOSTILE})
    edit(folder, "config.json", algorithm=HOSTILE, federation=HOSTILE, command=HOSTILE)
    edit(folder, "result.json", protocol=HOSTILE, bytes={HOSTILE: {HOSTILE: {HOSTILE: 1}}})
    content = json.loads((folder / "clients.json").read_text())
    content["map"] = HOSTILE
    content["clients"]["client"][0] = HOSTILE
    content["clients"]["true"][0] = HOSTILE
    (folder / "clients.json").write_text(json.dumps(content))

    page = Elements(render(folder))
    assert page.count("img") == 0
    assert page.count("script") == harmless.count("script") == 3
    assert page.text.count(HOSTILE) >= 10
    columns = {c["key"]: c["values"] for c in page.data["tables"][0]["columns"]}
    assert columns["client"][0] == columns["true"][0] == HOSTILE


def test_right_grouping_under_other_numbers_is_a_diagonal_in_one_colour_each(
    make_run: MakeRun,
) -> None:
    page = render(make_run())
    # Found cluster c holds the clients of true cluster c - 1, and cluster 1 four of cluster 3.
    overlaps = [int(n) for n in re.findall(r'class="number overlap[^>]*>(\d+)<', page)]
    assert overlaps == [16, 0, 0, 0, 4, 20, 0, 0, 0, 0, 20, 0, 0, 0, 0, 20]
    columns = {c["key"]: c for c in Elements(page).data["tables"][0]["columns"]}
    assert [columns["true"]["colours"][str(c)] for c in (3, 0, 1, 2)] == [
        columns["cluster"]["colours"][str(c)] for c in (0, 1, 2, 3)
    ]


def test_true_cluster_without_a_match_takes_an_unused_index() -> None:
    assert match([0, 0, 0, 0, 0], [5, 5, 5, 6, 7]) == {5: 0, 6: 1, 7: 2}


def test_map_has_every_client_once_in_its_cluster(make_run: MakeRun) -> None:
    figures = Elements(render(make_run())).data["figures"]
    found = {trace["name"]: len(trace["x"]) for trace in figures["map_found"]["data"]}
    assert found == {"cluster 0": 16, "cluster 1": 24, "cluster 2": 20, "cluster 3": 20}
    true = {trace["name"]: len(trace["x"]) for trace in figures["map_true"]["data"]}
    assert true == {f"true cluster {c}": 20 for c in range(4)}


def test_sizes_of_every_round_add_up_to_all_clients(make_run: MakeRun) -> None:
    folder = make_run(k=30, clients=300, rounds=5)
    traces = Elements(render(folder)).data["figures"]["sizes"]["data"]
    assert len(traces) == 25
    assert traces[-1]["name"] == "other clusters"
    assert [sum(column) for column in zip(*(t["y"] for t in traces), strict=True)] == [300] * 5


def test_without_truth_no_true_cluster_is_mentioned(make_run: MakeRun) -> None:
    page = Elements(render(make_run(truth=False)))
    assert "true cluster" not in page.text
    assert "map_true" not in page.data["figures"]


def test_test_clients_have_their_own_tables(make_run: MakeRun) -> None:
    page = Elements(render(make_run(tested=True)))
    assert "Test clients by found cluster and true cluster" in page.text
    assert [table["name"] for table in page.data["tables"]] == ["Training clients", "Test clients"]
    assert page.data["tables"][1]["columns"][0]["values"][0] == 80


def test_clients_that_have_names_are_called_by_them(make_run: MakeRun) -> None:
    folder = make_run()
    content = json.loads((folder / "clients.json").read_text())
    content["clients"]["name"] = [HOSTILE, *(f"hospital {i}" for i in range(1, 80))]
    (folder / "clients.json").write_text(json.dumps(content))
    data = Elements(render(folder)).data
    assert [c["key"] for c in data["tables"][0]["columns"]][:2] == ["name", "client"]
    assert data["tables"][0]["columns"][0]["values"][:2] == [HOSTILE, "hospital 1"]
    trace = next(t for t in data["figures"]["map_found"]["data"] if t["name"] == "cluster 2")
    assert trace["hovertemplate"].startswith("name %{customdata[0]}<br>client %{customdata[1]}<br>")
    assert trace["customdata"][0][:2] == ["hospital 1", "1"]
    hover = [row[0] for t in data["figures"]["map_found"]["data"] for row in t["customdata"]]
    assert html.escape(HOSTILE) in hover
    assert HOSTILE not in hover


def test_clients_without_names_have_numbers_only(make_run: MakeRun) -> None:
    data = Elements(render(make_run())).data
    assert data["tables"][0]["columns"][0]["key"] == "client"
    assert "name" not in data["figures"]["map_found"]["data"][0]["hovertemplate"]


def test_own_models_are_said_and_not_drawn(make_run: MakeRun) -> None:
    page = Elements(render(make_run(k=2000, clients=2000)))
    assert "Each client has its own model" in page.text
    assert set(page.data["figures"]) == {"scores", "errors", "traffic", "map_true"}


def test_run_that_only_began_has_a_page(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "result.json").unlink()
    (folder / "clients.json").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:7]) + lines[7][:50])
    assert "rounds 7" in Elements(render(folder)).text
    (folder / "rounds.jsonl").unlink()
    assert "rounds 0" in Elements(render(folder)).text


def test_rounds_without_metrics_draw_no_curve(make_run: MakeRun) -> None:
    folder = make_run()
    bare = [{"round": r, "sizes": [40, 40], "metrics": {}} for r in (1, 2)]
    del bare[1]["metrics"]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in bare))
    edit(folder, "result.json", metrics={})
    page = Elements(render(folder))
    assert "No round was evaluated" in page.text
    assert "No bytes were counted" in page.text
    assert not page.data["figures"].keys() & {"scores", "errors", "traffic"}


def test_values_that_are_not_numbers_become_gaps(make_run: MakeRun) -> None:
    folder = make_run()
    content = json.loads((folder / "clients.json").read_text())
    content["clients"]["loss"][0] = math.nan
    content["clients"]["accuracy"][1] = None
    content["clients"]["x"][2] = math.inf
    (folder / "clients.json").write_text(json.dumps(content))
    edit(folder, "result.json", metrics={"accuracy": math.nan, "loss": math.inf, "ari": None})
    page = Elements(render(folder))
    columns = {c["key"]: c["values"] for c in page.data["tables"][0]["columns"]}
    assert columns["loss"][0] is None
    assert columns["accuracy"][1] is None
    assert "accuracy –" in page.text


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must hold config\.json"):
        render(tmp_path)


def test_large_run_stays_below_8_megabytes(make_run: MakeRun) -> None:
    folder = make_run(k=20, clients=4800, rounds=300, tested=True)
    assert len(render(folder).encode()) < 8_000_000
