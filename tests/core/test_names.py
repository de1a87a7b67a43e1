from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from coterie.core.names import file_name, short_names
from coterie.shelves import SHELVES

words = st.text("abAB_.", min_size=1, max_size=4)
own = st.builds("{}:{}".format, words, words)


def test_own_names_and_built_in_ones_have_different_file_names():
    built_in = [name for shelf in SHELVES.values() for name in shelf]
    parts = [name.replace("-", ":", 1) for name in built_in if "-" in name]
    assert not {file_name(name) for name in built_in} & {file_name(name) for name in parts}
    assert [file_name(name) for name in built_in] == built_in


@given(st.lists(own, unique=True))
def test_different_names_have_different_file_names(names):
    assert len({file_name(name) for name in names}) == len(names)
    for name, letter in product(names, ':/\\<>"|?*'):
        assert letter not in file_name(name)


@given(st.lists(own, unique=True))
def test_short_names_tell_things_apart(names):
    short = short_names(names)
    assert len(set(short.values())) == len(names)
