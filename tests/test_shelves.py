import subprocess
import sys

import pytest

from coterie.shelves import ALGORITHMS, SHELVES, Shelf


def test_to_know_the_names_takes_no_library():
    code = "import sys, coterie.shelves as s; len(s.ALGORITHMS); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("kind", SHELVES)
def test_every_name_is_of_a_class_that_says_where_it_is(kind):
    shelf = SHELVES[kind]
    for name in shelf:
        assert f"{shelf[name].__module__}:{shelf[name].__qualname__}" == shelf.homes[name]
        assert shelf.name_of(shelf[name]) == name


def test_a_shelf_is_a_mapping_that_imports_when_it_is_asked():
    shelf = Shelf({"ifca": "algorithms.ifca:IFCA", "nobody": "algorithms.nobody:Nobody"})
    assert list(shelf) == ["ifca", "nobody"]
    assert "nobody" in shelf
    assert "fedavg" not in shelf
    assert shelf["ifca"] is ALGORITHMS["ifca"]
    with pytest.raises(KeyError):
        shelf["fedavg"]
    shelf["mine"] = ALGORITHMS["fedavg"]
    assert shelf["mine"] is ALGORITHMS["fedavg"]
    assert shelf.name_of(ALGORITHMS["fedavg"]) == "mine"
    del shelf["mine"]
    assert list(shelf) == ["ifca", "nobody"]
    assert shelf.name_of(object()) is None
