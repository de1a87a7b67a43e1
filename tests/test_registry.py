import itertools
from dataclasses import fields, is_dataclass

import pytest

import coterie
from coterie.core.errors import SettingError
from coterie.registry import ALGORITHMS, FEDERATIONS, NETWORKS, SHELVES, algorithm_name, find


@pytest.mark.parametrize("kind", SHELVES)
def test_no_two_names_share_a_class(kind):
    for one, other in itertools.combinations(SHELVES[kind].values(), 2):
        assert one is not other


def test_no_name_is_on_two_shelves():
    names = [*ALGORITHMS, *FEDERATIONS, *NETWORKS]
    assert len(set(names)) == len(names)


def test_every_federation_suggests_a_network_there_is():
    for federation in FEDERATIONS.values():
        assert federation.suggests["network"] in NETWORKS


def test_an_unknown_name_is_refused_with_the_near_ones():
    assert find("algorithm", "ifca") is coterie.IFCA
    with pytest.raises(SettingError, match="no algorithm is named ifcaa; did you mean `ifca`"):
        find("algorithm", "ifcaa")
    with pytest.raises(SettingError, match=r"no network is named zzz \(networks: linear, mlp"):
        find("network", "zzz")


def test_an_algorithm_has_its_name_or_that_of_its_class():
    assert algorithm_name(coterie.KFed()) == "k-fed"
    assert algorithm_name(object()) == "object"


@pytest.mark.parametrize("name", [*ALGORITHMS, *FEDERATIONS, *NETWORKS])
def test_a_setting_that_is_given_another_default_keeps_its_rule(name):
    kind = {**ALGORITHMS, **FEDERATIONS, **NETWORKS}[name]
    rules = {field.name: field.metadata["rule"] for field in fields(kind)}
    bases = [base for base in kind.__mro__[1:] if is_dataclass(base)]
    inherited = [field for base in bases for field in fields(base) if field.metadata["rule"]]
    assert [field.name for field in inherited if rules[field.name] is None] == []
