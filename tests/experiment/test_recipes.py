import json
from pathlib import Path

import pytest

from coterie.cli import main as cli
from coterie.core.errors import SettingError
from coterie.experiment import recipes
from coterie.experiment.plan import make_plan

ALL = recipes.all_recipes()


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_every_entry_can_be_run_and_every_name_is_known(recipe):
    names = [entry.name for entry in recipe.entries]
    assert len(set(names)) == len(names)
    for mode in recipes.MODES:
        assert recipe.minutes[mode] > 0
        for entry in recipe.select_entries(mode).values():
            for words in entry.words(mode, 0):
                make_plan(list(words))
    for entry in recipe.entries:
        assert set(entry.tolerance) <= set(entry.published)
    for order in recipe.order:
        assert set(order) <= set(names)
    for rate in recipe.rates:
        for mode in recipes.MODES:
            chosen = recipe.select_entries(mode).values()
            known = [each.values for each in chosen if each.template == rate.entries]
            assert len({values[rate.x] for values in known if values[rate.x] >= rate.least}) > 1
    for panel in recipe.panels:
        assert set(panel.entries) <= set(names)
    assert {panel.entry for panel in recipe.scatters} <= set(names)
    for pivot in recipe.pivots:
        wanted = {pivot.rows, pivot.columns, *pivot.only}
        assert any(wanted <= set(entry.values) for entry in recipe.entries)


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_what_was_measured_belongs_to_the_recipe(recipe):
    for mode, record in recipe.measured.items():
        names = {entry.name for entry in recipe.select_entries(mode).values()}
        assert set(record["entries"]) <= names
        assert set(record["seeds"]) == set(record["entries"])


def test_every_recipe_is_of_a_table_or_figure_of_a_paper():
    papers = recipes.read_papers()
    for recipe in ALL:
        items = papers[recipe.path.parent.name]["items"]
        assert any(recipe.covers(item["name"]) for item in items), recipe.name
    for paper in papers.values():
        names = [item["name"] for item in paper["items"]]
        assert len(set(names)) == len(names)
        for item in paper["items"]:
            if "same" in item:
                owner, name = item["same"]
                assert name in [other["name"] for other in papers[owner]["items"]]


def test_the_list_has_every_table_and_figure_with_its_state():
    said = recipes.recipe_list()
    for paper in recipes.read_papers().values():
        assert paper["title"] in said
    lines = {
        (line.split("|")[1].strip(), line.split("|")[2].strip()): line.split("|")[3:]
        for line in said.splitlines()
        if line.startswith("|")
    }
    fig2 = lines[
        "Figure 2", "success on linear mixtures by separation, noise, machines and samples"
    ]
    assert [cell.strip() for cell in fig2[:2]] == ["ready", "ifca/fig2"]
    report = lines["Figure 3.2", "success on linear mixtures"]
    assert [cell.strip() for cell in report[:2]] == ["ready", "ifca/fig2"]
    assert lines["Figure 1", "overview of IFCA"][0].strip() == "nothing to run"
    part = lines["Figure 3.3", "accuracy of FeSEM by round and number of clusters"]
    assert part[0].strip() == "in part"
    parts = lines["Table 3.1", "FeSEM and the baselines on FEMNIST and FedCelebA"]
    assert parts[0].strip() == "ready"
    shown = "cluster accuracy on MNIST"  # in four parts, which the report has from the paper
    assert lines["Table 3", f"{shown}: rotations, digits, representations"][0].strip() == "ready"
    assert lines["Table 4.3", shown][0].strip() == "ready"
    assert "not yet" in said


TINY = """
item = "Table 0"
title = "a test"
paper = "nobody"
seeds = 2
minutes = { quick = 1, full = 1 }
order = [["local", "ifca"]]

[[entry]]
name = "local"
run = "local rotated-digits clients=8 rounds=3"
quick = "rounds=2"
published = { accuracy = 0.4, ari = 0.0 }
tolerance = { accuracy = 0.4, ari = 0.0 }

[[entry]]
name = "ifca"
run = "ifca rotated-digits clients=8 rounds=3 k=4"
published = { accuracy = 0.99 }
tolerance = { accuracy = 0.0 }
"""


PAPERS = """
[nobody]
title = "nobody's paper"
items = [
    { name = "Table 0", what = "a test" },
    { name = "Table 1", what = "another" },
    { name = "Figure 1", what = "a drawing", run = false },
]
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    (tmp_path / "recipes" / "nobody").mkdir(parents=True)
    (tmp_path / "recipes" / "nobody" / "table0.toml").write_text(TINY)
    (tmp_path / "recipes" / "papers.toml").write_text(PAPERS)
    monkeypatch.setattr(recipes, "recipes_folder", lambda: tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_recipe_is_run_and_its_numbers_are_kept(tiny, capsys):
    assert cli.main(["reproduce", "nobody/table0", "--quick"]) == 0
    said = capsys.readouterr().out
    assert "| local | accuracy | 0.4" in said
    assert "reached" in said
    assert "not run" in said  # ifca has no quick version
    kept = json.loads((tiny / "recipes" / "nobody" / "table0.json").read_text())
    assert set(kept) == {"quick"}
    assert kept["quick"]["seeds"] == {"local": 1}
    assert kept["quick"]["entries"]["local"]["ari"] == [0.0, 0.0]
    assert cli.main(["reproduce"]) == 0
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if "|" in line]
    cells = [[cell.strip() for cell in line[1:-1]] for line in lines][2:]
    assert cells == [
        ["Table 0", "a test", "ready", "nobody/table0", "1 min", "1 min", "quick"],
        ["Table 1", "another", "not yet", "", "", "", ""],
        ["Figure 1", "a drawing", "nothing to run", "", "", "", ""],
    ]


def test_quick_settings_take_the_place_of_the_full_ones(tiny):
    recipe = recipes.find_recipe("nobody/table0")
    (full,), (quick,) = (recipe.entries[0].words(mode, 7) for mode in ("full", "quick"))
    assert full[-2:] == ("rounds=3", "seed=7")
    assert quick[-2:] == ("rounds=2", "seed=7")
    assert "rounds=3" not in quick
    assert [entry.name for entry in recipe.select_entries("quick").values()] == ["local"]


def test_a_whole_name_chooses_its_entry_alone():
    names = [
        entry.name
        for entry in recipes.find_recipe("fpfc/table1").select_entries("full", "CFL").values()
    ]
    assert names == ["CFL"]
    some = recipes.find_recipe("fpfc/table1").select_entries("full", "CFL, our").values()
    assert [entry.name for entry in some] == ["CFL, our third condition", "CFL, our thresholds"]


def test_a_part_of_a_recipe_is_run_and_joins_what_was_measured(tiny, capsys):
    kept = tiny / "recipes" / "nobody" / "table0.json"
    full = ["reproduce", "nobody/table0", "--full"]
    assert cli.main([*full, "--seeds", "1", "--only", "ifca"]) == 0
    assert json.loads(kept.read_text())["full"]["seeds"] == {"ifca": 1}
    assert not (tiny / "runs" / "reproduce" / "nobody-table0-full" / "00-seed0").exists()
    capsys.readouterr()
    cli.main(["reproduce"])
    assert "full (1 of 2, 1 with fewer seeds)" in capsys.readouterr().out
    assert cli.main([*full, "--seeds", "2", "--only", "local"]) == 0
    assert json.loads(kept.read_text())["full"]["seeds"] == {"local": 2, "ifca": 1}
    assert cli.main([*full, "--only", "fedavg"]) == 2
    assert "no entry of nobody/table0 has 'fedavg' in its name (local, ifca)" in (
        capsys.readouterr().err
    )


def test_an_order_that_does_not_hold_is_said(tiny):
    recipe = recipes.find_recipe("nobody/table0")
    numbers = {"local": {"accuracy": (0.9, 0.0)}, "ifca": {"accuracy": (0.8, 0.0)}}
    _, rows, orders = recipe.verdicts(numbers)
    assert orders == ["local < ifca in accuracy: does NOT hold"]
    assert rows[2][-1] == "off by -0.1900"


def test_a_recipe_of_a_part_and_one_that_the_list_does_not_have(tiny):
    place = tiny / "recipes" / "nobody"
    (place / "table0.toml").rename(place / "part.toml")
    (place / "part.toml").write_text(TINY.replace("Table 0", "Table 0, MNIST"))
    (place / "new.toml").write_text(TINY.replace("Table 0", "Table 00"))
    rows = [line.split("|") for line in recipes.recipe_list().splitlines()]
    cells = [[cell.strip() for cell in row[1:5]] for row in rows if len(row) > 4]
    assert ["Table 0", "a test", "in part", "nobody/part"] in cells
    assert ["Table 00", "a test", "ready", "nobody/new"] in cells


def test_a_table_is_ready_when_all_its_parts_have_recipes():
    def recipe_of(item):
        return recipes.Recipe(Path("p.toml"), {}, [], item, "a test", "nobody", {})

    item = {"name": "Table 0", "parts": ["MNIST", "CIFAR"]}
    mnist, cifar = recipe_of("Table 0, MNIST"), recipe_of("Table 0, CIFAR")
    assert recipes.recipe_status(item, [mnist]) == "in part"
    assert recipes.recipe_status(item, [mnist, cifar]) == "ready"
    assert recipes.recipe_status({"name": "Table 0"}, [mnist, cifar]) == "in part"


EACH = """
item = "Figure 0"
title = "a test"
paper = "nobody"
seeds = 3
quick_seeds = 2
minutes = { quick = 1, full = 1 }
merit = "success"
show = ["success", "ari"]
order = [["R = 0.1", "R = 2"]]

[[entry]]
name = "R = {R}"
run = "ifca linear-mixture separation={R} samples={n}"
quick = "samples={tenth}"
each = [
    { R = 0.1, n = 50, tenth = 5 },
    { R = 1, n = 50, tenth = 5, quick = false },
    { R = 2, n = 70, tenth = 7 },
]
published = { ari = 1.0 }
"""


def test_an_entry_stands_for_one_of_each(tiny):
    path = tiny / "recipes" / "nobody" / "figure0.toml"
    path.write_text(EACH)
    recipe = recipes.find_recipe("nobody/figure0")
    assert recipe.seeds == {"quick": 2, "full": 3}
    assert [entry.name for entry in recipe.entries] == ["R = 0.1", "R = 1", "R = 2"]
    assert [entry.name for entry in recipe.select_entries("quick").values()] == ["R = 0.1", "R = 2"]
    last = recipe.entries[2]
    run = ("ifca", "linear-mixture", "separation=2")
    assert last.words("full", 1) == [(*run, "samples=70", "seed=1")]
    assert last.words("quick", 1) == [(*run, "samples=7", "seed=1")]


LISTS = """
item = "Figure 0"
title = "a test"
paper = "nobody"
seeds = 2
minutes = { quick = 1, full = 1 }

[lists]
method = [{ method = "FedAvg", run = "fedavg" }, { method = "IFCA", run = "ifca" }]
share = [
    { share = 0, attack = "none" },
    { share = 10, attack = "labels attackers=0.1", quick = false },
]

[[entry]]
name = "{method}, {share} %"
run = "{run} rotated-digits attack={attack}"
quick = "rounds=2"
each = ["method", "share"]

[[pivot]]
title = "Accuracy in percent"
rows = "method"
columns = "share"
percent = true
spread = 0.01
beside = "ari"
usual = 1.0
"""


def test_values_of_several_lists_are_combined_and_shown_as_a_table(tiny, capsys):
    path = tiny / "recipes" / "nobody" / "figure0.toml"
    path.write_text(LISTS)
    recipe = recipes.find_recipe("nobody/figure0")
    names = [entry.name for entry in recipe.entries]
    assert names == ["FedAvg, 0 %", "FedAvg, 10 %", "IFCA, 0 %", "IFCA, 10 %"]
    attacked = ("fedavg", "rotated-digits", "attack=labels", "attackers=0.1", "seed=1")
    assert recipe.entries[1].words("full", 1) == [attacked]
    quick = [entry.name for entry in recipe.select_entries("quick").values()]
    assert quick == ["FedAvg, 0 %", "IFCA, 0 %"]
    with pytest.raises(
        SettingError, match="nothing was measured of these entries of nobody/figure0"
    ):
        recipe.stored_numbers("full")
    numbers = {
        "FedAvg, 0 %": {"accuracy": (0.8351, 0.004), "ari": (0.0, 0.0)},
        "FedAvg, 10 %": {"ari": (0.0, 0.0)},  # it diverged
        "IFCA, 0 %": {"accuracy": (0.95, 0.02), "ari": (1.0, 0.0)},
    }
    recipe.save_numbers("full", 2, numbers)
    assert cli.main(["reproduce", "nobody/figure0", "--full", "--stored"]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    assert [row for row in cells if "---" not in row[0] and row[0] != "entry"] == [
        ["", "0", "10"],
        ["FedAvg", "83.5, ARI 0.00", "diverged"],
        ["IFCA", "95.0 ± 2.0", "-"],
    ]
    path.write_text(LISTS.replace('["method", "share"]', '["method", "shares"]'))
    with pytest.raises(SettingError, match="a recipe has no list shares; did you mean `share`"):
        recipes.find_recipe("nobody/figure0")


POOL = """
item = "Figure 0"
title = "a test"
paper = "nobody"
seeds = 2
minutes = { quick = 1, full = 1 }

[[entry]]
name = "p = {p}"
run = "k-fed mnist-representations heterogeneity={p} digit={digit} network_seed={seed}"
quick = "samples={few}"
pool = [{ digit = 2, few = 9 }, { digit = 3, few = 8 }]
each = [{ p = 0, published = { purity = 0.5 } }, { p = 1, published = { purity = 0.9 } }]
"""


def test_an_entry_that_pools_has_a_run_for_each_and_their_mean(tiny):
    path = tiny / "recipes" / "nobody" / "figure0.toml"
    path.write_text(POOL)
    recipe = recipes.find_recipe("nobody/figure0")
    assert [entry.published["purity"] for entry in recipe.entries] == [0.5, 0.9]
    jobs = recipe.jobs("full", 2, tiny, "p = 1")
    common = ("k-fed", "mnist-representations", "heterogeneity=1")
    assert [job.words for job in jobs] == [
        (*common, f"digit={digit}", f"network_seed={seed}", f"seed={seed}")
        for seed in (0, 1)
        for digit in (2, 3)
    ]
    assert len({job.folder for job in jobs}) == 4
    assert recipe.entries[0].words("quick", 0)[1][-2:] == ("samples=8", "seed=0")
    purities = [0.1, 0.2, 0.5, 0.8, 1.0, 1.0, 0.5, 0.5]  # by p, by seed, by digit
    results = [{"metrics": {"purity": purity}} for purity in purities]
    numbers = recipe.numbers("full", 2, results)
    assert numbers["p = 0"]["purity"] == pytest.approx((0.4, 0.5 / 2**0.5))
    assert numbers["p = 1"]["purity"] == pytest.approx((0.75, 0.5 / 2**0.5))
    failed = recipe.numbers("full", 2, [None, *results[1:]])
    assert set(failed) == {"p = 1"}


def test_metrics_without_a_published_number_are_shown_and_give_the_order(tiny):
    path = tiny / "recipes" / "nobody" / "figure0.toml"
    path.write_text(EACH)
    numbers = {
        name: {"success": (value, 0.0), "ari": (1.0, 0.0)}
        for name, value in (("R = 0.1", 0.25), ("R = 2", 0.75))
    }
    _, rows, orders = recipes.find_recipe("nobody/figure0").verdicts(numbers)
    assert orders == ["R = 0.1 < R = 2 in success: holds"]
    assert rows == [
        ["R = 0.1", "ari", "1", "1.0000 ± 0.0000", ""],
        ["R = 0.1", "success", "", "0.2500 ± 0.0000", ""],
        ["R = 1", "ari", "1", "not run", ""],
        ["R = 2", "ari", "1", "1.0000 ± 0.0000", ""],
        ["R = 2", "success", "", "0.7500 ± 0.0000", ""],
    ]


SLOPES = """
item = "Theorem 0"
title = "a test"
paper = "nobody"
seeds = 2
minutes = { quick = 1, full = 1 }

[[entry]]
name = "sigma = {sigma}"
run = "ifca linear-mixture clients=4 samples=20 features=2 start=near-truth noise={sigma} rounds=3"
quick = ""
each = [{ sigma = 0.1 }, { sigma = 0.4 }]

[[rate]]
name = "all samples"
entries = "sigma = {sigma}"
x = "sigma"
theory = 9.0

[[curves]]
title = "by round"
metrics = ["distance"]
entries = ["sigma = 0.4"]
"""


def test_slopes_are_printed_beside_the_theory_and_a_picture_is_drawn(tiny, capsys):
    place = tiny / "recipes" / "nobody"
    (place / "rates.toml").write_text(SLOPES)
    assert cli.main(["reproduce", "nobody/rates", "--only", "sigma = 0.1"]) == 0
    assert "| all samples" not in capsys.readouterr().out
    assert not (place / "rates-quick.svg").exists()  # one point is no line
    assert cli.main(["reproduce", "nobody/rates", "--only", "sigma = 0.4"]) == 0
    said = capsys.readouterr().out
    (row,) = [line for line in said.splitlines() if "all samples" in line]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:4] == ["distance by sigma: all samples", "distance", "sigma = 0.1 to 0.4", "+9"]
    assert cells[5].startswith("off by -")
    assert "rates-quick.svg" in said
    kept = json.loads((place / "rates.json").read_text())["quick"]
    assert list(kept["curves"]) == ["sigma = 0.4"]
    assert kept["curves"]["sigma = 0.4"]["distance"]["round"] == [1, 2, 3]
    picture = (place / "rates-quick.svg").read_text()
    assert "theory: slope +9" in picture
    assert "by round" in picture


def test_an_unknown_recipe_is_refused_with_the_near_ones(tiny):
    with pytest.raises(SettingError, match="no recipe is named nobody/table1; did you mean"):
        recipes.find_recipe("nobody/table1")


def test_runs_that_diverged_or_failed_leave_the_numbers_of_the_others(tiny):
    recipe = recipes.find_recipe("nobody/table0")
    fine, wild = {"metrics": {"accuracy": 0.4, "ari": 0.0}}, {"metrics": {"accuracy": None}}
    numbers = recipe.numbers("full", 2, [fine, wild, None, fine])
    assert numbers == {"local": {}}
    _, rows, _ = recipe.verdicts(numbers)
    assert [row[3] for row in rows] == ["diverged", "diverged", "not run"]
    numbers = recipe.numbers("full", 2, [fine, fine, wild, fine])
    assert numbers == {"local": {"accuracy": (0.4, 0.0), "ari": (0.0, 0.0)}, "ifca": {}}
    recipe.save_numbers("full", 2, numbers)
