import json
from types import SimpleNamespace

from coterie.experiment.rates import Rate
from coterie.experiment.recipe_figures import (
    CurvePanel,
    RecipeNumbers,
    ScatterPanel,
    read_curves,
    read_points,
    recipe_panels,
)


def write_run(folder, values):
    """A run folder in which rounds have a metric `purity`, or none where it is None."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    metrics = [{} if value is None else {"purity": value} for value in values]
    records = ({"round": n, "metrics": each} for n, each in enumerate(metrics, 1))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return folder


def entries(*names):
    return [SimpleNamespace(name=name, template=name, values={}) for name in names]


def test_curves_are_means_over_seeds_of_the_rounds_that_all_have(tmp_path):
    runs = [
        write_run(tmp_path / "0", [0.5, None, 0.75]),
        write_run(tmp_path / "1", [0.25, 1, 0.75]),
    ]
    panel = CurvePanel("a", ["purity", "unknown"], ["p = 0"])
    folders = {"p = 0": runs, "p = 1": [tmp_path / "not looked at"]}
    curves = read_curves(folders, [panel])
    deviation = (2 * 0.125**2) ** 0.5
    assert curves == {
        "p = 0": {"purity": {"round": [1, 3], "mean": [0.375, 0.75], "deviation": [deviation, 0.0]}}
    }


def test_one_run_has_no_deviation(tmp_path):
    folders = {"p = 0": [write_run(tmp_path / "0", [0.5])]}
    curves = read_curves(folders, [CurvePanel("a", ["purity"])])
    assert curves["p = 0"]["purity"]["deviation"] == [0.0]


def panels_of(record, panels=(), rates=(), each=()):
    return recipe_panels(RecipeNumbers(each, rates, panels, {"seeds": {}, "entries": {}, **record}))


def test_a_panel_has_a_curve_for_each_entry_and_metric():
    curve = {"round": [1, 2], "mean": [0.1, 0.2], "deviation": [0.0, 0.1]}
    curves = {"p = 0": {"purity": curve, "loss": curve}, "p = 1": {"purity": curve}}
    both = [CurvePanel("one", ["purity"]), CurvePanel("two", ["purity", "loss"], ["p = 0"], "y")]
    one, two = panels_of({"curves": curves}, both, each=entries("p = 0", "p = 1"))
    assert [each.name for each in one.series] == ["p = 0", "p = 1"]
    assert [each.name for each in two.series] == ["p = 0, purity", "p = 0, loss"]
    assert (one.x_label, one.y_label, one.log) == ("round", "purity", "")
    assert (two.y_label, two.log) == ("purity, loss", "y")


def test_an_axis_may_count_the_steps_of_rounds():
    curve = {"round": [1, 3], "mean": [0.1, 0.2], "deviation": [0.0, 0.1]}
    panel = CurvePanel("one", ["purity"], per_round=20)
    (drawn,) = panels_of({"curves": {"p = 0": {"purity": curve}}}, [panel], each=entries("p = 0"))
    assert list(drawn.series[0].x) == [20, 60]


def test_panels_without_numbers_are_left_out():
    panel = CurvePanel("one", ["purity"])
    rate = Rate("fresh", "m = {m}", "m", -0.5)
    assert panels_of({}, [panel], [rate], entries("p = 0")) == []


def test_rates_of_one_title_share_a_panel_with_the_slopes_of_the_theory():
    each = [
        SimpleNamespace(name=f"{kind} {m}", template=kind + " {m}", values={"m": m})
        for kind in ("fresh", "all")
        for m in (1, 4)
    ]
    numbers = {"fresh 1": [4.0, 0.1], "fresh 4": [2.0, 0.1], "all 1": [2.0, 0], "all 4": [1.0, 0]}
    record = {
        "seeds": dict.fromkeys(numbers, 2),
        "entries": {name: {"distance": number} for name, number in numbers.items()},
    }
    rates = [
        Rate("fresh samples", "fresh {m}", "m", -0.5, panel="by m"),
        Rate("all samples", "all {m}", "m", -1.0, panel="by m", bound=True),
    ]
    (panel,) = panels_of(record, rates=rates, each=each)
    assert (panel.title, panel.x_label, panel.y_label, panel.log) == ("by m", "m", "distance", "xy")
    assert [series.name for series in panel.series] == [
        "fresh samples: slope -0.50 ± 0.03",
        "theory: slope -0.5",
        "all samples: slope -0.50 ± 0.00",
        "bound: slope -1",
    ]
    fresh, theory = panel.series[:2]
    assert (list(fresh.x), list(fresh.y)) == ([1, 4], [4.0, 2.0])
    assert [round(y, 9) for y in theory.y] == [4.0, 2.0]
    assert fresh.hue == theory.hue


def test_clients_of_the_first_run_are_points_of_their_cluster(tmp_path):
    columns = {"a": [0.5, 1.0, None, 2.0], "b": [1.0, 2.0, 3.0, 4.0], "cluster": [1, 0, 0, 1]}
    (tmp_path / "clients.json").write_text(json.dumps({"clients": columns}))
    panels = [ScatterPanel("local models", "FeSEM", "a", "b"), ScatterPanel("none", "X", "a", "b")]
    points = read_points({"FeSEM": [tmp_path, tmp_path / "not looked at"]}, panels)
    assert points == {"local models": {"0": [(1.0, 2.0)], "1": [(0.5, 1.0), (2.0, 4.0)]}}
    record = {"seeds": {}, "entries": {}, "points": json.loads(json.dumps(points))}
    (panel,) = recipe_panels(RecipeNumbers((), (), (), record, panels))
    assert [each.name for each in panel.series] == ["cluster 0 (1)", "cluster 1 (2)"]
    assert panel.series[1].y == [1.0, 4.0]
    assert (panel.x_label, panel.y_label) == ("a", "b")
