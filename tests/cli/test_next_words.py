import pytest

from coterie.cli.main import build_parser, main
from coterie.cli.next_words import complete_line
from coterie.shelves import ALGORITHMS, FEDERATIONS, NETWORKS


def complete(line):
    return complete_line(line, build_parser())


def test_commands_come_first():
    assert complete("coterie re") == ["report", "reproduce"]
    assert {"run", "list", "help", "--version"} <= {*complete("coterie ")}
    assert "complete" not in complete("coterie ")
    assert complete("coterie nothing ") == []


def test_an_algorithm_and_a_federation_come_next():
    assert complete("coterie run ") == sorted(ALGORITHMS)
    assert complete("coterie run ifca ") == sorted(FEDERATIONS)
    assert complete("coterie run fed") == sorted(n for n in ALGORITHMS if n.startswith("fed"))
    assert complete("coterie run --json ifca rotated-d") == ["rotated-digits"]


def test_then_the_settings_of_all_owners_but_those_that_are_given():
    found = complete("coterie run ifca rotated-digits k=3 ")
    assert {"start=", "clients=", "hidden=", "rounds="} <= {*found}
    assert "k=" not in found
    assert complete("coterie run fedavg rotated-digits lam") == []  # a setting of others
    assert complete("coterie run ifca rotated-digits network=cnn ker") == []


def test_values_are_those_that_a_setting_can_have():
    assert complete("coterie run ifca rotated-digits average=") == [
        "average=gradients",
        "average=models",
    ]
    assert complete("coterie run ifca table standardise=") == [
        "standardise=false",
        "standardise=true",
    ]
    assert complete("coterie run ifca rotated-digits network=") == [
        f"network={name}" for name in sorted(NETWORKS)
    ]
    assert complete("coterie run ifca rotated-digits lr=") == []


def test_compared_names_have_commas_between():
    assert complete("coterie compare ifca,fedav") == ["ifca,fedavg"]
    assert "ifca,ifca" not in complete("coterie compare ifca,if")
    assert complete("coterie compare ifca,local rotated-digits,rotated-mn") == [
        "rotated-digits,rotated-mnist"
    ]
    assert complete("coterie compare ifca,local rotated-digits seed") == ["seed=", "seeds="]
    assert complete("coterie compare ifca,local rotated-digits ifca.aver") == ["ifca.average="]
    assert complete("coterie compare ifca,local rotated-digits ifca.average=g") == [
        "ifca.average=gradients"
    ]


@pytest.mark.parametrize(
    ("line", "among"),
    [
        ("coterie run --", "--resume"),
        ("coterie compare a b --format ", "latex"),
        ("coterie describe cif", "cifar10"),
        ("coterie help da", "data"),
        ("coterie data ", "describe"),
        ("coterie deploy ", "local"),
        ("coterie completion b", "bash"),
        ("coterie reproduce ifca/", "ifca/table1"),
        ("coterie run ifca 'rotated-d", "rotated-digits"),
    ],
)
def test_each_command_has_its_words(line, among):
    assert among in complete(line.replace("'", "") if "'" in line else line)


def test_a_table_has_the_settings_of_tables(tmp_path, monkeypatch):
    (tmp_path / "mine.csv").write_text("client,label,age\na,0,1\n")
    monkeypatch.chdir(tmp_path)
    assert "train_share=" in complete("coterie run ifca mine.csv trai")


def test_a_line_that_is_wrong_is_answered_by_nothing(capsys):
    assert main(["complete", "coterie run nobody rotated-digits k"]) == 1
    assert capsys.readouterr() == ("", "")
    assert main(["complete", "coterie run 'ifca"]) == 0
