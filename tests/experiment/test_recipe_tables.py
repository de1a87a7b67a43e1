from types import SimpleNamespace

from coterie.experiment.recipe_tables import Pivot


def entry(name, **values):
    return SimpleNamespace(name=name, template="", values=values)


def test_a_table_has_the_entries_with_both_values_and_a_dash_where_nothing_is():
    entries = [
        entry("a0", method="a", share=0, data="x"),
        entry("b5", method="b", share=5, data="x"),
        entry("other", method="c", share=0, data="y"),
        entry("alone"),
    ]
    numbers = {"a0": {"recall": (0.5, 0.25)}, "b5": {"recall": (1.0, 0.0)}, "other": {}}
    table = Pivot("method", "share", "recall", only={"data": "x"}).markdown(entries, numbers)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert rows[0] == ["", "0", "5"]
    assert rows[2:] == [["a", "0.50 ± 0.25", "-"], ["b", "-", "1.00"]]


def test_rows_and_columns_without_any_number_are_left_out():
    entries = [
        entry(f"{row}{share}", method=row, share=share) for row in "abc" for share in (0, 5, 9)
    ]
    loss = {"loss": (0.1, 0.0)}
    numbers = {"a0": loss, "a9": loss | {"recall": (1.0, 0.0)}, "b0": loss, "c9": {}, "c5": loss}
    table = Pivot("method", "share", "recall").markdown(entries, numbers)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert rows[0] == ["", "9"]
    assert rows[2:] == [["a", "1.00"], ["c", "diverged"]]


def test_another_metric_is_told_beside_where_it_is_not_as_usual():
    pivot = Pivot("a", "b", percent=True, beside="purity", usual=1.0)
    assert pivot.cell({"accuracy": (0.9512, 0.0), "purity": (1.0, 0.0)}) == "95.1"
    assert pivot.cell({"accuracy": (0.9512, 0.0), "purity": (0.5, 0.0)}) == "95.1, purity 0.50"
    assert pivot.cell({"purity": (0.5, 0.0)}) == "diverged"
    assert pivot.cell(None) == "-"
