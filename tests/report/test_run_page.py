"""The page of a run: what it shows, what it never does, and what it lives without."""

import base64
import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from coterie.report.map_frames import frame_rounds
from coterie.report.palette import match_clusters
from coterie.report.run_page import render_run

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
    "pictures": {"sheets": 3},
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


def unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def edit(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(params=RUNS, ids=lambda name: name.replace(" ", "-"))
def any_run(request: pytest.FixtureRequest, make_run: MakeRun) -> Elements:
    return Elements(render_run(make_run(**RUNS[request.param])))


def test_every_run_has_a_page_with_valid_figures(any_run: Elements) -> None:
    assert any_run.count("h1") == 1
    for figure in any_run.data["figures"].values():
        go.Figure(figure)  # raises at a property that plotly does not know
    drawn, saved = (
        {attributes[name] for _, attributes in any_run.tags if name in attributes}
        for name in ("data-figure", "data-of")
    )
    # The map is built in the browser, anew for every frame.
    figures = set(any_run.data["figures"]) | ({"map"} if any_run.data["map"] else set())
    assert saved == figures  # all can be saved, those that are tables on the page too
    assert drawn == {name for name in figures if not name.startswith("confusion")}


def test_page_loads_nothing_from_outside(any_run: Elements) -> None:
    for _, attributes in any_run.tags:
        assert not attributes.keys() & {"srcset", "action", "poster"}
        assert (attributes.get("src") or "data:image/png;base64,").startswith(
            "data:image/png;base64,"
        )
        assert attributes.get("href", "data:,") == "data:,"
    policies = [a["content"] for _, a in any_run.tags if "http-equiv" in a]
    assert [policy.split(";")[0] for policy in policies if policy] == ["default-src 'none'"]


def test_page_style_fetches_nothing(make_run: MakeRun) -> None:
    style = re.search(r"<style>(.*?)</style>", render_run(make_run()), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_page_shows_the_headline_numbers(make_run: MakeRun) -> None:
    text = Elements(render_run(make_run())).text
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
    page = Elements(render_run(make_run(regression=True)))
    assert "loss 0.3" in page.text
    assert "distance 0.1" in page.text
    assert "accuracy" not in page.text
    assert page.data["figures"]["errors"]["layout"]["yaxis"]["type"] == "log"


def test_page_gives_the_command_and_every_setting(make_run: MakeRun) -> None:
    text = Elements(render_run(make_run(settings={"layers": [64, 32], "fast": True}))).text
    assert "coterie run ifca rotated-digits k=4 seed=0 Copy" in text
    assert "layers [64, 32]" in text
    assert "fast true" in text
    assert "learning_rate 0.1" in text


def test_warnings_are_shown_once_with_their_rounds(make_run: MakeRun) -> None:
    text = Elements(render_run(make_run(warnings=("cluster 2 is empty",)))).text
    assert "1 warning cluster 2 is empty rounds 2–4, 9" in text
    assert text.count("cluster 2 is empty") == 1


def test_run_without_warnings_has_no_warning_box(make_run: MakeRun) -> None:
    assert "warning" not in Elements(render_run(make_run())).text


def test_hostile_text_stays_text(make_run: MakeRun) -> None:
    harmless = Elements(render_run(make_run("harmless", warnings=("w",))))
    folder = make_run("hostile", warnings=(HOSTILE,), settings={HOSTILE: HOSTILE})
    edit(folder, "config.json", algorithm=HOSTILE, federation=HOSTILE, command=HOSTILE)
    edit(folder, "result.json", protocol=HOSTILE, bytes={HOSTILE: {HOSTILE: {HOSTILE: 1}}})
    content = json.loads((folder / "clients.json").read_text())
    content["map"] = HOSTILE
    content["clients"]["client"][0] = HOSTILE
    content["clients"]["true"][0] = HOSTILE
    (folder / "clients.json").write_text(json.dumps(content))

    page = Elements(render_run(folder))
    assert page.count("img") == 0
    assert page.count("script") == harmless.count("script") == 3
    assert page.text.count(HOSTILE) >= 10
    columns = {c["key"]: c["values"] for c in page.data["tables"][0]["columns"]}
    assert columns["client"][0] == columns["true"][0] == HOSTILE


def test_right_grouping_under_other_numbers_is_a_diagonal_in_one_colour_each(
    make_run: MakeRun,
) -> None:
    page = render_run(make_run())
    # Found cluster c holds the clients of true cluster c - 1, and cluster 1 four of cluster 3.
    overlaps = [int(n) for n in re.findall(r'class="number overlap[^>]*>(\d+)<', page)]
    assert overlaps == [16, 0, 0, 0, 4, 20, 0, 0, 0, 0, 20, 0, 0, 0, 0, 20]
    columns = {c["key"]: c for c in Elements(page).data["tables"][0]["columns"]}
    assert [columns["true"]["colours"][str(c)] for c in (3, 0, 1, 2)] == [
        columns["cluster"]["colours"][str(c)] for c in (0, 1, 2, 3)
    ]


def test_true_cluster_without_a_match_takes_an_unused_index() -> None:
    assert match_clusters([0, 0, 0, 0, 0], [5, 5, 5, 6, 7]) == {5: 0, 6: 1, 7: 2}


def test_map_has_every_client_once_in_its_cluster(make_run: MakeRun) -> None:
    places = Elements(render_run(make_run())).data["map"]
    assert places["views"] == ["found", "true"]
    assert [frame["round"] for frame in places["frames"]] == [1, 2, 3, 20]
    found = [unpacked(frame["cluster"], "<i2") for frame in places["frames"]]
    assert np.bincount(found[0]).tolist() == [80]
    assert np.bincount(found[2]).tolist() == np.bincount(found[3]).tolist() == [16, 24, 20, 20]
    assert np.bincount(places["true"]).tolist() == [20] * 4


def test_map_keeps_places_to_a_thousandth_of_its_width(make_run: MakeRun) -> None:
    folder = make_run()
    content = json.loads((folder / "clients.json").read_text())
    content["clients"]["x"] = [math.sin(i) for i in range(80)]
    (folder / "clients.json").write_text(json.dumps(content))
    points = unpacked(Elements(render_run(folder)).data["map"]["frames"][-1]["points"], "<u2")
    x = points.reshape(-1, 2)[:, 0] / 4095 * 2 - 1
    assert np.abs(x - np.sin(np.arange(80))).max() < 1e-3


def test_projections_are_turned_as_the_frame_that_follows(make_run: MakeRun) -> None:
    folder = make_run(frames=(1,))
    content = json.loads((folder / "clients.json").read_text())
    content["map"] = "gradients at one model"
    (folder / "clients.json").write_text(json.dumps(content))
    final = np.array([content["clients"]["x"], content["clients"]["y"]]).T
    final -= final.mean(0)
    content["clients"]["x"], content["clients"]["y"] = final.T.tolist()
    (folder / "clients.json").write_text(json.dumps(content))
    turned = final @ np.array([[0.0, 1.0], [1.0, 0.0]]) / 10  # mirrored and smaller
    with np.load(folder / "map.npz") as arrays:
        kept = dict(arrays) | {"drawn": np.array([content["map"]]), "points": turned[None]}
    np.savez(folder / "map.npz", **kept)
    frames = Elements(render_run(folder)).data["map"]["frames"]
    first, last = (unpacked(frame["points"], "<u2").astype(int) for frame in frames)
    assert np.abs(first - last).max() <= 2


def test_large_federations_have_a_sample_of_clients_on_the_map(make_run: MakeRun) -> None:
    page = Elements(render_run(make_run(clients=6000, rounds=2, frames=(1,))))
    places = page.data["map"]
    assert len(places["clients"]) == len(places["true"]) == 5000
    assert len(unpacked(places["frames"][0]["cluster"], "<i2")) == 5000
    assert "5,000 of all clients are drawn" in page.text


def test_flows_count_every_client_between_two_rounds(make_run: MakeRun) -> None:
    # All 80 clients begin in cluster 0; in round 3 all but its own 16 leave, and never again.
    trace = Elements(render_run(make_run())).data["figures"]["flows"]["data"][0]
    node, link = trace["node"]["customdata"], trace["link"]
    streams = {
        (node[a], node[b]): count
        for a, b, count in zip(link["source"], link["target"], link["value"], strict=True)
    }
    assert streams["cluster 0, round 2", "cluster 1, round 3"] == 24
    assert streams["cluster 0, round 2", "cluster 0, round 3"] == 16
    assert streams["cluster 0, round 1", "cluster 0, round 2"] == 80
    assert streams["cluster 3, round 3", "cluster 3, round 20"] == 20
    assert sum(link["value"]) == 3 * 80


def test_clients_that_join_late_flow_from_nowhere(make_run: MakeRun) -> None:
    folder = make_run(rounds=3)
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    rounds[0]["moves"] = {"0": [0, 1], "1": [2]}
    rounds[1]["moves"] = {"1": [1, 3]}
    rounds[2]["moves"] = {}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rounds))
    trace = Elements(render_run(folder)).data["figures"]["flows"]["data"][0]
    hover = dict(zip(trace["link"]["customdata"], trace["link"]["value"], strict=True))
    assert hover["no cluster yet to cluster 1,<br>rounds 1 to 2"] == 1
    assert hover["cluster 0 to cluster 1,<br>rounds 1 to 2"] == 1
    assert hover["stayed in cluster 1,<br>rounds 2 to 3"] == 3


def test_where_nobody_moves_no_flow_is_drawn(make_run: MakeRun) -> None:
    folder = make_run(rounds=2)
    page = Elements(render_run(folder))
    assert "flows" not in page.data["figures"]
    assert "No client left the cluster that it first joined." in page.text


def test_each_cluster_has_its_curves(make_run: MakeRun) -> None:
    figures = Elements(render_run(make_run(rounds=10))).data["figures"]
    # Cluster 2 is empty before round 3, where its loss is 1.5 - 0.3 + 0.02.
    trace = figures["cluster_loss"]["data"][2]
    assert trace["name"] == "cluster 2"
    assert (trace["x"][0], trace["y"][0]) == (3, 1.22)
    assert figures["cluster_accuracy"]["data"][2]["y"][0] == 0.39


def test_worst_served_clients_come_first_with_their_cluster(make_run: MakeRun) -> None:
    text = Elements(render_run(make_run())).text
    # Accuracy is 0.8 + 0.2 sin^2(client): lowest at 0, then 22 (7 pi is 21.99), then 44. The mean
    # of the 24 clients of cluster 1, with client 0, is 0.8963; client 22 is in cluster 3.
    start = text.index("Worst-served clients")
    assert "samples 0 80.0% 89.6% 1 0 100 22 80.0% 90.1% 3 2 101 44 80.0%" in text[start:]
    assert "The 10 clients with the lowest accuracy" in text


def test_tables_say_who_attacks(make_run: MakeRun) -> None:
    folder = make_run()
    content = json.loads((folder / "clients.json").read_text())
    content["clients"]["attacker"] = [i in (0, 4, 45) for i in range(80)]
    (folder / "clients.json").write_text(json.dumps(content))
    text = Elements(render_run(folder)).text
    # Clients 0 and 4 are in cluster 1, with 22 others; 45 is in cluster 2.
    assert "found clients attackers 3 0 1 2 samples" in text
    assert re.search(r"found clients attackers .* 0 16 0 .* 1 24 2 .* 2 20 1 .* 3 20 0 ", text)
    # The worst served: 0 attacks, 22 and 44 do not.
    start = text.index("Worst-served clients")
    assert "samples 0 80.0% 89.6% 1 0 yes 100 22 80.0% 90.1% 3 2 no 101 44" in text[start:]


def test_worst_served_by_loss_where_there_is_no_accuracy(make_run: MakeRun) -> None:
    text = Elements(render_run(make_run(regression=True))).text
    # The loss is 0.3 + 0.1 cos(client), highest at client 0.
    assert re.search(r"The 10 clients with the highest training loss.* samples 0 0\.4 ", text)


def test_pictures_are_shown_with_the_names_of_their_clients(make_run: MakeRun) -> None:
    folder = make_run(sheets=2)
    page = Elements(render_run(folder))
    assert page.count("img") == 2
    assert "cluster 1: clients 1, 5" in page.text
    content = json.loads((folder / "clients.json").read_text())
    content["clients"]["name"] = [f"writer {i}" for i in range(80)]
    (folder / "clients.json").write_text(json.dumps(content))
    assert "cluster 1: clients writer 1, writer 5" in Elements(render_run(folder)).text


def test_sizes_of_every_round_add_up_to_all_clients(make_run: MakeRun) -> None:
    folder = make_run(k=30, clients=300, rounds=5)
    traces = Elements(render_run(folder)).data["figures"]["sizes"]["data"]
    assert len(traces) == 25
    assert traces[-1]["name"] == "other clusters"
    assert [sum(column) for column in zip(*(t["y"] for t in traces), strict=True)] == [300] * 5


def test_without_truth_no_true_cluster_is_mentioned(make_run: MakeRun) -> None:
    page = Elements(render_run(make_run(truth=False)))
    assert "true cluster" not in page.text
    assert page.data["map"]["views"] == ["found"]


def test_test_clients_have_their_own_tables(make_run: MakeRun) -> None:
    page = Elements(render_run(make_run(tested=True)))
    assert "Test clients by found cluster and true cluster" in page.text
    assert [table["name"] for table in page.data["tables"]] == ["Training clients", "Test clients"]
    assert page.data["tables"][1]["columns"][0]["values"][0] == 80


def test_clients_that_have_names_are_called_by_them(make_run: MakeRun) -> None:
    folder = make_run()
    content = json.loads((folder / "clients.json").read_text())
    content["clients"]["name"] = [HOSTILE, *(f"hospital {i}" for i in range(1, 80))]
    (folder / "clients.json").write_text(json.dumps(content))
    data = Elements(render_run(folder)).data
    assert [c["key"] for c in data["tables"][0]["columns"]][:2] == ["name", "client"]
    assert data["tables"][0]["columns"][0]["values"][:2] == [HOSTILE, "hospital 1"]


def test_clients_without_names_have_numbers_only(make_run: MakeRun) -> None:
    data = Elements(render_run(make_run())).data
    assert data["tables"][0]["columns"][0]["key"] == "client"


def test_own_models_are_said_and_not_drawn(make_run: MakeRun) -> None:
    page = Elements(render_run(make_run(k=2000, clients=2000)))
    assert "Each client has its own model" in page.text
    assert set(page.data["figures"]) == {"scores", "errors", "traffic", "seconds"}
    assert page.data["map"]["views"] == ["true"]
    assert page.data["map"]["frames"][0]["cluster"] is None


def test_run_that_only_began_has_a_page(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "result.json").unlink()
    (folder / "clients.json").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:7]) + lines[7][:50])
    page = Elements(render_run(folder))
    assert "rounds 7" in page.text
    # Where the clients are and were is known before the end.
    assert [frame["round"] for frame in page.data["map"]["frames"]] == [1, 2, 3]
    assert page.data["map"]["views"] == ["found", "true"]
    (folder / "rounds.jsonl").unlink()
    assert "rounds 0" in Elements(render_run(folder)).text


def test_rounds_without_metrics_draw_no_curve(make_run: MakeRun) -> None:
    folder = make_run()
    bare = [{"round": r, "sizes": [40, 40], "metrics": {}} for r in (1, 2)]
    del bare[1]["metrics"]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in bare))
    edit(folder, "result.json", metrics={})
    page = Elements(render_run(folder))
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
    page = Elements(render_run(folder))
    columns = {c["key"]: c["values"] for c in page.data["tables"][0]["columns"]}
    assert columns["loss"][0] is None
    assert columns["accuracy"][1] is None
    assert "accuracy –" in page.text


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must hold config\.json"):
        render_run(tmp_path)


def test_large_run_stays_below_8_megabytes(make_run: MakeRun) -> None:
    frames = sorted(frame_rounds(rounds=300, evaluate=1))
    assert len(frames) > 8
    folder = make_run(
        k=20, clients=4800, rounds=300, tested=True, frames=frames, restless=4800, sheets=12
    )
    assert len(render_run(folder).encode()) < 8_000_000


def sample_run(make_run: MakeRun, **changes: Any) -> Path:
    """A run that clusters samples, two rounds to a cluster round."""
    folder = make_run(rounds=4, k=2, clients=8, truth=False)
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for r in rounds:
        r["metrics"] |= {"cluster_round": float((r["round"] + 1) // 2), "purity": r["round"] / 8}
        r |= {"sizes": [10 * r["round"], 5], "moves": {}, "counted": "samples"}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rounds))
    table = {"cluster": [0, 1], "samples": [40, 5], "clients": [8, 2], "loss": [1.25, None]}
    table |= {"true": ["a", "b"], "overlaps": [[39, 1], [0, 5]]}
    edit(folder, "clients.json", sample_clusters=table)
    points = {"drawn": "losses under the 2 models", "x": [-1.0, 0.5, 1.0], "y": [0.0, 1.0, -1.0]}
    points |= {"client": [0, 3, 7], "cluster": [0, 0, 1], "true": ["a", HOSTILE, "b"]}
    points |= {"loss": [1.0, math.inf, 2.0]}
    summary = {"mean": [1.0, 2.0], "low": [0.0, 1.0], "high": [2.0, 3.0]}
    features = {"features": [HOSTILE, "weight"], "of": 50}
    features["clusters"] = [{"cluster": 0, "samples": summary, "draws": summary}]
    content = {"map": points, "features": features} | changes
    (folder / "samples.json").write_text(json.dumps(content))
    return folder


def test_clusters_of_samples_are_told_by_cluster_round(make_run: MakeRun) -> None:
    page = Elements(render_run(sample_run(make_run)))
    sizes = page.data["figures"]["sizes"]
    assert [trace["y"] for trace in sizes["data"]] == [[20, 40], [5, 5]]
    assert sizes["layout"]["yaxis"]["title"]["text"] == "samples"
    assert page.data["figures"]["purity"]["data"][0]["y"] == [0.25, 0.5]
    assert "Samples in each cluster over the cluster rounds" in page.text
    assert "Mean loss of the samples in each cluster" in page.text
    assert "cluster_round over the rounds" not in page.text  # a staircase tells nothing
    assert "mean loss 0 8 40 39 1 1.25 1 2 5 0 5 –" in page.text
    assert "flows" not in page.data["figures"]


def test_samples_have_a_map_and_their_features_charts(make_run: MakeRun) -> None:
    page = Elements(render_run(sample_run(make_run)))
    places = page.data["sample_map"]
    assert places["views"] == ["found", "true"]
    assert unpacked(places["frames"][0]["cluster"], "<i2").tolist() == [0, 0, 1]
    assert len(unpacked(places["frames"][0]["points"], "<u2")) == 6
    told = {column["key"]: column["values"] for column in places["table"]["columns"]}
    assert told["client"] == [0, 3, 7]
    assert told["loss"] == [1.0, None, 2.0]
    assert "3 training samples, drawn at random" in page.text
    assert "The 2 of 50 features in which the clusters differ most" in page.text
    assert page.count("img") == 0  # hostile names stay text
    go.Figure(page.data["figures"]["features_0"])
    drawn, saved = (
        {attributes[name] for _, attributes in page.tags if name in attributes}
        for name in ("data-figure", "data-of")
    )
    assert saved == set(page.data["figures"]) | {"map", "sample_map"}
    assert drawn == {name for name in saved if not name.startswith("confusion")}


def test_draws_are_shown_below_samples_or_alone(make_run: MakeRun) -> None:
    folder = sample_run(make_run)
    sheets = [
        {"cluster": 0, "clients": [], "png": "QQ==", "draws": "Qg=="},
        {"cluster": 1, "clients": [], "png": None, "draws": "Qw=="},
    ]
    (folder / "pictures.json").write_text(json.dumps(sheets))
    page = Elements(render_run(folder))
    assert page.count("img") == 3
    assert page.text.count("Drawn from its model") == 2
    assert "No sample is in it." in page.text


def test_folders_of_earlier_versions_and_unfinished_ones_have_a_page(make_run: MakeRun) -> None:
    folder = sample_run(make_run)
    (folder / "samples.json").unlink()
    content = json.loads((folder / "clients.json").read_text())
    del content["sample_clusters"]["loss"]
    (folder / "clients.json").write_text(json.dumps(content))
    lines = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text(lines.replace(', "counted": "samples"', ""))
    sheet = {"cluster": 0, "clients": [], "png": "QQ=="}
    (folder / "pictures.json").write_text(json.dumps([sheet]))
    page = Elements(render_run(folder))
    assert "sizes" not in page.data["figures"]  # what was counted is not known
    assert page.data["sample_map"] is None
    assert "Samples are clustered, not clients" in page.text
    assert page.count("img") == 1
    (folder / "rounds.jsonl").write_text(lines)
    (folder / "clients.json").unlink()
    page = Elements(render_run(folder))
    assert "Samples are clustered, not clients" in page.text
    assert page.data["figures"]["sizes"]["layout"]["yaxis"]["title"]["text"] == "samples"
