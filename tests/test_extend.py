"""The one module that authors import from."""

import re
from pathlib import Path

from coterie import extend

PAGE = Path(__file__).parent.parent / "docs" / "your-own-algorithm.md"


def test_the_page_lists_exactly_what_there_is():
    table = PAGE.read_text().partition("## What `coterie.extend` has")[2]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][2:]
    listed = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(listed) == sorted(extend.__all__)
    assert len(set(listed)) == len(listed)


def test_every_name_is_there_and_nothing_else_is_public():
    for name in extend.__all__:
        assert hasattr(extend, name), name
    assert {name for name in vars(extend) if not name.startswith("_")} == set(extend.__all__)
